"""Answers that once differed from the field's, one row each: what is asked by whom, and what must be answered.

Section "Answers" of docs/reference/regressions.md names the tests. Texts are the field's wherever they are known.
"""

from __future__ import annotations

import pytest

from kilonova.api.routes import ROUTES
from kilonova.db.queries import instances
from tests.api import examples, table
from tests.unit.api.conftest import moment

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
    return (
        examples.path_of(world, route, example, version).partition('?')[0],
        world.fill(example.body_at(route, version)),
        version,
    )


@pytest.mark.parametrize('route', WITH_BODY, ids=table.key)
def test_a_body_is_looked_at_before_the_server_and_the_policy(world, route):
    """An invalid body is answered with 400 before the server is looked up and before the policy is checked."""
    path, body, version = _of(world, route)
    bad = {'nosuch': []} if body is not None else 1
    for role in ('admin', 'nothing', 'stranger'):
        assert ask(world, route.method, path, bad, role=role, version=version)[0] == 400, role
    assert (
        ask(world, route.method, path.replace(world.names['server'], world.names['unknown']), bad, version=version)[0]
        == 400
    )
    if body is not None and route.policy is not None:
        assert ask(world, route.method, path, body, role='nothing', version=version)[0] in (403, 200, 201)


@pytest.mark.parametrize('route', [route for route in LIVE if route.action], ids=table.key)
def test_the_body_of_an_action_is_looked_at_first(world, route):
    """An action with an invalid body is answered with 400 before the policy is checked."""
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
    """An unknown query parameter is answered with 400 before server and policy are looked at."""
    path, body, version = _of(world, route)
    for role in ('admin', 'nothing', 'stranger'):
        status, message = ask(world, route.method, f'{path}?bogus=1', body, role=role, version=version)
        assert (status, 'bogus' in message) == (400, True), role


def test_a_server_is_looked_for_before_the_policy(world):
    """A server of another project is answered with 404, even if the caller may not run the action on any server."""
    for path, body in (
        ('/servers/{other_server}/action', {'migrate': {'host': None}}),
        ('/servers/{unknown}/action', {'migrate': {'host': None}}),
    ):
        assert ask(world, 'POST', path, body, role='reader')[0] == 404
    assert ask(world, 'POST', '/servers/{server}/action', {'migrate': {'host': None}}, role='reader')[0] == 403


# --- paths and headers -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('method', 'path', 'body', 'status'),
    [
        ('POST', '/servers/{server}/action', {'os-stop': None}, 202),
        ('DELETE', '/servers/{server}', None, 204),
        ('GET', '/servers/{server}/tags/gpu', None, 204),
        ('PUT', '/servers/{server}/tags/new', None, 201),
        ('DELETE', '/flavors/1', None, 202),
        ('DELETE', '/os-aggregates/{empty_aggregate}', None, 200),
    ],
)
def test_answers_without_a_body_name_a_type(world, method, path, body, status):
    """An answer without a body has the header Content-Type, also with status 204."""
    response = world.request(method, path, body)
    assert (response.status_int, response.headers['Content-Type'], response.body) == (status, 'application/json', b'')
    assert response.headers.get('Content-Length') == (None if status == 204 else '0')


def test_documents_about_versions_have_the_newer_request_id_only(world):
    """Version documents have only the header x-openstack-request-id; other answers have x-compute-request-id, too."""
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
    """A Content-Type that differs from the accepted one in upper or lower case is answered with 415."""
    for kind, status in (
        ('APPLICATION/JSON', 415),
        ('Application/Json', 415),
        ('application/json', 202),
        ('application/json; charset=utf-8', 202),
        ('application/vnd.openstack.compute+json', 202),
    ):
        world.become(vm_state='active', task_state=None)
        response = world.request(
            'POST', '/servers/{server}/action', {'reboot': {'type': 'HARD'}}, headers={'Content-Type': kind}
        )
        assert response.status_int == status, kind
        world.restore()


@pytest.mark.parametrize(
    ('path', 'status'),
    [
        ('/flavors', 200),
        ('/flavors/', 404),
        ('/flavors//', 404),
        ('/flavors/1/', 404),
        ('/servers/', 404),
        ('/servers/{server}/', 404),
        ('/{project}/servers', 200),
        ('/{project}/servers/', 404),
        # What names the format is no part of a path that has no id there.
        ('/flavors.json', 200),
        ('/servers/{server}/metadata.json', 200),
        ('/flavors/detail.json', 404),
        ('/flavors/1.json', 404),
        ('/flavors/1.json/os-extra_specs', 404),
        ('/servers/{server}.json', 404),
    ],
)
def test_slashes_and_suffixes_of_paths(world, path, status):
    """A path that ends with a slash is answered with 404; `.json` at the end of a path belongs to the id."""
    assert world.request('GET', path).status_int == status


def test_an_id_may_end_like_a_format(world):
    """A flavor id and a tag may end with `.json`."""
    world.flavor(id='big.json', name='big')
    assert world.ok('GET', '/flavors/big.json')['flavor']['name'] == 'big'
    assert world.request('PUT', '/servers/{server}/tags/a.json').status_int == 201
    assert 'a.json' in world.ok('GET', '/servers/{server}/tags')['tags']


