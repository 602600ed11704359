"""The table of all hosts: what its columns say, what was given away, and what filters ask of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kilonova import objects
from kilonova.scheduler import filters as filtering
from kilonova.scheduler import weighers as weighing
from kilonova.scheduler.filters.affinity import ServerGroupAntiAffinityFilter
from kilonova.scheduler.filters.cidr import SimpleCIDRAffinityFilter
from kilonova.scheduler.filters.compute import ComputeFilter
from kilonova.scheduler.filters.compute_capabilities import ComputeCapabilitiesFilter
from kilonova.scheduler.filters.json_query import JsonFilter
from kilonova.scheduler.filters.metrics import MetricsFilter
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.columns import COLUMNS, HostColumns, HostIndex
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.reservations import FORGET_AFTER, Reservation, reserve
from kilonova.scheduler.hosts.table import Table
from kilonova.scheduler.placement.local_candidates import LocalCandidates, Need, need
from kilonova.scheduler.placement.query import Group, build
from kilonova.scheduler.weighers.amounts import RAMWeigher
from kilonova.scheduler.weighers.images import ImagePropertiesWeigher
from kilonova.scheduler.weighers.metrics import MetricsWeigher
from kilonova.scheduler.weighers.moves import CrossCellWeigher
from tests.unit.scheduler import builders
from tests.unit.scheduler.builders import CELL, View, conf, node, pools, spec, uuid

CONF = conf()
KINDS = ('[["x86_64", "qemu", "hvm"]]', '[["aarch64", "kvm", "hvm"], ["x86_64", "kvm", "hvm"]]')


@st.composite
def rows(draw):
    """A node's row with its service."""
    name = f'host{draw(st.integers(0, 10**9))}'
    vcpus = draw(st.integers(1, 64))
    row = node(
        name,
        vcpus=vcpus,
        vcpus_used=draw(st.integers(0, vcpus)),
        memory_mb_used=draw(st.integers(0, 262144)),
        local_gb_used=draw(st.integers(0, 1000)),
        disk_available_least=draw(st.none() | st.integers(-5, 1000)),
        running_vms=draw(st.integers(0, 60)),
        current_workload=draw(st.integers(0, 12)),
        hypervisor_version=draw(st.sampled_from((8002002, 10000000))),
        supported_instances=draw(st.sampled_from(KINDS)),
        stats=json.dumps({'failed_builds': str(draw(st.integers(0, 3)))}),
        pci_stats=draw(
            st.none()
            | st.integers(0, 5).map(lambda count: pools(*(f'0000:{bus:02x}:00.0' for bus in range(count)), host=name))
        ),
        service={'disabled': draw(st.booleans()), 'up': draw(st.booleans())},
    )
    return {**row, 'deleted': 0, 'created_at': None, 'deleted_at': None}


def filled(nodes):
    """A table of these nodes, and HostStates of the same, by place."""
    table = Table(2)
    states = {}
    for number, row in enumerate(nodes):
        service = {**row['service'], 'id': number, 'deleted': 0}
        table.services.put(CELL, service)
        table.put(CELL, {**{key: value for key, value in row.items() if key != 'service'}, 'id': number})
        states[table.places.of(row['uuid'])] = HostState({**row, 'id': number, 'service': service}, CELL)
    table.services.put_down(CELL, {number for number, row in enumerate(nodes) if not row['service']['up']})
    return table, states


def look(table, aggregates=None, **where):
    return HostArrays(
        SimpleNamespace(
            table=table,
            aggregates=SimpleNamespace(metadata_of_hosts=lambda: aggregates or {}),
            servers=SimpleNamespace(hosts_of=lambda uuids: {one: (where[one], None) for one in uuids if one in where}),
        )
    )


def made(cls, **overrides):
    plugin = cls()
    plugin.conf = conf(**overrides) if overrides else CONF
    return plugin


