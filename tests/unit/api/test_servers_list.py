"""GET /servers and /servers/detail: filters, order, pages, cells, costs."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from kilonova.api.v2.servers import lists
from kilonova.db.models.api import BuildRequest, RequestSpec
from kilonova.db.queries import instances, services
from tests.fixtures.servers import put_vifs
from tests.unit.api.conftest import IMAGE, OTHER, moment
from tests.unit.db.test_addresses import VIF


def ids(site, query='', **kwargs):
    return [server['id'] for server in site.ok('GET', f'/servers{query}', **kwargs)['servers']]


def at(second):
    return moment(2026, 11, 21, 10, 0, second)


def spread(site, count=6, **values):
    """Servers in both cells and as build requests; the newest last."""
    flavor = site.flavor()
    found = []
    for number in range(count):
        cell = (site.cell1, site.cell2)[number % 2]
        found.append(site.server(cell, flavor, created_at=at(number), create={'name': f's{number}'}, **values))
    return found


def test_build_requests_and_cells_together_newest_first(site):
    servers = spread(site)
    waiting = site.create()
    assert ids(site) == [waiting, *reversed(servers)]
    assert ids(site, '?sort_key=display_name&sort_dir=asc') == [waiting, *servers]
    assert ids(site, '?sort_dir=asc') == [*servers, waiting]
    assert [s['id'] for s in site.ok('GET', '/servers/detail')['servers']] == [waiting, *reversed(servers)]


@pytest.mark.parametrize(
    'query',
    [
        '',
        '&sort_key=display_name',
        '&sort_key=availability_zone&sort_key=host',
        '&sort_key=vm_state&sort_dir=asc',
        '&sort_key=launched_at&sort_dir=asc',
    ],
)
@pytest.mark.parametrize('limit', [1, 2, 4])
def test_pages_hold_each_server_once(site, query, limit):
    servers = spread(site)
    waiting = [site.create(name='w1'), site.create(name='w2')]
    with site.cell1.write() as conn:
        instances.update(conn, servers[0], {'availability_zone': 'z', 'launched_at': None})
    everything = ids(site, f'?limit=100{query}')
    assert sorted(everything) == sorted(servers + waiting)
    paged, path = [], f'/servers?limit={limit}{query}'
    while path:
        answer = site.ok('GET', path)
        paged += [server['id'] for server in answer['servers']]
        links = answer.get('servers_links')
        path = links[0]['href'].removeprefix('http://localhost/v2.1') if links else None
    assert paged == everything


def pages(site, query, limit):
    """The ids of all pages, which a marker joins."""
    found = ids(site, f'?limit={limit}{query}')
    while len(last := ids(site, f'?limit={limit}{query}&marker={found[-1]}')) == limit:
        found += last
    return found + last


@pytest.mark.parametrize('direction', ['asc', 'desc'])
@pytest.mark.parametrize('key', ['created_at', 'display_name'])
def test_servers_with_equal_values_are_sorted_by_uuid(site, key, direction):
    """The uuid is ascending in both directions, in all cells and for build requests."""
    flavor = site.flavor()
    equal = [site.server(cell, flavor, created_at=at(5)) for cell in (site.cell1, site.cell2) for _ in range(3)]
    waiting = [site.create(flavor), site.create(flavor)]
    table = BuildRequest.__table__
    with site.databases.api().write() as conn:
        for uuid, text in conn.execute(sa.select(table.c.instance_uuid, table.c.instance)).all():
            stored = json.loads(text)
            stored['nova_object.data']['created_at'] = '2026-11-21T10:00:05Z'
            conn.execute(table.update().where(table.c.instance_uuid == uuid).values(instance=json.dumps(stored)))
    query = f'&sort_key={key}&sort_dir={direction}'
    for limit in (1, 3, 100):
        assert pages(site, query, limit) == sorted(equal + waiting)


def test_a_server_that_was_deleted_while_it_was_built_is_deleted(site):
    """Nova leaves the state 'building' in the row of a server that it deletes before it has a host."""
    server = site.server(vm_state='building', task_state='scheduling', host=None, deleted=1, deleted_at=at(9))
    with site.cell1.write() as conn:
        instances.add_fault(conn, server, {'code': 500, 'message': 'why', 'details': 'x', 'host': None})
    (shown,) = site.ok('GET', '/servers/detail?deleted=1')['servers']
    assert (shown['status'], shown['fault']['message'], shown['OS-EXT-STS:vm_state']) == ('DELETED', 'why', 'building')
    assert 'progress' not in shown


def test_deleted_servers_have_the_properties_of_their_images(site):
    """Nova deletes the system metadata with the server. What it deleted before is of an image before a rebuild."""
    server = site.server(vm_state='deleted', deleted=1, deleted_at=at(9))
    table = instances.system_metadata_table
    with site.cell1.write() as conn:
        instances.set_system_metadata(conn, server, {'image_os_distro': 'debian', 'image_os_version': '12'})
        conn.execute(table.update().values(deleted=table.c.id, deleted_at=at(9)))
        conn.execute(table.update().where(table.c.key == 'image_os_version').values(deleted_at=at(8)))
    (shown,) = site.ok('GET', '/servers/detail?deleted=1')['servers']
    assert shown['image']['properties'] == {'hw_disk_bus': 'virtio', 'os_distro': 'debian'}


def test_deleted_servers_have_no_host_status(site):
    """Nova leaves the host in the row of a deleted server."""
    with site.cell1.write() as conn:
        services.report(conn, services.get_or_create(conn, 'h1', 'nova-compute', 'compute')['id'])
    site.server(vm_state='deleted', deleted=1, host='h1')
    (shown,) = site.ok('GET', '/servers/detail?deleted=1')['servers']
    assert (shown['OS-EXT-SRV-ATTR:host'], shown['host_status']) == ('h1', '')


def test_limits(make_site):
    site = make_site(api__max_limit=2)
    spread(site, 3)
    answer = site.ok('GET', '/servers?limit=100')
    assert len(answer['servers']) == 2 and 'limit=100' in answer['servers_links'][0]['href']
    assert site.ok('GET', '/servers?limit=0') == {'servers': []}
    answer = site.ok('GET', '/servers/detail?limit=1')
    assert answer['servers_links'][0]['href'].startswith('http://localhost/v2.1/servers/detail?limit=1&marker=')


def test_a_project_sees_its_own(site):
    mine = site.server()
    others = site.server(project=OTHER)
    assert ids(site, user='bob') == [mine]
    assert ids(site, user='bob', project=OTHER) == [others]
    assert sorted(ids(site, '?all_tenants=1')) == sorted([mine, others])
    assert sorted(ids(site, '?all_tenants')) == sorted([mine, others])
    assert ids(site, '?all_tenants=0') == [mine]
    assert ids(site, f'?all_tenants=1&project_id={OTHER}') == [others]
    assert ids(site, f'?tenant_id={OTHER}') == [mine]
    for path in ('/servers', '/servers/detail'):
        kind = 'detail' if 'detail' in path else 'index'
        assert site.fault('GET', f'{path}?all_tenants=1', user='bob') == (
            403,
            f"Policy doesn't allow os_compute_api:servers:{kind}:get_all_tenants to be performed.",
        )
    assert site.fault('GET', '/servers?all_tenants=maybe')[0] == 400
    assert site.fault('GET', f'/servers?marker={others}', user='bob')[0] == 400


@pytest.mark.parametrize(
    ('query', 'found'),
    [
        ('name=^s1$', ['s1']),
        ('name=s', ['s0', 's1', 's2', 's3']),
        ('status=ERROR', ['s2']),
        ('status=active', ['s0', 's1']),
        ('status=RESIZE', ['s3']),
        ('status=SHUTOFF', []),
        ('host=h2', ['s1']),
        ('vm_state=error', ['s2']),
        ('task_state=resize_prep', ['s3']),
        ('power_state=4', ['s1']),
        ('tags=a', ['s0', 's1']),
        ('tags=a,b', ['s1']),
        ('tags-any=b,c', ['s1', 's2']),
        ('not-tags=a,b', ['s0', 's2', 's3']),
        ('not-tags-any=a', ['s2', 's3']),
        ('locked=true', ['s0']),
        ('locked=false', ['s1', 's2', 's3']),
        ('ip=10.', []),
        ('user_id=bob', ['s0', 's1', 's2', 's3']),
        ('user_id=eve', []),
        ('config_drive=True', ['s2']),
        ('changes-since=2026-11-21T11:00:00Z', ['s3']),
        ('changes-before=2026-11-21T11:00:00Z', ['s0', 's1', 's2']),
        ('hostname=s1', ['s1']),
        ('image=nosuch', []),
        ('progress=50', ['s0']),
        ('deleted=true', []),
        ('key_name=', ['s0', 's1', 's2', 's3']),
        ('created_at=2026-11-21T10:00:02Z', ['s2']),
        ('uuid=nosuch', []),
        ('flavor=nosuch', []),
    ],
)
def test_filters(site, query, found):
    flavor = site.flavor()
    tags = {'s0': ['a'], 's1': ['a', 'b'], 's2': ['c']}
    values = {
        's0': {'locked': True, 'progress': 50},
        's1': {'host': 'h2', 'power_state': 4},
        's2': {'vm_state': 'error', 'config_drive': 'True'},
        's3': {'task_state': 'resize_prep', 'updated_at': moment(2026, 11, 21, 12)},
    }
    for number, name in enumerate(sorted(values)):
        site.server(
            (site.cell1, site.cell2)[number % 2],
            flavor,
            create={'name': name, 'tags': tags.get(name, [])},
            **{'created_at': at(number), 'updated_at': at(number), **values[name]},
        )
    names = [server['name'] for server in site.ok('GET', f'/servers?{query}')['servers']]
    assert sorted(names) == found


def test_filters_hold_for_build_requests_too(site):
    flavor = site.flavor()
    first, second = site.create(flavor, name='one', tags=['a', 'b']), site.create(site.flavor(), name='two')
    for query, found in {
        'name=^o': [first],
        'tags=a,b': [first],
        'not-tags-any=a': [second],
        'status=BUILD': [second, first],
        'status=ACTIVE': [],
        f'flavor={flavor}': [first],
        'deleted=true': [],
        'changes-since=2099-01-01T00:00:00Z': [],
        'host=h1': [],
    }.items():
        assert sorted(ids(site, f'?{query}')) == sorted(found), query


def test_filters_that_members_may_not_use_are_passed_over(site):
    server = site.server(host='h1')
    for query in ('host=h2', 'deleted=true', 'node=n9', 'locked_by=admin'):
        assert ids(site, f'?{query}', user='bob') == [server]
    assert ids(site, '?vm_state=error', user='bob', version='2.82') == [server]
    assert ids(site, '?vm_state=error', user='bob', version='2.83') == []
    assert ids(site, '?hostname=x', user='bob', version='2.89') == [server]
    assert ids(site, '?hostname=x', user='bob', version='2.90') == []
    assert ids(site, '?ip6=fe80', user='bob', version='2.4') == [server]
    assert ids(site, '?ip6=fe80', user='bob', version='2.5') == []
    assert ids(site, '?locked=true', user='bob', version='2.72') == [server]
    assert ids(site, '?locked=true', user='bob', version='2.73') == []
    assert ids(site, '?tags=x', user='bob', version='2.25') == [server]
    assert ids(site, '?changes-before=2000-01-01T00:00:00Z', user='bob', version='2.65') == [server]
    assert ids(site, '?metadata=x', user='bob', version='2.74') == [server]
    assert ids(site, '?soft_deleted=true', user='bob') == [server]


def test_statuses(site):
    site.server()
    assert ids(site, '?status=nosuch', version='2.37') == []
    assert site.fault('GET', '/servers?status=nosuch', version='2.38') == (400, 'Invalid status value')
    assert site.fault('GET', '/servers?status=deleted', user='bob')[0] == 403
    failed = site.server(vm_state='error')
    assert ids(site, '?status=error&status=nosuch') == [failed]
    assert len(ids(site, '?status=ERROR&status=active')) == 2
    gone = site.server(vm_state='deleted', deleted=7)
    assert ids(site, '?status=deleted') == [gone]
    assert gone in ids(site, '?changes-since=2020-01-01T00:00:00Z', user='bob')


def test_who_sorts_by_host(site):
    assert site.fault('GET', '/servers?sort_key=host', user='bob')[0] == 403
    assert ids(site, '?sort_key=host') == []
    assert ids(site, '?sort_key=memory_mb', version='2.74') == []
    assert site.fault('GET', '/servers?sort_key=uuid&sort_dir=asc&sort_dir=desc') == (
        400,
        'Invalid input received: Sort direction size exceeds sort key size',
    )
    assert site.fault('GET', '/servers?sort_key=memory_mb', version='2.75')[0] == 400


@pytest.mark.parametrize('name', ['metadata', 'pci_devices', '_x'])
def test_forbidden_filters(site, name):
    """Names of tables; who may not use all filters isn't told of them."""
    assert site.fault('GET', f'/servers?{name}=1', version='2.74') == (400, f'Invalid filter field: {name}.')


