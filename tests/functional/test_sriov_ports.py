"""Servers with ports that are functions of PCI devices (SR-IOV): their hosts claim these as they claim GPUs, and the
ports say in Neutron which they are. In the end nothing is left, there or in the ledger.
"""
from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova import errors, objects
from kilonova.conductor.flows import FLOWS
from kilonova.db.queries import instances
from kilonova.objects.vif import Vif
from kilonova.virt import command
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices.openvswitch import OpenVSwitch
from tests.fixtures.cloud import IMAGE_ID, PROJECT, SPEC, Cloud
from tests.fixtures.hosts import sriov_nic, vdpa_device
from tests.fixtures.neutron import DETAILS, FUNCTIONS
from tests.flows.cases import bring_back, crash_at, disturb, force_down, lose_host
from tests.functional.test_ports import HOSTS, Networked, broken, other

PHYSICAL = '0000:81:00.0'
VIRTUAL = ('0000:81:00.2', '0000:81:00.3')
TRUSTED = '{"vendor_id": "8086", "address": "0000:81:00.3", "physical_network": "physnet1", "trusted": "true"}'
# A computer on the card connects one of its virtual functions.
REMOTE = ['{"address": "0000:81:00.3", "physical_network": "physnet1", "remote_managed": "true"}',
          '{"address": "0000:81:00.2", "physical_network": "physnet1"}', SPEC]
NICS = ['{"vendor_id": "8086", "address": "0000:81:00.*", "physical_network": "physnet1"}', SPEC]


class Carded(Networked):
    """Each host has one network card with two virtual functions in physnet1, and a GPU."""

    def __init__(self, make_cloud: Callable[..., Cloud], nics: Sequence[str] = NICS, hosts: Sequence[str] = HOSTS,
                 switchdev: bool = False, **options: Any) -> None:
        super().__init__(make_cloud, devices={host: sriov_nic(PHYSICAL, VIRTUAL, f'52:54:00:00:00:0{number}',
                                                                serial=f'MT{number}', switchdev=switchdev)
                                              for number, host in enumerate(hosts)},
                         specs={host: list(nics) for host in hosts}, **options)
        self.wire = self.neutron.add_network('wire', PROJECT, cidr='10.5.0.0/24', **{
            'provider:network_type': 'vlan', 'provider:physical_network': 'physnet1'})

    def port(self, vnic_type: str = 'direct', **fields: Any) -> str:
        """One that belongs to nobody, with a key of its owner's in its profile."""
        return self.neutron.add_port(self.wire, PROJECT, **{
            'binding:vnic_type': vnic_type, 'binding:profile': {'note': 'mine'}, **fields})

    def with_port(self, vnic_type: str = 'direct', **more: Any) -> tuple[str, str]:
        """A server with one such port; both."""
        port = self.port(vnic_type)
        return self.boot({'port': port}, **more), port

    def cards(self, server: str, host: str | None = None) -> list[ElementTree.Element]:
        found: list[ElementTree.Element] = ElementTree.fromstring(self.cloud.xml(server, host)).findall(
            'devices/interface')
        return found

    def defined(self, server: str) -> list[str | None]:
        """The types of the cards and devices that the guest's next start gives it: one that runs with libvirt's test
        driver gets nothing before, and gives nothing up."""
        guest = self.cloud.computes[self.cloud.host_of(server)].host.driver.guests._libvirt.find(server)
        definition = ElementTree.fromstring(guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE))
        return [one.get('type') for kind in ('interface', 'hostdev') for one in definition.findall(f'devices/{kind}')]

    def profile(self, port: str) -> dict[str, Any]:
        found: dict[str, Any] = self.neutron.ports[port]['binding:profile']
        return found

    def assert_at(self, server: str, port: str, host: str) -> None:
        """The server is there, with a function of that host's card that its port names, and that its guest has."""
        self.cloud.assert_clean()
        assert self.cloud.host_of(server) == host
        profile = self.profile(port)
        assert self.neutron.ports[port]['binding:host_id'] == host
        assert profile['pf_mac_address'] == f'52:54:00:00:00:0{HOSTS.index(host)}'
        (vif,) = self.cache(server)
        assert vif['profile'] == profile
        assert vif['type'] == ('ovs' if vif['vnic_type'] == 'remote-managed' or 'capabilities' in profile else 'hw_veb')
        (card,) = self.cards(server)
        address = card.find('source/address')
        assert address is not None
        assert f"0000:81:00.{address.get('function', '').removeprefix('0x')}" == profile['pci_slot']

    def gone(self, server: str, port: str) -> None:
        self.delete(server)
        self.assert_empty(kept=1)
        assert self.profile(port) == {'note': 'mine'}