# --- single answers --------------------------------------------------------------------------------------------------
def _no(rule):
    return f"Policy doesn't allow os_compute_api:{rule} to be performed."


UNSUPPORTED = 'The requested functionality is not supported.'
NO_NUMBER = 'Invalid input received: id must be an integer'
BAD_NAME = (
    "An invalid 'name' value was provided. The name must be: printable characters. "
    'Can not start or end with whitespace.'
)
_MOVE = '00000000-dddd-4eee-8fff-000000000000'
_REFUSED = 'Invalid input for query parameters {0}. Value: {1}. {1} is too long'
_EMPTY = "Invalid input for query parameters limit. Value: . '' should be non-empty"
_HOST = {'host': 'nosuch', 'binary': 'nova-compute'}
_SERVER = {'name': 's', 'flavorRef': '1', 'imageRef': '{image}', 'networks': 'none'}

_KINDS = "['anti-affinity', 'affinity', 'soft-anti-affinity', 'soft-affinity']"
YOUNGER = (
    '/os-keypairs',
    '/os-migrations',
    '/servers/{server}/os-instance-actions',
    '/os-simple-tenant-usage',
    '/os-simple-tenant-usage/{project}',
)

# Method, path, body, who asks, version, status, text.
ANSWERS = [
    # moves of all projects are asked for where none is named
    ('GET', '/os-migrations', None, 'manager', 104, 403, _no('os-migrations:index:all_projects')),
    ('GET', '/os-migrations', None, 'manager', 1, 403, _no('os-migrations:index:all_projects')),
    ('GET', '/os-migrations?project_id={project}', None, 'manager', 104, 200, None),
    (
        'GET',
        '/os-migrations?project_id={other_project}',
        None,
        'manager',
        104,
        403,
        _no('os-migrations:index:all_projects'),
    ),
    ('GET', '/os-migrations', None, 'admin', 104, 200, None),
    ('POST', '/servers/{server}/action', {'migrate': None}, 'manager', 1, 202, None),
    ('POST', '/servers/{server}/action', {'migrate': None}, 'member', 1, 403, _no('os-migrate-server:migrate')),
    # hosts as they were
    *(
        ('GET', f'/os-hosts/{host}/{verb}', None, role, 42, status, text)
        for verb, rule in (('startup', 'start'), ('shutdown', 'shutdown'), ('reboot', 'reboot'))
        for host, role, status, text in (
            ('gpu1', 'member', 403, _no(f'os-hosts:{rule}')),
            ('nosuch', 'member', 403, _no(f'os-hosts:{rule}')),
            ('gpu1', 'admin', 501, UNSUPPORTED),
            ('nosuch', 'admin', 404, "Host 'nosuch' is not mapped to any cell"),
        )
    ),
    ('GET', '/os-hosts/gpu1/reboot', None, 'admin', 43, 404, NO_ROUTE),
    ('PUT', '/os-hosts/nosuch', {'status': 'enable'}, 'admin', 1, 404, "Host 'nosuch' is not mapped to any cell"),
    (
        'PUT',
        '/os-hosts/nosuch',
        {'maintenance_mode': 'enable'},
        'admin',
        1,
        404,
        "Host 'nosuch' is not mapped to any cell",
    ),
    ('PUT', '/os-hosts/gpu1', {'maintenance_mode': 'enable'}, 'admin', 1, 501, UNSUPPORTED),
    ('PUT', '/os-hosts/gpu1', {'maintenance_mode': 'enable'}, 'member', 1, 403, _no('os-hosts:update')),
    ('GET', '/os-hosts/nosuch', None, 'admin', 1, 404, "Host 'nosuch' is not mapped to any cell"),
    # aggregates
    *(
        (method, f'/os-aggregates/{number}{tail}', body, 'admin', 104, status, text)
        for number, status, text in (
            ('abc', 400, NO_NUMBER),
            ('1.5', 400, NO_NUMBER),
            ('x1', 400, NO_NUMBER),
            ('987654', 404, None),
            ('9' * 40, 404, None),
            ('-1', 404, None),
        )
        for method, tail, body in (
            ('GET', '', None),
            ('PUT', '', {'aggregate': {'name': 'n'}}),
            ('DELETE', '', None),
            ('POST', '/action', {'add_host': {'host': 'gpu1'}}),
            ('POST', '/action', {'remove_host': {'host': 'gpu1'}}),
            ('POST', '/action', {'set_metadata': {'metadata': {'a': 'b'}}}),
        )
    ),
    ('GET', '/os-aggregates/abc', None, 'member', 104, 403, _no('os-aggregates:show')),
    (
        'POST',
        '/os-aggregates/{rack1}/action',
        {'add_host': {'host': 'nosuch'}},
        'admin',
        104,
        404,
        "Host 'nosuch' is not mapped to any cell",
    ),
    *(
        (
            'POST',
            '/os-aggregates/{rack1}/action',
            {'remove_host': {'host': host}},
            'admin',
            104,
            404,
            f'Cannot remove host {host} in aggregate {{rack1}}',
        )
        for host in ('nosuch', 'gpu2')
    ),
    (
        'POST',
        '/os-aggregates/98765/action',
        {'remove_host': {'host': 'gpu1'}},
        'admin',
        104,
        404,
        'Cannot remove host gpu1 in aggregate 98765',
    ),
    # parameters that are said twice
    *(
        (
            'GET',
            f'{path}?{name}={first}&{name}={second}',
            None,
            'admin',
            104,
            400,
            _REFUSED.format(name, [first, second]),
        )
        for path in ('/servers/{server}/os-instance-actions', '/os-migrations')
        for name, first, second in (
            ('limit', '1', '2'),
            ('marker', _MOVE, _MOVE),
            ('changes-since', '2025-01-01T00:00:00Z', '2025-01-02'),
            ('changes-before', '2025-01-01T00:00:00Z', '2025-01-02'),
        )
    ),
    ('GET', '/servers/{server}/os-instance-actions?limit=1&limit=2', None, 'admin', 57, 200, None),
    # services
    ('PUT', '/os-services/nosuch', _HOST, 'admin', 52, 404, 'Unknown action'),
    ('PUT', '/os-services/{unknown}', _HOST, 'admin', 1, 404, 'Unknown action'),
    ('PUT', '/os-services/force-down', _HOST, 'admin', 10, 404, 'Unknown action'),
    ('PUT', '/os-services/nosuch', _HOST, 'member', 52, 403, _no('os-services:update')),
    ('PUT', '/os-services/nosuch', {'host': 'gpu1'}, 'admin', 52, 400, None),
    *(
        ('PUT', f'/os-services/{verb}', {**_HOST, **more}, 'admin', 52, 404, "Host 'nosuch' is not mapped to any cell")
        for verb, more in (
            ('enable', {}),
            ('disable', {}),
            ('disable-log-reason', {'disabled_reason': 'r'}),
            ('force-down', {'forced_down': True}),
        )
    ),
    (
        'PUT',
        '/os-services/enable',
        {'host': 'gpu1', 'binary': 'nosuch'},
        'admin',
        52,
        404,
        'Could not find binary nosuch on host gpu1.',
    ),
    ('PUT', '/os-services/{unknown}', {'status': 'enabled'}, 'admin', 104, 404, 'Service {unknown} not found.'),
    ('DELETE', '/os-services/{unknown}', None, 'admin', 104, 404, 'Service {unknown} not found.'),
    ('DELETE', '/os-services/98765', None, 'admin', 52, 404, 'Service 98765 not found.'),
    # hypervisors
    *(
        (
            'GET',
            f'/os-hypervisors/{number}{tail}',
            None,
            'admin',
            version,
            404,
            f"Hypervisor with ID '{number}' could not be found.",
        )
        for number, version in (('98765', 52), ('nosuch', 1), ('{unknown}', 87))
        for tail in ('', '/uptime')
    ),
    # limits of lists
    *(
        ('GET', f'{path}?limit=', None, 'admin', 104, 400, _EMPTY)
        for path in (
            '/servers',
            '/servers/detail',
            '/flavors',
            '/os-keypairs',
            '/os-hypervisors',
            '/os-migrations',
            '/servers/{server}/os-instance-actions',
            '/os-simple-tenant-usage',
            '/os-server-groups',
        )
    ),
    (
        'GET',
        '/servers?limit=-1',
        None,
        'admin',
        104,
        400,
        "Invalid input for query parameters limit. Value: -1. '-1' does not match '^[0-9]*$'",
    ),
    # markers
    *(
        ('GET', f'{path}?marker={{unknown}}', None, 'admin', 104, 400, 'Marker {unknown} could not be found.')
        for path in YOUNGER
    ),
    *(
        ('GET', f'{path}?marker={{unknown}}', None, 'admin', 104, 400, 'marker [{unknown}] not found')
        for path in ('/servers', '/servers/detail', '/flavors', '/flavors/detail', '/os-hypervisors')
    ),
    # orders of lists
    ('GET', '/servers?sort_key=host', None, 'member', 104, 403, 'Only administrators can sort servers by host'),
    (
        'GET',
        '/servers/detail?sort_key=uuid&sort_key=node',
        None,
        'member',
        104,
        403,
        'Only administrators can sort servers by node',
    ),
    ('GET', '/servers?sort_key=host', None, 'admin', 104, 200, None),
    (
        'GET',
        '/servers?sort_dir=up',
        None,
        'member',
        104,
        400,
        "Invalid input received: Unknown sort direction, must be 'desc' or 'asc'",
    ),
    (
        'GET',
        '/servers?sort_key=uuid&sort_dir=asc&sort_dir=desc',
        None,
        'member',
        104,
        400,
        'Invalid input received: Sort direction size exceeds sort key size',
    ),
    # usage
    *(
        (
            'GET',
            f'/os-simple-tenant-usage{tail}?{name}={text}',
            None,
            'admin',
            104,
            400,
            'Invalid datetime string: Datetime is in invalid format',
        )
        for tail in ('', '/{project}')
        for name in ('start', 'end')
        for text in ('yesterday', '2025-13-01T00:00:00', '1')
    ),
    # live migrations that aren't there
    (
        'GET',
        '/servers/{server}/migrations/98765',
        None,
        'admin',
        104,
        404,
        'In-progress live migration 98765 is not found for server {server}.',
    ),
    (
        'GET',
        '/servers/{server}/migrations/x',
        None,
        'admin',
        104,
        404,
        'In-progress live migration x is not found for server {server}.',
    ),
    # names
    *(
        (method, path, {key: {**more, 'name': name}}, 'admin', 104, 400, BAD_NAME)
        for name in (' x', 'x ', ' ', 'a\x01b')
        for method, path, key, more in (
            ('POST', '/os-server-groups', 'server_group', {'policy': 'affinity'}),
            ('PUT', '/servers/{server}', 'server', {}),
            ('POST', '/os-aggregates', 'aggregate', {}),
            ('POST', '/servers', 'server', _SERVER),
        )
    ),
    (
        'PUT',
        '/servers/{server}',
        {'server': {'name': ''}},
        'admin',
        104,
        400,
        "Invalid input for field/attribute name. Value: . '' should be non-empty",
    ),
    # enums in the field's order
    (
        'POST',
        '/os-server-groups',
        {'server_group': {'name': 'g', 'policies': ['x']}},
        'admin',
        14,
        400,
        "Invalid input for field/attribute 0. Value: x. 'x' is not one of ['anti-affinity', 'affinity']",
    ),
    (
        'POST',
        '/os-server-groups',
        {'server_group': {'name': 'g', 'policies': ['x']}},
        'admin',
        63,
        400,
        f"Invalid input for field/attribute 0. Value: x. 'x' is not one of {_KINDS}",
    ),
    (
        'POST',
        '/os-server-groups',
        {'server_group': {'name': 'g', 'policy': 'x'}},
        'admin',
        64,
        400,
        f"Invalid input for field/attribute policy. Value: x. 'x' is not one of {_KINDS}",
    ),
    # extensions that nobody built
    *(
        ('GET', f'/extensions/{alias}', None, 'nothing', 104, 200, None)
        for alias in ('NMN', 'os-volumes', 'os-agents', 'os-cells', 'os-networks', 'os-keypairs')
    ),
    ('GET', '/extensions/nosuch', None, 'admin', 104, 404, NO_ROUTE),
]


