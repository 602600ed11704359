"""Flavors, extra specs, access."""

from __future__ import annotations

import json

import pytest
from oslo_utils import uuidutils

from kilonova.db.queries import flavors as queries

BASE = {
    'OS-FLV-DISABLED:disabled',
    'OS-FLV-EXT-DATA:ephemeral',
    'disk',
    'id',
    'links',
    'name',
    'os-flavor-access:is_public',
    'ram',
    'rxtx_factor',
    'swap',
    'vcpus',
}


@pytest.mark.parametrize(
    ('version', 'keys'),
    [
        ('2.1', BASE),
        ('2.54', BASE),
        ('2.55', BASE | {'description'}),
        ('2.61', BASE | {'description', 'extra_specs'}),
        ('2.101', BASE | {'description', 'extra_specs'}),
        ('2.102', (BASE | {'description', 'extra_specs'}) - {'OS-FLV-DISABLED:disabled', 'rxtx_factor'}),
    ],
)
def test_keys_of_each_version(site, version, keys):
    """A shown, listed or created flavor has the keys of its microversion."""
    flavor = site.flavor()
    assert set(site.ok('GET', f'/flavors/{flavor}', version=version)['flavor']) == keys
    assert set(site.ok('GET', '/flavors/detail', version=version)['flavors'][0]) == keys
    assert (
        set(
            site.ok('POST', '/flavors', {'flavor': {'name': 'x', 'ram': 1, 'vcpus': 1, 'disk': 0}}, version=version)[
                'flavor'
            ]
        )
        == keys
    )


def test_the_flavor_of_the_seed(site):
    """A flavor that is created with a null id, as `openstack flavor create --id auto` sends it, gets a uuid. Its
    fields are shown as Nova shows them."""
    flavor = site.ok(
        'POST',
        '/flavors',
        {
            'flavor': {
                'name': 'tmp1',
                'ram': 32768,
                'disk': 16,
                'vcpus': 8,
                'id': None,
                'swap': 0,
                'OS-FLV-EXT-DATA:ephemeral': 0,
                'os-flavor-access:is_public': True,
                'rxtx_factor': 1.0,
            }
        },
        version='2.61',
    )['flavor']
    assert uuidutils.is_uuid_like(flavor['id'])
    assert (flavor['swap'], flavor['rxtx_factor'], flavor['os-flavor-access:is_public']) == ('', 1.0, True)
    assert (flavor['OS-FLV-DISABLED:disabled'], flavor['OS-FLV-EXT-DATA:ephemeral'], flavor['disk']) == (False, 0, 16)
    assert (flavor['ram'], flavor['vcpus'], flavor['extra_specs']) == (32768, 8, {})
    assert site.ok('GET', f'/flavors/{flavor["id"]}', version='2.61') == {'flavor': flavor}
    literal = site.ok('POST', '/flavors', {'flavor': {'name': 'tmp2', 'ram': 1, 'disk': 0, 'vcpus': 1, 'id': 'auto'}})
    assert literal['flavor']['id'] == 'auto'
    numbers = site.ok(
        'POST',
        '/flavors',
        {
            'flavor': {
                'name': 'tmp3',
                'ram': '1',
                'disk': '0',
                'vcpus': '2',
                'id': 7,
                'OS-FLV-EXT-DATA:ephemeral': '3',
                'swap': '4',
            }
        },
    )
    assert (numbers['flavor']['id'], numbers['flavor']['vcpus']) == ('7', 2)
    assert (numbers['flavor']['OS-FLV-EXT-DATA:ephemeral'], numbers['flavor']['swap']) == (3, 4)


def test_swap_is_a_number_from_2_75_on(site):
    flavor = site.flavor(swap=0)
    assert site.ok('GET', f'/flavors/{flavor}', version='2.74')['flavor']['swap'] == ''
    assert site.ok('GET', f'/flavors/{flavor}', version='2.75')['flavor']['swap'] == 0


def test_names_and_ids_are_unique(site):
    site.flavor(name='a', id='i')
    assert site.fault('POST', '/flavors', {'flavor': {'name': 'a', 'ram': 1, 'vcpus': 1, 'disk': 0}}) == (
        409,
        'Flavor with name a already exists.',
    )
    assert site.fault('POST', '/flavors', {'flavor': {'name': 'b', 'ram': 1, 'vcpus': 1, 'disk': 0, 'id': 'i'}}) == (
        409,
        'Flavor with ID i already exists.',
    )


def test_description(site):
    flavor = site.flavor(description='d')
    assert site.ok('PUT', f'/flavors/{flavor}', {'flavor': {'description': None}})['flavor']['description'] is None
    assert site.fault('PUT', '/flavors/nosuch', {'flavor': {'description': 'x'}}) == (
        404,
        'Flavor nosuch could not be found.',
    )
    # MySQL's column holds 65535 bytes.
    raw = json.dumps({'flavor': {'description': 'é' * 40000}}, ensure_ascii=False).encode()
    assert site.fault('PUT', f'/flavors/{flavor}', raw=raw)[0] == 400


