"""Images through this API, until 2.35 and 2.38."""

from __future__ import annotations

import pytest

from kilonova.clients.image import ImageRefused
from kilonova.errors import ImageNotFound, Invalid
from tests.unit.api.conftest import IMAGE

OTHER = '11111111-2222-3333-4444-555555555555'
ALTERNATE = 'application/vnd.openstack.image'


class Service:
    """What the proxies ask of the image service; ``asked`` notes with whose token."""

    def __init__(self):
        self.asked = []
        self.records = {
            IMAGE: {
                'id': IMAGE,
                'name': 'demo',
                'status': 'active',
                'size': 1000,
                'min_disk': 1,
                'min_ram': 64,
                'visibility': 'public',
                'protected': False,
                'tags': [],
                'owner': 'p1',
                'os_hidden': False,
                'created_at': '2026-11-21T10:00:00Z',
                'updated_at': '2026-11-21T10:00:01Z',
                'hw_disk_bus': 'virtio',
                'auto_disk_config': 'True',
                'instance_uuid': OTHER,
            },
            OTHER: {
                'id': OTHER,
                'name': None,
                'status': 'queued',
                'size': None,
                'min_disk': 0,
                'min_ram': 0,
                'visibility': 'private',
                'protected': True,
                'tags': [],
                'owner': 'p2',
                'created_at': '2026-11-21T09:00:00Z',
                'updated_at': '2026-11-21T09:00:00Z',
            },
        }

    def url(self, image_id, ctxt=None):
        return f'http://glance/images/{image_id}'

    def get(self, image_id, ctxt=None):
        self.asked.append(('get', ctxt.auth_token))
        if image_id not in self.records:
            raise ImageNotFound(image_id=image_id)
        return dict(self.records[image_id])

    def find(self, query, limit, ctxt=None):
        self.asked.append(('find', ctxt.auth_token, dict(query), limit))
        if query.get('marker') == 'nosuch':
            raise Invalid('no such marker')
        return [dict(record) for record in self.records.values()][:limit]

    def update(self, image_id, changes, ctxt=None):
        self.asked.append(('update', ctxt.auth_token))
        record = self.records[image_id]
        if record['protected']:
            raise ImageRefused(image_id=image_id, reason='not yours')
        for change in changes:
            key = change['path'].removeprefix('/').replace('~1', '/').replace('~0', '~')
            if change['op'] == 'remove':
                del record[key]
            else:
                record[key] = change['value']

    def delete(self, image_id, ctxt=None):
        self.asked.append(('delete', ctxt.auth_token))
        if self.records[image_id]['protected']:
            raise ImageRefused(image_id=image_id, reason='protected')
        del self.records[image_id]


@pytest.fixture
def images(site):
    service = Service()
    for name in ('url', 'get', 'find', 'update', 'delete'):
        setattr(site.images, name, getattr(service, name))
    return service


def ask(site, method, path, body=None, version='2.35'):
    return site.ok(method, path, body, version=version, user='bob')


def test_one_image(site, images):
    shown = ask(site, 'GET', f'/images/{IMAGE}')['image']
    metadata = {'hw_disk_bus': 'virtio', 'auto_disk_config': 'True', 'instance_uuid': OTHER}
    assert shown == {
        'id': IMAGE,
        'name': 'demo',
        'minRam': 64,
        'minDisk': 1,
        'metadata': metadata,
        'status': 'ACTIVE',
        'created': '2026-11-21T10:00:00Z',
        'updated': '2026-11-21T10:00:01Z',
        'progress': 100,
        'OS-EXT-IMG-SIZE:size': 1000,
        'OS-DCF:diskConfig': 'AUTO',
        'links': [
            {'rel': 'self', 'href': f'http://localhost/v2.1/images/{IMAGE}'},
            {'rel': 'bookmark', 'href': f'http://localhost/images/{IMAGE}'},
            {'rel': 'alternate', 'type': ALTERNATE, 'href': f'http://glance/images/{IMAGE}'},
        ],
        'server': {
            'id': OTHER,
            'links': [
                {'rel': 'self', 'href': f'http://localhost/v2.1/servers/{OTHER}'},
                {'rel': 'bookmark', 'href': f'http://localhost/servers/{OTHER}'},
            ],
        },
    }
    plain = ask(site, 'GET', f'/images/{OTHER}')['image']
    assert (plain['status'], plain['progress'], plain['name'], plain['metadata']) == ('SAVING', 25, None, {})
    assert not {'server', 'OS-DCF:diskConfig'} & set(plain)
    assert {token for _, token in images.asked} == {'bob:p1'}


@pytest.mark.parametrize(
    'image_id', ['nosuch', '11111111-2222-3333-4444-666666666666', '..', '%2e%2e', 'x%3Fy', 'x%2Fy']
)
def test_unknown_images(site, images, image_id):
    response = site.request('GET', f'/images/{image_id}', version='2.35')
    assert response.status_int == 404
    for method, tail in (('DELETE', ''), ('GET', '/metadata'), ('GET', '/metadata/x'), ('DELETE', '/metadata/x')):
        assert site.request(method, f'/images/{image_id}{tail}', version='2.35').status_int == 404
    assert not [call for call in images.asked if call[0] != 'get']


