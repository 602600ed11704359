"""Services, hypervisors and hosts through the front door of a whole cloud."""

from __future__ import annotations

import datetime
import re

from kilonova.db.queries import cells, instances, services

DISABLED = 'COMPUTE_STATUS_DISABLED'


def service_of(cloud, host):
    (service,) = cloud.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
    return service


def is_disabled(cloud, uuid):
    return DISABLED in cloud.placement.client.get_traits(uuid)[0]


def silence(cloud, host):
    """As if its last report were long ago."""
    with cloud.cell.write() as conn:
        row = services.get(conn, host=host, binary='nova-compute')
        services.update(conn, row['id'], {'last_seen_up': datetime.datetime(2020, 1, 1)})


def uptimes(cloud):
    rows = cloud.ok('GET', '/os-hypervisors/detail')['hypervisors']
    return {row['hypervisor_hostname']: row['uptime'] for row in rows}


def test_hosts_from_their_start_to_their_end(cloud):
    # Each host that is up tells its uptime; one that is down is not asked.
    assert all(re.search(r'\sup\s.*load average', text) for text in uptimes(cloud).values())
    (first, _) = cloud.ok('GET', '/os-hypervisors', version='2.52')['hypervisors']
    told = cloud.ok('GET', f'/os-hypervisors/{first["id"]}/uptime', version='2.52')['hypervisor']
    assert told['hypervisor_hostname'] == 'gpu1' and 'load average' in told['uptime']

    # Disabled while it is there: at once. While it is away: when it comes back.
    service, node = service_of(cloud, 'gpu2'), cloud.computes['gpu2'].node.record.uuid
    path = f'/os-services/{service["id"]}'
    cloud.ok('PUT', path, {'status': 'disabled', 'disabled_reason': 'repair'})
    cloud.settle()
    assert is_disabled(cloud, node)
    assert cloud.ok('GET', f'/os-hypervisors/{node}')['hypervisor']['service']['disabled_reason'] == 'repair'
    cloud.crash_compute('gpu2')
    silence(cloud, 'gpu2')
    cloud.messages.clear()
    assert cloud.ok('PUT', path, {'status': 'enabled'})['service']['state'] == 'down'
    assert uptimes(cloud)['gpu2'] is None and uptimes(cloud)['gpu1'] is not None
    assert not [message for message in cloud.messages if message[2] == 'gpu2']
    assert is_disabled(cloud, node)
    cloud.start_compute('gpu2')
    assert not is_disabled(cloud, node) and service_of(cloud, 'gpu2')['state'] == 'up'

    # A host that is heard after it counted as down, for whatever reason, is told so, and follows its record.
    silence(cloud, 'gpu2')
    cloud.ok('PUT', path, {'status': 'disabled'})
    assert not is_disabled(cloud, node)
    cloud.computes['gpu2'].heartbeat.beat()
    cloud.settle()
    cloud.computes['gpu2'].heartbeat.beat()
    assert is_disabled(cloud, node) and service_of(cloud, 'gpu2')['state'] == 'up'
    cloud.ok('PUT', '/os-hosts/gpu2', {'status': 'enable'}, version='2.42')
    cloud.settle()
    assert not is_disabled(cloud, node)

    # What is used of a host; a service with servers stays.
    flavor = cloud.flavor(gpus=1, vcpus=2, ram=512, disk=1)
    server = cloud.boot(flavor, availability_zone='nova:gpu2')
    lines = {
        line['resource']['project']: line['resource']
        for line in cloud.ok('GET', '/os-hosts/gpu2', version='2.42')['host']
    }
    assert lines['(used_max)']['cpu'] == lines['(used_now)']['cpu'] == 2 and lines['(total)']['host'] == 'gpu2'
    (with_servers,) = cloud.ok('GET', '/os-hypervisors?hypervisor_hostname_pattern=gpu2&with_servers=true')[
        'hypervisors'
    ]
    assert [entry['uuid'] for entry in with_servers['servers']] == [server]
    assert cloud.request('DELETE', path).status_int == 409

    # Deleted: the host is gone from lists, mappings and Placement.
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.crash_compute('gpu2')
    assert cloud.request('DELETE', path).status_int == 204
    assert set(uptimes(cloud)) == {'gpu1'}
    with cloud.databases.api().read() as conn:
        assert cells.get_host(conn, 'gpu2') is None
    assert cloud.placement.client.list_providers(in_tree=node) == []
    assert cloud.request('GET', f'/os-hypervisors/{node}').status_int == 404


def test_a_host_is_a_hypervisor_when_it_is_mapped(make_cloud):
    cloud = make_cloud({'gpu1': ['0000:08:00.0']}, start=False)
    cloud.start_conductor()
    cloud.start_compute('gpu1')
    assert cloud.ok('GET', '/os-hypervisors')['hypervisors'] == []
    assert service_of(cloud, 'gpu1')['state'] == 'up'
    cells.discover_hosts(cloud.databases)
    assert [row['hypervisor_hostname'] for row in cloud.ok('GET', '/os-hypervisors')['hypervisors']] == ['gpu1']


def test_a_host_without_a_host_mapping_gets_no_servers(make_cloud, caplog):
    """The scheduler passes over a host without a host mapping. The fault and one log line say why, and
    discover_hosts is enough to make the host usable."""
    cloud = make_cloud({'gpu1': ['0000:08:00.0']}, start=False)
    cloud.start_conductor()
    cloud.start_compute('gpu1')
    flavor = cloud.flavor(gpus=1)
    refused = cloud.show(cloud.boot(flavor))
    assert refused['status'] == 'ERROR'
    assert refused['fault']['message'].endswith('1 host considered: 1 not mapped to a cell.')
    with cloud.cell0.read() as conn:
        assert instances.get(conn, refused['id'])['vm_state'] == 'error'
    assert caplog.text.count('No host-to-cell mapping found for host gpu1') == 1
    cells.discover_hosts(cloud.databases)
    assert cloud.host_of(cloud.boot(flavor)) == 'gpu1'
