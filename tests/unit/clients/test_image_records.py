"""ImageClient's lists and changes of records, against an image service that lives in a requests adapter."""

from __future__ import annotations

import io
import json
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import noauth as ks_noauth
from keystoneauth1 import session as ks_session

from kilonova import errors
from kilonova.clients.image import ImageClient, ImageRefused
from kilonova.context import RequestContext

URL = 'http://image.test'


class Service(requests.adapters.BaseAdapter):
    """Five images, two a page; ``refuse``: what a change is answered with."""

    def __init__(self):
        super().__init__()
        self.asked = []
        self.refuse = None

    def send(self, request, **kwargs):
        self.asked.append(request)
        response = requests.Response()
        response.request, response.url = request, request.url
        response.status_code, answer = self._answer(request)
        response.raw = io.BytesIO(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        return response

    def _answer(self, request):
        if request.method == 'PATCH':
            return (self.refuse, b'<html>because</html>') if self.refuse else (200, {})
        query = parse_qs(urlsplit(request.path_url).query)
        if query.get('name') == ['bad']:
            return 400, b'<html><title>400</title><body>Bad filter</body></html>'
        if query.get('name') == ['endless']:
            return 200, {'images': [], 'next': '/v2/images?name=endless'}
        start = int(query.get('marker', ['0'])[0])
        page = [{'id': str(number)} for number in range(start + 1, min(start + 2, 5) + 1)]
        more = {'next': f'/v2/images?marker={page[-1]["id"]}'} if start + 2 < 5 else {}
        return 200, {'images': page, **more}

    def close(self):
        pass


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def client(service):
    session = requests.Session()
    session.mount(URL, service)
    return ImageClient(
        ks_adapter.Adapter(ks_session.Session(auth=ks_noauth.NoAuth(), session=session), endpoint_override=URL)
    )


@pytest.fixture
def user():
    return RequestContext(user_id='u', project_id='p', auth_token='theirs', overwrite=False)


@pytest.mark.parametrize(('limit', 'found', 'asked'), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (9, 5, 3)])
def test_pages_of_the_service_become_one_of_ours(service, client, user, limit, found, asked):
    assert [record['id'] for record in client.find({'name': 'a b'}, limit, user)] == list('12345')[:found]
    assert len(service.asked) == asked
    assert parse_qs(urlsplit(service.asked[0].path_url).query) == {'name': ['a b'], 'limit': [str(limit)]}
    assert {request.headers['X-Auth-Token'] for request in service.asked} == {'theirs'}


def test_a_query_that_it_does_not_understand(client, user):
    with pytest.raises(errors.Invalid, match='Bad filter'):
        client.find({'name': 'bad'}, 1, user)


def test_changes_are_a_json_patch(service, client, user):
    client.update('i', [{'op': 'add', 'path': '/a', 'value': 'b'}], user)
    (request,) = service.asked
    assert (request.method, request.path_url) == ('PATCH', '/v2/images/i')
    assert request.headers['Content-Type'] == 'application/openstack-images-v2.1-json-patch'
    assert json.loads(request.body) == [{'op': 'add', 'path': '/a', 'value': 'b'}]


@pytest.mark.parametrize(
    ('code', 'error'),
    [
        (403, ImageRefused),
        (413, ImageRefused),
        (404, errors.ImageNotFound),
        (400, errors.Invalid),
        (503, errors.Unanswered),
    ],
)
def test_refused_changes(service, client, user, code, error):
    service.refuse = code
    with pytest.raises(error):
        client.update('i', [{'op': 'remove', 'path': '/a'}], user)


def test_an_empty_page_is_the_end(client):
    assert client.find({'name': 'endless'}, 10) == []