def test_lists_and_pages(site, images):
    first = ask(site, 'GET', '/images?limit=1')
    assert [set(image) for image in first['images']] == [{'id', 'name', 'links'}]
    assert first['images_links'] == [{'rel': 'next', 'href': f'http://localhost/v2.1/images?limit=1&marker={IMAGE}'}]
    assert ask(site, 'GET', '/images?limit=0') == {'images': []}
    whole = ask(site, 'GET', '/images/detail')
    assert [image['status'] for image in whole['images']] == ['ACTIVE', 'SAVING'] and 'images_links' not in whole
    assert site.fault('GET', '/images?marker=nosuch', version='2.35') == (400, 'no such marker')
    for query in ('limit=x', 'changes-since=x', 'minRam=x'):
        assert site.fault('GET', f'/images?{query}', version='2.35')[0] == 400


@pytest.mark.parametrize(
    ('query', 'wanted'),
    [
        ('name=a', {'name': 'a'}),
        ('type=snapshot', {'image_type': 'snapshot'}),
        ('minRam=1&minDisk=2', {'min_ram': '1', 'min_disk': '2'}),
        ('status=ACTIVE', {'status': 'active'}),
        ('status=saving', {'status': 'in:queued,saving,importing,uploading'}),
        ('property-hw_disk_bus=scsi', {'hw_disk_bus': 'scsi'}),
        ('foo=bar&limit=7', {}),
        ('server=http://x/v2.1/servers/abc', {'instance_uuid': 'abc'}),
        ('server=abc', {'instance_uuid': 'abc'}),
        ('changes-since=2026-11-21T11:00:00%2B01:00', {'updated_at': 'gte:2026-11-21T10:00:00Z'}),
    ],
)
def test_filters_in_the_words_of_the_image_service(site, images, query, wanted):
    ask(site, 'GET', f'/images?{query}')
    ((_, token, found, limit),) = images.asked
    assert (token, found, limit) == ('bob:p1', wanted, 7 if 'limit' in query else 1000)


def test_delete(site, images):
    assert site.request('DELETE', f'/images/{IMAGE}', version='2.1').status_int == 204
    assert site.fault('DELETE', f'/images/{IMAGE}', version='2.1') == (404, 'Image not found.')
    assert site.fault('DELETE', f'/images/{OTHER}', version='2.1')[0] == 403


def test_metadata(site, images):
    path = f'/images/{IMAGE}/metadata'
    before = ask(site, 'GET', path, version='2.38')['metadata']
    assert ask(site, 'POST', path, {'metadata': {'a': 'b', 'hw_disk_bus': 'scsi'}}, version='2.38') == {
        'metadata': {**before, 'a': 'b', 'hw_disk_bus': 'scsi'}
    }
    assert ask(site, 'GET', f'{path}/a') == {'meta': {'a': 'b'}}
    assert ask(site, 'PUT', f'{path}/a', {'meta': {'a': 'c'}}) == {'meta': {'a': 'c'}}
    assert images.records[IMAGE]['a'] == 'c' and images.records[IMAGE]['hw_disk_bus'] == 'scsi'
    assert site.request('DELETE', f'{path}/a', version='2.38').status_int == 204
    assert site.fault('DELETE', f'{path}/a', version='2.38') == (404, 'Metadata item was not found')
    assert site.fault('GET', f'{path}/a', version='2.38') == (404, 'Metadata item was not found')
    assert ask(site, 'PUT', path, {'metadata': {'x.y': 'z'}}) == {'metadata': {'x.y': 'z'}}
    assert ask(site, 'GET', path) == {'metadata': {'x.y': 'z'}}
    assert images.records[IMAGE]['name'] == 'demo'
    changed = len(images.asked)
    assert ask(site, 'PUT', path, {'metadata': {'x.y': 'z'}}) == {'metadata': {'x.y': 'z'}}
    assert [name for name, *_ in images.asked[changed:]] == ['get']


def test_refused_metadata(make_site):
    site = make_site(quota__metadata_items=1)
    service = Service()
    for name in ('url', 'get', 'find', 'update', 'delete'):
        setattr(site.images, name, getattr(service, name))
    path = f'/images/{OTHER}/metadata'
    assert site.fault('PUT', f'{path}/a', {'meta': {'b': 'c'}}, version='2.38') == (
        400,
        'Request body and URI mismatch',
    )
    for name in ('name', 'visibility', 'os_hidden', 'locations'):
        assert site.fault('POST', path, {'metadata': {name: 'x'}}, version='2.38') == (
            400,
            f"'{name}' cannot be set as metadata: every image has a member of this name.",
        )
    assert site.fault('POST', path, {'metadata': {'a': 'b'}}, version='2.38')[0] == 403
    assert site.fault('PUT', path, {'metadata': {'a': 'b', 'c': 'd'}}, version='2.38')[0] == 403
    assert [name for name, *_ in service.asked].count('update') == 1


def test_the_versions_that_took_them_away(site, images):
    for path, last in (
        ('/images', 35),
        ('/images/detail', 35),
        (f'/images/{IMAGE}', 35),
        (f'/images/{IMAGE}/metadata', 38),
        (f'/images/{IMAGE}/metadata/hw_disk_bus', 38),
    ):
        assert site.request('GET', path, version=f'2.{last}').status_int == 200
        assert site.fault('GET', path, version=f'2.{last + 1}') == (404, 'The resource could not be found.')


def test_links_follow_the_prefix(make_site):
    site = make_site(api__glance_link_prefix='https://images.example/')
    image = site.ok('GET', f'/images/{IMAGE}', version='2.1')['image']
    assert image['links'][2]['href'] == f'https://images.example/images/{IMAGE}'