def test_statements_of_a_list_do_not_grow(make_site, statements):
    """Two of the API database and at most five a cell."""
    site = make_site(quota__instances=-1, quota__cores=-1)
    with site.cell1.write() as conn:
        service = services.get_or_create(conn, 'h1', 'nova-compute', 'compute')
        services.report(conn, service['id'])
    counts = []
    for _ in range(2):
        for _ in range(5):
            site.server(site.cell1)
            site.server(site.cell2, vm_state='error')
        site.create()
        statements.clear()
        answer = site.ok('GET', '/servers/detail')
        of = [name for name, statement in statements]
        counts.append((of.count('api'), of.count('cell1'), of.count('cell2'), of.count('cell0')))
        assert 'COMMIT' not in [statement for _, statement in statements]
    assert len(answer['servers']) == 22
    assert answer['servers'][-1]['host_status'] in ('UP', '')
    assert counts[0] == counts[1]
    assert counts[0][0] <= 2 and max(counts[0][1:]) <= 5


def test_the_cells_row_wins_while_a_server_is_handed_over(site):
    """operations.md rule 18: the build request and the server may be there at once."""
    uuid = site.create(name='old')
    from kilonova.db.models import api as models

    table = models.BuildRequest.__table__
    with site.databases.api().read() as conn:
        row = dict(conn.execute(table.select()).mappings().first())
    site.hand_over(uuid, vm_state='active', display_name='new')
    with site.databases.api().write() as conn:
        conn.execute(table.insert(), row)
    assert [server['name'] for server in site.ok('GET', '/servers')['servers']] == ['new']


