from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilonova.objects import NUMACell, NUMATopology, PciDevicePool, PciDevicePoolList
from kilonova.pci import pools as pci_pools
from kilonova.pci.devices import NodeDevices
from kilonova.pci.pools import PciDeviceRequestFailed, PciPools
from tests.unit.pci import builders
from tests.unit.pci.builders import found, functions, request


def host(*devices, specs='{"vendor_id": "10de"}', sockets=None) -> PciPools:
    return dataclasses.replace(builders.host(list(devices), specs), sockets=sockets).pools


def scheduler_side(pools: PciPools) -> PciPools:
    """What the scheduler reads of what the host stores."""
    stored = PciDevicePoolList.obj_from_primitive(json.loads(json.dumps(pools.to_pool_list().obj_to_primitive())))
    return PciPools.from_pool_list(stored, pools.sockets)


def both(*devices, **options) -> list[PciPools]:
    made = host(*devices, **options)
    return [made, scheduler_side(made)]


def counts(pools: PciPools) -> list[tuple]:
    return [(pool.keys['dev_type'], pool.keys['address'], pool.count) for pool in pools.pools]


def nodes(pools: PciPools, wanted, cells) -> list:
    """NUMA nodes of the devices that a request gets; None: it fails."""
    try:
        return sorted((device.numa_node for device, _ in pools.copy().consume_requests([wanted], None, cells)), key=str)
    except PciDeviceRequestFailed:
        return None


PF0, PF1 = '0000:81:00.0', '0000:82:00.0'


def test_keys_and_stored_form():
    pools = host(
        found('0000:08:00.0'),
        *functions(PF0, 2, parent_ifname='ens1'),
        specs='{"vendor_id": "10de", "physical_network": null, "colour": "red", "resource_class": "GPU", '
        '"traits": "X"}',
    )
    stored = pools.to_pool_list()
    assert [(pool.vendor_id, pool.product_id, pool.numa_node, pool.count) for pool in stored] == [
        ('10de', '13f1', 0, 1),
        ('10de', '13f1', 0, 2),
    ]
    assert stored[0].tags == {
        'dev_type': 'type-PCI',
        'address': '0000:08:00.0',
        'physical_network': None,
        'colour': 'red',
    }
    assert stored[1].tags == {
        'dev_type': 'type-VF',
        'address': PF0,
        'physical_network': None,
        'colour': 'red',
        'parent_ifname': 'ens1',
        'remote_managed': 'false',
    }
    assert pools.free == 3
    again = scheduler_side(pools)
    assert [pool.keys for pool in again.pools] == [pool.keys for pool in pools.pools]


def test_unknown_devices_are_not_offered():
    made = builders.host([found('0000:08:00.0')])
    (stranger,) = builders.host([found('0000:09:00.0', vendor_id='8086')], '{}').all()
    assert NodeDevices.of(made.kinds, [*made.all(), stranger], 1).pools.free == 1


def test_spec_match_ignores_case_and_placement_keys():
    for pools in both(found('0000:08:00.0')):
        assert pools.support_requests([request(vendor_id='10DE', product_id='13F1', resource_class='x', traits='y')])
        assert not pools.support_requests([request(vendor_id='10de', product_id='0fbb')])
        assert not pools.support_requests([request(vendor_id='10de', physical_network=None)])
        assert pools.support_requests([])
        assert pools.support_requests(None)


def test_only_available_devices_are_offered():
    """The host's side, made of rows: whatever another status says, such a device is not free."""
    made = builders.host([found(f'0000:0{number}:00.0') for number in range(5)])
    statuses = ('available', 'claimed', 'allocated', 'unavailable', 'unclaimable')
    devices = made.all()
    for device, status in zip(devices, statuses, strict=True):
        device.status = status
    (kind,) = made.kinds
    pools = PciPools.from_devices([(device, kind.pool_keys(device)) for device in devices])
    assert counts(pools) == [('type-PCI', f'0000:0{number}:00.0', number == 0) for number in range(3)]


