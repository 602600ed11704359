"""Tags of servers."""

from __future__ import annotations

import pytest

from tests.fixtures.servers import set_state


@pytest.fixture
def server(site):
    return site.server(create={'tags': ['b', 'a']})


def tags(site, server, **kwargs):
    return site.ok('GET', f'/servers/{server}/tags', **kwargs)['tags']


def test_all_of_them(site, server):
    path = f'/servers/{server}/tags'
    assert tags(site, server, user='bob') == ['a', 'b']
    assert site.ok('PUT', path, {'tags': ['c', 'a', 'c']}, user='bob') == {'tags': ['a', 'c']}
    assert tags(site, server) == ['a', 'c'] == site.ok('GET', f'/servers/{server}')['server']['tags']
    assert site.request('DELETE', path, user='bob').status_int == 204
    assert tags(site, server) == []
    assert site.ok('PUT', path, {'tags': []}) == {'tags': []}


def test_one_of_them(site, server):
    path = f'/servers/{server}/tags'
    response = site.request('PUT', f'{path}/new', user='bob')
    assert (response.status_int, response.body) == (201, b'')
    assert response.headers['Location'] == f'http://localhost/v2.1/servers/{server}/tags/new'
    again = site.request('PUT', f'{path}/new')
    assert again.status_int == 204 and 'Location' not in again.headers
    assert site.request('GET', f'{path}/new').status_int == 204
    assert site.request('DELETE', f'{path}/new').status_int == 204
    gone = (404, f"Server {server} has no tag 'new'")
    assert site.fault('GET', f'{path}/new') == gone == site.fault('DELETE', f'{path}/new')
    assert tags(site, server) == ['a', 'b']


def test_limits(site, server):
    path = f'/servers/{server}/tags'
    assert site.fault('PUT', path, {'tags': [str(number) for number in range(51)]})[0] == 400
    for bad in ('x' * 61, 'a,b', 'a/b', ''):
        assert site.fault('PUT', path, {'tags': [bad]})[0] == 400
    for bad in ('x' * 61, 'a%2Cb'):
        code, message = site.fault('PUT', f'{path}/{bad}')
        assert code == 400 and message.startswith("Tag '"), message
    assert site.fault('PUT', f'{path}/x', {'tag': 'x'})[0] == 400
    site.ok('PUT', path, {'tags': [str(number) for number in range(50)]})
    assert site.fault('PUT', f'{path}/more') == (400, 'The number of tags exceeded the per-server limit 50')
    assert site.request('PUT', f'{path}/7').status_int == 204


def test_since_2_26(site, server):
    for method, tail in (('GET', ''), ('GET', '/a'), ('DELETE', ''), ('DELETE', '/a'), ('PUT', '/x')):
        assert site.fault(method, f'/servers/{server}/tags{tail}', version='2.25') == (
            404,
            'The resource could not be found.',
        )
    assert tags(site, server, version='2.26') == ['a', 'b']


@pytest.mark.parametrize(
    ('method', 'tail', 'body', 'act'),
    [
        ('PUT', '', {'tags': ['c']}, 'update tags'),
        ('DELETE', '', None, 'delete tags'),
        ('PUT', '/c', None, 'update tag'),
        ('DELETE', '/a', None, 'delete tag'),
    ],
)
def test_states_and_locks(site, server, method, tail, body, act):
    """A lock keeps nobody from tagging."""
    path = f'/servers/{server}/tags{tail}'
    with site.cell1.write() as conn:
        set_state(conn, server, vm_state='error')
    assert site.fault(method, path, body) == (409, f"Cannot '{act}' instance {server} while it is in vm_state error")
    with site.cell1.write() as conn:
        set_state(conn, server, vm_state='paused', locked=True)
    assert site.request(method, path, body, user='bob').status_int in (200, 201, 204)
    waiting = site.create(tags=['w'])
    assert tags(site, waiting) == ['w']
    assert site.fault(method, f'/servers/{waiting}/tags{tail}', body)[0] == 409
