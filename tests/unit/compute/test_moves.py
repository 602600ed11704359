"""Resize, cold migrate, confirm, revert and their undos, on the hosts."""

from __future__ import annotations

import json
import logging

import pytest

from kilonova import errors, objects
from kilonova.pci.device import FAILED
from tests.unit.compute.cell import flavor, new_context
from tests.unit.compute.cloud import request_spec

GPUS = ['0000:08:00.0', '0000:88:00.0', '0000:90:00.0']
OTHER_GPUS = ['0000:a8:00.0', '0000:b8:00.0']
BIG = flavor(2, 16, 65536, 20)


class Resize:
    """The steps as a flow would send them, with the server as it stands before each."""

    def __init__(self, cloud, server, source, dest, gpus=2, kind='resize', to=BIG):
        self.cloud, self.uuid, self.source, self.dest = cloud, server.uuid, source, dest
        self.cell = cloud.cell
        self.to = to
        self.spec = request_spec(server, to, gpus)
        self.cell.instances[self.uuid]['task_state'] = 'resize_prep'
        self.moved = self.cell.new_migration(self.uuid, source, kind=kind, new_instance_type_id=to.id).uuid
        self.cell.saves.clear()
        self.attempt = 1
        self.disk = self.disk_info = None

    def restart(self, which):
        setattr(self, which, self.cloud.host(getattr(self, which).host.name))
        if self.source.host.name == self.dest.host.name:
            self.source = self.dest = getattr(self, which)

    @property
    def instance(self):
        return self.cell.instance(self.uuid)

    @property
    def migration(self):
        return self.cell.migration(self.moved)

    def key(self, step):
        return f'm{self.migration.id}/{step}/{self.attempt}'

    def prep(self):
        self.disk = self.dest.endpoint.prep_resize(
            new_context(),
            order=objects.PrepResizeOrder(
                image={},
                instance=self.instance,
                flavor=self.to,
                request_spec=self.spec,
                migration=self.migration,
                limits=None,
            ),
            key=self.key('3.prep_resize'),
        )['disk']

    def move(self):
        self.disk_info = self.source.endpoint.resize_instance(
            new_context(),
            order=objects.ResizeOrder(
                instance=self.instance,
                image={},
                migration=self.migration,
                flavor=self.to,
                clean_shutdown=True,
                disk=self.disk,
            ),
            key=self.key('4.resize_instance'),
        )

    def finish(self):
        return self.dest.endpoint.finish_resize(
            new_context(),
            order=objects.FinishResizeOrder(
                disk_info=self.disk_info,
                image={},
                instance=self.instance,
                migration=self.migration,
                request_spec=self.spec,
            ),
            key=self.key('5.finish_resize'),
        )

    def mark_resized(self):
        row = self.cell.instances[self.uuid]
        self.cell.set_system_metadata(self.uuid, old_vm_state=row['vm_state'])
        row.update(vm_state='resized', task_state=None)
        self.cell.migrations[self.moved].update(status='finished')

    def all(self):
        self.prep()
        self.move()
        self.finish()
        self.mark_resized()

    def confirm(self):
        return self.source.endpoint.confirm_resize(
            new_context(),
            instance=self.instance,
            migration=self.migration,
            key=f'c{self.migration.id}/0.confirm_source/1',
        )

    def mark_confirmed(self):
        row = self.cell.instances[self.uuid]
        extra = self.cell.extras[self.uuid]
        stored = json.loads(extra['flavor'])
        extra.update(flavor=json.dumps({**stored, 'old': None, 'new': None}), migration_context=None)
        row.update(vm_state='active', task_state=None)
        self.cell.set_system_metadata(self.uuid, old_vm_state=None)
        self.cell.migrations[self.moved].update(status='confirmed')

    def revert_dest(self):
        self.cell.instances[self.uuid]['task_state'] = 'resize_reverting'
        return self.dest.endpoint.revert_resize(
            new_context(), instance=self.instance, migration=self.migration, key=f'r{self.migration.id}/0.revert_dest/1'
        )

    def revert_source(self):
        return self.source.endpoint.finish_revert_resize(
            new_context(),
            instance=self.instance,
            migration=self.migration,
            key=f'r{self.migration.id}/2.finish_revert/1',
        )

    def undo(self, step):
        manager = self.source if step == 'resize_instance' else self.dest
        return getattr(manager.endpoint, f'undo_{step}')(
            new_context(), instance=self.instance, migration=self.migration, key=self.key(f'9.{step}')
        )

    def undo_all(self):
        for step in ('finish_resize', 'resize_instance', 'prep_resize'):
            self.undo(step)

    def as_before(self, addresses=('0000:08:00.0',), running=True):
        """The server, its guest and its devices are what they were."""
        driver = self.cloud.drivers[self.source.host.name]
        row = self.cell.instances[self.uuid]
        assert (row['host'], row['vcpus'], row['memory_mb'], row['instance_type_id']) == (
            self.source.host.name,
            8,
            32768,
            1,
        )
        extra = self.cell.extras[self.uuid]
        stored = json.loads(extra['flavor'])
        assert stored['cur']['nova_object.data']['id'] == 1 and stored['old'] is None
        assert sum(request['count'] for request in json.loads(extra['pci_requests'])) == len(addresses)
        assert self.cell.held(self.uuid) == dict.fromkeys(addresses, 'allocated')
        domain = driver.domains[self.uuid]
        assert (domain.vcpus, domain.hostdevs) == (8, list(addresses))
        assert (domain.state == 1) == running
        assert set(driver.directories) == {self.uuid}
        assert self.source.host.tracker.used.vcpus == 8
        if self.dest.host.name != self.source.host.name:
            other = self.cloud.drivers[self.dest.host.name]
            assert (other.domains, other.directories) == ({}, {})
            assert self.dest.host.tracker.used.vcpus == 0