def test_delete(site):
    flavor = site.flavor({'a:b': 'c'})
    server = site.server(flavor=flavor)
    assert site.request('DELETE', f'/flavors/{flavor}').status_int == 202
    assert site.fault('GET', f'/flavors/{flavor}') == (404, f'Flavor {flavor} could not be found.')
    assert site.fault('DELETE', f'/flavors/{flavor}')[0] == 404
    shown = site.ok('GET', f'/servers/{server}')['server']['flavor']
    assert shown['extra_specs'] == {'a:b': 'c'}


def names(site, query='', **kwargs):
    return [flavor['name'] for flavor in site.ok('GET', f'/flavors{query}', **kwargs)['flavors']]


def test_lists(site):
    site.flavor(name='small', id='3', ram=512, disk=1)
    site.flavor(name='large', id='1', ram=4096, disk=40)
    site.flavor(name='secret', id='2', ram=1024, **{'os-flavor-access:is_public': False})
    assert names(site) == ['large', 'small']
    assert names(site, user='bob') == ['large', 'small']
    assert names(site, '?is_public=None') == ['large', 'secret', 'small']
    assert names(site, '?is_public=false') == ['secret']
    assert names(site, '?is_public=false', user='bob') == ['large', 'small']
    assert names(site, '?minRam=1024') == ['large'] and names(site, '?minDisk=2') == ['large']
    assert names(site, '?sort_key=memory_mb&sort_dir=asc') == ['small', 'large']
    assert names(site, '?name=^s') == ['small']
    assert names(site, '?name=^s', version='2.74') == ['large', 'small']
    site.ok('POST', '/flavors/2/action', {'addTenantAccess': {'tenant': 'p1'}})
    assert names(site, user='bob') == ['large', 'secret', 'small']
    assert set(site.ok('GET', '/flavors')['flavors'][0]) == {'id', 'name', 'links', 'description'}
    assert set(site.ok('GET', '/flavors', version='2.54')['flavors'][0]) == {'id', 'name', 'links'}


def test_disabled_flavors_are_listed_for_administrators_alone(site):
    site.flavor(name='old', id='1')
    site.flavor(name='new', id='2')
    table = queries.flavors
    with site.databases.api().write() as conn:
        conn.execute(table.update().where(table.c.flavorid == '1').values(disabled=True))
    assert names(site) == ['old', 'new'] and names(site, user='bob') == ['new']
    assert site.ok('GET', '/flavors/1', version='2.101', user='bob')['flavor']['OS-FLV-DISABLED:disabled'] is True


@pytest.mark.parametrize(
    'query',
    [
        'minRam=x',
        'minDisk=-1',
        'is_public=maybe',
        'limit=-1',
        'sort_key=nosuch',
        'sort_dir=up',
        'marker=nosuch',
        'nosuch=1',
        'name=[',
    ],
)
def test_bad_queries(site, query):
    assert site.fault('GET', f'/flavors?{query}')[0] == 400


def test_pages(site):
    flavors = sorted(site.flavor(name=f'n{number}', swap=number % 2) for number in range(5))
    for query in ('', '&sort_key=swap&sort_dir=desc', '&sort_key=description'):
        everything = [flavor['id'] for flavor in site.ok('GET', f'/flavors?limit=9{query}')['flavors']]
        assert sorted(everything) == flavors
        paged, path = [], f'/flavors/detail?limit=2{query}'
        while path:
            answer = site.ok('GET', path)
            paged += [flavor['id'] for flavor in answer['flavors']]
            links = answer.get('flavors_links')
            path = links[0]['href'].removeprefix('http://localhost/v2.1') if links else None
        assert paged == everything


def test_statements(site, statements):
    for _ in range(3):
        site.flavor({'a:b': 'c'})
    statements.clear()
    site.ok('GET', '/flavors/detail')
    assert len(statements) == 2
    flavor = site.ok('GET', '/flavors')['flavors'][0]['id']
    statements.clear()
    site.ok('GET', f'/flavors/{flavor}')
    assert len(statements) == 1


# --- extra specs -----------------------------------------------------------------------------------------------------
def test_extra_specs(site):
    """Extra specs are created, shown, changed and deleted. Numbers become text. A missing key or flavor is 404."""
    flavor = site.flavor()
    path = f'/flavors/{flavor}/os-extra_specs'
    sent = {'pci_passthrough:alias': 'QuadroM4000-video:1', 'hw:numa_nodes': 2}
    assert site.ok('POST', path, {'extra_specs': sent}) == {'extra_specs': {**sent, 'hw:numa_nodes': '2'}}
    assert site.ok('POST', path, {'extra_specs': {'a b.c': 'd'}}) == {'extra_specs': {'a b.c': 'd'}}
    assert set(site.ok('GET', path)['extra_specs']) == {*sent, 'a b.c'}
    assert site.ok('PUT', f'{path}/pci_passthrough:alias', {'pci_passthrough:alias': 'x:2'}) == {
        'pci_passthrough:alias': 'x:2'
    }
    assert site.ok('GET', f'{path}/pci_passthrough:alias') == {'pci_passthrough:alias': 'x:2'}
    assert site.fault('PUT', f'{path}/x', {'y': 'z'}) == (400, 'Request body and URI mismatch')
    assert site.request('DELETE', f'{path}/hw:numa_nodes').status_int == 200
    for method in ('GET', 'DELETE'):
        assert site.fault(method, f'{path}/zzz') == (404, f'Flavor {flavor} has no extra specs with key zzz.')
    for method, body in (('POST', {'extra_specs': {}}), ('GET', None)):
        assert site.fault(method, '/flavors/nosuch/os-extra_specs', body)[0] == 404
    assert site.fault('POST', path, {'extra_specs': {'a/b': 'c'}})[0] == 400
    assert site.fault('POST', path, {'extra_specs': {'a': ['c']}})[0] == 400


