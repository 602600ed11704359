"""Disks as users asked for them: made, kept through moves, gone with the server."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from kilonova import errors
from kilonova.virt.libvirt.storage import requested_disks as wishes
from kilonova.virt.libvirt.storage.requested_disks import RequestedDisk
from kilonova.virt.parts.guests import GuestFailed, UnsupportedHardware
from tests.unit.virt.builders import image_meta, new_flavor, new_instance
from tests.unit.virt.conftest import qemu_size

GIB, MIB = 1 << 30, 1 << 20


def device(source: str = 'blank', **values: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            'source_type': source,
            'destination_type': 'local',
            'guest_format': None,
            'volume_size': None,
            'disk_bus': None,
            'device_type': None,
            'tag': None,
            **values,
        }
    )


EPHEMERALS = (device(volume_size=1), device(volume_size=2, guest_format='ext3', disk_bus='scsi', tag='data'))
SWAP = device(guest_format='swap', volume_size=256)
NUMBERS = itertools.count(1)
FLAVOR = {'ephemeral_gb': 3, 'swap': 512}


def spawn(rig: Any, *devices: SimpleNamespace, flavor: dict[str, Any] | None = None, **values: Any) -> Any:
    # Domains are called after their ids.
    instance = new_instance(id=next(NUMBERS), flavor=new_flavor(**{**FLAVOR, **(flavor or {})}), **values)
    rig.here.guests.spawn(instance, image_meta(), block_devices=devices)
    return instance


def sizes(rig: Any, instance: Any, host: str = 'gpu1', suffix: str = '') -> dict[str, int]:
    directory = rig.file(host, instance.uuid + suffix)
    return {
        name: qemu_size(directory / name)
        for name in json.loads((directory / 'disk.info').read_text())
        if (directory / name).exists()
    }


def targets(rig: Any, instance: Any, host: str = 'gpu1') -> list[tuple[str, str, str]]:
    domain = ElementTree.fromstring(rig.file(host, instance.uuid, 'libvirt.xml').read_text())
    # libvirt groups them by bus.
    files, names = domain.findall('devices/disk/source'), domain.findall('devices/disk/target')
    return sorted(
        (Path(file.attrib['file']).name, name.attrib['dev'], name.attrib['bus'])
        for file, name in zip(files, names, strict=True)
    )


def resize(rig: Any, instance: Any, **flavor: Any) -> None:
    new = new_flavor(**{'root_gb': 1, **FLAVOR, **flavor})
    info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new)
    instance.flavor = new
    rig.there.moves.finish_migration(instance, image_meta(), (), True, info)


def test_wishes_of_block_devices() -> None:
    found = wishes.read(
        [device('image', disk_bus='sata'), *EPHEMERALS, SWAP, device(destination_type='volume', volume_size=9)],
        new_flavor(**FLAVOR),
    )
    assert found == {
        'disk': RequestedDisk(bus='sata'),
        'disk.eph0': RequestedDisk(size=1),
        'disk.eph1': RequestedDisk(size=2, file_system='ext3', bus='scsi', tag='data'),
        'disk.swap': RequestedDisk(size=256, flavor_swap=512),
    }
    assert {name: RequestedDisk.from_dict(wish.to_dict()) for name, wish in found.items()} == found
    # What becomes an argument of a program is one of the words we know.
    assert wishes.read([device(guest_format='ext4 -F')], new_flavor())['disk.eph0'].file_system is None


def test_what_was_asked_for_takes_the_place_of_the_flavors(libvirt_rig: Any) -> None:
    instance = spawn(libvirt_rig, *EPHEMERALS, SWAP)
    assert sizes(libvirt_rig, instance) == {'disk': GIB, 'disk.eph0': GIB, 'disk.eph1': 2 * GIB, 'disk.swap': 256 * MIB}
    assert targets(libvirt_rig, instance) == [
        ('disk', 'vda', 'virtio'),
        ('disk.eph0', 'vdb', 'virtio'),
        ('disk.eph1', 'sda', 'scsi'),
        ('disk.swap', 'vdc', 'virtio'),
    ]
    libvirt_rig.here.guests.destroy(instance)
    assert not libvirt_rig.file('gpu1', instance.uuid).exists()


def test_without_wishes_the_flavor_says_everything(libvirt_rig: Any) -> None:
    instance = spawn(libvirt_rig)
    assert sizes(libvirt_rig, instance) == {'disk': GIB, 'disk.eph0': 3 * GIB, 'disk.swap': 512 * MIB}
    assert not libvirt_rig.file('gpu1', instance.uuid, 'disk.asked').exists()


def test_only_swap_was_asked_for(libvirt_rig: Any) -> None:
    assert sizes(libvirt_rig, spawn(libvirt_rig, SWAP))['disk.eph0'] == 3 * GIB
    assert sizes(libvirt_rig, spawn(libvirt_rig, *EPHEMERALS))['disk.swap'] == 512 * MIB


@pytest.mark.skipif(not shutil.which('blkid'), reason='blkid is not installed')
def test_their_file_systems_and_labels(libvirt_rig: Any, tmp_path: Path) -> None:
    instance = spawn(libvirt_rig, *EPHEMERALS, SWAP)
    found = []
    for name in ('disk.eph0', 'disk.eph1', 'disk.swap'):
        raw = tmp_path / 'raw'
        subprocess.run(
            ['qemu-img', 'convert', '-O', 'raw', libvirt_rig.file('gpu1', instance.uuid, name), raw], check=True
        )
        told = subprocess.run(['blkid', '-p', '-o', 'export', raw], check=True, capture_output=True, text=True).stdout
        told = dict(line.split('=', 1) for line in told.splitlines())
        found.append((told['TYPE'], told.get('LABEL')))
    assert found == [('ext4', 'ephemeral0'), ('ext3', 'ephemeral1'), ('swap', None)]


def test_the_next_start_finds_them_again(libvirt_rig: Any) -> None:
    instance = spawn(libvirt_rig, *EPHEMERALS, SWAP)
    before = targets(libvirt_rig, instance)
    libvirt_rig.here.power.power_off(instance)
    libvirt_rig.here.power.power_on(instance, image_meta())
    assert targets(libvirt_rig, instance) == before
    later = libvirt_rig.driver('gpu1')
    later.power.reboot(instance, 'HARD', image_meta())
    assert targets(libvirt_rig, instance) == before


def test_a_missing_base_is_not_formatted_anew(libvirt_rig: Any) -> None:
    instance = spawn(libvirt_rig, *EPHEMERALS)
    base = libvirt_rig.file('gpu1', '_base', 'ephemeral_2_ext3_1')
    base.unlink()
    with pytest.raises(GuestFailed, match=r'ephemeral_2_ext3_1, which .*disk.eph1 reads from, is missing'):
        libvirt_rig.here.power.reboot(instance, 'HARD', image_meta())
    assert not base.exists()


def test_a_move_carries_them_and_a_revert_has_them_as_they_were(libvirt_rig: Any) -> None:
    instance = spawn(libvirt_rig, *EPHEMERALS, SWAP)
    old = instance.flavor
    before, seen = sizes(libvirt_rig, instance), targets(libvirt_rig, instance)
    resize(libvirt_rig, instance, root_gb=2)
    assert sizes(libvirt_rig, instance, 'gpu2') == {**before, 'disk': 2 * GIB}
    assert targets(libvirt_rig, instance, 'gpu2') == seen
    assert sizes(libvirt_rig, instance, suffix='_resize') == before
    libvirt_rig.there.moves.cleanup_move_dest(instance, False)
    instance.flavor = old
    libvirt_rig.here.moves.finish_revert_migration(instance, image_meta(), (), True)
    assert (sizes(libvirt_rig, instance), targets(libvirt_rig, instance)) == (before, seen)
    assert not libvirt_rig.file('gpu2', instance.uuid).exists()


def test_a_flavor_with_more_leaves_them_and_changes_swap(libvirt_rig: Any) -> None:
    """Sizes that somebody asked for are theirs; swap is the new flavor's where that differs."""
    instance = spawn(libvirt_rig, *EPHEMERALS, SWAP)
    resize(libvirt_rig, instance, ephemeral_gb=9, swap=1024)
    assert sizes(libvirt_rig, instance, 'gpu2') == {
        'disk': GIB,
        'disk.eph0': GIB,
        'disk.eph1': 2 * GIB,
        'disk.swap': 1024 * MIB,
    }
    libvirt_rig.here.moves.confirm_migration(instance, False)
    assert not libvirt_rig.file('gpu1', instance.uuid + '_resize').exists()


