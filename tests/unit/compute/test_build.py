"""Builds on one host: claim, spawn, save, and what a failure gives back."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from kilonova import errors
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import HypervisorUnavailable
from tests.unit.compute.cell import flavor, new_context, requests
from tests.unit.compute.cloud import GPUS, build


def test_two_calls_upward_and_the_end_state(cloud, caplog):
    """A build makes two calls to the conductor, the claim and the save with the end state, and logs Nova's lines."""
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(1)
    cloud.cell.saves.clear()
    with caplog.at_level(logging.INFO):
        assert build(manager, instance) == {'host': 'gpu1', 'node': 'gpu1'}
    assert len(cloud.cell.claims) == 1 and len(cloud.cell.saves) == 1 and cloud.cell.checks == []
    row = cloud.cell.instances[instance.uuid]
    assert (row['vm_state'], row['task_state'], row['host'], row['node']) == ('active', None, 'gpu1', 'gpu1')
    assert row['power_state'] == 1 and row['launched_on'] == 'gpu1'
    assert list(cloud.cell.held(instance.uuid).values()) == ['allocated']
    assert cloud.drivers['gpu1'].domains[instance.uuid].hostdevs == list(cloud.cell.held(instance.uuid))
    text = caplog.text
    for line in (
        'Starting instance...',
        'Attempting claim: memory 32768 MB, disk 16 GB, vcpus 8 CPU',
        'Claim successful on node gpu1',
        'Start spawning the instance on the hypervisor.',
        'seconds to spawn the instance on the hypervisor.',
        'seconds to build instance.',
    ):
        assert line in text


def test_shapes_of_claim_and_save(cloud):
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(1, availability_zone='az1')
    cloud.cell.saves.clear()
    build(manager, instance, key='o/3.build/1')
    claim, save = cloud.cell.claims[0], cloud.cell.saves[0]
    assert claim['key'] == save['key'] == 'o/3.build/1'
    assert claim['transition'] == 'build.claim' and claim['expect'] == {'host': [None, 'gpu1']}
    assert claim['values'] == {
        'host': 'gpu1',
        'node': 'gpu1',
        'compute_id': 1,
        'launched_on': 'gpu1',
        'availability_zone': 'az1',
    }
    assert claim['extra'] == {} and claim['migration'] is None
    (device,) = claim['devices']
    assert (device['from'], device['to'], device['instance_uuid']) == ('available', 'claimed', instance.uuid)
    usage = claim['usage']
    assert (usage['vcpus_used'], usage['memory_mb_used'], usage['local_gb_used'], usage['running_vms']) == (
        8,
        32768,
        16,
        1,
    )
    assert usage['free_ram_mb'] == 262144 - 32768
    pools = json.loads(usage['pci_stats'])['nova_object.data']['objects']
    assert sum(pool['nova_object.data']['count'] for pool in pools) == 1
    assert save['transition'] == 'build.done' and save['end'] is True and save['usage']['current_workload'] == 0
    assert save['system_metadata'] == {'boot_roles': 'member,reader'}
    assert (save['devices'][0]['from'], save['devices'][0]['to']) == ('claimed', 'allocated')
    event = save['event']
    assert (event['event'], event['result'], event['host']) == ('compute__do_build_and_run_instance', 'Success', 'gpu1')
    assert event['start_time'] <= event['finish_time'] and 'launched_at' in save['values']


def test_alternates_requests_are_written_with_the_claim(cloud):
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(1)
    build(manager, instance, key='o/3.build/2', attempt=2)
    assert json.loads(cloud.cell.claims[0]['extra']['pci_requests'])[0]['count'] == 1


def test_the_claim_takes_the_device_that_placement_allocated(cloud):
    """The claim takes the device whose resource provider Placement allocated."""
    manager = cloud.host('gpu1', GPUS)
    tracker = manager.host.tracker
    tracker.host_devices = tracker.host_devices.provided({'0000:08:00.0': 'rp-a', '0000:88:00.0': 'rp-b'})
    instance = cloud.cell.new_instance(1)
    instance.pci_requests = requests(instance.uuid, 1, 'rp-b')
    build(manager, instance)
    assert list(cloud.cell.held(instance.uuid)) == ['0000:88:00.0']


