"""What stands in front of the API: CORS, proxies, health check, size limit."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import webob

from kilonova import conf as kilonova_conf
from kilonova.api import app as pipeline


class Nothing:
    """Collaborators that no request here needs."""

    def api(self) -> None:
        return None


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Any:
    """The whole application of a configuration file's text."""

    def make(text: str = '') -> Any:
        path = tmp_path / 'k.conf'
        path.write_text('[api]\nauth_strategy = noauth2\n' + text)
        conf = kilonova_conf.new()
        conf(['--config-file', str(path)], project='kilonova', default_config_dirs=[])
        return pipeline.make_app(
            conf, databases=Nothing(), cells=Nothing(), conductor=Nothing(), image_client=Nothing()
        )

    return make


def ask(app: Any, path: str = '/', method: str = 'GET', **headers: str) -> webob.Response:
    request = webob.Request.blank(
        path, method=method, headers={name.replace('_', '-'): value for name, value in headers.items()}
    )
    return request.get_response(app)


def test_pages_of_an_allowed_origin_may_read_the_answers(make: Any) -> None:
    """[cors]: the field's headers may be sent and read, without a word about them in the configuration."""
    app = make('[cors]\nallowed_origin = https://dashboard.example\n')
    reply = ask(app, Origin='https://dashboard.example')
    assert reply.headers['Access-Control-Allow-Origin'] == 'https://dashboard.example'
    assert {'X-Openstack-Request-Id', 'OpenStack-API-Version', 'X-OpenStack-Nova-API-Version'} <= set(
        reply.headers['Access-Control-Expose-Headers'].split(',')
    )
    preflight = ask(
        app,
        '/v2.1/servers',
        'OPTIONS',
        Origin='https://dashboard.example',
        Access_Control_Request_Method='DELETE',
        Access_Control_Request_Headers='X-Auth-Token',
    )
    assert preflight.status_int == 200
    assert preflight.headers['Access-Control-Allow-Methods'] == 'DELETE'
    assert preflight.headers['Access-Control-Allow-Headers'] == 'X-Auth-Token'


@pytest.mark.parametrize('text', ['', '[cors]\nallowed_origin = https://dashboard.example\n'])
def test_pages_of_other_origins_may_not(make: Any, text: str) -> None:
    assert 'Access-Control-Allow-Origin' not in ask(make(text), Origin='https://elsewhere.example').headers


def test_healthcheck_asks_for_no_token(make: Any) -> None:
    app = make()
    assert ask(app, '/healthcheck').status_int == 200
    assert ask(app, '/healthcheck/', 'HEAD').status_int == 204
    assert ask(app, '/v2.1/servers').status_int == 401


def test_a_file_takes_the_api_out_of_the_load_balancer(make: Any, tmp_path: pathlib.Path) -> None:
    """[healthcheck]disable_by_file_path; the API itself goes on working."""
    stop = tmp_path / 'stop'
    app = make(f'[healthcheck]\nbackends = disable_by_file\ndisable_by_file_path = {stop}\n')
    assert ask(app, '/healthcheck').status_int == 200
    stop.touch()
    assert ask(app, '/healthcheck').status_int == 503
    assert ask(app, '/').status_int == 200


def test_who_may_not_see_the_health_gets_the_apis_answer(make: Any) -> None:
    app = make('[healthcheck]\nallowed_source_ranges = 10.0.0.0/8\n')
    request = webob.Request.blank('/healthcheck', environ={'REMOTE_ADDR': '192.0.2.1'})
    assert request.get_response(app).json['choices']
    request = webob.Request.blank('/healthcheck', environ={'REMOTE_ADDR': '10.1.2.3'})
    assert request.get_response(app).status_int == 200


def test_links_follow_the_proxy_that_is_believed(make: Any) -> None:
    """[oslo_middleware]enable_proxy_headers_parsing: TLS ends at a proxy in front."""
    headers = {'X_Forwarded_Proto': 'https', 'X_Forwarded_Host': 'compute.example'}
    trusting = make('[oslo_middleware]\nenable_proxy_headers_parsing = true\n')
    links = ask(trusting, **headers).json['versions'][0]['links']
    assert links[0]['href'].startswith('https://compute.example/')
    assert ask(make(), **headers).json['versions'][0]['links'][0]['href'].startswith('http://localhost')


def test_the_size_of_a_request_is_limited(make: Any) -> None:
    app = make('[oslo_middleware]\nmax_request_body_size = 100\n')
    request = webob.Request.blank(
        '/v2.1/servers', method='POST', content_type='application/json', headers={'X-Auth-Token': 'admin:p'}
    )
    request.body = b'x' * 101
    reply = request.get_response(app)
    assert reply.status_int == 413
