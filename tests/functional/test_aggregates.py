"""Host aggregates: zones, what Placement knows of them, and where servers go."""

from __future__ import annotations

import pytest

from kilonova.clients import aggregates as mirror
from kilonova.db.queries import instances


def aggregate(cloud, name, zone=None, hosts=()):
    made = cloud.ok('POST', '/os-aggregates', {'aggregate': {'name': name, 'availability_zone': zone}})['aggregate']
    for host in hosts:
        act(cloud, made, 'add_host', host)
    return made


def act(cloud, made, action, host):
    return cloud.ok('POST', f'/os-aggregates/{made["id"]}/action', {action: {'host': host}})['aggregate']


def refused(cloud, method, path, body=None):
    response = cloud.request(method, path, body)
    (fault,) = response.json.values()
    return response.status_int, fault['message']


def mirrored(cloud, made):
    """The hosts that Placement has in the aggregate."""
    return {row['name'] for row in cloud.placement.client.list_providers(member_of=made['uuid'])}


def test_zones_and_their_servers(cloud):
    """A server goes into the availability zone that its request names, and shows it. Its host cannot leave the zone
    while it has servers, and no host can be in two zones."""
    zone = aggregate(cloud, 'a', 'zone-a', ['gpu2'])
    assert mirrored(cloud, zone) == {'gpu2'}
    servers = [cloud.boot(cloud.flavor(), availability_zone='zone-a') for _ in range(2)]
    assert {(cloud.host_of(server), cloud.show(server)['OS-EXT-AZ:availability_zone']) for server in servers} == {
        ('gpu2', 'zone-a')
    }
    # By Placement's candidates as well as from the scheduler's own view.
    asked = cloud.boot(cloud.flavor(**{'trait:HW_CPU_X86_AVX512F': 'forbidden'}), availability_zone='zone-a')
    assert cloud.host_of(asked) == 'gpu2'
    other, plain = aggregate(cloud, 'b', 'zone-b'), aggregate(cloud, 'c')
    path = f'/os-aggregates/{zone["id"]}'
    has_servers = 'One or more hosts contain instances in this zone.'
    in_another = 'One or more hosts already in availability zone(s) zone-a.'
    assert refused(cloud, 'POST', f'{path}/action', {'remove_host': {'host': 'gpu2'}}) == (
        409,
        f'Cannot remove host from aggregate {zone["id"]}. Reason: {has_servers}',
    )
    assert refused(cloud, 'PUT', path, {'aggregate': {'availability_zone': 'zone-x'}}) == (
        400,
        f'Cannot update aggregate {zone["id"]}. Reason: {has_servers}',
    )
    assert refused(cloud, 'POST', f'{path}/action', {'set_metadata': {'metadata': {'availability_zone': None}}}) == (
        400,
        f'Cannot update metadata of aggregate {zone["id"]}. Reason: {has_servers}',
    )
    assert refused(cloud, 'POST', f'/os-aggregates/{other["id"]}/action', {'add_host': {'host': 'gpu2'}}) == (
        409,
        f'Cannot add host to aggregate {other["id"]}. Reason: {in_another}',
    )
    act(cloud, plain, 'add_host', 'gpu2')
    assert (
        refused(
            cloud,
            'POST',
            f'/os-aggregates/{plain["id"]}/action',
            {'set_metadata': {'metadata': {'availability_zone': 'zone-b'}}},
        )[0]
        == 400
    )
    for server in [*servers, asked]:
        cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    act(cloud, zone, 'remove_host', 'gpu2')
    assert mirrored(cloud, zone) == set() and mirrored(cloud, plain) == {'gpu2'}
    act(cloud, other, 'add_host', 'gpu2')
    nowhere = cloud.request(
        'POST',
        '/servers',
        {
            'server': {
                'name': 's',
                'flavorRef': cloud.flavor(),
                'imageRef': '70a599e0-31e7-49b7-b260-868f441e862b',
                'networks': 'none',
                'availability_zone': 'zone-a',
            }
        },
    )
    assert nowhere.json['badRequest']['message'] == 'The requested availability zone is not available'
    cloud.assert_clean()


def test_a_server_that_asked_for_no_zone_shows_its_hosts(cloud):
    """A server whose request names no zone has the zone of its host's aggregate, in its row and in what clients see."""
    aggregate(cloud, 'a', 'zone-a', ['gpu1'])
    shown = [cloud.show(cloud.boot(cloud.flavor(), host=host)) for host in ('gpu1', 'gpu2')]
    assert [(one['OS-EXT-SRV-ATTR:host'], one['OS-EXT-AZ:availability_zone']) for one in shown] == [
        ('gpu1', 'zone-a'),
        ('gpu2', 'nova'),
    ]
    with cloud.cell.read() as conn:
        assert [instances.get(conn, one['id'])['availability_zone'] for one in shown] == ['zone-a', None]