def test_too_few_devices_is_refused_before_anything_is_written(cloud, caplog):
    """A host with too few free devices refuses the build with "Claim pci failed" before it writes anything. The
    flow then tries the next host."""
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(3)
    cloud.cell.saves.clear()
    with caplog.at_level(logging.INFO), pytest.raises(errors.HostRejected) as caught:
        build(manager, instance)
    assert str(caught.value) == 'Insufficient compute resources: Claim pci failed.'
    assert 'Failed to claim: Insufficient compute resources: Claim pci failed.' in caplog.text
    assert cloud.cell.claims == [] and manager.host.tracker.used.vcpus == 0
    assert cloud.cell.events() == [('compute__do_build_and_run_instance', 'Error')]


def test_too_little_memory_is_refused(cloud):
    manager = cloud.host('gpu1')
    cloud.boot(manager, 0)
    instance = cloud.cell.new_instance(0, flavor(3, memory_mb=262144))
    with pytest.raises(errors.HostRejected, match=r'memory 294912\.00 MB used of 262144\.00 MB'):
        build(manager, instance)


def test_claim_conflict_reads_the_devices_again(cloud):
    """After a conflict in the claim the host refuses the build and reads its devices again. The next build takes a
    device that is free."""
    manager = cloud.host('gpu1', GPUS)
    cloud.cell.errors['claim_instance'] = errors.ClaimConflict(devices='x')
    # Somebody else took the first device behind our back.
    cloud.cell.devices[1].update(status='allocated', instance_uuid='somebody', request_id='r')
    with pytest.raises(errors.HostRejected, match='Claim pci failed'):
        build(manager, cloud.cell.new_instance(1))
    assert manager.host.tracker.used.vcpus == 0
    other = cloud.boot(manager, 1)
    assert list(cloud.cell.held(other.uuid)) == ['0000:88:00.0']


def test_failed_spawn_gives_everything_back(cloud):
    """A failed spawn gives back guest, files, devices, counters and the columns of the server. The event has the
    error."""
    manager = cloud.host('gpu1', GPUS)
    driver = cloud.drivers['gpu1']
    driver.fail('spawn', GuestFailed(act='start', uuid='u', reason='qemu died'), after=True)
    instance = cloud.cell.new_instance(1)
    cloud.cell.saves.clear()
    with pytest.raises(errors.HostRejected, match=f'Build of instance {instance.uuid} was re-scheduled: .* qemu died'):
        build(manager, instance)
    assert driver.domains == {} and driver.directories == {}
    assert cloud.cell.held(instance.uuid) == {} and manager.host.tracker.used.vcpus == 0
    row = cloud.cell.instances[instance.uuid]
    assert (row['host'], row['node'], row['vm_state']) == (None, None, 'building')
    (save,) = cloud.cell.saves
    assert save['undo'] is True and not save.get('end')
    assert save['event']['result'] == 'Error' and save['event']['details'].endswith('qemu died')
    assert json.loads(save['usage']['stats'])['failed_builds'] == '1'
    # A build that goes well says so.
    cloud.boot(manager, 1)
    assert json.loads(cloud.cell.saves[-1]['usage']['stats'])['failed_builds'] == '0'


@pytest.mark.parametrize(
    'error',
    [
        errors.ImageNotFound(image_id='i'),
        errors.ImageUnacceptable(image_id='i', reason='bad'),
        errors.PciDeviceUnsupportedHypervisor(type='lxc'),
        errors.Forbidden('no'),
    ],
)
def test_what_no_other_host_could_do_aborts(cloud, error):
    """An error that every host would repeat raises BuildAbort, and does not count as a failed build of the host."""
    manager = cloud.host('gpu1', GPUS)
    cloud.drivers['gpu1'].fail('spawn', error)
    with pytest.raises(errors.BuildAbort, match=str(error).split('.')[0]):
        build(manager, cloud.cell.new_instance(1))
    # A build that fails by the fault of its request is not counted against the host.
    assert manager.host.tracker.failed_builds == 0


