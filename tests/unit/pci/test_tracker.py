from __future__ import annotations

import threading

import pytest

from kilonova.objects import PciDevice
from kilonova.pci import tracker
from kilonova.pci.pools import PciDeviceRequestFailed
from kilonova.pci.spec import DeviceSpecs
from kilonova.pci.tracker import PciLedger
from tests.unit.pci.builders import NODE, found, functions, ledger, request, save, statuses

A, B = 'aaaaaaaa-0000-4000-8000-00000000000a', 'bbbbbbbb-0000-4000-8000-00000000000b'
G0, G1, G2 = '0000:81:00.0', '0000:81:01.0', '0000:81:02.0'
PF0 = '0000:91:00.0'
VF0, VF1 = (one['address'] for one in functions(PF0, 2))
VF = {'vendor_id': '10de', 'dev_type': 'type-VF'}
PF = {'vendor_id': '10de', 'dev_type': 'type-PF'}


def gpus(*addresses):
    return ledger([found(address) for address in addresses or (G0, G1, G2)])


def family():
    return ledger([found(PF0, dev_type='type-PF'), *functions(PF0, 2)])


def moves(plan):
    return {
        change['address']: (change['from'], change['to'], change['instance_uuid']) for change in plan.changes
    }


def rows(made):
    """What the database holds after all that was committed."""
    return made.devices()


def restarted(made, **options):
    return PciLedger.from_devices(made.specs, made.devices(), NODE, **options)


# -- discovery -----------------------------------------------------------------------------------------------
def test_new_devices():
    made = PciLedger(DeviceSpecs.parse(['{"vendor_id": "10de", "managed": "no"}']), NODE)
    changes = made.sync(
        [
            found(G0, capabilities={'vpd': {'card_serial_number': '1'}}, parent_ifname=None),
            found(G1, vendor_id='8086'),
        ]
    )
    (device,) = changes.created
    assert (device.address, device.status, device.compute_node_id) == (G0, 'available', NODE)
    assert device.extra_info == {'managed': 'false', 'capabilities': '{"vpd": {"card_serial_number": "1"}}'}
    assert 'id' not in device
    assert device.uuid
    with pytest.raises(PciDeviceRequestFailed):
        made.choose([request(1)])
    made.saved(changes, {G0: 7})
    assert made.choose([request(1)])[0][0].id == 7
    assert not made.unsaved()


def test_sync_twice_before_saving_is_the_same():
    made = PciLedger(DeviceSpecs.parse(['{}']), NODE)
    first, second = made.sync([found(G0)]), made.sync([found(G0)])
    assert [device.uuid for device in first.created] == [device.uuid for device in second.created]


def test_changed_device_moves_to_another_pool():
    """The pool follows the type of a free device (bug 1892361)."""
    made = gpus(G0)
    changes = made.sync([found(G0, dev_type='type-PF', numa=1)])
    (device,) = changes.updated
    assert device.obj_what_changed() == {'dev_type', 'numa_node'}
    save(made, changes)
    assert [(pool.tags['dev_type'], pool.numa_node, pool.count) for pool in made.pool_list()] == [
        ('type-PF', 1, 1)
    ]
    assert not made.sync([found(G0, dev_type='type-PF', numa=1)])


def test_held_device_changes_when_it_is_freed():
    made = gpus(G0)
    made.commit(made.plan_claim(A, [request(1)]))
    assert not made.sync([found(G0, numa=1)])
    assert made.devices()[0].numa_node == 0
    made.commit(made.plan_free(A))
    assert made.devices()[0].numa_node == 1
    assert [pool.numa_node for pool in made.pool_list() if pool.count] == [1]
    assert [device.address for device in made.unsaved().updated] == [G0]


def test_free_device_that_disappears():
    made = gpus(G0, G1)
    changes = made.sync([found(G0)])
    assert [device.address for device in changes.removed] == [G1]
    assert made.pool_list()[0].count == 1
    assert [device.address for device in made.sync([found(G0)]).removed] == [G1]
    save(made, changes)
    assert not made.sync([found(G0)])


