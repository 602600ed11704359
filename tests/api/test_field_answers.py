"""Answers that once differed from the field's, one row each: what is asked by whom, and what must be answered.

Section "Answers" of docs/reference/regressions.md names the tests. Texts are the field's wherever they are known.
"""
from __future__ import annotations

import pytest

from kilonova.api.routes import ROUTES
from tests.api import examples, table

LIVE = [route for route in ROUTES if not table.is_gone(route) and table.twin(route.path) == route.path]
NO_ROUTE = 'The resource could not be found.'


def ask(world, method, path, body=None, **kwargs):
    """(status, the fault's message or None)."""
    response = world.request(method, path, world.fill(body) if body is not None else None, **kwargs)
    message = None
    if response.status_int >= 400 and response.content_type == 'application/json':
        message = next(iter(response.json.values()))['message']
    return response.status_int, message


# --- the order of checks ---------------------------------------------------------------------------------------------
WITH_BODY = [route for route in LIVE if route.body is not None and route.action is None]
STRICT = [route for route in LIVE if route.until >= route.query.strict_since]


def _of(world, route):
    example = examples.of(route)
    version = route.until
    return (examples.path_of(world, route, example, version).partition('?')[0],
            world.fill(example.body_at(route, version)), version)


@pytest.mark.parametrize('route', WITH_BODY, ids=table.key)
def test_a_body_is_looked_at_before_the_server_and_the_policy(world, route):
    """Finding 5: 400 came after 404 and 403 here. Whoever asks, and about whatever, hears what is wrong in the body."""
    path, body, version = _of(world, route)
    bad = {'nosuch': []} if body is not None else 1
    for role in ('admin', 'nothing', 'stranger'):
        assert ask(world, route.method, path, bad, role=role, version=version)[0] == 400, role
    assert ask(world, route.method, path.replace(world.names['server'], world.names['unknown']), bad,
               version=version)[0] == 400
    if body is not None and route.policy is not None:
        assert ask(world, route.method, path, body, role='nothing', version=version)[0] in (403, 200, 201)


@pytest.mark.parametrize('route', [route for route in LIVE if route.action], ids=table.key)
def test_the_body_of_an_action_is_looked_at_first(world, route):
    """Finding 5."""
    path, body, version = _of(world, route)
    bad = {route.action: body[route.action], 'nosuch': 1}
    for role in ('admin', 'nothing', 'stranger'):
        assert ask(world, 'POST', path, bad, role=role) == (400, 'Malformed request body')
        assert ask(world, 'POST', path, {'nosuch': None}, role=role) == (400, 'There is no such action: nosuch')
        if isinstance(body[route.action], dict):
            wrong = {route.action: {**body[route.action], 'nosuch': 1}}
            status, message = ask(world, 'POST', path, wrong, role=role, version=version)
            assert (status, 'nosuch' in message) == (400, True), role


@pytest.mark.parametrize('route', STRICT, ids=table.key)
def test_a_query_is_looked_at_before_the_server_and_the_policy(world, route):
    """Finding 5."""
    path, body, version = _of(world, route)
    for role in ('admin', 'nothing', 'stranger'):
        status, message = ask(world, route.method, f'{path}?bogus=1', body, role=role, version=version)
        assert (status, 'bogus' in message) == (400, True), role


def test_a_server_is_looked_for_before_the_policy(world):
    """Finding 5: nobody learns of other projects' servers, whatever they may do."""
    for path, body in (('/servers/{other_server}/action', {'migrate': {'host': None}}),
                       ('/servers/{unknown}/action', {'migrate': {'host': None}})):
        assert ask(world, 'POST', path, body, role='reader')[0] == 404
    assert ask(world, 'POST', '/servers/{server}/action', {'migrate': {'host': None}}, role='reader')[0] == 403


# --- paths and headers -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(('method', 'path', 'body', 'status'), [
    ('POST', '/servers/{server}/action', {'os-stop': None}, 202), ('DELETE', '/servers/{server}', None, 204),
    ('GET', '/servers/{server}/tags/gpu', None, 204), ('PUT', '/servers/{server}/tags/new', None, 201),
    ('DELETE', '/flavors/1', None, 202), ('DELETE', '/os-aggregates/{empty_aggregate}', None, 200)])
def test_answers_without_a_body_name_a_type(world, method, path, body, status):
    """Finding 5: those with 204 named none."""
    response = world.request(method, path, body)
    assert (response.status_int, response.headers['Content-Type'], response.body) == (status, 'application/json', b'')
    assert response.headers.get('Content-Length') == (None if status == 204 else '0')


def test_documents_about_versions_have_the_newer_request_id_only(world):
    """Finding 5."""
    for path, status in (('/', 200), ('/v2.1/', 200), ('/v2.1', 200), ('/v2/', 200), ('/v9/servers', 300)):
        response = world.request('GET', path, mount='', version=None)
        assert response.status_int == status
        assert response.headers['x-openstack-request-id'].startswith('req-')
        assert 'x-compute-request-id' not in response.headers
    for path, role, status in (('/servers', 'admin', 200), ('/servers/x', 'admin', 404), ('/nosuch', 'admin', 404)):
        response = world.request('GET', path, role=role)
        assert response.status_int == status
        assert response.headers['x-compute-request-id'] == response.headers['x-openstack-request-id']
    huge = world.request('POST', '/servers', raw=b'x' * 200000)
    assert (huge.status_int, 'x-compute-request-id' in huge.headers) == (413, True)


def test_types_of_bodies_are_compared_letter_by_letter(world):
    """Finding 5."""
    for kind, status in (('APPLICATION/JSON', 415), ('Application/Json', 415), ('application/json', 202),
                         ('application/json; charset=utf-8', 202), ('application/vnd.openstack.compute+json', 202)):
        world.become(vm_state='active', task_state=None)
        response = world.request('POST', '/servers/{server}/action', {'reboot': {'type': 'HARD'}},
                                 headers={'Content-Type': kind})
        assert response.status_int == status, kind
        world.restore()


@pytest.mark.parametrize(('path', 'status'), [
    ('/flavors', 200), ('/flavors/', 404), ('/flavors//', 404), ('/flavors/1/', 404), ('/servers/', 404),
    ('/servers/{server}/', 404), ('/{project}/servers', 200), ('/{project}/servers/', 404),
    # What names the format is no part of a path that has no id there.
    ('/flavors.json', 200), ('/servers/{server}/metadata.json', 200), ('/flavors/detail.json', 404),
    ('/flavors/1.json', 404), ('/flavors/1.json/os-extra_specs', 404), ('/servers/{server}.json', 404)])
def test_slashes_and_suffixes_of_paths(world, path, status):
    """Finding 5: a path with a slash at its end is none, an id with ``.json`` at its end is an id."""
    assert world.request('GET', path).status_int == status


def test_an_id_may_end_like_a_format(world):
    """Finding 5."""
    world.flavor(id='big.json', name='big')
    assert world.ok('GET', '/flavors/big.json')['flavor']['name'] == 'big'
    assert world.request('PUT', '/servers/{server}/tags/a.json').status_int == 201
    assert 'a.json' in world.ok('GET', '/servers/{server}/tags')['tags']
