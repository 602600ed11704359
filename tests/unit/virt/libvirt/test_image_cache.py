"""Which images a host keeps: those that a disk reads from, of whatever host that shares the directory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.virt.builders import image_meta, new_flavor, new_instance

DAY = 86400.0


def bases(rig: Any, host: str = 'gpu1') -> list[Path]:
    """The cached images of a host, made old."""
    found = sorted(rig.file(host, '_base').iterdir())
    for path in found:
        os.utime(path, (time.time() - 2 * DAY,) * 2)
    return found


def test_a_base_stays_while_a_disk_reads_from_it(libvirt_rig: Any) -> None:
    """Base files of root, ephemeral and swap disks stay while a disk reads from them. After the delete all of them
    may be removed."""
    instance = new_instance(flavor=new_flavor(ephemeral_gb=1, swap=1))
    driver = libvirt_rig.here
    driver.guests.spawn(instance, image_meta())
    assert len(bases(libvirt_rig)) == 3
    assert driver.disks.clean_image_cache(DAY) == [] and len(bases(libvirt_rig)) == 3
    driver.guests.destroy(instance)
    assert driver.disks.clean_image_cache(None) == []
    assert len(driver.disks.clean_image_cache(DAY)) == 3 and bases(libvirt_rig) == []


def test_what_is_kept_of_a_move_counts(libvirt_rig: Any) -> None:
    rig, instance = libvirt_rig, new_instance()
    rig.here.guests.spawn(instance, image_meta())
    rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), instance.flavor)
    assert bases(rig) and rig.here.disks.clean_image_cache(DAY) == []
    rig.here.moves.confirm_migration(instance, False)
    assert bases(rig) and len(rig.here.disks.clean_image_cache(DAY)) == 1


def test_hosts_that_share_their_storage_keep_each_others_bases(shared_rig: Any) -> None:
    """A host does not remove the base file of a disk of another host that shares its directory."""
    rig, instance = shared_rig, new_instance()
    rig.there.guests.spawn(instance, image_meta())
    assert rig.here.disks.list_directories() == []
    assert bases(rig) and rig.here.disks.clean_image_cache(DAY) == []
    rig.there.guests.destroy(instance)
    assert bases(rig) and len(rig.here.disks.clean_image_cache(DAY)) == 1


def test_raw_copies_read_from_nothing(tmp_path: Path, libvirt_rig: Any) -> None:
    driver = libvirt_rig.driver('gpu3', libvirt={'images_type': 'raw'})
    driver.guests.spawn(new_instance(), image_meta())
    assert len(bases(libvirt_rig, 'gpu3')) == 1 and len(driver.disks.clean_image_cache(DAY)) == 1


def test_a_disk_that_can_not_be_read_keeps_all(libvirt_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can't see what is in use removes nothing."""
    instance = new_instance()
    libvirt_rig.here.guests.spawn(instance, image_meta())
    (base,) = bases(libvirt_rig)
    with monkeypatch.context() as patch:

        def refuse(path: str) -> None:
            raise PermissionError(path)

        patch.setattr('kilonova.virt.libvirt.storage.disk.reads_from', refuse)
        with pytest.raises(PermissionError):
            libvirt_rig.here.disks.clean_image_cache(DAY)
    assert base.exists()