def broken(site, monkeypatch, cell):
    def read():
        raise exc.OperationalError('x', None, Exception('gone'), connection_invalidated=True)

    monkeypatch.setattr(cell, 'read', read)


def test_a_silent_cell_is_left_out_or_shown_unknown(site, monkeypatch):
    here, there = site.server(site.cell1), site.server(site.cell2)
    broken(site, monkeypatch, site.cell2)
    assert ids(site, version='2.68') == [here]
    assert ids(site, '?name=.') == [here]
    answer = site.ok('GET', '/servers/detail')['servers']
    assert [server['id'] for server in answer] == [here, there]
    assert set(answer[1]) == {'id', 'status', 'links', 'tenant_id', 'created'} and answer[1]['status'] == 'UNKNOWN'
    assert set(site.ok('GET', '/servers')['servers'][1]) == {'id', 'status', 'links'}
    assert site.fault('GET', f'/servers/{there}', version='2.68')[0] == 503
    assert site.ok('GET', f'/servers/{there}')['server']['status'] == 'UNKNOWN'


def test_a_silent_cell_fails_the_list_where_operators_want_that(make_site, monkeypatch):
    site = make_site(api__list_records_by_skipping_down_cells=False)
    broken(site, monkeypatch, site.cell2)
    assert site.fault('GET', '/servers', version='2.68') == (503, 'Cell cell2 is not responding.')
    assert site.fault('GET', '/servers?limit=5') == (503, 'Cell cell2 is not responding.')
    assert site.ok('GET', '/servers')['servers'] == [], 'from 2.69 what is known of them is told'


