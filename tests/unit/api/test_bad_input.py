"""No request, however malformed, is answered with 500; what a schema refuses is told with the field's words."""

from __future__ import annotations

import copy
import json

import pytest

from kilonova.api import versions
from kilonova.api.routes import ROUTES
from kilonova.api.schemas.base import Obj, Windows, at
from tests.api.mutants import validator
from tests.fixtures.cinder import FakeCinder
from tests.fixtures.neutron import FakeNeutron
from tests.unit.api.conftest import IMAGE, PROJECT

UUID = '11111111-2222-3333-4444-555555555555'
# One good body for each route that takes one; a route without one here fails the first test.
BODIES = {
    'POST /servers': {
        'server': {
            'name': 's',
            'flavorRef': '$flavor',
            'imageRef': IMAGE,
            'networks': 'none',
            'adminPass': 'x',
            'metadata': {'a': 'b'},
            'OS-DCF:diskConfig': 'AUTO',
            'accessIPv4': '10.0.0.1',
            'accessIPv6': 'fe80::1',
            'availability_zone': 'nova',
            'block_device_mapping_v2': [
                {
                    'uuid': IMAGE,
                    'source_type': 'image',
                    'destination_type': 'local',
                    'boot_index': 0,
                    'delete_on_termination': True,
                }
            ],
            'config_drive': True,
            'min_count': 1,
            'max_count': 1,
            'return_reservation_id': False,
            'security_groups': [{'name': 'default'}],
            'user_data': 'YQ==',
            'description': 'd',
            'tags': ['t'],
            'hostname': 'host-1',
        },
        'os:scheduler_hints': {'foo': 'bar'},
    },
    'PUT /servers/{server_id}': {
        'server': {
            'name': 'n',
            'OS-DCF:diskConfig': 'MANUAL',
            'accessIPv4': '10.0.0.1',
            'accessIPv6': 'fe80::1',
            'description': 'd',
            'hostname': 'h1',
        }
    },
    'os-start': {'os-start': None},
    'os-stop': {'os-stop': None},
    'reboot': {'reboot': {'type': 'HARD'}},
    'pause': {'pause': None},
    'unpause': {'unpause': None},
    'suspend': {'suspend': None},
    'resume': {'resume': None},
    'trigger_crash_dump': {'trigger_crash_dump': None},
    'unrescue': {'unrescue': None},
    'changePassword': {'changePassword': {'adminPass': 'x'}},
    'rescue': {'rescue': {'adminPass': 'x', 'rescue_image_ref': IMAGE}},
    'evacuate': {'evacuate': {'host': 'h2', 'adminPass': 'p'}},
    'rebuild': {
        'rebuild': {
            'imageRef': IMAGE,
            'name': 'n',
            'adminPass': 'p',
            'metadata': {'a': 'b'},
            'preserve_ephemeral': True,
            'accessIPv4': '192.0.2.1',
            'accessIPv6': '2001:db8::1',
            'description': 'd',
            'user_data': 'eA==',
            'hostname': 'xy',
        }
    },
    'resize': {'resize': {'flavorRef': '$flavor'}},
    'confirmResize': {'confirmResize': None},
    'revertResize': {'revertResize': None},
    'migrate': {'migrate': {'host': 'h2'}},
    'os-resetState': {'os-resetState': {'state': 'error'}},
    'injectNetworkInfo': {'injectNetworkInfo': None},
    'lock': {'lock': {'locked_reason': 'r'}},
    'unlock': {'unlock': None},
    'os-getConsoleOutput': {'os-getConsoleOutput': {'length': 5}},
    'os-getVNCConsole': {'os-getVNCConsole': {'type': 'novnc'}},
    'os-getSPICEConsole': {'os-getSPICEConsole': {'type': 'spice-html5'}},
    'os-getSerialConsole': {'os-getSerialConsole': {'type': 'serial'}},
    'POST /servers/{server_id}/remote-consoles': {'remote_console': {'protocol': 'vnc', 'type': 'novnc'}},
    'os-migrateLive': {'os-migrateLive': {'host': 'h2', 'block_migration': 'auto'}},
    'POST /servers/{server_id}/metadata': {'metadata': {'a': 'b'}},
    'PUT /servers/{server_id}/metadata': {'metadata': {'a': 'b'}},
    'PUT /servers/{server_id}/metadata/{key}': {'meta': {'key': 'b'}},
    'POST /servers/{server_id}/os-interface': {
        'interfaceAttachment': {'net_id': UUID, 'port_id': UUID, 'fixed_ips': [{'ip_address': '10.0.0.1'}], 'tag': 't'}
    },
    'addSecurityGroup': {'addSecurityGroup': {'name': 'web'}},
    'removeSecurityGroup': {'removeSecurityGroup': {'name': 'web'}},
    'POST /servers/{server_id}/os-volume_attachments': {
        'volumeAttachment': {'volumeId': UUID, 'device': '/dev/vdb', 'tag': 't', 'delete_on_termination': True}
    },
    'PUT /servers/{server_id}/os-volume_attachments/{volume_id}': {
        'volumeAttachment': {
            'volumeId': UUID,
            'device': '/dev/vdb',
            'tag': 't',
            'delete_on_termination': True,
            'id': UUID,
            'serverId': UUID,
        }
    },
    'PUT /servers/{server_id}/tags': {'tags': ['a']},
    'PUT /servers/{server_id}/tags/{tag}': None,
    'POST /os-assisted-volume-snapshots': {
        'snapshot': {
            'volume_id': UUID,
            'create_info': {'snapshot_id': UUID, 'type': 'qcow2', 'new_file': 'f', 'id': UUID},
        }
    },
    'POST /os-server-external-events': {
        'events': [{'name': 'network-changed', 'server_uuid': UUID, 'status': 'completed', 'tag': 't'}]
    },
    'POST /flavors': {
        'flavor': {
            'name': 'n',
            'ram': 1,
            'vcpus': 1,
            'disk': 1,
            'id': 'i',
            'swap': 1,
            'OS-FLV-EXT-DATA:ephemeral': 1,
            'os-flavor-access:is_public': True,
            'description': 'd',
        }
    },
    'PUT /flavors/{flavor_id}': {'flavor': {'description': 'd'}},
    'POST /flavors/{flavor_id}/os-extra_specs': {'extra_specs': {'a:b': 'c', 'hw:numa_nodes': '1'}},
    'PUT /flavors/{flavor_id}/os-extra_specs/{key}': {'key': 'v'},
    'force_complete': {'force_complete': None},
    'addTenantAccess': {'addTenantAccess': {'tenant': 'p2'}},
    'removeTenantAccess': {'removeTenantAccess': {'tenant': 'p2'}},
    'PUT /os-services/enable': {'host': 'h1', 'binary': 'nova-compute'},
    'PUT /os-services/disable': {'host': 'h1', 'binary': 'nova-compute'},
    'PUT /os-services/disable-log-reason': {'host': 'h1', 'binary': 'nova-compute', 'disabled_reason': 'r'},
    'PUT /os-services/force-down': {'host': 'h1', 'binary': 'nova-compute', 'forced_down': True},
    'PUT /os-services/{service_id}': {'status': 'disabled', 'disabled_reason': 'r', 'forced_down': False},
    'POST /os-aggregates': {'aggregate': {'name': 'a', 'availability_zone': 'z'}},
    'PUT /os-aggregates/{aggregate_id}': {'aggregate': {'name': 'a', 'availability_zone': 'z'}},
    'add_host': {'add_host': {'host': 'h1'}},
    'remove_host': {'remove_host': {'host': 'h1'}},
    'set_metadata': {'set_metadata': {'metadata': {'availability_zone': 'z', 'key': 'v'}}},
    'POST /os-server-groups': {
        'server_group': {'name': 'g', 'policy': 'anti-affinity', 'rules': {'max_server_per_host': 1}}
    },
    'POST /images/{image_id}/metadata': {'metadata': {'key': 'v'}},
    'PUT /images/{image_id}/metadata': {'metadata': {'key': 'v'}},
    'PUT /images/{image_id}/metadata/{key}': {'meta': {'key': 'v'}},
    'PUT /os-hosts/{host_name}': {'status': 'disable'},
    'createImage': {'createImage': {'name': 'n', 'metadata': {'key': 'v'}}},
    'restore': {'restore': None},
    'forceDelete': {'forceDelete': None},
    'shelve': {'shelve': None},
    'createBackup': {'createBackup': {'name': 'n', 'backup_type': 'daily', 'rotation': 1, 'metadata': {'key': 'v'}}},
    'shelveOffload': {'shelveOffload': None},
    'unshelve': {'unshelve': {'availability_zone': 'z', 'host': 'h1'}},
    'POST /os-keypairs': {'keypair': {'name': 'k', 'type': 'ssh', 'user_id': 'bob', 'public_key': 'ssh-ed25519 AAAA'}},
    'PUT /os-quota-sets/{tenant_id}': {
        'quota_set': {
            'instances': 1,
            'cores': 1,
            'ram': 1,
            'key_pairs': 1,
            'metadata_items': 1,
            'server_groups': 1,
            'server_group_members': 1,
            'force': True,
        }
    },
    'PUT /os-quota-class-sets/{quota_class}': {
        'quota_class_set': {
            'instances': 1,
            'cores': 1,
            'ram': 1,
            'key_pairs': 1,
            'metadata_items': 1,
            'server_groups': 1,
            'server_group_members': 1,
        }
    },
    'POST /os-volumes': {
        'volume': {
            'size': 1,
            'display_name': 'n',
            'display_description': 'd',
            'volume_type': 't',
            'availability_zone': 'z',
            'metadata': {'a': 'b'},
            'snapshot_id': None,
        }
    },
    'POST /os-snapshots': {
        'snapshot': {'volume_id': '$volume', 'display_name': 'n', 'display_description': 'd', 'force': True}
    },
    'POST /os-security-groups': {'security_group': {'name': 'n', 'description': 'd'}},
    'PUT /os-security-groups/{security_group_id}': {'security_group': {'name': 'n', 'description': 'd'}},
    'POST /os-security-group-rules': {
        'security_group_rule': {
            'parent_group_id': UUID,
            'group_id': None,
            'cidr': '10.0.0.0/8',
            'ip_protocol': 'tcp',
            'from_port': 1,
            'to_port': '2',
        }
    },
    'POST /os-floating-ips': {'pool': 'public'},
    'addFloatingIp': {'addFloatingIp': {'address': '203.0.113.2', 'fixed_address': '10.2.0.2'}},
    'removeFloatingIp': {'removeFloatingIp': {'address': '203.0.113.2'}},
    'addFixedIp': {'addFixedIp': {'networkId': '$network'}},
    'removeFixedIp': {'removeFixedIp': {'address': '10.2.0.2'}},
}
# Nouns that other services have, where they are there.
OF_OTHERS = ('/os-volumes', '/os-snapshots', '/os-security-group', '/os-floating-ip', 'FloatingIp', 'FixedIp')
WRONG = (
    None,
    True,
    -1,
    0,
    1.5,
    2**70,
    1e308,
    '',
    ' ',
    'x' * 256,
    'x' * 70000,
    'é',
    '\n',
    '\x07',
    '\x00',
    '\ud800',
    '1\n',
    '99999999999999999999',
    [],
    [None],
    [[]],
    ['x'],
    {},
    {'x': None},
    {'x': 'y'},
    [{}],
    [{'x': 'y'}],
    '$(x)',
    "';--",
    '%s%n',
    '0x10',
    'NaN',
    '१',
)