@pytest.fixture
def carded(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Carded:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Carded(make_cloud)


# --- create and delete -----------------------------------------------------------------------------------------------
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
        'note': 'mine', 'pci_slot': profile['pci_slot'], 'pci_vendor_info': '8086:1520', 'physical_network': 'physnet1',
        'pf_mac_address': f'52:54:00:00:00:0{HOSTS.index(host)}', 'vf_num': VIRTUAL.index(profile['pci_slot'])}
    assert carded.cloud.owned(server) == [f"{host} {profile['pci_slot']}"]
    with carded.cloud.cell.read() as conn:
        kept = objects.InstanceDeviceMetadata.from_json(
            (instances.get(conn, server) or {})['extra_device_metadata'])
    assert [(one.mac, one.vlan) for one in kept.devices] == [(carded.neutron.ports[port]['mac_address'], 101)]
    (card,) = carded.cards(server)
    mac, tag = card.find('mac'), card.find('vlan/tag')
    assert mac is not None and mac.get('address') == carded.neutron.ports[port]['mac_address']
    assert card.get('type') == 'hostdev' and tag is not None and tag.get('id') == '101'
    assert '<hostdev' not in carded.cloud.xml(server)
    carded.assert_at(server, port, host)
    carded.gone(server, port)


def test_a_trusted_function(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """A port whose profile asks for that gets a function that its device_spec offers, which the host is told to trust
    before the guest starts, as is the guest. The next server's isn't trusted, and the one after it finds none."""
    said: list[str] = []
    run = command.run
    monkeypatch.setattr(command, 'run', lambda *argv: said.append(' '.join(argv[-5:])) or '' if argv[0] == 'ip'
                        else run(*argv))
    carded = Carded(make_cloud, nics=[TRUSTED, *NICS], hosts=HOSTS[:1])
    ports = [carded.port(**{'binding:profile': profile})
             for profile in ({'trusted': 'true'}, {}, {}, {'trusted': True})]
    server = carded.boot({'port': ports[0], 'tag': 'fast'})
    assert carded.profile(ports[0])['pci_slot'] == VIRTUAL[1] and said == ['nic0 vf 1 trust on']
    with carded.cloud.cell.read() as conn:
        kept = objects.InstanceDeviceMetadata.from_json(
            (instances.get(conn, server) or {})['extra_device_metadata'])
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
            'note': 'mine', 'pci_slot': VIRTUAL[1], 'pci_vendor_info': '8086:1520', 'physical_network': 'physnet1',
            'card_serial_number': f'MT{HOSTS.index(host)}', 'pf_mac_address': f'52:54:00:00:00:0{HOSTS.index(host)}',
            'vf_num': 1}
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
        assert f'fewer than 1 free {said} devices of physical network physnet1' in (
            cloud.show(with_others[-1][0])['fault']['message'])
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
    monkeypatch.setattr(Connection, 'node_devices', lambda host: [*listed(host), *(
        vdpa_device(address, number) for number, address in enumerate(VIRTUAL))])
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
            'note': 'mine', 'pci_slot': '', 'pci_vendor_info': '8086:1520', 'physical_network': 'physnet1',
            'pf_mac_address': f'52:54:00:00:00:0{HOSTS.index(host)}', 'vf_num': VIRTUAL.index(profile['pci_slot'])}
        assert (vif['type'], vif['profile']) == ('ovs', profile)
        assert cloud.owned(server) == [f"{host} {profile['pci_slot']}"]
        assert switches.there == {(host, profile['pci_slot'])}
        source, mac = card.find('source'), card.find('mac')
        assert source is not None and mac is not None
        assert (card.get('type'), source.attrib, mac.get('address')) == (
            'vdpa', {'dev': f"/dev/vhost-vdpa-{profile['vf_num']}"}, carded.neutron.ports[port]['mac_address'])
    source = cloud.host_of(server)
    assert_at(source)
    for act, body in (('os-stop', None), ('os-start', None), ('reboot', {'type': 'HARD'}), ('suspend', None),
                      ('resume', None), ('rebuild', {'imageRef': IMAGE_ID}), ('rescue', None), ('unrescue', None)):
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
        'note': 'mine', 'pci_slot': PHYSICAL, 'pci_vendor_info': '8086:1520', 'physical_network': 'physnet1',
        'device_mac_address': mac}
    assert [vif['address'] for vif in carded.cache(server)] == [mac]
    assert carded.cards(server) == [] and carded.cloud.hostdevs(server) == [PHYSICAL]
    carded.cloud.assert_clean()
    carded.gone(server, port)