def test_keys_that_mean_nothing_order_nothing(site):
    """Until 2.74 more keys are accepted; the list stays newest first."""
    big, small = site.flavor(ram=1024), site.flavor(ram=512)
    servers = [site.server(flavor=flavor, created_at=at(number)) for number, flavor in enumerate((big, small, big))]
    for key in ('memory_mb', 'vcpus', 'root_gb', 'id', 'user_data', 'locked'):
        assert ids(site, f'?sort_key={key}&sort_dir=desc', version='2.72') == servers[::-1], key
    locked = site.server(locked=True, created_at=at(0))
    assert ids(site, '?sort_key=locked&sort_dir=desc', version='2.73')[0] == locked
    assert ids(site, '?sort_key=locked&sort_dir=desc', version='2.72')[0] == servers[2]


SORT_VALUES = {
    'access_ip_v4': '10.0.0.1',
    'access_ip_v6': 'fe80::1',
    'auto_disk_config': True,
    'config_drive': 'True',
    'created_at': at(50),
    'launched_at': at(50),
    'terminated_at': at(50),
    'updated_at': at(50),
    'instance_type_id': 99,
    'launch_index': 5,
    'power_state': 4,
    'progress': 7,
    'locked_by': 'owner',
}


def test_every_sort_key(site):
    """Both directions, with values and without, and with pages in between."""
    flavor, table = site.flavor(), instances.instances
    first = site.server(flavor=flavor, created_at=at(1))
    site.server(site.cell2, flavor=flavor, created_at=at(2))
    before = site.row(first)
    for key in sorted(set(lists.SORT_KEYS) - {'uuid'}):
        with site.cell1.write() as conn:
            conn.execute(table.update().where(table.c.uuid == first).values({key: SORT_VALUES.get(key, 'zzz')}))
        query = f'?all_tenants=1&sort_key={key}&sort_dir='
        up, down = ids(site, f'{query}asc'), ids(site, f'{query}desc')
        assert up == down[::-1] and len(up) == 2, key
        assert down[0] == first, key
        for direction, order in (('asc', up), ('desc', down)):
            assert ids(site, f'{query}{direction}&limit=1&marker={order[0]}') == order[1:], key
        with site.cell1.write() as conn:
            conn.execute(table.update().where(table.c.uuid == first).values({key: before[key]}))
    assert ids(site, '?sort_key=uuid&sort_dir=asc') == sorted(ids(site))


