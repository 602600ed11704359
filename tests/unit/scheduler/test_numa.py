"""NUMATopologyFilter, HostState's cells, and the questions about dedicated CPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kilonova import objects
from kilonova.scheduler import filters as filtering
from kilonova.scheduler.filters.numa_topology import NUMATopologyFilter
from kilonova.scheduler.hosts.table import TEXTS, Table
from kilonova.scheduler.placement.candidates import PlacementCandidates
from kilonova.scheduler.placement.query import build, wants_dedicated_cpus
from kilonova.scheduler.select import Select, SelectSettings
from kilonova.virt.hardware import constraints, numa
from kilonova.virt.hardware.offer import Offer
from tests.unit.scheduler.builders import CELL, View, candidate, conf, device, host, node, spec, state, uuid

SHARED, DEDICATED = frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})
HOST = numa.topology_of(numa.spread(2, 1, 2, 2, 65536), Offer(SHARED, DEDICATED)).to_json()  # type: ignore[union-attr]
PINNED = {'hw:cpu_policy': 'dedicated'}


def numa_filter(**options: Any) -> NUMATopologyFilter:
    one = NUMATopologyFilter()
    one.conf = conf(**options)
    return one


def request(specs: dict[str, str], vcpus: int = 2, policy: str = 'legacy', **values: Any) -> Any:
    made = spec(specs, flavor_values={'vcpus': vcpus, 'memory_mb': 2048}, **values)
    made.numa_topology = constraints.of(made.flavor)
    for one in made.pci_requests.requests if made.pci_requests is not None else ():
        one.numa_policy = policy
    return made


def gpu_pools(*cells: int) -> str:
    """A GPU at bus 1, 2 … on each of these cells."""
    return objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(
                vendor_id='10de',
                product_id='13f1',
                numa_node=cell,
                count=1,
                tags={
                    'dev_type': 'type-PCI',
                    'address': f'0000:0{bus}:00.0',
                    'rp_uuid': device('host1', f'0000:0{bus}:00.0'),
                },
            )
            for bus, cell in enumerate(cells, 1)
        ]
    ).to_json()


@pytest.mark.parametrize(
    ('specs', 'topology', 'passes'),
    [
        ({}, None, True),
        (PINNED, None, False),
        (PINNED, HOST, True),
        ({'hw:numa_nodes': '2'}, HOST, True),
        ({'hw:mem_page_size': 'large'}, HOST, False),
        ({**PINNED, 'hw:cpu_thread_policy': 'isolate'}, HOST, False),
    ],
)
def test_filter(specs: dict[str, str], topology: str | None, passes: bool) -> None:
    seen = state(numa_topology=topology)
    assert numa_filter().host_passes(seen, request(specs)) == passes
    if specs and passes:
        limits = seen.limits['numa_topology']
        assert (limits.cpu_allocation_ratio, limits.ram_allocation_ratio) == (4.0, 1.0)


def test_array_form_asks_for_the_loop_only_where_something_is_asked() -> None:
    one = numa_filter()
    assert filtering.array_form(one) is not None
    assert one.mask(None, request({})) is None
    assert one.mask(None, request(PINNED)) is filtering.PER_HOST


def test_candidates_whose_devices_are_too_far_are_dropped() -> None:
    """The GPU of the first cell is near free CPUs, that of the second isn't any more."""
    full = json.loads(HOST)
    full['nova_object.data']['cells'][1]['nova_object.data']['pinned_cpus'] = [6, 7]
    group = f'{uuid("request 0")}-0'
    candidates = [candidate(devices={group: f'0000:0{bus}:00.0'}) for bus in (1, 2)]
    for policy in ('required', 'preferred'):
        seen = state(numa_topology=json.dumps(full), pci_stats=gpu_pools(0, 1), candidates=list(candidates))
        assert numa_filter().host_passes(seen, request(PINNED, policy=policy, gpus=(1,)))
        assert seen.allocation_candidates == candidates[:1]
    for policy, passes in (('required', False), ('preferred', True)):
        seen = state(numa_topology=json.dumps(full), pci_stats=gpu_pools(1, 1), candidates=candidates[1:])
        assert numa_filter().host_passes(seen, request(PINNED, policy=policy, gpus=(1,))) == passes


def choose(view: View, asked: Any, *names: str) -> Any:
    offers = PlacementCandidates(view, asked, view.answer())
    return Select(view, asked, [numa_filter()], (), SelectSettings(), offers).plan([uuid(name) for name in names])


