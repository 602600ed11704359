"""Undos, and what only goes forward, that reach a host when the server has changed meanwhile: each comes to its end."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from tests.unit.compute.cell import new_context
from tests.unit.virt.builders import VOLUME, VOLUME2, new_vif

FILES = {'volume_id': VOLUME, 'name': 'a', 'format': 'raw', 'new': 'b'}
COPY = {'of': VOLUME, 'volume_id': VOLUME2}


@pytest.mark.parametrize(
    ('method', 'given'),
    [('undo_unplug_functions', {'vifs': [new_vif().stored()]}), ('undo_detach_interface', {'vif': new_vif().stored()})],
)
@pytest.mark.parametrize('home', ['gpu1', 'gpu2', None])
def test_a_port_is_plugged_in_again_only_where_the_server_is(
    cloud: Any, manager: Any, server: Any, method: str, given: dict[str, Any], home: str | None
) -> None:
    asked = cloud.cell.instance(server.uuid)
    if home is None:
        del cloud.cell.instances[server.uuid]
    else:
        cloud.cell.instances[server.uuid]['host'] = home
    getattr(manager.endpoint, method)(new_context(), instance=asked, key='d/0.undo/1', **given)
    plugged = cloud.drivers['gpu1'].domains[server.uuid].vifs
    assert (new_vif().id in plugged) == (home == 'gpu1')


@pytest.mark.parametrize(
    ('method', 'given', 'answer'),
    [
        ('undo_merge_volume', {'merge': {'volume_id': VOLUME, 'file': None, 'into': 'a'}}, {'merged': False}),
        ('undo_snapshot_volume', {'files': FILES}, {'taken': False}),
        ('undo_swap_volume', {'copy': COPY}, {'swapped': False}),
        ('undo_copy_volume', {'copy': COPY}, {}),
        ('undo_detach_volume', {'volume_id': VOLUME}, {}),
    ],
)
def test_an_undo_for_a_volume_that_the_server_has_lost_ends(
    manager: Any, server: Any, method: str, given: dict[str, Any], answer: dict[str, Any]
) -> None:
    """It raised Invalid, and was asked for again for ever."""
    server.block_device_mapping = []
    assert getattr(manager.endpoint, method)(new_context(), instance=server, key='v/0.undo/1', **given) == answer


def test_a_function_that_fails_at_the_destination_rests_and_the_guest_stays(
    cloud: Any, manager: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The migration only goes forward by then."""
    failed: list[str] = []

    def attach(*given: Any) -> None:
        raise errors.DevicesFailed(addresses=['0000:08:00.0'], reason='vfio: error getting device')

    driver = cloud.drivers['gpu1']
    monkeypatch.setattr(driver.live_migrations, 'receive', lambda instance: None)
    monkeypatch.setattr(driver.guests, 'attach_interface', attach)
    monkeypatch.setattr(manager.host, 'devices_failed', lambda ctxt, uuid, error: failed.extend(error.addresses))
    manager.endpoint.plug_functions(new_context(), instance=server, vifs=[new_vif().stored()], key='m/5.arrive/1')
    assert failed == ['0000:08:00.0']