def test_device_that_comes_back_before_its_row_is_gone():
    made = gpus(G0, G1)
    made.sync([found(G0)])
    changes = made.sync([found(G0), found(G1)])
    assert not changes
    assert len(made.choose([request(2)])) == 2


def test_held_device_that_disappears(caplog):
    made = gpus(G0)
    made.commit(made.plan_claim(A, [request(1)], allocate=True))
    assert not made.sync([])
    assert f"Unable to remove device with status 'allocated' and ownership {A}" in caplog.text
    made.commit(made.plan_free(A))
    assert made.pools.free == 0
    assert [device.address for device in made.sync([]).removed] == [G0]
    assert made.devices() == []


def test_held_device_that_disappears_and_returns():
    made = gpus(G0)
    made.commit(made.plan_claim(A, [request(1)]))
    made.sync([])
    made.sync([found(G0)])
    made.commit(made.plan_free(A))
    assert made.pools.free == 1


def test_providers():
    made = ledger([found(G0), *functions(PF0, 2)])
    made.set_providers({G0: 'rp0', PF0: 'rp1'})
    changes = made.unsaved()
    assert {device.address: device.extra_info for device in changes.updated} == {
        address: {'rp_uuid': rp} for address, rp in ((G0, 'rp0'), (VF0, 'rp1'), (VF1, 'rp1'))
    }
    assert {pool.tags['rp_uuid'] for pool in made.pool_list()} == {'rp0', 'rp1'}
    save(made, changes)
    assert not made.sync([found(G0), *functions(PF0, 2)])
    assert {device.extra_info['rp_uuid'] for device in made.devices()} == {'rp0', 'rp1'}
    assert restarted(made).pool_list()[0].tags['rp_uuid'] == 'rp0'


# -- claims --------------------------------------------------------------------------------------------------
def test_claim_allocate_free():
    made = gpus()
    one = request(2)
    plan = made.plan_claim(A, [one])
    assert moves(plan) == {G0: ('available', 'claimed', A), G1: ('available', 'claimed', A)}
    assert {change['request_id'] for change in plan.changes} == {one.request_id}
    assert {change['id'] for change in plan.changes} == {1, 2}
    assert [(device.status, device.instance_uuid) for device in plan.devices] == [('claimed', A)] * 2
    assert [pool.count for pool in made.pool_list(plan)] == [0, 0, 1]
    made.commit(plan)
    plan = made.plan_allocate(A)
    assert moves(plan) == {G0: ('claimed', 'allocated', A), G1: ('claimed', 'allocated', A)}
    assert made.devices_of(A)[0].status == 'claimed'
    made.commit(plan)
    assert [device.status for device in made.devices_of(A)] == ['allocated'] * 2
    plan = made.plan_free(A)
    assert moves(plan) == {G0: ('allocated', 'available', A), G1: ('allocated', 'available', A)}
    assert made.pools.free == 1
    assert [pool.count for pool in made.pool_list(plan)] == [1, 1, 1]
    made.commit(plan)
    assert made.pools.free == 3
    assert made.owners() == {}


def test_too_few_devices_take_nothing():
    made = gpus()
    with pytest.raises(PciDeviceRequestFailed):
        made.plan_claim(A, [request(2), request(2)])
    assert made.pools.free == 3
    assert made.owners() == {}


def test_aborted_claim():
    made = gpus()
    before = statuses(made)
    plan = made.plan_claim(A, [request(3)])
    made.abort(plan)
    assert statuses(made) == before
    assert made.pools.free == 3
    made.commit(plan)
    assert made.owners() == {}


def test_exactly_the_allocated_device():
    made = gpus()
    made.set_providers({G0: 'rp0', G1: 'rp1', G2: 'rp2'})
    wanted = request(1, vendor_id='10de', rp_uuids='rp2')
    assert [device.address for device in made.plan_claim(A, [wanted]).devices] == [G2]
    with pytest.raises(PciDeviceRequestFailed):
        made.plan_claim(B, [request(1, vendor_id='10de', rp_uuids='rp2')])


