"""The image cache."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from kilonova import errors
from kilonova.virt.libvirt.storage import disk, files
from kilonova.virt.libvirt.storage.cache import ImageCache
from kilonova.virt.parts.disks import FlavorDiskSmallerThanImage
from tests.unit.virt.builders import Images, image_meta, make_image, write_marker

NAME = hashlib.sha1(b'image-1').hexdigest()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / '_base'


def new_cache(base: Path, **options: Any) -> ImageCache:
    return ImageCache(str(base), files.FileLocks(str(base.parent / 'locks')), **options)


def fetch(base: Path, path: Path, disk_format: str = 'qcow2', most: int | None = None, **options: Any) -> disk.BaseFile:
    return new_cache(base, **options).image('image-1', image_meta(disk_format=disk_format), Images(path).download, most)


def names(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir())


def test_qcow2_becomes_raw(base: Path, image_file: Path) -> None:
    assert fetch(base, image_file) == disk.BaseFile(str(base / NAME), 'raw', 64 << 20)
    assert names(base) == [NAME]


def test_room_for_the_raw_image_is_looked_for_before_it_is_made(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_image(tmp_path / 'image', 'qcow2', '8M')
    write_marker(image)
    need = disk.as_raw(str(image), 'qcow2')
    assert 0 < need < 8 << 20
    for free in (need - 1, need):
        monkeypatch.setattr(files.shutil, 'disk_usage', lambda path, free=free: SimpleNamespace(free=free))
        if free < need:
            with pytest.raises(errors.NoRoom, match=f'image image-1 as raw: it needs {need} bytes, {free} are free'):
                fetch(base, image)
            assert names(base) == []
        else:
            assert fetch(base, image).format == 'raw'


def test_qcow2_stays_where_raw_is_not_forced(base: Path, image_file: Path) -> None:
    assert fetch(base, image_file, force_raw=False) == disk.BaseFile(str(base / NAME), 'qcow2', 64 << 20)
    assert (base / NAME).read_bytes() == image_file.read_bytes()


@pytest.mark.parametrize(
    ('disk_format', 'made_as'), [('raw', 'raw'), ('vdi', 'vdi'), ('vhd', 'vpc'), ('vhdx', 'vhdx'), ('vmdk', 'vmdk')]
)
def test_other_formats_become_raw(base: Path, tmp_path: Path, disk_format: str, made_as: str) -> None:
    found = fetch(base, make_image(tmp_path / 'image', made_as, '8M'), disk_format, force_raw=False)
    assert found.format == 'raw' and found.virtual_size >= 8 << 20


@pytest.mark.parametrize(
    ('disk_format', 'made_as', 'said'),
    [
        ('raw', 'qcow2', "content is qcow2, but its disk_format is 'raw'"),
        ('qcow2', 'raw', "content is raw, but its disk_format is 'qcow2'"),
        ('ploop', 'raw', "'ploop' is not supported"),
        (None, 'raw', "'None' is not supported"),
    ],
)
def test_content_must_be_what_the_record_says(
    base: Path, tmp_path: Path, disk_format: str, made_as: str, said: str
) -> None:
    with pytest.raises(errors.ImageUnacceptable, match=said):
        fetch(base, make_image(tmp_path / 'image', made_as, '1M'), disk_format)
    assert names(base) == []


def test_an_image_that_reads_from_a_file_of_the_host_is_refused(base: Path, tmp_path: Path, image_file: Path) -> None:
    hostile = make_image(tmp_path / 'image', 'qcow2', '64M', '-b', str(image_file), '-F', 'qcow2')
    with pytest.raises(errors.ImageUnacceptable, match='safety checks'):
        fetch(base, hostile)
    assert names(base) == []


def test_an_image_with_its_data_elsewhere_is_refused(base: Path, tmp_path: Path) -> None:
    hostile = make_image(tmp_path / 'image', 'qcow2', '1M', '-o', f'data_file={tmp_path}/data')
    with pytest.raises(errors.ImageUnacceptable):
        fetch(base, hostile)


@pytest.mark.parametrize('cached', [False, True])
def test_an_image_larger_than_the_flavors_disk(base: Path, image_file: Path, cached: bool) -> None:
    if cached:
        fetch(base, image_file)
    with pytest.raises(FlavorDiskSmallerThanImage, match='Flavor disk is 1048576 bytes, image is 67108864 bytes'):
        fetch(base, image_file, most=1 << 20)
    assert names(base) == ([NAME] if cached else [])


def test_one_download_for_many_who_wait(base: Path, image_file: Path) -> None:
    images, cache, found = Images(image_file), new_cache(base), []

    def slowly(image_id: str, file: IO[bytes]) -> None:
        time.sleep(0.05)
        images.download(image_id, file)

    threads = [
        threading.Thread(target=lambda: found.append(cache.image('image-1', image_meta(), slowly)))
        for _boot in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert images.fetched == 1


def test_another_process_finds_what_is_there(base: Path, image_file: Path) -> None:
    first = fetch(base, image_file)
    images = Images(image_file)
    assert new_cache(base).image('image-1', image_meta(), images.download) == first
    assert images.fetched == 0


def test_a_failed_download_leaves_nothing_and_the_next_one_tries_again(base: Path, image_file: Path) -> None:
    def broken(image_id: str, file: IO[bytes]) -> None:
        file.write(b'half of it')
        raise errors.ImageUnacceptable(image_id=image_id, reason='its data has another checksum')

    cache = new_cache(base)
    with pytest.raises(errors.ImageUnacceptable, match='checksum'):
        cache.image('image-1', image_meta(), broken)
    assert names(base) == []
    assert cache.image('image-1', image_meta(), Images(image_file).download).virtual_size == 64 << 20


def test_what_a_crash_left_is_written_anew(base: Path, image_file: Path) -> None:
    base.mkdir()
    (base / f'{NAME}.part').write_bytes(b'x' * (1 << 20))
    (base / f'{NAME}.converted').write_bytes(b'x')
    assert fetch(base, image_file).virtual_size == 64 << 20
    assert names(base) == [NAME]


def test_a_base_that_was_cleared_away_is_fetched_again(base: Path, image_file: Path) -> None:
    cache, images = new_cache(base), Images(image_file)
    for _time in range(2):
        found = cache.image('image-1', image_meta(), images.download)
        Path(found.path).unlink()
    assert images.fetched == 2


def test_blank_disks_are_made_once(base: Path) -> None:
    cache = new_cache(base)
    found = cache.blank('swap_1', 1 << 20, 'mkswap', '-q')
    before = Path(found.path).stat().st_ino
    assert (found.format, found.virtual_size) == ('raw', 1 << 20)
    assert cache.blank('swap_1', 1 << 20, 'mkswap', '-q') == found
    assert Path(found.path).stat().st_ino == before
    assert b'SWAPSPACE2' in Path(found.path).read_bytes()


# --- clearing away ----------------------------------------------------------------------------------------------------
DAY = 86400.0


def make_old(path: Path, seconds: float = 2 * DAY) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def age_of(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def test_what_nobody_used_for_long_goes(base: Path, image_file: Path) -> None:
    """A cached image that no disk has used for long is removed. One in use stays and counts as new. Leftovers of
    downloads are removed by their age."""
    cache = new_cache(base)
    fetch(base, image_file)
    for name in ('used', 'young', 'old', 'old.part', f'{NAME}.converted'):
        (base / name).write_bytes(b'x')
        make_old(base / name, 60 if name == 'young' else 2 * DAY)
    assert cache.clean({'used'}, None) == [] and age_of(base / 'used') < DAY
    make_old(base / 'used')
    assert cache.clean({'used'}, DAY) == [f'{NAME}.converted', 'old', 'old.part']
    assert names(base) == sorted([NAME, 'used', 'young']) and age_of(base / 'used') < DAY


def test_who_takes_a_base_makes_it_young(base: Path, image_file: Path) -> None:
    cache, images = new_cache(base), Images(image_file)
    for _time in range(2):
        path = Path(cache.image('image-1', image_meta(), images.download).path)
        assert cache.clean(set(), DAY) == []
        make_old(path)
    assert cache.clean(set(), DAY) == [NAME]
    assert cache.image('image-1', image_meta(), images.download) and images.fetched == 2


def test_a_base_that_somebody_has_just_taken_stays_whatever_the_option_says(base: Path, image_file: Path) -> None:
    fetch(base, image_file)
    cache = new_cache(base)
    make_old(base / NAME, 60)
    assert cache.clean(set(), 0) == []
    make_old(base / NAME, 700)
    assert cache.clean(set(), 0) == [NAME]


def test_there_may_be_no_cache_yet(base: Path) -> None:
    assert new_cache(base).clean(set(), 0) == []


def test_a_name_that_a_guest_wrote_is_not_read_without_end(tmp_path: Path) -> None:
    """A raw disk that looks like a qcow2 whose backing file's name is 4 GiB long."""
    path = tmp_path / 'disk'
    path.write_bytes(struct.pack('>4sIQIIQ', b'QFI\xfb', 3, 32, 0xFFFFFFFF, 16, 1 << 30) + b'n' * 5000)
    assert 0 < len(Path(disk.reads_from(str(path)) or '').name) < 1100
    path.write_bytes(b'a disk')
    assert disk.reads_from(str(path)) is None
