"""The image cache."""
from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest

from kilonova import errors
from kilonova.virt.driver import FlavorDiskSmallerThanImage
from kilonova.virt.libvirt.storage import disk, files
from kilonova.virt.libvirt.storage.cache import ImageCache
from tests.unit.virt.builders import Images, image_meta, make_image

NAME = hashlib.sha1(b'image-1').hexdigest()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / '_base'


def new_cache(base: Path, **options: Any) -> ImageCache:
    return ImageCache(str(base), files.Locks(str(base.parent / 'locks')), **options)


def fetch(base: Path, path: Path, disk_format: str = 'qcow2', most: int | None = None, **options: Any) -> disk.Base:
    return new_cache(base, **options).image('image-1', image_meta(disk_format=disk_format), Images(path).download, most)


def names(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir())


def test_qcow2_becomes_raw(base: Path, image_file: Path) -> None:
    assert fetch(base, image_file) == disk.Base(str(base / NAME), 'raw', 64 << 20)
    assert names(base) == [NAME]


def test_qcow2_stays_where_raw_is_not_forced(base: Path, image_file: Path) -> None:
    assert fetch(base, image_file, force_raw=False) == disk.Base(str(base / NAME), 'qcow2', 64 << 20)
    assert (base / NAME).read_bytes() == image_file.read_bytes()


@pytest.mark.parametrize(('disk_format', 'made_as'), [('raw', 'raw'), ('vdi', 'vdi'), ('vhd', 'vpc'), ('vhdx', 'vhdx'),
                                                      ('vmdk', 'vmdk')])
def test_other_formats_become_raw(base: Path, tmp_path: Path, disk_format: str, made_as: str) -> None:
    found = fetch(base, make_image(tmp_path / 'image', made_as, '8M'), disk_format, force_raw=False)
    assert found.format == 'raw' and found.virtual_size >= 8 << 20


@pytest.mark.parametrize(('disk_format', 'made_as', 'said'), [
    ('raw', 'qcow2', "content is qcow2, its disk format says 'raw'"),
    ('qcow2', 'raw', "content is raw, its disk format says 'qcow2'"),
    ('ploop', 'raw', "'ploop' can not be booted"), (None, 'raw', "'None' can not be booted")])
def test_content_must_be_what_the_record_says(base: Path, tmp_path: Path, disk_format: str, made_as: str,
                                              said: str) -> None:
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
    threads = [threading.Thread(target=lambda: found.append(cache.image('image-1', image_meta(), slowly)))
               for _boot in range(8)]
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
    before = Path(found.path).stat().st_mtime_ns
    assert (found.format, found.virtual_size) == ('raw', 1 << 20)
    assert cache.blank('swap_1', 1 << 20, 'mkswap', '-q') == found
    assert Path(found.path).stat().st_mtime_ns == before
    assert b'SWAPSPACE2' in Path(found.path).read_bytes()
