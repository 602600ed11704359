"""The DNS names of a renamed server's ports, while others change or delete the ports."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.conductor.flows.network import network_changed
from kilonova.conductor.work import RetryLater
from kilonova.db.queries import info_caches, instances, operations
from tests.fixtures.neutron import FakeNeutron
from tests.fixtures.servers import set_state
from tests.unit.conductor.site import SERVER, Site
from tests.unit.scheduler.builders import pci_requests


def names(neutron: FakeNeutron) -> list[str]:
    """The DNS names of the ports, in the order of their ids."""
    return [neutron.ports[port_id]['dns_name'] for port_id in sorted(neutron.ports)]


@pytest.fixture
def rename(site: Site, begin: Callable[..., Any]) -> Callable[[], None]:
    begin('network_changed', {'renamed': True})
    return site.go


def test_every_port_gets_the_name_of_the_server(neutron: FakeNeutron, rename: Callable[[], Any]) -> None:
    rename()
    assert names(neutron) == ['web', 'web', 'web']


def test_a_port_that_is_deleted_meanwhile_does_not_keep_the_others_from_their_names(
    site: Site, neutron: FakeNeutron, ports: list[str], rename: Callable[[], Any]
) -> None:
    neutron.before = lambda method, path: method == 'PUT' and path.endswith(ports[0]) and neutron.ports.pop(ports[0], 0)
    rename()
    assert names(neutron) == ['web', 'web'] and site.kept() is None


def test_a_network_service_without_dns_names_gets_none(
    site: Site, neutron: FakeNeutron, rename: Callable[[], Any]
) -> None:
    neutron.extensions -= {'dns-integration'}
    for port in neutron.ports.values():
        del port['dns_name']
    rename()
    assert 'PUT' not in {method for method, _ in neutron.asked} and site.kept() is None


def test_a_port_that_is_changed_meanwhile_gets_its_name_in_the_next_try(
    site: Site, neutron: FakeNeutron, ports: list[str], rename: Callable[[], Any]
) -> None:
    def change(method: str, path: str) -> None:
        if method == 'PUT':
            neutron.before = None
            neutron.ports[ports[0]]['revision_number'] += 1

    neutron.before = change
    rename()
    row = site.kept()
    assert row is not None and 'it was changed meanwhile' in row.outputs['reason']
    assert names(neutron)[0] == ''
    rename()
    assert names(neutron) == ['web', 'web', 'web'] and site.kept() is None


# --- refreshes --------------------------------------------------------------------------------------------------------
def test_a_refresh_of_a_server_without_ports_and_devices_asks_nothing(site: Site, neutron: FakeNeutron) -> None:
    site.put('active')
    site.accept('network_changed')
    site.go()
    assert neutron.asked == [] and site.kept() is None


def test_a_deleted_port_is_detached_if_only_its_device_is_left(site: Site, neutron: FakeNeutron) -> None:
    """Detach the port though the info cache has no interface any more."""
    requests = pci_requests(1)
    requests.requests[0].alias_name, requests.requests[0].requester_id = None, 'port'
    site.put('active', pci_requests=requests)
    work = site.accept('network_changed')
    site.update(slot=f'beside {work}')
    site.go()
    (row,) = site.rows()
    assert (row.kind, row.args['port_id'], row.args['vif']) == ('detach_interface', 'port', None)


def test_a_refresh_is_repeated_if_another_operation_changed_the_info_cache_meanwhile(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    begin('network_changed')
    for port_id in ports:
        neutron.ports[port_id]['status'] = 'ACTIVE'

    def change(method: str, path: str) -> None:
        neutron.before = None
        vifs = site.work().vifs()
        with site.cell.write() as conn:
            info_caches.write(conn, SERVER, [vif.stored() for vif in vifs[1:]])

    neutron.before = change
    site.go()
    row = site.kept()
    assert row is not None and f'The ports of server {SERVER} were changed meanwhile' in row.outputs['reason']
    site.go()
    assert site.kept() is None
    cache = json.loads(site.row()['extra_network_info'])
    assert [(vif['id'], vif['active']) for vif in cache] == [(port_id, True) for port_id in ports[1:]]


# --- ports that were deleted, with a device --------------------------------------------------------------------------
@pytest.fixture
def detach(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Start the detach of a port that was deleted and whose device the server still holds."""
    work = begin('network_changed')
    site.update(slot=f'beside {work.uuid}')
    del neutron.ports[ports[0]]
    monkeypatch.setattr(network_changed, '_held', lambda work: [ports[0]])
    return lambda: network_changed._detach(work, ports[0])


def test_the_detach_of_a_deleted_port_is_started(site: Site, ports: list[str], detach: Callable[[], None]) -> None:
    detach()
    (row,) = [row for row in site.rows() if row.kind == 'detach_interface']
    assert row.args['port_id'] == row.args['vif']['id'] == ports[0] and site.woken == [([row.uuid], False)]
    table = instances.actions
    with site.cell.read() as conn:
        action = conn.execute(sa.select(table).where(table.c.request_id == row.request_id)).mappings().one()
    assert row.request_id != 'req-1' and action['instance_uuid'] == SERVER
    assert (action['action'], action['user_id'], action['project_id']) == ('detach_interface', None, None)


@pytest.mark.parametrize('why', ['its ports were changed meanwhile', 'another operation works on it'])
def test_the_detach_of_a_deleted_port_waits_while_the_server_changes(
    site: Site, detach: Callable[[], None], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    accept = operations.accept

    def changed(*args: Any, **kwargs: Any) -> Any:
        with site.cell.write() as conn:
            if why == 'another operation works on it':
                set_state(conn, SERVER, vm_state='active', task_state='rebooting')
            else:
                info_caches.write(conn, SERVER, [])
        return accept(*args, **kwargs)

    monkeypatch.setattr(operations, 'accept', changed)
    with pytest.raises(RetryLater, match=why):
        detach()
    assert [row.kind for row in site.rows()] == ['network_changed'] and site.woken == []


@pytest.mark.parametrize('reason', ['attached again', 'not held any more', 'being built'])
def test_nothing_is_detached_if_that_is_not_needed_any_more(
    site: Site,
    neutron: FakeNeutron,
    ports: list[str],
    detach: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    if reason == 'attached again':
        neutron.ports[ports[0]] = {**neutron.ports[ports[1]], 'id': ports[0]}
    elif reason == 'not held any more':
        monkeypatch.setattr(network_changed, '_held', lambda work: [])
    else:
        with site.cell.write() as conn:
            set_state(conn, SERVER, vm_state='building', task_state='spawning')
    detach()
    assert [row.kind for row in site.rows()] == ['network_changed']
