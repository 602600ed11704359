"""Guests and files of deleted servers that are left on a host."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.compute import records
from kilonova.db.queries import instances, operations
from kilonova.objects import Instance
from tests.fixtures.cloud import Cloud

GPUS = {'gpu1': ['0000:08:00.0']}
UNKNOWN = '7e0bd5b1-0000-4000-8000-000000000001'


@pytest.fixture
def cloud(make_cloud: Callable[..., Cloud]) -> Cloud:
    """One host with a GPU; its looks are made by the tests."""
    return make_cloud(GPUS, periodic_enable=False, running_deleted_instance_timeout=60)


def restored(cloud: Cloud) -> Instance:
    """A deleted server whose guest somebody brought back, with its disks."""
    server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.computes['gpu1'].host
    instance = records.instance(cloud.compute_context('gpu1'), server)
    assert instance is not None
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    host.driver.guests.spawn(instance, {'id': instance.image_ref, 'disk_format': 'raw'})
    return instance


def deleted_for(cloud: Cloud, uuid: str, seconds: float) -> None:
    moment = instances.utcnow() - instances.datetime.timedelta(seconds=seconds)
    with cloud.cell.write() as conn:
        conn.execute(instances.instances.update().where(instances.instances.c.uuid == uuid).values(deleted_at=moment))


def guests(cloud: Cloud) -> dict[str, int]:
    return {domain['uuid']: domain['state'] for domain in cloud.computes['gpu1'].host.driver.guests.describe()}


def directories(cloud: Cloud) -> list[str]:
    return cloud.computes['gpu1'].host.driver.disks.list_directories()


@pytest.mark.parametrize(
    ('action', 'left', 'said'),
    [
        ('noop', 1, ''),
        ('log', 1, 'Detected instance with'),
        ('shutdown', 4, 'Powering off instance with'),
        ('reap', None, 'Destroying instance with'),
    ],
)
def test_a_guest_of_a_deleted_server(
    cloud: Cloud, caplog: pytest.LogCaptureFixture, action: str, left: int | None, said: str
) -> None:
    """A guest whose server has been deleted for longer than the timeout is treated as
    running_deleted_instance_action says: noop, log, shutdown or reap."""
    instance, manager = restored(cloud), cloud.computes['gpu1']
    manager.conf.set_override('running_deleted_instance_action', action)
    with caplog.at_level(logging.INFO):
        manager.leftovers.reap()
        assert guests(cloud) == {instance.uuid: 1}
        deleted_for(cloud, instance.uuid, 61)
        manager.leftovers.reap()
    assert guests(cloud).get(instance.uuid) == left
    label = f"{said} name label 'instance-{instance.id:08x}' which is marked as DELETED but still present on host."
    assert (label in caplog.text) == bool(said)
    if action == 'reap':
        assert directories(cloud) == []
        cloud.assert_empty()


def test_only_guests_of_deleted_servers_are_touched(cloud: Cloud) -> None:
    """Guests of servers that live on the host, guests that no database knows, and guests that an operation will
    still remove are not touched."""
    gone, manager = restored(cloud), cloud.computes['gpu1']
    deleted_for(cloud, gone.uuid, 61)
    lives = cloud.boot(cloud.flavor())
    known = records.instance(cloud.compute_context('gpu1'), lives)
    assert known is not None
    known.uuid, known.id = UNKNOWN, 999
    manager.host.driver.guests.spawn(known, {'id': known.image_ref, 'disk_format': 'raw'})
    release = operations.OperationRow(
        uuid='r', kind='release', instance_uuid=gone.uuid, slot='r', not_before=4e9, host='gpu1'
    )
    with cloud.cell.write() as conn:
        operations.insert(conn, [release])
    manager.leftovers.reap()
    assert set(guests(cloud)) == {gone.uuid, lives, UNKNOWN}
    with cloud.cell.write() as conn:
        operations.end(conn, 'r', gone.uuid)
    manager.leftovers.reap()
    assert set(guests(cloud)) == {lives, UNKNOWN}


def test_one_guest_that_can_not_be_removed_holds_up_no_other(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found, manager = [restored(cloud), restored(cloud)], cloud.computes['gpu1']
    for instance in found:
        deleted_for(cloud, instance.uuid, 61)
    stuck = min(instance.uuid for instance in found)
    part = manager.host.driver.guests
    destroy = part.destroy

    def refuse(instance: Instance, *args: Any) -> None:
        if instance.uuid == stuck:
            raise OSError('no')
        destroy(instance, *args)

    monkeypatch.setattr(part, 'destroy', refuse)
    manager.leftovers.reap()
    assert set(guests(cloud)) == {stuck} and 'still present on the host' in caplog.text


def test_files_of_deleted_servers_go(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of deleted servers that have no guest are removed. Files that no database knows stay. After
    maximum_instance_delete_attempts the files are left to an administrator."""
    instance, manager = restored(cloud), cloud.computes['gpu1']
    lives = cloud.boot(cloud.flavor())
    path = pathlib.Path(manager.conf.instances_path)
    kept = [UNKNOWN, lives]
    for name in (f'{instance.uuid}_resize', UNKNOWN):
        (path / name).mkdir()
    manager.leftovers.remove_files()
    assert directories(cloud) == sorted([instance.uuid, f'{instance.uuid}_resize', *kept])
    manager.host.driver.guests.destroy(instance, False)
    part = manager.host.driver.guests
    with monkeypatch.context() as patch:
        tried = []

        def refuse(instance: Instance, *args: Any) -> None:
            tried.append(instance.uuid)
            raise OSError('read-only file system')

        patch.setattr(part, 'destroy', refuse)
        for _time in range(7):
            manager.leftovers.remove_files()
        assert tried == [instance.uuid] * 5
    manager.leftovers.remove_files()
    assert f'{instance.uuid}_resize' in directories(cloud)
    manager.leftovers.attempts.clear()
    manager.leftovers.remove_files()
    assert directories(cloud) == sorted(kept)


def test_a_look_at_a_host_that_has_none_asks_nobody(cloud: Cloud) -> None:
    """Nothing a server and period."""
    for number in range(3):
        cloud.boot(cloud.flavor(), name=f's{number}')
    manager = cloud.computes['gpu1']
    cloud.messages.clear()
    manager.leftovers.reap()
    manager.leftovers.remove_files()
    manager.leftovers.clean_image_cache()
    assert cloud.messages == []


def test_the_tasks_of_a_host_come_round(make_cloud: Callable[..., Cloud]) -> None:
    """Under the field's names and spacings; -1 turns one off."""
    cloud = make_cloud(GPUS, instance_delete_interval=-1)
    spacing = cloud.computes['gpu1'].timers.spacing
    assert (spacing['cleanup_running_deleted_instances'], spacing['run_image_cache_manager_pass']) == (1800, 2400)
    assert 'run_pending_deletes' not in spacing
