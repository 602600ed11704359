"""ImageClient against an image service that lives in a requests adapter."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from types import SimpleNamespace

import pytest
import requests
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import noauth as ks_noauth
from keystoneauth1 import session as ks_session

from kilonova import errors
from kilonova.clients.image import ImageClient, ImageRefused
from kilonova.context import RequestContext

URL = 'http://image.test'
DATA = b'QFI\xfb' + bytes(3_000_000)
IMAGE = {
    'id': 'a3f7',
    'name': 'demo',
    'status': 'active',
    'size': len(DATA),
    'disk_format': 'qcow2',
    'checksum': hashlib.md5(DATA).hexdigest(),
    'os_hash_algo': 'sha512',
    'os_hash_value': hashlib.sha512(DATA).hexdigest(),
}


class Service(requests.adapters.BaseAdapter):
    """Answers from ``images`` and hands out ``bodies`` one a download (the last one for ever)."""

    def __init__(self):
        super().__init__()
        self.images = {'a3f7': IMAGE}
        self.bodies = [DATA]
        self.asked = []
        self.refusal = None
        self.uploads, self.lengths = [], []

    def send(self, request, **kwargs):
        self.asked.append((request.path_url, request.headers.get('X-Auth-Token')))
        response = requests.Response()
        response.request, response.url = request, request.url
        if request.method != 'GET':
            status, text = self.change(request)
            response.status_code, response.raw = status, io.BytesIO(text.encode())
            return response
        _, _, _, image_id, *rest = request.path_url.split('/')
        body = b''
        if image_id not in self.images:
            response.status_code = 404
        elif rest:
            body = self.bodies[0] if len(self.bodies) == 1 else self.bodies.pop(0)
            response.status_code = 200 if isinstance(body, bytes) else body
        else:
            response.status_code, body = 200, json.dumps(self.images[image_id]).encode()
        response.raw = io.BytesIO(body if isinstance(body, bytes) else b'')
        return response

    def change(self, request):
        """What POST, PUT and DELETE come to: (status, body)."""
        if self.refusal is not None:
            return self.refusal
        if request.method == 'POST':
            record = json.loads(request.body)
            self.images[record['id']] = {**record, 'status': 'queued'}
            return 201, ''
        image_id = request.path_url.split('/')[3]
        if image_id not in self.images:
            return 404, ''
        if request.method == 'DELETE':
            del self.images[image_id]
            return 204, ''
        # As a socket takes it: in pieces.
        self.uploads.append(b''.join(iter(lambda: request.body.read(1 << 16), b'')) if request.body else b'')
        self.lengths.append(request.headers['Content-Length'])
        self.images[image_id] = {**self.images[image_id], 'status': 'active'}
        return 204, ''

    def close(self):
        pass


USER = RequestContext(auth_token='mine', overwrite=False)


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def client(service):
    pool = requests.Session()
    pool.mount(URL, service)
    session = ks_session.Session(auth=ks_noauth.NoAuth(endpoint=URL), session=pool)
    return ImageClient(ks_adapter.Adapter(session, service_type='image', endpoint_override=URL), retries=1)


def test_get_is_asked_with_the_users_token(client, service):
    assert client.get('a3f7', RequestContext(auth_token='mine', overwrite=False))['name'] == 'demo'
    assert service.asked == [('/v2/images/a3f7', 'mine')]


def test_get_without_a_user_is_the_services(client, service):
    client.get('a3f7')
    assert service.asked == [('/v2/images/a3f7', 'notused')]


def test_unknown_image_is_named(client):
    with pytest.raises(errors.ImageNotFound, match='b000'):
        client.get('b000')


def content(file):
    file.seek(0)
    return file.read()


def test_download_writes_the_bytes(client):
    with tempfile.TemporaryFile() as file:
        assert client.download('a3f7', file) == len(DATA)
        assert content(file) == DATA


def test_a_wrong_checksum_starts_again_from_the_beginning(client, service):
    service.bodies = [DATA + b'more than there should be', DATA]
    with tempfile.TemporaryFile() as file:
        client.download('a3f7', file)
        assert content(file) == DATA


@pytest.mark.parametrize('size', [1 << 60, None])
def test_room_is_looked_for_before_the_bytes_are_asked_for(client, service, size):
    service.images['a3f7'] = {**IMAGE, 'size': size}
    with tempfile.TemporaryFile() as file:
        if size is None:
            assert client.download('a3f7', file) == len(DATA)
            return
        with pytest.raises(errors.NoRoom, match=rf'space for image a3f7: it needs {1 << 60} bytes, \d+ are free'):
            client.download('a3f7', file)
    assert [path for path, _ in service.asked] == ['/v2/images/a3f7']


@pytest.mark.parametrize('record', [IMAGE, {**IMAGE, 'os_hash_algo': None}, {**IMAGE, 'os_hash_algo': 'no-such'}])
def test_a_checksum_that_stays_wrong_is_refused(client, service, record):
    service.images['a3f7'] = record
    service.bodies = [DATA[:-1]]
    with tempfile.TemporaryFile() as file, pytest.raises(errors.ImageUnacceptable, match='a3f7'):
        client.download('a3f7', file)


def test_no_more_is_written_than_the_image_has(client, service):
    """A service that never ends would fill the host's disk."""
    service.images['a3f7'] = {key: value for key, value in IMAGE.items() if key != 'checksum' and '_hash_' not in key}
    service.bodies = [DATA + bytes(8_000_000)]
    with tempfile.TemporaryFile() as file:
        with pytest.raises(errors.ImageUnacceptable, match=f'its data has more than {len(DATA)} bytes'):
            client.download('a3f7', file)
        assert file.seek(0, 2) <= len(DATA)