@pytest.fixture
def two(cloud):
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', OTHER_GPUS)
    return Resize(cloud, cloud.boot(source), source, dest)


@pytest.fixture
def one(cloud):
    manager = cloud.host('gpu1', GPUS)
    return Resize(cloud, cloud.boot(manager), manager, manager)


def test_prep_claims_and_keeps_both_ends(two, caplog):
    with caplog.at_level(logging.INFO):
        two.prep()
    assert 'Migrating' in caplog.text and 'Attempting claim: memory 65536 MB, disk 20 GB, vcpus 16 CPU' in caplog.text
    assert two.disk['host'] == 'gpu2'
    claim = two.cell.claims[-1]
    assert claim['expect'] == {'host': 'gpu1', 'task_state': ['resize_prep']} and 'transition' not in claim
    assert claim['migration'] == {
        'uuid': two.migration.uuid,
        'dest_compute': 'gpu2',
        'dest_node': 'gpu2',
        'dest_compute_id': 2,
        'dest_host': '192.0.2.1',
    }
    context = two.instance.migration_context
    assert context.migration_id == two.migration.id
    assert [device.address for device in context.old_pci_devices] == ['0000:08:00.0']
    assert [device.address for device in context.new_pci_devices] == OTHER_GPUS
    assert (context.old_pci_requests.requests[0].count, context.new_pci_requests.requests[0].count) == (1, 2)
    assert two.cell.held(two.uuid) == {'0000:08:00.0': 'allocated', **dict.fromkeys(OTHER_GPUS, 'claimed')}
    assert two.cell.events() == [('compute_prep_resize', 'Success')]


def test_migrating_is_told_between_the_claim_and_the_source(two):
    """The destination logs "Migrating" after its claim, while the guest still runs on the source."""
    told, claims, source = [], len(two.cell.claims), two.cloud.drivers['gpu1']

    class Watch(logging.Handler):
        def emit(self, record):
            if record.getMessage() == 'Migrating':
                told.append(
                    (
                        record.name,
                        record.levelname,
                        len(two.cell.claims) - claims,
                        sorted(two.cell.held(two.uuid).values()),
                        source.domains[two.uuid].state,
                    )
                )

    watch, logger = Watch(), logging.getLogger('kilonova.compute')
    level = logger.level
    logger.addHandler(watch)
    logger.setLevel(logging.INFO)
    try:
        two.all()
    finally:
        logger.setLevel(level)
        logger.removeHandler(watch)
    assert told == [('kilonova.compute.ops.resize', 'INFO', 1, ['allocated', 'claimed', 'claimed'], 1)]


