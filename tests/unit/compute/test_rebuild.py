"""Rebuilds on a host: which volumes it disconnects, and where the guest finds its tagged devices afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kilonova import errors, objects
from kilonova.db.queries import volumes
from kilonova.objects.volume import AttachedVolume
from tests.unit.compute.cell import database, new_context

ROOT, DATA = 'a0000000-0000-4000-8000-00000000000a', 'b0000000-0000-4000-8000-00000000000b'


def attach(uuid: str, volume_id: str, host: str | None = 'gpu1', tag: str | None = None) -> None:
    """Write the row of a volume that is attached to a host."""
    connection = {'driver_volume_type': 'rbd', 'name': f'volumes/{volume_id}'} if host else None
    text = AttachedVolume('', volume_id, 1).connection_info(uuid, host, connection)
    row = volumes.new_row(volume_id, size=1, connection_info=text, tag=tag)
    with database().write() as conn:
        values = {'boot_index': 0 if volume_id == ROOT else None, 'attachment_id': volume_id}
        volumes.add(conn, uuid, {**row, **values, 'device_name': '/dev/vda' if volume_id == ROOT else '/dev/vdb'})


def order(cloud: Any, uuid: str) -> objects.RebuildOrder:
    sent = cloud.cell.in_task(uuid, 'rebuilding')
    return objects.RebuildOrder(
        instance=sent, image={'id': 'i3', 'properties': {}}, sealed=None, preserve_ephemeral=False
    )


@pytest.mark.parametrize(('host', 'disconnected'), [('gpu1', [ROOT]), (None, [])])
def test_only_a_root_volume_of_this_host_is_disconnected_for_its_new_image(
    cloud: Any, manager: Any, server: Any, monkeypatch: pytest.MonkeyPatch, host: str | None, disconnected: list[str]
) -> None:
    """Cinder can't write to a volume that a host has; the data volume stays connected."""
    attach(server.uuid, ROOT, host)
    attach(server.uuid, DATA)
    driver, found = cloud.drivers['gpu1'], []
    monkeypatch.setattr(driver.volumes, 'disconnect', lambda instance, volume: found.append(volume.volume_id))
    answer = manager.endpoint.stop_to_reimage(new_context(), order=order(cloud, server.uuid), key='o/2.stop_guest/1')
    assert found == disconnected and cloud.cell.instances[server.uuid]['power_state'] == 4
    assert answer == {'power_state': 4}


@pytest.mark.parametrize('tag', ['data', None])
def test_the_addresses_of_tagged_devices_are_saved_after_a_rebuild(
    cloud: Any, manager: Any, server: Any, tag: str | None
) -> None:
    """The guest reads them from the metadata service, and a rebuilt guest may have its devices elsewhere."""
    attach(server.uuid, DATA, tag=tag)
    manager.endpoint.rebuild_instance(new_context(), order=order(cloud, server.uuid), key='o/2.rebuild_instance/1')
    stored = cloud.cell.extras[server.uuid]['device_metadata']
    found = json.loads(stored)['nova_object.data']['devices'] if stored else []
    assert [one['nova_object.data']['tags'] for one in found] == ([[tag]] if tag else [])


@pytest.mark.parametrize(
    ('error', 'events'),
    [
        (errors.Unanswered(who='glance', reason='timed out'), []),
        (errors.KeyGone(key='x'), []),
        (errors.KilonovaError('no'), [('compute_rebuild_instance', 'Error')]),
    ],
)
def test_a_rebuild_that_is_asked_for_again_or_elsewhere_has_not_failed(
    cloud: Any, manager: Any, server: Any, error: Exception, events: list[Any]
) -> None:
    cloud.drivers['gpu1'].fail('rebuild', error)
    with pytest.raises(type(error)):
        manager.endpoint.rebuild_instance(new_context(), order=order(cloud, server.uuid), key='o/2.rebuild/1')
    assert cloud.cell.events() == events