def test_alternatives():
    wanted = request(2)
    wanted.spec = [{'vendor_id': '10de', 'product_id': '13f1'}, {'vendor_id': '10de', 'product_id': '1430'}]
    for pools in both(found('0000:08:00.0'), found('0000:09:00.0', product_id='1430')):
        assert pools.support_requests([wanted])
        assert not pools.support_requests([wanted, wanted])


def test_requests_are_counted_together():
    """Two requests may not both count the same device (bug 1986838)."""
    for pools in both(found('0000:08:00.0')):
        assert pools.support_requests([request(1)])
        assert not pools.support_requests([request(1), request(1)])
        assert pools.free == 1


def test_failed_apply_changes_nothing():
    for pools in both(found('0000:08:00.0'), found('0000:09:00.0')):
        before = counts(pools)
        with pytest.raises(PciDeviceRequestFailed):
            pools.consume_requests([request(1), request(2)])
        assert counts(pools) == before


def test_pf_only_when_asked_for():
    for pools in both(found(PF0, dev_type='type-PF'), found('0000:08:00.0')):
        assert not pools.support_requests([request(2)])
        assert pools.support_requests([request(1, vendor_id='10de', dev_type='type-PF')])
        pools.consume_requests([request(1)])
        assert ('type-PF', PF0, 1) in counts(pools)


def test_vdpa_only_when_asked_for():
    for pools in both(found('0000:81:10.0', dev_type='vdpa', parent=PF0)):
        assert not pools.support_requests([request(1)])
        assert pools.support_requests([request(1, vendor_id='10de', dev_type='vdpa')])


def test_remote_managed_only_when_asked_for():
    vpd = {'capabilities': {'vpd': {'card_serial_number': 'MT1'}}}
    for pools in both(*functions(PF0, 1, **vpd), specs='{"vendor_id": "10de", "remote_managed": "true"}'):
        assert not pools.support_requests([request(1)])
        assert pools.support_requests([request(1, vendor_id='10de', remote_managed='True')])


def test_devices_of_a_network_only_for_requests_that_name_a_network():
    """Offer the devices if one alternative of the request names the network."""
    for pools in both(found('0000:08:00.0'), specs='{"vendor_id": "10de", "physical_network": "net1"}'):
        wanted = request(1, vendor_id='10de', physical_network='net1')
        assert pools.support_requests([wanted]) and not pools.support_requests([request(1)])
        wanted.spec = [*wanted.spec, {'vendor_id': '15b3'}]
        assert pools.support_requests([wanted])


def test_live_migratable():
    plain = both(found('0000:08:00.0'))
    yes = both(found('0000:08:00.0'), specs='{"vendor_id": "10de", "live_migratable": "yes"}')
    no = both(found('0000:08:00.0'), specs='{"vendor_id": "10de", "live_migratable": "no"}')
    wanted = {answer: request(1, vendor_id='10de', live_migratable=answer) for answer in ('true', 'false')}
    for pools in plain + yes + no:
        assert pools.support_requests([request(1)])
    assert [pools.support_requests([wanted['true']]) for pools in plain + yes + no] == [False] * 2 + [True] * 2 + [
        False
    ] * 2
    assert [pools.support_requests([wanted['false']]) for pools in plain + yes + no] == [False] * 4 + [True] * 2


def test_one_device_of_two_kinds_need_not_be_live_migratable():
    """Only where each of the alternatives of a request names it does it turn devices away."""
    wanted = request(1, vendor_id='10de', live_migratable='true')
    wanted.spec = [*wanted.spec, {'vendor_id': '10de'}]
    for pools in both(found('0000:08:00.0')):
        assert pools.support_requests([wanted])


