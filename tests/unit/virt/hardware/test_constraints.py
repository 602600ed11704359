"""What flavors and images ask of NUMA cells, CPUs and pages, and what is refused (always with 400)."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.objects import Flavor
from kilonova.objects.image_meta import ImageMetaProps
from kilonova.virt.hardware import constraints as asked

DEDICATED = {'hw:cpu_policy': 'dedicated'}
TWO = {'hw:numa_nodes': '2'}


def topology(specs: dict[str, str], image: dict[str, Any] | None = None, vcpus: int = 4, memory_mb: int = 4096) -> Any:
    return asked.of(Flavor(vcpus=vcpus, memory_mb=memory_mb, extra_specs=specs), ImageMetaProps.from_dict(image or {}))


def cells(*args: Any, **kwargs: Any) -> list[tuple[set[int], set[int], int]]:
    return [(set(cell.cpuset), set(cell.pcpuset), cell.memory) for cell in topology(*args, **kwargs).cells]


@pytest.mark.parametrize(
    ('specs', 'image'),
    [
        ({}, {}),
        ({'hw:cpu_policy': 'shared'}, {}),
        ({'hw:emulator_threads_policy': 'share'}, {}),
        ({'hw:numa_cpus.0': '0'}, {}),
        ({'hw:cpu_sockets': '2'}, {'hw_cpu_policy': 'shared'}),
    ],
)
def test_nothing_is_asked_for(specs: dict[str, str], image: dict[str, str]) -> None:
    assert topology(specs, image) is None


def test_cells_share_evenly_or_as_told() -> None:
    assert cells(TWO) == [({0, 1}, set(), 2048), ({2, 3}, set(), 2048)]
    assert cells({}, {'hw_numa_nodes': '2'}) == cells(TWO)
    told = {'hw:numa_cpus.0': '0-2', 'hw:numa_mem.0': '1024', 'hw:numa_cpus.1': '3', 'hw:numa_mem.1': '3072'}
    assert cells({**TWO, **told}) == [({0, 1, 2}, set(), 1024), ({3}, set(), 3072)]
    assert cells({}, {'hw_numa_nodes': '2', **{key.replace(':', '_'): value for key, value in told.items()}}) == cells(
        {**TWO, **told}
    )


def test_dedicated_cpus() -> None:
    assert cells(DEDICATED) == cells({}, {'hw_cpu_policy': 'dedicated'}) == [(set(), {0, 1, 2, 3}, 4096)]
    assert cells({**DEDICATED, **TWO}) == [(set(), {0, 1}, 2048), (set(), {2, 3}, 2048)]
    assert cells({'resources:PCPU': '4'}) == cells(DEDICATED)
    found = topology({**DEDICATED, 'hw:cpu_thread_policy': 'require', 'hw:emulator_threads_policy': 'isolate'})
    assert (found.cells[0].cpu_policy, found.cells[0].cpu_thread_policy, found.emulator_threads_policy) == (
        'dedicated',
        'require',
        'isolate',
    )
    assert asked.dedicated_cpus(found) == 5
    assert topology(DEDICATED, {'hw_cpu_thread_policy': 'isolate'}).cells[0].cpu_thread_policy == 'isolate'


@pytest.mark.parametrize('mask', ['1', '^0,^2,^3', '1-1'])
def test_mixed_cpus(mask: str) -> None:
    specs = {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': mask}
    assert cells(specs) == [({0, 2, 3}, {1}, 4096)]
    found = topology({**specs, **TWO})
    assert [(set(cell.cpuset), set(cell.pcpuset)) for cell in found.cells] == [({0}, {1}), ({2, 3}, set())]
    assert (asked.dedicated_cpus(found), asked.shared_cpus(Flavor(vcpus=4), found)) == (1, 3)


REALTIME = {'hw:cpu_policy': 'dedicated', 'hw:cpu_realtime': 'yes'}


@pytest.mark.parametrize(
    ('specs', 'image', 'found'),
    [
        ({**DEDICATED, 'hw:cpu_realtime_mask': '^0'}, {}, set()),
        ({'hw:cpu_realtime': 'no'}, {}, set()),
        ({**REALTIME, 'hw:cpu_realtime_mask': '^0'}, {}, {1, 2, 3}),
        ({**REALTIME, 'hw:cpu_realtime_mask': '2-3'}, {}, {2, 3}),
        ({**REALTIME, 'hw:cpu_realtime_mask': '^0'}, {'hw_cpu_realtime_mask': '^0-1'}, {2, 3}),
        ({**REALTIME, 'hw:emulator_threads_policy': 'share'}, {}, {0, 1, 2, 3}),
        ({**REALTIME, 'hw:emulator_threads_policy': 'isolate', 'hw:cpu_realtime_mask': '0-3'}, {}, {0, 1, 2, 3}),
        ({**REALTIME, 'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '1-3', 'hw:cpu_realtime_mask': '3'}, {}, {3}),
    ],
)
def test_realtime_cpus(specs: dict[str, str], image: dict[str, str], found: set[int]) -> None:
    assert asked.realtime(specs, 4, ImageMetaProps.from_dict(image)) == found
    topology(specs, image)


def test_realtime_cpus_of_a_mixed_guest_are_its_dedicated_ones() -> None:
    specs = {**REALTIME, 'hw:cpu_policy': 'mixed'}
    assert cells({**specs, 'hw:cpu_realtime_mask': '^0'}) == [({0}, {1, 2, 3}, 4096)]
    assert cells(specs, {'hw_cpu_realtime_mask': '3'}) == [({0, 1, 2}, {3}, 4096)]


@pytest.mark.parametrize(
    ('flavor', 'image', 'size'),
    [
        ('small', None, asked.SMALL),
        ('large', None, asked.LARGE),
        ('any', None, asked.ANY),
        ('2048', None, 2048),
        ('2MB', None, 2048),
        ('1G', None, 1048576),
        ('4KiB', None, 4),
        ('16777216b', None, 2048),
        ('large', '1048576', 1048576),
        ('any', 'small', asked.SMALL),
    ],
)
def test_page_sizes(flavor: str, image: str | None, size: int) -> None:
    found = topology({'hw:mem_page_size': flavor}, {'hw_mem_page_size': image} if image else {})
    assert [cell.pagesize for cell in found.cells] == [size]


@pytest.mark.parametrize(
    ('flavor', 'image', 'policy'),
    [
        ('dedicated', 'shared', 'dedicated'),
        (None, 'dedicated', 'dedicated'),
        ('shared', 'shared', 'shared'),
        ('prefer', 'isolate', 'isolate'),
        ('require', 'require', 'require'),
        (None, 'prefer', 'prefer'),
    ],
)
def test_flavor_before_image(flavor: str | None, image: str, policy: str) -> None:
    thread = image in ('isolate', 'require', 'prefer')
    name, read = ('cpu_thread_policy', asked.cpu_thread_policy) if thread else ('cpu_policy', asked.cpu_policy)
    specs = {f'hw:{name}': flavor} if flavor else {}
    assert read(specs, ImageMetaProps.from_dict({f'hw_{name}': image})) == policy


REFUSED: list[tuple[dict[str, str], dict[str, str], type[Exception]]] = [
    ({'hw:numa_nodes': '0'}, {}, asked.InvalidNUMANodesNumber),
    ({'hw:numa_nodes': 'two'}, {}, asked.InvalidNUMANodesNumber),
    ({'hw:numa_nodes': '3'}, {}, asked.ImageNUMATopologyAsymmetric),
    (TWO, {'hw_numa_nodes': '2'}, asked.ImageNUMATopologyForbidden),
    ({**TWO, 'hw:numa_cpus.0': '0-3'}, {}, asked.ImageNUMATopologyIncomplete),
    (
        {**TWO, 'hw:numa_cpus.0': '0-1', 'hw:numa_cpus.1': '2-3', 'hw:numa_mem.0': '4096'},
        {},
        asked.ImageNUMATopologyIncomplete,
    ),
    (
        {'hw:numa_nodes': '1', 'hw:numa_cpus.0': '0-4', 'hw:numa_mem.0': '4096'},
        {},
        asked.ImageNUMATopologyCPUOutOfRange,
    ),
    (
        {'hw:numa_nodes': '1', 'hw:numa_cpus.0': '0-2', 'hw:numa_mem.0': '4096'},
        {},
        asked.ImageNUMATopologyCPUsUnassigned,
    ),
    (
        {**TWO, 'hw:numa_cpus.0': '0-2', 'hw:numa_mem.0': '2048', 'hw:numa_cpus.1': '2-3', 'hw:numa_mem.1': '2048'},
        {},
        asked.ImageNUMATopologyCPUDuplicates,
    ),
    (
        {'hw:numa_nodes': '1', 'hw:numa_cpus.0': '0-3', 'hw:numa_mem.0': '4095'},
        {},
        asked.ImageNUMATopologyMemoryOutOfRange,
    ),
    ({'hw:numa_nodes': '1', 'hw:numa_cpus.0': 'x', 'hw:numa_mem.0': '4096'}, {}, asked.InvalidNUMAValue),
    ({'hw:numa_nodes': '1', 'hw:numa_cpus.0': '0-3', 'hw:numa_mem.0': 'x'}, {}, asked.InvalidNUMAValue),
    ({'hw:cpu_policy': 'sometimes'}, {}, asked.InvalidCPUAllocationPolicy),
    ({'hw:cpu_policy': 'shared'}, {'hw_cpu_policy': 'dedicated'}, asked.ImageCPUPinningForbidden),
    ({**DEDICATED, 'hw:cpu_thread_policy': 'never'}, {}, asked.InvalidCPUThreadAllocationPolicy),
    (
        {**DEDICATED, 'hw:cpu_thread_policy': 'isolate'},
        {'hw_cpu_thread_policy': 'require'},
        asked.ImageCPUThreadPolicyForbidden,
    ),
    ({'hw:cpu_thread_policy': 'require'}, {}, asked.CPUThreadPolicyConfigurationInvalid),
    ({**DEDICATED, 'hw:emulator_threads_policy': 'x'}, {}, asked.InvalidEmulatorThreadsPolicy),
    ({'hw:emulator_threads_policy': 'isolate'}, {}, asked.BadRequirementEmulatorThreadsPolicy),
    ({'hw:cpu_policy': 'mixed'}, {}, asked.RequiredMixedOrRealtimeCPUMask),
    ({'hw:cpu_policy': 'mixed', 'hw:cpu_realtime': 'yes'}, {}, asked.RequiredMixedOrRealtimeCPUMask),
    ({'hw:cpu_policy': 'mixed', 'hw:cpu_realtime_mask': '1'}, {}, asked.RequiredMixedOrRealtimeCPUMask),
    ({'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '1'}, {}, asked.RealtimeConfigurationInvalid),
    (REALTIME, {}, asked.RealtimeMaskNotFoundOrInvalid),
    ({**REALTIME, 'hw:cpu_realtime_mask': '0-3'}, {}, asked.RealtimeMaskNotFoundOrInvalid),
    ({**REALTIME, 'hw:cpu_realtime_mask': '^0-3'}, {}, asked.RealtimeMaskNotFoundOrInvalid),
    ({**REALTIME, 'hw:cpu_realtime_mask': '3-4'}, {}, asked.RealtimeMaskNotFoundOrInvalid),
    ({**REALTIME, 'hw:cpu_realtime_mask': 'some'}, {}, asked.InvalidNUMAValue),
    (
        {**REALTIME, 'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '1', 'hw:cpu_realtime_mask': '1-2'},
        {},
        asked.RealtimeMaskNotDedicated,
    ),
    ({**DEDICATED, 'hw:cpu_dedicated_mask': '1'}, {}, asked.RequiredMixedInstancePolicy),
    ({'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0-3'}, {}, asked.InvalidMixedInstanceDedicatedMask),
    ({'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0,9'}, {}, asked.ImageNUMATopologyCPUOutOfRange),
    ({**DEDICATED, 'resources:PCPU': '4'}, {}, asked.CPUResourcesConflict),
    ({**DEDICATED, 'resources:VCPU': '4'}, {}, asked.CPUResourcesConflict),
    ({'hw:mem_page_size': 'huge'}, {}, asked.MemoryPageSizeInvalid),
    ({'hw:mem_page_size': '0'}, {}, asked.MemoryPageSizeInvalid),
    ({'hw:mem_page_size': '512B'}, {}, asked.MemoryPageSizeInvalid),
    ({'hw:mem_page_size': 'small'}, {'hw_mem_page_size': '2048'}, asked.MemoryPageSizeForbidden),
    ({}, {'hw_mem_page_size': '2048'}, asked.MemoryPageSizeForbidden),
    ({'hw:locked_memory': 'true'}, {}, asked.LockMemoryForbidden),
    (
        {'hw:locked_memory': 'true', 'hw:mem_page_size': 'small'},
        {'hw_locked_memory': 'false'},
        asked.FlavorImageLockedMemoryConflict,
    ),
]


@pytest.mark.parametrize(('specs', 'image', 'error'), REFUSED, ids=[one[2].__name__ for one in REFUSED])
def test_what_is_refused(specs: dict[str, str], image: dict[str, str], error: type[Exception]) -> None:
    """Contradictory extra specs and image properties raise an error with the HTTP code 400."""
    with pytest.raises(error) as raised:
        topology(specs, image)
    assert getattr(raised.value, 'code', None) == 400


@pytest.mark.parametrize(
    'specs',
    [
        {'hw:cpu_policy': 'dedicated'},
        {'hw:numa_nodes': '1'},
        {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0'},
        {'hw:cpu_policy': 'dedicated', 'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '^0'},
    ],
)
def test_a_flavor_of_any_size_builds_no_set_of_its_cpus(specs: dict[str, str]) -> None:
    """A flavor with 2**31 - 1 vCPUs is refused before a set of its CPUs is built."""
    with pytest.raises(asked.InvalidNUMAValue):
        asked.of(Flavor(vcpus=2**31 - 1, memory_mb=1024, extra_specs=specs))