@pytest.mark.parametrize(
    ('query', 'is_found'),
    [
        ('ip=10.2.0.43', True),
        ('ip=10.2.0.44', False),
        ('ip6=^fd00::beef$', True),
        ('ip6=10.2', False),
        ('ip6=beef&ip=43', True),
        ('ip6=beef&ip=44', False),
        ('ip=', True),
    ],
)
def test_fixed_addresses(site, query, is_found):
    """They stand in the servers' own cells. What they may say: tests/unit/db/test_addresses.py."""
    server, other, waiting = site.server(), site.server(), site.create()
    with site.cell1.write() as conn:
        put_vifs(conn, server, [VIF])
        put_vifs(conn, other, [])
    for path in ('', '/detail'):
        found = [row['id'] for row in site.ok('GET', f'/servers{path}?{query}')['servers']]
        assert (server in found, other in found, waiting in found) == (is_found, *[query == 'ip='] * 2), path


def test_expressions_that_no_address_fits(site):
    assert site.fault('GET', '/servers?ip=1%22') == (
        400,
        ("Invalid filter value for ip: '1\"' is not a regular expression: '\"' is not supported in address patterns."),
    )


@pytest.mark.parametrize('name', ['name', 'ip', 'ip6', 'display_name'])
def test_malformed_regular_expressions(site, name):
    assert site.fault('GET', f'/servers?{name}=(') == (
        400,
        f"Invalid input for query parameters {name}. Value: (. '(' is not a 'regex': missing ): (",
    )


