"""Live migration between two real libvirtds with real QEMU guests, by TCG. The guest's console is the witness: it says
its boots, which it counts on its disk, and then a dot twice a second for as long as it runs.

Nothing here depends on how fast a migration is: where it may be over before it is disturbed, both ends are looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree

import libvirt
import libvirt_qemu
import pytest

from kilonova import errors
from kilonova.objects import InstanceNUMACell, InstanceNUMATopology
from kilonova.objects.volume import AttachedVolume
from kilonova.states import PowerState
from kilonova.virt.libvirt.driver import LibvirtDriver
from kilonova.virt.libvirt.migration import transfer
from kilonova.virt.parts.live_migrations import LiveProgress
from tests.integration import certificates
from tests.integration.libvirtd import Libvirtd
from tests.unit.virt.builders import image_meta, new_flavor, new_instance, new_volume

WAIT = 120.0
# Ports that a libvirtd may use for guests and for disks that arrive.
PORTS = 20


def until(met: Callable[[], Any]) -> Any:
    """What it gives in the end; fails where that never comes."""
    end = time.monotonic() + WAIT
    while not (found := met()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def succeeds(act: Callable[[], object]) -> bool:
    try:
        act()
    except errors.KilonovaError:
        return False
    return True


def note_begin(begun: threading.Event, progress: LiveProgress) -> None:
    """Note that the guest's disks or memory are on their way.

    Before that the destination's libvirtd prepares. Killed while it does, libvirt 9 holds the domain's job for ever: a
    domain that nobody can destroy, whatever is restarted.
    """
    if progress['disk_total'] or progress['memory_total']:
        begun.set()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return int(probe.getsockname()[1])


# CPUs of this machine: of one that has one alone both are that.
FIRST, LAST = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))


class Machines:
    """Two hosts, each with a libvirtd of its own."""

    def __init__(self, directory: Any) -> None:
        self.daemons: dict[str, Libvirtd] = {}
        certificates.write(directory / 'pki', '127.0.0.1')
        for host in ('one', 'two'):
            daemon = self.daemons[host] = Libvirtd(directory / host)
            first = min(free_port(), 65000)
            etc = daemon.directory / 'etc' / 'libvirt'
            with (etc / 'libvirtd.conf').open('a') as conf:
                conf.write(f'host_uuid = "{uuid4()}"\n')
            shutil.copytree(directory / 'pki', etc / 'pki')
            with (etc / 'qemu.conf').open('a') as conf:
                conf.write(
                    f'migration_port_min = {first}\nmigration_port_max = {first + PORTS}\n'
                    'migrate_tls_x509_cert_dir = "/etc/libvirt/pki"\n'
                )
            daemon.start()

    def driver(self, host: str, **options: Any) -> LibvirtDriver:
        made = self.daemons[host].driver(
            host, live_migration_uri=self.daemons[host].uri, live_migration_inbound_addr='127.0.0.1', **options
        )
        made.host.init_host()
        return made

    def console(self, host: str, uuid: str) -> str:
        return self.daemons[host].console(host, uuid)

    def slow_down(self, host: str, uuid: str, **limits: int) -> None:
        """Bytes a second of QEMU's own, less than libvirt lets anybody say: a migration that surely still runs."""
        connection = libvirt.open(self.daemons[host].uri)
        try:
            libvirt_qemu.qemuMonitorCommand(
                connection.lookupByUUIDString(uuid),
                json.dumps({'execute': 'migrate-set-parameters', 'arguments': limits}),
                0,
            )
        finally:
            connection.close()

    def says_more(self, host: str, uuid: str) -> None:
        """The guest runs there, and goes on."""
        before = self.console(host, uuid).count('.')
        until(lambda: self.console(host, uuid).count('.') > before + 1)


@pytest.fixture(scope='module')
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = None
    try:
        made = Machines(tmp_path_factory.mktemp('machines'))
        yield made
    finally:
        for daemon in made.daemons.values() if made is not None else ():
            daemon.end()


