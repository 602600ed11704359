"""Version documents and microversion negotiation."""

from __future__ import annotations

import pytest

from kilonova.api import versions


def test_the_list_of_versions_needs_no_token(site):
    response = site.request('GET', '', mount='/', headers={'X-Auth-Token': ''})
    assert response.status_int == 200
    entries = {entry['id']: entry for entry in response.json['versions']}
    assert set(entries) == {'v2.0', 'v2.1'}
    assert entries['v2.0']['status'] == 'DEPRECATED' and entries['v2.0']['version'] == ''
    assert entries['v2.1'] | {'links': None} == {
        'id': 'v2.1',
        'status': 'CURRENT',
        'version': '2.104',
        'min_version': '2.1',
        'updated': '2013-07-23T11:33:21Z',
        'links': None,
    }
    assert entries['v2.1']['links'] == [{'rel': 'self', 'href': 'http://localhost/v2.1/'}]


@pytest.mark.parametrize('path', ['', '/'])
def test_the_document_of_a_version_needs_no_token(site, path):
    response = site.request('GET', path, headers={'X-Auth-Token': ''})
    document = response.json['version']
    assert document['media-types'] == [
        {'base': 'application/json', 'type': 'application/vnd.openstack.compute+json;version=2.1'}
    ]
    assert [link['rel'] for link in document['links']] == ['self', 'describedby']
    assert response.headers['OpenStack-API-Version'] == 'compute 2.1'
    assert site.request('GET', '/', mount='/v2').json['version']['id'] == 'v2.0'


def test_an_unknown_root_offers_choices(site):
    response = site.request('GET', '/servers', mount='/v9')
    assert response.status_int == 300
    assert [choice['id'] for choice in response.json['choices']] == ['v2.0', 'v2.1']
    assert response.json['choices'][1]['links'][0]['href'] == 'http://localhost/v2.1/v9/servers'


@pytest.mark.parametrize(
    ('headers', 'version'),
    [
        ({}, 1),
        ({'OpenStack-API-Version': 'compute 2.53'}, 53),
        ({'OpenStack-API-Version': 'identity 3.0, compute 2.7'}, 7),
        ({'OpenStack-API-Version': 'identity 3.0'}, 1),
        ({'OpenStack-API-Version': 'compute latest'}, 104),
        ({'X-OpenStack-Nova-API-Version': '2.10'}, 10),
        ({'OpenStack-API-Version': 'compute 2.3', 'X-OpenStack-Nova-API-Version': '2.10'}, 3),
    ],
)
def test_negotiation(headers, version):
    assert versions.negotiate(headers) == version


@pytest.mark.parametrize('text', ['abc', '2', '2.01', '02.1', '2.1.1', '2.', '-2.1', '2.１'])
def test_malformed_versions(text):
    with pytest.raises(versions.InvalidVersion) as error:
        versions.negotiate({'OpenStack-API-Version': f'compute {text}'})
    assert str(error.value) == (f'API Version String {text} is of invalid format. Must be of format MajorNum.MinorNum.')


@pytest.mark.parametrize('text', ['2.9999', '2.105', '1.1', '3.1', '2.0', '2.' + '9' * 5000])
def test_versions_out_of_range(text):
    with pytest.raises(versions.UnsupportedVersion):
        versions.negotiate({'OpenStack-API-Version': f'compute {text}'})


def test_answers_tell_their_version_faults_too(site):
    for path in ('/servers', '/servers/nosuch', '/os-hosts'):
        response = site.request('GET', path, version='2.42')
        assert response.headers['OpenStack-API-Version'] == 'compute 2.42'
        assert response.headers['X-OpenStack-Nova-API-Version'] == '2.42'
        assert response.headers['Vary'] == 'OpenStack-API-Version, X-OpenStack-Nova-API-Version'


def test_refused_versions_over_http(site):
    response = site.request('GET', '/servers', version='2.9999')
    assert response.status_int == 406
    assert response.json == {
        'computeFault': {
            'code': 406,
            'message': ('Version 2.9999 is not supported by the API. Minimum is 2.1 and maximum is 2.104.'),
        }
    }
    assert response.headers['OpenStack-API-Version'] == 'compute 2.9999'
    response = site.request('GET', '/servers', version='abc')
    assert response.status_int == 400 and 'badRequest' in response.json