def key(route):
    return route.action or f'{route.method} {route.path}'


# The second name of servers leads to the same handlers and schemas.
WITH_BODY = [
    route for route in ROUTES if route.body is not None and '/os-volumes_boot' not in route.path and route.status < 400
]


def test_every_body_is_walked():
    assert {key(route) for route in WITH_BODY} == set(BODIES)


def mutants(body):
    """(what, body) with each place of ``body`` missing, joined by a stranger, or replaced by each wrong value."""

    def places(value, path=()):
        yield path
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, item in items:
            yield from places(item, (*path, name))

    def edit(path, change):
        made = copy.deepcopy({'root': body})
        holder, name = made, 'root'
        for step in path:
            holder, name = holder[name], step
        change(holder, name)
        return made['root']

    for path in places(body):
        where = '/'.join(map(str, path))
        if path:
            yield f'{where} missing', edit(path, lambda holder, name: holder.pop(name))
        for wrong in WRONG:
            yield (
                f'{where} = {wrong!r}'[:80],
                edit(path, lambda holder, name, wrong=wrong: holder.__setitem__(name, wrong)),
            )
        if isinstance(edit(path, lambda holder, name: None), dict):
            yield (
                f'{where} + stranger',
                edit(
                    path, lambda holder, name: holder[name].update(nosuch=1) if isinstance(holder[name], dict) else None
                ),
            )