# What comes with a guest, besides what all have.
ASKED = {
    'hw:sound_model': 'ich9',
    'hw:usb_model': 'qemu-xhci',
    'hw:virtio_packed_ring': 'true',
    'hw:maxphysaddr_mode': 'emulate',
    'hw:maxphysaddr_bits': '40',
}


def place(cpu: int) -> InstanceNUMATopology:
    """A guest's one vCPU on a host CPU of its own, and its memory on the cell there."""
    return InstanceNUMATopology(
        emulator_threads_policy=None,
        cells=[
            InstanceNUMACell(
                id=0,
                cpuset=set(),
                pcpuset={0},
                cpuset_reserved=None,
                memory=64,
                pagesize=None,
                cpu_topology=None,
                cpu_pinning_raw={'0': cpu},
            )
        ],
    )


class Moving:
    """A guest on host one, and both sides ready for its way to host two."""

    def __init__(self, machines: Machines, volumes: Sequence[AttachedVolume] = (), **options: Any) -> None:
        self.machines = machines
        self.here, self.there = machines.driver('one', **options), machines.driver('two')
        self.instance = new_instance(
            flavor=new_flavor(vcpus=1, memory_mb=64, root_gb=1, extra_specs=ASKED),
            numa_topology=place(FIRST),
            volumes=list(volumes),
            device_metadata=None,
        )
        self.uuid = self.instance.uuid
        self.here.guests.spawn(self.instance, image_meta(disk_format='raw'))
        until(lambda: 'GUEST-BOOT 1' in machines.console('one', self.uuid))
        machines.says_more('one', self.uuid)

    def prepare(self) -> None:
        guest = json.loads(json.dumps(self.here.live_migrations.describe(self.instance)))
        offer = self.there.live_migrations.offer(self.instance, guest, None, True)
        self.instance.numa_topology = place(LAST)
        self.offer = json.loads(
            json.dumps({**offer, 'place': self.there.live_migrations.place(self.instance, image_meta())})
        )
        self.offer['volumes'] = self.there.live_migrations.prepare(self.instance, guest, self.offer)

    def devices(self, driver: LibvirtDriver) -> list[str | None]:
        """What its flavor asks for, as libvirt has it."""
        guest = driver.host._libvirt.find(self.uuid)
        assert guest is not None
        domain = ElementTree.fromstring(guest.xml())
        return [
            found.get(name) if (found := domain.find(path)) is not None else None
            for path, name in (
                ('devices/sound', 'model'),
                ("devices/controller[@type='usb']", 'model'),
                ('devices/disk/driver', 'packed'),
                ('cpu/maxphysaddr', 'bits'),
            )
        ]

    def runs_on(self, host: str) -> tuple[set[int], list[Any]]:
        """The CPUs of the host that its vCPU may run on, and what libvirt holds of its place there, now and from its
        next start on."""
        driver = {'one': self.here, 'two': self.there}[host]
        guest = driver.host._libvirt.find(self.uuid)
        assert guest is not None
        domains = [
            ElementTree.fromstring(guest.call('XMLDesc', flags)) for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE)
        ]
        (vcpu,) = guest.call('vcpus')[1]
        return {cpu for cpu, may in enumerate(vcpu) if may}, [
            [
                one.get('cpuset') or one.get('nodeset')
                for path in ('cputune/vcpupin', 'cputune/emulatorpin', 'numatune/memory', 'numatune/memnode')
                for one in domain.iterfind(path)
            ]
            for domain in domains
        ]

    def check_arrived(self) -> None:
        """It is there, has never stood still for good, and nothing of it is here."""
        assert not self.here.live_migrations.abort(self.instance)
        assert self.there.live_migrations.has_arrived(self.instance)
        self.there.live_migrations.receive(self.instance)
        self.here.live_migrations.leave(self.instance, self.offer)
        assert self.uuid not in self.here.guests.list_instance_uuids()
        assert self.uuid not in self.here.disks.list_directories()

    def check_stayed(self) -> None:
        """It is here and nothing of it is there."""
        assert self.here.live_migrations.abort(self.instance)
        assert not self.there.live_migrations.has_arrived(self.instance)
        # A libvirtd that was just restarted has its own look at the guest: flows ask again, too.
        until(lambda: succeeds(lambda: self.there.moves.cleanup_move_dest(self.instance, same_host=False)))
        self.here.live_migrations.go_on(self.instance)
        assert self.uuid not in self.there.guests.list_instance_uuids()
        assert self.uuid not in self.there.disks.list_directories()
        self.machines.says_more('one', self.uuid)

    def end(self) -> None:
        for host, driver in (('one', self.here), ('two', self.there)):
            with contextlib.suppress(errors.KilonovaError):
                driver.guests.destroy(self.instance)
            if self.is_left(driver):
                # A test that failed left it in the middle of something; the guest of the next one has its name.
                self.machines.daemons[host].end()
                self.machines.daemons[host].start()
                until(functools.partial(succeeds, functools.partial(driver.guests.destroy, self.instance)))

    def is_left(self, driver: LibvirtDriver) -> bool:
        try:
            return self.uuid in driver.guests.list_instance_uuids()
        except errors.KilonovaError:
            return True


