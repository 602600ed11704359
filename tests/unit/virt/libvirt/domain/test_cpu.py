from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.cpu import CpuConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text

TOPOLOGY = '<topology sockets="2" cores="1" threads="1"/>'


@pytest.mark.parametrize(('settings', 'cpu'), [
    ({}, f'<cpu mode="host-model" match="exact">{TOPOLOGY}</cpu>'),
    ({'arch': 'aarch64'}, f'<cpu mode="host-passthrough">{TOPOLOGY}</cpu>'),
    ({'cpu_mode': 'host-passthrough'}, f'<cpu mode="host-passthrough">{TOPOLOGY}</cpu>'),
    ({'cpu_mode': 'none'}, f'<cpu>{TOPOLOGY}</cpu>'),
    ({'cpu_mode': 'custom', 'cpu_model': 'Haswell', 'cpu_flags': (('pcid', 'require'),)},
     f'<cpu mode="custom" match="exact"><model>Haswell</model>{TOPOLOGY}<feature name="pcid" policy="require"/></cpu>'),
    ({'domain_type': 'test'}, '')])
def test_cpu(configure: Configure, settings: dict[str, Any], cpu: str) -> None:
    """Row 1.41."""
    domain = configure(CpuConfigurator(), settings=settings, flavor={'vcpus': 2})
    assert domain.findtext('vcpu') == '2'
    assert text(domain.find('cpu')) == cpu