def test_unknown_filters(site):
    """Passed over until 2.74, refused from 2.75 on."""
    server = site.server()
    for user in ('admin', 'bob'):
        assert ids(site, '?nosuch=1', user=user, version='2.74') == [server]
        assert site.fault('GET', '/servers?nosuch=1', user=user, version='2.75') == (
            400,
            "'nosuch' does not match any of the regexes: '^_'",
        )


def test_soft_deleted_servers_are_seen_by_those_who_ask(site):
    """They wait to be reclaimed: out of plain lists, but not out of reach."""
    here, waiting = site.server(), site.server(vm_state='soft-delete')
    gone = site.server(vm_state='deleted', deleted=9)
    assert ids(site) == ids(site, user='bob') == [here]
    assert sorted(ids(site, '?soft_deleted=true')) == sorted([here, waiting])
    assert ids(site, '?status=SOFT_DELETED', user='bob') == [waiting]
    assert ids(site, '?vm_state=soft-delete', user='bob') == [waiting]
    assert sorted(ids(site, '?deleted=true')) == sorted([waiting, gone])
    assert ids(site, '?deleted=true&soft_deleted=false') == [gone]
    assert len(ids(site, '?changes-since=2020-01-01T00:00:00Z', user='bob')) == 3


ADMINISTRATORS_FILTERS = (
    ('access_ip_v4', '10.0.0.1', '10.0.0.2'),
    ('access_ip_v6', 'fe80::1', 'fe80::2'),
    ('auto_disk_config', '1', '0'),
    ('availability_zone', 'z1', 'z2'),
    ('created_at', '2026-11-21T10:00:01Z', '2026-11-21T10:00:09Z'),
    ('description', 'about', 'nothing'),
    ('display_description', '^ab', '^bo'),
    ('display_name', '^one$', '^on$'),
    ('host', 'h1', 'h2'),
    ('hostname', 'one', 'on'),
    ('image_ref', IMAGE, 'x'),
    ('kernel_id', 'k', 'l'),
    ('key_name', 'mykey', 'other'),
    ('launch_index', '0', '1'),
    ('launched_at', '2026-11-21T10:00:02Z', '2026-11-21T10:00:03Z'),
    ('locked_by', 'admin', 'owner'),
    ('node', 'n1', 'n2'),
    ('power_state', '1', '4'),
    ('progress', '5', '6'),
    ('ramdisk_id', 'r', 's'),
    ('root_device_name', '/dev/vda', '/dev/sda'),
    ('task_state', 'rebooting', 'pausing'),
    ('terminated_at', '2026-11-21T10:00:04Z', '2026-11-21T10:00:05Z'),
    ('user_id', 'bob', 'eve'),
    ('vm_state', 'active', 'error'),
)


