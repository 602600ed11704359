"""ImageClient against an image service that lives in a requests adapter."""
from __future__ import annotations

import hashlib
import io
import json

import pytest
import requests
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import noauth as ks_noauth
from keystoneauth1 import session as ks_session

from kilonova import errors
from kilonova.clients.image import ImageClient
from kilonova.context import RequestContext

URL = 'http://image.test'
DATA = b'QFI\xfb' + bytes(3_000_000)
IMAGE = {'id': 'a3f7', 'name': 'demo', 'status': 'active', 'size': len(DATA), 'disk_format': 'qcow2',
         'checksum': hashlib.md5(DATA).hexdigest(), 'os_hash_algo': 'sha512',
         'os_hash_value': hashlib.sha512(DATA).hexdigest()}


class Service(requests.adapters.BaseAdapter):
    """Answers from ``images`` and hands out ``bodies`` one a download (the last one for ever)."""

    def __init__(self):
        super().__init__()
        self.images = {'a3f7': IMAGE}
        self.bodies = [DATA]
        self.asked = []

    def send(self, request, **kwargs):
        self.asked.append((request.path_url, request.headers.get('X-Auth-Token')))
        _, _, _, image_id, *rest = request.path_url.split('/')
        response = requests.Response()
        response.request, response.url = request, request.url
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

    def close(self):
        pass


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


def test_download_writes_the_bytes(client):
    file = io.BytesIO()
    assert client.download('a3f7', file) == len(DATA)
    assert file.getvalue() == DATA


def test_a_wrong_checksum_starts_again_from_the_beginning(client, service):
    service.bodies = [DATA + b'more than there should be', DATA]
    file = io.BytesIO()
    client.download('a3f7', file)
    assert file.getvalue() == DATA


@pytest.mark.parametrize('record', [IMAGE, {**IMAGE, 'os_hash_algo': None}, {**IMAGE, 'os_hash_algo': 'no-such'}])
def test_a_checksum_that_stays_wrong_is_refused(client, service, record):
    service.images['a3f7'] = record
    service.bodies = [DATA[:-1]]
    with pytest.raises(errors.ImageUnacceptable, match='a3f7'):
        client.download('a3f7', io.BytesIO())


def test_an_image_without_data_is_refused(client, service):
    service.bodies = [204]
    with pytest.raises(errors.ImageUnacceptable, match='no data'):
        client.download('a3f7', io.BytesIO())


def test_a_service_that_fails_does_not_answer(client, service):
    service.bodies = [500]
    with pytest.raises(errors.Unanswered, match='image service'):
        client.download('a3f7', io.BytesIO())