def places(view: View, *names: str) -> list[set[int]]:
    """The host's CPUs of these servers."""
    taken = view.table.reservations.on(view.table.places.of(uuid('host1')))  # type: ignore[arg-type]
    return [numa.cpus_of(taken[uuid(name)].topology.cells[0]) for name in names]  # type: ignore[union-attr]


def test_servers_of_one_request_see_each_other() -> None:
    view = View(host(numa_topology=HOST))
    plan = choose(view, request(PINNED, num_instances=2), 'a', 'b')
    assert places(view, 'a', 'b') == [{2, 3}, {6, 7}]
    assert len(plan.choices) == 2
    assert view.table['vcpus_used'].sum() == 0
    assert choose(view, request(PINNED), 'c') is None


def test_what_was_just_given_away_counts_until_the_host_says_so() -> None:
    view = View(host(numa_topology=HOST))
    choose(view, request(PINNED), 'a')
    place = view.table.places.of(uuid('host1'))
    assert place is not None
    seen = view.state(place)
    assert seen is not None and seen.numa is not None
    assert [cell.pinned_cpus for cell in seen.numa.cells] == [{2, 3}, set()]
    view.table.reservations.give_back(uuid('a'))
    assert [cell.pinned_cpus for cell in view.state(place).numa.cells] == [set(), set()]  # type: ignore[union-attr]


def test_packing_is_an_option() -> None:
    used = numa.used(objects.NUMATopology.from_json(HOST), [])  # type: ignore[arg-type]
    used.cells[0].pinned_cpus = {2}
    for pack, cpu in ((False, 6), (True, 3)):
        seen, asked = state(numa_topology=used.to_json()), request(PINNED, vcpus=1)
        one = numa_filter(compute__packing_host_numa_cells_allocation_strategy=pack)
        assert one.host_passes(seen, asked)
        placed = seen.topology_of(asked, None)
        assert placed is not None and numa.cpus_of(placed.cells[0]) == {cpu}


def test_texts_of_hosts_that_change_are_not_kept() -> None:
    table, row = Table(2), {**node(numa_topology=HOST), 'deleted': 0}
    row.pop('service')
    for number in range(100):
        table.put(CELL, {**row, 'numa_topology': f'{HOST} {number}'})
    assert len(table._texts) <= 2 * TEXTS + 6


@pytest.mark.parametrize(
    ('specs', 'resources'),
    [
        ({'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0-2'}, 'DISK_GB:16,MEMORY_MB:32768,PCPU:3,VCPU:5'),
        (
            {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '^0', 'hw:emulator_threads_policy': 'isolate'},
            'DISK_GB:16,MEMORY_MB:32768,PCPU:8,VCPU:1',
        ),
        ({'resources:PCPU': '8'}, 'DISK_GB:16,MEMORY_MB:32768,PCPU:8'),
    ],
)
def test_what_dedicated_cpus_are_asked_for(specs: dict[str, str], resources: str) -> None:
    """A flavor with dedicated CPUs asks Placement for PCPU instead of VCPU."""
    asked = spec(specs)
    assert dict(build(asked, max_results=9).pairs())['resources'] == resources
    assert wants_dedicated_cpus(asked)


def test_the_second_question_knows_no_dedicated_cpus() -> None:
    """The second query for dedicated CPUs asks for VCPU and no longer for a hyperthreading trait."""
    asked = spec({**PINNED, 'hw:cpu_thread_policy': 'require'})
    assert dict(build(asked, max_results=9).pairs())['required'] == 'HW_CPU_HYPERTHREADING'
    pairs = dict(build(asked, max_results=9, pinning=False).pairs())
    assert (pairs['resources'], 'required' in pairs) == ('DISK_GB:16,MEMORY_MB:32768,VCPU:8', False)
    assert not wants_dedicated_cpus(spec({'hw:numa_nodes': '2'}))


@pytest.mark.parametrize('where', ['flavor', 'image'])
def test_devices_of_one_socket_need_a_driver_that_knows_sockets(where: str) -> None:
    asked = spec(
        {'hw:pci_numa_affinity_policy': 'socket'} if where == 'flavor' else {},
        image={'properties': {'hw_pci_numa_affinity_policy': 'socket'} if where == 'image' else {}},
    )
    assert dict(build(asked, max_results=9).pairs())['required'] == 'COMPUTE_SOCKET_PCI_NUMA_AFFINITY'


def test_a_host_without_cells_has_no_place_on_them() -> None:
    """A forced host isn't filtered."""
    assert state().topology_of(request(PINNED), None) is None
