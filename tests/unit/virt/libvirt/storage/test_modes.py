"""Disks, cached images and config drives are readable only by their owner, also while they are being made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from kilonova.virt import command
from kilonova.virt.libvirt.snapshots import Copy
from kilonova.virt.libvirt.storage import configdrive, disk, files
from kilonova.virt.libvirt.storage.cache import ImageCache
from kilonova.virt.libvirt.storage.configdrive import Format
from tests.unit.virt.builders import image_meta, make_image


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path | str) -> int:
    return os.stat(path).st_mode & 0o777


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """{name of a file: the mode that it had when it was renamed}."""
    found: dict[str, int] = {}
    replace = os.replace

    def watched(source: str, target: str) -> None:
        found[os.path.basename(source)] = mode(source)
        replace(source, target)

    monkeypatch.setattr(os, 'replace', watched)
    return found


def leave(path: Path) -> Path:
    """What an earlier try, or an earlier release, left half done."""
    path.touch()
    path.chmod(0o644)
    return path


MAKERS: dict[str, Callable[[str, disk.BaseFile], None]] = {
    'overlay': lambda path, base: disk.create_overlay(path, base, 1 << 30),
    'copy': lambda path, base: disk.create_copy(path, base, 1 << 30),
    'blank': lambda path, base: disk.create_blank(path, 1 << 20),
    'config drive': lambda path, base: configdrive.build(path, {'openstack/a': b'secret'}, Format()),
    'config drive that is a disk': lambda path, base: configdrive.build(
        path, {'openstack/a': b'secret'}, Format('vfat')
    ),
}


@pytest.mark.parametrize('maker', MAKERS)
@pytest.mark.parametrize('format_', ['raw', 'qcow2'])
def test_disks(tmp_path: Path, seen: dict[str, int], maker: str, format_: str) -> None:
    base = disk.look_at_base(str(make_image(tmp_path / 'base', format_, '8M')))
    os.chmod(base.path, 0o644)
    leave(tmp_path / 'disk')
    leave(tmp_path / 'disk.new')
    MAKERS[maker](str(tmp_path / 'disk'), base)
    assert mode(tmp_path / 'disk') == 0o600 and seen.pop('disk.new') == 0o600 and set(seen.values()) <= {0o600}


@pytest.mark.parametrize(('format_', 'programs'), [('iso9660', 1), ('vfat', 2)])
def test_a_config_drive_is_never_open_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, programs: int
) -> None:
    """Neither the file nor what it is made of, at the moment in which both are there."""
    run, looks = command.run, []

    def watched(*argv: str) -> str:
        done = run(*argv)
        (scratch,) = tmp_path.glob('.configdrive-*')
        looks.append(({mode(path) for path in tmp_path.glob('disk.config*')}, mode(scratch), ' '.join(argv)))
        return done

    monkeypatch.setattr(command, 'run', watched)
    configdrive.build(str(tmp_path / 'disk.config'), {'openstack/latest/user_data': b'hunter2'}, Format(format_))
    assert len(looks) == programs
    for drives, scratch, line in looks:
        assert (drives, scratch) == ({0o600}, 0o700) and 'hunter2' not in line
    assert os.listdir(tmp_path) == ['disk.config']


@pytest.mark.parametrize(('made_as', 'force_raw'), [('qcow2', True), ('qcow2', False), ('raw', True)])
def test_cached_images(tmp_path: Path, seen: dict[str, int], made_as: str, force_raw: bool) -> None:
    image = make_image(tmp_path / 'image', made_as, '8M')
    downloads = []

    def download(_: str, stream: IO[bytes]) -> None:
        downloads.append(os.fstat(stream.fileno()).st_mode & 0o777)
        stream.write(image.read_bytes())

    cache = ImageCache(str(tmp_path / '_base'), files.FileLocks(str(tmp_path / 'locks')), force_raw=force_raw)
    base = cache.image('image-1', image_meta(disk_format=made_as), download)
    assert mode(base.path) == 0o600 and downloads == [0o600] and set(seen.values()) == {0o600}
    assert mode(cache.blank('ephemeral_1', 1 << 20).path) == 0o600
    assert {mode(path) for path in (tmp_path / 'locks').iterdir()} == {0o600}


def test_copies_for_images(tmp_path: Path) -> None:
    original = make_image(tmp_path / 'disk', 'qcow2', '8M')
    original.chmod(0o644)
    made = Copy(str(tmp_path / 'snapshots'), 'image-1', 'qcow2')
    made.hold()
    made.copy(str(original), lambda: None)
    assert {path.name: mode(path) for path in (tmp_path / 'snapshots' / 'image-1').iterdir()} == {
        'held': 0o600,
        'disk': 0o600,
    }
    made.flatten('qcow2', lambda: None)
    assert mode(made.path) == 0o600