@pytest.fixture
def device(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A block device of 3 GiB that begins with 'written before', by the names that it has on both hosts. libvirt
    carries no guest whose disk is a file that isn't on a file system of the network."""
    data, there = tmp_path / 'data', tmp_path / 'dm-9'
    data.write_bytes(b'written before')
    os.truncate(data, 3 << 30)
    made = subprocess.run(['losetup', '--find', '--show', data], check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f'no loop device: {made.stderr}')
    here = made.stdout.strip()
    try:
        os.mknod(there, stat.S_IFBLK | 0o600, os.stat(here).st_rdev)
        yield here, str(there)
    finally:
        subprocess.run(['losetup', '--detach', here], check=True)


@pytest.fixture
def moving(machines: Machines) -> Iterator[Callable[..., Moving]]:
    made: list[Moving] = []

    def move(volumes: Sequence[AttachedVolume] = (), **options: Any) -> Moving:
        made.append(Moving(machines, volumes, **options))
        made[-1].prepare()
        return made[-1]

    yield move
    for one in made:
        one.end()


def test_a_guest_goes_on_counting_on_another_host(machines: Machines, moving: Callable[..., Moving]) -> None:
    told: list[Any] = []
    move = moving()
    before = move.devices(move.here)
    assert before == ['ich9', 'qemu-xhci', 'on', '40']
    assert move.runs_on('one') == ({FIRST}, [[str(FIRST), str(FIRST), '0', '0']] * 2)
    move.here.live_migrations.migrate(move.instance, move.offer, told.append)
    # Asked again it has nothing to do.
    move.here.live_migrations.migrate(move.instance, move.offer, told.append)
    move.check_arrived()
    machines.says_more('two', move.uuid)
    assert 'GUEST-BOOT' not in machines.console('two', move.uuid), 'it was started anew'
    assert move.devices(move.there) == before
    assert move.runs_on('two') == ({LAST}, [[str(LAST), str(LAST), '0', '0']] * 2)
    # Its disk came along, with the count of its boots: it is at home there.
    move.there.power.reboot(move.instance, 'HARD', image_meta(disk_format='raw'))
    until(lambda: 'GUEST-BOOT 2' in machines.console('two', move.uuid))
    machines.says_more('two', move.uuid)


def test_a_guest_keeps_its_volume_on_another_host(
    device: tuple[str, str], machines: Machines, moving: Callable[..., Moving]
) -> None:
    """It is found there under another name, and isn't copied: both QEMUs have it."""
    here, there = ({'driver_volume_type': 'local', 'device_path': path} for path in device)
    volume = new_volume(
        host='one',
        connection=here,
        known_at={'two': {'connector': {}, 'connection': there, 'attachment_id': 'another'}},
    )
    told: list[Any] = []
    move = moving([volume])

    def sources(driver: LibvirtDriver) -> list[str | None]:
        guest = driver.host._libvirt.find(move.uuid)
        assert guest is not None
        return [
            one.get('dev')
            for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE)
            for one in ElementTree.fromstring(guest.call('XMLDesc', flags)).iterfind(
                f"devices/disk[serial='{volume.volume_id}']/source"
            )
        ]

    assert sources(move.here) == [device[0]] * 2
    move.here.live_migrations.migrate(move.instance, move.offer, told.append)
    move.instance.volumes = [
        dataclasses.replace(
            volume, host='two', connection=there, known_at={'one': {'connector': {}, 'connection': here}}
        )
    ]
    move.check_arrived()
    assert sources(move.there) == [device[1]] * 2
    machines.says_more('two', move.uuid)
    # The root disk alone.
    assert 0 < max(one['disk_total'] for one in told) <= 1 << 30
    with open(device[1], 'rb') as file:
        assert file.read(14) == b'written before'


