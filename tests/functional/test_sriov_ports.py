"""Servers with ports that are functions of PCI devices (SR-IOV): their hosts claim these as they claim GPUs, and the
ports say in Neutron which they are. In the end nothing is left, there or in the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import objects
from kilonova.db.queries import instances
from tests.fixtures.cloud import IMAGE_ID, PROJECT, Cloud
from tests.functional.carded import PHYSICAL, VIRTUAL, Carded, once
from tests.functional.test_ports import HOSTS, other


def test_a_virtual_function(carded: Carded) -> None:
    """The port is the server's, then bound to the device that the host claimed; the guest has it in the VLAN of its
    network. That is three requests more than for another port: its network's physical one, and the port read and
    bound once more."""
    port = carded.port()
    carded.neutron.notify = None
    carded.neutron.asked.clear()
    server = carded.boot({'port': port})
    assert [method for method, _ in carded.neutron.asked].count('PUT') == 2
    assert len(carded.neutron.asked) == 10, carded.neutron.asked
    host = carded.cloud.host_of(server)
    profile = carded.profile(port)
    assert profile == {
        'note': 'mine',
        'pci_slot': profile['pci_slot'],
        'pci_vendor_info': '8086:1520',
        'physical_network': 'physnet1',
        'pf_mac_address': f'52:54:00:00:00:0{HOSTS.index(host)}',
        'vf_num': VIRTUAL.index(profile['pci_slot']),
    }
    assert carded.cloud.owned(server) == [f'{host} {profile["pci_slot"]}']
    with carded.cloud.cell.read() as conn:
        kept = objects.InstanceDeviceMetadata.from_json((instances.get(conn, server) or {})['extra_device_metadata'])
    assert [(one.mac, one.vlan) for one in kept.devices] == [(carded.neutron.ports[port]['mac_address'], 101)]
    (card,) = carded.cards(server)
    mac, tag = card.find('mac'), card.find('vlan/tag')
    assert mac is not None and mac.get('address') == carded.neutron.ports[port]['mac_address']
    assert card.get('type') == 'hostdev' and tag is not None and tag.get('id') == '101'
    assert '<hostdev' not in carded.cloud.xml(server)
    carded.assert_at(server, port, host)
    carded.gone(server, port)


def test_a_function_through_macvtap(carded: Carded) -> None:
    server, port = carded.with_port('macvtap')
    (card,) = carded.cards(server)
    source = card.find('source')
    assert card.get('type') == 'direct' and source is not None
    number = VIRTUAL.index(carded.profile(port)['pci_slot']) + 1
    assert (source.get('dev'), source.get('mode')) == (f'nic{number}', 'passthrough')
    carded.cloud.assert_clean()
    carded.gone(server, port)


def test_a_physical_function(carded: Carded) -> None:
    """It is a device like others; the port takes its MAC address over."""
    # Nothing but the binding tells.
    carded.neutron.notify = None
    server, port = carded.with_port('direct-physical')
    mac = f'52:54:00:00:00:0{HOSTS.index(carded.cloud.host_of(server))}'
    assert carded.profile(port) == {
        'note': 'mine',
        'pci_slot': PHYSICAL,
        'pci_vendor_info': '8086:1520',
        'physical_network': 'physnet1',
        'device_mac_address': mac,
    }
    assert [vif['address'] for vif in carded.cache(server)] == [mac]
    assert carded.cards(server) == [] and carded.cloud.hostdevs(server) == [PHYSICAL]
    carded.cloud.assert_clean()
    carded.gone(server, port)


def test_two_ports_and_a_gpu(carded: Carded) -> None:
    """Each device is where it belongs, and comes back at a start and a rebuild."""
    cloud, first, second = carded.cloud, carded.port(), carded.port()
    server = carded.cloud.create(
        cloud.flavor(gpus=1), networks=[{'port': first}, {'uuid': carded.network}, {'port': second}]
    )['server']['id']
    cloud.settle()
    slots = [carded.profile(port)['pci_slot'] for port in (first, second)]
    for act, body in (
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'HARD'}),
        ('rebuild', {'imageRef': IMAGE_ID}),
    ):
        cloud.action(server, act, body)
        assert cloud.status(server) == ('SHUTOFF' if act == 'os-stop' else 'ACTIVE'), cloud.story(server)
        assert [card.get('type') for card in carded.cards(server)] == ['hostdev', 'bridge', 'hostdev']
        assert [carded.profile(port)['pci_slot'] for port in (first, second)] == slots
        assert sorted(slots) == sorted(VIRTUAL) and len(cloud.owned(server)) == 3
        cloud.assert_clean()
    carded.delete(server)
    carded.assert_empty(kept=2)


def test_no_device_is_left(carded: Carded) -> None:
    """The fault says what is lacking; the port is its user's again."""
    for _ in range(4):
        carded.with_port()
    server, port = carded.with_port(status='ERROR')
    assert (
        'fewer than 1 free type-VF devices of physical network physnet1'
        in (carded.cloud.show(server)['fault']['message'])
    )
    assert carded.neutron.ports[port]['device_id'] == '' and carded.profile(port) == {'note': 'mine'}
    carded.cloud.assert_clean()


