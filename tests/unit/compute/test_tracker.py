"""The ledger of a host: what servers hold, by server and side."""

from __future__ import annotations

import json
import threading

import pytest

from kilonova import errors, objects
from kilonova.compute.tracker import RUN, ClaimExists, ClaimPlan, HostCapacity, Tracker, Usage
from kilonova.context import RequestContext
from kilonova.pci.devices import NodeDevices
from tests.unit.compute.cell import flavor
from tests.unit.pci.builders import NODE, found, functions, ledger, request, statuses

A, B = 'aaaaaaaa-0000-4000-8000-00000000000a', 'bbbbbbbb-0000-4000-8000-00000000000b'
G0, G1, G2 = '0000:81:00.0', '0000:81:01.0', '0000:81:02.0'
PF0 = '0000:91:00.0'
VF0, VF1 = (one['address'] for one in functions(PF0, 2))
VF = {'vendor_id': '10de', 'dev_type': 'type-VF'}
PF = {'vendor_id': '10de', 'dev_type': 'type-PF'}
MOVE = 'migration-1'
OF = flavor()
ONE = Usage(8, 32768, 16)
CTXT = RequestContext()


def gpus() -> Tracker:
    return ledger([found(address) for address in (G0, G1, G2)])


def family() -> Tracker:
    return ledger([found(PF0, dev_type='type-PF'), *functions(PF0, 2)])


def asked(*wanted: objects.InstancePCIRequest) -> objects.InstancePCIRequests:
    return objects.InstancePCIRequests(requests=list(wanted))


def plan(made: Tracker, uuid: str, *wanted: objects.InstancePCIRequest, side: str = RUN) -> ClaimPlan:
    return made.plan(uuid, side, OF, asked(*wanted))


def claim(made: Tracker, uuid: str, *wanted: objects.InstancePCIRequest, side: str = RUN) -> None:
    made.commit(plan(made, uuid, *wanted, side=side))


def allocate(made: Tracker, uuid: str) -> None:
    made.commit(made.plan_allocate(uuid))


def held(made: Tracker, uuid: str, side: str | None = None) -> dict[str, str]:
    return {device.address: device.status for device in made.devices(uuid, side)}


def changed(one: ClaimPlan) -> dict[str, tuple[str, str, str | None]]:
    return {change['address']: (change['from'], change['to'], change['instance_uuid']) for change in one.changes}


def counts(made: Tracker, one: ClaimPlan | None = None) -> list[int]:
    pools = objects.PciDevicePoolList.from_json(made.usage(one)['pci_stats'])
    return [pool.count for pool in pools or ()]


def restarted(made: Tracker) -> Tracker:
    """Another process has read the same rows."""
    again = Tracker()
    again.node = made.node
    again.load(NodeDevices.of(made.host_devices.kinds, made.host_devices.all(), NODE))
    return again


# -- amounts -----------------------------------------------------------------------------------------------------------
def test_capacity_names_what_lacks() -> None:
    inventory = {name: {'total': 10, 'allocation_ratio': 2.0} for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')}
    capacity = HostCapacity.of(inventory)
    assert capacity.lacking(Usage(20, 20, 20)) is None
    assert capacity.lacking(Usage(21, 1, 1)) == 'vcpus 21.00 used of 20.00'
    assert capacity.lacking(Usage(1, 1, 21)) == 'disk 21.00 GB used of 20.00 GB'
    assert capacity.lacking(Usage(1, 21, 21)) == 'memory 21.00 MB used of 20.00 MB'
    assert HostCapacity.of({}).lacking(Usage(10**9, 10**9, 10**9)) is None
    pinning = HostCapacity.of({'PCPU': {'total': 4, 'allocation_ratio': 1.0}})
    assert pinning.lacking(Usage(99, 99, 99, 4)) is None
    assert pinning.lacking(Usage(0, 0, 0, 5)) == 'pcpus 5.00 used of 4.00'
    assert Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40) == Usage(11, 22, 33, 44)