def test_claim_seen_twice_counts_once():
    made = gpus()
    wanted = [request(2)]
    first = made.plan_claim(A, wanted)
    assert made.plan_claim(A, wanted) is first
    made.commit(first)
    second = made.plan_claim(A, wanted)
    assert second.changes == []
    assert [device.address for device in second.devices] == [G0, G1]
    made.abort(second)
    assert len(made.devices_of(A)) == 2
    with pytest.raises(tracker.PciClaimExists, match=f'{G0}, {G1}'):
        made.plan_claim(A, [request(1)])


def test_claim_seen_again_after_a_restart():
    made = gpus()
    wanted = [request(2)]
    made.commit(made.plan_claim(A, wanted))
    again = restarted(made)
    plan = again.plan_claim(A, wanted, allocate=True)
    assert moves(plan) == {G0: ('claimed', 'allocated', A), G1: ('claimed', 'allocated', A)}
    again.commit(plan)
    assert again.pools.free == 1


def test_claim_without_requests_needs_no_end():
    made = gpus()
    made.plan_claim(A, [])
    assert made.plan_claim(A, [request(1)]).changes


def test_freeing_is_idempotent_and_careful():
    made = gpus()
    made.commit(made.plan_claim(A, [request(1)]))
    assert made.plan_free(B).changes == []
    assert made.plan_free(A, addresses=[G2]).changes == []
    plan = made.plan_free(A)
    assert made.plan_free(A) is plan
    made.commit(plan)
    assert made.plan_free(A).changes == []


def test_aborted_free_leaves_the_devices():
    made = gpus()
    made.commit(made.plan_claim(A, [request(1)], allocate=True))
    made.abort(made.plan_free(A))
    assert [device.status for device in made.devices_of(A)] == ['allocated']
    assert made.pools.free == 2


def test_two_plans_on_one_device():
    made = gpus()
    made.commit(made.plan_claim(A, [request(1)]))
    allocate = made.plan_allocate(A)
    with pytest.raises(tracker.PciDeviceInvalidStatus, match=f'{NODE}:{G0} is claimed .in another allocate'):
        made.plan_free(A)
    made.commit(allocate)
    assert made.plan_free(A).changes


def test_resize_on_the_same_host():
    made = gpus()
    old, new = [request(1)], [request(2)]
    made.commit(made.plan_claim(A, old, allocate=True))
    made.commit(made.plan_claim(A, new, side='migration', allocate=True))
    assert made.pools.free == 0
    revert = made.plan_free(A, side='migration')
    assert set(moves(revert)) == {G1, G2}
    made.abort(revert)
    again = restarted(made)
    again.set_sides(A, {G1: 'migration', G2: 'migration'})
    confirm = again.plan_free(A, keep_side='migration')
    assert set(moves(confirm)) == {G0}
    again.commit(confirm)
    assert [device.address for device in again.devices_of(A)] == [G1, G2]
    assert again.owners() == {A: [G1, G2]}
    assert set(moves(made.plan_free(A, addresses=[G0]))) == {G0}


def test_sides_of_a_repeated_claim_after_a_restart():
    made = gpus()
    old, new = [request(1)], [request(1)]
    made.commit(made.plan_claim(A, old, allocate=True))
    made.commit(made.plan_claim(A, new, side='migration'))
    again = restarted(made)
    assert again.plan_claim(A, new, side='migration').changes == []
    assert [device.address for device in again.devices_of(A, 'migration')] == [G1]
    assert set(moves(again.plan_free(A, keep_side='migration'))) == {G0}


def test_numa_warning(caplog):
    made = ledger([found(G0, numa=None)])
    made.plan_claim(A, [request(1)], [0])
    assert (
        f'Assigning a pci device without numa affinity to instance {A} which has numa topology' in caplog.text
    )


