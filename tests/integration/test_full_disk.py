"""A host whose file system of disks is full, a tmpfs of 24 MiB: what needs room there is refused before anything is
written, with what it needs and what there is, and no other server is touched."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from kilonova import errors
from kilonova.states import PowerState
from tests.unit.virt.builders import GPU, Images, devices, image_meta, make_image, new_instance, write_marker
from tests.unit.virt.conftest import LibvirtRig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='a tmpfs needs root')
MIB = 1 << 20


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LibvirtRig]:
    image = make_image(tmp_path / 'small', size='8M')
    write_marker(image)
    small = tmp_path / 'hosts' / 'gpu1'
    small.mkdir(parents=True)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=24m', 'tmpfs', str(small)], check=True)
    try:
        yield LibvirtRig(tmp_path / 'hosts', Images(image))
    finally:
        subprocess.run(['umount', '-l', str(small)], check=True)


def nothing() -> None:
    """Nobody wants it to end."""


def filled(rig: LibvirtRig, leave: int = 0) -> Path:
    """As a guest fills it that writes to its disk."""
    free = os.statvfs(rig.file('gpu1')).f_bavail * os.statvfs(rig.file('gpu1')).f_frsize
    path = rig.file('gpu1', 'written')
    with path.open('wb') as stream:
        os.posix_fallocate(stream.fileno(), 0, free - leave)
    return path


def test_a_full_disk_fails_one_server_and_no_other(rig: LibvirtRig, tmp_path: Path) -> None:
    here = rig.here
    servers = [new_instance(id=number) for number in (1, 2)]
    for server in servers:
        here.guests.spawn(server, image_meta(), pci_devices=devices(GPU) if server is servers[0] else ())
    large = Images(make_image(tmp_path / 'large', 'raw', '4M'))
    large.path.write_bytes(os.urandom(4 * MIB))
    here.disks._download, written = large.download, filled(rig, leave=2 * MIB)
    third = new_instance(id=3, image_ref='large')
    # 1. A new server's image: what of it comes is taken away.
    with pytest.raises(OSError, match='No space left'):
        here.guests.spawn(third, image_meta(id='large', disk_format='raw'))
    here.guests.destroy(third)
    assert sorted(path.name for path in rig.file('gpu1', '_base').iterdir()) == [
        os.path.basename(here.disks.directory(servers[0].uuid).disks()['disk'].backing or '')
    ]
    # 2. Nothing at all is left.
    written.unlink()
    filled(rig)
    for act, need in (
        (lambda: here.snapshots.snapshot(servers[0], 'snap', nothing, nothing), 'Not enough disk space for image snap'),
        (lambda: here.moves.check_move(servers[0], here.moves.prepare_move(), servers[0].flavor), 'the disks need'),
    ):
        with pytest.raises((errors.NoRoom, errors.DisksUnmovable)) as caught:
            act()
        assert need in str(caught.value) and re.search(
            r'needs? \d+ bytes, (but only )?0 (bytes )?are free', str(caught.value)
        )
    assert not rig.images.sent
    # 3. Those that there are go on, and start and stop.
    for server in servers:
        assert here.guests.get_info(server) == PowerState.RUNNING
        here.power.power_off(server)
        here.power.power_on(server, image_meta(), devices(GPU) if server is servers[0] else ())
        here.power.reboot(server, 'HARD', image_meta(), devices(GPU) if server is servers[0] else ())
        assert here.guests.get_info(server) == PowerState.RUNNING
    # 4. Room is there again when one of them goes.
    here.guests.destroy(servers[1])
    rig.file('gpu1', 'written').unlink()
    here.guests.spawn(third, image_meta(id='large', disk_format='raw'))
    assert here.guests.get_info(third) == PowerState.RUNNING


def test_images_are_counted_before_they_are_fetched(rig: LibvirtRig) -> None:
    """As the image service says how large they are."""
    asked: list[str] = []

    def download(image_id: str, file: IO[bytes]) -> None:
        free = os.fstatvfs(file.fileno()).f_bavail * os.fstatvfs(file.fileno()).f_frsize
        asked.append(image_id)
        raise errors.NoRoom(what=f'image {image_id}', need=free + 1, free=free)

    rig.here.disks._download = download
    instance: Any = new_instance()
    with pytest.raises(errors.NoRoom, match='Not enough disk space for image image-1'):
        rig.here.guests.spawn(instance, image_meta())
    assert asked == ['image-1'] and list(rig.file('gpu1', '_base').iterdir()) == []
