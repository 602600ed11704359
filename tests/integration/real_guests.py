"""A cloud whose two hosts are machines of their own with libvirtd and QEMU, and guests that say on their consoles what
they see (tools/guest/init). Needs root.

    server = guests.boot('gpu1', guests.flavor('real', ram=128), config_drive=True)
    guests.say(server, 'GUEST-READY')            # waits until its console says so; gives that boot's lines
    guests.boots(server, 2)                      # waits for its second boot; what it said from there on
    guests.act(server, 'SHUTOFF', 'os-stop')     # an action, and the status that it ends with

Guests are emulated and the machine may be busy, so each deadline is minutes.
"""
from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from tests.integration.site import Site
from tools.cloud import http
from tools.cloud.machine import Machine

# Seconds for anything that a guest says or does.
PATIENCE = 300.0
HOSTS = ('gpu1', 'gpu2')


class RealGuests:
    """The servers of a ``Site`` of real guests."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._images: dict[str, str] = {}

    # -- the cloud ----------------------------------------------------------------------------------------------------
    def machine(self, host: str) -> Machine:
        return self.site.cloud.machines[host]

    def image(self, name: str) -> str:
        """The id of a public image: guest, guest-direct."""
        if name not in self._images:
            rows = http.call('GET', f'{self.site.url("glance")}/v2/images?name={name}',
                             token=self.site.token('demo')).data['images']
            self._images[name] = rows[0]['id']
        return self._images[name]

    def flavor(self, name: str, *, vcpus: int = 1, ram: int = 96, disk: int = 1) -> str:
        return self.site.flavor(f'guest-{name}', vcpus=vcpus, ram=ram, disk=disk)

    def emulators(self, host: str) -> int:
        """QEMU processes of a machine."""
        return len(self.machine(host).run('sh', '-c', 'pgrep -f ^/usr/bin/qemu-system || true').split())

    def until(self, met: Callable[[], Any], what: str, pause: float = 0.5) -> Any:
        """What ``met`` gives in the end; fails where that never comes. ``pause``: seconds between two looks."""
        deadline = time.monotonic() + PATIENCE
        while not (found := met()):
            assert time.monotonic() < deadline, f'not after {PATIENCE:.0f} s: {what}'
            time.sleep(pause)
        return found

    def clean(self) -> None:
        """No servers, no images of the tests; every device and file given back."""
        site = self.site
        site.at_once(lambda name: site.send('DELETE', f'/servers/{name}', user='admin'), site.servers())
        self.until(lambda: not site.servers(), 'all servers deleted')
        for row in http.call('GET', f'{site.url("glance")}/v2/images', token=site.token('admin')).data['images']:
            if row.get('image_type') in ('snapshot', 'backup'):
                http.call('DELETE', f'{site.url("glance")}/v2/images/{row["id"]}', token=site.token('admin'))
        self.until(lambda: sum(map(self.emulators, HOSTS)) == 0, 'no QEMU left')
        site.assert_nothing_held()

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
            assert shown['status'] != 'ERROR' and time.monotonic() < deadline, \
                f'not {status}: {self.site.tell({server: shown})} {self.site.last_message(server)}'
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
            text = self.console(server).rpartition(f'GUEST-BOOTS {count}\n')[2]
            return text if 'GUEST-READY' in text else ''
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
        found: int = self.until(lambda: now if (now := self.tick(server)) > count else 0,
                                f'{server} counts beyond {count}')
        return found


def fact(said: str, name: str) -> str:
    """The newest ``GUEST-NAME …`` of a console's text."""
    found = re.findall(rf'^GUEST-{name} (.*)$', said, re.MULTILINE)
    assert found, f'no GUEST-{name} in:\n{said[-2000:]}'
    return str(found[-1]).strip()
