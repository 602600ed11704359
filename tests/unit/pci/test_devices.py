"""What a host has now against what the rows of its devices say."""

from __future__ import annotations

import pytest

from kilonova.objects import PciDevice
from kilonova.pci.device import DISABLED, RESERVED_BEFORE, describe
from kilonova.pci.devices import Changes, DeviceOwner, NodeDevices
from kilonova.pci.kinds import PciFunctions
from kilonova.pci.pools import PciDeviceRequestFailed
from kilonova.pci.spec import DeviceSpecs
from tests.unit.pci.builders import NODE, found, functions, host, request, saved, statuses

A, B = 'aaaaaaaa-0000-4000-8000-00000000000a', 'bbbbbbbb-0000-4000-8000-00000000000b'
G0, G1 = '0000:81:00.0', '0000:82:00.0'
PF0 = '0000:91:00.0'
VF0, VF1 = (one['address'] for one in functions(PF0, 2))
FAMILY = [found(PF0, dev_type='type-PF'), *functions(PF0, 2)]


def given(made: NodeDevices, uuid: str, *addresses: str, status: str = 'allocated') -> NodeDevices:
    return made.given({address: DeviceOwner(status, uuid, 'r') for address in addresses}, uuid)[0]


def freed(made: NodeDevices, uuid: str) -> NodeDevices:
    return made.given({device.address: None for device in made.held(uuid)}, uuid)[0]


def test_each_kind_of_change_is_a_change() -> None:
    device = PciDevice(address=G0)
    change = {
        'id': 1,
        'address': G0,
        'from': 'available',
        'to': 'unavailable',
        'instance_uuid': None,
        'request_id': None,
    }
    lists = [[device], [device], [device], [change]]
    assert not Changes([], [], [], [])
    for place in range(4):
        assert Changes(*(found if index == place else [] for index, found in enumerate(lists)))


def test_a_stored_device_reads_as_it_was_found() -> None:
    (stored,) = host(
        [found(VF0, dev_type='type-VF', parent=PF0, numa=1, capabilities={'vpd': {'a': '1'}})], '{"vendor_id": "10de"}'
    ).all()
    assert describe(stored) == {
        'address': VF0,
        'vendor_id': '10de',
        'product_id': '13f1',
        'dev_type': 'type-VF',
        'numa_node': 1,
        'parent_addr': PF0,
        'capabilities': {'vpd': {'a': '1'}},
    }


def test_new_devices() -> None:
    made = NodeDevices((PciFunctions(DeviceSpecs.parse(['{"vendor_id": "10de", "managed": "no"}'])),), NODE).looked(
        [found(G0, capabilities={'vpd': {'card_serial_number': '1'}}, parent_ifname=None), found(G1, vendor_id='8086')]
    )
    changes = made.unwritten()
    (device,) = changes.created
    assert (device.address, device.status, device.compute_node_id) == (G0, 'available', NODE)
    assert device.extra_info == {'managed': 'false', 'capabilities': '{"vpd": {"card_serial_number": "1"}}'}
    assert 'id' not in device
    assert device.uuid
    assert made.pools.free == 0, 'nobody can claim a device without a row'
    made = made.written(changes, {G0: 7})
    ((device, _),) = made.pools.copy().consume_requests([request(1)])
    assert device.id == 7
    assert not made.unwritten()


def test_a_look_before_the_last_one_was_written_is_the_same() -> None:
    made = NodeDevices((PciFunctions(DeviceSpecs.parse(['{}'])),), NODE).looked([found(G0)])
    again = made.looked([found(G0)])
    assert [device.uuid for device in made.unwritten().created] == [one.uuid for one in again.unwritten().created]
    assert again.looked([]).all() == []
    assert not again.looked([]).unwritten()


def test_changed_device_moves_to_another_pool() -> None:
    """The pool follows the type of a free device (bug 1892361)."""
    now = [found(G0, dev_type='type-PF', numa=1)]
    made = host([found(G0)]).looked(now)
    (device,) = made.unwritten().updated
    assert device.obj_what_changed() == {'dev_type', 'numa_node'}
    made = saved(made)
    assert [(pool.tags['dev_type'], pool.numa_node, pool.count) for pool in made.pools.to_pool_list()] == [
        ('type-PF', 1, 1)
    ]
    assert not made.looked(now).unwritten()


def test_held_device_changes_when_it_is_freed() -> None:
    made = given(host([found(G0)]), A, G0).looked([found(G0, numa=1)])
    assert not made.unwritten()
    assert made.all()[0].numa_node == 0
    assert freed(made.looked([found(G0)]), A).all()[0].numa_node == 0, 'it changed back meanwhile'
    made = freed(made, A)
    assert made.all()[0].numa_node == 1
    assert [(pool.numa_node, pool.count) for pool in made.pools.to_pool_list()] == [(1, 1)]
    assert [device.address for device in made.unwritten().updated] == [G0]