def test_swap_counts_as_disk_in_whole_gib() -> None:
    of = flavor()
    of.ephemeral_gb = 5
    for swap, gib in ((0, 0), (1, 1), (1024, 1), (1025, 2)):
        of.swap = swap
        assert Usage.of(of) == Usage(8, 32768, 16 + 5 + gib)


def test_a_claim_that_exceeds_the_capacity_takes_nothing() -> None:
    made = gpus()
    made.capacity = HostCapacity(vcpus=12)
    claim(made, A, request(1))
    with pytest.raises(errors.HostRejected, match=r'vcpus 16\.00 used of 12\.00'):
        plan(made, B, request(1))
    assert (made.used, held(made, B), made.host_devices.pools.free) == (ONE, {}, 2)


# -- plans -------------------------------------------------------------------------------------------------------------
def test_claim_allocate_free() -> None:
    made, one = gpus(), request(2)
    first = plan(made, A, one)
    assert changed(first) == {G0: ('available', 'claimed', A), G1: ('available', 'claimed', A)}
    assert {change['request_id'] for change in first.changes} == {one.request_id}
    assert {change['id'] for change in first.changes} == {1, 2}
    assert [(device.status, device.instance_uuid) for device in first.devices] == [('claimed', A)] * 2
    assert counts(made, first) == [0, 0, 1]
    assert (made.used, held(made, A)) == (Usage(), {}), 'nothing is so before it is written'
    made.commit(first)
    assert (made.used, made.sides(A), counts(made)) == (ONE, {RUN}, [0, 0, 1])
    second = made.plan_allocate(A)
    assert changed(second) == {G0: ('claimed', 'allocated', A), G1: ('claimed', 'allocated', A)}
    assert held(made, A) == dict.fromkeys((G0, G1), 'claimed')
    made.commit(second)
    assert held(made, A) == dict.fromkeys((G0, G1), 'allocated')
    last = made.plan_free(A)
    assert changed(last) == {G0: ('allocated', 'available', A), G1: ('allocated', 'available', A)}
    assert (last.freed, last.dropped, counts(made), counts(made, last)) == ([G0, G1], {RUN}, [0, 0, 1], [1, 1, 1])
    assert (made.usage()['vcpus_used'], made.usage(last)['vcpus_used']) == (8, 0)
    assert (made.usage()['running_vms'], made.usage(last)['running_vms']) == (1, 0)
    assert held(made, A) == dict.fromkeys((G0, G1), 'allocated'), 'they are free when that is written'
    made.commit(last)
    assert (made.used, held(made, A), made.host_devices.pools.free, made.sides(A)) == (Usage(), {}, 3, set())


def test_too_few_devices_take_nothing() -> None:
    made = gpus()
    with pytest.raises(errors.HostRejected, match='Claim pci failed'):
        plan(made, A, request(2), request(2))
    assert (made.used, made.host_devices.pools.free) == (Usage(), 3)


@pytest.mark.parametrize('act', ['plan', 'allocate', 'free'])
def test_an_aborted_plan_was_never_made(act: str) -> None:
    made = gpus()
    claim(made, B, request(1))
    before = made.usage(), statuses(made.host_devices)
    one = {
        'plan': lambda: plan(made, A, request(2)),
        'allocate': lambda: made.plan_allocate(B),
        'free': lambda: made.plan_free(B),
    }[act]()
    assert one.changes
    made.abort(one)
    assert (made.usage(), statuses(made.host_devices)) == before
    with pytest.raises(RuntimeError):
        made.commit(one)
    made.abort(one)
    claim(made, A, request(2))
    assert held(made, A) == dict.fromkeys((G1, G2), 'claimed')


def test_one_plan_at_a_time() -> None:
    """Another one made since would be lost."""
    made = gpus()
    first, second = plan(made, A, request(1)), plan(made, B, request(1))
    with pytest.raises(RuntimeError):
        made.commit(first)
    made.abort(first)
    made.commit(second)
    assert held(made, B) == {G0: 'claimed'}