def test_filters_of_administrators(site):
    """Each with a value that fits and one that doesn't; to members they mean nothing before their version."""
    server = site.server(
        create={'name': 'one', 'description': 'about'},
        access_ip_v4='10.0.0.1',
        access_ip_v6='fe80::1',
        auto_disk_config=True,
        availability_zone='z1',
        created_at=at(1),
        host='h1',
        node='n1',
        kernel_id='k',
        ramdisk_id='r',
        key_name='mykey',
        launched_at=at(2),
        locked_by='admin',
        progress=5,
        root_device_name='/dev/vda',
        task_state='rebooting',
        terminated_at=at(4),
    )
    for name, value, other in ADMINISTRATORS_FILTERS:
        assert ids(site, f'?{name}={value}') == [server], name
        assert ids(site, f'?{name}={other}') == [], name
        assert ids(site, f'?{name}={other}', user='bob', version='2.82') == [server], name


def test_deleted_servers_page_by_page(site):
    """A marker may have been deleted meanwhile."""
    servers = spread(site, 4, vm_state='deleted', deleted=1)
    first = ids(site, '?deleted=true&limit=2')
    assert first == servers[:1:-1]
    assert ids(site, f'?deleted=true&limit=2&marker={first[-1]}') == servers[1::-1]
    here = site.server(created_at=at(0))
    assert ids(site, f'?marker={servers[3]}') == [here]


@pytest.mark.parametrize('limit', ['-1', 'x', '1.5'])
def test_bad_limits(site, limit):
    assert site.fault('GET', f'/servers?limit={limit}') == (
        400,
        f"Invalid input for query parameters limit. Value: {limit}. '{limit}' does not match '^[0-9]*$'",
    )
    assert site.fault('GET', '/servers?marker=nosuch') == (400, 'marker [nosuch] not found')


def test_changes_in_the_wrong_order(site):
    code, text = site.fault('GET', '/servers?changes-since=2026-01-02T00:00:00Z&changes-before=2026-01-01T00:00:00Z')
    assert (code, text) == (400, 'The value of changes-since must be less than or equal to changes-before.')
    assert site.fault('GET', '/servers?changes-since=yesterday')[0] == 400


# --- rows that can't be read -----------------------------------------------------------------------------------------
@pytest.mark.parametrize('text', ['', '{', '[]', 'null', '{"nova_object.data": 7}', '{"nova_object.name": "x"}'])
@pytest.mark.parametrize('path', ['/servers', '/servers/detail', '/servers/{broken}'])
def test_a_broken_request_spec_hides_no_page_found_1_20(site, caplog, text, path):
    broken, other = site.server(), site.server()
    with site.databases.api().write() as conn:
        conn.execute(
            sa.update(RequestSpec.__table__).where(RequestSpec.__table__.c.instance_uuid == broken).values(spec=text)
        )
    body = site.ok('GET', path.format(broken=broken))
    if 'servers' in body:
        assert {one['id'] for one in body['servers']} == {broken, other}
    else:
        assert (body['server']['pinned_availability_zone'], body['server']['scheduler_hints']) == (None, {})
    assert path == '/servers' or f'Could not read the request spec of server {broken}' in caplog.text


def test_a_broken_build_request_hides_no_page_found_1_20(site, caplog):
    broken, other = site.create(site.flavor()), site.create(site.flavor())
    table = BuildRequest.__table__
    with site.databases.api().write() as conn:
        conn.execute(sa.update(table).where(table.c.instance_uuid == broken).values(instance='{'))
    assert ids(site) == [other]
    assert f'Could not read the build request of server {broken}' in caplog.text


def test_a_marker_that_never_had_a_cell_and_is_deleted_is_unknown_found_1_20(site):
    """As in Nova, and as docs/admin/operations.md says: nothing is left that would tell its place in the list."""
    uuid = site.create(site.flavor())
    assert site.ok('GET', f'/servers?marker={uuid}')['servers'] == []
    assert site.request('DELETE', f'/servers/{uuid}').status_int == 204
    assert site.fault('GET', f'/servers?marker={uuid}') == (400, f'marker [{uuid}] not found')
