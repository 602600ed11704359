"""Disk files, made and read by qemu-img as the judge."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import errors
from kilonova.virt import command
from kilonova.virt.libvirt.storage import disk, files
from tests.unit.virt.builders import make_image


def info(path: Path) -> dict[str, Any]:
    return json.loads(
        subprocess.run(['qemu-img', 'info', '--output=json', str(path)], check=True, capture_output=True).stdout
    )


@pytest.fixture
def base(tmp_path: Path) -> disk.BaseFile:
    return disk.look_at_base(str(make_image(tmp_path / 'base', 'raw', '4M')))


def test_overlay(tmp_path: Path, base: disk.BaseFile) -> None:
    disk.create_overlay(str(tmp_path / 'disk'), base, 1 << 30)
    seen = info(tmp_path / 'disk')
    assert (seen['format'], seen['virtual-size'], seen['backing-filename'], seen['backing-filename-format']) == (
        'qcow2',
        1 << 30,
        base.path,
        'raw',
    )
    assert disk.look(str(tmp_path / 'disk'), 'qcow2') == disk.DiskFile('qcow2', 1 << 30, base.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['base', 'disk']


def test_overlays_are_what_qemu_img_makes_and_it_makes_one_of_a_kind(
    tmp_path: Path, base: disk.BaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = disk.look_at_base(str(make_image(tmp_path / 'other', 'qcow2', '4M')))
    ran: list[str] = []
    run = command.run
    monkeypatch.setattr(command, 'run', lambda *argv: (ran.append(argv[-1]), run(*argv))[1])
    kinds = [(base, 1 << 30), (base, 2 << 40), (base, (1 << 30) + 512), (other, 1 << 30)]
    for number, (each, size) in enumerate(kinds * 2):
        path = tmp_path / f'disk{number}'
        disk.create_overlay(str(path), each, size)
        made = make_image(tmp_path / 'made', 'qcow2', str(size), '-b', each.path, '-F', each.format)
        assert path.read_bytes() == made.read_bytes(), (each, size)
        assert path.stat().st_mode & 0o777 == 0o600
    assert ran == [str(size) for _, size in kinds]
    (tmp_path / 'base').unlink()
    with pytest.raises(command.CommandFailed, match='base does not exist'):
        disk.create_overlay(str(tmp_path / 'disk'), base, 1 << 30)
    assert not (tmp_path / 'disk').exists()


@pytest.mark.parametrize('format_', ['raw', 'qcow2'])
def test_copy(tmp_path: Path, format_: str) -> None:
    base = disk.look_at_base(str(make_image(tmp_path / 'base', format_, '4M')))
    disk.create_copy(str(tmp_path / 'disk'), base, 8 << 20)
    assert disk.look(str(tmp_path / 'disk'), 'raw') == disk.DiskFile('raw', 8 << 20)
    assert (tmp_path / 'disk').stat().st_blocks < 64


def test_growing_only(tmp_path: Path, base: disk.BaseFile) -> None:
    path = str(tmp_path / 'disk')
    disk.create_overlay(path, base, 8 << 20)
    assert disk.grow(path, 'qcow2', 16 << 20) is True
    assert disk.grow(path, 'qcow2', 8 << 20) is False
    assert info(tmp_path / 'disk')['virtual-size'] == 16 << 20


def test_a_raw_disk_is_raw_whatever_its_guest_writes(tmp_path: Path) -> None:
    path = make_image(tmp_path / 'disk', 'qcow2', '1G', '-b', '/etc/passwd', '-F', 'raw')
    assert disk.look(str(path), 'raw') == disk.DiskFile('raw', path.stat().st_size)


def test_a_qcow2_that_is_none(tmp_path: Path) -> None:
    (tmp_path / 'disk').write_bytes(b'short')
    with pytest.raises(command.CommandFailed, match='is not a qcow2 file'):
        disk.look(str(tmp_path / 'disk'), 'qcow2')


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(command.CommandFailed, match=r'making an overlay failed: .*nowhere does not exist'):
        disk.create_overlay(str(tmp_path / 'disk'), disk.BaseFile(str(tmp_path / 'nowhere'), 'raw', 0), 1)
    with pytest.raises(command.CommandFailed, match=r'qemu-img create -q failed: .*no-format'):
        disk.create_empty(str(tmp_path / 'disk'), 'no-format', 1)
    assert not (tmp_path / 'disk').exists()


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(command.CommandFailed, match='no-such-program failed: the program is not installed'):
        command.run('no-such-program')


def test_limits_hold() -> None:
    with pytest.raises(command.CommandFailed):
        command.limited('sh', '-c', 'ulimit -t | grep -qx unlimited', cpu_seconds=7, address_space_gib=1)


def test_a_disk_is_made_whole(tmp_path: Path, base: disk.BaseFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the overlay and its base have, and nothing for the holes of its 64 GiB; without room it stays as it is."""
    path = tmp_path / 'disk'
    disk.create_overlay(str(path), base, 64 << 30)
    subprocess.run(['qemu-io', '-f', 'qcow2', '-c', 'write -P 0x55 1G 64k', str(path)], check=True, capture_output=True)
    subprocess.run(['qemu-img', 'convert', '-O', 'raw', str(path), str(tmp_path / 'before')], check=True)
    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, 'disk_usage', lambda path: SimpleNamespace(free=100))
        with pytest.raises(errors.NoRoom, match=r'disk: it needs \d+ bytes, 100 are free'):
            disk.flatten(str(path), [base.path])
    assert info(path)['backing-filename'] == base.path and not (tmp_path / 'disk.new').exists()
    disk.flatten(str(path), [base.path])
    assert 'backing-filename' not in info(path) and info(path)['virtual-size'] == 64 << 30
    subprocess.run(
        ['qemu-img', 'compare', '-f', 'qcow2', '-F', 'raw', str(path), str(tmp_path / 'before')],
        check=True,
        capture_output=True,
    )
    assert files.used(str(path)) < 16 << 20
