"""Who may do what: every route, tried by every kind of caller, against the field's table of rules.

What is expected comes from ``policy_facts`` alone; another project's things don't exist, whatever the rule says.
"""

from __future__ import annotations

import ast
import importlib
import os
import pathlib
import re
from types import ModuleType

import pytest

from kilonova.api import policies
from kilonova.api.routes import ROUTES
from kilonova.api.wsgi import ANYBODY
from tests.api import counts, examples, table
from tests.api.policy_facts import RULES
from tests.api.world import CALLERS, KEY, OTHER_PROJECT, OTHER_USER, PROJECT, UNKNOWN, World

ROOT = pathlib.Path(policies.__file__).parents[2]
ROWS = [route for route in ROUTES if not table.is_gone(route)]
ASKED = frozenset(table.key(route) for route in ROWS)
# Which callers a default lets through, if the thing asked for is of their project.
PASS = {
    'ADMIN': {'admin', 'foreign admin'},
    'MGR': {'admin', 'foreign admin', 'manager', 'stranger'},
    'MEMBER': {'admin', 'foreign admin', 'manager', 'member', 'stranger'},
    'READER': {'admin', 'foreign admin', 'manager', 'member', 'reader', 'stranger'},
    'SERVICE': {'admin', 'foreign admin', 'service'},
    'ANY': set(CALLERS),
    'NOBODY': set(),
    'ADMIN or same user': set(CALLERS),
}
OUTSIDERS = {'stranger', 'service'}
# The paths of the field's table, where it spells them otherwise than its routes are.
SPELT = {
    '/os-hypervisors/details': '/os-hypervisors/detail',
    **{f'/os-services/{verb}': '/os-services/{}' for verb in ('enable', 'disable', 'disable-log-reason', 'force-down')},
    '/flavors/{}/os-extra_specs/': '/flavors/{}/os-extra_specs',
}


def operation(method, path, action=None):
    """An operation as the table writes it, its variables without names."""
    path = re.sub(r'\{[^}]*\}', '{}', path)
    return f'{method} {SPELT.get(path, path)}' + (f' ({action})' if action else '')


def _guards():
    found = {}
    for name, (_, operations) in RULES.items():
        for text in operations:
            match = re.fullmatch(r'(\S+) (\S+)(?: \((\S+)\))?', text)
            found.setdefault(operation(*match.groups()), []).append(name)
    return found


GUARDS = _guards()


def guards(route):
    """The rules that the field asks at this route."""
    return GUARDS.get(operation(route.method, table.twin(route.path), route.action), [])


@pytest.mark.parametrize('route', ROWS, ids=table.key)
def test_the_rule_is_the_fields(route):
    assert route.policy is ANYBODY or route.policy in guards(route)


def expected(route, example, caller):
    """(status, rules that may be named) of the route's example for a caller."""
    success = example.status_at(route, route.until)
    if route.policy is ANYBODY:
        return success, ()
    rules = (route.policy, *example.needs)
    missing = [rule for rule in rules if caller not in PASS[RULES[rule][0]]]
    if caller in OUTSIDERS and route.server and not (caller == 'service' and route.for_services):
        return 404, ()
    if caller in OUTSIDERS and RULES[route.policy][0] != 'SERVICE':
        if route.owner and RULES[route.policy][0] != 'ANY':
            return 403, rules
        if example.foreign:
            return (403, missing) if missing else (example.foreign, ())
    return (403, missing) if missing else (success, ())


@pytest.mark.parametrize('route', ROWS, ids=table.key)
def test_who_may(world, route, monkeypatch):
    example, version, asked = examples.of(route), route.until, set()
    allows = policies.Policy.allows

    def noted(self, ctxt, rule, target=None):
        asked.add(rule)
        return allows(self, ctxt, rule, target)

    monkeypatch.setattr(policies.Policy, 'allows', noted)
    # The second name of a path has its first name's rule: whether that is asked shows with two of them.
    for caller in CALLERS if table.twin(route.path) == route.path else ('nothing', 'stranger'):
        examples.ready(world, example)
        world.mark()
        response = examples.ask(world, route, version, example=example, role=caller, is_ready=True)
        counts.REQUESTS['who may'] += 1
        status, rules = expected(route, example, caller)
        what = f'{table.key(route)} by {caller}: {response.status} {response.text}'
        assert response.status_int == status, what
        if rules:
            message = response.json['forbidden']['message']
            assert message in {f"Policy doesn't allow {rule} to be performed." for rule in rules}, what
        if status in (403, 404):
            assert world.changed() == set(), f'{what}: {world.difference()}'
        world.restore()
    # Documents about policies are made of these.
    assert {rule for rule in asked if ':' in rule} <= {route.policy, *route.asks}


