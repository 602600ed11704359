"""kill -9 of each daemon in the middle of a live migration, a shelve, a rebuild and an evacuation of a real guest: all
ends within a minute of the daemon's return, the audit finds nothing, and no server ever has two guests that run.

``make test-qemu`` has each operation and each daemon once, ``make test-qemu FULL=1`` all of them in each phase.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from typing import Any, Self

import libvirt
import pytest

from tests.integration.real_guests import FULL, HOSTS, RealGuests, Running

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='machines of namespaces, libvirtd and QEMU need root')

# Operation → its phases from the first to the last: task states, or of a migration '' before it has a record, then its
# status. An evacuation is 'building' when its new host has claimed.
PHASES = {
    'live migration': ('', 'preparing', 'running', 'post-migrating'),
    'shelve': ('shelving', 'shelving_image_uploading', 'shelving_offloading'),
    'rebuild': ('rebuilding', 'rebuild_spawning'),
    'evacuate': ('', 'pre-migrating', 'building'),
}
# Which computes have a part in it.
COMPUTES = {
    'live migration': ('source', 'destination'),
    'shelve': ('source',),
    'rebuild': ('source',),
    'evacuate': ('destination',),
}
CONTROL = ('conductor', 'scheduler', 'api')
CASES = [
    (operation, daemon, phase)
    for operation, phases in PHASES.items()
    for daemon in (*CONTROL, *COMPUTES[operation])
    for phase in phases
]
FEW = [
    ('live migration', 'destination', 'running'),
    ('live migration', 'api', 'preparing'),
    ('shelve', 'conductor', 'shelving'),
    ('rebuild', 'source', 'rebuild_spawning'),
    ('evacuate', 'scheduler', ''),
]
# Seconds after the phase began in which the daemon is killed.
SOON = 0.1


class Watch:
    """Looks all the time on which machines guests of a server run, until the block ends."""

    def __init__(self, guests: RealGuests, server: str) -> None:
        self._guests, self._server = guests, server
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks, self.doubles = 0, 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join()

    def _look(self) -> None:
        connections: dict[str, libvirt.virConnect] = {}
        while not self._ending.wait(0.1):
            # Whoever still runs at the third question ran while the second was answered.
            runs = [self._runs(connections, host) for host in (*HOSTS, HOSTS[0])]
            self.looks += 1
            self.doubles += all(runs)

    def _runs(self, connections: dict[str, libvirt.virConnect], host: str) -> bool:
        """Whether its guest runs there; one that arrives or has left stands still."""
        try:
            if host not in connections:
                path = self._guests.machine(host).libvirt_socket
                connections[host] = libvirt.open(f'qemu+unix:///system?socket={path}')
            domain = connections[host].lookupByUUIDString(self._server)
            return bool(domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                connections.pop(host, None)
            return False


class Story:
    """An operation on a server whose guest runs."""

    def __init__(self, guests: RealGuests, running: Running, operation: str) -> None:
        self.guests, self.running, self.server, self.operation = guests, running, running.server, operation
        self.source = guests.host(self.server)
        self.destination = next(host for host in HOSTS if host != self.source)
        self.migration = guests.site.last_migration(self.server).get('id')

    def begin(self) -> None:
        guests, server = self.guests, self.server
        if self.operation == 'live migration':
            guests.migrate_live(server, self.destination)
        elif self.operation == 'rebuild':
            guests.site.act(server, 'rebuild', {'imageRef': guests.image('guest')})
        elif self.operation == 'evacuate':
            guests.site.act(server, 'evacuate', {})
        else:
            guests.site.act(server, 'shelve')

    def phase(self) -> str | None:
        """None: it is over."""
        site = self.guests.site
        state = site.task_state(self.server)
        if state is None or self.operation not in ('live migration', 'evacuate'):
            return state
        row = site.last_migration(self.server)
        if not row or row['id'] == self.migration or row['status'] == 'accepted':
            return ''
        is_claimed = self.operation == 'evacuate' and row['dest_compute']
        return 'building' if is_claimed else str(row['status'])

    def await_phase(self, phase: str) -> None:
        """Returns when that one has begun, or a later one, or all is over."""
        phases = PHASES[self.operation]
        late = (*phases[phases.index(phase) :], None)
        self.guests.until(lambda: self.phase() in late, f'{self.operation} at {phase!r}', pause=0.01)

    def strike(self, daemon: str) -> dict[str, Any]:
        """Kill it, start it again at once; the server when all has ended."""
        site = self.guests.site
        name = f'compute-{getattr(self, daemon)}' if daemon in ('source', 'destination') else daemon
        time.sleep(random.uniform(0, SOON))
        doing = self.phase()
        site.kill(name)
        killed = time.monotonic()
        site.start(name)
        back = time.monotonic()
        shown = site.settle([self.server])[self.server]
        print(
            f'KILLED {name} in {self.operation} at {doing!r}: back after {back - killed:.1f} s, ended '
            f'{time.monotonic() - back:.1f} s later as {shown["status"]} on {shown["OS-EXT-SRV-ATTR:host"]} '
            f'{shown.get("fault", {}).get("message", "")}'
        )
        return shown

    # -- how it ended --------------------------------------------------------------------------------------------------
    def check(self, shown: dict[str, Any]) -> None:
        """It was done, its guest is one and the right one, and nobody has anything else of it."""
        guests, server = self.guests, self.server
        done = 'SHELVED_OFFLOADED' if self.operation == 'shelve' else 'ACTIVE'
        where = {'live migration': self.destination, 'evacuate': self.destination, 'rebuild': self.source}
        host = where.get(self.operation)
        assert (shown['status'], shown['OS-EXT-SRV-ATTR:host']) == (done, host), (
            f'{guests.site.tell({server: shown})} {guests.site.last_message(server)}'
        )
        for name in HOSTS:
            if guests.machine(name).pid() is not None:
                assert guests.emulators(name) == (name == host)
                assert guests.site.directories(name) == [server] * (name == host)
        if self.operation == 'evacuate':
            said = guests.site.manage('audit').stdout
            assert f'no answer: {self.source}' in said and said.endswith(' 0 disagreements\n'), said
        else:
            guests.site.audit()
        getattr(self, f'_check_{self.operation.replace(" ", "_")}')()

    def _check_live_migration(self) -> None:
        """It counts on without a gap or a boot."""
        guests, server = self.guests, self.server
        guests.ticks_beyond(server, guests.tick(server))
        assert 'GUEST-UP' not in guests.console(server)
        counted = guests.ticks(server)
        assert counted == list(range(counted[0], counted[-1] + 1)), counted

    def _check_shelve(self) -> None:
        """It boots again with its disk."""
        self.guests.unshelve(self.server, HOSTS[0])
        self.guests.ends(self.server, 'ACTIVE')
        self.guests.booted(self.running)

    def _check_rebuild(self) -> None:
        """It has booted from a new disk."""
        self.guests.renewed(self.running)

    _check_evacuate = _check_rebuild


@pytest.mark.parametrize(('operation', 'daemon', 'phase'), CASES if FULL else FEW)
def test_a_daemon_is_killed_in_the_middle(guests: RealGuests, operation: str, daemon: str, phase: str) -> None:
    running = guests.take(serial=False if operation == 'live migration' else None)
    story = Story(guests, running, operation)
    with Watch(guests, running.server) as watch, contextlib.ExitStack() as stack:
        if operation == 'evacuate':
            stack.enter_context(guests.lost(story.source))
        story.begin()
        story.await_phase(phase)
        story.check(story.strike(daemon))
    assert watch.looks and not watch.doubles
    if operation == 'evacuate':
        # The machine is back, and has nothing of it.
        assert guests.emulators(story.source) == 0 and guests.site.directories(story.source) == []
        guests.nothing_in_flight()
