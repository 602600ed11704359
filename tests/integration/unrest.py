"""The shared cloud made larger (four hosts, two conductors, two schedulers), users who keep it busy, and daemons that
are killed or stand still meanwhile.

    with larger(site, directory, databases + '[conductor]\nlease_time = 6\n') as cloud:
        with Users(site) as users:
            cloud.kill('conductor-ctl2')            # kill -9
            cloud.start('conductor-ctl2')
        cloud.await_all()
        calm(site, story)                           # all has ended well, nothing disagrees
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.integration.beside import free_port
from tests.integration.site import Site, under_way
from tools.cloud import control, process, services
from tools.cloud.layout import DEFAULT_HOSTS, write_private
from tools.cloud.services import Service

# How long anything may take before a test gives up: a busy machine is slow, and nothing here measures time.
PATIENCE = 600.0
SECOND = 'ctl2'
# What users may be told: done, not now (409, 503), gone meanwhile (404), no such quota or room (403).
ANSWERS = {200, 202, 204, 404, 409, 503}


class Story:
    """What happened when, as it happens: lines with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f'{time.monotonic() - self._began:7.1f} s  {text}', flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def until(question: Any, what: str) -> Any:
    """Wait for an answer that is true, through outages of whom it asks; the answer."""
    deadline, last = time.monotonic() + PATIENCE, ''
    while True:
        try:
            if answer := question():
                return answer
        except (OSError, AssertionError) as error:
            last = str(error)
        assert time.monotonic() < deadline, f'not after {PATIENCE:.0f} s: {what}\n{last}'
        time.sleep(0.5)


# -- the cloud --------------------------------------------------------------------------------------------------------
def describe(directory: Path) -> Path:
    """Descriptions of four hosts: the shipped ones, which the cloud runs already, and one more like each."""
    directory.mkdir()
    for path in DEFAULT_HOSTS.iterdir():
        (directory / path.name).symlink_to(path)
        twin = {'gpu1': 'gpu3', 'gpu2': 'gpu4'}[path.stem]
        text = path.read_text().replace(path.stem, twin).replace(f'8e0{path.stem[-1]}', f'8e0{twin[-1]}')
        (directory / f'{twin}{path.suffix}').write_text(text)
    return directory


