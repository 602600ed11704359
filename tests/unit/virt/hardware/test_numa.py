"""NUMA cells of a host, and where servers fit on them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kilonova import objects
from kilonova.objects.image_meta import ImageMetaProps
from kilonova.pci.pools import DevicePool, PciPools, sockets_of
from kilonova.virt.hardware import constraints, numa
from kilonova.virt.hardware.numa import CellLimits, DeviceAffinity, HostCell
from kilonova.virt.hardware.offer import Offer

HALF = Offer(shared=frozenset({0, 1, 4, 5}), dedicated=frozenset({2, 3, 6, 7}))


def host(
    offer: Offer = HALF, cells: int = 2, threads: int = 2, memory_mb: int = 8192, pages: dict[int, int] | None = None
) -> Any:
    """Two cells of two cores of two threads, half of each shared."""
    found = numa.spread(cells=cells, sockets=1, cores=4 // threads, threads=threads, memory_mb=memory_mb)
    if pages is not None:
        found = [HostCell(cell.id, cell.cpus, cell.memory_mb, cell.siblings, cell.socket, pages) for cell in found]
    return numa.topology_of(found, offer)


def wanted(specs: dict[str, str], vcpus: int = 2, memory_mb: int = 2048) -> Any:
    found = constraints.of(objects.Flavor(vcpus=vcpus, memory_mb=memory_mb, extra_specs=specs), ImageMetaProps())
    assert found is not None
    return found


def gpus(*nodes: int | None, policy: str = 'legacy', count: int = 1) -> DeviceAffinity:
    """A request for GPUs on a host with one on each of these NUMA nodes."""
    pools = PciPools(
        [
            DevicePool(
                {
                    'vendor_id': '10de',
                    'product_id': '13f1',
                    'numa_node': node,
                    'dev_type': 'type-PCI',
                    'address': f'0000:0{number}:00.0',
                },
                1,
            )
            for number, node in enumerate(nodes)
        ],
        sockets=sockets_of(host()),
    )
    requests = (
        [
            objects.InstancePCIRequest(
                count=count, spec=[{'vendor_id': '10de'}], alias_name='a', request_id=None, numa_policy=policy
            )
        ]
        if count
        else []
    )
    return DeviceAffinity(pools, requests)


def where(placed: Any) -> list[int] | None:
    return None if placed is None else [cell.id for cell in placed.cells]


def pins(placed: Any) -> list[dict[int, int]]:
    return [dict(cell.cpu_pinning or {}) for cell in placed.cells]


# -- the host --------------------------------------------------------------------------------------------------------
def test_cells_share_cpus_and_memory_evenly() -> None:
    cells = numa.spread(cells=2, sockets=1, cores=2, threads=2, memory_mb=4096)
    assert [(cell.id, sorted(cell.cpus), cell.memory_mb, cell.socket) for cell in cells] == [
        (0, [0, 1, 2, 3], 2048, 0),
        (1, [4, 5, 6, 7], 2048, 1),
    ]
    assert cells[1].siblings == (frozenset({4, 5}), frozenset({6, 7}))


def test_cores_without_threads_have_no_siblings() -> None:
    assert numa.spread(1, 1, 4, 1, 1024)[0].siblings == ()


def test_envelope() -> None:
    """The envelope of a host's topology is Nova's NUMATopology, with cells and pages of 4, 2048 and 1048576 KiB."""
    offer = Offer(frozenset({0}), frozenset({1}), pages={(0, 2048): 3})
    cell = HostCell(0, frozenset({0, 1}), 4096, (frozenset({0, 1}),), 0, {4: 262144, 2048: 512, 1048576: 2})
    topology = json.loads(numa.topology_of([cell], offer).to_json())  # type: ignore[union-attr]
    assert (topology['nova_object.name'], topology['nova_object.version']) == ('NUMATopology', '1.2')
    inner = topology['nova_object.data']['cells'][0]
    assert (inner['nova_object.name'], inner['nova_object.version']) == ('NUMACell', '1.5')
    data = inner['nova_object.data']
    assert (data['cpuset'], data['pcpuset'], data['memory'], data['siblings']) == ([0], [1], 4096, [[0, 1]])
    assert {page['nova_object.name'] for page in data['mempages']} == {'NUMAPagesTopology'}
    assert [page['nova_object.data'] for page in data['mempages']] == [
        {'size_kb': 4, 'total': 262144, 'used': 0, 'reserved': 0},
        {'size_kb': 2048, 'total': 512, 'used': 0, 'reserved': 3},
        {'size_kb': 1048576, 'total': 2, 'used': 0, 'reserved': 0},
    ]
    assert objects.NUMATopology.from_json(json.dumps(topology)).to_json() == json.dumps(topology)  # type: ignore[union-attr]


def test_a_host_that_tells_of_no_cells() -> None:
    assert numa.topology_of([], HALF) is None


# -- CPUs ------------------------------------------------------------------------------------------------------------
def test_the_hosts_of_the_reference() -> None:
    """A dedicated guest of two vCPUs gets the threads of one core."""
    placed = numa.fit(host(), wanted({'hw:cpu_policy': 'dedicated'}))
    assert (where(placed), pins(placed)) == ([0], [{0: 2, 1: 3}])
    assert placed is not None
    assert placed.cells[0].cpu_topology.threads == 2
    two = numa.fit(host(), wanted({'hw:numa_nodes': '2'}))
    assert (where(two), pins(two)) == ([0, 1], [{}, {}])
    mixed = numa.fit(host(), wanted({'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '1'}))
    assert (where(mixed), pins(mixed)) == ([0], [{1: 2}])


def test_the_second_server_gets_other_cpus_and_the_fifth_none() -> None:
    free, asked = host(), wanted({'hw:cpu_policy': 'dedicated'}, memory_mb=512)
    seen: list[int] = []
    for _ in range(2):
        placed = numa.fit(free, asked)
        assert placed is not None
        numa.consume(free, placed)
        seen += pins(placed)[0].values()
    assert sorted(seen) == [2, 3, 6, 7]
    assert numa.fit(free, asked) is None


def test_a_cell_is_not_split_over_two() -> None:
    assert numa.fit(host(), wanted({'hw:cpu_policy': 'dedicated'}, vcpus=4)) is None
    assert where(numa.fit(host(), wanted({'hw:cpu_policy': 'dedicated', 'hw:numa_nodes': '2'}, vcpus=4))) == [0, 1]
    assert numa.fit(host(), wanted({'hw:numa_nodes': '4'}, vcpus=4)) is None


def test_shared_cpus_are_overcommitted_by_the_ratio_but_not_against_one_guest() -> None:
    free, asked = host(memory_mb=65536), wanted({'hw:numa_nodes': '1'}, memory_mb=64)
    placed = 0
    while (found := numa.fit(free, asked, CellLimits(cpu_ratio=3.0))) is not None:
        numa.consume(free, found)
        placed += 1
    assert placed == 6
    assert numa.fit(host(), wanted({'hw:numa_nodes': '1'}, vcpus=3), CellLimits(cpu_ratio=16.0)) is None


def test_a_host_without_dedicated_cpus_takes_no_dedicated_guest() -> None:
    assert numa.fit(host(Offer(shared=frozenset(range(8)))), wanted({'hw:cpu_policy': 'dedicated'})) is None


def test_isolated_emulator_threads_take_a_cpu_of_the_first_cell() -> None:
    specs = {'hw:cpu_policy': 'dedicated', 'hw:emulator_threads_policy': 'isolate', 'hw:numa_nodes': '2'}
    placed = numa.fit(host(), wanted(specs))
    assert placed is not None
    assert [cell.cpuset_reserved for cell in placed.cells] == [{3}, None]
    assert numa.fit(host(), wanted(specs, vcpus=4)) is None


def test_isolated_guests_keep_the_other_threads_free() -> None:
    free = host()
    placed = numa.fit(free, wanted({'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'isolate'}, vcpus=1))
    assert placed is not None
    numa.consume(free, placed)
    assert free.cells[0].pinned_cpus == {2, 3}


def test_where_it_was_placed_before_means_nothing() -> None:
    asked = wanted({'hw:cpu_policy': 'dedicated'}, memory_mb=512)
    first = numa.fit(host(), asked)
    assert first is not None
    again = numa.fit(numa.used(host(), [first]), first)
    assert (where(first), where(again)) == ([0], [1])


# -- memory and pages --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('asked', 'size'), [('small', 4), ('large', 1048576), ('any', 1048576), ('2048', 2048), ('1GB', 1048576)]
)
def test_page_size(asked: str, size: int) -> None:
    free = host(pages={4: 262144, 2048: 512, 1048576: 2})
    placed = numa.fit(free, wanted({'hw:mem_page_size': asked}, memory_mb=1024))
    assert placed is not None
    assert placed.cells[0].pagesize == size
    numa.consume(free, placed)
    assert [page.used for page in free.cells[0].mempages if page.size_kb == size] == [1024 * 1024 // size]


@pytest.mark.parametrize(
    ('asked', 'memory_mb', 'size'),
    [
        ('large', 512, 2048),  # not a multiple of 1 GiB
        ('any', 1025, 4),  # not a multiple of 2 MiB
        ('large', 1025, None),
        ('16384', 1024, None),
        ('1GB', 3072, None),
    ],
)
def test_pages_that_do_not_do(asked: str, memory_mb: int, size: int | None) -> None:
    placed = numa.fit(
        host(pages={4: 524288, 2048: 512, 1048576: 2}, memory_mb=16384),
        wanted({'hw:mem_page_size': asked}, memory_mb=memory_mb),
    )
    assert (placed.cells[0].pagesize if placed else None) == size


def test_reserved_pages_are_the_hosts() -> None:
    offer = Offer(frozenset(range(8)), pages={(0, 2048): 512, (1, 2048): 1})
    free = host(offer, pages={4: 262144, 2048: 512})
    assert where(numa.fit(free, wanted({'hw:mem_page_size': 'large'}, memory_mb=1022))) == [1]
    assert numa.fit(free, wanted({'hw:mem_page_size': 'large'}, memory_mb=1024)) is None


def test_small_guests_do_not_count_on_memory_in_large_pages() -> None:
    free = host(pages={4: 262144, 2048: 1536}, memory_mb=8192)
    assert where(numa.fit(free, wanted({'hw:numa_nodes': '1'}, memory_mb=1024))) == [0]
    assert numa.fit(free, wanted({'hw:numa_nodes': '1'}, memory_mb=1026)) is None
    numa.consume(free, numa.fit(free, wanted({'hw:mem_page_size': '2048'}, memory_mb=3072)))  # type: ignore[arg-type]
    assert where(numa.fit(free, wanted({'hw:numa_nodes': '2'}), CellLimits(cpu_ratio=2.0))) == [1, 0]


def test_memory_is_overcommitted_by_the_ratio_unless_a_page_size_is_asked_for() -> None:
    free = host(memory_mb=4096)
    for _ in range(2):
        numa.consume(
            free,
            numa.fit(
                free,
                wanted({'hw:numa_nodes': '1'}, memory_mb=2048),  # type: ignore[arg-type]
                CellLimits(cpu_ratio=9.0),
            ),
        )
    assert numa.fit(free, wanted({'hw:numa_nodes': '1'}), CellLimits(cpu_ratio=9.0)) is None
    assert numa.fit(free, wanted({'hw:numa_nodes': '1'}), CellLimits(cpu_ratio=9.0, ram_ratio=2.0)) is not None
    assert numa.fit(free, wanted({'hw:mem_page_size': 'small'}), CellLimits(cpu_ratio=9.0, ram_ratio=2.0)) is None


# -- which cells -----------------------------------------------------------------------------------------------------
def test_spread_and_pack() -> None:
    free, asked = host(), wanted({'hw:cpu_policy': 'dedicated'}, vcpus=1, memory_mb=512)
    numa.consume(free, numa.fit(free, asked))  # type: ignore[arg-type]
    assert where(numa.fit(free, asked)) == [1]
    assert where(numa.fit(free, asked, CellLimits(pack=True))) == [0]


def test_guests_without_devices_keep_away_from_them() -> None:
    assert where(numa.fit(host(), wanted({'hw:numa_nodes': '1'}), devices=gpus(0, count=0))) == [1]
    assert where(numa.fit(host(), wanted({'hw:numa_nodes': '1'}), CellLimits(pack=True), gpus(0, count=0))) == [1]


@pytest.mark.parametrize(
    ('policy', 'nodes', 'count', 'expected'),
    [
        ('required', (1,), 1, [1]),
        ('required', (None,), 1, None),
        ('required', (0, 1), 2, None),
        ('legacy', (1,), 1, [1]),
        ('legacy', (None,), 1, [0]),
        ('legacy', (0, 1), 2, None),
        ('preferred', (1,), 1, [1]),
        ('preferred', (0, 1), 2, [0]),
        ('preferred', (1, 1), 2, [1]),
        ('socket', (1,), 1, [1]),
        ('socket', (0, 1), 2, None),
    ],
)
def test_devices_near_the_guest(
    policy: str, nodes: tuple[int | None, ...], count: int, expected: list[int] | None
) -> None:
    """The two cells are two sockets."""
    assert (
        where(
            numa.fit(host(), wanted({'hw:cpu_policy': 'dedicated'}), devices=gpus(*nodes, policy=policy, count=count))
        )
        == expected
    )


def test_cells_of_one_socket() -> None:
    cells = [
        HostCell(number, frozenset(range(4 * number, 4 * number + 4)), 4096, (), number // 2, {4: 1048576})
        for number in range(4)
    ]
    free = numa.topology_of(cells, Offer(frozenset(), frozenset(range(16))))
    assert free is not None
    pools = PciPools(
        [DevicePool({'vendor_id': '10de', 'numa_node': 3, 'dev_type': 'type-PCI'}, 1)], sockets=sockets_of(free)
    )

    def place(policy: str, taken: set[int]) -> list[int] | None:
        for cell in free.cells:
            cell.pinned_cpus = set(cell.pcpuset) if cell.id in taken else set()
        request = objects.InstancePCIRequest(count=1, spec=[{}], alias_name='a', numa_policy=policy)
        return where(numa.fit(free, wanted({'hw:cpu_policy': 'dedicated'}), devices=DeviceAffinity(pools, [request])))

    assert place('socket', set()) == place('required', set()) == [3]
    assert (place('socket', {3}), place('required', {3}), place('preferred', {3})) == ([2], None, [0])
    assert (place('socket', {2, 3}), place('preferred', {2, 3})) == (None, [0])


def test_affinity_decides_among_sets_of_cells() -> None:
    cells = [HostCell(number, frozenset({number}), 4096) for number in range(4)]
    free = numa.topology_of(cells, Offer(frozenset(range(4))))
    assert free is not None
    asked = wanted({'hw:numa_nodes': '2'})
    pools = PciPools(
        [DevicePool({'numa_node': node, 'dev_type': 'type-PCI', 'address': str(node)}, 1) for node in (1, 3)]
    )
    request = objects.InstancePCIRequest(count=2, spec=[{}], alias_name='a', numa_policy='required')
    assert where(numa.fit(free, asked, devices=DeviceAffinity(pools, [request]))) == [1, 3]


# -- properties ------------------------------------------------------------------------------------------------------
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        'hw:cpu_policy': st.sampled_from(('dedicated', 'mixed')),
        'hw:numa_nodes': st.sampled_from(('1', '2')),
        'hw:mem_page_size': st.sampled_from(('small', 'large', 'any', '2048')),
        'hw:cpu_thread_policy': st.sampled_from(('prefer', 'isolate', 'require')),
        'hw:emulator_threads_policy': st.sampled_from(('isolate', 'share')),
    },
)


@st.composite
def requests(draw: st.DrawFn) -> Any:
    """A topology, as flavors of random specs ask for it; None where these make no sense."""
    specs = dict(draw(POLICIES))
    vcpus, memory_mb = draw(st.sampled_from((1, 2, 4, 6))), draw(st.sampled_from((512, 1024, 1026, 2048)))
    if specs.get('hw:cpu_policy') == 'mixed':
        specs['hw:cpu_dedicated_mask'] = '0'
    try:
        return constraints.of(objects.Flavor(vcpus=vcpus, memory_mb=memory_mb, extra_specs=specs))
    except constraints.errors.Invalid:
        return None


HOSTS = st.builds(
    lambda split, cells, threads, huge: host(
        Offer(
            frozenset(range(split)) if split else frozenset(), frozenset(range(split, 4 * cells)), pages={(0, 2048): 7}
        ),
        cells,
        threads,
        4096 * cells,
        {4: (4096 - 2 * huge) * 256, 2048: huge},
    ),
    st.integers(0, 8),
    st.integers(1, 4),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((0, 256, 1024)),
)


@settings(max_examples=150, deadline=None)
@given(HOSTS, st.lists(requests(), max_size=12), st.sampled_from((1.0, 2.5)), st.booleans())
def test_nothing_is_given_twice(empty: Any, asked: list[Any], ratio: float, pack: bool) -> None:
    free, placed, limits = empty.obj_clone(), [], CellLimits(ratio, ratio, pack)
    for topology in filter(None, asked):
        found = numa.fit(free, topology, limits)
        if found is not None:
            assert len(set(where(found) or ())) == len(topology.cells)
            assert [cell.total_cpus for cell in found.cells] == [cell.total_cpus for cell in topology.cells]
            numa.consume(free, found)
            placed.append(found)
    assert free.to_json() == numa.used(empty, placed).to_json()
    for cell in free.cells:
        here = [one for topology in placed for one in topology.cells if one.id == cell.id]
        own = [numa.cpus_of(one, cell.siblings) for one in here]
        assert sum(map(len, own)) == len(set().union(*own)) == len(cell.pinned_cpus)
        assert cell.pinned_cpus <= cell.pcpuset
        assert not cell.pinned_cpus & cell.cpuset
        assert cell.cpu_usage == sum(len(one.cpuset) for one in here) <= len(cell.cpuset) * ratio
        assert all(len(one.cpuset) <= len(cell.cpuset) for one in here)
        assert cell.memory_usage <= cell.memory * ratio
        assert all(page.used <= max(0, page.total - page.reserved) for page in cell.mempages)


@settings(max_examples=60, deadline=None)
@given(HOSTS, st.lists(requests(), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_what_leaves_leaves_nothing(empty: Any, asked: list[Any], rng: Any) -> None:
    placed: list[Any] = []
    for topology in filter(None, asked):
        found = numa.fit(numa.used(empty, placed), topology)
        if found is not None:
            placed.append(found)
    before = numa.used(empty, placed).to_json()
    staying = [one for one in placed if rng.random() < 0.5]
    assert numa.used(empty, []).to_json() == empty.to_json()
    rng.shuffle(placed)
    assert numa.used(empty, placed).to_json() == before
    # What fitted beside all of them fits beside some of them.
    for one in placed:
        if one not in staying:
            assert numa.fit(numa.used(empty, staying), one) is not None
