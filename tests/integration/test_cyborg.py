"""The real Cyborg in the one-machine cloud (``make up CYBORG=1``)."""

from __future__ import annotations

import datetime
import subprocess
import time
from collections.abc import Callable

import pytest

from kilonova import conf as kilonova_conf
from kilonova.accel import client as accel_client
from kilonova.accel.client import AcceleratorClient
from kilonova.accel.profile import DeviceProfileError
from kilonova.accel.request import handles
from kilonova.cmd.daemon import parts
from tests.integration.site import Site
from tools.cloud import cyborg, http, process
from tools.cloud.layout import ROOT

CARDS = ('0000:21:00.0', '0000:a1:00.0')


@pytest.fixture(scope='module')
def site(site_with_services: Site) -> Site:
    """With the device profiles ``fpga`` (a card of the host) and ``fake``."""
    for name, trait in (('fpga', 'CUSTOM_FPGA_10EE_5020'), ('fake', 'CUSTOM_FAKE_DEVICE')):
        http.call(
            'POST',
            site_with_services.url('cyborg') + '/device_profiles',
            [{'name': name, 'groups': [{'resources:FPGA': '1', f'trait:{trait}': 'required'}]}],
            token=site_with_services.token('admin'),
        )
    return site_with_services


@pytest.fixture
def client(site: Site) -> AcceleratorClient:
    """As a daemon of this cloud has it."""
    conf = kilonova_conf.new()
    conf(['--config-file', str(site.layout.conf)], project='kilonova', default_config_dirs=[])
    return parts.accelerators(conf)


def providers(site: Site) -> dict[str, str]:
    """{name: uuid} of all in Placement."""
    rows = http.call('GET', site.url('placement') + '/resource_providers', token=site.token('admin')).data
    return {row['name']: row['uuid'] for row in rows['resource_providers']}