def test_two_ports_and_a_gpu(carded: Carded) -> None:
    """Each device is where it belongs, and comes back at a start and a rebuild."""
    cloud, first, second = carded.cloud, carded.port(), carded.port()
    server = carded.cloud.create(cloud.flavor(gpus=1), networks=[
        {'port': first}, {'uuid': carded.network}, {'port': second}])['server']['id']
    cloud.settle()
    slots = [carded.profile(port)['pci_slot'] for port in (first, second)]
    for act, body in (('os-stop', None), ('os-start', None), ('reboot', {'type': 'HARD'}),
                      ('rebuild', {'imageRef': IMAGE_ID})):
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
    assert 'fewer than 1 free type-VF devices of physical network physnet1' in (
        carded.cloud.show(server)['fault']['message'])
    assert carded.neutron.ports[port]['device_id'] == '' and carded.profile(port) == {'note': 'mine'}
    carded.cloud.assert_clean()


def test_no_device_is_in_that_network(carded: Carded) -> None:
    elsewhere = carded.neutron.add_network('elsewhere', PROJECT, cidr='10.6.0.0/24', **{
        'provider:physical_network': 'physnet2'})
    carded.boot({'port': carded.neutron.add_port(elsewhere, PROJECT, **{'binding:vnic_type': 'direct'})},
                status='ERROR')
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
        carded.cloud.computes[host].host.driver.guests.spawn = _once(carded.cloud.computes[host].host.driver.guests)
    server, port = carded.with_port()
    carded.assert_at(server, port, carded.cloud.host_of(server))
    carded.gone(server, port)


FAILED: list[str] = []


def _once(guests: Any) -> Callable[..., None]:
    spawn, FAILED[:] = guests.spawn, []

    def fail(*args: Any, **kwargs: Any) -> None:
        if not FAILED:
            FAILED.append('once')
            broken()
        spawn(*args, **kwargs)
    return fail


def test_the_audit_knows_the_device_of_a_port(carded: Carded) -> None:
    server, port = carded.with_port()
    host = carded.cloud.host_of(server)
    carded.neutron.ports[port]['binding:profile'] = {**carded.profile(port), 'pci_slot': '0000:99:00.0'}
    assert carded.cloud.audit().disagreements == [
        f'ports: port {port} of server {server} names device 0000:99:00.0 of {host}, which the server does not hold']


# --- attach and detach -----------------------------------------------------------------------------------------------
KINDS = ('attach', 'detach')


