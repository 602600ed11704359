"""What goes wrong, done: processes die or stand still, messages and answers are lost, machines reboot.

    troubles = Troubles(cloud)
    troubles.begin(Trouble(9.2, 'kill', 'conductor1', 30.0, 4))
    troubles.end_all()                # everything works again, whoever died is started

A trouble with ``at`` waits after its time for the first line of the trace that begins with that text ('call
compute.prep_resize'), and then strikes ``wait`` seconds later; its target 'teller' is the process that told the line.

``kill`` and ``stop`` strike when the process makes its ``argument``-th step of real work after the time, or 20 s later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from tests.simulation import hosts
from tests.simulation.bus import Weather
from tests.simulation.cloud import Cloud, Refused
from tests.simulation.story import Trouble
from tests.simulation.timeline import Process

# Seconds that a kill waits for its step of work.
ARMED = 20.0
# Seconds after which the broker closes the connection of a process that stands still.
HEARTBEAT = 60.0


class Troubles:
    """One a run."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud, self._timeline = cloud, cloud.timeline
        self._open: dict[int, Callable[[], None]] = {}
        self._over = False
        self._operator = Process('operator')
        self.rebooted = False
        # What cuts the power (``power_cut.PowerCut.begin``).
        self.cut: Callable[[Trouble], None] = lambda trouble: None
        # What operators want to say of hosts.
        self._down: dict[str, bool] = {}
        # Operators who are at something.
        self.busy = 0
        self._awaited: list[Trouble] = []
        # (when it began, when it ended or will end) of each trouble, for ``checks``.
        self.spans: list[tuple[Trouble, float, float]] = []
        self._timeline.tellers.append(self._told)

    def begin(self, trouble: Trouble) -> None:
        """In the hub. It ends by itself after its time."""
        if self._over:
            return
        if trouble.at is not None:
            self._awaited.append(trouble)
            return
        now = self._timeline.now
        self.spans.append((trouble, now, now + trouble.lasts + (ARMED if trouble.kind in ('kill', 'stop') else 0.0)))
        end = getattr(self, f'_{trouble.kind}')(trouble)
        if end is not None:
            self._open[id(trouble)] = end
            self._timeline.after(trouble.lasts, lambda: self._end(id(trouble)))

    def _told(self, moment: float, who: str, what: str) -> None:
        for trouble in [one for one in self._awaited if what.startswith(one.at or '')]:
            if trouble.target == 'teller' and who not in self._cloud.processes:
                continue
            self._awaited.remove(trouble)
            now = replace(trouble, at=None, target=who if trouble.target == 'teller' else trouble.target)
            self._timeline.after(trouble.wait, lambda now=now: self.begin(now))

    def _end(self, number: int) -> None:
        end = self._open.pop(number, None)
        if end is not None:
            end()

    def end_all(self) -> None:
        """In the hub."""
        self._over = True
        self._awaited.clear()
        hosts.REFUSALS.clear()
        self._cloud.bus.echoes.clear()
        for number in list(self._open):
            self._end(number)
        for name, process in self._cloud.processes.items():
            process.at_step = None
            process.slowness = 1.0
            if process.stopped:
                self._timeline.go_on(process)
            self._cloud.start(name)

    def _say(self, trouble: Trouble, what: str) -> None:
        self._timeline.tell(what, trouble.target)

    def _at_work(self, trouble: Trouble, act: Callable[[Process], None]) -> None:
        """Call ``act`` in the hub at the process's n-th step of work from now, or when the time is over."""
        process = self._cloud.processes[trouble.target]
        left = [int(trouble.argument or 0)]
        done: list[bool] = []

        def strike() -> None:
            if not done and not self._over:
                done.append(True)
                process.at_step = None
                act(process)

        def step(_: Process) -> None:
            left[0] -= 1
            if left[0] < 0:
                process.at_step = None
                self._timeline.after(0, strike)

        process.at_step = step
        self._timeline.after(ARMED, strike)

    # -- kinds --------------------------------------------------------------------------------------------------------
    def _kill(self, trouble: Trouble) -> None:
        def act(process: Process) -> None:
            self._cloud.kill(trouble.target)
            self._timeline.after(trouble.lasts, lambda: self._cloud.start(trouble.target))

        self._at_work(trouble, act)

    def _stop(self, trouble: Trouble) -> None:
        def act(process: Process) -> None:
            if process.dead or process.stopped:
                return
            if any(one.sim.writing for one in process.greenlets):
                # SQLite has one writer: who stood still here would stop everybody.
                process.at_step = lambda _: self._timeline.after(0, lambda: act(process))
                return
            process.at_step = None
            self._say(trouble, 'stands still')
            self._timeline.stand_still(process)
            self._timeline.after(HEARTBEAT, lambda: self._cloud.bus.requeue(process) if process.stopped else None)

            def go_on() -> None:
                if process.stopped:
                    self._say(trouble, 'goes on')
                    self._timeline.go_on(process)

            self._timeline.after(trouble.lasts, go_on)

        self._at_work(trouble, act)

    def _reboot(self, trouble: Trouble) -> None:
        self.rebooted = True
        self._say(trouble, 'the machine reboots')
        self._cloud.kill(trouble.target)
        self._cloud.machines[trouble.target].reboot()
        self._timeline.after(trouble.lasts, lambda: self._cloud.start(trouble.target))

    def _power_cut(self, trouble: Trouble) -> None:
        self.rebooted = True
        self.cut(trouble)

    def _lose(self, trouble: Trouble) -> Callable[[], None] | None:
        """A machine is off, one at a time, and an operator says so; later it is there again, and the operator takes it
        back."""
        host = trouble.target
        if self._cloud.off:
            return None
        self._say(trouble, 'the machine is off')
        self._cloud.off.add(host)
        self._cloud.kill(host)
        self._cloud.machines[host].reboot()
        self._timeline.after(3.0, lambda: self._force_down(host, True))

        def end() -> None:
            self._cloud.off.discard(host)
            self._cloud.start(host)
            self._force_down(host, False)

        return end

    def _force_down(self, host: str, down: bool) -> None:
        self.busy += 1
        self._down[host] = down

        def ask() -> None:
            try:
                while self._down[host] == down and not self._forced(host, down):
                    self._cloud.pause(2.0)
            finally:
                self.busy -= 1

        self._timeline.spawn(self._operator, ask, 'force down')

    def _forced(self, host: str, down: bool) -> bool:
        """Whether it is said. Nothing is once all is over."""
        cloud = self._cloud
        if down and self._over:
            return True
        for api in [name for name in cloud.processes if name.startswith('api')]:
            with contextlib.suppress(Refused):
                found = cloud.request('GET', f'/os-services?host={host}&binary=nova-compute', None, api)
                if found.status_int != 200:
                    continue
                service = found.json['services'][0]['id']
                done = cloud.request('PUT', f'/os-services/{service}', {'forced_down': down}, api)
                self._timeline.tell(f'{host} is forced down: {down}: {done.status_int}')
                return bool(done.status_int == 200)
        return False

    def _cut(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, f'is cut off from {trouble.argument}')
        self._cloud.links.cut(trouble.target, trouble.argument)

        def end() -> None:
            self._say(trouble, f'reaches {trouble.argument} again')
            self._cloud.links.mend(trouble.target, trouble.argument)

        return end

    def _database(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, f'{trouble.argument}s')
        self._cloud.links.disturb(trouble.target, trouble.argument)

        def end() -> None:
            self._say(trouble, 'is well again')
            self._cloud.links.calm(trouble.target, trouble.argument)

        return end

    _placement = _service = _database

    def _broker(self, trouble: Trouble) -> None:
        self._say(trouble, 'restarts: its queues are gone')
        self._cloud.bus.restart()

    def _weather(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, f'messages: {trouble.argument}')
        self._cloud.bus.weather = Weather(**trouble.argument)

        def end() -> None:
            self._cloud.bus.weather = Weather()

        return end

    def _calm(self, trouble: Trouble) -> None:
        """Nothing happens: the story lasts until then at least."""

    def _casts(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, f'casts are lost: {trouble.argument}')
        self._cloud.bus.weather = Weather(lost_casts=trouble.argument)

        def end() -> None:
            self._cloud.bus.weather = Weather()

        return end

    def _echo(self, trouble: Trouble) -> None:
        self._cloud.bus.echoes.append((trouble.argument, trouble.lasts))

    def _refuse(self, trouble: Trouble) -> None:
        self._say(trouble, f'the next {trouble.argument} is refused')
        hosts.REFUSALS[trouble.argument] = hosts.REFUSALS.get(trouble.argument, 0) + 1

    def _long(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, f'takes {trouble.argument} s for a guest')
        self._cloud.machines[trouble.target].long = trouble.argument

        def end() -> None:
            self._cloud.machines[trouble.target].long = 0.0

        return end

    def _commits(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, f'answers of COMMITs are lost: {trouble.argument}')
        self._cloud.stores.lost_commits = trouble.argument

        def end() -> None:
            self._cloud.stores.lost_commits = 0.0

        return end

    def _answers(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, f'answers are lost: {trouble.argument}')
        self._cloud.stores.lost_answers[trouble.target] = trouble.argument

        def end() -> None:
            self._cloud.stores.lost_answers.pop(trouble.target, None)

        return end

    def _disk(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, 'its disk is full')
        machine = self._cloud.machines[trouble.target]
        machine.full = True

        def end() -> None:
            machine.full = False

        return end

    def _forget(self, trouble: Trouble) -> None:
        self._say(trouble, 'forgets the orders that it finished')
        manager = self._cloud.apps.get(trouble.target)
        if manager is not None:
            manager.keys._finished.clear()
            manager.keys._cancelled.clear()

    def _clock(self, trouble: Trouble) -> None:
        self._say(trouble, f'its clock is {trouble.argument} s ahead')
        if trouble.target in self._cloud.processes:
            self._cloud.processes[trouble.target].offset = trouble.argument
        else:
            self._cloud.stores.offsets[trouble.target] = trouble.argument

    def _slow(self, trouble: Trouble) -> Callable[[], None]:
        self._say(trouble, f'is {trouble.argument} times slower')
        self._cloud.processes[trouble.target].slowness = trouble.argument

        def end() -> None:
            self._cloud.processes[trouble.target].slowness = 1.0

        return end
