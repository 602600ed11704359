"""Metadata of servers."""

from __future__ import annotations

import pytest

from kilonova.db.queries import instances
from tests.fixtures.servers import set_state


@pytest.fixture
def server(site):
    return site.server(create={'metadata': {'a': '1', 'b': '2'}})


def stored(site, server):
    return site.ok('GET', f'/servers/{server}')['server']['metadata']


def test_read(site, server):
    assert site.ok('GET', f'/servers/{server}/metadata', user='bob') == {'metadata': {'a': '1', 'b': '2'}}
    assert site.ok('GET', f'/servers/{server}/metadata/a', user='bob') == {'meta': {'a': '1'}}
    assert site.fault('GET', f'/servers/{server}/metadata/zz') == (404, 'Metadata item was not found')


def test_post_merges_put_replaces(site, server):
    path = f'/servers/{server}/metadata'
    merged = {'a': '1', 'b': 'new', 'c': '3'}
    assert site.ok('POST', path, {'metadata': {'b': 'new', 'c': '3'}}, user='bob') == {'metadata': merged}
    assert stored(site, server) == merged
    assert site.ok('PUT', path, {'metadata': {'A': '1', 'c': '3'}}) == {'metadata': {'A': '1', 'c': '3'}}
    assert stored(site, server) == {'A': '1', 'c': '3'}
    assert site.ok('PUT', path, {'metadata': {}}) == {'metadata': {}} and stored(site, server) == {}


def test_one_item(site, server):
    path = f'/servers/{server}/metadata/a'
    assert site.ok('PUT', path, {'meta': {'a': 'x'}}) == {'meta': {'a': 'x'}}
    assert stored(site, server) == {'a': 'x', 'b': '2'}
    assert site.fault('PUT', path, {'meta': {'b': 'x'}}) == (400, 'Request body and URI mismatch')
    assert site.fault('PUT', path, {'meta': {'a': 'x', 'b': 'y'}})[0] == 400
    response = site.request('DELETE', path)
    assert (response.status_int, response.body) == (204, b'')
    assert site.fault('DELETE', path) == (404, 'Metadata item was not found')
    assert stored(site, server) == {'b': '2'}


@pytest.mark.parametrize('pairs', [{'x' * 256: 'v'}, {'k': 'x' * 256}, {'k': 1}, {'': 'v'}, {'k/': 'v'}, None, []])
def test_bad_pairs(site, server, pairs):
    for method in ('POST', 'PUT'):
        assert site.fault(method, f'/servers/{server}/metadata', {'metadata': pairs})[0] == 400
    assert stored(site, server) == {'a': '1', 'b': '2'}


def test_only_what_differs_is_written(site, server, statements):
    statements.clear()
    site.ok('POST', f'/servers/{server}/metadata', {'metadata': {'a': '1', 'c': '3'}})
    written = [statement.split()[0] for name, statement in statements if name == 'cell1']
    assert written == ['SELECT', 'UPDATE', 'SELECT', 'INSERT', 'COMMIT']


def test_the_quota(make_site):
    site = make_site(quota__metadata_items=2)
    server = site.server(create={'metadata': {'a': '1', 'b': '2'}})
    refused = (403, 'Maximum number of metadata items exceeds 2')
    assert site.fault('POST', f'/servers/{server}/metadata', {'metadata': {'c': '3'}}) == refused
    assert site.fault('PUT', f'/servers/{server}/metadata/c', {'meta': {'c': '3'}}) == refused
    assert site.ok('PUT', f'/servers/{server}/metadata', {'metadata': {'c': '3', 'd': '4'}})
    assert stored(site, server) == {'c': '3', 'd': '4'}


WRITES = [
    ('POST', '', {'metadata': {'c': '3'}}, 'update'),
    ('PUT', '', {'metadata': {}}, 'update'),
    ('PUT', '/a', {'meta': {'a': 'x'}}, 'update'),
    ('DELETE', '/a', None, 'delete'),
]


@pytest.mark.parametrize(('method', 'tail', 'body', 'act'), WRITES)
def test_what_is_refused(site, server, method, tail, body, act):
    for state in ('error', 'resized', 'rescued', 'building', 'shelved'):
        with site.cell1.write() as conn:
            set_state(conn, server, vm_state=state)
        assert site.fault(method, f'/servers/{server}/metadata{tail}', body) == (
            409,
            f"Cannot '{act} metadata' instance {server} while it is in vm_state {state}",
        )
    waiting = site.create(metadata={'a': '1'})
    assert site.ok('GET', f'/servers/{waiting}/metadata') == {'metadata': {'a': '1'}}
    assert site.fault(method, f'/servers/{waiting}/metadata{tail}', body)[0] == 409
    locked = site.server(locked=True, create={'metadata': {'a': '1'}})
    assert site.fault(method, f'/servers/{locked}/metadata{tail}', body, user='bob') == (
        409,
        f'Instance {locked} is locked',
    )
    assert site.request(method, f'/servers/{locked}/metadata{tail}', body).status_int in (200, 204)


@pytest.mark.parametrize(('method', 'tail', 'body', 'act'), WRITES)
def test_a_server_that_goes_meanwhile_keeps_nothing(site, server, monkeypatch, method, tail, body, act):
    """The writing transaction looks at the state once more."""
    from kilonova.api.services import server_operations

    stale = server_operations.find_server

    def late(backend, ctxt, uuid, **kwargs):
        found = stale(backend, ctxt, uuid, **kwargs)
        with site.cell1.write() as conn:
            instances.mark_deleted(conn, uuid)
        return found

    monkeypatch.setattr('kilonova.api.wsgi.find_server', late)
    assert site.fault(method, f'/servers/{server}/metadata{tail}', body) == (
        404,
        f'Instance {server} could not be found.',
    )


def test_a_server_at_work_may_be_changed(site, server):
    with site.cell1.write() as conn:
        instances.transition(conn, server, 'stop.start')
    site.ok('POST', f'/servers/{server}/metadata', {'metadata': {'c': '3'}})
    assert site.row(server)['task_state'] == 'powering-off'
