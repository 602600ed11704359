"""The table of extra specs (2.86)."""

from __future__ import annotations

import ast
import contextlib
import itertools
import pathlib
import re
from collections.abc import Iterator
from importlib import metadata

import pytest
import stevedore
from hypothesis import given
from hypothesis import strategies as st

import kilonova
from kilonova.api.schemas import extra_specs
from kilonova.virt.hardware import topology, tuning

DISK = [
    f'quota:disk_{what}_{unit}_sec{burst}'
    for what, unit, burst in itertools.product(
        ('read', 'write', 'total'), ('bytes', 'iops'), ('', '_max', '_max_length')
    )
]


OF_ADDRESSES = [
    ('hw:maxphysaddr_mode', 'wide'),
    ('hw:maxphysaddr_bits', '31'),
    ('hw:maxphysaddr_bits', '53'),
    ('hw:maxphysaddr_bits', '65'),
    ('hw:maxphysaddr_bits', 'wide'),
    ('hw:maxphysaddr_bits', '9' * 400),
]


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('hw:maxphysaddr_mode', 'emulate'),
        ('hw:maxphysaddr_mode', 'passthrough'),
        ('hw:maxphysaddr_bits', '32'),
        ('hw:maxphysaddr_bits', '52'),
        ('hw:cpu_policy', 'dedicated'),
        ('hw:numa_nodes', '2'),
        ('hw:numa_cpus.0', '0-3,^2'),
        ('hw:numa_mem.1', '1024'),
        ('hw:mem_page_size', '2MB'),
        ('hw:mem_page_size', 'large'),
        ('hw:boot_menu', 'yes'),
        ('resources:VCPU', '2'),
        ('resources1:CUSTOM_X', '1'),
        ('resources_A:VGPU', '1'),
        ('resources-b:PGPU', '1'),
        ('trait:HW_CPU_X86_VMX', 'required'),
        ('trait_A:CUSTOM_X', 'forbidden'),
        ('trait1:COMPUTE_NODE', 'required'),
        ('group_policy', 'isolate'),
        ('quota:cpu_quota', '-1'),
        ('quota:cpu_shares', '1'),
        ('quota:cpu_shares', '262144'),
        ('quota:cpu_quota', '-99999'),
        ('quota:cpu_quota', str(2**44 - 1)),
        ('quota:cpu_period', '1000'),
        ('quota:vif_inbound_peak', '1'),
        ('quota:vif_outbound_average', '1'),
        ('quota:disk_read_bytes_sec', '1'),
        ('quota:disk_total_iops_sec_max', '1'),
        ('quota:disk_write_bytes_sec_max_length', '1'),
        ('hw:pmu', 'False'),
        ('hw:redirected_usb_ports', '2'),
        ('hw:sound_model', 'virtio'),
        ('hw:usb_model', 'qemu-xhci'),
        ('hw:cpu_dedicated_mask', '1-3,^2'),
        ('hw:cpu_realtime_mask', '^0'),
        ('hw:cpu_thread_policy', 'require'),
        ('hw:emulator_threads_policy', 'share'),
        ('hw:ephemeral_encryption_format', 'luks'),
        ('hw:locked_memory', 'on'),
        ('hw:mem_encryption', 'true'),
        ('hw:mem_encryption_model', 'amd-sev-snp'),
        ('hw:pmem', '6GB,SMALL'),
        ('hw:serial_port_count', '0'),
        ('hw:tpm_model', 'tpm-crb'),
        ('hw:tpm_version', '2.0'),
        ('hw:tpm_secret_security', 'deployment'),
        ('hw:vif_multiqueue_enabled', '1'),
        ('hw:viommu_model', 'auto'),
        ('hw:virtio_packed_ring', 'true'),
        ('hw:watchdog_action', 'reset'),
        ('hw:hide_hypervisor_id', 'true'),
        ('hide_hypervisor_id', 'true'),
        ('hw_rng:rate_bytes', '10'),
        ('hw_rng:rate_period', '1000'),
        ('hw:cpu_sockets', '2'),
        ('pci_passthrough:alias', 'a:1, b:2'),
        ('accel:device_profile', 'gpu'),
        ('os:secure_boot', 'required'),
        ('hw:pci_numa_affinity_policy', 'socket'),
        ('hw_rng:allowed', 'True'),
        ('hw_video:ram_max_mb', '64'),
        ('aggregate_instance_extra_specs:ssd', 'true'),
        ('capabilities:hypervisor_type', 's== QEMU'),
        ('anything', 'x'),
        ('custom:key', 'x'),
        ('traits:x', 'y'),
        ('hw:cpu_max_threads', '1'),
    ],
)
def test_good_specs(key, value):
    assert extra_specs.check({key: value}) is None


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('hw:cpu_policy', 'x'),
        ('hw:numa_nodes', '0'),
        ('hw:numa_nodes', 'x'),
        ('hw:numa_cpus.x', '0'),
        ('hw:boot_menu', 'maybe'),
        ('resources:vcpu', '1'),
        ('resources:VCPU', '-1'),
        ('trait:HW', 'maybe'),
        ('group_policy', 'x'),
        ('quota:nosuch', '1'),
        ('os:nosuch', '1'),
        ('hw_rng:nosuch', '1'),
        ('accel:x', '1'),
        ('pci_passthrough:nosuch', 'a:1'),
        ('hw:mem_page_size', '2 horses'),
        ('hw:cpu_quota', '1'),
        ('resources:NOSUCH', '1'),
        ('trait:NOSUCH', 'required'),
        ('hw:redirected_usb_ports', '16'),
        ('os:secure_boot', 'x'),
        ('hide_hypervisor_id', 'maybe'),
        ('hw:pmu', ''),
        ('quota:disk_read_bytes_sec_length', '1'),
        ('quota:cpu_shares', '0'),
        ('quota:cpu_shares', '262145'),
        ('quota:cpu_period', '999'),
        ('quota:cpu_period', '1000001'),
        ('quota:cpu_quota', '0'),
        ('quota:cpu_quota', '999'),
        ('quota:cpu_quota', str(2**44)),
        ('quota:disk_read_iops_sec', str(10**15 + 1)),
        ('hw:serial_port_count', '5'),
        ('hw_rng:rate_bytes', str(2**32)),
        ('hw:viommu_model', 'amd'),
        ('hw:tpm_secret_security', 'x'),
        ('hw:watchdog_action', 'x'),
        *OF_ADDRESSES,
    ],
)
def test_bad_specs(key, value):
    with pytest.raises(extra_specs.InvalidExtraSpec, match=r'^Validation failed; '):
        extra_specs.check({key: value})


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=40), max_size=3))
def test_nothing_else_is_raised(values):
    with contextlib.suppress(extra_specs.InvalidExtraSpec):
        assert extra_specs.check(values) is None


