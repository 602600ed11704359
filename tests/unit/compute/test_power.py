"""Stop, start, reboot, terminate."""

from __future__ import annotations

import pytest

from kilonova import errors, objects
from kilonova.states import PowerState
from tests.unit.compute.cell import new_context


def _stop(cloud, manager, server, clean=True):
    return manager.endpoint.stop_instance(
        new_context(), instance=cloud.cell.in_task(server.uuid, 'powering-off'), clean_shutdown=clean, key='s/0.stop/1'
    )


def test_stop_checks_the_key_and_saves_once(cloud, manager, server):
    """The guest has as long as its image's os_shutdown_timeout says."""
    instance = cloud.cell.in_task(server.uuid, 'powering-off')
    timeouts = []
    cloud.drivers['gpu1'].power.power_off = lambda instance, timeout, retry: timeouts.append((timeout, retry))
    manager.endpoint.stop_instance(new_context(), instance=instance, clean_shutdown=True, key='s/0.stop_instance/1')
    assert cloud.cell.checks == ['s/0.stop_instance/1'] and len(cloud.cell.saves) == 1
    save = cloud.cell.saves[0]
    assert (save['transition'], save['end'], save['expect']) == ('stop.done', True, {'host': 'gpu1'})
    assert save['event']['event'] == 'compute_stop_instance' and save['event']['result'] == 'Success'
    assert timeouts == [(7, 10)]
    assert cloud.cell.instances[server.uuid]['vm_state'] == 'stopped'


def test_stop_without_waiting_for_the_guest(cloud, manager, server):
    waits = []
    cloud.drivers['gpu1'].power.power_off = lambda instance, timeout, retry: waits.append(timeout)
    _stop(cloud, manager, server, clean=False)
    assert waits == [0]


def test_failure_is_an_end_state_with_its_reason(cloud, manager, server):
    cloud.drivers['gpu1'].fail('power_off', errors.KilonovaError('the guest hangs'))
    result = _stop(cloud, manager, server)
    assert result['error'] == 'the guest hangs'
    (save,) = cloud.cell.saves
    assert (save['transition'], save['end'], save['message']) == ('stop.failed', True, 'Error')
    assert save['event']['result'] == 'Error' and save['event']['details'] == 'the guest hangs'
    assert save['fault'].pop('details').startswith('Traceback')
    assert save['fault'] == {'code': 500, 'message': 'the guest hangs', 'host': 'gpu1'}
    row = cloud.cell.instances[server.uuid]
    assert (row['vm_state'], row['task_state']) == ('active', None)


def test_a_foreign_error_shows_only_its_class_to_users(cloud, manager, server):
    cloud.drivers['gpu1'].fail('power_off', OSError('/secret/path'))
    _stop(cloud, manager, server)
    (save,) = cloud.cell.saves
    assert save['fault']['message'] == save['event']['details'] == 'OSError on the compute host'
    assert '/secret/path' in save['event']['traceback']


@pytest.mark.parametrize(
    ('act', 'task', 'vm'), [('start', 'powering-on', 'stopped'), ('resume', 'resuming', 'suspended')]
)
def test_no_guest_without_all_its_devices(cloud, manager, server, act, task, vm):
    for row in cloud.cell.devices.values():
        row.update(status='available', instance_uuid=None)
    manager = cloud.host('gpu1')
    instance = cloud.cell.in_task(server.uuid, task, vm)
    result = getattr(manager.endpoint, f'{act}_instance')(new_context(), instance=instance, key='t/0.s/1')
    assert 'asks for 1 PCI devices and holds 0' in result['error']
    assert cloud.cell.saves[-1]['transition'] == f'{act}.failed'


def test_terminate_is_tried_again_under_its_key(cloud, manager, server):
    cloud.drivers['gpu1'].fail('destroy', OSError('busy'))
    instance = cloud.cell.in_task(server.uuid, 'deleting')
    with pytest.raises(errors.KilonovaError, match=r'^OSError on the compute host$'):
        manager.endpoint.terminate_instance(new_context(), instance=instance, key='d/0.terminate/1')
    assert cloud.cell.held(server.uuid) != {}
    manager.endpoint.terminate_instance(new_context(), instance=instance, key='d/0.terminate/1')
    assert cloud.cell.held(server.uuid) == {}
    # Nobody cancels a delete, and twice is once.
    manager.endpoint.cancel(new_context(), key_prefix='d')
    assert manager.endpoint.terminate_instance(new_context(), instance=instance, key='d/0.terminate/1') == {}


def test_terminate_of_a_server_that_never_came(cloud, manager):
    instance = cloud.cell.new_instance(1)
    assert manager.endpoint.terminate_instance(new_context(), instance=instance, key='d/0.terminate/1') == {}


# -- pause, suspend, crash dump ---------------------------------------------------------------------------------------
ACTS = {
    'pause': ('pausing', 'active', 'paused', PowerState.PAUSED, None),
    'unpause': ('unpausing', 'paused', 'active', PowerState.RUNNING, PowerState.PAUSED),
    'suspend': ('suspending', 'active', 'suspended', PowerState.SUSPENDED, None),
    'resume': ('resuming', 'suspended', 'active', PowerState.RUNNING, PowerState.SUSPENDED),
}


