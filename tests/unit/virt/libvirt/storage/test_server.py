"""The disks of one server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import errors
from kilonova.virt import command
from kilonova.virt.libvirt.domain.guest import GuestDisk
from kilonova.virt.libvirt.storage import files
from kilonova.virt.libvirt.storage.cache import ImageCache
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import DriverMisconfigured
from tests.unit.virt.builders import Images, image_meta, new_conf, new_flavor, new_instance
from tests.unit.virt.conftest import qemu_size


@pytest.fixture
def make(tmp_path: Path, images: Images) -> Any:
    def make(**overrides: Any) -> ServerDisks:
        conf = new_conf(tmp_path, **overrides)
        cache = ImageCache(f'{conf.instances_path}/_base', files.FileLocks(f'{conf.instances_path}/locks'))
        return ServerDisks(conf, cache, images)

    return make


def shapes(disks: tuple[GuestDisk, ...]) -> list[tuple[str, str, str]]:
    return [(os.path.basename(disk.path), disk.format, disk.device) for disk in disks]


@pytest.mark.parametrize('images_type', ['qcow2', 'raw'])
def test_disks_get_room_for_all_that_guests_can_write(make: Any, images_type: str) -> None:
    """[DEFAULT]preallocate_images = space: at once, and again in the copy that a move brought, which has its holes."""
    disks = make(preallocate_images='space', libvirt={'images_type': images_type})
    instance = new_instance(flavor=new_flavor(root_gb=0, swap=4))
    disks.create(instance, image_meta())
    directory = disks.directory(instance.uuid)

    def room() -> dict[str, bool]:
        return {
            name: files.used(directory.file(name)) >= found.virtual_size for name, found in directory.disks().items()
        }

    assert room() == {'disk': True, 'disk.swap': True}
    for name in room():
        command.run('cp', '--sparse=always', directory.file(name), directory.file('copy'))
        os.replace(directory.file('copy'), directory.file(name))
    assert not any(room().values())
    disks.grow(instance, image_meta())
    assert room() == {'disk': True, 'disk.swap': True}
    plain = make(libvirt={'images_type': images_type})
    plain.create(instance, image_meta())
    assert not any(room().values())


@pytest.mark.parametrize('images_type', ['qcow2', 'raw'])
def test_a_disk_that_has_no_room_is_refused_with_what_it_needs(
    make: Any, monkeypatch: pytest.MonkeyPatch, images_type: str
) -> None:
    disks = make(preallocate_images='space', libvirt={'images_type': images_type})
    disks.fetch(new_instance(), image_meta())
    monkeypatch.setattr(files.shutil, 'disk_usage', lambda path: SimpleNamespace(free=10000))
    with pytest.raises(errors.NoRoom, match=r'for the preallocation of disk: it needs \d{10} bytes, 10000 are'):
        disks.create(new_instance(), image_meta())


def test_a_file_system_that_can_not_do_it_is_refused_at_the_start(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = make(preallocate_images='space')
    os.makedirs(disks._conf.instances_path)
    disks.check_storage()
    assert os.listdir(disks._conf.instances_path) == []

    def refuse(*argv: str) -> str:
        raise command.CommandFailed(command='fallocate', reason='Operation not supported')

    monkeypatch.setattr(command, 'run', refuse)
    with pytest.raises(DriverMisconfigured, match=r"preallocate_images is 'space', but .* does not support prealloc"):
        disks.check_storage()
    make().check_storage()


@pytest.mark.parametrize(
    ('overrides', 'format_'),
    [
        ({}, 'qcow2'),
        ({'libvirt': {'images_type': 'flat'}}, 'raw'),
        ({'use_cow_images': False}, 'raw'),
        ({'libvirt': {'images_type': 'raw'}}, 'raw'),
        ({'libvirt': {'images_type': 'qcow2'}, 'use_cow_images': False}, 'qcow2'),
    ],
)
def test_kind_of_root_disk(make: Any, overrides: dict[str, Any], format_: str) -> None:
    disks, instance = make(**overrides), new_instance()
    assert shapes(disks.plan(instance, image_meta())) == [('disk', format_, 'disk')]
    disks.create(instance, image_meta())
    assert disks.directory(instance.uuid).formats() == {'disk': format_}
    assert disks.directory(instance.uuid).disks()['disk'].virtual_size == 1 << 30


@pytest.mark.skipif(not shutil.which('genisoimage'), reason='genisoimage is not installed')
def test_everything_at_once_is_what_was_planned(make: Any) -> None:
    disks = make()
    instance = new_instance(flavor=new_flavor(ephemeral_gb=1, swap=2), config_drive='True')
    planned = disks.plan(instance, image_meta())
    assert shapes(planned) == [
        ('disk', 'qcow2', 'disk'),
        ('disk.eph0', 'qcow2', 'disk'),
        ('disk.swap', 'qcow2', 'disk'),
        ('disk.config', 'raw', 'cdrom'),
    ]
    disks.create(instance, image_meta())
    assert disks.present(instance) == planned
    made = disks.directory(instance.uuid).disks()
    assert (made['disk.eph0'].virtual_size, made['disk.swap'].virtual_size) == (1 << 30, 2 << 20)
    assert sorted(path.name for path in Path(made['disk'].backing).parent.iterdir())[-2:] == [
        'ephemeral_1_ext4',
        'swap_2',
    ]


def test_a_config_drive_stays_what_it_is_until_it_is_made_again(make: Any) -> None:
    disks, other, instance = make(config_drive_format='vfat'), make(), new_instance(config_drive='True')
    planned = disks.plan(instance, image_meta())
    assert shapes(planned)[-1] == ('disk.config', 'raw', 'disk')
    disks.create(instance, image_meta())
    # A host with another format, to which it moved or which was configured anew.
    assert disks.present(instance) == other.present(instance) == planned
    other.create(instance, image_meta())
    assert shapes(disks.present(instance))[-1] == ('disk.config', 'raw', 'cdrom')
    plain = new_instance()
    disks.create(plain, image_meta())
    assert not disks.directory(plain.uuid).asked()


@pytest.mark.parametrize(
    ('file_system', 'at', 'magic'),
    [
        ('ext2', 1080, b'\x53\xef'),
        ('ext3', 1080, b'\x53\xef'),
        ('ext4', 1080, b'\x53\xef'),
        ('xfs', 0, b'XFSB'),
        ('vfat', 82, b'FAT32'),
    ],
)
def test_file_systems_of_ephemeral_disks_are_made(make: Any, file_system: str, at: int, magic: bytes) -> None:
    """By the programs themselves: each that the API takes has one in bindep.txt."""
    disks = make(default_ephemeral_format=file_system)
    instance = new_instance(flavor=new_flavor(ephemeral_gb=1))
    disks.create(instance, image_meta())
    with Path(disks.directory(instance.uuid).disks()['disk.eph0'].backing).open('rb') as made:
        head = made.read(2048)
    assert head[at:].startswith(magic) and b'ephemeral0' in head


def test_an_unformatted_name_is_never_guessed_from_the_file(make: Any) -> None:
    disks, instance = make(), new_instance()
    disks.create(instance, image_meta())
    Path(disks.directory(instance.uuid).file('disk.info')).unlink()
    with pytest.raises(GuestFailed, match='root disk is not on this host'):
        disks.present(instance)


def test_growing_adds_what_the_new_flavor_has(make: Any) -> None:
    """Growing the disks resizes the root disk, and adds or resizes the ephemeral and swap disks of the new flavor.
    It may be repeated."""
    disks, instance = make(), new_instance()
    disks.create(instance, image_meta())
    instance.flavor = new_flavor(root_gb=2, ephemeral_gb=1, swap=1)
    for _again in range(2):
        disks.grow(instance, image_meta())
    path = Path(disks.directory(instance.uuid).path)
    assert [qemu_size(path / name) for name in ('disk', 'disk.eph0', 'disk.swap')] == [2 << 30, 1 << 30, 1 << 20]
    instance.flavor = new_flavor(root_gb=2, ephemeral_gb=3, swap=1)
    disks.grow(instance, image_meta())
    assert qemu_size(path / 'disk.eph0') == 3 << 30


def test_ephemeral_of_windows_is_vfat_and_of_an_operators_choice(make: Any) -> None:
    made = []
    disks = make()
    disks._cache.blank = lambda name, size, *mkfs: (
        made.append((name, mkfs[2])) or disks._cache.image('image-1', image_meta(), disks._download)
    )
    disks.create(new_instance(flavor=new_flavor(ephemeral_gb=1)), image_meta(properties={'os_type': 'windows'}))
    disks._conf.set_override('default_ephemeral_format', 'xfs')
    disks.create(new_instance(flavor=new_flavor(ephemeral_gb=1)), image_meta())
    assert made == [('ephemeral_1_vfat', 'vfat'), ('ephemeral_1_xfs', 'xfs')]


def test_a_missing_base_that_nobody_can_make_again(make: Any) -> None:
    disks, instance = make(), new_instance()
    disks.create(instance, image_meta())
    Path(disks.directory(instance.uuid).disks()['disk'].backing).unlink()
    instance.image_ref = 'another'
    with pytest.raises(GuestFailed, match=r'_base/.* is missing'):
        disks.ensure_bases(instance, image_meta())


def test_a_missing_base_of_an_ephemeral_disk_is_not_formatted_anew(make: Any) -> None:
    """What the guest wrote would be on another file system than the one that it formatted."""
    disks, instance = make(), new_instance(flavor=new_flavor(ephemeral_gb=1, swap=1))
    disks.create(instance, image_meta())
    found = disks.directory(instance.uuid).disks()
    swap, ephemeral = (Path(found[name].backing) for name in ('disk.swap', 'disk.eph0'))
    swap.unlink()
    disks.ensure_bases(instance, image_meta())
    assert swap.exists()
    ephemeral.unlink()
    with pytest.raises(GuestFailed, match=r'_base/ephemeral_1_ext4, which .*disk\.eph0 reads from, is missing'):
        disks.ensure_bases(instance, image_meta())
    assert not ephemeral.exists()


def test_no_way_to_fetch_images(make: Any) -> None:
    made = make()
    disks = ServerDisks(made._conf, made._cache, None)
    with pytest.raises(DriverMisconfigured, match='no image client is configured'):
        disks.create(new_instance(), image_meta())