def test_a_device_that_fails_is_told_to_the_flow_as_it_is(cloud):
    manager, instance = cloud.host('gpu1', GPUS), cloud.cell.new_instance(1)
    cloud.drivers['gpu1'].fail('spawn', errors.DevicesFailed(addresses=['0000:08:00.0'], reason='vfio: no such group'))
    cloud.cell.saves.clear()
    with pytest.raises(errors.DevicesFailed, match=r'^Device\(s\) 0000:08:00.0 cannot be used: vfio: no such group$'):
        build(manager, instance)
    # Once: the undo of the claim says why.
    (save,) = cloud.cell.saves
    assert save['event']['details'].endswith('vfio: no such group') and manager.host.tracker.failed_builds == 0


def test_ports_that_are_not_plugged_end_the_build_and_count_for_the_host(cloud):
    manager = cloud.host('gpu1', GPUS)
    cloud.drivers['gpu1'].fail('spawn', errors.VirtualInterfaceCreateException(reason='silence'))
    with pytest.raises(errors.BuildAbort, match='silence'):
        build(manager, cloud.cell.new_instance(1))
    assert manager.host.tracker.failed_builds == 1


@pytest.mark.parametrize(
    'error',
    [
        GuestFailed(act='start', uuid='u', reason='no'),
        HypervisorUnavailable(host='h', reason='gone'),
        OSError('disk full'),
        errors.Unanswered(who='glance', reason='timed out'),
    ],
)
def test_what_another_host_may_do_is_rescheduled(cloud, error):
    """An error that another host may not have raises HostRejected, after which the flow tries an alternate."""
    manager = cloud.host('gpu1', GPUS)
    cloud.drivers['gpu1'].fail('spawn', error)
    with pytest.raises(errors.HostRejected):
        build(manager, cloud.cell.new_instance(1))


@pytest.mark.parametrize('gpus', [0, 1])
def test_a_device_that_fails_its_health_check_refuses_the_build(cloud, gpus):
    """The check follows the claim and precedes the guest. Another host is tried, and the failure is told once."""
    manager, checked = cloud.host('gpu1', GPUS), []

    def before_use(ctxt, devices):
        checked.append([device.address for device in devices])
        raise errors.HostRejected('device failed')

    manager.host.before_use = before_use
    instance = cloud.cell.new_instance(gpus)
    cloud.cell.saves.clear()
    if gpus:
        with pytest.raises(errors.HostRejected, match='device failed'):
            build(manager, instance)
        assert cloud.cell.events() == [('compute__do_build_and_run_instance', 'Error')]
    else:
        build(manager, instance)
    assert checked == ([[GPUS[0]]] if gpus else []) and cloud.cell.held(instance.uuid) == {}
    assert bool(cloud.drivers['gpu1'].domains) is not bool(gpus)


def test_row_gone_at_the_end_undoes(cloud):
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(1)
    cloud.cell.errors['save_instance'] = errors.KeyGone(key='o/3.build/1')
    with pytest.raises(errors.KeyGone):
        build(manager, instance)
    assert cloud.drivers['gpu1'].domains == {}
    assert cloud.cell.held(instance.uuid) == {}


def test_a_build_that_was_saved_after_all_is_left_alone(cloud):
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.boot(manager)
    manager.endpoint.undo_build(new_context(), instance=instance, key='late/3.build/1')
    assert instance.uuid in cloud.drivers['gpu1'].domains
    assert cloud.cell.held(instance.uuid)


def test_deleting_meanwhile_undoes(cloud):
    manager = cloud.host('gpu1', GPUS)
    driver, instance = cloud.drivers['gpu1'], cloud.cell.new_instance(1)
    spawn = driver.guests.spawn

    def deleted(*args, **kwargs):
        spawn(*args, **kwargs)
        cloud.cell.instances[instance.uuid]['task_state'] = 'deleting'

    driver.guests.spawn = deleted
    with pytest.raises(errors.Conflict):
        build(manager, instance)
    assert driver.domains == {} and cloud.cell.held(instance.uuid) == {}