@pytest.mark.parametrize(
    ('method', 'path', 'body', 'role', 'version', 'status', 'text'), ANSWERS, ids=lambda value: str(value)[:60]
)
def test_an_answer(world, method, path, body, role, version, status, text):
    """Each request of ANSWERS gets the status and the fault text that Nova gives."""
    got, message = ask(world, method, path, body, role=role, version=version)
    assert (got, message) == (status, world.fill(text) if text is not None and status >= 400 else message)


def test_an_empty_zone_is_every_zone(world):
    """`GET /os-hosts?zone=` with an empty zone lists the hosts of all zones."""

    def names(query):
        return {(row['host_name'], row['service']) for row in world.ok('GET', f'/os-hosts{query}', version=42)['hosts']}

    assert names('?zone=') == names('') and ('gpu1', 'compute') in names('')
    assert names('?zone=az2') == {('gpu2', 'compute')}


@pytest.mark.parametrize('version', [1, 39, 40, 104])
def test_usage_of_nobody_has_its_key(world, version):
    """The usage of a project without servers is `{'tenant_usage': {}}`; in the list it is an empty `tenant_usages`."""
    for project in ('nosuch', world.names['unknown']):
        assert world.ok('GET', f'/os-simple-tenant-usage/{project}', version=version) == {'tenant_usage': {}}
        assert world.ok(
            'GET', f'/os-simple-tenant-usage/{project}?start=2025-11-20T00:00:00&limit=1', version=version
        ) == {'tenant_usage': {}}
    quiet = 'start=2001-01-01T00:00:00&end=2001-01-02T00:00:00'
    assert world.ok('GET', f'/os-simple-tenant-usage/{{project}}?{quiet}', version=version) == {'tenant_usage': {}}
    assert world.ok('GET', f'/os-simple-tenant-usage?{quiet}', version=version) == {'tenant_usages': []}