@pytest.mark.parametrize('value', ['X', 'X:', 'X:a', ':1', '', 'a:1,', 'a:1,b'])
def test_malformed_aliases_are_refused_from_2_86_on(site, value):
    """A malformed pci_passthrough:alias is refused with 400 from 2.86 on, and accepted at 2.85."""
    path = f'/flavors/{site.flavor()}/os-extra_specs'
    body = {'extra_specs': {'pci_passthrough:alias': value}}
    code, message = site.fault('POST', path, body)
    assert code == 400
    assert message == (
        f"Validation failed; '{value}' is not of the format "
        r"'[^:]+:\d+(?:\s*,\s*[^:]+:\d+)*'."
    )
    assert site.request('POST', path, body, version='2.85').status_int == 200


def test_unknown_extra_specs_of_our_namespaces(site):
    path = f'/flavors/{site.flavor()}/os-extra_specs'
    assert site.fault('POST', path, {'extra_specs': {'hw:nosuch': '1'}}) == (
        400,
        "Validation failed; extra spec 'hw:nosuch' does not appear to be a valid extra spec.",
    )
    assert site.request('POST', path, {'extra_specs': {'mine:nosuch': '1', 'nosuch': '2'}}).status_int == 200


# --- access ----------------------------------------------------------------------------------------------------------
def test_access(site):
    flavor = site.flavor(**{'os-flavor-access:is_public': False})
    path = f'/flavors/{flavor}'
    assert site.ok('GET', f'{path}/os-flavor-access') == {'flavor_access': []}
    granted = {'flavor_access': [{'flavor_id': flavor, 'tenant_id': 'p2'}]}
    assert site.ok('POST', f'{path}/action', {'addTenantAccess': {'tenant': 'p2'}}) == granted
    assert site.ok('GET', f'{path}/os-flavor-access') == granted
    assert site.fault('POST', f'{path}/action', {'addTenantAccess': {'tenant': 'p2'}})[0] == 409
    assert site.fault('GET', path, user='bob')[0] == 404
    assert site.ok('GET', path, user='bob', project='p2')['flavor']['id'] == flavor
    assert site.ok('POST', f'{path}/action', {'removeTenantAccess': {'tenant': 'p2'}}) == {'flavor_access': []}
    assert site.fault('POST', f'{path}/action', {'removeTenantAccess': {'tenant': 'p2'}}) == (
        404,
        f'Flavor access not found for {flavor} / p2 combination.',
    )
    assert site.fault('POST', f'{path}/action', {'nosuch': {}}) == (400, 'There is no such action: nosuch')


def test_access_to_public_flavors(site):
    flavor = site.flavor()
    assert site.fault('GET', f'/flavors/{flavor}/os-flavor-access') == (
        404,
        'Access list not available for public flavors.',
    )
    body = {'addTenantAccess': {'tenant': 'p2'}}
    assert site.request('POST', f'/flavors/{flavor}/action', body, version='2.6').status_int == 200
    assert site.fault('POST', f'/flavors/{flavor}/action', body, version='2.7')[0] == 409


@pytest.mark.parametrize('version', ['2.1', '2.85', '2.86', 'latest'])
def test_the_width_of_addresses_is_checked_at_every_version_found_1_14(site, version):
    """No version of Nova's brings a check of these, so there is none before which they are let through."""
    flavor = site.flavor()
    path = f'/flavors/{flavor}/os-extra_specs'
    good = {'hw:maxphysaddr_mode': 'emulate', 'hw:maxphysaddr_bits': '42'}
    assert site.ok('POST', path, {'extra_specs': good}, version=version)['extra_specs'] == good
    for name, value in (
        ('hw:maxphysaddr_bits', '31'),
        ('hw:maxphysaddr_bits', '65'),
        ('hw:maxphysaddr_bits', 'wide'),
        ('hw:maxphysaddr_mode', 'wide'),
    ):
        for method, where, body in (
            ('POST', path, {'extra_specs': {name: value}}),
            ('PUT', f'{path}/{name}', {name: value}),
        ):
            response = site.request(method, where, body, version=version)
            assert response.status_int == 400 and f"'{value}'" in response.json['badRequest']['message']
    assert site.ok('GET', path)['extra_specs'] == good