def test_2_0_knows_no_microversions_and_drops_unknown_keys(site):
    response = site.request(
        'POST',
        '/flavors',
        {'flavor': {'name': 'a', 'ram': 1, 'vcpus': 1, 'disk': 0, 'x': 1}, 'y': 2},
        mount='/v2',
        version='2.104',
    )
    assert response.status_int == 200
    assert 'OpenStack-API-Version' not in response.headers
    assert 'description' not in response.json['flavor']
    assert site.fault('POST', '/flavors', {'flavor': {'name': 'b', 'ram': 1, 'vcpus': 1, 'disk': 0, 'x': 1}})[0] == 400


def test_a_route_outside_its_window_does_not_exist(site):
    flavor = site.flavor()
    body = {'flavor': {'description': 'd'}}
    assert site.request('PUT', f'/flavors/{flavor}', body, version='2.54').json == {
        'itemNotFound': {'code': 404, 'message': 'The resource could not be found.'}
    }
    assert site.ok('PUT', f'/flavors/{flavor}', body, version='2.55')['flavor']['description'] == 'd'


def test_both_request_ids_are_returned(site):
    response = site.request('GET', '/servers')
    assert response.headers['x-openstack-request-id'].startswith('req-')
    assert response.headers['x-compute-request-id'] == response.headers['x-openstack-request-id']


def test_links_follow_the_prefix_and_the_project(make_site):
    site = make_site(api__compute_link_prefix='https://cloud.example/compute')
    flavor = site.flavor()
    links = site.ok('GET', f'/flavors/{flavor}', project='abc')['flavor']['links']
    assert [link['href'] for link in links] == [
        f'https://cloud.example/compute/v2.1/flavors/{flavor}',
        f'https://cloud.example/compute/flavors/{flavor}',
    ]
    links = site.ok('GET', f'/abc/flavors/{flavor}', project='abc')['flavor']['links']
    assert links[0]['href'] == f'https://cloud.example/compute/v2.1/abc/flavors/{flavor}'
    code, message = site.fault('GET', f'/abc/flavors/{flavor}', project='abd')
    assert code == 400 and message.startswith('Malformed request URL')


@pytest.mark.parametrize('method', ['GET', 'HEAD'])
@pytest.mark.parametrize('token', ['', 'bob:abc123', 'bob:other'])
@pytest.mark.parametrize(('mount', 'version_id'), [('/v2.1', 'v2.1'), ('/v2', 'v2.0')])
@pytest.mark.parametrize('path', ['/abc123', '/abc123/', '/6f70656e-7374-6163-6b20-342065766572'])
def test_the_url_of_the_catalog_is_the_document_found_1_15(site, method, token, mount, version_id, path):
    """Clients ask the URL of the catalog, which names a project, for the versions; some before they have a token."""
    response = site.request(method, path, mount=mount, headers={'X-Auth-Token': token})
    assert response.status_int == 200
    plain = site.request(method, '/', mount=mount, headers={'X-Auth-Token': ''})
    assert response.body == plain.body and bool(response.body) == (method == 'GET')
    assert response.headers.get('OpenStack-API-Version') == (None if mount == '/v2' else 'compute 2.1')
    assert response.headers['Content-Length'] == plain.headers['Content-Length']
    if method == 'GET':
        assert response.json['version']['id'] == version_id
        assert response.json['version']['links'][0]['href'] == f'http://localhost{mount}/'


@pytest.mark.parametrize(
    ('method', 'path', 'token', 'code'),
    [
        ('POST', '/abc123', '', 401),
        ('GET', '/abc123/servers', '', 401),
        ('GET', '/servers', '', 401),
        ('GET', '/abc123/nosuch', '', 401),
        ('DELETE', '/abc123/', 'bob:abc123', 404),
        ('GET', '/nosuch', 'bob:abc123', 404),
    ],
)
def test_what_else_is_below_a_version_needs_a_token_found_1_15(site, method, path, token, code):
    assert site.request(method, path, headers={'X-Auth-Token': token}).status_int == code