def test_security_groups_have_no_limits_here(world):
    """Limits and quotas of security groups are -1 and their usage is 0, as Neutron manages security groups."""
    limits = world.ok('GET', '/limits', version=35)['limits']['absolute']
    assert (limits['maxSecurityGroups'], limits['maxSecurityGroupRules']) == (-1, -1)
    for path in ('/os-quota-sets/{project}', '/os-quota-sets/{project}/defaults', '/os-quota-class-sets/default'):
        (quotas,) = world.ok('GET', path, version=35).values()
        assert (quotas['security_groups'], quotas['security_group_rules']) == (-1, -1), path
    detail = world.ok('GET', '/os-quota-sets/{project}/detail', version=35)['quota_set']
    assert detail['security_groups'] == {'limit': -1, 'in_use': 0, 'reserved': 0}


def test_every_extension_that_there_was_is_listed(world):
    """`GET /extensions` lists every extension of Nova, even without routes, and each can be shown."""
    listed = world.ok('GET', '/extensions', role='nothing')['extensions']
    assert {'NMN', 'OS-DCF', 'os-volumes', 'os-networks', 'os-shelve', 'os-keypairs', 'os-virtual-interfaces'} <= {
        entry['alias'] for entry in listed
    }
    for entry in listed:
        assert world.ok('GET', f'/extensions/{entry["alias"]}') == {'extension': entry}


