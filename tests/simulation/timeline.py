"""Virtual time, and who runs next: an eventlet hub that waits for nothing real.

    timeline = Timeline(seed='17')
    process = timeline.process('conductor1')
    timeline.spawn(process, work, 'name')
    timeline.run_until(lambda: done)

Each green thread belongs to a *process*; what it spawns belongs to it, too. ``step`` is a point at which anybody else
may run: it costs a little virtual time, drawn from the thread's own random numbers, now and then a lot. Threads run in
the order of their times; so the seed chooses who is first at each statement, message and lock, and a part that is left
out of a story changes little of the rest.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

import greenlet
from eventlet.hubs import hub as eventlet_hub
from eventlet.hubs import timer as eventlet_timer

# What passes between two entries of the queue that are due at once, at most (s).
JITTER = 0.0004
# Steps after which a run counts as one that never ends.
LIMIT = 3_000_000


class Crash(greenlet.GreenletExit):
    """The process ends here: no handler of ours may catch it."""


class Endless(Exception):
    """The run goes on and on."""


class Process:
    """One daemon from its start to its end. ``stopped``: it stands still (SIGSTOP)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = self.stopped = False
        self.offset = 0.0
        self.greenlets: dict[Any, None] = {}
        self.held: list[tuple[Any, int]] = []
        self.slowness = 1.0
        # Called with the process when work of it makes a step; None: nobody waits for that.
        self.at_step: Callable[[Process], None] | None = None
        self.writing = 0
        self.stop_wanted: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return self.name


class Thread:
    """What a green thread carries: its process, its random numbers, and which entry of the queue may wake it."""

    __slots__ = ('background', 'broken', 'name', 'process', 'random', 'token', 'writing')

    def __init__(self, process: Process, seed: int | str, background: bool = False, name: str = '') -> None:
        self.process, self.random, self.background, self.name = process, random.Random(seed), background, name
        self.token, self.writing, self.broken = 0, False, False