class Attaching:
    """``server``: one with a plain port; ``port``: one that is a function, and belongs to nobody yet. Requests are
    answered while the cloud works."""

    def __init__(self, carded: Carded, vnic_type: str = 'direct') -> None:
        self.carded, self.cloud = carded, carded.cloud
        self.server, self.port = carded.boot({'uuid': carded.network}), carded.port(vnic_type)
        self.host = self.cloud.host_of(self.server)
        self.path = f'/servers/{self.server}/os-interface'

    def act(self, kind: str) -> Any:
        if kind == 'attach':
            answer = self.cloud.request('POST', self.path, {'interfaceAttachment': {'port_id': self.port}})
        else:
            answer = self.cloud.request('DELETE', f'{self.path}/{self.port}')
        self.cloud.settle(kinds_left=('release',))
        return answer

    def before(self, kind: str) -> None:
        """What the act finds."""
        if kind == 'detach':
            assert self.act('attach').status_int == 200
            self.assert_has(True)

    def assert_has(self, it: bool) -> None:
        """Whether the server, its guest and the ledger have the function; nothing else has anything of it."""
        cloud, profile = self.cloud, self.carded.profile(self.port)
        report = cloud.audit()
        assert [one for one in report.disagreements if not one.startswith(f'libvirt: domain {self.server} on')] == []
        assert report.in_flight == []
        slot, function = profile.get('pci_slot'), self.carded.neutron.ports[self.port]['binding:vnic_type']
        assert cloud.owned(self.server) == ([f'{self.host} {slot}'] if it else [])
        assert {status for status, owner in cloud.devices().values() if owner} == ({'allocated'} if it else set())
        given = {'macvtap': 'direct', 'direct': 'pci' if FUNCTIONS[function] == 'ib_hostdev' else 'hostdev',
                 'direct-physical': 'pci'}[function]
        assert self.carded.defined(self.server) == ['bridge'] + [given] * it
        assert (self.port in (self.row()['extra_pci_requests'] or '')) == it
        if not it:
            assert self.carded.neutron.ports[self.port]['device_id'] == '' and profile == {'note': 'mine'}

    def row(self) -> dict[str, Any]:
        with self.cloud.cell.read() as conn:
            return dict(instances.get(conn, self.server) or {})

    def places(self) -> list[str]:
        """The MAC addresses of the functions that the guest's metadata tell."""
        found = self.row()['extra_device_metadata']
        return [one.mac for one in objects.InstanceDeviceMetadata.from_json(found).devices] if found else []

    def gone(self) -> None:
        """The server is deleted, and nothing of it is left."""
        self.carded.delete(self.server)
        self.carded.assert_empty(kept=1)
        assert self.carded.profile(self.port) == {'note': 'mine'}


@pytest.mark.parametrize(('vnic_type', 'bound'), [
    ('direct', 'hw_veb'), ('macvtap', 'hw_veb'), ('direct-physical', 'hostdev_physical'), ('direct', 'ib_hostdev')])
def test_attached_and_detached(carded: Carded, monkeypatch: pytest.MonkeyPatch, vnic_type: str, bound: str) -> None:
    """A function comes and goes, also of a guest that is off; its next start has it."""
    monkeypatch.setitem(FUNCTIONS, vnic_type, bound)
    attaching = Attaching(carded, vnic_type)
    cloud = carded.cloud
    for is_off in (False, True):
        if is_off:
            cloud.action(attaching.server, 'os-stop')
        body = attaching.act('attach').json['interfaceAttachment']
        port = carded.neutron.ports[attaching.port]
        assert (body['port_id'], body['mac_addr']) == (attaching.port, port['mac_address'])
        assert (port['binding:host_id'], carded.profile(attaching.port)['note']) == (attaching.host, 'mine')
        attaching.assert_has(True)
        cloud.action(attaching.server, 'os-start' if is_off else 'reboot', None if is_off else {'type': 'HARD'})
        assert cloud.status(attaching.server) == 'ACTIVE', cloud.story(attaching.server)
        attaching.assert_has(True)
        if is_off:
            cloud.action(attaching.server, 'os-stop')
        assert not is_off or attaching.places() == [port['mac_address']] * (vnic_type != 'macvtap')
        assert attaching.act('detach').status_int == 202
        attaching.assert_has(False)
        assert not is_off or attaching.places() == []
    cloud.action(attaching.server, 'os-start')
    attaching.act('attach')
    cloud.action(attaching.server, 'migrate')
    cloud.action(attaching.server, 'confirmResize')
    attaching.host = other(attaching.host)
    attaching.assert_has(True)
    attaching.gone()