BROKEN = [b'{', b'x', b"{'os-stop': None}", b'\xff', b'{"os-stop": NaN}']


@pytest.mark.parametrize('raw', BROKEN)
@pytest.mark.parametrize(
    ('method', 'path'),
    [
        ('POST', '/servers'),
        ('POST', '/servers/{server}/action'),
        ('PUT', '/servers/{server}'),
        ('POST', '/flavors'),
        ('POST', '/servers/{unknown}/action'),
    ],
)
def test_bodies_that_are_not_json(world, method, path, raw):
    """A body that is not JSON is answered with 400 `Malformed request body` before the policy is checked."""
    assert ask(world, method, path, raw=raw, role='nothing') == (400, 'Malformed request body')


# --- what can't be had is refused ------------------------------------------------------------------------------------
def _create(world, role='member', **values):
    return ask(world, 'POST', '/servers', {'server': {**_SERVER, **values}}, role=role)


def test_security_groups_that_are_not_there_are_refused(world):
    """A create with an unknown security group is refused with 400 and the name of the group."""
    assert _create(world, security_groups=[{'name': 'default'}]) == (202, None)
    for groups in ([{'name': 'web'}], [{'name': 'default'}, {'name': 'web'}]):
        assert _create(world, security_groups=groups) == (400, "Unable to find security_group with name or id 'web'")


def test_certificates_are_refused_while_nothing_is_verified(world):
    """A create with `trusted_image_certificates` is refused with 400, as Kilonova does not verify certificates."""
    status, text = _create(world, trusted_image_certificates=['c1'])
    assert (status, 'trusted_image_certificates' in text) == (400, True)
    assert _create(world, trusted_image_certificates=None) == (202, None)


def test_an_image_that_forbids_auto(world):
    """A create with diskConfig AUTO is refused if the image says that auto_disk_config is Disabled."""
    refused = (400, world.fill('Requested image {image} has automatic disk resize disabled.'))
    auto, manual = {'OS-DCF:diskConfig': 'AUTO'}, {'OS-DCF:diskConfig': 'MANUAL'}
    for name, word in (
        ('hw_auto_disk_config', 'Disabled'),
        ('auto_disk_config', 'Disabled'),
        ('auto_disk_config', 'disabled'),
        ('auto_disk_config', ' DISABLED '),
    ):
        kept = world.images.kept[world.names['image']]
        kept.pop('hw_auto_disk_config', None)
        kept[name] = word
        assert _create(world, **auto) == refused
    for body in ({}, manual):
        assert _create(world, **body) == (202, None)
    server = world.ok('POST', '/servers', world.fill({'server': _SERVER}))['server']
    assert server['OS-DCF:diskConfig'] == 'MANUAL'
    world.hand_over(
        server['id'],
        world.cell1,
        vm_state='active',
        host='gpu1',
        node='gpu1',
        power_state=1,
        launched_at=moment(2025, 11, 21),
    )
    path = f'/servers/{server["id"]}'
    assert ask(world, 'PUT', path, {'server': auto}) == refused
    assert ask(world, 'PUT', path, {'server': manual}) == (200, None)
    assert ask(world, 'POST', f'{path}/action', {'resize': {'flavorRef': '2', **auto}}) == refused
    assert ask(world, 'POST', f'{path}/action', {'resize': {'flavorRef': '2', **manual}}) == (202, None)


@pytest.mark.parametrize(
    ('said', 'asked', 'shown'),
    [('true', None, 'AUTO'), ('true', 'MANUAL', 'MANUAL'), ('false', None, 'MANUAL'), ('false', 'AUTO', 'AUTO')],
)
def test_an_image_says_what_its_servers_have(world, said, asked, shown):
    """Found on the way: what an image says in auto_disk_config had no effect."""
    world.images.kept[world.names['image']]['auto_disk_config'] = said
    body = {'server': {**_SERVER, **({'OS-DCF:diskConfig': asked} if asked else {})}}
    assert world.ok('POST', '/servers', world.fill(body))['server']['OS-DCF:diskConfig'] == shown


def test_a_resize_changes_the_disk_config(world):
    """Found on the way: it was taken and dropped."""
    for word in ('AUTO', 'MANUAL'):
        world.become(vm_state='active', task_state=None, auto_disk_config=word != 'AUTO')
        world.ok('POST', '/servers/{server}/action', {'resize': {'flavorRef': '2', 'OS-DCF:diskConfig': word}})
        assert world.ok('GET', '/servers/{server}')['server']['OS-DCF:diskConfig'] == word
        world.restore()


def test_an_image_is_missed_before_the_flavor(world):
    """A create without an image is answered with `Missing imageRef attribute`, even if its flavor does not exist."""
    for values in ({'imageRef': ''}, {'imageRef': '', 'flavorRef': 'nosuch'}):
        assert _create(world, **values) == (400, 'Missing imageRef attribute')
    body = {name: value for name, value in _SERVER.items() if name != 'imageRef'}
    assert ask(world, 'POST', '/servers', {'server': {**body, 'flavorRef': 'nosuch'}}, role='member') == (
        400,
        'Missing imageRef attribute',
    )
    assert _create(world, flavorRef='nosuch') == (400, 'Flavor nosuch could not be found.')