def test_exactly_the_allocated_device() -> None:
    made = gpus()
    made.host_devices = made.host_devices.provided({G0: 'rp0', G1: 'rp1', G2: 'rp2'})
    claim(made, A, request(1, vendor_id='10de', rp_uuids='rp2'))
    assert held(made, A) == {G2: 'claimed'}
    with pytest.raises(errors.HostRejected):
        plan(made, B, request(1, vendor_id='10de', rp_uuids='rp2'))


def test_a_claim_seen_twice_counts_once() -> None:
    made, wanted = gpus(), [request(2)]
    claim(made, A, *wanted)
    again = plan(made, A, *wanted)
    assert again.changes == []
    assert [device.address for device in again.devices] == [G0, G1]
    assert made.usage(again)['vcpus_used'] == 8
    made.commit(again)
    assert (made.used, held(made, A)) == (ONE, dict.fromkeys((G0, G1), 'claimed'))
    made.adopt(A, RUN, flavor(vcpus=1))
    assert made.used == ONE
    made.commit(made.plan(A, RUN, flavor(vcpus=1), asked(*wanted)))
    assert made.used == ONE
    made.commit(made.plan_free(A))
    twice = made.plan_free(A)
    assert (twice.changes, twice.dropped) == ([], set())
    made.commit(twice)
    assert made.used == Usage()


def test_a_claim_for_other_devices_than_are_held_is_refused() -> None:
    made = gpus()
    claim(made, A, request(2))
    with pytest.raises(errors.HostRejected) as caught:
        plan(made, A, request(1))
    assert isinstance(caught.value.__cause__, ClaimExists)
    assert str(caught.value.__cause__) == (
        f'Instance {A} holds PCI devices on this host that do not match its requests: {G0}, {G1}'
    )
    assert made.used == ONE


def test_a_server_that_holds_nothing_may_claim_devices() -> None:
    made = gpus()
    claim(made, A)
    claim(made, A, request(1))
    assert (held(made, A), made.used) == ({G0: 'claimed'}, ONE)


def test_freeing_is_careful() -> None:
    made = gpus()
    claim(made, A, request(1))
    assert made.plan_free(B).changes == []
    assert made.plan_free(A, lambda side: False).changes == []
    assert changed(made.plan_free(A, lambda side: True, unsided=False)) == {G0: ('claimed', 'available', A)}


def test_a_device_without_numa_cell_is_told(caplog: pytest.LogCaptureFixture) -> None:
    made = ledger([found(G0, numa=None)])
    assert made._take(A, RUN, [request(1)], [0])
    assert f'Assigning a pci device without numa affinity to instance {A} which has numa topology' in caplog.text


def test_one_device_without_numa_cell_among_others_is_told(caplog: pytest.LogCaptureFixture) -> None:
    made = ledger([found(G0, numa=None), found(G1, numa=0)])
    assert len(made._take(A, RUN, [request(2)], [0])) == 2
    assert 'Assigning a pci device without numa affinity' in caplog.text
    caplog.clear()
    made = ledger([found(G0, numa=0), found(G1, numa=0)])
    assert len(made._take(A, RUN, [request(2)], [0])) == 2
    assert 'without numa affinity' not in caplog.text


def test_devices_that_are_handed_out_are_copies() -> None:
    made = gpus()
    one = plan(made, A, request(1))
    one.devices[0].status = 'unavailable'
    made.commit(one)
    made.devices(A)[0].status = 'available'
    assert held(made, A) == {G0: 'claimed'}


# -- sides -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def moving() -> Tracker:
    """A server that is resized on its host: one device at home, two for the new flavor."""
    made = gpus()
    claim(made, A, request(1))
    claim(made, A, request(2), side=MOVE)
    allocate(made, A)
    return made