def test_a_destination_without_the_devices_refuses_the_move(cloud, caplog):
    """A destination with one of two devices refuses with "Claim pci failed" and keeps nothing. The flow then tries
    the next host."""
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', OTHER_GPUS[:1])
    resize = Resize(cloud, cloud.boot(source), source, dest)
    claims = len(cloud.cell.claims)
    with caplog.at_level(logging.INFO), pytest.raises(errors.HostRejected) as caught:
        resize.prep()
    assert str(caught.value) == 'Insufficient compute resources: Claim pci failed.'
    assert 'Failed to claim: Insufficient compute resources: Claim pci failed.' in caplog.text
    assert len(cloud.cell.claims) == claims and cloud.cell.events() == [('compute_prep_resize', 'Error')]
    resize.as_before()


def test_same_host_confirm_sent_again_after_a_restart_frees_nothing_more(one):
    one.all()
    one.confirm()
    one.mark_confirmed()
    one.restart('source')
    one.confirm()
    assert one.cell.held(one.uuid) == dict.fromkeys(GPUS[1:], 'allocated')
    assert one.source.host.tracker.used.vcpus == 16


def test_same_host_confirm_of_a_server_that_the_host_has_not_counted_keeps_the_new_devices(one):
    """The host could not read the server's row when it started."""
    one.all()
    one.source.host.tracker.forget(one.uuid)
    one.confirm()
    assert one.cell.held(one.uuid) == dict.fromkeys(GPUS[1:], 'allocated')
    assert one.source.host.tracker.used.vcpus == 16


def test_same_host_revert_sent_again_keeps_the_old_devices(one):
    """The host could not read the server's row when it started after the first revert."""
    one.all()
    one.revert_dest()
    one.revert_source()
    one.source.host.tracker.forget(one.uuid)
    one.revert_dest()
    assert one.cell.held(one.uuid) == dict.fromkeys(GPUS[:1], 'allocated')


@pytest.mark.parametrize('where', ['one', 'two'])
@pytest.mark.parametrize('end', ['confirm', 'revert'])
def test_restart_between_all_steps(request, where, end):
    resize = request.getfixturevalue(where)
    steps = [resize.prep, resize.move, resize.finish, resize.mark_resized]
    steps += [resize.confirm] if end == 'confirm' else [resize.revert_dest, resize.revert_source]
    resize.cell.occupy(resize.uuid)
    for step in steps:
        getattr(resize, step.__name__)()
        resize.restart('source')
        resize.restart('dest')
    if end == 'confirm':
        resize.mark_confirmed()
    resize.cell.leave()
    for manager in (resize.source, resize.dest):
        manager.guests.look_again()
    if end == 'revert':
        resize.as_before()
        return
    new = GPUS[1:] if where == 'one' else OTHER_GPUS
    assert resize.cell.held(resize.uuid) == dict.fromkeys(new, 'allocated')
    assert resize.dest.host.tracker.used.vcpus == 16


@pytest.mark.parametrize('where', ['one', 'two'])
@pytest.mark.parametrize('reached', [0, 1, 2, 3])
@pytest.mark.parametrize('restarted', [False, True])
def test_undo_from_every_step(request, where, reached, restarted):
    resize = request.getfixturevalue(where)
    for step in [resize.prep, resize.move, resize.finish][:reached]:
        step()
    if restarted:
        resize.restart('source')
        resize.restart('dest')
    resize.undo_all()
    resize.as_before()
    # Undone twice is undone once.
    resize.undo_all()
    resize.as_before()


@pytest.mark.parametrize('where', ['one', 'two'])
@pytest.mark.parametrize(
    ('method', 'after'),
    [
        ('prepare_move', False),
        ('migrate_disk_and_power_off', False),
        ('migrate_disk_and_power_off', True),
        ('finish_migration', False),
        ('finish_migration', True),
    ],
)
def test_a_failing_driver_leaves_the_server_as_it_was(request, where, method, after):
    """If the driver fails in a step of a resize, the event has the error, and the undos leave the server as it was."""
    resize = request.getfixturevalue(where)
    for driver in resize.cloud.drivers.values():
        driver.fail(method, errors.KilonovaError('boom'), after=after)
    with pytest.raises(errors.KilonovaError, match='boom'):
        resize.all()
    assert ('Error', 'boom') in [
        (save['event']['result'], save['event']['details']) for save in resize.cell.saves if save.get('event')
    ]
    resize.undo_all()
    resize.as_before()


@pytest.mark.parametrize('where', ['one', 'two'])
@pytest.mark.parametrize('number', [0, 1, 2])
def test_a_row_that_is_gone_undoes(request, where, number):
    resize = request.getfixturevalue(where)
    steps = [resize.prep, resize.move, resize.finish]
    for step in steps[:number]:
        step()
    resize.cell.errors['save_instance'] = errors.KeyGone(key='x')
    with pytest.raises(errors.KeyGone):
        steps[number]()
    resize.undo_all()
    resize.as_before()