def test_events_that_nothing_can_be_done_with(world):
    """An external event that cannot be handled is answered with 207 and its own code 400, 404 or 422."""

    def told(version, **event):
        response = world.request('POST', '/os-server-external-events', {'events': [event]}, version=version)
        (answer,) = response.json['events']
        return response.status_int, answer['code'], answer['status']

    server, nobody = world.names['server'], world.names['unknown']
    for name in ('volume-extended', 'volume-reimaged', 'accelerator-request-bound'):
        assert told(104, name=name, server_uuid=server, tag='x') == (207, 422, 'failed'), name
        assert told(104, name=name, server_uuid=nobody, tag='x') == (207, 404, 'failed'), name
    for name in ('network-changed', 'network-vif-deleted'):
        # The one has a port, the other none.
        assert told(104, name=name, server_uuid=server, tag='x') == (200, 200, 'completed'), name
        assert told(104, name=name, server_uuid=world.names['waiting'], tag='x') == (207, 422, 'failed'), name
        assert told(104, name=name, server_uuid=nobody, tag='x') == (207, 404, 'failed'), name
    assert told(104, name='volume-extended', server_uuid=server) == (207, 400, 'failed')
    assert told(104, name='power-update', server_uuid=server, tag='x') == (207, 400, 'failed')
    assert told(104, name='power-update', server_uuid=world.names['waiting'], tag='POWER_OFF') == (207, 422, 'failed')
    assert told(104, name='power-update', server_uuid=server, tag='POWER_OFF') == (200, 200, 'completed')
    assert world.ok('GET', '/servers/{server}')['server']['OS-EXT-STS:task_state'] == 'powering-off'


# --- why a move was refused ------------------------------------------------------------------------------------------
def _fail(world, details, name='resize'):
    """An action that failed as its flow writes it: 'Error', and events that say why."""
    request_id = 'req-00000009-1111-4222-8333-444444444444'
    server, at = world.names['server'], moment(2025, 11, 21, 12)
    with world.cell1.write() as conn:
        instances.start_action(
            conn,
            server,
            {
                'action': name,
                'request_id': request_id,
                'user_id': 'u',
                'project_id': world.names['project'],
                'message': 'Error',
                'created_at': at,
                'updated_at': at,
                'start_time': at,
            },
        )
        instances.add_events(
            conn,
            server,
            request_id,
            [
                {
                    'event': 'conductor_migrate_server',
                    'result': 'Error',
                    'host': 'controller',
                    'start_time': at,
                    'finish_time': at,
                    'details': details,
                    'traceback': 'Traceback',
                }
            ],
        )
    return f'/servers/{{server}}/os-instance-actions/{request_id}'


REASON = (
    'No valid host was found. Hosts said: gpu1 (192.0.2.10) can not be reached from gpu2 at [2001:db8::1];\n'
    'compute.gpu2 and gpu2.example.org say no to controller, gpu22 was not asked'
)


@pytest.mark.parametrize('version', [1, 50, 51, 84, 104])
def test_owners_learn_why_a_move_was_refused(world, version):
    """The owner of a server sees why a resize was refused, without the names and addresses of hosts."""
    path = _fail(world, REASON)
    told = (
        'Error: No valid host was found. Hosts said: <host> (<host>) can not be reached from <host> at [<host>]; '
        'compute.<host> and <host>.example.org say no to <host>, gpu22 was not asked'
    )
    for role in ('member', 'reader', 'manager'):
        shown = world.ok('GET', path, role=role, version=version)['instanceAction']
        assert shown['message'] == told, role
        listed = world.ok('GET', '/servers/{server}/os-instance-actions', role=role, version=version)['instanceActions']
        assert next(row['message'] for row in listed if row['action'] == 'resize') == told
        assert {row['message'] for row in listed if row['action'] != 'resize'} == {None}
    seen = world.ok('GET', path, version=version)['instanceAction']['message']
    assert seen == 'Error: ' + REASON.replace('\n', ' ')


def test_a_reason_is_one_line_that_fits(world):
    """A long reason of a failed action is shown to its owner as one line of 255 characters that ends with `…`."""
    path = _fail(world, 'x ' * 400)
    shown = world.ok('GET', path, role='member')['instanceAction']['message']
    assert len(shown) == 255 and shown.startswith('Error: x x') and shown.endswith('…')


def test_a_failure_without_a_reason_is_an_error(world):
    """As before: there may be nothing to say."""
    path = _fail(world, None)
    assert world.ok('GET', path, role='member')['instanceAction']['message'] == 'Error'