def test_both_ends_of_a_move_on_one_host(moving: Tracker) -> None:
    assert moving.used == ONE + ONE
    assert moving.usage()['running_vms'] == 1
    assert (set(held(moving, A, RUN)), set(held(moving, A, MOVE))) == ({G0}, {G1, G2})
    assert [device.address for device in moving.devices_without(A, MOVE)] == [G0]
    revert = moving.plan_free(A, lambda side: side == MOVE, unsided=False)
    assert set(changed(revert)) == {G1, G2}
    moving.abort(revert)
    moving.commit(moving.plan_free(A, lambda side: side == RUN))
    assert (set(held(moving, A)), moving.sides(A), moving.used) == ({G1, G2}, {MOVE}, ONE)


def test_a_restarted_host_learns_the_sides(moving: Tracker) -> None:
    again = restarted(moving)
    assert (set(held(again, A)), again.sides(A), again.used) == ({G0, G1, G2}, set(), Usage())
    again.adopt(A, RUN, OF)
    assert set(held(again, A, RUN)) == {G0, G1, G2}
    again.adopt(A, MOVE, None, {G1, G2})
    assert (set(held(again, A, RUN)), set(held(again, A, MOVE)), again.used) == ({G0}, {G1, G2}, ONE)
    again.adopt(A, MOVE, OF)
    assert again.used == ONE + ONE, 'now its size is known'
    again.forget(A)
    assert (again.sides(A), again.used, set(held(again, A))) == (set(), Usage(), {G0, G1, G2})


def test_devices_of_unknown_side_leave_where_that_is_meant(moving: Tracker) -> None:
    again = restarted(moving)
    again.adopt(A, MOVE, OF, {G1})
    assert set(changed(again.plan_free(A, lambda side: side == MOVE, unsided=False))) == {G1}
    assert set(changed(again.plan_free(A, lambda side: side == MOVE))) == {G0, G1, G2}
    assert set(changed(again.plan_free(A, lambda side: side == RUN))) == {G0, G2}


def test_devices_of_several_released_claims_are_freed(moving: Tracker) -> None:
    assert set(changed(moving.plan_free(A, unsided=False))) == {G0, G1, G2}


def test_a_device_for_one_more_request_is_added_to_the_claim_of_the_server() -> None:
    """The server keeps its other devices, and all of them are freed with the claim."""
    made, more = gpus(), request(1)
    claim(made, A, request(1))
    one = made.plan_more(A, more)
    assert changed(one) == {G1: ('available', 'claimed', A)}
    made.commit(one)
    assert set(held(made, A, RUN)) == {G0, G1}
    again = made.plan_more(A, more)
    assert again.changes == [], 'it has a device for this request already'
    made.commit(again)
    assert set(held(made, A, RUN)) == {G0, G1}
    assert set(changed(made.plan_free(A, lambda side: side == RUN, unsided=False))) == {G0, G1}


def test_a_claim_seen_again_after_a_restart_finds_its_devices() -> None:
    made, old, new = gpus(), [request(1)], [request(1)]
    claim(made, A, *old)
    claim(made, A, *new, side=MOVE)
    again = restarted(made)
    repeated = plan(again, A, *new, side=MOVE)
    assert repeated.changes == []
    again.commit(repeated)
    assert (set(held(again, A, MOVE)), again.used) == ({G1}, ONE)
    assert set(changed(again.plan_free(A, lambda side: side == RUN))) == {G0}


def test_another_side_gets_devices_of_its_own() -> None:
    """Though the requests are the same."""
    made, wanted = gpus(), request(1)
    claim(made, A, wanted)
    claim(made, A, wanted, side=MOVE)
    assert (set(held(made, A, RUN)), set(held(made, A, MOVE))) == ({G0}, {G1})


def test_what_is_counted_anew_is_not_at_work() -> None:
    made = gpus()
    claim(made, A, request(1))
    claim(made, B)
    assert made.usage()['current_workload'] == 2
    made.forget(A)
    assert made.usage()['current_workload'] == 1


