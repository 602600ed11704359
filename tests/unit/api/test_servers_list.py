"""GET /servers and /servers/detail: filters, order, pages, cells, costs."""
from __future__ import annotations

import pytest
from sqlalchemy import exc

from kilonova.db.queries import instances, services
from tests.unit.api.conftest import OTHER, moment


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


@pytest.mark.parametrize('query', ['', '&sort_key=display_name', '&sort_key=availability_zone&sort_key=host',
                                   '&sort_key=vm_state&sort_dir=asc', '&sort_key=launched_at&sort_dir=asc'])
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
            403, f"Policy doesn't allow os_compute_api:servers:{kind}:get_all_tenants to be performed.")
    assert site.fault('GET', '/servers?all_tenants=maybe')[0] == 400
    assert site.fault('GET', f'/servers?marker={others}', user='bob')[0] == 400


@pytest.mark.parametrize(('query', 'found'), [
    ('name=^s1$', ['s1']), ('name=s', ['s0', 's1', 's2', 's3']), ('status=ERROR', ['s2']),
    ('status=active', ['s0', 's1']), ('status=RESIZE', ['s3']), ('status=SHUTOFF', []), ('host=h2', ['s1']),
    ('vm_state=error', ['s2']), ('task_state=resize_prep', ['s3']), ('power_state=4', ['s1']),
    ('tags=a', ['s0', 's1']), ('tags=a,b', ['s1']), ('tags-any=b,c', ['s1', 's2']),
    ('not-tags=a,b', ['s0', 's2', 's3']),
    ('not-tags-any=a', ['s2', 's3']), ('locked=true', ['s0']), ('locked=false', ['s1', 's2', 's3']),
    ('ip=10.', []), ('user_id=bob', ['s0', 's1', 's2', 's3']), ('user_id=eve', []), ('config_drive=True', ['s2']),
    ('changes-since=2026-11-21T11:00:00Z', ['s3']), ('changes-before=2026-11-21T11:00:00Z', ['s0', 's1', 's2']),
    ('hostname=s1', ['s1']), ('image=nosuch', []), ('progress=50', ['s0']), ('deleted=true', []),
    ('key_name=', ['s0', 's1', 's2', 's3']),
    ('created_at=2026-11-21T10:00:02Z', ['s2']), ('uuid=nosuch', []), ('flavor=nosuch', [])])
def test_filters(site, query, found):
    flavor = site.flavor()
    tags = {'s0': ['a'], 's1': ['a', 'b'], 's2': ['c']}
    values = {
        's0': {'locked': True, 'progress': 50}, 's1': {'host': 'h2', 'power_state': 4},
        's2': {'vm_state': 'error', 'config_drive': 'True'},
        's3': {'task_state': 'resize_prep', 'updated_at': moment(2026, 11, 21, 12)}}
    for number, name in enumerate(sorted(values)):
        site.server((site.cell1, site.cell2)[number % 2], flavor, create={'name': name, 'tags': tags.get(name, [])},
                    **{'created_at': at(number), 'updated_at': at(number), **values[name]})
    names = [server['name'] for server in site.ok('GET', f'/servers?{query}')['servers']]
    assert sorted(names) == found


def test_filters_hold_for_build_requests_too(site):
    flavor = site.flavor()
    first, second = site.create(flavor, name='one', tags=['a', 'b']), site.create(site.flavor(), name='two')
    for query, found in {'name=^o': [first], 'tags=a,b': [first], 'not-tags-any=a': [second],
                         'status=BUILD': [second, first], 'status=ACTIVE': [], f'flavor={flavor}': [first],
                         'deleted=true': [], 'changes-since=2099-01-01T00:00:00Z': [], 'host=h1': []}.items():
        assert sorted(ids(site, f'?{query}')) == sorted(found), query


def test_filters_that_members_may_not_use_are_passed_over(site):
    server = site.server(host='h1')
    for query in ('host=h2', 'deleted=true', 'node=n9', 'locked_by=admin'):
        assert ids(site, f'?{query}', user='bob') == [server]
    assert ids(site, '?vm_state=error', user='bob', version='2.82') == [server]
    assert ids(site, '?vm_state=error', user='bob', version='2.83') == []
    assert ids(site, '?hostname=x', user='bob', version='2.89') == [server]
    assert ids(site, '?hostname=x', user='bob', version='2.90') == []


def test_statuses(site):
    site.server()
    assert ids(site, '?status=nosuch', version='2.37') == []
    assert site.fault('GET', '/servers?status=nosuch', version='2.38') == (400, 'Invalid status value')
    assert site.fault('GET', '/servers?status=deleted', user='bob')[0] == 403
    gone = site.server(vm_state='deleted', deleted=7)
    assert ids(site, '?status=deleted') == [gone]
    assert gone in ids(site, '?changes-since=2020-01-01T00:00:00Z', user='bob')


def test_who_sorts_by_host(site):
    assert site.fault('GET', '/servers?sort_key=host', user='bob')[0] == 403
    assert ids(site, '?sort_key=host') == []
    assert ids(site, '?sort_key=memory_mb', version='2.74') == []
    assert site.fault('GET', '/servers?sort_key=memory_mb', version='2.75')[0] == 400


@pytest.mark.parametrize('name', ['metadata', 'pci_devices', '_x'])
def test_forbidden_filters(site, name):
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
    assert site.fault('GET', f'/servers/{there}')[0] == 503


def test_a_silent_cell_fails_the_list_where_operators_want_that(make_site, monkeypatch):
    site = make_site(api__list_records_by_skipping_down_cells=False)
    broken(site, monkeypatch, site.cell2)
    assert site.fault('GET', '/servers') == (503, 'Cell cell2 is not responding.')