def test_a_device_that_is_not_free_hides_no_other():
    first, second = builders.host([found('0000:08:00.0'), found('0000:09:00.0')], '{"vendor_id": "10de"}').all()
    first.status = 'unavailable'
    for devices in ([first, second], [second, first]):
        pools = PciPools.from_devices((device, {'address': device.address}) for device in devices)
        assert [(pool.keys, pool.count) for pool in pools.pools] == [({'address': '0000:09:00.0'}, 1)]


def numa_host(*numa_nodes, sockets=None):
    return host(*(found(f'0000:0{index}:00.0', numa=node) for index, node in enumerate(numa_nodes)), sockets=sockets)


@pytest.mark.parametrize(
    ('policy', 'count', 'got'),
    [
        ('required', 1, [0]),
        ('required', 2, None),
        ('legacy', 1, [0]),
        ('legacy', 2, [0, None]),
        ('legacy', 3, None),
        ('preferred', 1, [0]),
        ('preferred', 2, [0, None]),
        ('preferred', 3, [0, 1, None]),
        ('preferred', 4, None),
        ('socket', 1, [0]),
        ('socket', 2, None),
    ],
)
def test_numa_policies(policy, count, got):
    pools = numa_host(1, 0, None)
    assert nodes(pools, request(count, policy), [0]) == got
    assert scheduler_side(pools).support_requests([request(count, policy)], numa_cells=[0]) is (got is not None)


def test_numa_default_and_guests_without_numa():
    wanted = request(1)
    wanted.numa_policy = None
    assert nodes(numa_host(1), wanted, [0]) is None
    assert nodes(numa_host(1), request(1, 'required'), []) == [1]
    assert nodes(numa_host(1), request(1, 'required'), None) == [1]


def test_numa_cells_may_be_objects():
    assert nodes(numa_host(0, 1), request(1, 'required'), [NUMACell(id=1)]) == [1]


def test_numa_socket():
    pools = numa_host(1, 0, 2, sockets={0: 0, 1: 0, 2: 1})
    assert nodes(pools, request(2, 'socket'), [0]) == [0, 1]
    assert nodes(pools, request(3, 'socket'), [0]) is None
    pools.sockets = {0: 0, 1: 0, 2: None}
    assert nodes(pools, request(2, 'socket'), [0]) is None
    assert nodes(pools, request(1, 'socket'), [0]) == [0]


def test_sockets_of():
    assert pci_pools.sockets_of(None) == {}
    assert pci_pools.sockets_of(NUMATopology(cells=[NUMACell(id=0, socket=1), NUMACell(id=1)])) == {
        0: 1,
        1: None,
    }


def test_taking_a_pf_takes_its_functions_away():
    devices = [
        found(PF0, dev_type='type-PF'),
        *functions(PF0, 2),
        found(PF1, dev_type='type-PF'),
        *functions(PF1, 2),
    ]
    for pools in both(*devices):
        pools.consume_requests([request(1, vendor_id='10de', dev_type='type-PF')])
        pf, address = next(one[:2] for one in counts(pools) if one[2] == 0)
        assert pf == 'type-PF'
        assert ('type-VF', address) not in [one[:2] for one in counts(pools)]
        assert pools.support_requests([request(2, vendor_id='10de', dev_type='type-VF')])
        assert not pools.support_requests([request(3, vendor_id='10de', dev_type='type-VF')])


def test_taking_a_function_takes_the_pf_away():
    for pools in both(found(PF0, dev_type='type-PF'), *functions(PF0, 2)):
        pools.consume_requests([request(1)])
        assert counts(pools) == [('type-VF', PF0, 1)]


def test_one_request_for_pf_or_functions_never_gets_both():
    wanted = request(3)
    wanted.spec = [{'vendor_id': '10de', 'dev_type': 'type-PF'}, {'vendor_id': '10de', 'dev_type': 'type-VF'}]
    for pools in both(found(PF0, dev_type='type-PF'), *functions(PF0, 2)):
        assert not pools.support_requests([wanted])


