from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.features import FeaturesConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text


@pytest.mark.parametrize(('asked', 'features'), [
    ({}, ['acpi', 'apic', 'vmcoreinfo']),
    ({'settings': {'arch': 'aarch64'}}, ['acpi', 'vmcoreinfo']),
    ({'settings': {'virt_type': 'lxc'}}, []),
    ({'settings': {'arch': 's390x'}}, []),
    ({'extra_specs': {'hw:hide_hypervisor_id': 'true'}}, ['acpi', 'apic', 'vmcoreinfo', 'kvm']),
    ({'properties': {'img_hide_hypervisor_id': 'yes'}}, ['acpi', 'apic', 'vmcoreinfo', 'kvm']),
    ({'properties': {'os_type': 'windows'}}, ['acpi', 'apic', 'vmcoreinfo', 'hyperv']),
    # Finding 4.2: QEMU without KVM refuses to start with any of them.
    ({'properties': {'os_type': 'windows'}, 'settings': {'virt_type': 'qemu'}}, ['acpi', 'apic', 'vmcoreinfo']),
    ({'extra_specs': {'hw:pmu': 'False'}}, ['acpi', 'apic', 'vmcoreinfo', 'pmu'])])
def test_features(configure: Configure, asked: dict[str, Any], features: list[str]) -> None:
    found = configure(FeaturesConfigurator(), **asked).find('features')
    assert [feature.tag for feature in (found if found is not None else [])] == features


def test_pmu_off(configure: Configure) -> None:
    domain = configure(FeaturesConfigurator(), properties={'hw_pmu': 'false'})
    assert text(domain.find('features/pmu')) == '<pmu state="off"/>'


@pytest.mark.parametrize('hidden', [True, False])
def test_windows(configure: Configure, hidden: bool) -> None:
    domain = configure(FeaturesConfigurator(), properties={'os_type': 'windows'},
                       extra_specs={'hw:hide_hypervisor_id': str(hidden)})
    hyperv = domain.find('features/hyperv')
    assert hyperv is not None
    assert text(hyperv.find('spinlocks')) == '<spinlocks state="on" retries="8191"/>'
    assert (hyperv.find('vendor_id') is not None) is hidden