@pytest.mark.parametrize('cls', [SimpleCIDRAffinityFilter, JsonFilter, MetricsFilter])
def test_filters_of_single_hosts_ask_nothing_of_most_requests(cls):
    assert made(cls).mask(None, spec()) is None
    asked = spec(scheduler_hints={'query': '[]', 'build_near_host_ip': '10.0.0.1'})
    assert made(cls, metrics__weight_setting=['a=1']).mask(None, asked) is filtering.PER_HOST


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=8, unique_by=lambda row: row['uuid']))
def test_columns_say_what_single_hosts_say(nodes):
    """Filters of others see the same host as our own, which look at all of them at once."""
    table, states = filled(nodes)
    for place, host in states.items():
        assert {
            name: table[name][place]
            for name in (
                'free_ram_mb',
                'free_disk_mb',
                'vcpus_total',
                'vcpus_used',
                'cpu_ratio',
                'num_instances',
                'num_io_ops',
                'failed_builds',
                'hypervisor_version',
                'pci_free',
                'disabled',
                'up',
            )
        } == {
            'free_ram_mb': host.free_ram_mb,
            'free_disk_mb': host.free_disk_mb,
            'vcpus_total': host.vcpus_total,
            'vcpus_used': host.vcpus_used,
            'cpu_ratio': host.cpu_allocation_ratio,
            'num_instances': host.num_instances,
            'num_io_ops': host.num_io_ops,
            'failed_builds': host.failed_builds,
            'hypervisor_version': host.hypervisor_version,
            'pci_free': host.pci_stats.free,
            'disabled': host.service['disabled'],
            'up': host.service['up'],
        }


FUNCTIONS = [{'vendor_id': '8086', 'product_id': '1515'}]
WHOLE = [{'vendor_id': '8086', 'product_id': '1528', 'dev_type': 'type-PF'}]


def nic(number):
    """pci_stats of a card, whole or in four functions: who takes one form takes the other away."""
    return [
        objects.PciDevicePool(
            vendor_id='8086',
            product_id=product,
            numa_node=0,
            count=count,
            tags={'dev_type': kind, 'address': f'0000:{number:02x}:00.1'},
        )
        for product, kind, count in (('1528', 'type-PF', 1), ('1515', 'type-VF', 4))
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(rows(), st.booleans(), st.integers(0, 2)),
        min_size=1,
        max_size=5,
        unique_by=lambda one: one[0]['uuid'],
    ),
    st.data(),
)
def test_what_is_given_back_leaves_no_trace(nodes, data):
    """Devices of some hosts are in Placement, those of others aren't, or just some."""
    for row, unmapped, nics in nodes:
        stored = objects.PciDevicePoolList.from_column(row['pci_stats'])
        found = list(stored.objects) if stored is not None else []
        for pool in found if unmapped else ():
            pool.tags = {name: value for name, value in pool.tags.items() if name != 'rp_uuid'}
        row['pci_stats'] = objects.PciDevicePoolList(
            objects=found + [pool for number in range(nics) for pool in nic(number)]
        ).to_json()
    table, states = filled([row for row, _, _ in nodes])
    kinds = ([{'vendor_id': '10de', 'product_id': '13f1'}], FUNCTIONS, WHOLE)

    def seen():
        return [table[name].copy() for name in COLUMNS] + [table.devices.free(wanted) for wanted in kinds]

    before, given_away = seen(), []
    for number in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.sampled_from(sorted(states)))
        pools = table.devices.pools(place)
        asked = spec(gpus=(data.draw(st.integers(1, 2)),)).pci_requests.requests[0]
        asked.spec = data.draw(st.sampled_from(kinds))
        mappings = pools.providers([asked])
        requests = (asked,) if not mappings and pools.support_requests([asked]) else ()
        table.reservations.take(
            uuid(f's{number}'), Reservation(place, 2, 1024, 2048, objects_counter(mappings), requests=requests)
        )
        given_away.append(uuid(f's{number}'))
        left = table.devices.pools(place)
        assert left.free == table['pci_free'][place]
        for wanted in kinds:
            assert table.devices.free(wanted)[place] == sum(
                pool.count for pool in left.pools if any(pool.matches(one) for one in wanted)
            )
        if mappings or requests:
            assert left.free <= pools.free - asked.count
    after = seen()
    # A row that is read again doesn't make it forgotten.
    for row_place in states:
        cell, row = table.node(row_place)
        table.put(cell, {key: value for key, value in row.items() if key != 'service'})
    assert all(map(np.array_equal, seen(), after))
    random.shuffle(given_away)
    for server in given_away:
        table.reservations.give_back(server)
    for name, values, now in zip((*COLUMNS, *range(len(kinds))), before, seen(), strict=True):
        assert np.array_equal(now, values), name