def with_providers(*devices, **options):
    made = host(*devices, **options)
    for pool in made.pools:
        pool.rp_uuid = 'rp-' + pool.keys['address']
    return [made, scheduler_side(made)]


def mapping(wanted, *addresses):
    return {f'{wanted.request_id}-{index}': ['rp-' + address] for index, address in enumerate(addresses)}


def test_exactly_the_allocated_devices():
    addresses = ['0000:81:00.0', '0000:81:01.0', '0000:81:02.0']
    for pools in with_providers(*map(found, addresses)):
        wanted = request(2)
        pools.consume_requests([wanted], mapping(wanted, addresses[2], addresses[0]))
        assert [pool.count for pool in pools.pools] == [0, 1, 0]
        again = request(1)
        assert not pools.support_requests([again], mapping(again, addresses[2]))
        assert pools.support_requests([again], mapping(again, addresses[1]))
        assert pools.support_requests([again], {'other-0': ['rp-x']})


def test_as_many_as_allocated_from_each_pf():
    """Three functions of two PFs are three, however many each PF has left (bug 2098496)."""
    devices = [*functions(PF0, 4), *functions(PF1, 4)]
    for pools in with_providers(*devices):
        wanted = request(3)
        pools.consume_requests([wanted], mapping(wanted, PF0, PF1, PF0))
        assert counts(pools) == [('type-VF', PF0, 2), ('type-VF', PF1, 3)]
        short = request(2)
        assert not pools.support_requests([short], mapping(short, PF0))
    # One that isn't there any more can't be made up for.
    for pools in with_providers(*functions(PF0, 1), *functions(PF1, 1)):
        assert not pools.support_requests([request(2, vendor_id='10de', rp_uuids=f'rp-{PF0},rp-{PF0},rp-{PF1}')])


def test_two_pools_of_one_provider_give_what_was_allocated_from_it():
    """Functions of one PF that differ on two NUMA nodes: one was allocated, one is taken."""
    devices = [*functions(PF0, 1, numa=0), found('0000:81:10.1', dev_type='type-VF', parent=PF0, numa=1)]
    for pools in with_providers(*devices):
        assert len(pools.pools) == 2
        wanted = request(1)
        pools.consume_requests([wanted], mapping(wanted, PF0))
        assert pools.free == 1
        wanted = request(1)
        pools.consume_requests([wanted], mapping(wanted, PF0))
        assert pools.free == 0


def test_devices_that_tell_more_of_themselves_come_last():
    """They are left for the requests that ask for just that."""
    plain, special = '0000:08:00.0', '0000:07:00.0'
    made = host(
        found(special),
        found(plain),
        specs=json.dumps([{'address': special, 'shelf': 'a', 'colour': 'red'}, {'address': plain}]),
    )
    assert [pool.keys['address'] for pool in made.pools] == [plain, special]
    for pools in (made, scheduler_side(made)):
        pools.consume_requests([request(1)])
        assert pools.support_requests([request(1, vendor_id='10de', colour='red')])


def test_allocated_devices_must_still_match():
    for pools in with_providers(found(PF0, product_id='1430')):
        wanted = request(1)
        assert not pools.support_requests([wanted], mapping(wanted, PF0))


def test_providers_of_the_request_itself():
    for pools in with_providers(found(PF0), found(PF1)):
        pools.consume_requests([request(1, vendor_id='10de', rp_uuids=f'rp-{PF1}')])
        assert [pool.count for pool in pools.pools] == [1, 0]


def test_mappings_for_several_requests_share_no_provider():
    """What one request of a server gets the next one doesn't."""
    addresses = ['0000:81:00.0', '0000:81:01.0', '0000:81:02.0']
    for pools in with_providers(*map(found, addresses)):
        first, second = request(1), request(2)
        mappings = pools.providers([first, second])
        assert sorted(rp for rps in mappings.values() for rp in rps) == ['rp-' + address for address in addresses]
        assert mappings.keys() == {f'{first.request_id}-0', f'{second.request_id}-0', f'{second.request_id}-1'}
        assert pools.providers([first, request(3)]) is None
        # Asking takes nothing.
        assert pools.free == 3


