"""Vendordata over real HTTP: a file, and services that answer, are silent, talk too much, or refuse."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova import conf as kilonova_conf
from kilonova.clients import vendordata
from kilonova.clients.vendordata import Vendordata, VendordataFailed

ABOUT = {'instance-id': 'u-1', 'user-data': 'secret things'}


class Service(http.server.BaseHTTPRequestHandler):
    """POST /<status>: that status and what was asked; /long: more than anybody reads."""

    asked: list[tuple[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        type(self).asked.append((self.path, body))
        long = self.path == '/long'
        text = b'"' + b'x' * (2 * vendordata.MOST) + b'"' if long else json.dumps({'of': body['instance-id']}).encode()
        if self.path == '/text':
            text = b'no JSON'
        self.send_response(200 if self.path in ('/long', '/text') else int(self.path[1:]))
        self.send_header('Location', f'http://{self.headers["Host"]}/200')
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        """Not into the tests' output."""


@pytest.fixture
def service() -> Iterator[str]:
    """The URL of a service that runs."""

    class Mine(Service):
        asked: list[tuple[str, Any]] = []

    Service.asked = Mine.asked
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Mine)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()
    server.server_close()


def vendor(**options: Any) -> Vendordata:
    conf = kilonova_conf.new()
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    for name, value in options.items():
        conf.set_override(f'vendordata_{name}', value, 'api')
    return Vendordata(conf)


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / 'vendor.json'
    path.write_text('{"cloud": "a"}')
    made = vendor(jsonfile_path=str(path))
    assert made.static() == {'cloud': 'a'} and made.all(ABOUT) == {'static': {'cloud': 'a'}}
    path.write_text('["b"]')
    assert made.static() == ['b']


@pytest.mark.parametrize('text', [None, 'no JSON', '"' + 'x' * vendordata.MOST + '"'])
def test_a_file_that_can_not_be_used(tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / 'vendor.json'
    if text is not None:
        path.write_text(text)
    assert vendor(jsonfile_path=str(path)).static() == {} and 'vendordata_jsonfile_path' in caplog.text
    assert vendor().static() == {}


def test_services_are_asked_about_the_server(service: str) -> None:
    targets = [f'one@{service}/200', f'two@{service}/201', 'nonsense', 'three@ftp://x', f'one@{service}/200']
    made = vendor(providers=['StaticJSON', 'DynamicJSON'], dynamic_targets=targets)
    assert made.all(ABOUT) == {'static': {}, 'one': {'of': 'u-1'}, 'two': {'of': 'u-1'}}
    assert Service.asked == [('/200', ABOUT), ('/201', ABOUT)]
    assert vendor(dynamic_targets=targets).all(ABOUT) == {'static': {}}


@pytest.mark.parametrize('path', ['/500', '/404', '/307', '/long', '/text'])
def test_an_answer_that_can_not_be_used(service: str, path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Redirects aren't followed: the server's user data goes where the operator said, or nowhere."""
    options = {'providers': ['DynamicJSON'], 'dynamic_targets': [f'bad@{service}{path}', f'good@{service}/200']}
    assert vendor(**options).all(ABOUT) == {'bad': {}, 'good': {'of': 'u-1'}}
    assert [asked for asked, _ in Service.asked] == [path, '/200']
    assert 'Vendordata of bad could not be fetched' in caplog.text and 'secret things' not in caplog.text
    with pytest.raises(VendordataFailed, match='Vendordata of bad could not be fetched'):
        vendor(dynamic_failure_fatal=True, **options).all(ABOUT)


def test_a_service_that_is_silent() -> None:
    with socket.create_server(('127.0.0.1', 0)) as listener:
        url = f'http://127.0.0.1:{listener.getsockname()[1]}/'
        made = vendor(providers=['DynamicJSON'], dynamic_targets=[f'mute@{url}'], dynamic_read_timeout=1)
        assert made.all(ABOUT) == {'mute': {}}
    assert made.all(ABOUT) == {'mute': {}}
