"""The route table: complete, unambiguous, guarded."""

from __future__ import annotations

import itertools

import pytest

from kilonova.api import policies, versions
from kilonova.api.routes import ROUTES
from kilonova.api.schemas.base import QuerySchema, Schema
from kilonova.api.v2 import gone, volume_attachments
from kilonova.api.v2.extensions import EXTENSIONS
from kilonova.api.wsgi import ANYBODY, Paths

# Routes that whoever has a token may use; who may do what to images the image service decides.
OPEN = {('GET', '/flavors'), ('GET', '/flavors/detail'), ('GET', '/flavors/{flavor_id}')} | {
    (route.method, route.path) for route in ROUTES if route.path.startswith('/images')
}
# What is answered with 410, or 404 whatever is asked, has neither rights nor bodies.
GONE = [route for route in ROUTES if route.handler is gone.answer]
REMOVED = [route for route in ROUTES if route.handler in (gone.absent, gone.unknown_action)]
BUILT = [route for route in ROUTES if route not in (*GONE, *REMOVED)]
DEFAULTS = {rule.name: rule.check_str for rule in policies.list_rules()}


def name(route):
    return f'{route.method} {route.path} {route.action or ""}'.strip()


@pytest.mark.parametrize('route', BUILT, ids=name)
def test_every_row_has_a_policy_and_schemas(route):
    if route.action == 'os-getRDPConsole':
        # Refused to everybody, before any server is looked for: no hypervisor has such consoles any more.
        assert (route.policy, route.server, route.status, route.until) == (None, None, 400, 5)
        return
    if (route.method, route.path) in OPEN:
        assert route.policy is ANYBODY
    else:
        assert route.policy in DEFAULTS
    assert isinstance(route.query, QuerySchema)
    assert isinstance(route.body, Schema) == (route.method in ('POST', 'PUT'))
    assert versions.MIN <= route.since <= route.until <= versions.MAX
    assert ('{server_id}' in route.path) == (route.server is not None)
    assert route.owner is None or f'{{{route.owner}}}' in route.path
    # Volumes are never swapped, whoever asks.
    refused = (route.handler is volume_attachments.swap and route.status == 409) or route.path.startswith('/os-hosts/')
    assert route.status in (200, 201, 202, 204) or refused


def test_rows_of_one_request_do_not_overlap():
    def key(route):
        return route.method, route.path, route.action

    for _, same in itertools.groupby(sorted(ROUTES, key=lambda r: (*key(r)[:2], r.action or '', r.since)), key):
        rows = list(same)
        for first, second in itertools.pairwise(rows):
            assert first.until < second.since


def test_a_path_has_actions_in_all_its_rows_or_in_none():
    for _, same in itertools.groupby(sorted(ROUTES, key=lambda r: (r.method, r.path)), lambda r: (r.method, r.path)):
        assert len({route.action is None for route in same}) == 1


@pytest.mark.parametrize('table', [ROUTES, ROUTES[::-1]], ids=['as it is', 'reversed'])
def test_the_order_of_the_table_says_nothing(table):
    paths = Paths(table)
    for route, project in itertools.product(ROUTES, ('', '/0123abc')):
        found = paths.mapper.match(project + path_of(route, 'x'), {'REQUEST_METHOD': route.method})
        assert found is not None and found['row_key'] == f'{route.method} {route.path}'


def test_every_schema_can_be_built_in_every_version():
    for route, version in itertools.product(BUILT, range(versions.MIN, versions.MAX + 1)):
        assert isinstance(route.query.at(version), dict)
        if route.body is not None and route.since <= version <= route.until:
            assert isinstance(route.body.at(version), dict)


def path_of(route, server):
    return (
        route.path.replace('{server_id}', server)
        .replace('{service_id}', '1')
        .replace('{tenant_id}', 'p9')
        .replace('{', '')
        .replace('}', '')
    )


def body_of(route):
    return {route.action: None} if route.action else {}


def test_nothing_is_answered_without_a_token(site):
    for route in ROUTES:
        code, _ = site.fault(
            route.method, path_of(route, 'x'), {}, headers={'X-Auth-Token': ''}, version=versions.text(route.since)
        )
        assert code == 401, name(route)


