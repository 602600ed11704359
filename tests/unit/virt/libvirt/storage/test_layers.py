"""Moves between hosts that use one storage: nothing is copied, and no host touches what is another's. Each step of such
a move, and each crash in it: test_contract.py and test_crashes.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt.storage import disk, layers
from tests.unit.virt.builders import GPU, GPU2, devices, has_marker, image_meta, new_flavor, new_instance, write_marker
from tests.unit.virt.conftest import qemu_size


def nothing() -> None:
    """Nobody wants it to end."""


def spawn(rig: Any, **values: Any) -> Any:
    instance = new_instance(**values)
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    rig.write('gpu1', instance.uuid)
    return instance


def move(source: Any, target: Any, instance: Any, confirm: bool = True, **flavor: Any) -> None:
    new = new_flavor(**{**vars(instance.flavor), **flavor})
    info = source.moves.migrate_disk_and_power_off(instance, target.moves.prepare_move(), new)
    instance.flavor = new
    target.moves.finish_migration(instance, image_meta(), devices(GPU2), True, info)
    if confirm:
        source.moves.confirm_migration(instance, False)


def names(rig: Any, instance: Any) -> list[str]:
    """What the server has there; of a layer its disk."""
    return sorted(
        layers.origin(path.name) + ('*' if layers.is_layer(path.name) else '')
        for path in rig.file('', instance.uuid).iterdir()
    )


def test_the_disks_file_stays_what_it_is_and_where_it_is(shared_rig: Any) -> None:
    instance = spawn(shared_rig)
    was = shared_rig.file('', instance.uuid, 'disk').stat()
    move(shared_rig.here, shared_rig.there, instance, confirm=False, root_gb=2)
    kept = shared_rig.file('', f'{instance.uuid}_resize', 'disk')
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (was.st_ino, was.st_mtime_ns)
    assert qemu_size(shared_rig.file('', instance.uuid, 'disk')) == 2 << 30 and qemu_size(kept) == 1 << 30
    shared_rig.here.moves.confirm_migration(instance, False)
    assert names(shared_rig, instance) == ['disk', 'disk*', 'disk.info', 'libvirt.xml', 'owner']
    found = shared_rig.there.disks.directory(instance.uuid).disks()['disk']
    assert os.stat(found.backing).st_ino == was.st_ino and not os.path.islink(found.backing)
    assert shared_rig.kept('gpu2', instance.uuid)


def test_what_stands_beside_the_disks_goes_along(shared_rig: Any) -> None:
    instance = spawn(
        shared_rig, config_drive='True', kernel_id='k', ramdisk_id='r', flavor=new_flavor(ephemeral_gb=1, swap=1)
    )
    eph = shared_rig.file('', instance.uuid, 'disk.eph0')
    write_marker(eph)
    config = shared_rig.file('', instance.uuid, 'disk.config').read_bytes()
    for confirm in (False, True):
        if confirm:
            shared_rig.here.moves.confirm_migration(instance, False)
        else:
            move(shared_rig.here, shared_rig.there, instance, confirm=False)
        assert names(shared_rig, instance) == sorted(
            [
                'disk',
                'disk*',
                'disk.config',
                'disk.eph0',
                'disk.eph0*',
                'disk.info',
                'disk.swap',
                'kernel',
                'ramdisk',
                'libvirt.xml',
                'owner',
                *([] if confirm else ['move.json']),
            ]
        )
        assert has_marker(eph) and shared_rig.file('', instance.uuid, 'disk.config').read_bytes() == config
    # A start of the guest needs all of it.
    shared_rig.there.power.reboot(instance, 'HARD', image_meta(), devices(GPU2))
    assert shared_rig.there.guests.get_info(instance) == PowerState.RUNNING and shared_rig.kept('gpu2', instance.uuid)


def test_a_config_drive_that_is_a_disk_is_written_at_the_destination_alone(shared_rig: Any) -> None:
    here, there = (shared_rig.driver(host, config_drive_format='vfat') for host in ('gpu1', 'gpu2'))
    instance = new_instance(config_drive='True')
    here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    drive = shared_rig.file('', instance.uuid, 'disk.config')
    content = drive.read_bytes()
    move(here, there, instance, confirm=False)
    write_marker(drive)
    there.moves.cleanup_move_dest(instance, False)
    here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert drive.read_bytes() == content
    move(here, there, instance)
    write_marker(drive)
    there.power.reboot(instance, 'HARD', image_meta(), devices(GPU2))
    (seen,) = [each for each in there.disks.present(instance) if each.path == str(drive)]
    assert (seen.device, seen.format) == ('disk', 'qcow2') and has_marker(drive)


@pytest.mark.parametrize('kind', ['raw', 'qcow2'])
@pytest.mark.parametrize('to', ['itself', 'another storage'])
def test_layers_are_joined_before_a_copy(shared_rig: Any, kind: str, to: str) -> None:
    """Each move leaves one; a move elsewhere brings one disk."""
    rig = shared_rig
    for host in ('gpu1', 'gpu2'):
        setattr(rig, 'here' if host == 'gpu1' else 'there', rig.driver(host, libvirt={'images_type': kind}))
    instance = new_instance()
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    move(rig.here, rig.there, instance, root_gb=2)
    rig.write('gpu2', instance.uuid)
    move(rig.there, rig.here, instance, root_gb=3)
    write_marker(rig.file('', instance.uuid, 'disk'), 0x77)
    assert names(rig, instance).count('disk*') == 2
    target = rig.here if to == 'itself' else rig.driver('gpu9', instances_path=str(rig.path / 'gpu9'))
    info = rig.here.moves.migrate_disk_and_power_off(instance, target.moves.prepare_move(), new_flavor(root_gb=4))
    assert not any(name.startswith('layer') for name in os.listdir(rig.file('', f'{instance.uuid}_resize')))
    instance.flavor = new_flavor(root_gb=4)
    target.moves.finish_migration(instance, image_meta(), devices(GPU2), True, info)
    directory = target.disks.directory(instance.uuid)
    assert list(directory.formats()) == ['disk'] and has_marker(Path(directory.file('disk')), 0x77)
    below = directory.disks()['disk'].backing
    assert below is None if kind == 'raw' else os.path.dirname(below) == target.disks._cache.directory
    # And back again.
    target.moves.cleanup_move_dest(instance, target is rig.here)
    instance.flavor = new_flavor(root_gb=3)
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert has_marker(rig.file('', instance.uuid, 'disk'), 0x77)


def test_many_layers_become_one(shared_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, 'MOST', 3)
    instance, hosts = spawn(shared_rig), [shared_rig.here, shared_rig.there]
    counts = []
    for _move in range(5):
        move(*hosts, instance)
        hosts.reverse()
        counts.append(names(shared_rig, instance).count('disk*'))
        assert shared_rig.kept('', instance.uuid)
    assert counts == [1, 2, 3, 1, 2]


def test_half_joined(shared_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process died between the disk and what it no longer needs."""
    instance = spawn(shared_rig)
    move(shared_rig.here, shared_rig.there, instance)
    directory = shared_rig.there.disks.directory(instance.uuid)
    shared_rig.there.power.power_off(instance)
    with monkeypatch.context() as patch:
        patch.setattr(layers.files, 'remove', lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            layers.join(directory)
    assert shared_rig.kept('', instance.uuid)
    layers.join(directory)
    assert shared_rig.kept('', instance.uuid) and not any(map(layers.is_layer, directory.disks()))


def test_an_image_of_a_layered_disk(shared_rig: Any, tmp_path: Path) -> None:
    instance = spawn(shared_rig)
    move(shared_rig.here, shared_rig.there, instance, root_gb=2)
    shared_rig.there.snapshots.snapshot(instance, 'snap', nothing, nothing)
    file = tmp_path / 'sent.qcow2'
    file.write_bytes(shared_rig.images.sent['snap'])
    assert has_marker(file) and disk.look(str(file), 'qcow2').backing is None
    assert list(shared_rig.file('', 'snapshots').iterdir()) == []


def test_a_base_below_layers_is_fetched_again(shared_rig: Any) -> None:
    instance = spawn(shared_rig)
    move(shared_rig.here, shared_rig.there, instance)
    shared_rig.there.power.power_off(instance)
    shutil.rmtree(shared_rig.file('', '_base'))
    shared_rig.there.power.power_on(instance, image_meta(), devices(GPU2))
    assert len(list(shared_rig.file('', '_base').iterdir())) == 1 and shared_rig.kept('', instance.uuid)


# -- whose it is -------------------------------------------------------------------------------------------------------
def test_late_undos_of_another_host_touch_nothing(shared_rig: Any) -> None:
    """A host that was away undoes a build, a move, or is asked to delete: the server has gone on elsewhere."""
    rig = shared_rig
    instance, late = new_instance(), rig.driver('gpu3')
    late.guests.spawn(instance, image_meta())
    late.power.power_off(instance)
    rig.here.guests.spawn(instance, image_meta(), pci_devices=devices(GPU))
    rig.write('gpu1', instance.uuid)
    before = names(rig, instance)
    for _again in range(2):
        late.guests.destroy(instance)
        late.moves.cleanup_move_dest(instance, False)
        late.moves.confirm_migration(instance, False)
        assert names(rig, instance) == before and rig.kept('', instance.uuid)
    move(rig.here, rig.there, instance, confirm=False)
    late.guests.destroy(instance)
    late.moves.cleanup_move_dest(instance, False)
    late.moves.confirm_migration(instance, False)
    assert late.disks.list_directories() == []
    assert rig.here.disks.list_directories() == [f'{instance.uuid}_resize']
    assert rig.there.disks.list_directories() == [instance.uuid] and rig.there.disks.directory(instance.uuid).move()
    rig.there.moves.cleanup_move_dest(instance, False)
    rig.here.moves.finish_revert_migration(instance, image_meta(), devices(GPU), True)
    assert rig.kept('', instance.uuid) and names(rig, instance) == before


def test_what_has_just_come_is_its_destinations(shared_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, late, instance = shared_rig, shared_rig.driver('gpu3'), spawn(shared_rig)
    lay, seen = layers.lay, []

    def watched(kept: Any, coming: Any, *args: Any) -> None:
        lay(kept, coming, *args)
        late.moves.cleanup_move_dest(instance, False)
        late.guests.destroy(instance)
        seen.append(coming.formats())

    monkeypatch.setattr(layers, 'lay', watched)
    rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new_flavor(root_gb=2))
    late.guests.destroy(instance)
    late.moves._mover.restore(instance.uuid)
    with pytest.raises(errors.InstanceNotFound):
        late.moves._mover.carry(instance.uuid, rig.there.moves.prepare_move())
    assert len(seen[0]) == 2 and rig.there.disks.directory(instance.uuid).move() and rig.kept('', instance.uuid)


def test_a_server_that_comes_from_another_storage(shared_rig: Any) -> None:
    source = shared_rig.driver('gpu9', instances_path=str(shared_rig.path / 'gpu9'))
    instance = new_instance()
    source.guests.spawn(instance, image_meta())
    move(source, shared_rig.there, instance)
    shared_rig.here.guests.destroy(instance)
    assert shared_rig.there.disks.list_directories() == [instance.uuid]
    assert shared_rig.here.disks.list_directories() == []


def test_a_delete_in_the_middle_takes_each_hosts_part(shared_rig: Any) -> None:
    instance = spawn(shared_rig)
    move(shared_rig.here, shared_rig.there, instance, confirm=False)
    shared_rig.there.guests.destroy(instance)
    assert shared_rig.here.disks.list_directories() == [f'{instance.uuid}_resize']
    shared_rig.here.guests.destroy(instance)
    assert [path.name for path in shared_rig.file('').iterdir() if instance.uuid in path.name] == []


def test_a_confirm_that_comes_late(shared_rig: Any) -> None:
    """The first source was dead when its move was confirmed; the server has moved on, or is about to."""
    rig = shared_rig
    third, instance = rig.driver('gpu3'), spawn(rig)
    move(rig.here, rig.there, instance, confirm=False, root_gb=2)
    # Undo of a move that never began, at the host where it is now.
    rig.there.moves.finish_revert_migration(instance, image_meta(), devices(GPU2), True)
    assert rig.there.guests.get_info(instance) == PowerState.RUNNING and rig.kept('', instance.uuid)
    assert qemu_size(rig.file('', instance.uuid, 'disk')) == 2 << 30
    move(rig.there, third, instance, confirm=False, root_gb=3)
    rig.here.moves.confirm_migration(instance, False)
    assert rig.there.disks.list_directories() == [f'{instance.uuid}_resize'] and rig.kept('', instance.uuid)
    third.moves.cleanup_move_dest(instance, False)
    rig.there.moves.finish_revert_migration(instance, image_meta(), devices(GPU2), True)
    assert rig.kept('', instance.uuid) and qemu_size(rig.file('', instance.uuid, 'disk')) == 2 << 30


def test_a_confirm_that_comes_late_to_a_server_that_stayed(shared_rig: Any) -> None:
    instance = spawn(shared_rig)
    move(shared_rig.here, shared_rig.there, instance, confirm=False)
    shared_rig.there.moves.finish_revert_migration(instance, image_meta(), devices(GPU2), True)
    shared_rig.here.moves.confirm_migration(instance, False)
    assert shared_rig.kept('', instance.uuid) and shared_rig.here.disks.list_directories() == []


def test_directories_of_a_release_that_noted_no_owner(shared_rig: Any) -> None:
    """A start notes it where the host has the guest."""
    instance = spawn(shared_rig)
    shared_rig.file('', instance.uuid, 'owner').unlink()
    assert shared_rig.there.disks.list_directories() == [instance.uuid]
    shared_rig.here.host._clear_leftovers()
    assert shared_rig.there.disks.list_directories() == []
    assert shared_rig.here.disks.list_directories() == [instance.uuid]


# -- what is no shared storage -----------------------------------------------------------------------------------------
def refused(source: Any, dest: dict[str, Any], instance: Any) -> str:
    with pytest.raises(errors.DisksUnmovable) as caught:
        source.moves.migrate_disk_and_power_off(instance, dest, new_flavor(root_gb=2))
    assert source.guests.get_info(instance) == PowerState.RUNNING
    return str(caught.value)


def test_a_storage_that_was_made_from_another(libvirt_rig: Any) -> None:
    """A cloned machine: the same storage id, and the other host's mark of an earlier run."""
    instance = spawn(libvirt_rig)
    for name in ('.storage_id', '.host.gpu2'):
        shutil.copy(libvirt_rig.file('gpu2', name), libvirt_rig.file('gpu1', name))
    libvirt_rig.there = libvirt_rig.driver('gpu2')
    said = refused(libvirt_rig.here, libvirt_rig.there.moves.prepare_move(), instance)
    assert 'from gpu1 to gpu2: both hosts have the same storage id, but the last start of the destination is' in said


def test_a_destination_that_does_not_share_yet(shared_rig: Any) -> None:
    """Of the release before."""
    dest = shared_rig.there.moves.prepare_move()
    del dest['run']
    shared_rig.file('', '.host.gpu2').unlink()
    assert 'not recorded in' in refused(shared_rig.here, dest, spawn(shared_rig))


def test_one_storage_at_two_places(shared_rig: Any) -> None:
    os.symlink(shared_rig.file(''), shared_rig.path / 'elsewhere')
    other = shared_rig.driver('gpu3', instances_path=str(shared_rig.path / 'elsewhere'))
    said = refused(shared_rig.here, other.moves.prepare_move(), spawn(shared_rig))
    assert 'both hosts share storage, but its path is' in said and 'elsewhere on the destination' in said


def test_sharing_needs_no_room(shared_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instance, usage = spawn(shared_rig), shutil.disk_usage
    monkeypatch.setattr('shutil.disk_usage', lambda path: usage(path)._replace(free=0))
    shared_rig.here.moves.check_move(instance, shared_rig.there.moves.prepare_move(), new_flavor(root_gb=2))
