"""Server groups: whose they are, what is refused, and the servers in them."""

from __future__ import annotations

import pytest

from kilonova.errors import Unanswered
from tests.unit.api.conftest import IMAGE, OTHER

UNKNOWN = '0fffffff-ffff-4fff-8fff-ffffffffffff'


def make(site, name='g', policy='anti-affinity', rules=None, **who):
    body = {'name': name, 'policy': policy, **({} if rules is None else {'rules': rules})}
    return site.ok('POST', '/os-server-groups', {'server_group': body}, **{'user': 'bob', **who})['server_group']


def create(site, group, user='bob', count=1, **who):
    return site.request(
        'POST',
        '/servers',
        {
            'server': {
                'name': 's',
                'flavorRef': site.flavor(),
                'imageRef': IMAGE,
                'networks': 'none',
                'min_count': count,
                'max_count': count,
            },
            'os:scheduler_hints': {'group': group},
        },
        user=user,
        **who,
    )


def test_a_group_is_its_projects(site):
    made, theirs = make(site), make(site, 'theirs', project=OTHER)
    path = f'/os-server-groups/{theirs["id"]}'
    text = f'Instance group {theirs["id"]} could not be found.'
    for method in ('GET', 'DELETE'):
        assert site.fault(method, path, user='bob') == (404, text)
    assert site.fault('GET', '/os-server-groups/x', user='bob') == (404, 'Instance group x could not be found.')
    assert create(site, theirs['id']).json['badRequest']['message'] == text
    assert create(site, theirs['id'], user='admin').status_int == 202
    assert len(site.ok('GET', path)['server_group']['members']) == 1
    assert create(site, UNKNOWN).json['badRequest']['message'] == f'Instance group {UNKNOWN} could not be found.'

    def listed(query='', user='bob'):
        return [row['name'] for row in site.ok('GET', f'/os-server-groups{query}', user=user)['server_groups']]

    assert listed() == listed('?all_projects=true') == ['g']
    assert listed('?all_projects', 'admin') == ['g', 'theirs'] and listed(user='admin') == ['g']
    assert site.ok('GET', path)['server_group']['id'] == theirs['id']
    assert made['rules'] == {} and made['members'] == []


def test_pages(site):
    for number in range(4):
        make(site, str(number))

    def listed(query):
        return [row['name'] for row in site.ok('GET', f'/os-server-groups?{query}', user='bob')['server_groups']]

    assert listed('limit=2') == ['0', '1'] and listed('limit=2&offset=3') == ['3']
    assert listed('limit=0') == ['0', '1', '2', '3'] and listed('offset=9999999999999999999') == []


@pytest.mark.parametrize('policy', ['affinity', 'soft-affinity', 'soft-anti-affinity'])
def test_rules_are_for_anti_affinity(site, policy):
    body = {'server_group': {'name': 'g', 'policy': policy, 'rules': {'max_server_per_host': 2}}}
    assert site.fault('POST', '/os-server-groups', body, user='bob') == (
        400,
        'Only anti-affinity policy supports rules.',
    )
    assert make(site, policy=policy, rules={})['rules'] == {}
    assert make(site, rules={'max_server_per_host': '2'})['rules'] == {'max_server_per_host': 2}


def test_servers_are_members_from_create_to_delete(site, statements):
    made = make(site, policy='affinity')
    path = f'/os-server-groups/{made["id"]}'
    assert create(site, made['id'], count=3).status_int == 202
    members = site.ok('GET', path, user='bob')['server_group']['members']
    assert len(members) == 3
    assert site.ok('GET', f'/servers/{members[0]}', user='bob')['server']['server_groups'] == [made['id']]
    assert 'server_groups' not in site.ok('GET', '/servers/detail', user='bob')['servers'][0]
    assert 'server_groups' not in site.ok('GET', f'/servers/{members[0]}', user='bob', version='2.70')['server']
    sent = site.asked_for('request_spec')[0].instance_group
    assert (sent.uuid, sent.policy) == (made['id'], 'affinity')
    assert site.request('DELETE', f'/servers/{members[0]}', user='bob').status_int == 204
    assert site.ok('GET', path, user='bob')['server_group']['members'] == members[1:]


def test_a_create_in_a_group_takes_one_statement_more_a_database(site, statements):
    made, flavor = make(site), site.flavor()
    counts = []
    for hints in ({}, {'group': made['id']}):
        statements.clear()
        site.ok(
            'POST',
            '/servers',
            {
                'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE, 'networks': 'none'},
                'os:scheduler_hints': hints,
            },
            user='bob',
        )
        counts.append(len(statements))
    # The group, its members, the new member, and the count after it.
    assert counts[1] == counts[0] + 4


def test_quotas(make_site):
    """A group beyond the quota of groups, and a server beyond the quota of members, are refused with 403."""
    site = make_site(quota__server_groups=1, quota__server_group_members=2)
    made = make(site)
    assert site.fault(
        'POST', '/os-server-groups', {'server_group': {'name': 'g', 'policy': 'affinity'}}, user='bob'
    ) == (403, 'Quota exceeded, too many server groups.')
    make(site, project=OTHER)
    assert create(site, made['id'], count=2).status_int == 202
    refused = create(site, made['id'])
    assert refused.json['forbidden'] == {'code': 403, 'message': 'Quota exceeded, too many servers in group'}
    assert len(site.ok('GET', '/servers', user='bob')['servers']) == 2


def test_aggregates_reach_placement(site):
    """What Placement doesn't take is left to a conductor, in a row; the change stands."""
    from kilonova.db.queries import cells, compute_nodes
    from tests.unit.db.rows import node

    with site.cell1.write() as conn:
        compute_nodes.get_or_create(conn, node('h1'))
    with site.databases.api().write() as conn:
        cells.map_hosts(conn, site.cell1.cell.id, ['h1'])
    made = site.ok('POST', '/os-aggregates', {'aggregate': {'name': 'a'}})['aggregate']
    path, member = f'/os-aggregates/{made["id"]}/action', (node('h1')['uuid'], made['uuid'])
    site.ok('POST', path, {'add_host': {'host': 'h1'}})
    assert site.placement.members == {member} and site.rows(made['uuid']) == []
    site.placement.fails = Unanswered(who='Placement', reason='gone')
    assert site.ok('POST', path, {'remove_host': {'host': 'h1'}})['aggregate']['hosts'] == []
    (row,) = site.rows(made['uuid'])
    assert (row['kind'], row['args']) == ('mirror', {'aggregate': made['uuid'], 'host': 'h1'})