def test_what_was_given_away_counts_alike_everywhere():
    """Amounts that were chosen are subtracted alike in the table's columns and in the HostState that filters of
    single hosts see, by the host's own ratios."""
    row = {
        **node(
            'a',
            vcpus=16,
            vcpus_used=1,
            memory_mb=20000,
            memory_mb_used=1000,
            local_gb=50,
            local_gb_used=2,
            running_vms=3,
            current_workload=2,
            cpu_allocation_ratio=2.0,
            ram_allocation_ratio=1.5,
            disk_allocation_ratio=3.0,
        ),
        'deleted': 0,
    }
    table, (place,) = filled([row])
    names = ('free_ram_mb', 'free_disk_mb', 'vcpus_used', 'num_instances', 'num_io_ops')
    request = spec(flavor_values={'vcpus': 4, 'memory_mb': 2048, 'root_gb': 5, 'ephemeral_gb': 6, 'swap': 7})

    def seen():
        state = HostState({**table.node(place)[1]}, CELL, taken=table.reservations.on(place))
        assert state.disk_mb_used + state.free_disk_mb == 50 * 1024
        assert [int(table[name][place]) for name in names] == [getattr(state, name) for name in names]
        return [int(table[name][place]) for name in (*names, 'ram_room_mb', 'disk_room_mb')]

    assert seen() == [19000, 48 * 1024, 1, 3, 2, 29000, 148 * 1024]
    assert table['cpu_ratio'][place] == 2.0
    allocation = need(request, build(request, max_results=1)).request(row['uuid'], {})
    table.reservations.take(uuid('s1'), reserve(place, request, allocation))
    taken = 11 * 1024 + 7
    assert seen() == [16952, 48 * 1024 - taken, 5, 4, 3, 26952, 148 * 1024 - taken]
    # Whoever asks how many fit boots them one after the other.
    table.reservations.take(uuid('s1'), reserve(place, request, allocation, building=False))
    assert seen() == [16952, 48 * 1024 - taken, 5, 4, 2, 26952, 148 * 1024 - taken]
    table.reservations.give_back(uuid('s1'))
    assert seen() == [19000, 48 * 1024, 1, 3, 2, 29000, 148 * 1024]


def test_a_host_that_counts_a_server_already_has_less_left():
    """Its row came before the word that the server is settled: nothing is free that isn't."""
    row = {**node('a', pci_stats=pools('1', '2', '3', providers=False)), 'deleted': 0}
    table, states = filled([row])
    (place,) = states
    for name, count in (('s1', 1), ('s2', 2)):
        requests = tuple(spec(gpus=(count,)).pci_requests.requests)
        table.reservations.take(uuid(name), Reservation(place, 1, 1, 1, Counter(), requests=requests))
    row['pci_stats'] = pools('2', '3', providers=False)
    table.put(CELL, {**{key: value for key, value in row.items() if key != 'service'}, 'id': 0})
    assert table['pci_free'][place] == 0
    table.reservations.give_back(uuid('s1'))
    assert table['pci_free'][place] == 0
    table.reservations.give_back(uuid('s2'))
    assert table['pci_free'][place] == 2