@pytest.mark.parametrize('route', WITH_BODY, ids=key)
def test_no_body_that_a_schema_takes_is_answered_with_500(make_site, route):
    others = {}
    if any(text in key(route) for text in OF_OTHERS):
        cinder, neutron = FakeCinder(), FakeNeutron(hosts={'h1'})
        cinder.users = neutron.users = {f'admin:{PROJECT}': None}
        neutron.add_network('public', 'p9', cidr='203.0.113.0/29', shared=True, **{'router:external': True})
        names = {
            '$volume': cinder.add_volume(PROJECT),
            '$network': neutron.add_network('private', PROJECT, cidr='10.2.0.0/29'),
        }
        others = {'cinder': cinder, 'neutron': neutron}
    else:
        names = {}
    site = make_site(quota__instances=-1, quota__cores=-1, quota__ram=-1, **others)
    names['$flavor'] = flavor = site.flavor(id='good', **{'os-flavor-access:is_public': False})
    text = json.dumps(BODIES[key(route)])
    for name, value in names.items():
        text = text.replace(name, value)
    good = json.loads(text)
    server = site.server(site.cell1, flavor=flavor, user='admin')
    path = (
        route.path.replace('{server_id}', server)
        .replace('{flavor_id}', flavor)
        .replace('{key}', 'key')
        .replace('{security_group_id}', UUID)
        .replace('{service_id}', UUID)
        .replace('{aggregate_id}', '1')
    )
    if 'os-aggregates/' in path:
        site.ok('POST', '/os-aggregates', {'aggregate': {'name': 'first'}})
    version, judge = versions.text(route.until), validator(at(route.body, route.until))
    for what, body in mutants(good):
        # What the schema refuses tests/api asks for, and what doesn't get as far as the schema.
        if any(text in json.dumps(body) for text in ('\\u0000', '\\ud800')) or not judge.is_valid(body):
            continue
        response = site.request(route.method, path, body, version=version)
        assert response.status_int < 500, f'{what}: {response.text}'
        if response.status_int >= 400:
            assert response.content_type == 'application/json', what