def test_a_guest_that_is_paused_arrives_paused(machines: Machines, moving: Callable[..., Moving]) -> None:
    move = moving()
    found = move.here.guests._libvirt.find(move.uuid)
    assert found is not None
    found.hold()
    move.here.live_migrations.migrate(move.instance, move.offer, lambda progress: None)
    move.check_arrived()
    assert move.there.guests.get_info(move.instance) == PowerState.PAUSED
    there = move.there.guests._libvirt.find(move.uuid)
    assert there is not None
    there.go_on()
    machines.says_more('two', move.uuid)
    assert 'GUEST-BOOT' not in machines.console('two', move.uuid)


def test_a_migration_that_is_ended_leaves_the_guest_where_it_is(moving: Callable[..., Moving]) -> None:
    """At one MiB a second it is not over when it is first looked at, or else it is over."""
    move = moving(live_migration_bandwidth=1)

    def stop(progress: Any) -> None:
        raise errors.MigrationError(reason='enough')

    ended = ''
    try:
        move.here.live_migrations.migrate(move.instance, move.offer, stop)
    except errors.MigrationError as error:
        ended = str(error)
    if ended:
        assert 'enough' in ended
        move.check_stayed()
    else:
        move.check_arrived()


def test_a_compute_that_was_restarted_follows_what_goes_on(moving: Callable[..., Moving], machines: Machines) -> None:
    move, begun = moving(live_migration_bandwidth=100), threading.Event()
    first = threading.Thread(
        target=move.here.live_migrations.migrate, args=(move.instance, move.offer, functools.partial(note_begin, begun))
    )
    first.start()
    until(lambda: begun.is_set() or not first.is_alive())
    again = machines.driver('one')
    again.live_migrations.migrate(move.instance, move.offer, lambda progress: None)
    first.join(WAIT)
    move.check_arrived()
    machines.says_more('two', move.uuid)
    assert 'GUEST-BOOT' not in machines.console('two', move.uuid)