# --- filters of lists of servers -------------------------------------------------------------------------------------
FUTURE, PAST = '2100-01-01T00:00:00Z', '2000-01-01T00:00:00Z'
NEVER = 105
# Name, a value that not all of the member's servers have, and the version from which members may use it.
FILTERS = [
    ('reservation_id', 'r-nosuch', 1),
    ('name', 'nosuch', 1),
    ('status', 'PAUSED', 1),
    ('image', '{unknown}', 1),
    ('flavor', 'nosuch', 1),
    ('ip', '10', 1),
    ('changes-since', FUTURE, 1),
    ('ip6', 'fe80', 5),
    ('tags', 'nosuch', 26),
    ('tags-any', 'nosuch', 26),
    ('not-tags', 'gpu', 26),
    ('not-tags-any', 'gpu', 26),
    ('changes-before', PAST, 66),
    ('locked', 'true', 73),
    ('availability_zone', 'nosuch', 83),
    ('config_drive', 'true', 83),
    ('key_name', 'nosuch', 83),
    ('created_at', PAST, 83),
    ('launched_at', PAST, 83),
    ('terminated_at', PAST, 83),
    ('power_state', '3', 83),
    ('task_state', 'nosuch', 83),
    ('vm_state', 'paused', 83),
    ('progress', '50', 83),
    ('user_id', 'nosuch', 83),
    ('hostname', 'nosuch', 90),
    *(
        (name, value, NEVER)
        for name, value in (
            ('project_id', '{other_project}'),
            ('tenant_id', '{other_project}'),
            ('launch_index', '7'),
            ('image_ref', '{unknown}'),
            ('kernel_id', 'nosuch'),
            ('ramdisk_id', 'nosuch'),
            ('host', 'nosuch'),
            ('node', 'nosuch'),
            ('display_name', 'nosuch'),
            ('description', 'nosuch'),
            ('display_description', 'nosuch'),
            ('locked_by', 'admin'),
            ('uuid', '{unknown}'),
            ('root_device_name', 'nosuch'),
            ('access_ip_v4', '192.0.2.99'),
            ('access_ip_v6', '2001:db8::99'),
            ('auto_disk_config', 'true'),
            ('soft_deleted', 'true'),
            ('deleted', 'true'),
        )
    ),
]
JOINED = (
    'block_device_mapping',
    'services',
    'metadata',
    'system_metadata',
    'info_cache',
    'security_groups',
    'pci_devices',
)


def _seen(world, query, role, version):
    return [row['id'] for row in world.ok('GET', f'/servers?{query}', role=role, version=version)['servers']]


@pytest.mark.parametrize(('name', 'value', 'since'), FILTERS, ids=[row[0] for row in FILTERS])
def test_members_filter_by_what_they_may(world, name, value, since):
    """A member's filter takes effect from its version on; before it, or if only administrators may use it, it is
    ignored."""
    everything = _seen(world, '', 'member', 1)
    assert len(everything) == 3
    for version in sorted({1, since - 1, since, 74, 104} - {0, NEVER}):
        seen = _seen(world, f'{name}={value}', 'member', version)
        assert (seen != everything) == (version >= since), f'2.{version}'
    if since == NEVER and name not in ('project_id', 'tenant_id', 'deleted', 'soft_deleted'):
        assert _seen(world, f'{name}={value}', 'admin', 104) != _seen(world, '', 'admin', 104)


@pytest.mark.parametrize('name', JOINED)
def test_names_of_tables_are_no_filters(world, name):
    """A filter that is named like a joined table is ignored for members and refused with 400 for administrators."""
    for version in (1, 74, 75, 104):
        assert _seen(world, f'{name}=x', 'member', version) == _seen(world, '', 'member', 1)
        assert ask(world, 'GET', f'/servers?{name}=x', version=version) == (400, f'Invalid filter field: {name}.')


def test_other_projects_are_asked_for_with_a_right(world):
    """Members may not list servers of other projects or deleted servers.

    An unknown filter is refused with 400 unless its name begins with `_`; administrators may filter by project.
    """
    for value in ('', '1', 'true'):
        assert ask(world, 'GET', f'/servers?all_tenants={value}', role='member') == (
            403,
            _no('servers:index:get_all_tenants'),
        )
    assert ask(world, 'GET', '/servers?status=deleted', role='member')[0] == 403
    assert ask(world, 'GET', '/servers?status=nosuch', role='member', version=38) == (400, 'Invalid status value')
    assert _seen(world, 'status=nosuch', 'member', 37) == []
    own = {world.names[name] for name in ('server', 'second', 'waiting')}
    assert set(_seen(world, 'tenant_id={other_project}', 'admin', 104)) == own
    assert set(_seen(world, 'all_tenants=1&tenant_id={other_project}', 'admin', 104)) == {world.names['other_server']}
    assert ask(world, 'GET', '/servers?foo=1', role='member') == (400, "'foo' does not match any of the regexes: '^_'")
    assert len(_seen(world, '_foo=1', 'member', 104)) == 3