def walk(schema, version):
    """Every plain schema of a property: (names, schema)."""
    if isinstance(schema, Obj):
        for prop in schema.props:
            if prop.holds(version):
                yield prop
                yield from walk(prop.schema, version)
    elif isinstance(schema, Windows):
        for window in schema.windows:
            if window.since <= version <= window.until:
                yield from walk(window.schema, version)


def test_the_good_bodies_name_every_property_that_can_be_asked_for_here():
    """Properties of the newest version that no good body names are those that this cloud refuses or that exclude
    others."""
    refused = {
        'personality',
        'block_device_mapping',
        'key_name',
        'trusted_image_certificates',
        'host',
        'hypervisor_hostname',
        'pinned_availability_zone',
        'OS-SCH-HNT:scheduler_hints',
        'maintenance_mode',
    }
    for route in WITH_BODY:
        named = json.dumps(BODIES[key(route)])
        hints = {
            'group',
            'different_host',
            'same_host',
            'query',
            'target_cell',
            'different_cell',
            'build_near_host_ip',
            'cidr',
        }
        for prop in walk(route.body, route.until):
            assert prop.name in refused | hints or f'"{prop.name}"' in named or prop.name == 'OS-DCF:diskConfig', (
                key(route),
                prop.name,
            )


MALFORMED = [
    b'',
    b'{',
    b'[]',
    b'null',
    b'"x"',
    b'1',
    b'{"server": ' + b'[' * 50000 + b']' * 50000 + b'}',
    b'\xff\xfe',
    b'{"flavor": {"name": "\xed\xa0\x80"}}',
    b'{"flavor": NaN}',
    b'{"flavor": 1e999}',
    b'{"flavor": "\x00"}',
    b'{"flavor": ' + b'9' * 5000 + b'}',
    b'{"flavor": {"name": "\\u0000"}}',
    b'{"flavor": {"name": "\\ud800"}}',
]


