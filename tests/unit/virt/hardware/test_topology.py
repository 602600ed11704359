"""Sockets, cores and threads of a guest."""

from __future__ import annotations

import pytest

from kilonova.objects.image_meta import ImageMetaProps
from kilonova.virt.hardware import topology


def layout(vcpus: int, specs: dict[str, str], threads: int | None = None, **image: str) -> tuple[int, int, int]:
    found = topology.choose(vcpus, topology.limits_of(specs, ImageMetaProps.from_dict(image)), threads)
    return found.sockets, found.cores, found.threads


@pytest.mark.parametrize(
    ('vcpus', 'specs', 'image', 'expected'),
    [
        (8, {}, {}, (8, 1, 1)),
        (8, {'hw:cpu_sockets': '2'}, {}, (2, 4, 1)),
        (8, {'hw:cpu_cores': '2', 'hw:cpu_threads': '2'}, {}, (2, 2, 2)),
        (8, {'hw:cpu_max_sockets': '2'}, {}, (2, 4, 1)),
        (8, {'hw:cpu_max_sockets': '2', 'hw:cpu_max_cores': '2'}, {}, (2, 2, 2)),
        (8, {}, {'hw_cpu_sockets': '1', 'hw_cpu_max_threads': '1'}, (1, 8, 1)),
        (8, {}, {'hw_cpu_threads': '2', 'hw_cpu_max_sockets': '2'}, (2, 2, 2)),
        (8, {'hw:cpu_max_cores': '2', 'hw:cpu_max_threads': '2'}, {}, (8, 1, 1)),
        (8, {}, {'hw_cpu_max_cores': '2', 'hw_cpu_max_threads': '2', 'hw_cpu_max_sockets': '2'}, (2, 2, 2)),
        (8, {'hw:cpu_sockets': '4'}, {'hw_cpu_cores': '4'}, (4, 2, 1)),  # the flavor's wishes alone
        (7, {'hw:cpu_sockets': '2'}, {}, (7, 1, 1)),
    ],
)  # a wish that can't be
def test_layout(vcpus: int, specs: dict[str, str], image: dict[str, str], expected: tuple[int, int, int]) -> None:
    assert layout(vcpus, specs, **image) == expected


def test_pinned_threads_are_threads_of_the_guest() -> None:
    assert layout(4, {}, threads=2) == (2, 1, 2)
    assert layout(4, {'hw:cpu_threads': '1'}, threads=2) == (4, 1, 1)
    assert layout(4, {'hw:cpu_max_threads': '1'}, threads=2) == (4, 1, 1)


@pytest.mark.parametrize(
    ('specs', 'image', 'error'),
    [
        ({'hw:cpu_max_cores': '2'}, {'hw_cpu_max_cores': '4'}, topology.ImageVCPULimitsRangeExceeded),
        ({'hw:cpu_max_cores': '2'}, {'hw_cpu_cores': '4'}, topology.ImageVCPUTopologyRangeExceeded),
        (
            {'hw:cpu_max_sockets': '1', 'hw:cpu_max_cores': '1', 'hw:cpu_max_threads': '1'},
            {},
            topology.ImageVCPULimitsRangeImpossible,
        ),
        ({'hw:cpu_sockets': 'many'}, {}, topology.InvalidCPUTopology),
        ({}, {'hw_cpu_sockets': '0'}, topology.InvalidCPUTopology),
    ],
)
def test_what_is_refused(specs: dict[str, str], image: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        layout(8, specs, **image)
    assert getattr(raised.value, 'code', None) == 400


def test_a_flavor_of_any_size_is_no_list_of_layouts() -> None:
    """A flavor with 2**31 - 1 vCPUs is refused before a list of its topologies is built."""
    with pytest.raises(topology.ImageVCPULimitsRangeImpossible):
        topology.choose(2**31 - 1, topology.limits_of({}))