def test_cancel_stops_at_the_next_boundary(cloud):
    manager = cloud.host('gpu1', GPUS)
    driver, instance = cloud.drivers['gpu1'], cloud.cell.new_instance(1)
    spawn = driver.guests.spawn

    def cancelled(*args, **kwargs):
        spawn(*args, **kwargs)
        manager.endpoint.cancel(new_context(), key_prefix='o')

    driver.guests.spawn = cancelled
    with pytest.raises(errors.Cancelled):
        build(manager, instance)
    assert driver.domains == {} and cloud.cell.held(instance.uuid) == {}
    # What comes late under a cancelled operation doesn't start.
    before = len(cloud.cell.claims)
    with pytest.raises(errors.Cancelled):
        build(manager, cloud.cell.new_instance(1), key='o/3.build/2')
    assert len(cloud.cell.claims) == before


def test_a_second_order_with_the_same_key_joins_the_first(cloud):
    """A build that is ordered twice with the same key is done once, and both callers get its result."""
    manager = cloud.host('gpu1', GPUS)
    driver, instance = cloud.drivers['gpu1'], cloud.cell.new_instance(1)
    spawn, entered, go = driver.guests.spawn, threading.Event(), threading.Event()

    def slow(*args, **kwargs):
        entered.set()
        go.wait(5)
        spawn(*args, **kwargs)

    driver.guests.spawn = slow
    results: list = []
    threads = [threading.Thread(target=lambda: results.append(build(manager, instance))) for _ in range(2)]
    threads[0].start()
    entered.wait(5)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(5)
    results.append(build(manager, instance))
    assert results == [{'host': 'gpu1', 'node': 'gpu1'}] * 3
    assert [name for name, _ in driver.calls].count('spawn') == 1