def test_what_is_refused(cloud):
    made = aggregate(cloud, 'a', hosts=['gpu1'])
    path = f'/os-aggregates/{made["id"]}'
    assert refused(cloud, 'POST', '/os-aggregates', {'aggregate': {'name': 'a'}}) == (
        409,
        'Aggregate a already exists.',
    )
    assert refused(cloud, 'POST', '/os-aggregates', {'aggregate': {'name': 'b', 'availability_zone': 'a:b'}})[0] == 400
    assert refused(cloud, 'DELETE', path) == (
        400,
        f'Cannot remove host from aggregate {made["id"]}. Reason: Host aggregate is not empty.',
    )
    for action, host, code, text in (
        ('add_host', 'gpu1', 409, f'Aggregate {made["id"]} already has host gpu1.'),
        ('add_host', 'nosuch', 404, "Host 'nosuch' is not mapped to any cell"),
        ('remove_host', 'nosuch', 404, f'Cannot remove host nosuch in aggregate {made["id"]}'),
        ('remove_host', 'gpu2', 404, f'Cannot remove host gpu2 in aggregate {made["id"]}'),
    ):
        assert refused(cloud, 'POST', f'{path}/action', {action: {'host': host}}) == (code, text)
    for method, body in (('GET', None), ('PUT', {'aggregate': {'name': 'x'}}), ('DELETE', None)):
        assert refused(cloud, method, '/os-aggregates/99', body) == (404, 'Aggregate 99 could not be found.')
    metadata = {'ssd': 'true', 'gpu': None}
    shown = cloud.ok('POST', f'{path}/action', {'set_metadata': {'metadata': metadata}})['aggregate']
    assert (shown['metadata'], shown['hosts']) == ({'ssd': 'true'}, ['gpu1'])
    act(cloud, made, 'remove_host', 'gpu1')
    assert cloud.request('DELETE', path).status_int == 200


@pytest.mark.parametrize('action', ['add_host', 'remove_host'])
def test_what_placement_did_not_take_is_mended(cloud, action):
    """The change stands at once; a conductor brings Placement up to date when it answers again."""
    made = aggregate(cloud, 'a', hosts=['gpu2'] if action == 'remove_host' else [])
    before = mirrored(cloud, made)

    def refuse(method, path):
        if path.endswith('/aggregates'):
            raise cloud.placement.broken()

    cloud.placement.before = refuse
    shown = act(cloud, made, action, 'gpu2')
    assert (shown['hosts'] == ['gpu2']) == (action == 'add_host')
    (row,) = cloud.rows()
    assert row['kind'] == mirror.KIND
    cloud.placement.before = None
    assert mirrored(cloud, made) == before
    with cloud.databases.api().write() as conn:
        conn.exec_driver_sql('UPDATE operations SET not_before = 0')
    cloud.conductors[0].runner.sweep()
    cloud.settle()
    assert mirrored(cloud, made) == ({'gpu2'} if action == 'add_host' else set())
    cloud.assert_clean()


def test_all_is_compared(cloud):
    """Whatever became of Placement: one request an aggregate, and what differs is mended."""
    first, second = aggregate(cloud, 'a', hosts=['gpu1', 'gpu2']), aggregate(cloud, 'b', hosts=['gpu2'])
    client = cloud.placement.client
    nodes = {row['name']: row['uuid'] for row in client.list_providers()}
    assert mirror.bring_all_up_to_date(client, cloud.databases.api(), cloud.cells) == []
    client.set_member(nodes['gpu1'], first['uuid'], False)
    client.set_member(nodes['gpu1'], second['uuid'], True)
    assert mirror.bring_all_up_to_date(client, cloud.databases.api(), cloud.cells) == ['gpu1: a', 'gpu1: b']
    assert (mirrored(cloud, first), mirrored(cloud, second)) == ({'gpu1', 'gpu2'}, {'gpu2'})


def test_a_deleted_host_leaves(cloud):
    made = aggregate(cloud, 'a', 'zone-a', ['gpu1', 'gpu2'])
    (service,) = cloud.ok('GET', '/os-services?host=gpu1&binary=nova-compute')['services']
    cloud.crash_compute('gpu1')
    assert cloud.request('DELETE', f'/os-services/{service["id"]}').status_int == 204
    assert cloud.ok('GET', f'/os-aggregates/{made["id"]}')['aggregate']['hosts'] == ['gpu2']
    assert mirrored(cloud, made) == {'gpu2'}
