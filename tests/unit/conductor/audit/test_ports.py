"""What the audit says of ports in Neutron and the info caches of servers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from kilonova.clients.neutron.ports import Port
from kilonova.conductor.audit.ports import AWAKE, PortAudit
from kilonova.objects.vif import Vif


def port(port_id: str, server: str, **fields: Any) -> Port:
    """Return a port of a server on gpu1."""
    return Port(
        id=port_id,
        network_id='n',
        project_id='demo',
        mac='m',
        status='ACTIVE',
        admin_state_up=True,
        device_id=server,
        device_owner='compute:zone0',
        **{'host': 'gpu1', **fields},
    )


def server(name: str, *port_ids: str, vm_state: str = 'active', vnic_type: str = 'normal') -> dict[str, Any]:
    """Return the row of a server on gpu1 with these ports in its info cache."""
    vifs = [
        Vif(id=port_id, mac='m', network_id='n', label='l', project_id='demo', type='ovs', vnic_type=vnic_type)
        for port_id in port_ids
    ]
    cache = json.dumps([vif.stored() for vif in vifs])
    return {'uuid': name, 'host': 'gpu1', 'vm_state': vm_state, 'network_info': cache}


def test_each_difference_is_reported_though_an_operation_works_on_another_server() -> None:
    given = [
        port('p0', 'busy'),
        port('p2', 'uncached'),
        port('p3', 'elsewhere', host='gpu2'),
        port('p4', 'unbound', host=None),
        port('p5', 'device', vnic_type='direct', profile={'pci_slot': '0000:08:00.1'}),
        port('p6', 'good', vnic_type='direct', profile={'pci_slot': '0000:08:00.2'}),
        port('p7', 'stranger'),
    ]
    audit = PortAudit(SimpleNamespace(ports_of_servers=lambda: given))  # type: ignore[arg-type]
    assert audit.read() is None
    servers = [
        server('busy'),
        server('gone', 'p1'),
        server('uncached'),
        server('elsewhere', 'p3'),
        server('unbound', 'p4'),
        server('device', 'p5', vnic_type='direct'),
        server('good', 'p6', vnic_type='direct'),
        server('resized', 'p8', vm_state='resized', vnic_type='direct'),
        server('rescued', 'p9', vm_state='rescued', vnic_type='direct'),
        server('accelerated', 'p10', vnic_type='accelerator-direct'),
    ]
    owned = {
        'device': [{'address': '0000:08:00.1', 'host': 'gpu2'}],
        'good': [{'address': '0000:08:00.1', 'host': 'gpu2'}, {'address': '0000:08:00.2', 'host': 'gpu1'}],
    }
    audit.compare({row['uuid']: row for row in servers}, owned, {}, {'busy'})
    assert audit.disagreements() == [
        'ports: server gone has port p1 in its info cache, and in Neutron the port does not belong to the server',
        'ports: port p2 belongs to server uncached, and is not in its info cache',
        'ports: port p3 of server elsewhere is bound to gpu2, and the server is on gpu1',
        'ports: port p4 of server unbound is bound to no host, and the server is on gpu1',
        'ports: port p5 of server device names device 0000:08:00.1 of gpu1, which the server does not hold',
        'ports: port p7 belongs to stranger, which is not a server',
    ]
    kept = 'is deleted; the devices and resources that the server holds for it are released when'
    assert audit.in_flight == [
        f'ports: port p8 of server resized {kept} its resize is confirmed or reverted',
        f'ports: port p9 of server rescued {kept} {AWAKE}',
    ]