def test_nothing_is_told_without_a_token(world):
    for route in ROUTES:
        path = re.sub(r'\{\w+\}', 'x', world.fill(route.path))
        body = {route.action: None} if route.action else None
        response = world.request(route.method, path, body, headers=dict.fromkeys(('X-User-Id', 'X-Auth-Token')))
        counts.REQUESTS['who may'] += 1
        assert (response.status_int, list(response.json)) == (401, ['unauthorized']), table.key(route)
    assert world.changed() == set()


# --- other projects' things by detours -------------------------------------------------------------------------------
def ids(world, path, role='member', **kwargs):
    """The ids that a list shows."""
    (rows,) = [rows for name, rows in world.ok('GET', path, role=role, **kwargs).items() if not name.endswith('links')]
    return {row['id'] for row in rows}


@pytest.mark.parametrize(
    'query',
    [
        '',
        'tenant_id={other_project}',
        'project_id={other_project}',
        'uuid={other_server}',
        'name=other',
        'ip=10',
        'tags=theirs',
        'all_tenants=0&tenant_id={other_project}',
        'user_id=' + OTHER_USER,
        'host=gpu1',
        'deleted=true',
        'changes-since=2000-01-01T00:00:00Z',
        'sort_key=uuid&sort_dir=asc',
        'limit=1000',
    ],
)
@pytest.mark.parametrize('path', ['/servers', '/servers/detail'])
def test_lists_show_ones_own_servers_whatever_is_asked(world, path, query):
    for version in (1, 74, 104):
        seen = ids(world, f'{path}?{query}', version=version)
        assert world.names['other_server'] not in seen
        if not query:
            assert seen == {world.names[name] for name in ('server', 'second', 'waiting')}
        counts.REQUESTS['who may'] += 1


def _no(rule):
    return f"Policy doesn't allow os_compute_api:{rule} to be performed."


OTHER_MOVE = '00000001-dddd-4eee-8fff-000000000000'
DETOURS = [
    # (path, status, what the answer says)
    ('/servers?all_tenants=1', 403, _no('servers:index:get_all_tenants')),
    ('/servers?all_tenants', 403, _no('servers:index:get_all_tenants')),
    ('/servers/detail?all_tenants=1', 403, _no('servers:detail:get_all_tenants')),
    ('/servers?marker={other_server}', 400, 'marker [{other_server}] not found'),
    ('/servers/detail?marker={other_server}', 400, 'marker [{other_server}] not found'),
    ('/limits?tenant_id={other_project}', 403, _no('limits:other_project')),
    ('/os-quota-sets/{other_project}', 403, _no('os-quota-sets:show')),
    ('/os-quota-sets/{other_project}?user_id={user}', 403, _no('os-quota-sets:show')),
    ('/os-quota-sets/{other_project}/detail', 403, _no('os-quota-sets:detail')),
    ('/os-simple-tenant-usage/{other_project}', 403, _no('os-simple-tenant-usage:show')),
    ('/os-keypairs?user_id={other_user}', 403, _no('os-keypairs:index')),
    ('/os-keypairs/mykey?user_id={other_user}', 403, _no('os-keypairs:show')),
    ('/os-keypairs/theirs', 404, 'Keypair theirs not found for user {user}'),
    ('/os-keypairs?marker=theirs', 400, 'Marker theirs could not be found.'),
    ('/flavors/private', 404, 'Flavor private could not be found.'),
    ('/flavors?marker=private', 400, 'marker [private] not found'),
    ('/os-migrations?project_id={other_project}', 403, _no('os-migrations:index:all_projects')),
    ('/os-migrations', 403, _no('os-migrations:index:all_projects')),
    (f'/os-migrations?marker={OTHER_MOVE}&project_id={PROJECT}', 400, f'Marker {OTHER_MOVE} could not be found.'),
    (f'/os-simple-tenant-usage/{PROJECT}?marker={{other_server}}', 400, 'Marker {other_server} could not be found.'),
]