def test_devices_of_providers_that_were_given_away_are_gone():
    """As many as a pool has; devices of other providers, and of none, stay."""
    stored = objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(
                vendor_id='10de', product_id=product, numa_node=0, count=count, tags={'rp_uuid': rp} if rp else {}
            )
            for product, count, rp in (('1', 3, uuid('x')), ('1', 2, uuid('y')), ('2', 4, None))
        ]
    )
    table, (place,) = filled([{**node('a', pci_stats=stored.to_json()), 'deleted': 0}])

    def free():
        return [int(table.devices.free([{'product_id': product}])[place]) for product in '12'] + [
            int(table['pci_free'][place])
        ]

    assert free() == [5, 4, 9]
    for name, taken, left in (
        ('s1', {uuid('x'): 1}, [4, 4, 8]),
        ('s2', {uuid('x'): 1, uuid('y'): 1}, [2, 4, 6]),
        ('s3', {uuid('x'): 5, uuid('z'): 1}, [1, 4, 5]),
    ):
        table.reservations.take(uuid(name), Reservation(place, 1, 1, 1, Counter(taken)))
        assert free() == left
    for name in ('s1', 's2', 's3'):
        table.reservations.give_back(uuid(name))
    assert free() == [5, 4, 9]


def test_free_devices_of_one_of_several_specs():
    stored = objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(
                vendor_id=vendor, product_id=product, numa_node=0, count=count, tags={'address': product}
            )
            for vendor, product, count in (('10de', '1', 1), ('10de', '2', 2), ('8086', '1', 4), ('8086', '3', 8))
        ]
    )
    table, (place,) = filled([{**node('a', pci_stats=stored.to_json()), 'deleted': 0}])

    def free(*wanted):
        specs = [{'vendor_id': vendor, 'product_id': product} for vendor, product in wanted]
        return int(table.devices.free(specs)[place])

    assert free(('10de', '1')) == 1 and free(('8086', '1')) == 4 and free(('8086', '2')) == 0
    assert free(('10de', '1'), ('8086', '3')) == 9 and free(('10de', '1'), ('10de', '1')) == 1 and free() == 0


@pytest.mark.parametrize('policy', ['required', 'legacy', 'preferred'])
def test_devices_near_the_cells_that_a_server_got_are_gone(policy):
    """By the code that hosts claim by."""
    stored = objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(
                vendor_id='10de',
                product_id='13f1',
                numa_node=cell,
                count=1,
                tags={'dev_type': 'type-PCI', 'address': address},
            )
            for cell, address in ((0, '1'), (0, '2'), (1, '3'), (1, '4'))
        ]
    )
    table, states = filled([{**node('a', pci_stats=stored.to_json()), 'deleted': 0}])
    (place,) = states
    requests = tuple(spec(gpus=(1,)).pci_requests.requests)
    requests[0].numa_policy = policy
    topology = objects.InstanceNUMATopology(cells=[objects.InstanceNUMACell(id=1, cpuset={0}, memory=1)])
    for name in ('s1', 's2'):
        table.reservations.take(
            uuid(name), Reservation(place, 1, 1, 1, Counter(), topology=topology, requests=requests)
        )
    assert [pool.keys['numa_node'] for pool in table.devices.pools(place).pools if pool.count] == [0, 0]
    table.reservations.take(uuid('s3'), Reservation(place, 1, 1, 1, Counter(), topology=topology, requests=requests))
    # Whatever it was, one device is gone.
    assert table['pci_free'][place] == 1
    state = HostState({**table.node(place)[1]}, CELL, taken=table.reservations.on(place))
    assert state.pci_stats.free == 1


def objects_counter(mappings):
    return Counter(rp for rps in (mappings or {}).values() for rp in rps)


def test_a_claim_that_nobody_takes_is_forgotten():
    table, _ = filled([{**node('a'), 'deleted': 0, 'created_at': None, 'deleted_at': None}])
    for name, at in (('s1', 100.0), ('s2', 102.0)):
        table.reservations.take(
            uuid(name), Reservation(table.places.of(uuid('a')), 1, 1024, 0, objects_counter(None), at=at)
        )
    table.reservations.forget_old(now=102.0)
    assert (table.unsettled(CELL), table.unsettled('another')) == ([uuid('s1'), uuid('s2')], [])
    table.reservations.forget_old(now=101.0 + FORGET_AFTER)
    assert table.unsettled(CELL) == [uuid('s2')]
    table.reservations.forget_old(now=103.0 + FORGET_AFTER)
    assert table.unsettled(CELL) == []
    assert table['free_ram_mb'][table.places.of(uuid('a'))] == 262144


