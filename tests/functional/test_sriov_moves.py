"""Servers with ports that are functions of PCI devices move, also while a port goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.conductor.flows import FLOWS
from kilonova.db.queries.operations import OperationRow
from tests.fixtures.cloud import Cloud
from tests.fixtures.neutron import FUNCTIONS
from tests.flows.cases import bring_back, disturb, force_down, lose_host
from tests.functional.carded import FAILED, VIRTUAL, Carded, live, once
from tests.functional.test_expiry import until
from tests.functional.test_ports import HOSTS, broken, other


@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
@pytest.mark.parametrize('same', [False, True])
def test_a_resize(make_cloud: Callable[..., Cloud], end: str, same: bool) -> None:
    """On another host and on the same one: new devices, and the old ones back after a revert."""
    carded = Carded(make_cloud, allow_resize_to_same_host=same)
    cloud = carded.cloud
    if same:
        force_down(cloud, HOSTS[1], True)
    server, port = carded.with_port()
    source, slot = cloud.host_of(server), carded.profile(port)['pci_slot']
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    target = source if same else other(source)
    carded.assert_at(server, port, target)
    assert len(cloud.owned(server)) == 2 and (carded.profile(port)['pci_slot'] != slot or not same)
    new = carded.profile(port)['pci_slot']
    cloud.action(server, end)
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    carded.assert_at(server, port, target if end == 'confirmResize' else source)
    assert carded.profile(port)['pci_slot'] == (new if end == 'confirmResize' else slot)
    assert cloud.owned(server) == [f'{cloud.host_of(server)} {carded.profile(port)["pci_slot"]}']
    carded.gone(server, port)


def test_a_move_whose_binding_fails_comes_back(carded: Carded) -> None:
    server, port = carded.with_port()
    cloud, source, before = carded.cloud, carded.cloud.host_of(server), carded.profile(port)
    carded.neutron.hosts.discard(other(source))
    cloud.action(server, 'migrate')
    assert 'Binding failed for port' in json.dumps(cloud.story(server))
    assert cloud.status(server) == 'ACTIVE' and carded.profile(port) == before
    carded.assert_at(server, port, source)
    carded.gone(server, port)


@pytest.mark.parametrize('same', [False, True])
def test_a_move_whose_guest_fails_comes_back(make_cloud: Callable[..., Cloud], same: bool) -> None:
    carded = Carded(make_cloud, allow_resize_to_same_host=same)
    cloud = carded.cloud
    if same:
        force_down(cloud, HOSTS[1], True)
    server, port = carded.with_port()
    source, before = cloud.host_of(server), carded.profile(port)
    cloud.computes[source if same else other(source)].host.driver.moves.finish_migration = broken
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    assert cloud.status(server) == 'ACTIVE' and carded.profile(port) == before
    carded.assert_at(server, port, source)
    carded.gone(server, port)


def test_a_move_without_a_device_there(carded: Carded) -> None:
    """Refused with the reason, and nothing has changed."""
    server, port = carded.with_port()
    cloud, source = carded.cloud, carded.cloud.host_of(server)
    while True:
        filler, _ = carded.with_port()
        if not carded.neutron.ports or ([cloud.host_of(filler)] and _full(carded, other(source))):
            break
    cloud.action(server, 'migrate')
    assert 'physical network physnet1' in json.dumps(cloud.story(server))
    carded.assert_at(server, port, source)


def _full(carded: Carded, host: str) -> bool:
    bound = [port for port in carded.neutron.ports.values() if port['binding:host_id'] == host]
    return len(bound) == len(VIRTUAL)


@pytest.mark.parametrize(
    ('vnic_type', 'bound', 'given'),
    [('direct', 'hw_veb', 'hostdev'), ('macvtap', 'hw_veb', 'direct'), ('direct', 'ib_hostdev', 'pci')],
)
def test_a_live_migration(
    carded: Carded, monkeypatch: pytest.MonkeyPatch, vnic_type: str, bound: str, given: str
) -> None:
    """The function leaves the guest, which gets one of the destination, though that has others free at the first's
    address. libvirt's test driver gives it to the guest's next start."""
    monkeypatch.setitem(FUNCTIONS, vnic_type, bound)
    server, port = carded.with_port(vnic_type)
    cloud, source = carded.cloud, carded.cloud.host_of(server)
    for _ in range(2):
        carded.told.clear()
        live(carded, server)
        host = other(source)
        assert (cloud.status(server), cloud.host_of(server)) == ('ACTIVE', host), cloud.story(server)
        assert carded.neutron.bindings(port) == [host]
        profile = carded.profile(port)
        assert profile['note'] == 'mine' and profile['pf_mac_address'] == f'52:54:00:00:00:0{HOSTS.index(host)}'
        assert [vif['profile'] for vif in carded.cache(server)] == [profile]
        assert cloud.owned(server) == [f'{host} {profile["pci_slot"]}']
        assert carded.defined(server) == [given]
        cloud.action(server, 'reboot', {'type': 'HARD'})
        cloud.assert_clean()
        source = host
    carded.gone(server, port)


@pytest.mark.parametrize('reason', ['no device', 'kept', 'no binding', 'lost on its way'])
def test_a_live_migration_that_fails(carded: Carded, reason: str) -> None:
    """The guest has its function on the source, and the port names it; nothing is left at the destination."""
    server, port = carded.with_port()
    cloud, source, before = carded.cloud, carded.cloud.host_of(server), carded.profile(port)
    asked: list[str] = []
    if reason == 'no device':
        force_down(cloud, source, True)
        for _ in VIRTUAL:
            carded.with_port()
        force_down(cloud, source, False)
    elif reason == 'kept':
        cloud.computes[source].host.driver.guests.detach_interface = broken
    elif reason == 'no binding':
        carded.neutron.hosts.discard(other(source))
    else:
        detach = cloud.computes[source].host.driver.guests.detach_interface
        cloud.computes[source].host.driver.guests.detach_interface = lambda *args: (asked.append('out'), detach(*args))
        cloud.computes[source].host.driver.live_migrations.migrate = broken
    live(carded, server)
    assert (cloud.status(server), asked) == ('ACTIVE', ['out'] * (reason == 'lost on its way')), cloud.story(server)
    carded.assert_at(server, port, source)
    assert carded.profile(port) == before and carded.neutron.bindings(port) == [source]
    assert cloud.owned(server) == [f'{source} {before["pci_slot"]}'] and carded.defined(server) == ['hostdev']
    cloud.action(server, 'reboot', {'type': 'HARD'})
    carded.assert_at(server, port, source)


def test_a_physical_function_does_not_move_live(carded: Carded) -> None:
    server, port = carded.with_port('direct-physical')
    answer = carded.cloud.request(
        'POST', f'/servers/{server}/action', {'os-migrateLive': {'host': None, 'block_migration': 'auto'}}
    )
    assert answer.status_int == 400 and f'its port {port} is a physical function' in answer.text


def test_an_evacuation(carded: Carded) -> None:
    """The new host's device; the dead one's is free when that is back."""
    server, port = carded.with_port()
    cloud, source = carded.cloud, carded.cloud.host_of(server)
    lose_host(cloud, source)
    force_down(cloud, source, True)
    carded.evacuate(server)
    assert cloud.status(server) == 'SHUTOFF', cloud.story(server)
    assert carded.neutron.ports[port]['binding:host_id'] == other(source)
    bring_back(cloud, source)
    cloud.settle()
    carded.assert_at(server, port, other(source))
    assert len(cloud.owned(server)) == 1
    carded.gone(server, port)


def test_an_evacuation_that_fails(carded: Carded) -> None:
    """The port names the dead host's device again, though nobody there can bind it; a start there does."""
    server, port = carded.with_port()
    cloud, source, before = carded.cloud, carded.cloud.host_of(server), carded.profile(port)
    lose_host(cloud, source)
    force_down(cloud, source, True)
    carded.neutron.hosts.discard(source)
    cloud.computes[other(source)].host.driver.guests.spawn = broken
    carded.evacuate(server)
    assert cloud.host_of(server) == source
    assert carded.neutron.ports[port]['binding:vif_type'] == 'binding_failed' and carded.profile(port) == before
    carded.neutron.hosts.add(source)
    bring_back(cloud, source)
    cloud.settle()
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    carded.assert_at(server, port, source)
    carded.gone(server, port)