# --- the field's texts -----------------------------------------------------------------------------------------------
_ACT = '/servers/{server}/action'
TEXTS = [
    ('POST', _ACT, {'nosuch': None}, 104, 400, 'There is no such action: nosuch'),
    ('POST', _ACT, {'os-stop': None, 'os-start': None}, 104, 400, 'Malformed request body'),
    (
        'POST',
        _ACT,
        {'reboot': {'type': 'x'}},
        104,
        400,
        (
            'Invalid input for field/attribute type. Value: x. '
            "'x' is not one of ['HARD', 'Hard', 'hard', 'SOFT', 'Soft', 'soft']"
        ),
    ),
    ('GET', '/servers?foo=1', None, 75, 400, "'foo' does not match any of the regexes: '^_'"),
    ('GET', '/servers?marker=zzz', None, 104, 400, 'marker [zzz] not found'),
    ('GET', '/servers?status=x', None, 38, 400, 'Invalid status value'),
    ('GET', '/servers/zzz', None, 104, 404, 'Instance zzz could not be found.'),
    ('POST', '/servers', {'server': {**_SERVER, 'flavorRef': '99'}}, 104, 400, 'Flavor 99 could not be found.'),
    ('POST', '/servers', {'server': {**_SERVER, 'imageRef': '{unknown}'}}, 104, 400, 'Can not find requested image'),
    (
        'POST',
        '/servers',
        {'server': {**_SERVER, 'availability_zone': 'nosuch'}},
        104,
        400,
        'The requested availability zone is not available',
    ),
    (
        'POST',
        '/servers',
        {'server': {**_SERVER, 'min_count': 99}},
        104,
        403,
        (
            'Quota exceeded for cores, instances, ram: Requested 198, 99, 202752, but already used 6, 3, 6144 of '
            '20, 10, '
            '51200 cores, instances, ram'
        ),
    ),
    ('POST', _ACT, {'os-start': None}, 104, 409, "Cannot 'start' instance {server} while it is in vm_state active"),
    (
        'POST',
        '/flavors/1/os-extra_specs',
        {'extra_specs': {'hw:nosuch': '1'}},
        86,
        400,
        "Validation failed; extra spec 'hw:nosuch' does not appear to be a valid extra spec.",
    ),
    ('GET', '/flavors/1/os-extra_specs/zzz', None, 104, 404, 'Flavor 1 has no extra specs with key zzz.'),
    ('GET', '/flavors/1/os-flavor-access', None, 104, 404, 'Access list not available for public flavors.'),
    (
        'DELETE',
        '/os-aggregates/{rack1}',
        None,
        104,
        400,
        'Cannot remove host from aggregate {rack1}. Reason: Host aggregate is not empty.',
    ),
    (
        'POST',
        '/os-server-groups',
        {'server_group': {'name': 'g', 'policy': 'affinity', 'rules': {'max_server_per_host': 1}}},
        64,
        400,
        'Only anti-affinity policy supports rules.',
    ),
    (
        'PUT',
        '/os-quota-sets/{project}',
        {'quota_set': {'cores': 0}},
        104,
        400,
        'Quota limit 0 for cores must be greater than or equal to already used and reserved 6.',
    ),
    ('GET', '/servers/{server}/metadata/zz', None, 104, 404, 'Metadata item was not found'),
    ('GET', '/servers/{server}/tags/zz', None, 104, 404, "Server {server} has no tag 'zz'"),
    ('GET', '/servers/{server}/tags', None, 25, 404, NO_ROUTE),
]


@pytest.mark.parametrize(
    ('method', 'path', 'body', 'version', 'status', 'text'), TEXTS, ids=[row[-1][:50] for row in TEXTS]
)
def test_a_text(world, method, path, body, version, status, text):
    """Each request of TEXTS gets exactly Nova's status and fault text."""
    assert ask(world, method, path, body, version=version) == (status, world.fill(text))


def test_texts_of_lists_and_versions(world):
    """Fault texts that contain a list of choices, a whole body or an API version are those of Nova."""
    status, text = ask(world, 'GET', '/servers?sort_key=foo')
    assert status == 400
    assert text.startswith("Invalid input for query parameters sort_key. Value: foo. 'foo' is not one of [")
    status, text = ask(world, 'POST', '/servers', {'server': {'name': 's', 'networks': 'none'}})
    assert status == 400 and text.startswith('Invalid input for field/attribute server. Value: {')
    assert text.endswith(". 'flavorRef' is a required property")
    status, text = ask(world, 'POST', '/flavors/1/os-extra_specs', {'extra_specs': {'pci_passthrough:alias': 'a1'}})
    assert (status, text) == (400, (r"Validation failed; 'a1' is not of the format '[^:]+:\d+(?:\s*,\s*[^:]+:\d+)*'."))
    status, text = ask(
        world,
        'POST',
        '/os-server-external-events',
        {'events': [{'name': 'accelerator-request-bound', 'server_uuid': '{server}'}]},
        version=81,
    )
    assert status == 400 and text.startswith(
        "Invalid input for field/attribute name. Value: accelerator-request-bound. 'accelerator-request-bound' is not "
        "one of ['network-changed', 'network-vif-plugged', 'network-vif-unplugged', 'network-vif-deleted', "
    )
    response = world.request('GET', '/servers', version='2.9999')
    assert (response.status_int, response.json) == (
        406,
        {
            'computeFault': {
                'code': 406,
                'message': ('Version 2.9999 is not supported by the API. Minimum is 2.1 and maximum is 2.104.'),
            }
        },
    )
    assert response.headers['OpenStack-API-Version'] == 'compute 2.9999'
    assert ask(world, 'GET', '/servers', version='abc') == (
        400,
        'API Version String abc is of invalid format. Must be of format MajorNum.MinorNum.',
    )
    world.become(locked=True, locked_by='admin')
    assert ask(world, 'POST', _ACT, {'os-stop': None}, role='member') == (
        409,
        world.fill('Instance {server} is locked'),
    )