def test_anti_affinity_counts_what_was_just_sent():
    table, states = filled([{**node(name), 'deleted': 0, 'created_at': None, 'deleted_at': None} for name in 'ab'])
    group = objects.InstanceGroup(policy='anti-affinity', members=[uuid('s1'), uuid('s2')], hosts=[])
    request = spec(instance_uuid=uuid('s3'))
    request.instance_group = group
    mask = made(ServerGroupAntiAffinityFilter).mask
    assert mask(look(table), request)[sorted(states)].all()
    table.reservations.take(uuid('s2'), Reservation(table.places.of(uuid('b')), 1, 1, 1, objects_counter(None)))
    seen, asked = look(table, **{uuid('s1'): 'a'}), []
    real = seen.snapshot.servers.hosts_of
    seen.snapshot.servers.hosts_of = lambda uuids: asked.append(sorted(uuids)) or real(uuids)
    found = mask(seen, request)
    # One question for all of them.
    assert asked == [sorted(map(uuid, ('s1', 's2', 's3')))]
    assert [bool(found[table.places.of(uuid(name))]) for name in 'ab'] == [False, False]


def test_what_weighers_ask_of_single_hosts():
    table, _ = filled([{**node('a'), 'deleted': 0, 'created_at': None, 'deleted_at': None}])
    image = spec(image={'id': uuid(), 'properties': {'os_distro': 'debian'}})
    assert made(ImagePropertiesWeigher).values(look(table), image) is weighing.LOOP
    assert not made(ImagePropertiesWeigher).values(look(table), spec()).any()
    move = spec(
        requested_destination=objects.Destination(cell=objects.CellMapping(uuid=CELL), allow_cross_cell_move=True)
    )
    assert made(CrossCellWeigher).values(look(table), move)[table.places.of(uuid('a'))] == 1
    assert made(MetricsWeigher, metrics__weight_setting=['a=1']).values(look(table), spec()) is weighing.LOOP


def test_capabilities_are_looked_at_host_by_host():
    one = made(ComputeCapabilitiesFilter)
    assert one.mask(None, spec()) is None
    assert one.mask(None, spec({'capabilities:vcpus_total': '>= 4'})) is filtering.PER_HOST


def test_a_subclass_that_passes_otherwise_has_no_array_form():
    class Mine(ComputeFilter):
        def host_passes(self, host_state, spec_obj):
            return False

    assert filtering.array_form(made(Mine)) is None
    assert filtering.array_form(made(type('Same', (ComputeFilter,), {}))) is not None


@pytest.mark.parametrize('form', ['weight_multiplier', '_weigh_object', 'weigh_objects'])
def test_a_subclass_that_weighs_otherwise_has_no_array_form(form):
    """Its own method would not be called: it weighs the hosts one by one."""
    assert weighing.array_form(made(type('Mine', (RAMWeigher,), {form: lambda self, *args: 5.0}))) is None
    assert weighing.array_form(made(type('Same', (RAMWeigher,), {}))) is not None


@pytest.mark.parametrize(
    ('extra_specs', 'values', 'answered'),
    [
        ({}, {}, True),
        ({'trait:CUSTOM_A': 'required'}, {}, False),
        ({'resources:CUSTOM_B': '1'}, {}, False),
        ({'resources1:VCPU': '1'}, {}, False),
        ({'resources1:VGPU': '0'}, {}, True),
        ({'hw:cpu_policy': 'dedicated'}, {}, False),
        ({}, {'force_hosts': ['a']}, False),
        ({}, {'force_nodes': ['a']}, False),
        ({}, {'ignore_hosts': ['a']}, False),
        ({}, {'requested_destination': objects.Destination(host='a')}, False),
        ({}, {'requested_resources': [objects.RequestGroup(requester_id='_p', resources={'A': 1})]}, False),
        ({}, {'force_hosts': [], 'ignore_hosts': []}, True),
        ({'trait:CUSTOM_A': 'forbidden'}, {}, False),
        (
            {'hw:numa_nodes': '1'},
            {
                'numa_topology': objects.InstanceNUMATopology(
                    cells=[objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(), memory=1, cpu_policy=None)]
                )
            },
            False,
        ),
        ({}, {'gpus': (2,)}, True),
        ({'group_policy': 'isolate'}, {'gpus': (2,)}, False),
        ({'group_policy': 'isolate'}, {}, True),
    ],
)
def test_what_our_own_view_can_answer(extra_specs, values, answered):
    request = spec(extra_specs, **values)
    query = build(request, max_results=10, pci_in_placement=True)
    assert (need(request, query) is not None) is answered


