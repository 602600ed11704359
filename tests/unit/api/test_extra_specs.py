"""The table of extra specs (2.86)."""
from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.api.schemas import extra_specs


@pytest.mark.parametrize(('key', 'value'), [
    ('hw:cpu_policy', 'dedicated'), ('hw:numa_nodes', '2'), ('hw:numa_cpus.0', '0-3,^2'), ('hw:numa_mem.1', '1024'),
    ('hw:mem_page_size', '2MB'), ('hw:mem_page_size', 'large'), ('hw:boot_menu', 'yes'),
    ('resources:VCPU', '2'), ('resources1:CUSTOM_X', '1'), ('resources_A:VGPU', '1'), ('trait:HW_CPU', 'required'),
    ('trait_A:HW', 'forbidden'), ('group_policy', 'isolate'), ('quota:cpu_quota', '-1'),
    ('quota:vif_inbound_peak', '1'),
    ('pci_passthrough:alias', 'a:1, b:2'), ('accel:device_profile', 'gpu'), ('os:secure_boot', 'required'),
    ('hw:pci_numa_affinity_policy', 'socket'), ('hw_rng:allowed', 'True'), ('hw_video:ram_max_mb', '64'),
    ('aggregate_instance_extra_specs:ssd', 'true'), ('capabilities:hypervisor_type', 's== QEMU'), ('anything', 'x'),
    ('custom:key', 'x'), ('hw:cpu_max_threads', '1'), ('hw:maxphysaddr_bits', '42')])
def test_good_specs(key, value):
    assert extra_specs.check({key: value}) is None


@pytest.mark.parametrize(('key', 'value'), [
    ('hw:cpu_policy', 'x'), ('hw:numa_nodes', '0'), ('hw:numa_nodes', 'x'), ('hw:numa_cpus.x', '0'),
    ('hw:boot_menu', 'maybe'), ('resources:vcpu', '1'), ('resources:VCPU', '-1'), ('trait:HW', 'maybe'),
    ('group_policy', 'x'), ('quota:nosuch', '1'), ('os:nosuch', '1'), ('hw_rng:nosuch', '1'), ('accel:x', '1'),
    ('pci_passthrough:nosuch', 'a:1'), ('hw:mem_page_size', '2 horses'), ('hw:maxphysaddr_bits', '65'),
    ('hw:cpu_quota', '1')])
def test_bad_specs(key, value):
    with pytest.raises(extra_specs.InvalidExtraSpec, match=r'^Validation failed; '):
        extra_specs.check({key: value})


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=40), max_size=3))
def test_nothing_else_is_raised(values):
    with contextlib.suppress(extra_specs.InvalidExtraSpec):
        assert extra_specs.check(values) is None
