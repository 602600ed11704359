"""A cloud whose two hosts are machines of their own with libvirtd and QEMU, and guests that say on their consoles what
they see (tools/guest/init). Needs root.

    one = guests.take()                          # a server whose guest runs, from the test before where that left one
    guests.act(one.server, 'SHUTOFF', 'os-stop')     # an action, and the status that it ends with
    guests.act(one.server, 'ACTIVE', 'os-start')
    guests.booted(one)                           # waits for its next boot, with its mark in its disk; what it said
    server = guests.boot('gpu1', guests.flavor('real', ram=128), config_drive=True)     # one of the test's own
    guests.say(server, 'GUEST-READY')            # waits until its console says so; all that it said

Guests are emulated and the machine may be busy, so each deadline is minutes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.integration.site import Site
from tools.cloud import http
from tools.cloud.machine import Machine

# Seconds for anything that a guest says or does.
PATIENCE = 300.0
HOSTS = ('gpu1', 'gpu2')
# The campaign: make test-qemu FULL=1.
FULL = bool(os.environ.get('KILONOVA_FULL'))


@dataclass
class Running:
    """A server whose guest runs, the mark in its disk and how often that has booted."""

    server: str
    mark: str
    boots: int = 1


class RealGuests:
    """The servers of a ``Site`` of real guests."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._kept: Running | None = None
        self._images: dict[str, str] = {}

    # -- the cloud ----------------------------------------------------------------------------------------------------
    def machine(self, host: str) -> Machine:
        return self.site.cloud.machines[host]

    def image(self, name: str) -> str:
        """The id of a public image: guest, guest-direct."""
        if name not in self._images:
            rows = http.call(
                'GET', f'{self.site.url("glance")}/v2/images?name={name}', token=self.site.token('demo')
            ).data['images']
            self._images[name] = rows[0]['id']
        return self._images[name]

    def flavor(self, name: str, *, vcpus: int = 1, ram: int = 96, disk: int = 1) -> str:
        return self.site.flavor(f'guest-{name}', vcpus=vcpus, ram=ram, disk=disk)

    def emulators(self, host: str) -> int:
        """QEMU processes of a machine."""
        return len(self.machine(host).run('sh', '-c', 'pgrep -f ^/usr/bin/qemu-system || true').split())

    def cut_power(self, *hosts: str) -> None:
        """Machines are off, and what ran there with them; returns when it is so."""
        for host in hosts:
            self.site.kill(f'machine-{host}')
        self.until(lambda: all(self.machine(host).pid() is None for host in hosts), f'{hosts} off')

    @contextlib.contextmanager
    def lost(self, host: str) -> Iterator[None]:
        """Its machine is off and forced down; afterwards it is back and as before."""
        self.cut_power(host)
        self.force_down(host)
        try:
            yield
        finally:
            self.site.start(f'machine-{host}')
            self.force_down(host, False)

    def force_down(self, host: str, down: bool = True) -> None:
        """What ``openstack compute service set --down`` and ``--up`` do."""
        (row,) = self.site.call('GET', f'/os-services?host={host}&binary=nova-compute', user='admin')['services']
        self.site.call('PUT', f'/os-services/{row["id"]}', {'forced_down': down}, user='admin')

    def until(self, met: Callable[[], Any], what: str, pause: float = 0.5) -> Any:
        """What ``met`` gives in the end; fails where that never comes. ``pause``: seconds between two looks."""
        deadline = time.monotonic() + PATIENCE
        while not (found := met()):
            assert time.monotonic() < deadline, f'not after {PATIENCE:.0f} s: {what}'
            time.sleep(pause)
        return found

    def clean(self, handed_on: bool = False) -> None:
        """No servers, no images of the tests; every device and file given back. ``handed_on``: but the server that the
        next test takes."""
        site = self.site
        if not handed_on:
            self._kept = None
        kept = {self._kept.server} if self._kept else set()
        site.at_once(lambda name: site.send('DELETE', f'/servers/{name}', user='admin'), site.servers().keys() - kept)
        self.until(lambda: site.servers().keys() <= kept, 'all servers deleted')
        for row in http.call('GET', f'{site.url("glance")}/v2/images', token=site.token('admin')).data['images']:
            if row.get('image_type') in ('snapshot', 'backup'):
                http.call('DELETE', f'{site.url("glance")}/v2/images/{row["id"]}', token=site.token('admin'))
        if self._kept and site.servers():
            here = self.host(self._kept.server)
            assert [self.emulators(host) for host in HOSTS] == [int(host == here) for host in HOSTS]
            assert [site.directories(host) for host in HOSTS] == [list(kept) * (host == here) for host in HOSTS]
        else:
            self._kept = None
            self.until(lambda: sum(map(self.emulators, HOSTS)) == 0, 'no QEMU left')
            self.nothing_in_flight()
            site.assert_nothing_held()

    def nothing_in_flight(self) -> None:
        """Wait until what waited for a host is done; a disagreement is a failure, whenever it is seen."""
        self.until(lambda: 'in flight' not in self.site.audit(), 'nothing in flight')

    def take(self, serial: bool | None = None) -> Running:
        """A server whose guest runs, with nothing beside it: what the test before left, else a new one. ``serial``:
        it has a port of its host for its serial console, with which it can't be migrated live."""
        rows = self.site.servers()
        kept = self._kept
        if (
            kept
            and [(name, row['status']) for name, row in rows.items()] == [(kept.server, 'ACTIVE')]
            and serial in (None, self._has_serial(kept.server))
        ):
            return kept
        if rows:
            self.clean()
        server = self.boot('gpu2' if serial else 'gpu1', self.flavor('small'))
        self._kept = Running(server, self.mark(server))
        return self._kept

    def _has_serial(self, server: str) -> bool:
        xml = (self.site.layout.instances(self.host(server)) / server / 'libvirt.xml').read_text()
        return "<serial type='tcp'" in xml

    def booted(self, one: Running) -> str:
        """Wait for its next boot, from the same disk; what it said from its record on."""
        one.boots += 1
        said = self.boots(one.server, one.boots)
        assert fact(said, 'MARK') == one.mark
        return said

    def renewed(self, one: Running) -> str:
        """Wait for its first boot from another disk; all that it said."""
        self.until(
            lambda: 'GUEST-READY' in self.console(one.server) and self.mark(one.server) != one.mark,
            f'a new disk of {one.server}',
        )
        said = self.console(one.server)
        one.mark, one.boots = fact(said, 'MARK'), int(fact(said, 'BOOTS'))
        return said

    # -- servers ------------------------------------------------------------------------------------------------------
    def start_boot(self, host: str | None, flavor: str, image: str = 'guest', **more: Any) -> str:
        """A server's id; it is being built on that host."""
        where = {'host': host} if host else {}
        named = {'imageRef': self.image(image)} | more
        return self.site.create(f'real-{image}', flavor, user='admin', **where, **named)

    def boot(self, host: str | None, flavor: str, image: str = 'guest', **more: Any) -> str:
        """A server's id; it is ACTIVE, and its guest said that it is ready."""
        server = self.start_boot(host, flavor, image, **more)
        self.ends(server, 'ACTIVE')
        self.say(server, 'GUEST-READY')
        return server

    def ends(self, server: str, status: str) -> dict[str, Any]:
        """Wait until nothing works on it and it has that status; the server."""
        deadline = time.monotonic() + PATIENCE
        while True:
            shown = self.site.settle([server], PATIENCE)[server]
            if shown['status'] == status:
                return shown
            # A confirmed resize shows no task.
            assert shown['status'] != 'ERROR' and time.monotonic() < deadline, (
                f'not {status}: {self.site.tell({server: shown})} {self.site.last_message(server)}'
            )
            time.sleep(0.5)

    def images_named(self, name: str) -> list[str]:
        """Ids of the images of that name that are whole."""
        rows = http.call('GET', f'{self.site.url("glance")}/v2/images?name={name}', token=self.site.token('admin'))
        return [row['id'] for row in rows.data['images'] if row['status'] == 'active']

    def act(self, server: str, status: str, name: str, argument: Any = None) -> dict[str, Any]:
        """An action by the administrator; the server at its end, which has that status."""
        self.site.act(server, name, argument)
        return self.ends(server, status)

    def migrate_live(self, server: str, host: str) -> None:
        """Ask for it; the disks go along."""
        self.site.act(server, 'os-migrateLive', {'host': host, 'block_migration': 'auto'})

    def other(self, server: str) -> str:
        """The host where it isn't."""
        return next(host for host in HOSTS if host != self.host(server))

    def unshelve(self, server: str, host: str) -> None:
        """Ask for it."""
        self.site.call('POST', f'/servers/{server}/action', {'unshelve': {'host': host}}, user='admin', version='2.91')

    def host(self, server: str) -> str:
        found: str = self.site.servers()[server]['OS-EXT-SRV-ATTR:host']
        return found

    # -- consoles -----------------------------------------------------------------------------------------------------
    def console(self, server: str) -> str:
        """All that the API gives of it; '' while there is none."""
        reply = self.site.action(server, 'os-getConsoleOutput', {})
        return reply.data['output'].replace('\r', '') if reply.status == 200 else ''

    def say(self, server: str, text: str, times: int = 1) -> str:
        """Wait until the console has the text so many times; all of it."""
        said = ''

        def says() -> bool:
            nonlocal said
            said = self.console(server)
            return said.count(text) >= times

        try:
            self.until(says, f'{text} ({times} times) of {server}')
        except AssertionError as error:
            raise AssertionError(f'{error}; it said:\n{said[-2000:]}') from None
        return said

    def boots(self, server: str, count: int) -> str:
        """Wait until the ``count``-th boot of its disk's content is over; what it said, from that number on."""

        def said() -> str:
            _, begun, text = self.console(server).rpartition(f'GUEST-BOOTS {count}\n')
            return text if begun and 'GUEST-READY' in text else ''

        try:
            found: str = self.until(said, f'boot {count} of {server}')
        except AssertionError as error:
            raise AssertionError(f'{error}; it said:\n{self.console(server)[-2000:]}') from None
        return found

    def mark(self, server: str) -> str:
        """What the first boot of the disk's content wrote there."""
        return fact(self.say(server, 'GUEST-MARK'), 'MARK')

    def tick(self, server: str) -> int:
        """The seconds that the guest has counted since its boot; waits for the first."""
        return int(fact(self.say(server, 'GUEST-TICK'), 'TICK'))

    def ticks(self, server: str) -> list[int]:
        """All counts on the console as it is now. A line may have been cut in two by the end of a process."""
        return [int(found) for found in re.findall(r'^GUEST-TICK (\d+)$', self.console(server), re.MULTILINE)]

    def ticks_beyond(self, server: str, count: int) -> int:
        """Wait until it has counted on; how far."""
        found: int = self.until(
            lambda: now if (now := self.tick(server)) > count else 0, f'{server} counts beyond {count}'
        )
        return found


def fact(said: str, name: str) -> str:
    """The newest ``GUEST-NAME …`` of a console's text."""
    found = re.findall(rf'^GUEST-{name} (.*)$', said, re.MULTILINE)
    assert found, f'no GUEST-{name} in:\n{said[-2000:]}'
    return str(found[-1]).strip()