@pytest.mark.parametrize(
    ('method', 'path'),
    [
        ('GET', '/nosuch'),
        ('PATCH', '/servers'),
        ('POST', '/servers/x'),
        ('GET', '/servers/x/action'),
        ('DELETE', '/flavors'),
        ('GET', '/os-certificates'),
        ('DELETE', '/os-fping'),
    ],
)
def test_what_is_not_built_has_no_route(site, method, path):
    """The page of the library below, not a fault."""
    response = site.request(method, path, {}, headers={'Accept': '*/*'})
    assert response.status_int == 404 and response.content_type == 'text/html'
    assert 'The resource could not be found.' in response.text
    assert 'OpenStack-API-Version' not in response.headers
    assert response.headers['x-openstack-request-id'].startswith('req-')
    assert site.request(method, path, {}, version='abc').status_int == 404
    told = site.request(method, path, {}, headers={'Accept': 'application/json'})
    assert told.content_type == 'application/json' and 'itemNotFound' not in told.json


@pytest.mark.parametrize('version', ['2.1', '2.44', '2.104'])
def test_what_is_gone_for_good(site, version):
    answer = {
        'computeFault': {
            'code': 410,
            'message': ('This resource is no longer available. No forwarding address is given.'),
        }
    }
    assert len(GONE) > 40
    for route in GONE:
        if route.since <= int(version[2:]) <= route.until:
            response = site.request(
                route.method, f'{path_of(route, "x")}?what=ever', body_of(route), user='eve', version=version
            )
            assert response.json == answer and response.status_int == 410, name(route)


@pytest.mark.parametrize(
    ('method', 'path', 'since'),
    [
        ('GET', '/os-networks', 36),
        ('GET', '/os-tenant-networks/x', 36),
        ('POST', '/os-floating-ips', 36),
        ('GET', '/os-floating-ip-pools', 36),
        ('DELETE', '/os-security-groups/x', 36),
        ('DELETE', '/os-snapshots/x', 36),
        ('DELETE', '/os-security-group-rules/x', 36),
        ('GET', '/os-volumes/detail', 36),
        ('GET', '/os-baremetal-nodes/x', 36),
    ],
)
def test_what_a_version_removed(site, method, path, since):
    """A fault, not the page of a path that nobody knows; what this cloud has no service for doesn't work before that
    either."""
    body = {} if method in ('POST', 'PUT') else None
    for version in (1, since - 1, since, versions.MAX):
        response = site.request(method, path, body, user='eve', version=versions.text(version))
        assert response.status_int == 404, version
        assert response.json == {'itemNotFound': {'code': 404, 'message': 'The resource could not be found.'}}
        assert response.headers['OpenStack-API-Version'] == f'compute 2.{version}'


def test_extensions(site):
    listed = site.ok('GET', '/extensions', user='eve')['extensions']
    assert {'os-services', 'os-hypervisors', 'OS-DCF', 'os-server-start-stop'} <= {entry['alias'] for entry in listed}
    assert {frozenset(entry) for entry in listed} == {
        frozenset(('alias', 'name', 'description', 'links', 'namespace', 'updated'))
    }
    assert site.ok('GET', '/extensions/os-services', user='eve') == {
        'extension': next(entry for entry in listed if entry['alias'] == 'os-services')
    }
    assert site.fault('GET', '/extensions/nosuch') == (404, 'The resource could not be found.')


def test_extensions_are_listed_once():
    aliases = [row.alias for row in EXTENSIONS]
    assert len(set(aliases)) == len(aliases) and aliases == sorted(aliases)


def test_the_second_name_of_servers(site):
    server = site.server()
    for path in ('', '/detail'):
        shown = site.ok('GET', f'/os-volumes_boot{path}', version='2.102')['servers']
        assert [entry['id'] for entry in shown] == [server]
    shown = site.ok('GET', f'/os-volumes_boot/{server}', version='2.1')['server']
    assert shown['id'] == server and shown['links'][0]['href'].endswith(f'/servers/{server}')
    assert site.request('POST', f'/os-volumes_boot/{server}/action', {'os-stop': None}, version='2.1').status_int == 202
    assert site.fault('GET', f'/os-volumes_boot/{server}', version='2.103') == (404, 'The resource could not be found.')
    assert site.fault('GET', f'/os-volumes_boot/{server}', version='2.1', user='eve', project='p3')[0] == 404
