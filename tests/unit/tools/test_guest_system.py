"""The disk of the guest that one can log in to: its partitions, and the libraries of its programs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tools.cloud.layout import CloudError
from tools.guest import system

LDD = """\tlinux-vdso.so.1 (0x00007ffd)
\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f27)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f28)
"""


def test_libraries_are_those_with_a_path() -> None:
    assert system.libraries(LDD) == [Path('/lib/x86_64-linux-gnu/libz.so.1'), Path('/lib64/ld-linux-x86-64.so.2')]


def test_the_table_of_partitions_has_two_that_touch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is active, and is where the master boot record looks; none is over another."""
    (tmp_path / 'mbr').write_bytes(b'x' * 440)
    monkeypatch.setattr(system, '_MBR', tmp_path / 'mbr')
    sector = system._first_sector()
    assert len(sector) == 512 and sector[:440] == b'x' * 440 and sector[-2:] == b'\x55\xaa'
    (boot, root) = (struct.unpack('<B3xB3xII', sector[446 + 16 * number : 462 + 16 * number]) for number in (0, 1))
    assert boot[:2] == (0x80, 0x0E) and root[:2] == (0, 0x83)
    assert boot[2] == 2048 and boot[2] + boot[3] == root[2] and root[3] == 48 * 2048


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, 'NEEDED', ('sh', 'no-such-program'))
    with pytest.raises(CloudError, match=r'not installed: no-such-program.*make bootstrap-guests'):
        system.build(tmp_path)