def test_malformed_json(site):
    for raw in MALFORMED:
        assert site.fault('POST', '/flavors', raw=raw)[0] == 400, raw[:80]
        assert site.fault('POST', '/servers/x/action', raw=raw)[0] in (400, 404), raw[:80]


def test_backslashes_are_no_control_characters(site):
    body = {'flavor': {'name': 'a\\u0000b', 'ram': 1, 'vcpus': 1, 'disk': 0}}
    assert site.ok('POST', '/flavors', raw=json.dumps(body).encode())['flavor']['name'] == 'a\\u0000b'


def test_content_types(site):
    body = json.dumps({'flavor': {'name': 'a', 'ram': 1, 'vcpus': 1, 'disk': 0}}).encode()
    assert site.fault('POST', '/flavors', raw=body, headers={'Content-Type': 'application/xml'})[0] == 415
    # text/plain is what clients send when they say nothing: there is no body then.
    assert site.fault('POST', '/flavors', raw=body, headers={'Content-Type': 'text/plain'})[0] == 400
    media = 'application/vnd.openstack.compute+json'
    assert site.request('POST', '/flavors', raw=body, headers={'Content-Type': media}).status_int == 200


def test_a_body_that_is_too_large(site):
    raw = json.dumps({'flavor': {'name': 'x' * 200000}}).encode()
    response = site.request('POST', '/flavors', raw=raw)
    assert response.status_int == 413 and response.json['overLimit']['code'] == 413


MALFORMED_URLS = [
    '/servers/%ff',
    '/servers/%00',
    '/flavors/%ff%fe',
    '/servers/' + 'x' * 5000,
    '/flavors/%2e%2e',
    '//servers',
    '/servers?name=%ff',
    '/servers?limit=%00',
    '/servers?%ff=1',
    '/servers?name=%5B',
    '/servers?name=(?P<n',
    '/servers?name=' + '(' * 200,
    '/flavors?name=%5B',
    '/servers/x/os-instance-actions/%ff',
]


def test_malformed_urls(site):
    for path in MALFORMED_URLS:
        response = site.request('GET', path)
        assert response.status_int in (400, 404), path[:80]
        # Where no row matches, the page of the library below is the answer.
        assert response.content_type in ('application/json', 'text/plain'), path[:80]


# '/servers' and '/servers/detail' share their schema: the first gets the short walk.
WRONG_TEXTS = [
    '',
    ' ',
    'x',
    '-1',
    '0',
    '1.5',
    '9' * 30,
    'true',
    'None',
    'x' * 300,
    '%F0%9F%92%A9',
    '2026-11-21',
    '[',
    '2026-11-21T10:00:00Z',
    '0001-01-01T00:00:00-23:00',
    '9999-12-31T23:59:59-23:00',
    'a,b',
    ',',
    UUID,
    '%0A',
]
QUERIES = [route for route in ROUTES if route.query.props and '/os-volumes_boot' not in route.path]


@pytest.mark.parametrize('route', QUERIES, ids=lambda route: route.path)
def test_no_query_is_answered_with_500(site, route):
    server = site.server()
    path = route.path.replace('{server_id}', server).replace('{tenant_id}', 'p1').replace('{hypervisor_id}', '1')
    wrong = WRONG_TEXTS[:6] if route.path == '/servers' else WRONG_TEXTS
    for version, values in {route.until: wrong, 1: wrong[:2], 33: wrong[3:4] + wrong[6:7], 74: wrong[1:4]}.items():
        if not route.since <= version <= route.until:
            continue
        names = {prop.name for prop in route.query.props} | {'nosuch', '_x'}
        for name in sorted(names):
            for value in values:
                response = site.request('GET', f'{path}?{name}={value}', version=versions.text(version))
                assert response.status_int < 500, f'{version} {name}={value}: {response.text}'


