"""Images of servers, soft delete and restore, as one host does them."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from tests.unit.compute.cell import new_context

KEY = 'i/0.snapshot_instance/1'


class Images:
    """The image service: ``refuses`` is what uploads raise."""

    def __init__(self) -> None:
        self.sent: dict[str, bytes] = {}
        self.refuses: Exception | None = None

    def get(self, image_id: str) -> dict[str, Any]:
        return {'id': image_id, 'status': 'active' if image_id in self.sent else 'queued'}

    def upload(self, image_id: str, file: Any, check: Any) -> None:
        check()
        if self.refuses is not None:
            raise self.refuses
        self.sent[image_id] = file.read()


@pytest.fixture
def images(cloud, manager):
    made = cloud.drivers['gpu1'].image_client = Images()
    return made


def state(cloud, uuid):
    row = cloud.cell.instances[uuid]
    return row['vm_state'], row['task_state']


def make_image(cloud, manager, server, key=KEY):
    return manager.endpoint.snapshot_instance(
        new_context(), image_id='snap', key=key, instance=cloud.cell.in_task(server.uuid, 'image_snapshot_pending')
    )


def restore(cloud, manager, server):
    instance = cloud.cell.in_task(server.uuid, 'restoring', 'soft-delete')
    return manager.endpoint.restore_instance(new_context(), instance=instance, key='r/0.r/1')


def test_an_image_is_three_saves(cloud, manager, server, images):
    """The first of them is the key's check."""
    make_image(cloud, manager, server)
    assert [save['transition'] for save in cloud.cell.saves] == [
        'snapshot.copying',
        'snapshot.uploading',
        'snapshot.done',
    ]
    assert cloud.cell.checks == [] and cloud.cell.saves[-1]['end'] is True
    assert cloud.cell.events() == [('compute_snapshot_instance', 'Success')]
    assert state(cloud, server.uuid) == ('active', None) and list(images.sent) == ['snap']
    assert cloud.drivers['gpu1'].copies == {}


def test_a_refused_image_leaves_nothing_here_and_the_end_to_the_flow(cloud, manager, server, images):
    images.refuses = errors.ImageUnacceptable(image_id='snap', reason='over quota')
    with pytest.raises(errors.ImageUnacceptable, match='over quota'):
        make_image(cloud, manager, server)
    assert cloud.drivers['gpu1'].copies == {}
    assert [save['transition'] for save in cloud.cell.saves] == ['snapshot.copying', 'snapshot.uploading']


def test_an_image_that_fails_is_told_with_its_own_error_though_its_copy_can_not_be_deleted(
    cloud, manager, server, images, caplog
):
    """Keep the copy, which the undo of the step deletes."""
    images.refuses = errors.ImageUnacceptable(image_id='snap', reason='over quota')
    cloud.drivers['gpu1'].fail('forget_snapshot', OSError('nfs'))
    with pytest.raises(errors.ImageUnacceptable, match='over quota'):
        make_image(cloud, manager, server)
    assert 'Could not remove the files of snapshot snap' in caplog.text
    assert list(cloud.drivers['gpu1'].copies) == ['snap']
    manager.endpoint.undo_snapshot_instance(new_context(), instance=server, image_id='snap', key=KEY)
    assert cloud.drivers['gpu1'].copies == {}


def test_a_silent_image_service_is_asked_again_under_the_same_key(cloud, manager, server, images):
    """The copy waits; it isn't made again."""
    images.refuses = errors.Unanswered(who='images', reason='silent')
    with pytest.raises(errors.Unanswered):
        make_image(cloud, manager, server)
    assert list(cloud.drivers['gpu1'].copies) == ['snap']
    cloud.drivers['gpu1'].write(server.uuid, 'written later')
    images.refuses = None
    make_image(cloud, manager, server)
    assert images.sent == {'snap': b''}


def test_a_cancelled_image_stops(cloud, manager, server, images):
    manager.endpoint.cancel(new_context(), key_prefix='i/')
    with pytest.raises(errors.Cancelled):
        make_image(cloud, manager, server)
    assert images.sent == {}
    for _again in range(2):
        manager.endpoint.undo_snapshot_instance(new_context(), instance=server, image_id='snap', key=KEY)
    assert cloud.drivers['gpu1'].copies == {}


def test_images_wait_for_a_slot(cloud, manager, server, images):
    with manager.host.snapshot_slots.hold(None):
        for _ in range(cloud.managers['gpu1'].conf.max_concurrent_snapshots - 1):
            assert manager.host.snapshot_slots._slots.acquire(timeout=0)
        manager.endpoint.cancel(new_context(), key_prefix='i/')
        with pytest.raises(errors.Cancelled):
            make_image(cloud, manager, server)


def test_a_soft_delete_that_fails_is_tried_again(cloud, manager, server):
    """Under the same key: nothing is saved until the guest is off."""
    cloud.drivers['gpu1'].fail('power_off', errors.KilonovaError('it hangs'))
    instance = cloud.cell.in_task(server.uuid, 'soft-deleting')
    with pytest.raises(errors.KilonovaError, match='it hangs'):
        manager.endpoint.soft_delete_instance(new_context(), instance=instance, key='d/3.s/1')
    assert cloud.cell.saves == []
    manager.endpoint.soft_delete_instance(new_context(), instance=instance, key='d/3.s/1')
    assert state(cloud, server.uuid) == ('soft-delete', None)


def test_a_restore_that_fails_leaves_the_server_soft_deleted(cloud, manager, server):
    manager.endpoint.soft_delete_instance(
        new_context(), instance=cloud.cell.in_task(server.uuid, 'soft-deleting'), key='d/3.s/1'
    )
    cloud.drivers['gpu1'].fail('power_on', errors.KilonovaError("no room in '/srv/x/disk'"))
    result = restore(cloud, manager, server)
    assert result['error'] == "no room in 'disk'"
    assert state(cloud, server.uuid) == ('soft-delete', None)
    save = cloud.cell.saves[-1]
    assert (save['fault']['message'], save['event']['details']) == ("no room in 'disk'", "no room in 'disk'")
    assert '/srv/x/disk' in save['fault']['details'] and 'deleted_at' not in save['values']


def test_a_guest_that_runs_though_its_server_is_soft_deleted_is_stopped(cloud, manager, server):
    """Its host was down when that happened."""
    cloud.cell.instances[server.uuid].update(vm_state='soft-delete', task_state=None)
    manager.guests.sync()
    assert cloud.drivers['gpu1'].guests.get_info(server) == 4
