"""Servers that bring their own kernel (kernel_id, ramdisk_id): its files are fetched and kept beside the disks.

They are copied and deleted with the disks. Without them the server would boot from its disk, which has no boot loader.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

import pytest

from kilonova import errors
from kilonova.virt.libvirt.storage import files
from kilonova.virt.libvirt.storage.cache import ImageCache
from tests.unit.virt.builders import Images, image_meta, new_flavor, new_instance

CONTENT = {'aki': b'the kernel', 'ari': b'the ramdisk'}


@pytest.fixture
def images(images: Images, monkeypatch: pytest.MonkeyPatch) -> Images:
    """The image service has them, too."""

    def download(image_id: str, file: IO[bytes]) -> None:
        images.fetched += 1
        file.write(CONTENT[image_id] if image_id in CONTENT else images.path.read_bytes())

    monkeypatch.setattr(images, 'download', download)
    return images


@pytest.fixture
def rig(images: Images, libvirt_rig: Any) -> Any:
    return libvirt_rig


def spawned(rig: Any, number: int = 1) -> Any:
    instance = new_instance(id=number, kernel_id='aki', ramdisk_id='ari')
    rig.here.guests.spawn(instance, image_meta())
    return instance


def shown(rig: Any, host: str, instance: Any) -> list[str]:
    domain = ElementTree.fromstring(rig.file(host, instance.uuid, 'libvirt.xml').read_text())
    return [domain.findtext(f'os/{name}', '') for name in ('kernel', 'initrd', 'cmdline')]


def check(rig: Any, host: str, instance: Any) -> None:
    kernel, ramdisk = rig.file(host, instance.uuid, 'kernel'), rig.file(host, instance.uuid, 'ramdisk')
    assert shown(rig, host, instance) == [
        str(kernel),
        str(ramdisk),
        'root=/dev/vda console=tty0 console=ttyS0 console=hvc0',
    ]
    assert (kernel.read_bytes(), ramdisk.read_bytes()) == (CONTENT['aki'], CONTENT['ari'])


def test_a_guest_starts_from_its_kernel(rig: Any) -> None:
    instance = spawned(rig)
    check(rig, 'gpu1', instance)
    spawned(rig, 2)
    assert rig.images.fetched == 3, 'each image once a host'


def test_a_start_fetches_what_is_missing(rig: Any) -> None:
    instance = spawned(rig)
    rig.here.power.power_off(instance)
    rig.file('gpu1', instance.uuid, 'kernel').unlink()
    for path in rig.file('gpu1', '_base').glob('kernel_*'):
        path.unlink()
    rig.here.power.power_on(instance, image_meta())
    check(rig, 'gpu1', instance)


def test_they_go_with_the_disks(rig: Any) -> None:
    instance = spawned(rig)
    info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), new_flavor(root_gb=2))
    fetched = rig.images.fetched
    instance.flavor = new_flavor(root_gb=2)
    rig.there.moves.finish_migration(instance, image_meta(), [], True, info)
    check(rig, 'gpu2', instance)
    assert rig.images.fetched == fetched, 'an image that was deleted meanwhile stops nobody'


def test_a_kernel_is_never_taken_for_a_disk(tmp_path: Path) -> None:
    """What is a kernel to one request may be named as an image by another: its content was never looked into."""
    cache = ImageCache(str(tmp_path / '_base'), files.FileLocks(str(tmp_path / 'locks')))

    def download(_image_id: str, file: IO[bytes]) -> None:
        file.write(b'QFI\xfb and whatever its owner likes')

    cache.kernel('image-1', download)
    with pytest.raises(errors.ImageUnacceptable):
        cache.image('image-1', image_meta(), download)


def test_a_file_system_without_boot_loader_is_a_disk(tmp_path: Path) -> None:
    cache = ImageCache(str(tmp_path / '_base'), files.FileLocks(str(tmp_path / 'locks')))
    base = cache.image('image-1', image_meta(disk_format='ami'), lambda _id, file: file.write(bytes(1 << 20)))
    assert (base.format, base.virtual_size) == ('raw', 1 << 20)