def test_no_device_is_in_that_network(carded: Carded) -> None:
    elsewhere = carded.neutron.add_network(
        'elsewhere', PROJECT, cidr='10.6.0.0/24', **{'provider:physical_network': 'physnet2'}
    )
    carded.boot(
        {'port': carded.neutron.add_port(elsewhere, PROJECT, **{'binding:vnic_type': 'direct'})}, status='ERROR'
    )
    assert {status for status, _ in carded.cloud.devices().values()} == {'available'}


def test_flavors_never_get_network_devices(make_cloud: Callable[..., Cloud]) -> None:
    """Whatever their aliases say: they are the ports'."""
    alias = json.dumps({'name': 'nic', 'vendor_id': '8086', 'product_id': '1520', 'device_type': 'type-VF'})
    carded = Carded(make_cloud, pci__alias=[alias], filter_scheduler__pci_in_placement=False)
    carded.flavor = carded.cloud.flavor(**{'pci_passthrough:alias': 'nic:1'})
    server = carded.boot(status='ERROR')
    assert 'fewer than 1 free nic' in carded.cloud.show(server)['fault']['message']


@pytest.mark.parametrize('failures', [1, 2])
def test_a_binding_that_fails(carded: Carded, failures: int) -> None:
    """The next host is tried, with a device of its own; without one nothing is left."""
    bind, refused = carded.neutron._bind, []

    def fail(port: dict[str, Any]) -> None:
        bind(port)
        if port['binding:vif_type'] == 'hw_veb' and len(refused) < failures:
            refused.append(port['binding:host_id'])
            port.update({'binding:vif_type': 'binding_failed', 'status': 'DOWN'})

    carded.neutron._bind = fail
    server, port = carded.with_port(status='ACTIVE' if failures == 1 else 'ERROR')
    if failures == 1:
        carded.assert_at(server, port, other(refused[0]))
    else:
        assert 'Binding failed for port' in carded.cloud.show(server)['fault']['message']
        assert sorted(refused) == sorted(HOSTS)
    carded.gone(server, port)


def test_neutron_is_silent_while_a_device_waits(carded: Carded) -> None:
    """The host asks again until it answers."""
    failed: list[str] = []
    port = carded.port()

    def silent(method: str, path: str) -> None:
        if method == 'PUT' and carded.neutron.ports[port]['device_id'] and len(failed) < 2:
            failed.append(path)
            raise carded.neutron.broken()

    carded.neutron.before = silent
    server = carded.boot({'port': port})
    assert len(failed) == 2
    carded.assert_at(server, port, carded.cloud.host_of(server))
    carded.gone(server, port)


def test_a_delete_wins_over_a_binding(carded: Carded) -> None:
    """The server is deleted while its host waits for Neutron."""
    port, deleted = carded.port(), []

    def silent(method: str, path: str) -> None:
        if method == 'PUT' and carded.neutron.ports[port]['device_id'] and not deleted:
            server = carded.neutron.ports[port]['device_id']
            deleted.append(carded.cloud.request('DELETE', f'/servers/{server}').status_int)
            raise carded.neutron.broken()

    carded.neutron.before = silent
    server = carded.create({'port': port})
    carded.cloud.settle()
    assert deleted == [204] and carded.cloud.status(server) == 'GONE'
    carded.assert_empty(kept=1)
    assert carded.profile(port) == {'note': 'mine'}


def test_a_spawn_fails(carded: Carded) -> None:
    """The next host gets the port with its own device."""
    for host in HOSTS:
        carded.cloud.computes[host].host.driver.guests.spawn = once(carded.cloud.computes[host].host.driver.guests)
    server, port = carded.with_port()
    carded.assert_at(server, port, carded.cloud.host_of(server))
    carded.gone(server, port)


def test_the_audit_knows_the_device_of_a_port(carded: Carded) -> None:
    server, port = carded.with_port()
    host = carded.cloud.host_of(server)
    carded.neutron.ports[port]['binding:profile'] = {**carded.profile(port), 'pci_slot': '0000:99:00.0'}
    assert carded.cloud.audit().disagreements == [
        f'ports: port {port} of server {server} names device 0000:99:00.0 of {host}, which the server does not hold'
    ]
