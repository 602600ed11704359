"""Notifications of interfaces and volumes that can't be attached."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors, objects
from tests.unit.compute.cell import new_context
from tests.unit.compute.cloud import Cloud
from tests.unit.compute.test_rebuild import DATA, attach
from tests.unit.virt.builders import new_vif


@pytest.fixture
def told(manager: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """(event, text of the fault) of each notification about a server."""
    found: list[tuple[str, str | None]] = []

    def emit(ctxt: Any, event: str, fault: Exception | None = None, **facts: Any) -> None:
        if event.startswith('instance.'):
            found.append((event, str(fault) if fault is not None else None))

    monkeypatch.setattr(manager.host.notify, 'emit', emit)
    return found


@pytest.mark.parametrize('fails', [True, False])
def test_a_volume_that_can_not_be_attached_is_told_with_the_reason(
    cloud: Cloud, manager: Any, server: objects.Instance, told: list[Any], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def plug(*args: Any) -> None:
        if fails:
            raise errors.Invalid('no slot')

    attach(server.uuid, DATA)
    monkeypatch.setattr(cloud.drivers['gpu1'].volumes, 'attach', plug)
    message = {'instance': cloud.cell.instance(server.uuid), 'volume_id': DATA, 'key': 'o/1.attach_volume/1'}
    if fails:
        with pytest.raises(errors.Invalid, match='no slot'):
            manager.endpoint.attach_volume(new_context(), **message)
    else:
        manager.endpoint.attach_volume(new_context(), **message)
    name = 'instance.volume_attach.'
    assert told == [(f'{name}start', None), (f'{name}error', 'no slot') if fails else (f'{name}end', None)]


@pytest.mark.parametrize('fails', [True, False])
def test_an_interface_that_can_not_be_attached_is_told_with_the_reason(
    cloud: Cloud, manager: Any, server: objects.Instance, told: list[Any], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def plug(*args: Any) -> None:
        if fails:
            raise errors.Invalid('no slot')

    monkeypatch.setattr(cloud.drivers['gpu1'].guests, 'attach_interface', plug)
    message = {'instance': server, 'vif': new_vif().stored(), 'key': 'o/1.plug/1'}
    if fails:
        with pytest.raises(errors.Invalid, match='no slot'):
            manager.endpoint.attach_interface(new_context(), **message)
    else:
        manager.endpoint.attach_interface(new_context(), **message)
    name = 'instance.interface_attach.'
    assert told == [(f'{name}start', None), (f'{name}error', 'no slot') if fails else (f'{name}end', None)]