def test_free_device_that_disappears() -> None:
    made = host([found(G0), found(G1)]).looked([found(G0)])
    assert [device.address for device in made.unwritten().removed] == [G1]
    assert (made.pools.free, [device.address for device in made.all()]) == (1, [G0])
    assert [device.address for device in made.looked([found(G0)]).unwritten().removed] == [G1]
    assert not saved(made).looked([found(G0)]).unwritten()


def test_device_that_comes_back_before_its_row_is_gone() -> None:
    made = host([found(G0), found(G1)]).looked([found(G0)]).looked([found(G0), found(G1)])
    assert not made.unwritten()
    assert made.pools.free == 2


def test_held_device_that_disappears(caplog: pytest.LogCaptureFixture) -> None:
    before = given(host([found(G0)]), A, G0)
    made = before.looked([])
    (row,) = made.unwritten().updated
    assert row.extra_info == {'missing': 'its host no longer has it, or the configuration no longer names it'}
    assert row.obj_what_changed() == {'extra_info'}
    assert [device.address for device in made.barred_since(before)] == [G0]
    made = saved(made)
    assert not made.looked([]).unwritten() and not made.looked([]).barred_since(made)
    assert [device.extra_info for device in made.looked([found(G0)]).unwritten().updated] == [{}]
    assert caplog.text.count(f"Unable to remove device with status 'allocated' and ownership {A}") == 1
    assert caplog.text.count('Unable to remove') == 1
    made, (change,) = made.given({G0: None}, A)
    assert (change['from'], change['to'], change['instance_uuid']) == ('allocated', 'removed', A)
    assert (made.pools.free, made.all()) == (0, [])
    assert [device.address for device in made.looked([]).unwritten().removed] == [G0]


def test_device_whose_row_says_removed_is_offered_when_it_is_found_again() -> None:
    made = freed(given(host([found(G0)]), A, G0).looked([]), A)
    rows = [entry.device for entry in made.entries.values()]
    made = NodeDevices.of(made.kinds, rows, NODE)
    assert made.pools.free == 0
    made = made.looked([found(G0)])
    assert [(change['from'], change['to']) for change in made.unwritten().statuses] == [('removed', 'available')]
    assert saved(made).pools.free == 1


def test_held_device_that_disappears_and_returns() -> None:
    made = freed(given(host([found(G0)]), A, G0).looked([]).looked([found(G0)]), A)
    assert made.pools.free == 1


def test_providers() -> None:
    now = [found(G0), *functions(PF0, 2)]
    made = host(now).provided({G0: 'rp0', PF0: 'rp1'})
    assert {device.address: device.extra_info for device in made.unwritten().updated} == {
        address: {'rp_uuid': rp} for address, rp in ((G0, 'rp0'), (VF0, 'rp1'), (VF1, 'rp1'))
    }
    assert {pool.tags['rp_uuid'] for pool in made.pools.to_pool_list()} == {'rp0', 'rp1'}
    made = saved(made).looked(now)
    assert not made.unwritten()
    assert {device.extra_info['rp_uuid'] for device in made.all()} == {'rp0', 'rp1'}
    again = NodeDevices.of(made.kinds, made.all(), NODE)
    assert again.pools.to_pool_list()[0].tags['rp_uuid'] == 'rp0'


def test_copies_do_not_change_what_is_so() -> None:
    made = given(host([found(G0), found(G1)]), A, G0)
    for device in (*made.all(), *made.held(A), *made.looked([]).unwritten().removed):
        device.status = 'unavailable'
    assert statuses(made) == {G0: 'allocated', G1: 'available'}


# -- physical functions and what is below them -------------------------------------------------------------------------
def test_stored_statuses_that_do_not_fit_are_mended() -> None:
    """A leftover status of a relative must not bar a claim (bug 1969496)."""
    made = host(FAMILY)
    rows = {device.address: device for device in made.all()}
    rows[VF0].status = 'unclaimable'
    rows[PF0].status = 'unavailable'
    rows[VF1].instance_uuid = B
    again = NodeDevices.of(made.kinds, rows.values(), NODE)
    assert {(device.status, device.instance_uuid) for device in again.all()} == {('available', None)}
    assert not saved(again).unwritten()
    assert {change['address']: (change['from'], change['to']) for change in again.unwritten().statuses} == {
        VF0: ('unclaimable', 'available'),
        PF0: ('unavailable', 'available'),
    }
    settled, changes = again.given({}, A)
    assert {change['address']: change['to'] for change in changes} == {VF0: 'available', PF0: 'available'}
    assert settled.given({}, A) == (settled, [])
    _, changes = again.given({PF0: DeviceOwner('claimed', A, 'r')}, A)
    assert {change['address']: (change['from'], change['to']) for change in changes} == {
        PF0: ('unavailable', 'claimed'),
        VF1: ('available', 'unclaimable'),
    }


