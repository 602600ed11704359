"""Copies of disks on their way to the image service, on libvirt's test driver."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt import command
from kilonova.virt.libvirt import snapshots
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.snapshots import Copy, LibvirtSnapshots
from kilonova.virt.libvirt.storage import files
from kilonova.virt.parts.guests import GuestFailed
from tests.unit.virt.builders import GPU, devices, has_marker, image_meta, new_flavor, new_instance
from tests.unit.virt.conftest import qemu_size


def nothing() -> None:
    """Nobody wants it to end."""


@pytest.fixture
def instance(libvirt_rig: Any) -> Any:
    made = new_instance()
    libvirt_rig.here.guests.spawn(made, image_meta(), pci_devices=devices(GPU))
    libvirt_rig.write('gpu1', made.uuid)
    return made


def test_one_flat_qcow2_of_what_the_guest_sees(libvirt_rig: Any, instance: Any, tmp_path: Path) -> None:
    libvirt_rig.here.snapshots.snapshot(instance, 'snap', nothing, nothing)
    file = tmp_path / 'sent.qcow2'
    file.write_bytes(libvirt_rig.images.sent['snap'])
    assert qemu_size(file) == 1 << 30 and has_marker(file)
    info = subprocess.run(['qemu-img', 'info', str(file)], check=True, capture_output=True, text=True).stdout
    assert 'file format: qcow2' in info and 'backing' not in info
    assert list(libvirt_rig.file('gpu1', 'snapshots').iterdir()) == []


def test_the_guest_is_held_only_while_its_own_file_is_copied(libvirt_rig: Any, instance: Any, monkeypatch) -> None:
    seen: dict[str, int] = {}
    real = command.watched

    def watched(check: Any, *argv: str) -> None:
        seen[argv[0]] = libvirt_rig.here.guests.get_info(instance)
        real(check, *argv)

    monkeypatch.setattr(command, 'watched', watched)
    libvirt_rig.here.snapshots.snapshot(instance, 'snap', nothing, nothing)
    assert seen == {'cp': PowerState.PAUSED, 'qemu-img': PowerState.RUNNING}
    assert libvirt_rig.here.guests.get_info(instance) == PowerState.RUNNING


class Qemu:
    """Copies disks of running guests, as libvirt's test driver can't: it is seen at work ``looks`` times, ``then`` is
    what happens, and the copy is ``whole`` or not."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, looks: int = 1, whole: bool = True, then: Any = nothing
    ) -> None:
        self.target: str | None = None
        self.aborted = 0
        self._looks, self._then = looks, then

        def begin(guest: Guest, disk: str, target: str) -> bool:
            self.target = target
            subprocess.run(['qemu-img', 'convert', '-O', 'qcow2', '-f', 'qcow2', disk, target], check=True)
            return True

        def is_copying(guest: Guest, target: str) -> bool:
            if self.target != target:
                return False
            self._looks -= 1
            if self._looks < 0:
                self.target = None
                self._then()
            return self.target is not None

        def end(guest: Guest, target: str) -> None:
            self.aborted += self.target == target
            self.target = None

        monkeypatch.setattr(snapshots, '_LOOK', 0)
        for name, act in (
            ('begin_copy', begin),
            ('is_copying', is_copying),
            ('end_copy', end),
            ('has_copied', lambda guest: whole),
        ):
            monkeypatch.setattr(Guest, name, act)


def test_qemu_copies_the_disk_of_a_running_guest(libvirt_rig: Any, instance: Any, monkeypatch, tmp_path: Path) -> None:
    """QEMU copies the disk of a running guest, which is not paused, and no other program reads the disk."""
    Qemu(monkeypatch)
    monkeypatch.setattr(Guest, 'hold', None)
    monkeypatch.setattr(command, 'watched', None)
    libvirt_rig.here.snapshots.snapshot(instance, 'snap', nothing, nothing)
    file = tmp_path / 'sent.qcow2'
    file.write_bytes(libvirt_rig.images.sent['snap'])
    assert has_marker(file) and list(libvirt_rig.file('gpu1', 'snapshots').iterdir()) == []


