"""The ledger's NUMA part: what the scheduler's filter accepts the claim accepts, and nothing is given twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oslo_config import cfg

from kilonova import errors, objects
from kilonova.compute.tracker import RUN, ClaimPlan, HostCapacity, HostNumaCells, Tracker, Usage
from kilonova.conf import compute
from kilonova.pci.devices import NodeDevices
from kilonova.pci.kinds import PciFunctions
from kilonova.pci.spec import DeviceSpecs
from kilonova.scheduler.filters.numa_topology import NUMATopologyFilter
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.virt.hardware import constraints, numa
from kilonova.virt.hardware.offer import Offer
from tests.unit.scheduler.builders import node

LIMITS = numa.CellLimits(4.0, 1.5)


def tracker(gpus: int = 0) -> Tracker:
    """Two cells of eight CPUs, half of them dedicated, with GPUs on both in turn."""
    made = Tracker()
    made.node = objects.ComputeNode(id=1, memory_mb=16384, local_gb=1000, hypervisor_hostname='host1')
    made.cells = HostNumaCells(
        numa.topology_of(
            numa.spread(2, 1, 4, 2, 16384),
            Offer(frozenset({0, 1, 2, 3, 8, 9, 10, 11}), frozenset({4, 5, 6, 7, 12, 13, 14, 15})),
        ),
        LIMITS,
    )
    made.load(
        NodeDevices.of(
            (PciFunctions(DeviceSpecs.parse([json.dumps({'vendor_id': '10de'})])),),
            [
                objects.PciDevice(
                    id=number,
                    compute_node_id=1,
                    address=f'0000:0{number}:00.0',
                    vendor_id='10de',
                    product_id='13f1',
                    dev_type='type-PCI',
                    status='available',
                    extra_info={},
                    instance_uuid=None,
                    request_id=None,
                    numa_node=number % 2,
                    parent_addr=None,
                    dev_id='d',
                    label='l',
                    uuid=f'00000000-0000-0000-0000-00000000000{number}',
                )
                for number in range(1, gpus + 1)
            ],
            1,
        )
    )
    return made


def flavor(vcpus: int = 2, memory_mb: int = 1024, **specs: str) -> Any:
    return objects.Flavor(vcpus=vcpus, memory_mb=memory_mb, root_gb=1, ephemeral_gb=0, swap=0, extra_specs=specs)


def gpus(count: int, policy: str) -> Any:
    return objects.InstancePCIRequests(
        requests=[
            objects.InstancePCIRequest(
                count=count,
                spec=[{'vendor_id': '10de'}],
                alias_name='a',
                is_new=False,
                numa_policy=policy,
                requester_id=None,
                request_id='11111111-1111-1111-1111-111111111111',
            )
        ]
        if count
        else []
    )


def filter_says(made: Tracker, of: Any, wanted: Any, requests: Any) -> bool:
    """What the scheduler would say of the row that the ledger would write."""
    usage = made.usage()
    conf = cfg.ConfigOpts()
    conf.register_opts(compute.OPTS, group='compute')
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    one = NUMATopologyFilter()
    one.conf = conf
    state = HostState(
        node(
            'host1',
            cpu_allocation_ratio=4.0,
            ram_allocation_ratio=1.5,
            numa_topology=usage['numa_topology'],
            pci_stats=usage['pci_stats'],
        ),
        'cell',
    )
    state.allocation_candidates = None
    spec = objects.RequestSpec(flavor=of, numa_topology=wanted, pci_requests=requests)
    return one.host_passes(state, spec)


def test_a_server_that_does_not_fit_on_the_cells_is_refused() -> None:
    made = tracker()
    of = flavor(vcpus=16, **{'hw:cpu_policy': 'dedicated'})
    for cells in (made.cells, HostNumaCells()):
        made.cells = cells
        with pytest.raises(errors.HostRejected, match='cannot fit the given host NUMA topology'):
            made.plan('11111111-1111-1111-1111-111111111111', RUN, of, None, constraints.of(of))
    assert made.used == Usage()


SPECS = st.fixed_dictionaries(
    {},
    optional={
        'hw:cpu_policy': st.sampled_from(('dedicated', 'mixed')),
        'hw:numa_nodes': st.sampled_from(('1', '2')),
        'hw:mem_page_size': st.just('small'),
        'hw:cpu_thread_policy': st.sampled_from(('isolate', 'require')),
        'hw:emulator_threads_policy': st.just('isolate'),
    },
)
ASKED = st.tuples(
    SPECS,
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1024, 4096)),
    st.integers(0, 2),
    st.sampled_from(('required', 'legacy', 'preferred', 'socket')),
)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(ASKED, st.booleans(), st.integers(0, 5)), max_size=10))
def test_the_filter_and_the_claim_agree(devices: int, asked: Any) -> None:
    """Claims, refusals, frees and aborts in any order: filter and claim say the same, an abort leaves no trace."""
    made = tracker(gpus=devices)
    empty, held = made.usage(), []
    for number, ((specs, vcpus, memory_mb, count, policy), keep, leave) in enumerate(asked):
        mask = {'hw:cpu_dedicated_mask': '0'} if specs.get('hw:cpu_policy') == 'mixed' else {}
        of = flavor(vcpus, memory_mb, **specs, **mask)
        try:
            wanted = constraints.of(of)
        except errors.Invalid:
            continue
        uuid, requests, before = f'server {number}', gpus(count, policy), made.usage()
        if wanted is not None:
            passes = filter_says(made, of, wanted, requests)
            try:
                plan = made.plan(uuid, RUN, of, requests, wanted)
            except errors.HostRejected:
                assert not passes
                assert made.usage() == before
                continue
            assert passes
            _check_devices(plan, policy)
            if keep:
                made.commit(plan)
                assert made.plan(uuid, RUN, of, requests, wanted).topology is plan.topology
                held.append(uuid)
            else:
                made.abort(plan)
                assert made.usage() == before
        _check(made, held)
        if leave < len(held):
            made.commit(made.plan_free(held.pop(leave)))
    for uuid in held:
        made.commit(made.plan_free(uuid))
    assert json.loads(made.usage()['numa_topology']) == json.loads(empty['numa_topology'])
    assert made.used == Usage()


def _check(made: Tracker, held: list[str]) -> None:
    host = objects.NUMATopology.from_json(made.usage()['numa_topology'])
    assert host is not None
    places = [place for uuid in held if (place := made.topology(uuid, RUN)) is not None]
    for cell in host.cells:
        own = [numa.cpus_of(one, cell.siblings) for place in places for one in place.cells if one.id == cell.id]
        assert sum(map(len, own)) == len(cell.pinned_cpus)
        assert cell.pinned_cpus <= cell.pcpuset
        assert cell.cpu_usage <= 4.0 * len(cell.cpuset)


def _check_devices(plan: ClaimPlan, policy: str) -> None:
    cells = {cell.id for cell in plan.topology.cells}
    if policy in ('required', 'socket'):
        assert {device.numa_node for device in plan.devices} <= cells


@pytest.mark.parametrize('policy', ['required', 'preferred', 'legacy'])
def test_the_claim_looks_for_the_cell_of_the_device(policy: str) -> None:
    made, of = tracker(gpus=1), flavor(**{'hw:cpu_policy': 'dedicated'})
    wanted, requests = constraints.of(of), gpus(1, policy)
    assert filter_says(made, of, wanted, requests)
    plan = made.plan('a', RUN, of, requests, wanted)
    assert plan.topology is not None
    assert [cell.id for cell in plan.topology.cells] == [device.numa_node for device in plan.devices] == [1]


def test_a_restarted_host_counts_the_same() -> None:
    made, of = tracker(), flavor(**{'hw:cpu_policy': 'dedicated'})
    made.commit(made.plan('a', RUN, of, None, constraints.of(of)))
    made.commit(made.plan_allocate('a', RUN))
    again = tracker()
    again.adopt('a', RUN, of, topology=made.topology('a', RUN))
    assert again.usage() == made.usage()
    assert (again.used.vcpus, again.used.pcpus) == (0, 2)


def test_an_arriving_server_keeps_its_place_until_its_size_is_told() -> None:
    made, of = tracker(), flavor(**{'hw:cpu_policy': 'dedicated'})
    placed = numa.fit(made.cells.topology, constraints.of(of))  # type: ignore[arg-type]
    made.adopt('a', 'migration-1', None, topology=placed)
    made.adopt('a', 'migration-1', of)
    assert (made.used.pcpus, made.topology('a', 'migration-1')) == (2, placed)


def test_dedicated_cpus_have_a_capacity_of_their_own() -> None:
    made = tracker()
    made.capacity = HostCapacity.of(
        {'VCPU': {'total': 1, 'allocation_ratio': 1.0}, 'PCPU': {'total': 2, 'allocation_ratio': 1.0}}
    )
    of = flavor(**{'hw:cpu_policy': 'dedicated'})
    made.commit(made.plan('a', RUN, of, None, constraints.of(of)))
    with pytest.raises(errors.HostRejected, match=r'pcpus 4\.00 used of 2\.00'):
        made.plan('b', RUN, of, None, constraints.of(of))


def test_a_host_without_cells_refuses() -> None:
    made = tracker()
    made.cells = HostNumaCells()
    of = flavor(**{'hw:numa_nodes': '1'})
    with pytest.raises(errors.HostRejected, match='NUMA topology'):
        made.plan('a', RUN, of, None, constraints.of(of))
    assert made.usage()['numa_topology'] is None


def test_pack_is_the_hosts_option_too() -> None:
    made, of = tracker(), flavor(vcpus=1, **{'hw:cpu_policy': 'dedicated'})
    made.cells.limits = numa.CellLimits(pack=True)
    for name in 'ab':
        made.commit(made.plan(name, RUN, of, None, constraints.of(of)))
    places = [made.topology(name, RUN) for name in 'ab']
    assert [place.cells[0].id for place in places if place] == [0, 0]
    assert made.usage()['vcpus_used'] == 0
