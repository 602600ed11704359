"""What is read from a directory in the form of /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.pci import sysfs


@pytest.mark.parametrize(
    ('name', 'port', 'found'),
    [
        ('enp1s0npf0vf3', 'pf0vf3', True),
        ('enp1s0np0', 'p0', False),
        ('enp1s0v3', None, False),
        ('../net/enp1s0npf0vf3', 'pf0vf3', False),
    ],
)
def test_representors_are_known_by_the_name_of_their_port(
    tmp_path: Path, name: str, port: str | None, found: bool
) -> None:
    """A name that leads elsewhere is no interface."""
    interface = tmp_path / 'class' / 'net' / name.rpartition('/')[2]
    interface.mkdir(parents=True)
    if port is not None:
        (interface / 'phys_port_name').write_text(f'{port}\n')
    assert sysfs.is_representor(name, str(tmp_path)) is found