def test_a_copy_that_qemu_does_not_end(libvirt_rig: Any, instance: Any, monkeypatch) -> None:
    Qemu(monkeypatch, whole=False)
    with pytest.raises(GuestFailed, match='QEMU did not complete the copy'):
        libvirt_rig.here.snapshots.snapshot(instance, 'snap', nothing, nothing)
    assert libvirt_rig.images.sent == {} and libvirt_rig.here.guests.get_info(instance) == PowerState.RUNNING


def test_a_guest_that_stops_in_the_middle_of_a_copy(libvirt_rig: Any, instance: Any, monkeypatch) -> None:
    """What it wrote last is in its file."""
    Qemu(monkeypatch, whole=False, then=lambda: libvirt_rig.here.power.power_off(instance))
    libvirt_rig.here.snapshots.snapshot(instance, 'snap', nothing, nothing)
    assert list(libvirt_rig.images.sent) == ['snap']
    assert libvirt_rig.here.guests.get_info(instance) == PowerState.SHUTDOWN


def test_a_copy_that_nobody_wants_any_more(libvirt_rig: Any, instance: Any, monkeypatch) -> None:
    qemu = Qemu(monkeypatch, looks=10)

    def stop() -> None:
        if qemu.target:
            raise errors.Cancelled(key='x')

    with pytest.raises(errors.Cancelled):
        libvirt_rig.here.snapshots.snapshot(instance, 'snap', stop, nothing)
    assert qemu.aborted == 1
    # As a process leaves it that died: the next try and the undo end what they find.
    for act in (
        lambda: libvirt_rig.here.snapshots.snapshot(instance, 'snap', nothing, nothing),
        lambda: libvirt_rig.here.snapshots.forget_snapshot(instance, 'snap'),
    ):
        qemu.target, qemu._looks, qemu.aborted = libvirt_rig.here.snapshots.copy('snap').part, 1, 0
        act()
        assert qemu.aborted == 1 and list(libvirt_rig.file('gpu1', 'snapshots').iterdir()) == []


def test_a_copy_whose_order_was_repeated(libvirt_rig: Any, instance: Any, monkeypatch) -> None:
    """The answer to the first got lost; libvirt refuses the second, and the copy is made."""
    guest = libvirt_rig.here.host._libvirt.find(instance.uuid)
    assert not guest.begin_copy('disk', 'target')
    monkeypatch.setattr(Guest, 'is_copying', lambda self, target: target == 'target')
    assert guest.begin_copy('disk', 'target')


def test_a_guest_that_its_user_suspended_stays_so(libvirt_rig: Any, instance: Any) -> None:
    libvirt_rig.here.host._libvirt.find(instance.uuid).hold()
    libvirt_rig.here.snapshots.snapshot(instance, 'snap', nothing, nothing)
    assert libvirt_rig.here.guests.get_info(instance) == PowerState.PAUSED


def test_a_crash_while_the_guest_is_held(libvirt_rig: Any, instance: Any, monkeypatch) -> None:
    """What the dead process left: a suspended guest and a mark. The next try, or the undo, lets it go on."""
    made = Copy(str(libvirt_rig.file('gpu1', 'snapshots')), 'snap', 'qcow2')
    for act in (
        lambda: libvirt_rig.here.snapshots.forget_snapshot(instance, 'snap'),
        lambda: libvirt_rig.here.snapshots.snapshot(instance, 'snap', nothing, nothing),
    ):
        made.hold()
        libvirt_rig.here.host._libvirt.find(instance.uuid).hold()
        act()
        assert libvirt_rig.here.guests.get_info(instance) == PowerState.RUNNING
        assert list(libvirt_rig.file('gpu1', 'snapshots').iterdir()) == []
    assert list(libvirt_rig.images.sent) == ['snap']


