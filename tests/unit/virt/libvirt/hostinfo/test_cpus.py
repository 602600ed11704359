"""CPUs of guests by libvirt: their features, and whether the host has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova.virt.libvirt.hostinfo import cpus

HOST_MODEL = """<domainCapabilities><cpu><mode name='host-passthrough' supported='yes'/>
  <mode name='host-model' supported='{supported}'><model fallback='forbid'>EPYC</model>
    <feature policy='require' name='vaes'/><feature policy='disable' name='monitor'/></mode></cpu>
</domainCapabilities>"""


class Told:
    """A libvirt that knows one model."""

    def __init__(self, supported: str = 'yes') -> None:
        self.supported = supported
        self.asked: list[tuple[str | None, list[str | None]]] = []

    def domain_capabilities(self, arch: str, machine: str, virt_type: str) -> str:
        if machine != 'pc':
            raise libvirt.libvirtError('no such machine')
        return HOST_MODEL.format(supported=self.supported)

    def do(self, act: Callable[[Any], Any]) -> Any:
        return act(self)

    def baselineCPU(self, described: list[str], flags: int) -> str:  # noqa: N802 - its name
        assert flags == libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES
        cpu = ElementTree.fromstring(described[0])
        more = [one.get('name') for one in cpu.iterfind('feature')]
        self.asked.append((cpu.findtext('model'), more))
        if cpu.findtext('model') != 'EPYC':
            raise libvirt.libvirtError('unknown CPU model')
        found = ''.join(f"<feature policy='require' name='{name}'/>" for name in ('avx2', 'monitor', *more))
        return f"<cpu><model>EPYC</model>{found}<feature policy='disable' name='svm'/></cpu>"


def test_features_of_a_model() -> None:
    told: Any = Told()
    assert cpus.features(told, 'x86_64', 'EPYC') == {'avx2', 'monitor'}
    assert cpus.features(told, 'x86_64', 'nosuch') == set()


@pytest.mark.parametrize(
    ('supported', 'machine', 'found'), [('yes', 'pc', {'avx2', 'vaes'}), ('no', 'pc', set()), ('yes', 'q35', set())]
)
def test_features_of_the_hosts_own(supported: str, machine: str, found: set[str]) -> None:
    told: Any = Told(supported)
    assert cpus.of_host_model(told, 'x86_64', machine, 'kvm') == found
    assert told.asked == ([('EPYC', ['vaes'])] if found else [])


@pytest.mark.parametrize(
    ('answer', 'why'), [(None, None), (libvirt.libvirtError('unknown CPU model'), 'unknown CPU model')]
)
def test_models_that_guests_can_not_have(answer: Exception | None, why: str | None) -> None:
    class Compared:
        def do(self, act: Callable[[Any], Any]) -> Any:
            return act(self)

        def compareHypervisorCPU(self, *asked: Any) -> int:  # noqa: N802 - its name
            assert asked[:4] == (None, 'x86_64', 'pc', 'kvm') and '<model>EPYC</model>' in asked[4]
            if answer is not None:
                raise answer
            return int(libvirt.VIR_CPU_COMPARE_SUPERSET)

    told: Any = Compared()
    assert cpus.lacks(told, 'EPYC', 'x86_64', 'pc', 'kvm') == why