def test_a_flavor_that_still_holds_them_is_no_shrinking(libvirt_rig: Any) -> None:
    instance = spawn(libvirt_rig, device(volume_size=1))
    resize(libvirt_rig, instance, ephemeral_gb=1)
    assert sizes(libvirt_rig, instance, 'gpu2')['disk.eph0'] == GIB
    other = spawn(libvirt_rig, *EPHEMERALS)
    with pytest.raises(errors.ResizeError, match='Unable to resize disk down'):
        resize(libvirt_rig, other, ephemeral_gb=2)


def test_a_second_build_forgets_what_the_first_was_asked_for(libvirt_rig: Any) -> None:
    instance = spawn(libvirt_rig, *EPHEMERALS)
    libvirt_rig.here.guests.spawn(instance, image_meta())
    assert targets(libvirt_rig, instance) == [
        ('disk', 'vda', 'virtio'),
        ('disk.eph0', 'vdb', 'virtio'),
        ('disk.swap', 'vdc', 'virtio'),
    ]
    assert not libvirt_rig.file('gpu1', instance.uuid, 'disk.asked').exists()


def test_hardware_of_the_root_disk(libvirt_rig: Any) -> None:
    instance = spawn(
        libvirt_rig, device('image', disk_bus='sata', device_type='cdrom'), flavor={'ephemeral_gb': 0, 'swap': 0}
    )
    assert targets(libvirt_rig, instance) == [('disk', 'sda', 'sata')]
    with pytest.raises(UnsupportedHardware):
        spawn(libvirt_rig, device('image', disk_bus='lxc'))


@pytest.mark.skipif(not shutil.which('isoinfo'), reason='isoinfo is not installed')
def test_tags_are_told_in_the_config_drive(libvirt_rig: Any) -> None:
    """The config drive lists the tagged disks of the request with bus, address and path."""
    instance = spawn(libvirt_rig, *EPHEMERALS, config_drive='True')
    text = subprocess.run(
        [
            'isoinfo',
            '-J',
            '-i',
            libvirt_rig.file('gpu1', instance.uuid, 'disk.config'),
            '-x',
            '/openstack/latest/meta_data.json',
        ],
        check=True,
        capture_output=True,
    ).stdout
    assert json.loads(text)['devices'] == [
        {'type': 'disk', 'bus': 'scsi', 'address': '0:0:0:0', 'path': '/dev/sda', 'tags': ['data']}
    ]