def test_shelve_and_unshelve(carded: Carded) -> None:
    """Without a host it has no device, and keeps the port; a host that fails gives it to the next."""
    server, port = carded.with_port()
    cloud = carded.cloud
    cloud.action(server, 'shelve')
    assert cloud.status(server) == 'SHELVED_OFFLOADED', cloud.story(server)
    assert (carded.neutron.ports[port]['device_id'], carded.profile(port)) == (server, {'note': 'mine'})
    assert cloud.owned(server) == []
    for host in HOSTS:
        cloud.computes[host].host.driver.guests.spawn = once(cloud.computes[host].host.driver.guests)
    cloud.action(server, 'unshelve')
    assert cloud.status(server) == 'ACTIVE' and FAILED, cloud.story(server)
    carded.assert_at(server, port, cloud.host_of(server))
    carded.gone(server, port)


def test_shelve_and_unshelve_after_an_attach_and_a_detach(carded: Carded) -> None:
    """It comes back with the ports that it has now, and claims nothing for one that it had when it was made."""
    server, first = carded.with_port()
    cloud, second = carded.cloud, carded.port()
    cloud.ok('POST', f'/servers/{server}/os-interface', {'interfaceAttachment': {'port_id': second}})
    cloud.ok('DELETE', f'/servers/{server}/os-interface/{first}')
    cloud.settle()
    cloud.action(server, 'shelve')
    cloud.action(server, 'unshelve')
    assert cloud.status(server) == 'ACTIVE' and len(cloud.owned(server)) == 1, cloud.story(server)
    carded.assert_at(server, second, cloud.host_of(server))


