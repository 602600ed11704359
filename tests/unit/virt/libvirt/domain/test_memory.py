from __future__ import annotations

from kilonova.virt.libvirt.domain.memory import MemoryConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure


def test_memory_in_kib(configure: Configure) -> None:
    """Row 1.41."""
    assert configure(MemoryConfigurator(), flavor={'memory_mb': 2048}).findtext('memory') == '2097152'
