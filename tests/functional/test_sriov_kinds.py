"""Functions of cards that are more than virtual ones in a VLAN: trusted, connected by a computer on the card, ports of
Open vSwitch, and behind vDPA; each through every operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kilonova import objects
from kilonova.db.queries import instances
from kilonova.objects.vif import Vif
from kilonova.virt import command
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices.vif.openvswitch import OpenVSwitch
from tests.fixtures.cloud import IMAGE_ID, SPEC, Cloud
from tests.fixtures.hosts import vdpa_device
from tests.fixtures.neutron import DETAILS
from tests.functional.carded import NICS, VIRTUAL, Carded, live
from tests.functional.test_ports import HOSTS, other

TRUSTED = '{"vendor_id": "8086", "address": "0000:81:00.3", "physical_network": "physnet1", "trusted": "true"}'
# A computer on the card connects one of its virtual functions.
REMOTE = [
    '{"address": "0000:81:00.3", "physical_network": "physnet1", "remote_managed": "true"}',
    '{"address": "0000:81:00.2", "physical_network": "physnet1"}',
    SPEC,
]


def test_a_trusted_function(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """A port whose profile asks for that gets a function that its device_spec offers, which the host is told to trust
    before the guest starts, as is the guest. The next server's isn't trusted, and the one after it finds none."""
    said: list[str] = []
    run = command.run
    monkeypatch.setattr(
        command, 'run', lambda *argv: said.append(' '.join(argv[-5:])) or '' if argv[0] == 'ip' else run(*argv)
    )
    carded = Carded(make_cloud, nics=[TRUSTED, *NICS], hosts=HOSTS[:1])
    ports = [
        carded.port(**{'binding:profile': profile}) for profile in ({'trusted': 'true'}, {}, {}, {'trusted': True})
    ]
    server = carded.boot({'port': ports[0], 'tag': 'fast'})
    assert carded.profile(ports[0])['pci_slot'] == VIRTUAL[1] and said == ['nic0 vf 1 trust on']
    with carded.cloud.cell.read() as conn:
        kept = objects.InstanceDeviceMetadata.from_json((instances.get(conn, server) or {})['extra_device_metadata'])
    assert [one.vf_trusted for one in kept.devices] == [True]
    carded.delete(server)
    said.clear()
    for port in ports[1:3]:
        carded.boot({'port': port})
    assert said == ['nic0 vf 1 trust off']
    last = carded.boot({'port': ports[3]}, status='ERROR')
    assert 'trusted type-VF devices of physical network physnet1' in carded.cloud.show(last)['fault']['message']


def test_a_remote_managed_function(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """The port says of which card it is; Neutron has it connected there. Other ports don't get such a function, and it
    gets no other. It goes along with every operation."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    carded = Carded(make_cloud, nics=REMOTE)
    cloud, neutron = carded.cloud, carded.neutron

    def assert_at(host: str) -> None:
        assert cloud.status(server) == 'ACTIVE', cloud.story(server)
        carded.assert_at(server, port, host)
        assert carded.profile(port) == {
            'note': 'mine',
            'pci_slot': VIRTUAL[1],
            'pci_vendor_info': '8086:1520',
            'physical_network': 'physnet1',
            'card_serial_number': f'MT{HOSTS.index(host)}',
            'pf_mac_address': f'52:54:00:00:00:0{HOSTS.index(host)}',
            'vf_num': 1,
        }
        assert cloud.owned(server) == [f'{host} {VIRTUAL[1]}']

    server, port = carded.with_port('remote-managed')
    source = cloud.host_of(server)
    target = other(source)
    assert_at(source)
    (card,) = carded.cards(server)
    assert card.get('type') == 'hostdev' and card.find('vlan') is None
    with_others = [carded.with_port() for _ in HOSTS] + [carded.with_port('remote-managed')]
    for vnic_type, said in (('direct', 'type-VF'), ('remote-managed', 'remote-managed type-VF')):
        with_others.append(carded.with_port(vnic_type, status='ERROR'))
        assert (
            f'fewer than 1 free {said} devices of physical network physnet1'
            in (cloud.show(with_others[-1][0])['fault']['message'])
        )
    for one, its in with_others:
        carded.delete(one)
        del neutron.ports[its]
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    cloud.action(server, 'confirmResize')
    assert_at(target)
    # What Open vSwitch is like on a card is nothing to the guest.
    monkeypatch.setitem(DETAILS, 'datapath_type', 'system')
    live(carded, server)
    assert neutron.bindings(port) == [source]
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert_at(source)
    cloud.action(server, 'shelve')
    assert (neutron.ports[port]['device_id'], carded.profile(port)) == (server, {'note': 'mine'})
    cloud.action(server, 'unshelve')
    source = cloud.host_of(server)
    assert_at(source)
    path = f'/servers/{server}/os-interface'
    assert cloud.request('DELETE', f'{path}/{port}').status_int == 202
    cloud.settle()
    assert (cloud.owned(server), carded.profile(port)) == ([], {'note': 'mine'})
    cloud.ok('POST', path, {'interfaceAttachment': {'port_id': port}})
    cloud.settle()
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert_at(source)
    carded.lose_its_host(server)
    cloud.action(server, 'os-start')
    assert_at(other(source))
    carded.gone(server, port)