@pytest.mark.parametrize(
    ('request_', 'message'),
    [
        (
            ('GET', '/servers?limit=-1'),
            "Invalid input for query parameters limit. Value: -1. '-1' does not match '^[0-9]*$'",
        ),
        (('GET', '/servers?foo=1'), "'foo' does not match any of the regexes: '^_'"),
        (('GET', '/servers?marker=zzz'), 'marker [zzz] not found'),
        (('GET', '/servers?status=nosuch'), 'Invalid status value'),
        (
            ('POST', '/servers', {'server': {'name': 'x'}}),
            "Invalid input for field/attribute server. Value: {'name': 'x'}. 'flavorRef' is a required property",
        ),
    ],
)
def test_the_fields_texts(site, request_, message):
    assert site.fault(*request_) == (400, message)


def test_a_bad_sort_key_is_named_with_the_good_ones(site):
    code, message = site.fault('GET', '/servers?sort_key=foo')
    assert code == 400
    assert message.startswith("Invalid input for query parameters sort_key. Value: foo. 'foo' is not one of [")


def test_a_bad_reboot_type(site):
    code, message = site.fault('POST', f'/servers/{site.server()}/action', {'reboot': {'type': 'x'}})
    assert code == 400
    assert message == (
        "Invalid input for field/attribute type. Value: x. 'x' is not one of "
        "['HARD', 'Hard', 'hard', 'SOFT', 'Soft', 'soft']"
    )


def test_unknown_and_doubled_actions(site):
    server = site.server()
    path = f'/servers/{server}/action'
    assert site.fault('POST', path, {'nosuch': None}) == (400, 'There is no such action: nosuch')
    assert site.fault('POST', path, {'os-stop': None, 'os-start': None}) == (400, 'Malformed request body')
    assert site.fault('POST', path, {}) == (400, 'Malformed request body')


@pytest.mark.parametrize(
    ('name', 'value', 'first'),
    [
        ('description', 'd', 19),
        ('tags', ['t'], 52),
        ('trusted_image_certificates', ['c'], 63),
        ('host', 'h', 74),
        ('hypervisor_hostname', 'h', 74),
        ('hostname', 'h1', 90),
    ],
)
def test_create_refuses_properties_of_later_versions(site, name, value, first):
    """A property of a create is refused with 400 at the microversion before the one that introduced it, and
    accepted from that one on."""
    body = {'server': {'name': 's', 'flavorRef': site.flavor(), 'imageRef': IMAGE, 'networks': 'none', name: value}}
    before = dict(body['server'])
    if first - 1 < 37:
        before.pop('networks')
    code, message = site.fault('POST', '/servers', {'server': before}, version=versions.text(first - 1))
    assert code == 400 and f"'{name}' was unexpected" in message
    response = site.request(
        'POST', '/servers', body if first >= 37 else {'server': before}, version=versions.text(first)
    )
    assert response.status_int == 202 or 'was unexpected' not in response.text


def test_networks_are_required_from_2_37_on(site):
    """A create without networks is accepted at 2.36 and refused with 400 at 2.37."""
    body = {'server': {'name': 's', 'flavorRef': site.flavor(), 'imageRef': IMAGE}}
    assert site.request('POST', '/servers', body, version='2.36').status_int == 202
    code, message = site.fault('POST', '/servers', body, version='2.37')
    assert code == 400 and message.endswith("'networks' is a required property")


@pytest.mark.parametrize(
    ('version', 'accepted'),
    [('2.31', False), ('2.32', True), ('2.33', True), ('2.36', True), ('2.37', False), ('2.41', False), ('2.42', True)],
)
def test_the_windows_of_network_tags(site, version, accepted):
    """Tags of networks in a create were introduced by 2.32, removed, and introduced again by 2.42."""
    body = {
        'server': {'name': 's', 'flavorRef': site.flavor(), 'imageRef': IMAGE, 'networks': [{'uuid': UUID, 'tag': 't'}]}
    }
    _, message = site.fault('POST', '/servers', body, version=version)
    assert ("'tag' was unexpected" not in message and 'not valid under' not in message) == accepted
