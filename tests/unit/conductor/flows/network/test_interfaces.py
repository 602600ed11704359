"""Attaching and detaching an interface: how the operation ends, when it is refused or cancelled as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.errors import Invalid
from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import SERVER, Site

EVENT, ATTACHED = 'compute_detach_interface', 'compute_attach_interface'
ON = "active/None on gpu1: flavor 1, metadata {'role': 'db'}"


@pytest.fixture
def detach(site: Site, ports: list[str], begin: Callable[..., Any]) -> Callable[[], Any]:
    """Detach the first of the server's three interfaces: the row of the server afterwards."""
    vif = begin('detach_interface', {'vif': None, 'port_id': ports[0]}).vifs()[0]
    site.update(args=json.dumps({'vif': vif.stored()}))
    site.sent.clear()

    def run() -> list[str]:
        site.go()
        return [one['id'] for one in json.loads(site.row()['extra_network_info'])]

    return run


def test_the_guest_releases_the_interface_before_its_port_goes(
    site: Site, neutron: FakeNeutron, ports: list[str], detach: Callable[[], list[str]]
) -> None:
    there: list[int] = []
    site.answers['detach_interface'] = lambda sent: there.append(len(neutron.bound()))
    assert detach() == ports[1:] and there == [3] and len(neutron.bound()) == 2
    assert site.asked() == ['gpu1 detach_interface'] and site.kept() is None
    assert site.action() == 'done' and site.events() == [(EVENT, 'Success', 'gpu1', None)]


def test_a_detach_that_is_cancelled_after_the_guest_released_the_interface_is_completed(
    site: Site, neutron: FakeNeutron, ports: list[str], detach: Callable[[], list[str]]
) -> None:
    """Its action is done, as with a volume: the user has got what the request asked for."""
    site.answers['detach_interface'] = lambda sent: site.update(cancelled=True)
    assert detach() == ports[1:] and len(neutron.bound()) == 2
    assert site.asked() == ['gpu1 detach_interface'] and site.kept() is None and site.action() == 'done'
    ((event, result, _, _),) = site.events()
    assert (event, result) == (EVENT, 'Success')


def test_a_detach_that_is_cancelled_before_leaves_the_interface(
    site: Site, neutron: FakeNeutron, ports: list[str], detach: Callable[[], list[str]]
) -> None:
    site.update(cancelled=True)
    assert detach() == ports and len(neutron.bound()) == 3
    assert site.kept() is None and site.action() == 'Error'
    assert [(event, result) for event, result, *_ in site.events()] == [(EVENT, 'Error')]


@pytest.mark.parametrize('is_down', [True, False])
def test_a_detach_that_the_host_refuses_leaves_the_interface_and_is_undone_at_once_or_later(
    site: Site, neutron: FakeNeutron, ports: list[str], detach: Callable[[], list[str]], is_down: bool
) -> None:
    def refuse(sent: Any) -> None:
        if is_down:
            site.silence('gpu1')
        raise Invalid('no')

    site.answers['detach_interface'] = refuse
    assert detach() == ports and len(neutron.bound()) == 3
    vif = json.loads(site.row()['extra_network_info'])[0]
    message = {'instance': ON, 'vif': vif}
    asked = [('gpu1', 'detach_interface', {**message, 'key': '0.unplug/1'})]
    if not is_down:
        asked.append(('gpu1', 'undo_detach_interface', {**message, 'key': '0.unplug/1'}))
    later = [('gpu1', {'host': 'gpu1', 'method': 'undo_detach_interface', 'kwargs': message})]
    assert site.calls() == asked and site.releases() == (later if is_down else [])
    assert site.kept() is None and site.events() == [(EVENT, 'Error', 'gpu1', 'no')] and site.action() == 'Error'


# --- attach ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('is_own', [True, False])
@pytest.mark.parametrize('how', ['attached', 'refused', 'refused, and then down'])
def test_an_attach_ends_with_the_interface_or_without_any_trace_of_it(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], how: str, is_own: bool
) -> None:
    """Delete the new port after a refusal, or unbind the port that the user created, and keep the other interfaces."""

    def refuse(sent: Any) -> None:
        if how != 'refused':
            site.silence('gpu1')
        raise Invalid('no')

    (network,) = neutron.networks
    own = neutron.add_port(network, 'demo') if is_own else None
    wish = {'network_id': network, 'port_id': own, 'address': None, 'device': None, 'tag': 'data'}
    begin('attach_interface', {'wish': wish, 'request': None, 'resources': None})
    if how != 'attached':
        site.answers['attach_interface'] = refuse
    site.sent.clear()
    site.go()
    (vif,) = {sent.args['vif']['id']: sent.args['vif'] for sent in site.sent}.values()
    assert (vif['id'] == own) is is_own and vif['id'] not in ports
    message = {'instance': ON, 'vif': vif}
    asked = [('gpu1', 'attach_interface', {**message, 'key': '3.plug/1'})]
    if how == 'refused':
        asked.append(('gpu1', 'undo_attach_interface', {**message, 'key': '3.plug/1'}))
    later = [('gpu1', {'host': 'gpu1', 'method': 'undo_attach_interface', 'kwargs': message})]
    assert site.calls() == asked and site.releases() == (later if how.endswith('down') else [])
    cached = [one['id'] for one in json.loads(site.row()['extra_network_info'])]
    left = [port['device_id'] for port_id, port in neutron.ports.items() if port_id not in ports]
    if how == 'attached':
        assert cached == [*ports, vif['id']] and left == [SERVER] and len(neutron.bound()) == 4
        assert site.events() == [(ATTACHED, 'Success', 'gpu1', None)] and site.action() == 'done'
    else:
        assert cached == ports and left == [''] * is_own and len(neutron.bound()) == 3
        assert site.events() == [(ATTACHED, 'Error', 'gpu1', 'no')] and site.action() == 'Error'
    assert site.kept() is None
