"""A port that a user attaches, and ports that are bound to devices of their host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.clients.neutron.refusals import PortChanged, PortInUse, PortNotFound
from kilonova.conductor.flows.network import ports as flow_ports
from kilonova.conductor.flows.network import requested_ports
from kilonova.conductor.flows.network.ports import PortBindingFailed
from kilonova.conductor.flows.network.requested_ports import RequestedPort
from kilonova.conductor.row import ChosenHost
from kilonova.db.queries import info_caches
from kilonova.errors import BuildAbort, KeyGone, Unanswered
from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import SERVER, Site


def test_a_port_that_the_server_has_already_is_not_attached_again(
    neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    """The guest would get a second interface with the same MAC address."""
    work = begin('attach_interface')
    neutron.asked.clear()
    with pytest.raises(PortInUse, match=ports[1]):
        flow_ports.bind_one(work, RequestedPort('n', ports[1]))
    assert {method for method, _ in neutron.asked} == {'GET'}


# --- binding ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('is_tolerated', 'refused'), [({}, True), ({'agent_away': False}, True), ({'agent_away': True}, False)]
)
def test_a_port_that_no_agent_binds_is_refused_unless_its_host_may_be_away(
    site: Site,
    neutron: FakeNeutron,
    ports: list[str],
    begin: Callable[..., Any],
    is_tolerated: dict[str, Any],
    refused: bool,
) -> None:
    work = begin('attach_interface')
    port = site.env.networks.port(None, ports[0])
    with pytest.raises(PortBindingFailed, match='gpu3') if refused else contextlib.nullcontext():
        assert flow_ports.bind(work, port, 'gpu3', 'zone0', **is_tolerated).binding_failed


# --- devices that a host has claimed for ports -----------------------------------------------------------------------
def bind_devices(site: Site, *port_ids: str) -> list[dict[str, Any]]:
    profiles = {port_id: {'pci_slot': f'0000:05:00.{number}'} for number, port_id in enumerate(port_ids)}
    key = f'{site.operation}/0.allocate_port_resources/1'
    return flow_ports.bind_devices(site.env.networks, site.cell, key, SERVER, 'gpu1', profiles)


def slots(neutron: FakeNeutron) -> dict[str, str | None]:
    return {port_id: port['binding:profile'].get('pci_slot') for port_id, port in neutron.ports.items()}


def test_a_port_that_was_deleted_before_a_move_does_not_keep_the_others_from_their_devices(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    begin('attach_interface')
    found = bind_devices(site, 'deleted long ago', ports[0], ports[1])
    assert slots(neutron) == {ports[0]: '0000:05:00.1', ports[1]: '0000:05:00.2', ports[2]: None}
    assert [vif['id'] for vif in found] == ports
    assert [vif['profile'].get('pci_slot') for vif in found] == ['0000:05:00.1', '0000:05:00.2', None]


def test_a_port_that_is_deleted_while_its_server_is_built_ends_the_build(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    """The server has an interface for it, and no host could plug it."""
    begin('attach_interface')
    del neutron.ports[ports[0]]
    with pytest.raises(BuildAbort, match=ports[0]):
        bind_devices(site, ports[0], ports[1])
    assert set(slots(neutron).values()) == {None}


def test_a_device_is_bound_at_the_step_for_which_it_was_claimed_only(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    begin('attach_interface')
    site.update(position=1)
    with pytest.raises(KeyGone):
        bind_devices(site, ports[0])
    assert set(slots(neutron).values()) == {None}


def test_a_conductor_without_an_account_for_neutron_binds_no_device(
    site: Site, neutron: FakeNeutron, begin: Callable[..., Any]
) -> None:
    begin('attach_interface')
    key = f'{site.operation}/0.allocate_port_resources/1'
    with pytest.raises(BuildAbort, match=r'no account in \[neutron\]'):
        flow_ports.bind_devices(None, site.cell, key, SERVER, 'gpu1', {})


def test_a_device_whose_server_others_change_all_the_time_is_bound_in_the_next_try(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin('attach_interface')
    tries: list[int] = []
    monkeypatch.setattr(info_caches, 'replace', lambda *args: tries.append(1))
    with pytest.raises(Unanswered, match='were changed meanwhile'):
        bind_devices(site, ports[0])
    assert len(tries) == flow_ports.TRIES


# --- a port that was changed since the request -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ('wish', 'error'),
    [
        ({'port_id': 'gone'}, PortNotFound),
        ({'device': 'request'}, PortChanged),
    ],
)
def test_a_port_that_was_deleted_or_changed_since_the_request_is_not_attached(
    neutron: FakeNeutron, begin: Callable[..., Any], wish: dict[str, str], error: type[Exception]
) -> None:
    """It is of no kind that needs a device."""
    work = begin('attach_interface')
    (network,) = neutron.networks
    given = neutron.add_port(network, 'demo')
    with pytest.raises(error):
        flow_ports.bind_one(work, RequestedPort(network, **{'port_id': given, **wish}))
    assert neutron.ports[given]['device_id'] == ''


@pytest.mark.parametrize(
    ('wish', 'error'),
    [
        ({'port_id': 'gone'}, PortNotFound),
        ({'device': 'request'}, PortChanged),
        ({'profile': 'fpga'}, PortChanged),
    ],
)
def test_a_port_that_was_deleted_or_changed_since_the_request_ends_the_build(
    neutron: FakeNeutron,
    begin: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    wish: dict[str, str],
    error: type[Exception],
) -> None:
    work = begin('attach_interface')
    (network,) = neutron.networks
    given = neutron.add_port(network, 'demo')
    wanted = RequestedPort(network, **{'port_id': given, **wish})
    monkeypatch.setattr(requested_ports, 'wishes', lambda spec: [wanted])
    monkeypatch.setattr(requested_ports, 'groups', lambda spec: {})
    monkeypatch.setattr(work, 'arguments', lambda kind: SimpleNamespace(request_spec=None))
    work.outputs = SimpleNamespace(accelerated={})
    with pytest.raises(error):
        flow_ports.bind_wanted(work, ChosenHost('gpu1', 'node1'), is_first=True)
    assert neutron.ports[given]['device_id'] == ''


def test_a_repeated_build_uses_the_ports_that_it_has_and_binds_the_others(
    neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bind one port of the user that is bound already, one that is not, one that was created and one that was not."""
    work = begin('attach_interface')
    for port_id in ports[1:]:
        del neutron.ports[port_id]
    (network,) = neutron.networks
    bound, free = (neutron.add_port(network, 'demo', device_id=holder) for holder in (SERVER, ''))
    wanted = [RequestedPort(network, port_id, tag=tag) for port_id, tag in ((bound, 'a'), (None, 'b'), (free, 'c'))]
    monkeypatch.setattr(requested_ports, 'wishes', lambda spec: [*wanted, RequestedPort(network)])
    monkeypatch.setattr(requested_ports, 'groups', lambda spec: {})
    monkeypatch.setattr(work, 'arguments', lambda kind: SimpleNamespace(request_spec=None))
    work.outputs = SimpleNamespace(accelerated={})
    found = flow_ports.bind_wanted(work, ChosenHost('gpu1', 'node1', availability_zone='zone1'), is_first=False)
    (new,) = neutron.ports.keys() - {bound, free, ports[0]}
    assert [(vif.id, vif.tag, vif.preserve_on_delete) for vif in found] == [
        (bound, 'a', True),
        (ports[0], 'b', False),
        (free, 'c', True),
        (new, None, False),
    ]
    assert neutron.bound() == [f'gpu1 {SERVER}'] * 4