def test_operators_add_rows_of_their_own(monkeypatch):
    """Validators of extra specs are found by their entry points. Those of operators check like ours."""

    def rows():
        return [extra_specs.Spec(r'acme:speed', lambda value: None if value.isdigit() else f"'{value}' is no speed.")]

    def plugin(name, function):
        return stevedore.extension.Extension(
            name, metadata.EntryPoint(name, 'm:f', extra_specs.NAMESPACE), function, function()
        )

    found = stevedore.ExtensionManager.make_test_instance([plugin('acme', rows)], namespace=extra_specs.NAMESPACE)
    asked = []
    monkeypatch.setattr(stevedore, 'ExtensionManager', lambda *args, **kwargs: asked.append((args, kwargs)) or found)
    extra_specs._table.cache_clear()
    try:
        assert extra_specs.check({'acme:speed': '1', 'other:speed': 'x', 'hw:pmu': 'no'}) is None
        with pytest.raises(extra_specs.InvalidExtraSpec, match="Validation failed; 'fast' is no speed"):
            extra_specs.check({'acme:speed': 'fast'})
        with pytest.raises(extra_specs.InvalidExtraSpec, match="extra spec 'acme:sped' does not appear"):
            extra_specs.check({'acme:sped': '1'})
    finally:
        extra_specs._table.cache_clear()
    ((args, kwargs),) = asked
    assert args == ('kilonova.api.extra_spec_validators',) and kwargs['invoke_on_load'] is True