@pytest.mark.parametrize('act', ACTS)
@pytest.mark.parametrize('fails', [False, True])
def test_what_keeps_the_memory(cloud, manager, server, act, fails):
    task, before, after, power_state, guest = ACTS[act]
    driver = cloud.drivers['gpu1']
    driver.domains[server.uuid].state = guest or PowerState.RUNNING
    if fails:
        driver.fail(act, errors.KilonovaError('QEMU is stuck'))
    instance = cloud.cell.in_task(server.uuid, task, before)
    result = getattr(manager.endpoint, f'{act}_instance')(new_context(), instance=instance, key='p/0.do/1')
    (save,) = cloud.cell.saves
    assert (save['transition'], save['end']) == (f'{act}.failed' if fails else f'{act}.done', True)
    assert (save['event']['event'], save['event']['result']) == (
        f'compute_{act}_instance',
        'Error' if fails else 'Success',
    )
    assert result['error'] == ('QEMU is stuck' if fails else None)
    row = cloud.cell.instances[server.uuid]
    assert (row['vm_state'], row['task_state']) == (before if fails else after, None)
    assert row['power_state'] == ((guest or PowerState.RUNNING) if fails else power_state)
    assert len(cloud.cell.held(server.uuid)) == 1


def test_a_crash_dump_is_an_event_of_its_own_name(cloud, manager, server):
    instance = cloud.cell.in_task(server.uuid, None)
    manager.endpoint.trigger_crash_dump(new_context(), instance=instance, key='t/0.s/1')
    assert ('trigger_crash_dump', server.uuid) in cloud.drivers['gpu1'].calls
    (save,) = cloud.cell.saves
    assert (save['transition'], save['event']['event']) == ('trigger_crash_dump.done', 'compute_trigger_crash_dump')


# -- rescue -----------------------------------------------------------------------------------------------------------
def _rescue(cloud, manager, server, vm='active', image=None):
    instance = cloud.cell.in_task(server.uuid, 'rescuing', vm)
    order = objects.RescueOrder(instance=instance, image=image or {}, sealed=None)
    return manager.endpoint.rescue_instance(new_context(), order=order, key='r/0.do/1')


@pytest.mark.parametrize('vm', ['active', 'stopped', 'error'])
def test_rescue_and_unrescue(cloud, manager, server, vm):
    asked, driver = [], cloud.drivers['gpu1']
    real = driver.rescues.rescue
    driver.rescues.rescue = lambda *args, **kwargs: asked.append((args, kwargs)) or real(*args, **kwargs)
    assert _rescue(cloud, manager, server, vm, {'id': 'image-2', 'name': 'repair'})['error'] is None
    (((_, image, rescue_image, devices), kwargs),) = asked
    assert (rescue_image['id'], len(devices)) == ('image-2', 1) and 'properties' in image
    assert (kwargs['timeout'], kwargs['retry_interval'], kwargs['admin_password']) == (7, 10, None)
    (save,) = cloud.cell.saves
    assert (save['transition'], save['event']['event']) == ('rescue.done', 'compute_rescue_instance')
    row = cloud.cell.instances[server.uuid]
    assert (row['vm_state'], row['power_state']) == ('rescued', 1) and len(cloud.cell.held(server.uuid)) == 1
    instance = cloud.cell.in_task(server.uuid, 'unrescuing', 'rescued')
    manager.endpoint.unrescue_instance(new_context(), instance=instance, key='u/0.do/1')
    assert (row['vm_state'], driver.rescued) == ('active', set())
    assert cloud.cell.saves[-1]['event']['event'] == 'compute_unrescue_instance'


def test_a_rescue_that_fails_says_what_the_driver_said(cloud, manager, server):
    cloud.drivers['gpu1'].fail('rescue', errors.KilonovaError('QEMU is stuck'))
    result = _rescue(cloud, manager, server)
    assert result['error'] == f'Instance {server.uuid} cannot be rescued: Driver Error: QEMU is stuck'
    (save,) = cloud.cell.saves
    assert (save['transition'], save['fault']['code'], save['fault']['message']) == (
        'rescue.failed',
        400,
        result['error'],
    )
    assert cloud.cell.instances[server.uuid]['vm_state'] == 'active'


@pytest.mark.parametrize('interrupted', [True, False])
@pytest.mark.parametrize('ran', [PowerState.RUNNING, PowerState.SHUTDOWN])
@pytest.mark.parametrize('runs', [PowerState.RUNNING, PowerState.SHUTDOWN])
@pytest.mark.parametrize('fails', [True, False])
def test_a_guest_that_its_host_lost_during_an_operation_that_failed_is_to_run_again(
    cloud, manager, server, interrupted, ran, runs, fails
):
    """Leave power state RUNNING in the server's row, so that the host starts the guest after the operation."""
    cloud.cell.instances[server.uuid]['power_state'] = int(ran)
    driver = cloud.drivers['gpu1']
    driver.domains[server.uuid].state = int(runs)
    driver.power.pause = lambda instance: None
    if interrupted:
        manager.host.interrupted.add(server.uuid)
    if fails:
        driver.power.pause = lambda instance: 1 / 0
    manager.endpoint.pause_instance(
        new_context(), instance=cloud.cell.in_task(server.uuid, 'pausing'), key='p/0.pause/1'
    )
    kept = fails and interrupted and (ran, runs) == (PowerState.RUNNING, PowerState.SHUTDOWN)
    assert cloud.cell.saves[-1]['values'].get('power_state') == (None if kept else int(runs))