def test_rows_that_are_read_again_keep_the_sides(moving: Tracker) -> None:
    rows = moving.host_devices.all()
    for device in rows:
        if device.address == G2:
            device.status, device.instance_uuid = 'allocated', B
    moving.load(NodeDevices.of(moving.host_devices.kinds, rows, NODE))
    assert (set(held(moving, A, RUN)), set(held(moving, A, MOVE)), set(held(moving, B))) == ({G0}, {G1}, {G2})
    rows[-1].instance_uuid = A
    moving.load(NodeDevices.of(moving.host_devices.kinds, rows, NODE))
    assert set(held(moving, A, MOVE)) == {G1}, 'what came back since has no side'


# -- writing -----------------------------------------------------------------------------------------------------------
def test_rows_are_read_again_when_nobody_knows_what_they_say() -> None:
    made, read = gpus(), []
    made.reload = read.append
    with made.writing(CTXT):
        claim(made, A, request(1))
    with made.writing(CTXT):
        made.abort(plan(made, B))
    with made.writing(CTXT):
        left_open = plan(made, B, request(1))
    assert read == []
    with made.writing(CTXT):
        assert read == [CTXT]
    with pytest.raises(RuntimeError):
        made.commit(left_open)
    made.distrust()
    with made.writing(CTXT):
        assert read == [CTXT] * 2
    with made.writing(CTXT):
        assert read == [CTXT] * 2


def test_rows_that_can_not_be_read_stay_distrusted() -> None:
    made, answers = gpus(), [errors.Unanswered(who='conductor', reason='silence'), None]

    def reload(ctxt: RequestContext) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    made.reload = reload
    made.distrust()
    with pytest.raises(errors.Unanswered), made.writing(CTXT):
        pytest.fail('wrote')
    with made.writing(CTXT):
        assert answers == []


def test_threads_never_share_a_device() -> None:
    addresses = [f'0000:{index:02x}:00.0' for index in range(16)]
    made = ledger([found(address) for address in addresses])
    barrier = threading.Barrier(4)

    def work(worker: int) -> None:
        barrier.wait(5)
        for number in range(4):
            with made.writing(CTXT):
                claim(made, f'{worker}-{number}', request(1))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    owners = {device.address: device.instance_uuid for device in made.host_devices.held()}
    assert (sorted(owners), len(set(owners.values()))) == (addresses, 16)
    assert made.usage()['running_vms'] == 16


def test_what_the_nodes_row_says() -> None:
    made = gpus()
    made.node = objects.ComputeNode(id=3, memory_mb=100000, local_gb=500, hypervisor_hostname='n')
    made.failed_builds = 2
    claim(made, A, request(1))
    usage = dict(made.usage())
    pools = objects.PciDevicePoolList.from_json(usage.pop('pci_stats'))
    assert sum(pool.count for pool in pools) == 2
    assert json.loads(usage.pop('stats')) == {'failed_builds': '2', 'io_workload': '1'}
    assert usage == {
        'compute_node_id': 3,
        'vcpus_used': 8,
        'memory_mb_used': 32768,
        'local_gb_used': 16,
        'free_ram_mb': 100000 - 32768,
        'free_disk_gb': 484,
        'running_vms': 1,
        'current_workload': 1,
        'numa_topology': None,
    }


def test_work_that_needs_no_claim_counts_while_it_lasts() -> None:
    made = gpus()
    claim(made, A)
    allocate(made, A)
    with made.at_work(A, 'move'):
        assert made.usage()['current_workload'] == 1
        with made.at_work(B, 'snapshot'), made.at_work(B, 'move'):
            assert made.usage()['current_workload'] == 2, 'servers count, not what is done with them'
        assert made.usage()['current_workload'] == 1
    with pytest.raises(ZeroDivisionError), made.at_work(A, 'move'):
        raise ZeroDivisionError
    assert made.usage()['current_workload'] == 0