def test_copies_do_not_change_the_ledger():
    made = gpus()
    made.devices()[0].status = 'allocated'
    made.plan_claim(A, [request(1)]).devices[0].status = 'available'
    assert sorted(statuses(made).values()) == ['available', 'available', 'claimed']


def test_threads_never_share_a_device():
    addresses = [f'0000:{index:02x}:00.0' for index in range(16)]
    made = gpus(*addresses)
    plans, barrier = [], threading.Barrier(4)

    def claim(worker):
        barrier.wait(5)
        plans.extend(made.plan_claim(f'{worker}-{number}', [request(1)]) for number in range(4))

    threads = [threading.Thread(target=claim, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(device.address for plan in plans for device in plan.devices) == addresses


# -- physical functions and what is below them (pci.md §12) --------------------------------------------------
def test_function_claims_bar_the_pf():
    made = family()
    first = made.plan_claim(A, [request(1, **VF)])
    assert moves(first) == {VF0: ('available', 'claimed', A), PF0: ('available', 'unclaimable', None)}
    made.commit(first)
    second = made.plan_claim(B, [request(1, **VF)])
    assert moves(second) == {VF1: ('available', 'claimed', B)}
    made.commit(second)
    allocated = made.plan_allocate(A)
    assert moves(allocated) == {VF0: ('claimed', 'allocated', A), PF0: ('unclaimable', 'unavailable', None)}
    made.commit(allocated)
    made.commit(made.plan_free(A))
    assert statuses(made) == {PF0: 'unclaimable', VF0: 'available', VF1: 'claimed'}
    last = made.plan_free(B)
    assert moves(last)[PF0] == ('unclaimable', 'available', None)
    made.commit(last)
    assert set(statuses(made).values()) == {'available'}
    assert {pool.tags['dev_type']: pool.count for pool in made.pool_list()} == {'type-VF': 2, 'type-PF': 1}


def test_pf_claims_bar_its_functions():
    made = family()
    plan = made.plan_claim(A, [request(1, **PF)], allocate=True)
    assert moves(plan) == {
        PF0: ('available', 'allocated', A),
        VF0: ('available', 'unavailable', None),
        VF1: ('available', 'unavailable', None),
    }
    made.commit(plan)
    assert [(pool.tags['dev_type'], pool.count) for pool in made.pool_list()] == [('type-PF', 0)]
    freed = made.plan_free(A)
    assert {pool.tags['dev_type']: pool.count for pool in made.pool_list(freed)} == {
        'type-VF': 2,
        'type-PF': 1,
    }
    made.commit(freed)
    assert made.pools.free == 3


def test_aborted_function_claim_frees_the_pf():
    made = family()
    made.abort(made.plan_claim(A, [request(1, **VF)]))
    assert set(statuses(made).values()) == {'available'}
    assert made.pools.free == 3


def test_pf_row_is_written_even_when_the_claim_that_barred_it_was_not():
    made = family()
    lost, kept = made.plan_claim(A, [request(1, **VF)]), made.plan_claim(B, [request(1, **VF)])
    assert PF0 not in moves(kept)
    made.abort(lost)
    made.commit(kept)
    assert {change['address']: (change['from'], change['to']) for change in made.unsaved().statuses} == {
        PF0: ('available', 'unclaimable')
    }
    plan = made.plan_allocate(B)
    made.commit(plan)
    changes = made.unsaved()
    made.saved(changes)
    assert not made.unsaved()


def test_two_frees_at_once_free_the_pf():
    made = family()
    for owner in (A, B):
        made.commit(made.plan_claim(owner, [request(1, **VF)], allocate=True))
    first, second = made.plan_free(A), made.plan_free(B)
    assert PF0 not in moves(first)
    assert moves(second)[PF0] == ('unavailable', 'available', None)
    made.commit(second)
    assert statuses(made)[PF0] == 'unavailable'
    made.commit(first)
    assert statuses(made)[PF0] == 'available'
    assert not made.unsaved()


def test_device_whose_row_is_being_written_is_not_offered():
    """Nobody can say from which status it would be taken."""
    made = family()
    for owner in (A, B):
        made.commit(made.plan_claim(owner, [request(1, **VF)], allocate=True))
    first, second = made.plan_free(A), made.plan_free(B)
    made.commit(second)
    made.abort(first)
    pending = made.unsaved()
    assert [(change['from'], change['to']) for change in pending.statuses] == [('available', 'unavailable')]
    made.commit(made.plan_free(A))
    assert statuses(made)[PF0] == 'available'
    with pytest.raises(PciDeviceRequestFailed):
        made.plan_claim(A, [request(1, **PF)])
    made.saved(pending)
    assert moves(made.plan_claim(A, [request(1, **PF)]))[PF0] == ('unavailable', 'claimed', A)


def test_stored_statuses_that_do_not_fit_are_mended():
    """A leftover status of a relative must not bar a claim (bug 1969496)."""
    made = family()
    stored = {device.address: device for device in made.devices()}
    stored[VF0].status = 'unclaimable'
    stored[PF0].status = 'unavailable'
    again = PciLedger.from_devices(made.specs, stored.values(), NODE)
    assert set(statuses(again).values()) == {'available'}
    assert {change['address']: (change['from'], change['to']) for change in again.unsaved().statuses} == {
        VF0: ('unclaimable', 'available'),
        PF0: ('unavailable', 'available'),
    }
    again.saved(again.unsaved())
    assert set(moves(again.plan_claim(A, [request(1, **PF)]))) == {PF0, VF0, VF1}


def test_rows_that_contradict_each_other_bar_a_claim():
    made = family()
    pf = next(device for device in made.devices() if device.address == PF0)
    made.commit(made.plan_claim(A, [request(1, **VF)]))
    held = made.devices_of(A)[0]
    with pytest.raises(
        tracker.PciDeviceVFInvalidStatus, match=f'Not all Virtual Functions of PF {NODE}:{PF0}'
    ):
        made._check_relatives(pf)
    made.commit(made.plan_free(A))
    made.commit(made.plan_claim(A, [request(1, **PF)]))
    with pytest.raises(
        tracker.PciDevicePFInvalidStatus, match=f'VF {NODE}:{held.address} is claimed instead of'
    ):
        made._check_relatives(held)


def test_new_functions_of_a_held_pf():
    made = ledger([found(PF0, dev_type='type-PF')])
    made.commit(made.plan_claim(A, [request(1, **PF)], allocate=True))
    changes = made.sync([found(PF0, dev_type='type-PF'), *functions(PF0, 1)])
    assert [device.status for device in changes.created] == ['unavailable']
    save(made, changes)
    free = made.plan_free(A)
    assert moves(free)[VF0] == ('unavailable', 'available', None)
    made.commit(free)
    assert made.pools.free == 2


def test_status_that_changed_while_a_new_row_was_written():
    made = ledger([found(PF0, dev_type='type-PF')])
    changes = made.sync([found(PF0, dev_type='type-PF'), *functions(PF0, 1)])
    plan = made.plan_claim(A, [request(1, **PF)], allocate=True)
    assert set(moves(plan)) == {PF0}
    save(made, changes)
    made.commit(plan)
    assert {change['address']: (change['from'], change['to']) for change in made.unsaved().statuses} == {
        VF0: ('available', 'unavailable')
    }


def test_status_copies_of_a_fresh_load_are_kept():
    """Devices loaded elsewhere and freed here keep the ledger right (bug 1565785)."""
    made = family()
    made.commit(made.plan_claim(A, [request(1, **VF)], allocate=True))
    copies = [PciDevice.obj_from_primitive(device.obj_to_primitive()) for device in made.devices_of(A)]
    made.commit(made.plan_free(A, addresses=[device.address for device in copies]))
    assert set(statuses(made).values()) == {'available'}