class Switches:
    """Stand for os-vif of each host: the functions whose representors Open vSwitch has there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there: set[tuple[str, str]] = set()
        self.done: list[tuple[str, str]] = []
        for name, act in (('check', lambda switch, vif: None), ('plug', self._plug), ('unplug', self._unplug)):
            monkeypatch.setattr(OpenVSwitch, name, lambda *args, act=act: act(*args))

    def _plug(self, switch: Any, vif: Vif, uuid: str) -> None:
        self.there.add((switch._conf.host, vif.slot or ''))
        self.done.append(('plug', switch._conf.host))

    def _unplug(self, switch: Any, vif: Vif, uuid: str) -> None:
        self.there.remove((switch._conf.host, vif.slot or ''))
        self.done.append(('unplug', switch._conf.host))


def test_a_function_of_open_vswitch(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """A port whose owner asks for switchdev gets one of a card that is a switch, and its host plugs the representor
    wherever the guest is; other ports get none there."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    switches, carded = Switches(monkeypatch), Carded(make_cloud, switchdev=True)
    cloud = carded.cloud
    failed, plain = carded.with_port(status='ERROR')
    assert 'fewer than 1 free type-VF devices' in cloud.show(failed)['fault']['message']
    carded.delete(failed)
    del carded.neutron.ports[plain]
    theirs = {'note': 'mine', 'capabilities': ['switchdev']}
    port = carded.port(**{'binding:profile': theirs})
    server = carded.boot({'port': port})

    def assert_at(host: str) -> None:
        assert cloud.status(server) == 'ACTIVE', cloud.story(server)
        carded.assert_at(server, port, host)
        assert switches.there == {(host, carded.profile(port)['pci_slot'])}

    source = cloud.host_of(server)
    assert_at(source)
    (card,) = carded.cards(server)
    assert card.get('type') == 'hostdev' and card.find('vlan') is None
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    cloud.action(server, 'revertResize')
    assert_at(source)
    switches.done.clear()
    live(carded, server)
    # When the guest has let it go here, and when it has come there.
    assert switches.done == [('unplug', source), ('plug', other(source))]
    assert switches.there == {(other(source), carded.profile(port)['pci_slot'])}
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert_at(other(source))
    cloud.action(server, 'shelve')
    assert (switches.there, carded.profile(port)) == (set(), theirs)
    cloud.action(server, 'unshelve')
    assert_at(cloud.host_of(server))
    path = f'/servers/{server}/os-interface'
    assert cloud.request('DELETE', f'{path}/{port}').status_int == 202
    cloud.settle()
    assert (switches.there, cloud.owned(server), carded.profile(port)) == (set(), [], theirs)
    cloud.ok('POST', path, {'interfaceAttachment': {'port_id': port}})
    cloud.settle()
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert_at(cloud.host_of(server))
    carded.delete(server)
    carded.assert_empty(kept=1)
    assert (switches.there, carded.profile(port)) == (set(), theirs)