@pytest.mark.parametrize(
    ('format_', 'runs'),
    [
        # Raw is a GiB to be read: once.
        ('raw', True),
        *((name, runs) for name in ('qcow2', 'vmdk', 'vdi') for runs in (True, False)),
    ],
)
def test_images_have_the_format_that_the_host_is_told(
    libvirt_rig: Any, instance: Any, monkeypatch, tmp_path: Path, format_: str, runs: bool
) -> None:
    """Copied by QEMU, and from the file; servers can be built from it."""
    rig = libvirt_rig
    here = LibvirtSnapshots(
        rig.here.host._libvirt, rig.here.disks, rig.images, str(rig.file('gpu1', 'snapshots')), format_
    )
    if runs:
        Qemu(monkeypatch)
    here.snapshot(instance, 'snap', nothing, nothing)
    assert rig.images.formats == ({} if format_ == 'qcow2' else {'snap': format_})
    assert list(rig.file('gpu1', 'snapshots').iterdir()) == []
    sent = tmp_path / 'sent'
    sent.write_bytes(rig.images.sent['snap'])
    rig.images.path, other = sent, new_instance(image_ref='snap', flavor=new_flavor(root_gb=1))
    rig.there.guests.spawn(other, image_meta(id='snap', disk_format=format_))
    assert rig.kept('gpu2', other.uuid)


def test_the_option_says_the_format(libvirt_rig: Any) -> None:
    assert [
        libvirt_rig.driver('gpu1', libvirt=options).snapshots._format
        for options in ({}, {'snapshot_image_format': 'vdi'})
    ] == ['qcow2', 'vdi']


@pytest.mark.parametrize(('runs', 'format_', 'times'), [(True, 'qcow2', 1), (True, 'raw', 2), (False, 'qcow2', 2)])
def test_room_is_looked_for_before_anything_is_written(
    libvirt_rig: Any, instance: Any, monkeypatch, runs: bool, format_: str, times: int
) -> None:
    """What the disk and its base take; twice where there will be two files. The guest isn't held for nothing."""
    rig = libvirt_rig
    rig.file('gpu1', 'snapshots').mkdir()
    here = LibvirtSnapshots(
        rig.here.host._libvirt, rig.here.disks, rig.images, str(rig.file('gpu1', 'snapshots')), format_
    )
    need = rig.here.disks.root_bytes(instance.uuid)
    own = files.used(str(rig.file('gpu1', instance.uuid, 'disk')))
    need = need * times if runs else need + own
    if runs:
        Qemu(monkeypatch)
    monkeypatch.setattr(Guest, 'hold', None)
    monkeypatch.setattr(command, 'watched', None)
    monkeypatch.setattr(files.shutil, 'disk_usage', lambda path: SimpleNamespace(free=need - 1))
    with pytest.raises(errors.NoRoom, match=f'space for image snap: it needs {need} bytes, {need - 1} are free'):
        here.snapshot(instance, 'snap', nothing, nothing)
    here.forget_snapshot(instance, 'snap')
    assert rig.images.sent == {} and list(rig.file('gpu1', 'snapshots').iterdir()) == []
    assert rig.here.guests.get_info(instance) == PowerState.RUNNING


def test_a_program_that_takes_long_ends_when_nobody_wants_it_any_more() -> None:
    looks: list[int] = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise errors.Cancelled(key='x')

    with pytest.raises(errors.Cancelled):
        command.watched(check, 'sleep', '600')
    assert len(looks) == 2


def test_what_a_watched_program_says_when_it_fails() -> None:
    with pytest.raises(command.CommandFailed, match=r'ls /nosuch failed: .*nosuch'):
        command.watched(nothing, 'ls', '/nosuch')
    with pytest.raises(command.CommandFailed, match='not installed'):
        command.watched(nothing, 'no-such-program-at-all')