@pytest.mark.parametrize(
    ('values', 'answered'),
    [
        ({'root_required': {'OWNER_NOVA'}, 'root_forbidden': {'COMPUTE_STATUS_DISABLED'}}, True),
        ({'root_required': {'CUSTOM_A'}}, False),
        ({'root_forbidden': {'CUSTOM_A'}}, False),
        ({'same_subtree': [['']]}, False),
    ],
)
def test_what_of_a_question_our_own_view_can_answer(values, answered):
    query = build(spec(), max_results=10)
    for name, value in values.items():
        setattr(query, name, value)
    assert (need(spec(), query) is not None) is answered
    for name, value in (('forbidden_aggregates', {'a'}), ('in_tree', uuid('a'))):
        query = build(spec(), max_results=10)
        setattr(query.unnamed, name, value)
        assert need(spec(), query) is None


@pytest.mark.parametrize(
    ('group', 'answered'),
    [
        (Group({'GPU': 1}), True),
        (Group({'GPU': 1}, required={'OWNER_NOVA'}), True),
        (Group({'GPU': 2}), False),
        (Group({'GPU': 1, 'B': 1}), False),
        (Group({'GPU': 1}, required={'FAST'}), False),
        (Group({'GPU': 1}, forbidden={'FAST'}), False),
        (Group({'GPU': 1}, aggregates=[['a']]), False),
    ],
)
def test_which_devices_our_own_view_knows(group, answered):
    query = build(spec(), max_results=10)
    query.groups['d'] = group
    assert need(spec(), query) is None, 'it is no device'
    query.pci_groups.add('d')
    assert (need(spec(), query) is not None) is answered


@pytest.mark.parametrize(
    ('asked', 'roomy'),
    [
        ({}, 'abc'),
        ({'VCPU': 8}, 'abc'),
        ({'VCPU': 9}, 'bc'),
        ({'MEMORY_MB': 100}, 'abc'),
        ({'MEMORY_MB': 101}, 'ac'),
        ({'DISK_GB': 5}, 'abc'),
        ({'DISK_GB': 6}, 'ab'),
        ({'VCPU': 9, 'MEMORY_MB': 101}, 'c'),
        ({'VCPU': 9, 'MEMORY_MB': 101, 'DISK_GB': 6}, ''),
    ],
)
def test_hosts_that_have_the_amounts_by_their_rows(asked, roomy):
    """By their ratios; all that they have left may go."""
    view = View(
        builders.host('a', vcpus=4, cpu_allocation_ratio=4.0, vcpus_used=8),
        builders.host('b', memory_mb=200, ram_allocation_ratio=1.5, memory_mb_used=200),
        builders.host('c', local_gb=5, disk_allocation_ratio=2.0, local_gb_used=5),
        builders.host('off', service={'disabled': 1}),
    )
    offers = LocalCandidates(view, None, spec(), Need(asked, (), {}), None)
    masks = dict(offers.masks(HostArrays(view), first=True))
    assert list(masks) == ['free amounts', 'service and zone']
    assert [name for name in 'abc' if masks['free amounts'][view.place(name)]] == list(roomy)
    assert not masks['service and zone'][view.place('off')] and masks['service and zone'][view.place('a')]
    assert list(dict(offers.masks(HostArrays(view), first=False))) == ['free amounts']