@pytest.mark.parametrize('silent', [True, False])
def test_a_preparation_that_waits_for_an_answer_has_not_failed(two, monkeypatch, silent):
    """It is asked again under its key: the action has no event that says Error."""

    def refuse():
        raise errors.Unanswered(who='glance', reason='timed out') if silent else errors.KilonovaError('no room')

    monkeypatch.setattr(two.dest.host.driver.moves, 'prepare_move', refuse)
    with pytest.raises(errors.KilonovaError):
        two.prep()
    assert [result for _, result in two.cell.events()] == ([] if silent else ['Error'])


def test_a_source_that_lost_the_devices_refuses_the_revert(two):
    two.all()

    def asked(attempt):
        two.source.endpoint.check_revert(
            new_context(), instance=two.instance, migration=two.migration, key=f'r1/0.check/{attempt}'
        )

    asked(1)
    two.cloud.drivers['gpu1'].pci_devices.clear()
    with pytest.raises(errors.DevicesMissing):
        asked(2)
    assert two.cell.held(two.uuid)['0000:08:00.0'] == 'allocated'


def test_shrinking_is_refused_with_a_running_guest(cloud):
    source, dest = cloud.host('gpu1', GPUS), cloud.host('gpu2', OTHER_GPUS)
    resize = Resize(cloud, cloud.boot(source), source, dest, to=flavor(3, 16, 65536, 8))
    resize.prep()
    with pytest.raises(errors.ResizeError, match=r'^Resize error: Unable to resize disk down\.$'):
        resize.move()
    assert ('power_off', resize.uuid) not in cloud.drivers['gpu1'].calls
    assert cloud.drivers['gpu1'].domains[resize.uuid].state == 1


def test_cold_migrate_to_its_own_host_is_refused(cloud):
    """A cold migration to the server's own host raises HostRejected and leaves the server as it was."""
    manager = cloud.host('gpu1', GPUS)
    server = cloud.boot(manager)
    resize = Resize(cloud, server, manager, manager, 1, kind='migration', to=flavor())
    with pytest.raises(errors.HostRejected, match=r'Unable to migrate instance .* to current host'):
        resize.prep()
    resize.undo('prep_resize')
    resize.as_before()


def test_a_guest_is_never_finished_with_the_old_devices(two):
    two.prep()
    two.move()
    # The fault of seed 000: the requests of the new flavor got lost on the way.
    two.spec.pci_requests = two.instance.pci_requests
    with pytest.raises(errors.KilonovaError, match='asks for 1 PCI devices and holds 2'):
        two.finish()


def test_cancel_during_the_disk_move(two):
    two.prep()
    driver = two.cloud.drivers['gpu1']

    carry = driver.moves.migrate_disk_and_power_off

    def cancelled(*args):
        info = carry(*args)
        two.source.endpoint.cancel(new_context(), key_prefix=f'm{two.migration.id}')
        return info

    driver.moves.migrate_disk_and_power_off = cancelled
    with pytest.raises(errors.Cancelled):
        two.move()
    assert driver.domains[two.uuid].state == 1
    two.undo_all()
    two.as_before()


def test_source_that_returns_to_a_deleted_server_destroys_it(two):
    two.prep()
    two.move()
    instance, migration = two.instance, two.migration
    del two.cell.instances[two.uuid]
    two.source.endpoint.undo_resize_instance(new_context(), instance=instance, migration=migration, key='p/0.release/1')
    driver = two.cloud.drivers['gpu1']
    assert (driver.domains, driver.directories) == ({}, {})
    assert '0000:08:00.0' not in two.cell.held(two.uuid)


def test_source_undo_takes_back_what_a_dead_destination_wrote(two):
    two.prep()
    two.move()
    two.finish()
    two.undo('resize_instance')
    row = two.cell.instances[two.uuid]
    assert (row['host'], row['vcpus'], row['instance_type_id']) == ('gpu1', 8, 1)
    assert json.loads(two.cell.extras[two.uuid]['flavor'])['old'] is None
    assert two.cloud.drivers['gpu1'].domains[two.uuid].hostdevs == ['0000:08:00.0']