def test_max_concurrent_builds(cloud, monkeypatch):
    """No more than max_concurrent_builds run at once. The first build ends only when the others have waited for a
    slot, or have got one against the rule."""
    monkeypatch.setattr('kilonova.compute.keys.SLOT_LOOK', 0.01)
    manager = cloud.host('gpu1', GPUS, max_concurrent_builds=1)
    driver, spawn, slots = cloud.drivers['gpu1'], cloud.drivers['gpu1'].guests.spawn, manager.host.build_slots._slots
    acquire, waiting, others = slots.acquire, set(), threading.Semaphore(0)
    inside, most = [], []

    def asked(**timeout):
        got = acquire(**timeout)
        if not got and threading.get_ident() not in waiting:
            waiting.add(threading.get_ident())
            others.release()
        return got

    def watched(*args, **kwargs):
        inside.append(1)
        most.append(len(inside))
        if len(most) == 1:
            for _ in range(3):
                assert others.acquire(timeout=10)
        else:
            others.release()
        spawn(*args, **kwargs)
        inside.pop()

    driver.guests.spawn, slots.acquire = watched, asked
    threads = [
        threading.Thread(target=build, args=(manager, cloud.cell.new_instance(0), f'o{n}/3.build/1')) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == [1, 1, 1, 1] and len(waiting) == 3


def test_one_order_of_a_server_at_a_time(cloud):
    """An undo that arrives while the build runs waits for the build, although its key is another."""
    manager = cloud.host('gpu1', GPUS)
    driver, instance, told = cloud.drivers['gpu1'], cloud.cell.new_instance(1), []
    spawn, destroy, second = driver.guests.spawn, driver.guests.destroy, threading.Event()

    def slow(*args, **kwargs):
        told.append('spawn begins')
        undo.start()
        # It stands behind the lock, or it got past it.
        while manager.host.locks._locks.get(instance.uuid, (None, 1))[1] < 2 and not second.wait(0.01):
            pass
        spawn(*args, **kwargs)
        told.append('spawn ends')
        raise GuestFailed(act='start', uuid=instance.uuid, reason='injected')

    def watched(*args, **kwargs):
        if threading.current_thread() is undo:
            told.append('undo')
        destroy(*args, **kwargs)

    def later():
        try:
            manager.endpoint.undo_build(new_context(), instance=instance, key='o/3.build/2')
        finally:
            second.set()

    undo = threading.Thread(target=later)
    driver.guests.spawn, driver.guests.destroy = slow, watched
    with pytest.raises(errors.HostRejected):
        build(manager, instance)
    undo.join(20)
    assert told == ['spawn begins', 'spawn ends', 'undo'] and len(manager.host.locks) == 0


def test_a_process_that_ends_in_silence_undoes_nothing(cloud):
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(1)
    cloud.cell.unanswered['save_instance'] = 1
    manager.stopping.set()
    with pytest.raises(errors.Unanswered):
        build(manager, instance)
    assert instance.uuid in cloud.drivers['gpu1'].domains
    # The next process is asked again, claims what it holds already, and finishes.
    again = cloud.host('gpu1')
    build(again, cloud.cell.instance(instance.uuid))
    assert list(cloud.cell.held(instance.uuid).values()) == ['allocated']
    assert again.host.tracker.used.vcpus == 8


@pytest.mark.parametrize('gpus', [0, 1])
def test_the_hosts_record_says_that_the_resources_of_a_deleted_server_are_free(cloud, gpus):
    """Whether it had devices or not: the scheduler counts by this record."""
    manager = cloud.host('gpu1', GPUS)
    server = cloud.boot(manager, gpus)
    (node,) = cloud.cell.nodes.values()
    assert (node['vcpus_used'], node['running_vms']) == (8, 1)
    sent = cloud.cell.in_task(server.uuid, 'deleting')
    manager.endpoint.terminate_instance(new_context(), instance=sent, key='d/0.terminate/1')
    assert (node['vcpus_used'], node['running_vms'], node['memory_mb_used']) == (0, 0, 0)


def test_undo_build_is_idempotent_and_safe_if_nothing_ran(cloud):
    manager = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(1)
    for key in ('o/3.build/1', 'o/3.build/1', 'o/3.build/2'):
        assert manager.endpoint.undo_build(new_context(), instance=instance, key=key) == {}
    assert all(row['status'] == 'available' for row in cloud.cell.devices.values())


def test_undo_after_a_crash_in_the_middle(cloud):
    first = cloud.host('gpu1', GPUS)
    instance = cloud.cell.new_instance(1)
    cloud.cell.unanswered['save_instance'] = 1
    first.stopping.set()
    with pytest.raises(errors.Unanswered):
        build(first, instance)
    second = cloud.host('gpu1')
    second.endpoint.undo_build(new_context(), instance=instance, key='o/3.build/1')
    assert cloud.drivers['gpu1'].domains == {} and cloud.drivers['gpu1'].directories == {}
    assert cloud.cell.held(instance.uuid) == {} and second.host.tracker.used.vcpus == 0
    assert cloud.cell.instances[instance.uuid]['host'] is None


def test_what_an_unanswered_claim_wrote_is_given_back_by_the_undo(cloud, monkeypatch):
    """Its answer was lost, and when the host asks again the operation is over: the rows say what it took. The release
    that the operation left behind gives it back."""
    manager = cloud.host('gpu1', GPUS)
    instance, claim = cloud.cell.new_instance(1), cloud.cell.claim_instance

    def once(ctxt, *, claim: dict) -> dict:
        claimed(ctxt, claim=claim)
        cloud.cell.end('o')
        monkeypatch.setattr(cloud.cell, 'claim_instance', claimed)
        raise errors.Unanswered(who='conductor', reason='the reply was lost')

    claimed = claim
    monkeypatch.setattr(cloud.cell, 'claim_instance', once)
    with pytest.raises(errors.KeyGone):
        build(manager, instance)
    assert list(cloud.cell.held(instance.uuid).values()) == ['claimed']
    manager.endpoint.undo_build(new_context(), instance=instance, key='r/3.build/1')
    assert cloud.cell.held(instance.uuid) == {}