def test_a_validator_that_does_not_load_is_told_and_left_out(monkeypatch, caplog):
    """A validator of extra specs that does not load is logged with the reason and left out. The other checks go on."""
    manager = stevedore.ExtensionManager

    def broken(namespace, *, invoke_on_load, on_load_failure_callback):
        entry_point = metadata.EntryPoint('broken', 'nosuch:rows', namespace)
        on_load_failure_callback(None, entry_point, ImportError('No module named nosuch'))
        return manager.make_test_instance([], namespace=namespace)

    monkeypatch.setattr(stevedore, 'ExtensionManager', broken)
    extra_specs._table.cache_clear()
    try:
        assert extra_specs.check({'acme:speed': 'fast'}) is None
    finally:
        extra_specs._table.cache_clear()
    assert 'Extra spec validator broken could not be loaded: No module named nosuch' in caplog.text


@pytest.mark.parametrize(
    'specs',
    [
        {'pci_passthrough:alias': 'a:99999999999'},
        {'pci_passthrough:alias': 'a:200,b:57'},
        {'hw:cpu_dedicated_mask': '1' + ',1-2' * 60 + '!'},
        {'hw:numa_cpus.0': '1' + ',1-2' * 60 + '!'},
        {'hw:cpu_realtime_mask': '^1' + ',1-2' * 60 + '!'},
    ],
)
def test_values_that_would_cost_too_much(specs):
    """A value is refused if it asks for too many devices or would make a regular expression backtrack for long."""
    with pytest.raises(extra_specs.InvalidExtraSpec):
        extra_specs.check(specs)


# --- each name that means something here passes ----------------------------------------------------------------------
SOURCES = pathlib.Path(kilonova.__file__).parent
NAME = re.compile(r'(accel|hw|hw_rng|hw_video|os|pci_passthrough|quota):[a-z0-9_.]+')
# Names of other things: keys of bodies of requests.
NO_SPECS = {'os:scheduler_hints'}
# The beginnings of names that the code puts together, and what the names are.
MADE = {
    'hw:': ['hw:numa_cpus.0', 'hw:numa_mem.0'],
    'hw:cpu_': [f'hw:cpu_{part}' for part in topology.PARTS],
    'hw:cpu_max_': [f'hw:cpu_max_{part}' for part in topology.PARTS],
    'quota:cpu_': [f'quota:cpu_{part}' for part in tuning.CPU_LIMITS],
    'quota:disk_': DISK,
    'quota:disk_total_': DISK,
}


def literals() -> Iterator[ast.expr]:
    """The texts of the package, and the parts of texts that are put together."""
    for path in sorted(SOURCES.rglob('*.py')):
        if path.name == 'extra_specs.py':
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                yield node


def test_each_name_that_the_code_reads_is_known_found_1_14():
    """What the driver, the scheduler or the API reads may be set, at every version."""
    rows = [re.compile(spec.name) for spec in extra_specs.SPECS]
    read, begun = set(), set()
    for node in literals():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            read.add(node.value)
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            text = str(node.values[0].value)
            begin = re.fullmatch(r'(?:accel|hw|hw_rng|hw_video|os|pci_passthrough|quota):[a-z0-9_.]*', text)
            if begin is not None:
                begun.add(text)
    # A beginning is a whole constant, too.
    read -= {name for name in read if name in begun}
    assert len(read) > 25 and {'hw:maxphysaddr_bits', 'pci_passthrough:alias', 'accel:device_profile'} <= read
    assert begun == MADE.keys()
    assert all(tuning._DISK.fullmatch(name) for name in DISK)
    names = read - NO_SPECS | {name for made in MADE.values() for name in made}
    assert [name for name in sorted(names) if not any(row.fullmatch(name) for row in rows)] == []


def test_each_name_in_the_guides_is_known_found_1_14():
    rows = [re.compile(spec.name) for spec in extra_specs.SPECS]
    pages = (SOURCES.parent / 'docs' / 'admin').glob('*.md')
    names = {found[1] for page in pages for found in re.finditer(rf'`(({NAME.pattern}))(?==|`)', page.read_text())}
    assert len(names) > 25
    assert [name for name in sorted(names - NO_SPECS) if not any(row.fullmatch(name) for row in rows)] == []
