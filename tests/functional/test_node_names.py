"""A node may have another name than its host, as nodes of Nova do: operations go by the host, and the name stays."""

from __future__ import annotations

import pytest

from kilonova.compute import records
from tests.functional.test_evacuate import come_back, evacuate, lost
from tests.functional.test_live_migrate import migrated

DOMAIN = 'example.org'


@pytest.fixture
def named(make_cloud, monkeypatch):
    """A cloud whose nodes were recorded with the name of the machine, while drivers report the host's name."""
    make = records.node

    def node(ctxt, host, resources, host_ip):
        return make(ctxt, host, {**resources, 'hypervisor_hostname': f'{host}.{DOMAIN}'}, host_ip)

    monkeypatch.setattr(records, 'node', node)
    cloud = make_cloud(
        {name: [f'0000:{bus:02x}:00.0' for bus in range(8, 12)] for name in ('gpu1', 'gpu2')},
    )
    monkeypatch.setattr(records, 'node', make)
    for host in ('gpu1', 'gpu2'):
        cloud.start_compute(host)
    return cloud


def node_of(cloud, server: str) -> str:
    return cloud.show(server)['OS-EXT-SRV-ATTR:hypervisor_hostname']


def test_servers_live_on_nodes_with_names_of_their_own(named):
    cloud = named
    shown = cloud.ok('GET', '/os-hypervisors/detail')['hypervisors']
    assert sorted(one['hypervisor_hostname'] for one in shown) == [f'gpu1.{DOMAIN}', f'gpu2.{DOMAIN}']
    server = cloud.boot(cloud.flavor(gpus=1))
    first = cloud.host_of(server)
    assert node_of(cloud, server) == f'{first}.{DOMAIN}'
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    second = cloud.host_of(server)
    assert (cloud.status(server), node_of(cloud, server)) == ('VERIFY_RESIZE', f'{second}.{DOMAIN}')
    cloud.action(server, 'revertResize')
    assert (cloud.host_of(server), node_of(cloud, server)) == (first, f'{first}.{DOMAIN}')
    cloud.action(server, 'migrate', None)
    cloud.action(server, 'confirmResize')
    assert (cloud.status(server), node_of(cloud, server)) == ('ACTIVE', f'{second}.{DOMAIN}')
    cloud.action(server, 'shelve', None)
    cloud.action(server, 'unshelve', None)
    assert node_of(cloud, server) == f'{cloud.host_of(server)}.{DOMAIN}'
    cloud.start_compute(cloud.host_of(server))
    assert len(cloud.hostdevs(server)) == 1
    cloud.assert_clean()
    assert cloud.audit().disagreements == []
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.assert_clean()
    assert cloud.owned(server) == []


def test_a_running_server_and_a_lost_one_go_to_the_other_node(named, monkeypatch):
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    plain = named.boot(named.flavor())
    migrated(named, plain, {'host': None, 'block_migration': 'auto'})
    assert node_of(named, plain) == f'{named.host_of(plain)}.{DOMAIN}'
    server, source = lost(named, gpus=1)
    evacuate(named, server)
    assert node_of(named, server) == f'{named.host_of(server)}.{DOMAIN}' != f'{source}.{DOMAIN}'
    come_back(named, source)
    named.assert_clean()
    assert named.audit().disagreements == []


def test_the_name_of_the_node_chooses_it(named):
    server = named.boot(named.flavor(gpus=1), hypervisor_hostname=f'gpu2.{DOMAIN}')
    assert named.host_of(server) == 'gpu2'
