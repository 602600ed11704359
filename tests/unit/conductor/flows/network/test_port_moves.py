"""Ports of a server that leaves its host."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.conductor.flows.network import port_moves
from kilonova.db.models import cell as models
from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import SERVER, Site
from tests.unit.db.rows import device
from tests.unit.scheduler.builders import pci_requests, uuid


def test_all_ports_leave_the_host_though_one_was_deleted(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    """The server keeps them, and forgets the one that was deleted."""
    work = begin('shelve_offload')
    del neutron.ports[ports[0]]
    assert neutron.bound() == [f'gpu1 {SERVER}'] * 2
    port_moves.off_host(work)
    assert neutron.bound() == [] and {port['device_id'] for port in neutron.ports.values()} == {SERVER}
    assert [(vif.id, vif.type) for vif in work.vifs()] == [(port_id, 'unbound') for port_id in ports[1:]]


@pytest.mark.parametrize('is_running', [True, False])
def test_the_port_with_a_device_gets_its_device_on_the_new_host_and_the_others_are_bound_as_they_are(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], is_running: bool
) -> None:
    """Bind one port that is a function of a device, and two that are not."""
    neutron.hosts.add('gpu2')
    for network in neutron.networks.values():
        network['provider:physical_network'] = 'net1'
    neutron.ports[ports[0]].update({'binding:vnic_type': 'direct', 'binding:vif_type': 'hw_veb'})
    work = begin('live_migrate' if is_running else 'unshelve')
    requests = pci_requests(1, dev_type='type-VF', physical_network='net1')
    requests.requests[0].alias_name, requests.requests[0].requester_id = None, ports[0]
    with site.cell.write() as conn:
        row = device('0000:08:00.1', uuid=uuid('device'), status='claimed', instance_uuid=SERVER, compute_node_id=2)
        conn.execute(models.PciDevice.__table__.insert().values({**row, 'request_id': requests.requests[0].request_id}))
    host: Any = SimpleNamespace(host='gpu2', availability_zone='zone1', mappings={})
    function = {'pci_slot': '0000:08:00.1', 'physical_network': 'net1', 'pci_vendor_info': '10de:13f1'}
    if is_running:
        port_moves.announce(work, host, requests)
        assert [neutron.bindings(port_id) for port_id in ports] == [['gpu1', 'gpu2']] * 3
        profiles = [neutron.ports[port_id]['bindings']['gpu2']['profile'] for port_id in ports]
    else:
        port_moves.to_host(work, host, requests)
        assert neutron.bound() == [f'gpu2 {SERVER}'] * 3
        profiles = [neutron.ports[port_id]['binding:profile'] for port_id in ports]
        assert [(vif.type, vif.profile) for vif in work.vifs()] == [('hw_veb', function), ('ovs', {}), ('ovs', {})]
    assert profiles == [function, {}, {}]


@pytest.mark.parametrize('unbound', [0, 1, 3])
def test_ports_that_no_agent_had_bound_are_bound_before_a_guest_starts(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], unbound: int
) -> None:
    """Ask the network service nothing if all ports are bound."""
    for port_id in ports[:unbound]:
        neutron.ports[port_id].update({'binding:host_id': '', 'binding:vif_type': 'unbound'})
    work = begin('start')
    neutron.asked.clear()
    port_moves.bound_here(work)
    assert neutron.bound() == [f'gpu1 {SERVER}'] * 3 and bool(neutron.asked) is bool(unbound)
    assert [vif.type for vif in work.vifs(fresh=True)] == ['ovs'] * 3