def test_rows_that_contradict_each_other_offer_nothing() -> None:
    """Somebody else wrote them: a function is held with its physical function."""
    rows = host(FAMILY).all()
    for device in rows[:2]:
        device.status, device.instance_uuid = 'allocated', A
    made = NodeDevices.of(host([]).kinds, rows, NODE)
    assert statuses(made) == {PF0: 'allocated', VF0: 'allocated', VF1: 'unavailable'}
    with pytest.raises(PciDeviceRequestFailed):
        made.pools.copy().consume_requests([request(1, vendor_id='10de', dev_type='type-VF')])
    assert statuses(given(made, A, PF0)) == statuses(made)


def test_what_changes_no_device_leaves_all_as_it_is() -> None:
    """Its pools are counted and written once."""
    made = host(FAMILY)
    after, changes = made.given({}, A)
    assert after is made and not changes
    assert made.pools_text == made.pools.to_pool_list().to_json() != given(made, A, VF0).pools_text


def test_new_functions_of_a_held_pf() -> None:
    made = given(host(FAMILY[:1]), A, PF0).looked(FAMILY[:2])
    assert [device.status for device in made.unwritten().created] == ['unavailable']
    made, changes = saved(made).given({PF0: None}, A)
    assert {change['address']: (change['from'], change['to']) for change in changes} == {
        PF0: ('allocated', 'available'),
        VF0: ('unavailable', 'available'),
    }
    assert made.pools.free == 2


def test_owners_of_rows_are_known() -> None:
    made = given(given(host(FAMILY), A, VF0), B, VF1, status='claimed')
    again = NodeDevices.of(
        made.kinds, [PciDevice.obj_from_primitive(device.obj_to_primitive()) for device in made.all()], NODE
    )
    assert [(device.address, device.status, device.request_id) for device in again.held(B)] == [(VF1, 'claimed', 'r')]
    assert [device.address for device in again.held()] == [VF0, VF1]
    assert (statuses(again), again.pools.free) == ({PF0: 'unavailable', VF0: 'allocated', VF1: 'claimed'}, 0)
    assert not again.unwritten()


# -- what Placement had reserved before a device became unavailable ---------------------------------------------------
def kept(made: NodeDevices) -> dict[str, str]:
    """{address: the amount that the device's row keeps}."""
    return {
        device.address: device.extra_info[RESERVED_BEFORE]
        for device in made.all()
        if RESERVED_BEFORE in device.extra_info
    }


def disabled(made: NodeDevices, *addresses: str, reason: str | None = 'repairs') -> NodeDevices:
    return made.barred({address: {DISABLED: reason} for address in addresses})


def card() -> NodeDevices:
    """Two functions of one provider."""
    return host(FAMILY[1:]).provided({PF0: 'rp'})


def test_the_amount_is_kept_as_long_as_one_device_of_the_provider_is_unavailable() -> None:
    made = disabled(card(), VF0)
    assert made.to_mark() == {'rp': None}
    made = made.marked({'rp': 3})
    assert kept(made) == {VF0: '3'} and made.to_mark() == {}
    assert kept(made.unmarked()) == {VF0: '3'}, 'the other function is available'
    both = disabled(made, VF1)
    assert both.to_mark() == {'rp': 3} and kept(both.marked(both.to_mark())) == {VF0: '3', VF1: '3'}
    assert kept(disabled(both, VF0, VF1, reason=None).unmarked()) == {}


def test_the_amount_is_not_kept_for_devices_of_other_providers() -> None:
    made = disabled(host([found(G0), found(G1)]).provided({G0: 'rp0', G1: 'rp1'}), G0)
    assert made.to_mark() == {'rp0': None} and kept(made.marked({'rp0': 0, 'rp1': 5})) == {G0: '0'}


@pytest.mark.parametrize(('leaving', 'reserves'), [((), False), ((VF1,), False), ((VF0,), True)])
def test_a_device_that_a_server_holds_is_reserved_when_the_server_releases_it(
    leaving: tuple[str, ...], reserves: bool
) -> None:
    """Until then its allocation keeps others from it."""
    made = disabled(given(card(), A, VF0), VF0)
    assert made.to_mark(leaving) == ({'rp': None} if reserves else {})
    assert kept(made.marked({'rp': 1}, leaving)) == ({VF0: '1'} if reserves else {})


def test_the_amount_is_forgotten_once_a_server_holds_the_only_unavailable_device() -> None:
    made = disabled(card(), VF0).marked({'rp': 1})
    assert kept(given(made, A, VF0).unmarked()) == {}


def test_a_device_that_left_the_host_is_not_reserved_anew() -> None:
    made = disabled(card(), VF0).looked(FAMILY[2:])
    assert made.to_mark() == {} and disabled(made, VF1).to_mark() == {'rp': None}