def test_mappings_name_no_device_that_placement_does_not_know():
    """A pool without a provider, as before a host's first report."""
    for pools in both(found(PF0), found(PF1)):
        assert pools.providers([request(1)]) is None
        next(pool for pool in pools.pools if pool.keys['address'] == PF1).rp_uuid = 'rp'
        wanted = request(1)
        assert pools.providers([wanted]) == {f'{wanted.request_id}-0': ['rp']}
        assert pools.providers([request(2)]) is None


def test_mappings_of_one_request_never_name_a_function_and_its_pf():
    """Whichever of them is first, the other is gone then; another PF's are there."""
    wanted = request(2)
    wanted.spec = [{'vendor_id': '10de', 'dev_type': 'type-PF'}, {'vendor_id': '10de', 'dev_type': 'type-VF'}]
    for pools in with_providers(found(PF0, dev_type='type-PF'), *functions(PF0, 1)):
        assert pools.providers([wanted]) is None
    for pools in with_providers(found(PF0, dev_type='type-PF'), *functions(PF0, 1), found(PF1, dev_type='type-PF')):
        mappings = pools.providers([wanted])
        assert sorted(rp for rps in mappings.values() for rp in rps) == [f'rp-{PF0}', f'rp-{PF1}']
        # Taken they leave nothing: what was passed over is a relative of the first.
        pools.consume_requests([wanted])
        assert pools.free == 0


def test_devices_whose_address_is_not_told_are_no_relatives():
    """Pools without addresses, as other computes may store them: a function that is taken leaves all PFs there, and a
    PF all functions."""
    stored = PciDevicePoolList(
        objects=[
            PciDevicePool(vendor_id='10de', product_id='13f1', numa_node=0, count=2, tags={'dev_type': dev_type})
            for dev_type in ('type-PF', 'type-VF')
        ]
    )
    for dev_type, other in (('type-VF', 'type-PF'), ('type-PF', 'type-VF')):
        pools = PciPools.from_pool_list(stored)
        pools.consume_requests([request(1, vendor_id='10de', dev_type=dev_type)])
        assert {pool.keys['dev_type']: pool.count for pool in pools.pools} == {dev_type: 1, other: 2}


device_lists = st.lists(
    st.tuples(st.sampled_from(['type-PCI', 'type-PF']), st.integers(0, 3), st.sampled_from([0, 1])),
    min_size=1,
    max_size=5,
)
asked = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from([None, 'type-PCI', 'type-PF', 'type-VF']),
        st.sampled_from(['required', 'legacy', 'preferred']),
    ),
    max_size=6,
)


@given(device_lists, asked)
def test_both_sides_agree_and_never_overcommit(shapes, wanted):
    devices = []
    for index, (dev_type, children, numa) in enumerate(shapes):
        address = f'0000:{index:02x}:00.0'
        devices.append(found(address, dev_type=dev_type, numa=numa))
        if dev_type == 'type-PF':
            devices.extend(functions(address, children, numa=numa))
    here = host(*devices)
    there = scheduler_side(here)
    taken = set()
    for count, dev_type, policy in wanted:
        one = request(count, policy, **{'vendor_id': '10de', **({'dev_type': dev_type} if dev_type else {})})
        possible = there.support_requests([one], numa_cells=[0])
        assert possible == here.support_requests([one], numa_cells=[0])
        if not possible:
            continue
        there.consume_requests([one], numa_cells=[0])
        got = [device for device, _ in here.consume_requests([one], numa_cells=[0])]
        assert len(got) == count
        assert not taken & {device.address for device in got}
        taken |= {device.address for device in got}
        parents = {device.parent_addr for device in got}
        assert not parents & taken
        assert here.free == there.free
