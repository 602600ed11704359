"""What one request can do: see what isn't its caller's, or cost more than a request may."""

from __future__ import annotations

import pytest

from kilonova.db.queries import owners

# What Keystone's middleware says of tokens without a project.
WITHOUT_PROJECT = {
    'unscoped': {'X-Roles': ''},
    'domain': {'X-Domain-Id': 'default', 'X-Roles': 'member,reader'},
    'system': {'OpenStack-System-Scope': 'all', 'X-Roles': 'member,reader'},
}


@pytest.mark.parametrize('scope', WITHOUT_PROJECT)
@pytest.mark.parametrize('enforced', [True, False])
def test_a_token_without_a_project_sees_nothing_that_is_a_projects(world, monkeypatch, scope, enforced):
    """A token without a project shows nothing that belongs to a project, even if `enforce_scope` is off.

    Such a token was once answered as if it belonged to every project.
    """
    monkeypatch.setattr(world.conf.oslo_policy, 'enforce_scope', enforced, raising=False)
    headers = {'X-Project-Id': None, 'X-Project-Name': None, **WITHOUT_PROJECT[scope]}

    def ask(path, method='GET', body=None):
        return world.request(method, path, body, role='reader', headers=headers)

    for path in ('/flavors', '/flavors/detail', '/flavors?is_public=none', '/flavors?is_public=false'):
        assert 'private' not in ask(path).text
    assert 'gpu.1' in ask('/flavors').text
    for path in ('/flavors/private', '/flavors/private/os-extra_specs', '/flavors?marker=private'):
        assert ask(path).status_int in (400, 403, 404)
    for path in (
        '/servers',
        '/servers/detail',
        '/servers?all_tenants=1',
        '/os-server-groups',
        '/os-migrations',
        '/os-simple-tenant-usage',
        '/servers/{server}',
        '/servers/{other_server}',
        '/limits',
    ):
        text = ask(path).text
        hidden = ('second', 'waiting', 'spread_group', 'theirs_group')
        assert not any(world.names[name] in text for name in hidden), path
    body = {'server': {'name': 's', 'flavorRef': 'private', 'imageRef': world.names['image'], 'networks': 'none'}}
    assert ask('/servers', 'POST', body).status_int in (400, 403)


def test_everybody_is_said_in_so_many_words():
    """`owners.has` is true for a missing project only if the caller passes `owners.ALL`; None matches no project."""
    assert not owners.has(None, None)
    assert not owners.has(None, 'p')
    assert not owners.has('p', None)
    assert owners.has('p', 'p')
    assert owners.has(owners.ALL, None)


def test_one_request_creates_so_many_servers_at_most(world):
    """A create of more than 200 servers is refused with 400, even if the quota is unlimited.

    A request for 3000 servers took 13 s and 300 MB before this limit.
    """
    unlimited = {'quota_set': dict.fromkeys(('instances', 'cores', 'ram'), -1)}
    world.ok('PUT', '/os-quota-sets/{project}', unlimited)
    body = {'name': 's', 'flavorRef': '1', 'imageRef': world.names['image'], 'networks': 'none'}
    world.mark()
    for more in ({'max_count': 201}, {'min_count': 2**31 - 1}):
        answer = world.request('POST', '/servers', {'server': {**body, **more}}, role='member')
        assert answer.status_int == 400
        assert 'at most 200 servers' in answer.json['badRequest']['message']
        assert not world.changed()
    # What the quota cuts down is no more than that.
    world.ok('PUT', '/os-quota-sets/{project}', {'quota_set': {'instances': 20}})
    assert world.request('POST', '/servers', {'server': {**body, 'max_count': 500}}, role='member').status_int == 202