class Switched:
    """A guest that was forced to its end while its disk was being copied, and runs on host two by post-copy. Of its
    memory so much a second comes after it."""

    def __init__(self, move: Moving, postcopy: int = 0) -> None:
        self.move, self.ended, forced = move, threading.Event(), threading.Event()

        def told(progress: Any) -> None:
            if progress['disk_remaining'] and not forced.is_set():
                # Without the switch it would be on its way for days.
                move.machines.slow_down('one', move.uuid, **{'max-bandwidth': 1024, 'max-postcopy-bandwidth': postcopy})
                move.here.live_migrations.force_complete(move.instance)
                forced.set()

        def migrate() -> None:
            move.here.live_migrations.migrate(move.instance, move.offer, told)
            self.ended.set()

        threading.Thread(target=migrate).start()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at often, and nothing is waited for that will not come."""
    monkeypatch.setattr(transfer, 'LATER', 0.1)
    monkeypatch.setattr(transfer, 'MENDING', 3)


def test_forced_to_its_end_it_runs_there_before_its_memory_has_come(
    machines: Machines, moving: Callable[..., Moving], impatient: None
) -> None:
    move = moving(live_migration_permit_post_copy=True, live_migration_bandwidth=300)
    until(Switched(move).ended.is_set)
    move.check_arrived()
    machines.says_more('two', move.uuid)
    assert 'GUEST-BOOT' not in machines.console('two', move.uuid), 'it was started anew'


def test_half_a_guest_is_lost_with_its_qemu_and_starts_anew_there(
    machines: Machines, moving: Callable[..., Moving], impatient: None
) -> None:
    """Its disk came before; the half that is still at the source never runs again."""
    move = moving(live_migration_permit_post_copy=True, live_migration_bandwidth=300)
    switched = Switched(move, 200 << 10)
    live, there = move.here.live_migrations, move.there.live_migrations
    until(lambda: live.has_switched(move.instance) and there.has_arrived(move.instance))
    name = move.there.guests._libvirt.find(move.uuid).name  # type: ignore[union-attr]
    os.kill(machines.daemons['two'].pid_of(name), signal.SIGKILL)
    until(switched.ended.is_set)
    assert live.has_switched(move.instance) and not live.abort(move.instance)
    there.receive(move.instance)
    live.leave(move.instance, move.offer)
    assert move.uuid not in move.here.guests.list_instance_uuids() + move.here.disks.list_directories()
    move.there.power.power_on(move.instance, image_meta(disk_format='raw'))
    until(lambda: 'GUEST-BOOT 2' in machines.console('two', move.uuid))


def test_with_tls_only_certificates_let_it_pass(machines: Machines, moving: Callable[..., Moving]) -> None:
    move = moving(live_migration_with_native_tls=True)
    pki = machines.daemons['two'].directory / 'etc' / 'libvirt' / 'pki'
    known = {path: path.read_bytes() for path in pki.iterdir()}
    certificates.write(pki, '127.0.0.1')
    with pytest.raises(errors.MigrationError):
        move.here.live_migrations.migrate(move.instance, move.offer, lambda progress: None)
    move.check_stayed()
    for path, content in known.items():
        path.write_bytes(content)
    move.prepare()
    move.here.live_migrations.migrate(move.instance, move.offer, lambda progress: None)
    move.check_arrived()
    machines.says_more('two', move.uuid)


@pytest.mark.parametrize(
    ('cpu', 'why'),
    [
        ('<model>qemu64</model>', None),
        ('<model>of-next-year</model>', 'of-next-year'),
        ('<model>qemu64</model><feature name="avx512-4fmaps" policy="require"/>', 'avx512-4fmaps'),
    ],
)
def test_a_cpu_that_a_host_does_not_have_is_refused_there(machines: Machines, cpu: str, why: str | None) -> None:
    guest: Any = {
        'host': 'one',
        'storage_id': 'of one',
        'instances_path': '/one',
        'disks': [],
        'asked': {},
        'arch': 'x86_64',
        'virt_type': 'qemu',
        'machine': 'pc',
        'cpu': f'<cpu mode="custom" match="exact">{cpu}</cpu>',
    }
    live = machines.driver('two').live_migrations
    if why is None:
        assert live.offer(new_instance(), guest, None, True)['block']
        return
    with pytest.raises(errors.MigrationPreCheckError, match=f'Unacceptable CPU info: .*{why}'):
        live.offer(new_instance(), guest, None, True)


@pytest.mark.parametrize('host', ['one', 'two'])
def test_a_libvirtd_dies_in_the_middle(host: str, moving: Callable[..., Moving], machines: Machines) -> None:
    """Whatever came of the migration, the guest runs on one of the two and never on both."""
    move, begun, ended = moving(live_migration_bandwidth=1), threading.Event(), threading.Event()

    def migrate() -> None:
        with contextlib.suppress(errors.KilonovaError):
            move.here.live_migrations.migrate(move.instance, move.offer, functools.partial(note_begin, begun))
        ended.set()

    threading.Thread(target=migrate).start()
    until(lambda: begun.is_set() or ended.is_set())
    machines.daemons[host].kill()
    machines.daemons[host].start()
    until(ended.is_set)
    stays = until_known(move)
    assert stays != move.there.live_migrations.has_arrived(move.instance)
    if stays:
        move.check_stayed()
    else:
        move.check_arrived()
        machines.says_more('two', move.uuid)


def until_known(move: Moving) -> bool:
    """Whether the guest is on its source, once its libvirtd says so."""
    answers: list[bool] = []

    def ask() -> bool:
        with contextlib.suppress(errors.KilonovaError):
            answers.append(move.here.live_migrations.abort(move.instance))
        return bool(answers)

    until(ask)
    return answers[0]