def until(done: Callable[[], bool], within: float = 60.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + within
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_its_daemons_are_of_the_cloud(site: Site) -> None:
    """The real Cyborg has the pinned version, and each host's agent has reported. A second `up` restarts nothing."""
    code = 'from importlib.metadata import version; print(version("openstack-cyborg"))'
    version = subprocess.run(
        [site.layout.cyborg_bin('python'), '-c', code], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert f'openstack-cyborg=={version}\n' in (ROOT / 'tools' / 'cloud' / 'requirements-cyborg.txt').read_text()
    names = ('cyborg', 'cyborg-conductor', 'cyborg-agent-gpu1', 'cyborg-agent-gpu2')
    before = {name: site.pid(name) for name in names}
    assert cyborg.hosts_known(site.url('cyborg'), site.token('admin'), site.cloud.hosts, 'test') == {'gpu1', 'gpu2'}
    site.up()
    assert {name: site.pid(name) for name in names} == before
    assert set(names) <= set(process.recorded(site.layout))


def test_the_client_and_the_service_agree(site: Site, client: AcceleratorClient) -> None:
    """The real Cyborg answers like the Cyborg of the tests for a profile, requests, bindings, a device that is
    taken, and deletion."""
    (group,) = client.profile('fpga').request_groups()
    assert (group.resources, group.required_traits) == ({'FPGA': 1}, {'CUSTOM_FPGA_10EE_5020'})
    with pytest.raises(DeviceProfileError, match='got nothing'):
        client.profile('none')
    with pytest.raises(accel_client.AcceleratorRequestOpFailed, match='name=none'):
        client.create('none')
    # Cyborg tells the compute API of bindings, and that must know the servers.
    flavor = site.flavor('plain')
    first, second = site.boot(2, flavor)
    provider = providers(site)['gpu1_fpga_0000_21_00_0']
    where = {'hostname': 'gpu1', 'project_id': '1' * 32}
    (made,) = client.create('fpga')
    assert (made.state, made.group, made.instance_uuid) == ('Initial', 0, None)
    client.bind({made.uuid: provider}, instance_uuid=first, **where)
    (bound,) = client.resolved(first) or ()
    assert (bound.uuid, bound.state, bound.hostname, bound.provider) == (made.uuid, 'Bound', 'gpu1', provider)
    assert [handle.address for handle in handles([bound])] == [CARDS[0]]
    (other,) = client.create('fpga')
    for server in (first, second):
        # It has some already; the card is taken.
        with pytest.raises(accel_client.AcceleratorRequestBindingFailed):
            client.bind({other.uuid: provider}, instance_uuid=server, **where)
    assert [one.state for one in client.of_instance(second)] == ['BindFailed']
    (unbound,) = client.create('fake')
    # By the service's project, and when it was made.
    assert [one.uuid for one in client.abandoned(datetime.timedelta(seconds=-60))] == [unbound.uuid]
    assert client.abandoned(datetime.timedelta(hours=1)) == []
    for _ in range(2):
        client.delete_of_instance(first)
        client.delete_of_instance(second)
        client.delete([unbound.uuid])
    assert client.of_instance(first) == client.of_instance(second) == []
    site.clean()


def test_a_server_gets_a_card_and_gives_it_back(site: Site, client: AcceleratorClient) -> None:
    """With the real daemons a server boots with a card in its XML, stops and starts, and is refused when no card is
    free. It can be deleted while Cyborg is away, and nothing is left in Cyborg and Placement."""
    fpga, fake = (site.flavor(f'accelerated-{name}', specs={'accel:device_profile': name}) for name in ('fpga', 'fake'))
    servers = site.boot(4, fpga)
    shown = site.servers()
    for server in servers:
        host = shown[server]['OS-EXT-SRV-ATTR:host']
        (request,) = client.of_instance(server)
        assert (request.state, request.hostname) == ('Bound', host)
        assert site.hostdevs(host, server) == tuple(handle.address for handle in handles([request]))
    given = [
        (shown[server]['OS-EXT-SRV-ATTR:host'], site.hostdevs(shown[server]['OS-EXT-SRV-ATTR:host'], server)[0])
        for server in servers
    ]
    assert sorted(given) == [(host, card) for host in ('gpu1', 'gpu2') for card in CARDS]
    site.audit()
    full = site.create('full', fpga)
    assert site.settle([full])[full]['status'] == 'ERROR'
    assert client.of_instance(full) == []
    first, second = servers[:2]
    host, before = shown[first]['OS-EXT-SRV-ATTR:host'], site.hostdevs(shown[first]['OS-EXT-SRV-ATTR:host'], first)
    for name, status in (('os-stop', 'SHUTOFF'), ('os-start', 'ACTIVE')):
        site.act(first, name)
        site.await_status([first], status)
        assert site.hostdevs(host, first) == before
    # Handles of the fake driver are for tests: bound, and not attached.
    (ignored,) = site.boot(1, fake)
    assert [one.handle_kind for one in client.of_instance(ignored)] == ['TEST_PCI']
    assert site.hostdevs(site.servers()[ignored]['OS-EXT-SRV-ATTR:host'], ignored) == ()
    # Cyborg is away while one is deleted: the rest of the delete goes on when it is back.
    site.stop('cyborg')
    site.call('DELETE', f'/servers/{second}', user='admin')
    until(lambda: second not in site.servers())
    site.start('cyborg')
    site.clean()
    until(lambda: not client.every())
    site.assert_nothing_held()
    site.audit()


def test_a_server_moves_from_card_to_card(site: Site, client: AcceleratorClient) -> None:
    """Resizes are confirmed and reverted, and a live migration works. The real Cyborg binds requests to a uuid
    once, so those at the destination are bound to the migration."""
    small = site.flavor('accelerated-fpga', specs={'accel:device_profile': 'fpga'})
    large = site.flavor('accelerated-large', ram=1024, specs={'accel:device_profile': 'fpga'})
    (server,) = site.boot(1, small)
    for flavor, end in ((large, 'confirmResize'), (small, 'revertResize'), (small, 'confirmResize')):
        source = site.servers()[server]['OS-EXT-SRV-ATTR:host']
        site.act(server, 'resize', {'flavorRef': flavor})
        site.await_status([server], 'VERIFY_RESIZE')
        move, host = site.last_migration(server)['uuid'], site.servers()[server]['OS-EXT-SRV-ATTR:host']
        assert host != source and len(client.every()) == 2
        (request,) = client.of_instance(move)
        assert site.hostdevs(host, server) == tuple(handle.address for handle in handles([request]))
        site.audit()
        site.act(server, end)
        site.await_status([server], 'ACTIVE')
        until(lambda: len(client.every()) == 1)
        (request,) = client.every()
        assert (request.hostname, request.instance_uuid == move) == (
            (host, True) if end == 'confirmResize' else (source, False)
        )
        assert site.hostdevs(request.hostname or '', server) == tuple(handle.address for handle in handles([request]))
        site.audit()
    # Live where the guest has nothing that stays with its host; a card does.
    (ignored,) = site.boot(1, site.flavor('accelerated-fake', specs={'accel:device_profile': 'fake'}))
    source = site.servers()[ignored]['OS-EXT-SRV-ATTR:host']
    site.act(ignored, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    site.await_status([ignored], 'ACTIVE')
    host, move = site.servers()[ignored]['OS-EXT-SRV-ATTR:host'], site.last_migration(ignored)['uuid']
    assert host != source
    until(lambda: len(client.every()) == 2)
    (request,) = client.of_instance(move)
    assert (request.hostname, request.state, request.handle_kind) == (host, 'Bound', 'TEST_PCI')
    refused = site.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    assert refused.status == 400 and b'has an attach handle of type PCI' in refused.body
    site.audit()
    site.clean()
    until(lambda: not client.every())
    site.assert_nothing_held()
    # Cyborg's conductor would say so of an event that this cloud does not know.
    assert 'Unexpected event code' not in site.log('cyborg-conductor')


# Actions that keep a server on its host, and what it is afterwards.
STAYS: tuple[tuple[str, object, str], ...] = (
    ('reboot', {'type': 'SOFT'}, 'ACTIVE'),
    ('reboot', {'type': 'HARD'}, 'ACTIVE'),
    ('pause', None, 'PAUSED'),
    ('unpause', None, 'ACTIVE'),
    ('suspend', None, 'SUSPENDED'),
    ('resume', None, 'ACTIVE'),
    ('os-stop', None, 'SHUTOFF'),
    ('os-start', None, 'ACTIVE'),
    ('rescue', None, 'RESCUE'),
    ('unrescue', None, 'ACTIVE'),
    ('createImage', {'name': 'kept'}, 'ACTIVE'),
    ('createBackup', {'name': 'kept', 'backup_type': 'daily', 'rotation': 1}, 'ACTIVE'),
)


def test_every_operation_of_the_field(site: Site, client: AcceleratorClient) -> None:
    """Operations that keep a server on its host keep its card. Operations that take it away give the card back."""
    (server,) = site.boot(1, site.flavor('accelerated-fpga', specs={'accel:device_profile': 'fpga'}))
    host = site.at(server)
    (first,) = client.of_instance(server)
    for name, argument, status in (*STAYS, ('rebuild', {'imageRef': site.image}, 'ACTIVE')):
        site.act(server, name, argument)
        site.await_status([server], status)
        assert [one.uuid for one in client.of_instance(server)] == [first.uuid], name
        assert site.hostdevs(host, server) == tuple(handle.address for handle in handles([first])), name
    site.audit()
    site.act(server, 'shelve')
    site.await_status([server], 'SHELVED_OFFLOADED')
    until(lambda: not client.every())
    site.act(server, 'unshelve')
    site.await_status([server], 'ACTIVE')
    assert holds(site, client, server) != first.uuid
    source = site.at(server)
    site.lose(source)
    site.act(server, 'evacuate', {})
    site.await_status([server], 'ACTIVE')
    site.find(source)
    assert site.at(server) != source
    until(lambda: len(client.every()) == 1)
    holds(site, client, server)
    site.audit()
    # A delete while the host is down.
    gone = site.at(server)
    site.lose(gone)
    site.call('DELETE', f'/servers/{server}', user='admin')
    until(lambda: server not in site.servers() and not client.every())
    site.find(gone)
    until(lambda: 'in flight' not in site.audit())
    site.assert_nothing_held()


def test_a_card_that_only_placement_has_free(site: Site, client: AcceleratorClient) -> None:
    """Each unit of a profile is one request. If no handle is free, the binding fails, the server is ERROR and holds
    nothing."""
    http.call(
        'POST',
        site.url('cyborg') + '/device_profiles',
        [{'name': 'two', 'groups': [{'resources:FPGA': '2', 'trait:CUSTOM_FAKE_DEVICE': 'required'}]}],
        token=site.token('admin'),
    )
    (pair,) = site.boot(1, site.flavor('accelerated-two', specs={'accel:device_profile': 'two'}))
    assert [(one.group, one.state) for one in client.of_instance(pair)] == [(0, 'Bound')] * 2
    others, found = site.boot(4, site.flavor('plain')), providers(site)
    for other, (name, provider) in zip(
        others, sorted((name, provider) for name, provider in found.items() if '_fpga_' in name), strict=True
    ):
        (made,) = client.create('fpga')
        client.bind({made.uuid: provider}, instance_uuid=other, hostname=name.partition('_')[0], project_id='1' * 32)
    server = site.create('unlucky', site.flavor('accelerated-fpga', specs={'accel:device_profile': 'fpga'}))
    shown = site.settle([server])[server]
    assert shown['status'] == 'ERROR' and 'Failed to bind accelerator requests' in shown['fault']['message']
    assert client.of_instance(server) == [] and server not in str(site.allocations())
    for other in others:
        client.delete_of_instance(other)
    site.clean()
    until(lambda: not client.every())
    site.assert_nothing_held()


def holds(site: Site, client: AcceleratorClient, server: str) -> str:
    """The uuid of the one request that there is: bound on the server's host, its card in the server's XML."""
    (request,), host = client.every(), site.at(server)
    assert (request.hostname, request.state) == (host, 'Bound')
    assert site.hostdevs(host, server) == tuple(handle.address for handle in handles([request]))
    return request.uuid