def test_no_device_is_left_to_attach(carded: Carded) -> None:
    """The answer says what is lacking, and nothing has changed."""
    attaching = Attaching(carded)
    force_down(carded.cloud, other(attaching.host), True)
    for _ in VIRTUAL:
        carded.with_port()
    answer = attaching.act('attach')
    assert answer.status_int == 409
    assert f'{attaching.host} has fewer than 1 free type-VF devices of physical network physnet1' in answer.text
    assert carded.cloud.owned(attaching.server) == []
    assert carded.neutron.ports[attaching.port]['device_id'] == ''
    force_down(carded.cloud, other(attaching.host), False)
    carded.cloud.assert_clean()


# The steps in which something is done for such a port: it guarantees nothing.
STEPS = {'attach': (1, 2, 3), 'detach': (0, 1)}


@pytest.mark.parametrize(('kind', 'steps'), [('attach', STEPS['attach']), ('detach', (0,))])
def test_what_fails_leaves_all_as_it_was(carded: Carded, kind: str, steps: tuple[int, ...],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step, when it was done."""
    attaching = Attaching(carded)
    attaching.before(kind)
    for step in steps:
        def fail(real: Callable[..., None], work: Any) -> None:
            real(work)
            broken()
        with monkeypatch.context() as patch:
            disturb(patch, f'{kind}_interface', step, fail)
            attaching.act(kind)
        # The last step ends the operation.
        attaching.assert_has((kind == 'detach') != (step == 3))
    attaching.gone()


@pytest.mark.parametrize('kind', KINDS)
def test_a_delete_wins_over_an_attach(carded: Carded, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step."""
    for step in STEPS[kind]:
        attaching = Attaching(carded)
        attaching.before(kind)

        def delete(real: Callable[..., None], work: Any, server: str = attaching.server) -> None:
            carded.cloud.ok('DELETE', f'/servers/{server}')
            real(work)
        with monkeypatch.context() as patch:
            disturb(patch, f'{kind}_interface', step, delete)
            attaching.act(kind)
            carded.cloud.settle()
        carded.assert_empty(kept=1)
        assert carded.profile(attaching.port) == {'note': 'mine'}
        del carded.neutron.ports[attaching.port]


@pytest.mark.parametrize('method', ['claim_function', 'attach_interface', 'detach_interface', 'free_function'])
@pytest.mark.parametrize('is_lost', [False, True])
def test_the_host_of_an_attach_dies(carded: Carded, method: str, is_lost: bool) -> None:
    """It did what it was asked, and then it died, or only its reply was lost; what it must take back it does when it
    returns."""
    attaching, kind = Attaching(carded), 'attach' if method in ('claim_function', 'attach_interface') else 'detach'
    attaching.before(kind)
    endpoint = carded.cloud.computes[attaching.host].endpoint
    real = getattr(endpoint, method)

    def dies(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        setattr(endpoint, method, real)
        if not is_lost:
            lose_host(carded.cloud, attaching.host)
            force_down(carded.cloud, attaching.host, True)
        raise errors.Unanswered(who=attaching.host, reason='it died')
    setattr(endpoint, method, dies)
    attaching.act(kind)
    if not is_lost:
        assert 'release' in [row['kind'] for row in carded.cloud.rows()]
        bring_back(carded.cloud, attaching.host)
        carded.cloud.settle()
    attaching.assert_has({'attach': is_lost, 'detach': method == 'detach_interface' and not is_lost}[kind])
    attaching.gone()


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('kind', KINDS)
def test_the_conductor_of_an_attach_crashes(carded: Carded, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """After each effect in turn; another one goes on, and comes to the same."""
    attaching, number, happened = Attaching(carded), 0, True
    while happened:
        attaching.before(kind)
        with crash_at(carded.cloud, monkeypatch, number) as crashed:
            answers: list[Any] = []
            asking = threading.Thread(target=lambda answers=answers: answers.append(
                carded.cloud.request('POST', attaching.path, {'interfaceAttachment': {'port_id': attaching.port}})
                if kind == 'attach' else carded.cloud.request('DELETE', f'{attaching.path}/{attaching.port}')))
            asking.start()
            while not crashed.is_set() and (asking.is_alive() or carded.cloud.rows()):
                crashed.wait(0.02)
        happened = crashed.is_set()
        if happened:
            carded.cloud.crash_conductor()
            carded.cloud.start_conductor()
        carded.cloud.settle()
        asking.join(60)
        assert [answer.status_int for answer in answers] == [200 if kind == 'attach' else 202]
        attaching.assert_has(kind == 'attach')
        if kind == 'attach':
            attaching.act('detach')
        number += 1
    assert number > 4, f'only {number} effects'


# --- moves -----------------------------------------------------------------------------------------------------------
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
    assert cloud.owned(server) == [f"{cloud.host_of(server)} {carded.profile(port)['pci_slot']}"]
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


@pytest.mark.parametrize(('vnic_type', 'bound', 'given'), [
    ('direct', 'hw_veb', 'hostdev'), ('macvtap', 'hw_veb', 'direct'), ('direct', 'ib_hostdev', 'pci')])
def test_a_live_migration(carded: Carded, monkeypatch: pytest.MonkeyPatch, vnic_type: str, bound: str,
                          given: str) -> None:
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
        assert cloud.owned(server) == [f"{host} {profile['pci_slot']}"]
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
    assert cloud.owned(server) == [f"{source} {before['pci_slot']}"] and carded.defined(server) == ['hostdev']
    cloud.action(server, 'reboot', {'type': 'HARD'})
    carded.assert_at(server, port, source)


def test_a_physical_function_does_not_move_live(carded: Carded) -> None:
    server, port = carded.with_port('direct-physical')
    answer = carded.cloud.request('POST', f'/servers/{server}/action', {
        'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
    assert answer.status_int == 400 and f'its port {port} is a physical function' in answer.text


def live(carded: Carded, server: str) -> None:
    carded.cloud.ok('POST', f'/servers/{server}/action', {'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
    carded.cloud.settle(kinds_left=('release',))


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
        cloud.computes[host].host.driver.guests.spawn = _once(cloud.computes[host].host.driver.guests)
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
    monkeypatch.setattr('kilonova.conductor.flows.network_changed.BUSY', 0.05)
    server, port = carded.with_port()
    cloud = carded.cloud
    if act is not None:
        cloud.action(server, act)
    vanish(carded, server, port)
    if act == 'suspend':
        assert len(cloud.owned(server)) == 1
        cloud.action(server, 'resume')
        carded.notify([{'name': 'network-changed', 'server_uuid': server, 'tag': port}])
        cloud.settle()
    assert cloud.owned(server) == carded.cache(server) == carded.defined(server) == [], cloud.story(server)
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert cloud.status(server) == 'ACTIVE' and carded.cards(server) == [], cloud.story(server)
    cloud.assert_clean()
    carded.delete(server)
    carded.assert_empty()


def test_a_port_that_is_gone_when_its_server_arrives(carded: Carded) -> None:
    """The device that was claimed for it there is free when the move is over, though Neutron's event is lost."""
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
    monkeypatch.setattr('kilonova.conductor.flows.network_changed.BUSY', 0.05)
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