class Waiter:
    """Something that one green thread waits for."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline, self._greenlet = timeline, None
        self.ready = False

    def set(self) -> None:
        """From whatever thread; more than once does no harm."""
        if not self.ready:
            self.ready = True
            if self._greenlet is not None:
                self._timeline.wake(self._greenlet)

    def wait(self, timeout: float | None) -> bool:
        """Whether it was set within so many seconds."""
        if not self.ready:
            self._greenlet = greenlet.getcurrent()
            self._timeline.sleep(timeout)
            self._greenlet = None
        return self.ready


class Timeline(eventlet_hub.BaseHub):
    """See the module. ``slow``: how often a step takes ``slow_time`` seconds more, at most."""

    def __init__(self, clock: Any = None) -> None:
        super().__init__(clock=lambda: self.now)
        self.now = 0.0
        self.world = Process('world')
        self._queue: list[tuple[float, int, Any, Process]] = []
        self._count = self.steps = 0
        self.limit = LIMIT
        self._main = Thread(self.world, 'main')
        self._main_greenlet = greenlet.getcurrent()
        self.slow, self.slow_time, self.pace = 0.0, 0.0, 0.0004
        self._hash = hashlib.sha256()
        self.tellers: list[Callable[[float, str, str], None]] = []
        self.failures: list[str] = []

    # -- clock.Source -------------------------------------------------------------------------------------------------
    def offset(self) -> float:
        return self.current().process.offset

    def random(self) -> random.Random:
        return self.current().random

    # -- the trace ----------------------------------------------------------------------------------------------------
    def tell(self, what: str, who: str | None = None) -> None:
        """A line of the trace: its hash is the run's, and its tellers hear it."""
        who = who if who is not None else self.current().process.name
        self._hash.update(f'{self.now:.6f} {who} {what}\n'.encode())
        for teller in self.tellers:
            teller(self.now, who, what)

    def digest(self) -> str:
        """What tells this run from another."""
        return self._hash.hexdigest()[:16]

    # -- threads ------------------------------------------------------------------------------------------------------
    def current(self) -> Thread:
        """What the running green thread carries."""
        return getattr(greenlet.getcurrent(), 'sim', self._main)

    def reseed(self, seed: str) -> None:
        """From here on everything depends on this seed."""
        self._main.random = random.Random(f'{seed}/main')
        for _, _, what, _ in sorted(self._queue, key=lambda entry: entry[:2]):
            target = self._greenlet_of(what)
            if target is not None and hasattr(target, 'sim'):
                sim = target.sim
                sim.random = random.Random(f'{seed}/{sim.process.name}/{sim.name}')
        self._hash = hashlib.sha256(seed.encode())

    def spawn(
        self,
        process: Process,
        act: Callable[[], Any],
        name: str,
        seed: int | str | None = None,
        background: bool = False,
    ) -> Any:
        """A green thread of this process. ``seed``: of its random numbers, else of the spawning thread's."""
        made = greenlet.greenlet(lambda *_: self._body(act), self.greenlet)
        made.sim = Thread(process, self.random().getrandbits(64) if seed is None else seed, background, name)
        process.greenlets[made] = None
        self._push(self.now, made, process)
        return made

    def _body(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except Crash:
            pass
        except Exception:  # noqa: BLE001 - the run is told wrong for it
            self.failures.append(f'{self.current().process.name}: {traceback.format_exc()}')

    def _greenlet_of(self, what: Any) -> Any:
        if isinstance(what, tuple):
            return what[0]
        if isinstance(what, eventlet_timer.Timer):
            target = getattr(getattr(what, 'tpl', (None,))[0], '__self__', None)
            return target if isinstance(target, greenlet.greenlet) else None
        return what if isinstance(what, greenlet.greenlet) else None

    def _push(self, when: float, what: Any, process: Process) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, what, process))

    def add_timer(self, timer: Any) -> float:
        """eventlet's: locks, sleeps, new threads."""
        mine = self.current()
        process = mine.process
        target = self._greenlet_of(timer)
        if target is not None:
            if not hasattr(target, 'sim') and target is not self._main_greenlet:
                target.sim = Thread(process, mine.random.getrandbits(64), mine.background)
                process.greenlets[target] = None
            process = getattr(target, 'sim', self._main).process
        elif process.dead:
            # A lock that several processes share is given back by one that dies.
            process = self.world
        seconds = timer.seconds if timer.seconds > 0 else mine.random.random() * JITTER
        when = self.now + seconds
        self._push(when, timer, process)
        return when

    def timer_canceled(self, timer: Any) -> None:
        """It stays in the queue and does nothing."""

    def after(self, seconds: float, act: Callable[[], Any], process: Process | None = None) -> None:
        """Call ``act`` in the hub then; it must not wait."""
        self._push(self.now + seconds, act, process or self.world)

    def wake(self, target: Any) -> None:
        """Let a waiting green thread go on."""
        self._push(self.now + target.sim.random.random() * JITTER, (target, target.sim.token), target.sim.process)

    def sleep(self, seconds: float | None) -> None:
        """Wait so long (None: for ever), or for ``wake``."""
        me = greenlet.getcurrent()
        sim = me.sim
        if sim.process.dead:
            raise Crash
        sim.token += 1
        if seconds is not None:
            self._push(self.now + seconds, (me, sim.token), sim.process)
        self.switch()
        if sim.process.dead:
            raise Crash

    def step(self, pace: float = 1.0, slow: bool = True) -> None:
        """Anybody else may run now. ``pace``: how long it takes, in usual steps."""
        me = greenlet.getcurrent()
        sim = getattr(me, 'sim', None)
        if sim is None:
            return
        process = sim.process
        if process.dead:
            raise Crash
        if process.at_step is not None and not sim.background:
            process.at_step(process)
        chance = sim.random
        seconds = self.pace * pace * process.slowness * (0.25 + 1.5 * chance.random())
        if slow and self.slow and not sim.writing and chance.random() < self.slow:
            seconds += chance.random() ** 3 * self.slow_time
        self.sleep(seconds)

    # -- processes ----------------------------------------------------------------------------------------------------
    def kill(self, process: Process) -> None:
        """Nothing of it goes on, and what its threads still try on their way out has no effect. Only in the hub."""
        process.dead, process.stopped = True, False
        process.held.clear()
        for _ in range(100):
            left = [one for one in process.greenlets if not one.dead]
            if not left:
                break
            for one in left:
                if not one.dead:
                    one.parent = self.greenlet
                    one.throw(Crash)
        process.greenlets.clear()

    def stand_still(self, process: Process) -> None:
        """Its threads aren't chosen until ``go_on``."""
        process.stopped = True

    def go_on(self, process: Process) -> None:
        """What it missed comes at once."""
        process.stopped = False
        for what, _ in process.held:
            self._push(self.now, what, process)
        process.held.clear()

    # -- the loop -----------------------------------------------------------------------------------------------------
    def run(self, *args: Any, **kwargs: Any) -> None:
        """eventlet's main loop."""
        self.running = True
        try:
            self._loop()
        finally:
            self.running = False

    def _loop(self) -> None:
        queue = self._queue
        while not self.stopping:
            if not queue:
                raise Endless('nothing is left to run')
            when, number, what, process = heapq.heappop(queue)
            if process.dead:
                continue
            if process.stopped:
                process.held.append((what, number))
                continue
            self.now = max(self.now, when)
            self.steps += 1
            if self.steps > self.limit:
                raise Endless(f'more than {self.limit} steps')
            self._fire(what, process)

    def _fire(self, what: Any, process: Process) -> None:
        try:
            if isinstance(what, tuple):
                target, token = what
                if target.sim.token == token and not target.dead:
                    target.sim.token += 1
                    target.parent = self.greenlet
                    target.switch()
                if target.dead:
                    process.greenlets.pop(target, None)
            elif isinstance(what, eventlet_timer.Timer):
                target = self._greenlet_of(what)
                what()
                if target is not None and target.dead:
                    process.greenlets.pop(target, None)
            elif isinstance(what, greenlet.greenlet):
                what.switch()
                if what.dead:
                    process.greenlets.pop(what, None)
            else:
                what()
        except (KeyboardInterrupt, SystemExit, Endless):
            raise
        except Crash:
            pass
        except BaseException:  # noqa: BLE001 - as above
            self.failures.append(f'{process.name}: {"".join(traceback.format_exception(*sys.exc_info()))}')

    def complete(self, act: Callable[[], Any]) -> None:
        """From the main thread: run ``act`` as a green thread of the world until it ends."""
        main = greenlet.getcurrent()
        ended: list[bool] = []

        def body() -> None:
            try:
                act()
            finally:
                ended.append(True)
                self.after(0, main.switch)

        self.spawn(self.world, body, 'story', background=True)
        while not ended:
            self.switch()