def test_a_late_undo_leaves_a_newer_move_alone(two):
    two.prep()
    two.undo('prep_resize')
    late = two.migration
    two.cell.migrations[two.moved].update(status='error')
    again = Resize(two.cloud, two.instance, two.source, two.dest)
    again.all()
    dest = two.dest.endpoint
    for step, undo in ('3.prep', dest.undo_prep_resize), ('5.finish', dest.undo_finish_resize):
        undo(new_context(), instance=again.instance, migration=late, key=f'late/{step}/1')
    assert again.cloud.drivers['gpu2'].domains[two.uuid].hostdevs == OTHER_GPUS
    assert again.cell.held(two.uuid) == dict.fromkeys([GPUS[0], *OTHER_GPUS], 'allocated')


def test_resize_there_and_back_again(two):
    two.all()
    two.confirm()
    two.mark_confirmed()
    back = Resize(two.cloud, two.instance, two.dest, two.source, 1, to=flavor(4, 4, 1024, 20))
    back.all()
    assert two.cloud.drivers['gpu1'].domains[two.uuid].hostdevs == ['0000:08:00.0']
    back.confirm()
    back.mark_confirmed()
    assert two.cell.held(two.uuid) == {'0000:08:00.0': 'allocated'}
    assert two.dest.host.tracker.used.vcpus == 0 and two.source.host.tracker.used.vcpus == 4


def test_confirm_failure_is_tried_again(two):
    two.all()
    two.cloud.drivers['gpu1'].fail('confirm_migration', OSError('nfs'))
    with pytest.raises(errors.KilonovaError, match='OSError on the compute host'):
        two.confirm()
    two.confirm()
    assert two.cell.held(two.uuid) == dict.fromkeys(OTHER_GPUS, 'allocated')


def test_a_server_whose_old_device_fails_returns_with_its_guest_off(two, caplog):
    """Fail the device after the destination has deleted its guest. The server keeps the device."""
    two.all()
    two.revert_dest()
    two.cloud.drivers['gpu1'].unusable[GPUS[0]] = 'no reset'
    two.revert_source()
    two.as_before(running=False)
    assert two.cell.instances[two.uuid]['power_state'] == 4
    assert 'The guest is not started: ' in caplog.text and 'no reset' in caplog.text
    info = two.source.host.tracker.host_devices.entries[GPUS[0]].device.extra_info
    assert info[FAILED].startswith('no reset; failure 1')


@pytest.mark.parametrize('error', [errors.ImageNotFound(image_id='i'), OSError('disk full')])
def test_a_destination_that_can_not_fetch_the_image_takes_the_server(two, monkeypatch, caplog, error):
    """Go on without the image, because the source copies it with the disks."""

    def fetch_base(instance, image):
        raise error

    monkeypatch.setattr(two.dest.host.driver.disks, 'fetch_base', fetch_base)
    two.prep()
    assert (
        'Could not fetch the image of the server; the source host will copy the image with the disks: ' in caplog.text
    )
    assert two.cell.events() == [('compute_prep_resize', 'Success')]


def test_a_revert_frees_devices_whose_claim_its_destination_does_not_know(two):
    """Revert to a host that counts only an older move of the server, because the answer to the new claim was lost."""
    two.all()
    tracker = two.dest.host.tracker
    tracker.forget(two.uuid)
    tracker.adopt(two.uuid, 'migration-0', flavor(), set())
    two.revert_dest()
    assert two.cell.held(two.uuid) == {GPUS[0]: 'allocated'} and tracker.sides(two.uuid) == {'migration-0'}


@pytest.mark.parametrize('error', [errors.KeyGone(key='x'), errors.KilonovaError('boom')])
def test_a_source_does_not_start_the_guest_of_a_server_that_was_evacuated_during_the_disk_move(two, error):
    """Its host was forced down while it copied the disks, and did not know."""
    two.prep()
    driver = two.cloud.drivers['gpu1']
    carry = driver.moves.migrate_disk_and_power_off

    def evacuated(*args):
        info = carry(*args)
        two.cell.extras[two.uuid]['migration_context'] = None
        two.cell.migrations[two.moved].update(status='error')
        two.cell.instances[two.uuid]['host'] = 'gpu3'
        if isinstance(error, errors.KeyGone):
            two.cell.errors['save_instance'] = error
        else:
            raise error
        return info

    driver.moves.migrate_disk_and_power_off = evacuated
    with pytest.raises(type(error)):
        two.move()
    domain = driver.domains.get(two.uuid)
    assert domain is None or domain.state != 1