@pytest.mark.parametrize('act', [None, 'os-stop', 'suspend'])
def test_a_port_that_is_gone(carded: Carded, monkeypatch: pytest.MonkeyPatch, act: str | None) -> None:
    """Its owner deletes it: the guest gives the function up, and the device is free. One that sleeps has it until it
    wakes, and Neutron tells something of the server's ports."""
    monkeypatch.setattr('kilonova.conductor.flows.network.network_changed.BUSY', 0.05)
    server, port = carded.with_port()
    cloud = carded.cloud
    if act is not None:
        cloud.action(server, act)
    vanish(carded, server, port)
    if act == 'suspend':
        assert len(cloud.owned(server)) == 1
        report = cloud.audit()
        assert (report.disagreements, len(report.in_flight)) == ([], 1) and port in report.in_flight[0]
        cloud.action(server, 'resume')
        (line,) = cloud.audit().disagreements
        assert f'has port {port} in its info cache' in line
        carded.notify([{'name': 'network-changed', 'server_uuid': server, 'tag': port}])
        cloud.settle()
    assert cloud.owned(server) == carded.cache(server) == carded.defined(server) == [], cloud.story(server)
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert cloud.status(server) == 'ACTIVE' and carded.cards(server) == [], cloud.story(server)
    cloud.assert_clean()
    carded.delete(server)
    carded.assert_empty()


def test_the_audit_waits_for_the_end_of_a_resize_with_a_port_that_is_gone(carded: Carded) -> None:
    """Only then the server gives its function back: nothing disagrees before."""
    server, port = carded.with_port()
    cloud = carded.cloud
    cloud.action(server, 'migrate')
    vanish(carded, server, port)
    report = cloud.audit()
    assert (report.disagreements, report.exit_code) == ([], 0)
    assert report.in_flight == [
        (
            f'ports: port {port} of server {server} is deleted; the devices and resources that '
            f'the server holds for it are released when its resize is confirmed or reverted'
        )
    ]
    cloud.action(server, 'confirmResize')
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert cloud.owned(server) == [], cloud.story(server)
    cloud.assert_clean()
    carded.delete(server)
    carded.assert_empty()


def test_a_port_that_is_gone_when_its_server_arrives(carded: Carded) -> None:
    """The device that was claimed for it there is free when the move is over, though Neutron's event is lost, and a
    conductor looks at what is to be given back before the host has claimed that."""

    def on_message(kind: str, topic: str, host: str, called: str, args: Any, deliver: Callable[[], Any]) -> Any:
        if called == 'unshelve_instance':
            carded.cloud.conductors[0].runner.sweep()
            until(
                lambda: all(
                    OperationRow.read(row).outputs.get('tries')
                    for row in carded.cloud.rows()
                    if row['kind'] == 'network_changed'
                )
            )
        return deliver()

    carded.cloud.on_message = on_message
    for kind in ('live_migrate', 'unshelve', 'evacuate'):
        server, port = carded.with_port()
        carded.moved(server, kind, '', port)
        assert carded.cloud.owned(server) == carded.cache(server) == carded.defined(server) == [], kind
        carded.cloud.assert_clean()
        carded.delete(server)
    carded.assert_empty()


@pytest.mark.parametrize('step', ['prep_resize', 'finish_resize', 'mark_resized'])
def test_a_port_is_gone_while_its_server_moves(carded: Carded, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The device that was claimed for it at the destination is free when the move is over."""
    monkeypatch.setattr('kilonova.conductor.flows.network.network_changed.BUSY', 0.05)
    server, port = carded.with_port()
    cloud = carded.cloud

    def vanishes(real: Callable[..., None], work: Any) -> None:
        if port in carded.neutron.ports:
            del carded.neutron.ports[port]
        real(work)

    disturb(monkeypatch, 'resize', FLOWS['resize'].index(step), vanishes)
    cloud.action(server, 'migrate')
    cloud.action(server, 'confirmResize')
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert cloud.owned(server) == [] and carded.cards(server) == carded.cache(server) == [], cloud.story(server)
    carded.delete(server)
    carded.assert_empty()


def vanish(carded: Carded, server: str, port: str) -> None:
    """Its owner deletes it, and Neutron says so."""
    del carded.neutron.ports[port]
    carded.notify([{'name': 'network-vif-deleted', 'server_uuid': server, 'tag': port}])
    carded.cloud.settle()