class Larger:
    """The daemons by name: ``conductor``, ``conductor-ctl2``, ``scheduler``, ``scheduler-ctl2``, ``compute-gpu1`` …"""

    def __init__(self, site: Site, directory: Path) -> None:
        self.site = site
        table = [service for service in services.daemons(site.cloud) if service.name != 'api']
        table += [self._second(daemon, directory) for daemon in ('conductor', 'scheduler')]
        self._services = {service.name: service for service in table}
        self.names = tuple(self._services)

    def _second(self, daemon: str, directory: Path) -> Service:
        site, own = self.site, directory / f'{daemon}-{SECOND}.conf'
        write_private(own, f'[DEFAULT]\nhost = {SECOND}\n[health]\n{daemon}_port = {free_port()}\n')
        argv = [site.layout.bin(f'kilonova-{daemon}')]
        for path in (site.layout.conf, site.extra, own):
            argv += ['--config-file', str(path)]
        return Service(
            f'{daemon}-{SECOND}',
            (*argv, '--log-file', str(site.layout.log(f'{daemon}-{SECOND}'))),
            reports=(f'nova-{daemon}', SECOND),
        )

    def start(self, name: str) -> None:
        """Start a daemon that doesn't run; doesn't wait until it serves."""
        control.start_one(self.site.cloud, self._services[name])

    def kill(self, name: str) -> None:
        """kill -9."""
        self.site.kill(name)

    def runs(self, name: str) -> bool:
        return process.running(self.site.layout, name) is not None

    def pause(self, name: str) -> None:
        """SIGSTOP: it stands still, and all its connections stay open."""
        os.kill(self.site.pid(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        os.kill(self.site.pid(name), signal.SIGCONT)

    def await_all(self) -> None:
        """Start whatever doesn't run, and wait until everybody reports to be up."""
        for name in self.names:
            if not self.runs(name):
                self.start(name)
        asked = control.Compute(self.site.cloud)
        until(lambda: not control.silent(self.site.cloud, self._services.values(), asked.services()), 'all are up')

    def end(self, hosts: set[str]) -> None:
        """These hosts and the second daemons, whatever state they are in, and what Placement knows of the hosts."""
        for name in self.names:
            if self.runs(name):
                self.resume(name)
        process.stop(self.site.layout, [name for name in self.names if name.endswith((SECOND, *hosts))])
        for row in self.site.call('GET', '/os-services', user='admin')['services']:
            if row['host'] in hosts:
                self.site.send('DELETE', f'/os-services/{row["id"]}', user='admin')


@contextlib.contextmanager
def larger(site: Site, directory: Path, settings: str) -> Iterator[Larger]:
    """Four hosts, two conductors, two schedulers with these settings, which name databases of their own. Afterwards no
    daemon runs: the next ``site.up()`` starts the cloud as the others know it."""
    hosts, shipped = describe(directory / 'hosts'), set(site.cloud.hosts)
    site.configure('')
    site.up()
    site.clean()

    def move(text: str) -> None:
        (site.layout.data('kilonova') / 'mapped').unlink(missing_ok=True)
        site.forget()
        site.configure(text)

    try:
        move(settings)
        site.cloud = control.up(site.layout, hosts=hosts, extra=site.extra)
        cloud = Larger(site, directory)
        try:
            cloud.await_all()
            # Asked for once, not by each of many users at the same time.
            assert site.image
            yield cloud
            site.clean()
        finally:
            cloud.end(set(site.cloud.hosts) - shipped)
    finally:
        move('')
        process.stop(site.layout, [service.name for service in services.daemons(site.cloud)])


# -- the users --------------------------------------------------------------------------------------------------------
class Users:
    """Several at once, each with servers of its own: creates, resizes with their ends, stops, starts, deletes, until
    the block ends. ``answers``: {status code: how often}; ``made``: ids of all servers that were accepted."""

    KINDS = ('create', 'create', 'create', 'resize', 'resize', 'end', 'end', 'power', 'delete')
    KEPT = 7

    def __init__(self, site: Site, number: int = 3, pause: float = 0.5) -> None:
        self._site, self._pause = site, pause
        self._flavors = {
            name: site.flavor(f'unrest-{name}', gpus=gpus, vcpus=vcpus, ram=512 * vcpus)
            for name, gpus, vcpus in (('plain', 0, 1), ('large', 0, 2), ('gpu', 1, 1), ('gpus', 2, 2))
        }
        self._ending = threading.Event()
        self._pool, self._number = ThreadPoolExecutor(number), number
        self._asking: list[Future[None]] = []
        self.answers: Counter[int] = Counter()
        self.done: Counter[str] = Counter()
        self.made: set[str] = set()
        # Whose move somebody ended: VERIFY_RESIZE is shown until that is done, and one more end gets 400.
        self._ended: set[str] = set()
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        self._asking = [self._pool.submit(self._ask, number) for number in range(self._number)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._pool.shutdown()
        if kind is None:
            for asking in self._asking:
                asking.result()
            assert not self.wrong, '\n'.join(self.wrong)

    def told(self) -> str:
        return f'{len(self.made)} servers made; accepted {dict(self.done)}; answers {dict(self.answers)}'

    def _ask(self, number: int) -> None:
        mine: list[str] = []
        while not self._ending.wait(self._pause):
            kind = random.choice(self.KINDS) if len(mine) < self.KEPT else random.choice(self.KINDS[3:])
            getattr(self, f'_{kind}')(mine, number)

    def _create(self, mine: list[str], number: int) -> None:
        flavor = self._flavors[random.choice(('plain', 'gpu', 'gpu', 'gpus'))]
        reply = self._count('create', self._site.ask_create(f'user-{number}', flavor, user='admin'))
        if reply.status == 202:
            mine.append(reply.data['server']['id'])
            self.made.add(mine[-1])

    def _resize(self, mine: list[str], number: int) -> None:
        if server := self._one(mine, 'ACTIVE'):
            self._ended.discard(server['id'])
            self._act(
                server,
                'resize',
                {
                    'flavorRef': random.choice(
                        [name for name in self._flavors.values() if name != server['flavor']['original_name']]
                    )
                },
            )

    def _end(self, mine: list[str], number: int) -> None:
        if server := self._one([one for one in mine if one not in self._ended], 'VERIFY_RESIZE'):
            self._ended.add(server['id'])
            self._act(server, random.choice(('confirmResize', 'revertResize')))

    def _power(self, mine: list[str], number: int) -> None:
        if server := self._one(mine, 'ACTIVE', 'SHUTOFF'):
            self._act(server, 'os-start' if server['status'] == 'SHUTOFF' else random.choice(('os-stop', 'reboot')))

    def _delete(self, mine: list[str], number: int) -> None:
        if mine:
            server = mine.pop(random.randrange(len(mine)))
            self._count('delete', self._site.send('DELETE', f'/servers/{server}', user='admin'))

    def _one(self, mine: list[str], *statuses: str) -> dict[str, Any] | None:
        """One of mine with such a status; None when a few looks showed none."""
        for server in random.sample(mine, min(len(mine), 3)):
            reply = self._count('show', self._site.send('GET', f'/servers/{server}', user='admin'))
            if reply.status == 200 and reply.data['server']['status'] in statuses:
                return dict(reply.data['server'])
        return None

    def _act(self, server: dict[str, Any], name: str, argument: Any = None) -> None:
        if name == 'reboot':
            argument = {'type': 'HARD'}
        self._count(name, self._site.action(server['id'], name, argument))

    def _count(self, what: str, reply: Any) -> Any:
        self.answers[reply.status] += 1
        if reply.status in (202, 204):
            self.done[what] += 1
        if reply.status not in ANSWERS:
            self.wrong.append(f'{what}: {reply.status} {reply.body.decode(errors="replace")[:500]}')
        return reply


# -- how it ends ------------------------------------------------------------------------------------------------------
def calm(site: Site, story: Story) -> None:
    """All that was accepted has ended: each server ACTIVE, or in ERROR with a fault in words; the audit finds nothing,
    and what is deleted leaves nothing."""
    shown = await_rest(site)
    story(f'all ended as {dict(Counter(row["status"] for row in shown.values()))}')
    ends = {'VERIFY_RESIZE': 'confirmResize', 'SHUTOFF': 'os-start'}
    for name, row in shown.items():
        if row['status'] in ends:
            site.act(name, ends[row['status']])
    shown = await_rest(site, set(ends))
    story(f'after confirms and starts: {dict(Counter(row["status"] for row in shown.values()))}')
    assert {row['status'] for row in shown.values()} <= {'ACTIVE', 'ERROR'}, site.tell(shown)
    for row in shown.values():
        if row['status'] == 'ERROR':
            message = row['fault']['message']
            story(f'ERROR: {message}')
            assert len(message) > 10 and ' ' in message and 'Traceback' not in message, message
    await_agreement(site, story)
    assert_owned_once(site, shown)
    story('the audit is clean, no device is given twice')
    site.clean()
    await_agreement(site, story)
    site.assert_nothing_held()
    story('nothing is left of what was deleted')


def await_agreement(site: Site, story: Story) -> None:
    """Wait until nothing is in flight, pending releases included, and every host answers. A disagreement is a failure,
    whenever it is seen."""
    told: set[str] = set()

    def agreed() -> bool:
        done = site.manage('audit')
        for line in set(done.stdout.splitlines()[:-1]) - told:
            story(f'audit: {line}')
            told.add(line)
        if done.returncode not in (0, 2):
            pytest.fail(f'audit ended with {done.returncode}:\n{done.stdout}{done.stderr[-2000:]}')
        return done.returncode == 0 and 'in flight' not in done.stdout

    until(agreed, 'an audit with nothing in flight')


def await_rest(site: Site, without: Collection[str] = (), lost: str | None = None) -> dict[str, dict[str, Any]]:
    """Wait until nothing works on any server and none has one of these statuses; all of them. ``lost``: a host that is
    down; a move back from there waits for it, as it may still run the guest."""
    shown: dict[str, dict[str, Any]] = {}

    def at_rest() -> bool:
        nonlocal shown
        shown = site.servers()
        busy = {
            name: row
            for name, row in shown.items()
            if (under_way(row) or row['status'] in without)
            and not (lost is not None and row['OS-EXT-SRV-ATTR:host'] == lost and row['status'] == 'RESIZE')
        }
        assert not busy, site.tell(busy)
        return True

    until(at_rest, 'nothing is under way')
    return shown


def assert_owned_once(site: Site, shown: dict[str, dict[str, Any]]) -> None:
    """What libvirt gives the servers is what the database says, and none is given twice."""
    given = [
        (row['OS-EXT-SRV-ATTR:host'], address, name)
        for name, row in shown.items()
        if row['status'] == 'ACTIVE'
        for address in site.hostdevs(row['OS-EXT-SRV-ATTR:host'], name)
    ]
    assert sorted(given) == sorted(
        (row['host'], row['address'], row['instance_uuid']) for row in site.devices() if row['status'] == 'allocated'
    )
    assert len({(host, address) for host, address, _ in given}) == len(given)


def linger(seconds: float) -> None:
    """Let the users go on meanwhile."""
    time.sleep(seconds)