def test_the_allocation_of_a_host():
    query = build(spec(flavor_values={'vcpus': 2, 'memory_mb': 64, 'root_gb': 3}), max_results=10)
    query.groups |= {'d1': Group({'GPU': 1}), 'd2': Group({'GPU': 1}), 'd3': Group({'NIC': 1})}
    query.pci_groups = {'d1', 'd2', 'd3'}
    query.unnamed.aggregates = [['a', 'b'], ['c']]
    asked = need(spec(), query)
    assert asked.zone == (frozenset('ab'), frozenset('c'))
    mappings = {'d1': ['rp1'], 'd2': ['rp1'], 'd3': ['rp2']}
    assert asked.request('root', mappings) == {
        'allocations': {
            'root': {'resources': {'VCPU': 2, 'MEMORY_MB': 64, 'DISK_GB': 3}},
            'rp1': {'resources': {'GPU': 2}},
            'rp2': {'resources': {'NIC': 1}},
        },
        'mappings': {'': ['root'], **mappings},
    }


@pytest.mark.parametrize(
    ('values', 'expected'),
    [
        ({}, {'free_ram_mb': 262144, 'free_disk_mb': 1000 * 1024, 'num_instances': 0, 'num_io_ops': 0}),
        ({'free_ram_mb': 7, 'memory_mb_used': 9}, {'free_ram_mb': 7}),
        ({'free_ram_mb': 0}, {'free_ram_mb': 0}),
        ({'memory_mb_used': 44}, {'free_ram_mb': 262100}),
        ({'local_gb_used': 10}, {'free_disk_mb': 990 * 1024}),
        ({'free_disk_gb': 5, 'local_gb_used': 10}, {'free_disk_mb': 5 * 1024}),
        ({'free_disk_gb': 5, 'disk_available_least': 3}, {'free_disk_mb': 3 * 1024}),
        ({'free_disk_gb': 5, 'disk_available_least': 8}, {'free_disk_mb': 5 * 1024}),
        ({'running_vms': 4, 'current_workload': 3}, {'num_instances': 4, 'num_io_ops': 3}),
        ({'running_vms': None, 'current_workload': None}, {'num_instances': 0, 'num_io_ops': 0}),
        (
            {'running_vms': 4, 'current_workload': 3, 'stats': '{"num_instances": "6", "io_workload": "5"}'},
            {'num_instances': 6, 'num_io_ops': 5},
        ),
        ({'stats': '{"failed_builds": "2"}'}, {'failed_builds': 2}),
        ({'stats': None}, {'failed_builds': 0}),
        ({'stats': '{"failed_builds": null}'}, {'failed_builds': 0}),
    ],
)
def test_what_a_row_comes_to(values, expected):
    """In the table and on a host alone."""
    table, (place,) = filled([{**node('a', **values), 'deleted': 0}])
    state = HostState({**table.node(place)[1]}, CELL)
    for name, value in expected.items():
        assert (int(table[name][place]), getattr(state, name)) == (value, value), name


def test_rows_without_a_version_or_kinds_of_guests():
    table, (place,) = filled([{**node('a', hypervisor_version=None, supported_instances=None), 'deleted': 0}])
    assert table['hypervisor_version'][place] == 0
    assert not table.kinds(lambda kinds: kinds != [])[place] and table.kinds(lambda kinds: kinds == [])[place]


def test_a_host_of_a_place_is_another_ones_after_it_left():
    table, _ = filled([{**node(name, pci_stats=pools('1', host=name)), 'deleted': 0} for name in 'ab'])
    place = table.places.of(uuid('a'))
    table.reservations.take(uuid('s'), Reservation(place, 1, 1024, 2048, Counter()))
    table.drop(CELL, 0)
    assert not table['live'][place] and table['pci_free'][place] == 0 and table.reservations.places() == {}
    assert [row['host'] for _, row in table.nodes()] == ['b']
    table.drop(CELL, 0)
    row = {key: value for key, value in node('c').items() if key != 'service'}
    table.put(CELL, {**row, 'id': 7, 'deleted': 0})
    assert table.places.of(uuid('c')) == place and not table['live'][place]
    table.put(CELL, {**row, 'id': 7, 'deleted': 7})
    assert table.places.of(uuid('c')) is None