def test_a_function_through_vdpa(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest has a card of virtio by the vDPA device of such a function, whose representor its host plugs, wherever
    it is. Other ports don't get such a function."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    listed = Connection.node_devices
    monkeypatch.setattr(
        Connection,
        'node_devices',
        lambda host: [*listed(host), *(vdpa_device(address, number) for number, address in enumerate(VIRTUAL))],
    )
    switches, carded = Switches(monkeypatch), Carded(make_cloud, switchdev=True)
    cloud = carded.cloud
    other_one = carded.port(**{'binding:profile': {'capabilities': ['switchdev']}})
    failed = carded.boot({'port': other_one}, status='ERROR')
    assert 'fewer than 1 free switchdev type-VF devices' in cloud.show(failed)['fault']['message']
    carded.delete(failed)
    del carded.neutron.ports[other_one]
    server, port = carded.with_port('vdpa')

    def assert_at(host: str) -> None:
        assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) == host, cloud.story(server)
        cloud.assert_clean()
        profile, (vif,), (card,) = carded.profile(port), carded.cache(server), carded.cards(server)
        assert {**profile, 'pci_slot': ''} == {
            'note': 'mine',
            'pci_slot': '',
            'pci_vendor_info': '8086:1520',
            'physical_network': 'physnet1',
            'pf_mac_address': f'52:54:00:00:00:0{HOSTS.index(host)}',
            'vf_num': VIRTUAL.index(profile['pci_slot']),
        }
        assert (vif['type'], vif['profile']) == ('ovs', profile)
        assert cloud.owned(server) == [f'{host} {profile["pci_slot"]}']
        assert switches.there == {(host, profile['pci_slot'])}
        source, mac = card.find('source'), card.find('mac')
        assert source is not None and mac is not None
        assert (card.get('type'), source.attrib, mac.get('address')) == (
            'vdpa',
            {'dev': f'/dev/vhost-vdpa-{profile["vf_num"]}'},
            carded.neutron.ports[port]['mac_address'],
        )

    source = cloud.host_of(server)
    assert_at(source)
    for act, body in (
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'HARD'}),
        ('suspend', None),
        ('resume', None),
        ('rebuild', {'imageRef': IMAGE_ID}),
        ('rescue', None),
        ('unrescue', None),
    ):
        cloud.action(server, act, body)
    assert_at(source)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    cloud.action(server, 'revertResize')
    assert_at(source)
    switches.done.clear()
    live(carded, server)
    assert switches.done == [('unplug', source), ('plug', other(source))] and carded.defined(server) == ['vdpa']
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert_at(other(source))
    cloud.action(server, 'migrate')
    cloud.action(server, 'confirmResize')
    assert_at(source)
    cloud.action(server, 'shelve')
    assert (switches.there, carded.profile(port)) == (set(), {'note': 'mine'})
    cloud.action(server, 'unshelve')
    path, source = f'/servers/{server}/os-interface', cloud.host_of(server)
    assert_at(source)
    assert cloud.request('DELETE', f'{path}/{port}').status_int == 202
    cloud.settle()
    assert (switches.there, cloud.owned(server), carded.defined(server)) == (set(), [], [])
    cloud.ok('POST', path, {'interfaceAttachment': {'port_id': port}})
    cloud.settle()
    assert carded.defined(server) == ['vdpa']
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert_at(source)
    carded.lose_its_host(server)
    cloud.action(server, 'os-start')
    assert_at(other(source))
    carded.gone(server, port)
    assert switches.there == set()