def test_what_is_allocated_is_no_longer_under_way() -> None:
    """Of the side that is meant."""
    made = gpus()
    claim(made, A, request(1))
    claim(made, B, request(1))
    claim(made, A, request(1), side=MOVE)
    one = made.plan_allocate(A, MOVE)
    assert (set(changed(one)), made.usage(one)['current_workload']) == ({G2}, 2)
    made.commit(one)
    assert made._at_work == {(A, RUN), (B, RUN)}
    made.commit(made.plan_allocate(A))
    assert made._at_work == {(B, RUN)} and held(made, A) == dict.fromkeys((G0, G2), 'allocated')
    made.commit(made.plan_free(B))
    assert made._at_work == frozenset()


def test_a_filter_may_limit_a_claim() -> None:
    made = gpus()
    claim(made, A)
    limits = objects.SchedulerLimits(vcpu=20.0, memory_mb=70000.0, disk_gb=33.0, numa_topology=None)

    def wanted(of: objects.Flavor) -> ClaimPlan:
        one = made.plan(B, RUN, of, None, None, limits)
        made.abort(one)
        return one

    assert wanted(flavor(vcpus=12, memory_mb=1024)).sides
    for of, lacks in (
        (flavor(vcpus=13, memory_mb=1024), 'vcpus 21.00 used of 20.00'),
        (flavor(memory_mb=40000), 'memory 72768.00 MB used of 70000.00 MB'),
        (flavor(root_gb=18), 'disk 34.00 GB used of 33.00 GB'),
    ):
        with pytest.raises(errors.HostRejected, match=lacks.replace('.', r'\.')):
            wanted(of)


def test_numbers_go_up() -> None:
    made = gpus()
    made.serial = 6
    sent = [made.numbered(made.usage()) for _ in range(2)]
    assert [one['usage_serial'] for one in sent] == [7, 8]
    assert '"usage_serial": "8"' in sent[1]['stats']


# -- physical functions and what is below them -------------------------------------------------------------------------
def test_function_claims_bar_the_pf() -> None:
    made = family()
    first = plan(made, A, request(1, **VF))
    assert changed(first) == {VF0: ('available', 'claimed', A), PF0: ('available', 'unclaimable', None)}
    made.commit(first)
    second = plan(made, B, request(1, **VF))
    assert changed(second) == {VF1: ('available', 'claimed', B)}
    made.commit(second)
    allocated = made.plan_allocate(A)
    assert changed(allocated) == {VF0: ('claimed', 'allocated', A), PF0: ('unclaimable', 'unavailable', None)}
    made.commit(allocated)
    made.commit(made.plan_free(A))
    assert statuses(made.host_devices) == {PF0: 'unclaimable', VF0: 'available', VF1: 'claimed'}
    last = made.plan_free(B)
    assert changed(last)[PF0] == ('unclaimable', 'available', None)
    made.commit(last)
    assert set(statuses(made.host_devices).values()) == {'available'}
    assert sorted(counts(made)) == [1, 2]


def test_pf_claims_bar_its_functions() -> None:
    made = family()
    first = plan(made, A, request(1, **PF))
    assert changed(first) == {
        PF0: ('available', 'claimed', A),
        VF0: ('available', 'unclaimable', None),
        VF1: ('available', 'unclaimable', None),
    }
    made.commit(first)
    assert counts(made) == [0], 'of the functions none is left'
    with pytest.raises(errors.HostRejected):
        plan(made, B, request(1, **VF))
    freed = made.plan_free(A)
    assert sorted(counts(made, freed)) == [1, 2]
    made.commit(freed)
    assert made.host_devices.pools.free == 3


def test_hosts_do_not_share_what_they_hold() -> None:
    one, two = gpus(), gpus()
    claim(one, A, request(1))
    assert (one.used, two.used, held(two, A)) == (ONE, Usage(), {})


def test_a_root_disk_that_is_a_volume_takes_nothing_here() -> None:
    """Neither when it is claimed nor after a restart."""
    made, again = gpus(), gpus()
    made.commit(made.plan(A, RUN, flavor(root_gb=18), None, from_volume=True))
    again.adopt(A, RUN, flavor(root_gb=18), from_volume=True)
    assert made.used.local_gb == again.used.local_gb == 0 and made.used == again.used