@pytest.mark.parametrize('size', [0, None])
def test_an_image_of_unknown_size_has_half_of_the_room(client, service, monkeypatch, size):
    service.images['a3f7'] = {**IMAGE, 'size': size}
    with tempfile.TemporaryFile() as file:
        assert client.download('a3f7', file) == len(DATA)
    monkeypatch.setattr(os, 'fstatvfs', lambda _: SimpleNamespace(f_bavail=len(DATA), f_frsize=1))
    with tempfile.TemporaryFile() as file:
        with pytest.raises(errors.ImageUnacceptable, match=f'its data has more than {len(DATA) // 2} bytes'):
            client.download('a3f7', file)
        assert file.seek(0, 2) <= len(DATA) // 2


def test_an_image_without_data_is_refused(client, service):
    service.bodies = [204]
    with tempfile.TemporaryFile() as file, pytest.raises(errors.ImageUnacceptable, match='no data'):
        client.download('a3f7', file)


def test_a_service_that_fails_does_not_answer(client, service):
    service.bodies = [500]
    with tempfile.TemporaryFile() as file, pytest.raises(errors.Unanswered, match='image service'):
        client.download('a3f7', file)


NEW = {'id': 'b111', 'name': 'snap', 'disk_format': 'qcow2', 'container_format': 'bare', 'image_type': 'snapshot'}


@pytest.fixture
def file(tmp_path):
    (tmp_path / 'disk').write_bytes(DATA)
    with open(tmp_path / 'disk', 'rb') as stream:
        yield stream


def test_create_is_the_users_and_upload_the_services(client, service, file):
    client.create(NEW, USER)
    assert service.images['b111'] == {**NEW, 'status': 'queued'}
    file.read(10)
    client.upload('b111', file)
    assert (service.uploads, service.lengths) == ([DATA], [str(len(DATA))])
    assert service.asked == [
        ('/v2/images', 'mine'),
        ('/v2/images/b111', 'notused'),
        ('/v2/images/b111/file', 'notused'),
    ]


def test_an_image_without_data_is_activated_as_its_user(client, service):
    client.create(NEW, USER)
    client.activate('b111', USER)
    assert service.images['b111']['status'] == 'active' and service.lengths == ['0']
    assert service.asked[-1] == ('/v2/images/b111/file', 'mine')
    with pytest.raises(errors.ImageNotFound):
        client.activate('gone', USER)
    service.refusal = 413, 'too large'
    with pytest.raises(ImageRefused, match='too large'):
        client.activate('b111', USER)


def test_an_image_that_has_its_data_is_not_sent_again(client, service, file):
    client.upload('a3f7', file)
    assert service.uploads == []


def test_an_image_that_somebody_sends_is_waited_for(client, service, file):
    service.images['b111'] = {**NEW, 'status': 'saving'}
    with pytest.raises(errors.Unanswered, match=r'^Image b111 is still saving'):
        client.upload('b111', file)
    service.images['b111'] = {**NEW, 'status': 'queued'}
    service.refusal = 409, 'Image status transition from saving to saving is not allowed'
    with pytest.raises(errors.Unanswered, match=r'^The image service cannot do this now: .*transition'):
        client.upload('b111', file)


def test_an_upload_ends_when_it_is_told_to(client, service, file):
    looks = []

    def check():
        looks.append(1)
        if len(looks) == 3:
            raise errors.Cancelled(key='x')

    client.create(NEW)
    with pytest.raises(errors.Cancelled):
        client.upload('b111', file, check)
    assert service.uploads == []


@pytest.mark.parametrize(
    ('status', 'error'),
    [
        (403, ImageRefused),
        (413, ImageRefused),
        (400, errors.ImageUnacceptable),
        (410, errors.ImageNotFound),
        (500, errors.Unanswered),
        (401, errors.Unanswered),
    ],
)
def test_refused_uploads(client, service, file, status, error):
    client.create(NEW)
    service.refusal = status, '<html><body><h1>No</h1>Over <b>quota</b></body></html>'
    with pytest.raises(error) as caught:
        client.upload('b111', file)
    if status in (400, 403, 413):
        assert str(caught.value).endswith('No Over quota')


@pytest.mark.parametrize(
    ('status', 'error'),
    [
        (403, ImageRefused),
        (413, ImageRefused),
        (400, errors.ImageUnacceptable),
        (409, errors.ImageUnacceptable),
        (503, errors.Unanswered),
    ],
)
def test_refused_creates(client, service, status, error):
    service.refusal = status, ''
    with pytest.raises(error):
        client.create(NEW)


def test_delete(client, service):
    client.delete('a3f7')
    client.delete('a3f7')
    assert service.images == {}
    for status, error in ((403, ImageRefused), (409, errors.Unanswered), (502, errors.Unanswered)):
        service.refusal = status, ''
        with pytest.raises(error):
            client.delete('a3f7')


def test_url(client):
    assert client.url('b111') == f'{URL}/images/b111'