def test_services_come_and_go():
    table, (place,) = filled([{**node('a'), 'deleted': 0}])

    def seen():
        return [bool(table[name][place]) for name in ('live', 'disabled', 'up')]

    service = {'id': 3, 'host': 'a', 'disabled': True, 'deleted': 0}
    table.services.put(CELL, service)
    assert seen() == [True, True, True]
    table.services.put_down('elsewhere', {3})
    assert seen() == [True, True, True] and table.services.down(CELL) == set()
    table.services.put_down(CELL, {3})
    assert seen() == [True, True, False] and table.services.down(CELL) == {3}
    # What is written of it says nothing of its heart.
    table.services.put(CELL, {**service, 'disabled': False})
    assert seen() == [True, False, False]
    table.services.put(CELL, {**service, 'id': 5, 'deleted': 5})
    assert seen() == [True, False, False], 'an older one of the same host is gone'
    table.services.forget_cell('elsewhere', ())
    table.services.forget_cell(CELL, {3})
    assert seen() == [True, False, False]
    table.services.forget_cell(CELL, {1})
    assert seen() == [False, False, False] and table.services.get(CELL, 'a') is None


def test_a_cell_that_is_gone_takes_its_hosts_along():
    table, _ = filled([{**node(name), 'deleted': 0} for name in 'xabc'])
    table.drop(CELL, 0)
    table.forget_cell(CELL, keep={2}, keep_services={2, 3})
    assert [row['host'] for _, row in table.nodes()] == ['b']
    assert table.services.get(CELL, 'c') is not None and table.services.get(CELL, 'a') is None
    assert table.present({CELL}).sum() == 1 and not table.present(set()).any()
    table.forget_cell(CELL)
    assert table.nodes() == [] and table.services.get(CELL, 'b') is None


def test_hosts_without_a_host_mapping_are_present_and_not_usable():
    """A host without a host mapping is present in the table and not usable."""
    table, (one, other) = filled([{**node('a'), 'deleted': 0}, {**node('b', id=2, mapped=0), 'deleted': 0}])
    for name in ('a', 'b'):
        table.services.put(CELL, {'id': 1, 'host': name, 'disabled': False, 'deleted': 0})
    assert table.present({CELL})[[one, other]].tolist() == [True, True]
    assert table.usable({CELL})[[one, other]].tolist() == [True, False]


def test_places_are_there_and_free_again():
    places = HostIndex(2)
    rows = [{'id': number, 'uuid': uuid(f'h{number}'), 'host': f'h{number // 2}'} for number in range(5)]
    assert [places.add(CELL, row) for row in rows] == [0, 1, 2, 3, 4]
    assert (places.size, len(places), places.cells) == (8, 5, [CELL])
    assert places.add(CELL, rows[3]) == 3 and len(places) == 5
    assert (places.of_host(CELL, 'h1'), places.of_host('elsewhere', 'h1')) == ({2, 3}, set())
    assert places.named(['h0', 'h2', 'x']) == {0, 1, 4}
    places.remove(CELL, rows[1])
    assert (places.of(uuid('h1')), places.of_node(CELL, 1), places.of_host(CELL, 'h0')) == (None, None, {0})
    assert places.of_cell(CELL) == [0, 2, 3, 4] and places.of_cell('elsewhere') == []
    assert places.add('cell2', {**rows[1], 'id': 9}) == 1 and places.cells == [CELL, 'cell2']
    assert places.mask([0, 4]).tolist() == [True, False, False, False, True, False, False, False]
    assert places.these([uuid('h4'), uuid('x')]).tolist() == [False] * 4 + [True] + [False] * 3


def test_columns_grow_and_keep_what_they_have():
    columns = HostColumns({'a': np.array([1, 2]), 'b': np.array([0.5, 1.5])})
    columns.grow(4)
    assert columns['a'].tolist() == [1, 2, 0, 0] and columns['b'].tolist() == [0.5, 1.5, 0, 0]
    assert columns['a'].dtype == np.int64
    columns.clear_host(1)
    assert columns['a'].tolist() == [1, 0, 0, 0] and columns['b'].tolist() == [0.5, 0, 0, 0]