@pytest.mark.parametrize(('path', 'status', 'message'), DETOURS, ids=[row[0] for row in DETOURS])
def test_detours_to_other_projects_end(world, path, status, message):
    assert world.fault('GET', path, role='manager') == (status, world.fill(message))
    counts.REQUESTS['who may'] += 1


@pytest.mark.parametrize(
    ('path', 'role'),
    [
        (f'/os-migrations?project_id={PROJECT}&marker=', 'manager'),
        (f'/os-simple-tenant-usage/{PROJECT}?marker=', 'reader'),
    ],
)
def test_a_marker_of_another_project_looks_like_an_unknown_one(world, path, role):
    own, other = (
        ('{server}', '{other_server}') if 'usage' in path else (OTHER_MOVE.replace('00000001', '00000000'), OTHER_MOVE)
    )
    assert world.request('GET', path + own, role=role).status_int == 200
    assert world.request('GET', path + other, role='admin').status_int == (400 if 'usage' in path else 200)
    for marker in (other, UNKNOWN):
        assert world.fault('GET', path + marker, role=role) == (400, world.fill(f'Marker {marker} could not be found.'))
        counts.REQUESTS['who may'] += 1


def test_moves_of_other_projects_are_not_seen(world):
    # What was made ready and refused then is put back like what changed.
    world.moving()
    world.mark()
    world.restore()
    own = '/os-migrations?project_id={project}'
    assert ids(world, own, role='manager') == {1}
    assert ids(world, own + '&instance_uuid={other_server}', role='manager') == set()


def test_private_flavors_of_others_can_not_be_used(world):
    body = {'server': {'name': 's', 'flavorRef': 'private', 'imageRef': '{image}', 'networks': 'none'}}
    for role in ('member', 'manager'):
        assert world.fault('POST', '/servers', world.fill(body), role=role) == (
            400,
            'Flavor private could not be found.',
        )
        assert world.fault('POST', '/servers/{server}/action', {'resize': {'flavorRef': 'private'}}, role=role) == (
            400,
            'Flavor private could not be found.',
        )
    assert world.request('POST', '/servers', world.fill(body), role='stranger').status_int == 202
    assert 'private' in ids(world, '/flavors', role='stranger')
    assert 'private' not in ids(world, '/flavors', role='member')


def test_key_pairs_of_others_are_not_found(world):
    body = {'server': {'name': 's', 'flavorRef': '1', 'imageRef': '{image}', 'networks': 'none', 'key_name': 'theirs'}}
    assert world.fault('POST', '/servers', world.fill(body), role='member')[0] == 400
    assert world.fault('DELETE', '/os-keypairs/theirs', role='member')[0] == 404
    made = {'keypair': {'name': 'x', 'public_key': KEY, 'user_id': world.names['other_user']}}
    assert world.fault('POST', '/os-keypairs', made, role='member') == (403, _no('os-keypairs:create'))
    assert world.fault('DELETE', '/os-keypairs/theirs?user_id={other_user}', role='member') == (
        403,
        _no('os-keypairs:delete'),
    )
    assert world.request('GET', '/os-keypairs/theirs?user_id={other_user}').status_int == 200


def test_who_may_unlock(world):
    """A lock of somebody of the project is every member's to end, that of an administrator elsewhere is not."""
    path = world.fill('/servers/{server}/action')

    def act(key, role):
        return world.request('POST', path, {key: None}, role=role).status_int

    assert (act('lock', 'member'), act('unlock', 'member')) == (202, 202)
    assert (act('lock', 'foreign admin'), act('unlock', 'member'), act('unlock', 'manager')) == (202, 403, 403)
    assert world.fault('POST', path, {'os-stop': None}, role='member')[0] == 409
    assert (act('unlock', 'admin'), act('os-stop', 'member')) == (202, 202)


@pytest.mark.parametrize(
    ('values', 'rule'),
    [
        ({'availability_zone': 'nova:gpu1'}, 'os_compute_api:servers:create:forced_host'),
        ({'availability_zone': 'nova::gpu1'}, 'os_compute_api:servers:create:forced_host'),
        ({'host': 'gpu1'}, 'compute:servers:create:requested_destination'),
        ({'hypervisor_hostname': 'gpu1'}, 'compute:servers:create:requested_destination'),
        ({'flavorRef': 'nodisk'}, None),
    ],
)
def test_parts_of_a_create_have_rules_of_their_own(world, values, rule):
    """A create that names a host, or whose flavor has no disk, is refused with 403 to everybody but administrators.
    The refusal names the policy rule."""
    world.flavor(id='nodisk', disk=0)
    body = world.fill({'server': {'name': 's', 'flavorRef': '1', 'imageRef': '{image}', 'networks': 'none', **values}})
    for role in ('member', 'manager', 'stranger'):
        code, message = world.fault('POST', '/servers', body, role=role)
        assert code == 403
        assert rule is None or message == f"Policy doesn't allow {rule} to be performed."
    assert world.request('POST', '/servers', body).status_int == 202


def test_the_project_of_the_url_is_that_of_the_token(world):
    assert world.request('GET', f'/{PROJECT}/servers', role='member').status_int == 200
    code, message = world.fault('GET', f'/{OTHER_PROJECT}/servers', role='member')
    assert code == 400 and message.startswith('Malformed request URL')


# --- the operator's own rules ----------------------------------------------------------------------------------------
@pytest.fixture
def ruled(tmp_path, templates, monkeypatch):
    """A world with a policy file that is looked at with each request, and what writes that file."""
    monkeypatch.setattr(policies, 'BETWEEN_LOOKS', 0.0)
    path = tmp_path / 'policy.yaml'
    stamp = iter(range(1, 100))

    def write(text):
        path.write_text(text)
        # Files are told apart by their time: tests write faster than clocks tick.
        at = path.stat().st_mtime + next(stamp)
        os.utime(path, (at, at))

    write('{}\n')
    (tmp_path / 'databases').mkdir()
    made = World(tmp_path / 'databases', templates, oslo_policy__policy_file=str(path))
    yield made, write
    made.close()


def test_a_changed_policy_file_holds_without_a_restart(ruled):
    world, write = ruled
    assert world.request('GET', '/servers', role='member').status_int == 200
    write('"os_compute_api:servers:index": "!"\n')
    assert world.fault('GET', '/servers', role='member') == (
        403,
        "Policy doesn't allow os_compute_api:servers:index to be performed.",
    )
    assert world.request('GET', '/servers/detail', role='member').status_int == 200
    write('"os_compute_api:os-services:list": "role:auditor or rule:project_reader_api"\n')
    assert world.request('GET', '/servers', role='member').status_int == 200
    assert world.request('GET', '/os-services', role='reader').status_int == 200
    assert world.request('GET', '/os-services', role='nothing').status_int == 403
    write('"context_is_admin": "role:manager"\n')
    assert world.request('GET', '/servers?all_tenants=1', role='manager').status_int == 200
    write('{}\n')
    assert world.request('GET', '/servers?all_tenants=1', role='manager').status_int == 403


# --- rules in the code -----------------------------------------------------------------------------------------------
def names_in_code():
    """The rules that functions of the API read, by the names of their constants."""
    found = set()
    for path in api_files():
        module = importlib.import_module('.'.join(path.relative_to(ROOT).with_suffix('').parts))
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                values = [value_of(node, vars(module)) for node in ast.walk(function)]
                found |= {value for value in values if isinstance(value, str) and value in RULES}
    return found


def api_files():
    """The files of the API's nouns and use cases."""
    api = pathlib.Path(policies.__file__).parent
    return [
        path
        for folder in ('v2', 'services')
        for path in sorted((api / folder).rglob('*.py'))
        if path.name != '__init__.py'
    ]


def value_of(node, names):
    """What a name of a module is, or one of a module that it imports."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = names.get(node.value.id)
        return vars(module).get(node.attr) if isinstance(module, ModuleType) else None
    return None


def test_the_routes_say_what_their_handlers_ask():
    """The other rules are those of rows: these are asked before a handler runs."""
    asked = {rule for route in ROUTES for rule in route.asks}
    assert asked <= names_in_code()
    assert names_in_code() <= asked | {route.policy for route in ROUTES}
