"""Adapters from sections of kilonova.conf, and what counts as silence."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import itertools
import socket
import threading
from types import SimpleNamespace

import pytest
import requests
from oslo_config import cfg

from kilonova import errors
from kilonova.clients import session
from kilonova.conf import glance, keystone_authtoken, placement


@pytest.fixture
def conf():
    conf = cfg.ConfigOpts()
    for section in (glance, keystone_authtoken, placement):
        conf.register_opts(section.OPTS, group=section.GROUP)
    conf([], project='kilonova', default_config_files=[])
    return conf


def test_section_gives_endpoint_timeout_and_type(conf):
    conf.set_override('auth_type', 'none', 'placement')
    conf.set_override('endpoint_override', 'http://127.0.0.1:1/placement', 'placement')
    adapter = session.adapter(conf, 'placement')
    assert adapter.get_endpoint() == 'http://127.0.0.1:1/placement'
    assert adapter.service_type == 'placement'
    assert adapter.session.timeout == 30


def test_credentials_fall_back_to_another_section(conf):
    conf.set_override('auth_type', 'none', 'keystone_authtoken')
    assert session.adapter(conf, 'glance').session.auth is None
    assert session.adapter(conf, 'glance', fallback='keystone_authtoken').session.auth is not None


def test_nobody_listening_is_unanswered(conf):
    conf.set_override('auth_type', 'none', 'placement')
    conf.set_override('endpoint_override', 'http://127.0.0.1:1', 'placement')
    with pytest.raises(errors.Unanswered, match='Placement does not answer'):
        session.send(session.adapter(conf, 'placement'), 'Placement', 'PUT', '/allocations/x')


def test_no_credentials_at_all_is_unanswered(conf):
    with pytest.raises(errors.Unanswered):
        session.send(session.adapter(conf, 'placement'), 'Placement', 'GET', '/')


def test_the_environment_is_read_once_for_each_service(monkeypatch):
    monkeypatch.setenv('http_proxy', 'http://proxy.test:3128')
    monkeypatch.setenv('no_proxy', 'near.test')
    monkeypatch.setenv('REQUESTS_CA_BUNDLE', '/etc/ca.pem')
    pool = session.Session()

    def settings(url, proxies=None, verify=None):
        return pool.merge_environment_settings(url, proxies or {}, None, verify, None)

    for _ in range(2):
        found = settings('http://far.test/x')
        assert (found['proxies']['http'], found['verify']) == ('http://proxy.test:3128', '/etc/ca.pem')
        assert 'http' not in settings('http://near.test/x')['proxies']
        assert settings('http://far.test/y', verify='/etc/own.pem')['verify'] == '/etc/own.pem'
        assert settings('http://far.test/x', {'http': 'http://own.test'})['proxies']['http'] == 'http://own.test'
        monkeypatch.delenv('REQUESTS_CA_BUNDLE', raising=False)


def test_who_hangs_is_asked_once(conf):
    """A read whose service does not answer in time is not repeated: three time-outs would exceed the set time."""
    with socket.create_server(('127.0.0.1', 0)) as silent:
        conf.set_override('auth_type', 'none', 'placement')
        conf.set_override('endpoint_override', f'http://127.0.0.1:{silent.getsockname()[1]}', 'placement')
        adapter = session.adapter(conf, 'placement')
        adapter.session.timeout = 0.05
        with pytest.raises(errors.Unanswered, match='timed out'):
            session.send(adapter, 'Placement', 'GET', '/', attempts=session.READ_ATTEMPTS)
        silent.settimeout(0)
        silent.accept()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize(('takes', 'asked'), [(0.5, 3), (16.0, 2), (31.0, 1), (1e9, 1)])
def test_a_read_is_repeated_within_the_time_of_one_request(conf, monkeypatch, takes, asked):
    conf.set_override('auth_type', 'none', 'placement')
    conf.set_override('endpoint_override', 'http://127.0.0.1:1', 'placement')
    adapter = session.adapter(conf, 'placement')
    clock, requested = [0.0], itertools.count()

    def request(*_args, **_kwargs):
        next(requested)
        clock[0] += takes
        return SimpleNamespace(status_code=503, close=lambda: None)

    monkeypatch.setattr(adapter, 'request', request)
    monkeypatch.setattr(session, 'time', SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: None))
    with pytest.raises(errors.Unanswered, match='HTTP 503'):
        session.send(adapter, 'Placement', 'GET', '/', attempts=session.READ_ATTEMPTS)
    assert next(requested) == asked


@pytest.mark.parametrize(('timeout', 'given'), [(30.0, (5.0, 30.0)), (2, (2, 2)), (None, None), ((1, 2), (1, 2))])
def test_connections_are_given_up_sooner_than_answers(conf, monkeypatch, timeout, given):
    conf.set_override('auth_type', 'none', 'placement')
    seen = []
    monkeypatch.setattr(
        requests.adapters.HTTPAdapter, 'send', lambda self, request, stream, timeout, *_args: seen.append(timeout)
    )
    for scheme in ('http', 'https'):
        pool = session.adapter(conf, 'placement').session.session.get_adapter(f'{scheme}://placement/')
        pool.send(requests.PreparedRequest(), stream=True, timeout=timeout)
    assert seen == [given, given]


# --- how large an answer may be ---------------------------------------------------------------------------------------
BOUND, LARGE = 1 << 20, 64 << 20


class _Long(http.server.BaseHTTPRequestHandler):
    """Answers with as many bytes as the path says: /whole/N with a length, /chunked/N, or /packed/N as gzip."""

    protocol_version = 'HTTP/1.1'
    sent = 0
    asked = 0

    def do_GET(self):
        type(self).asked += 1
        _, form, size = self.path.split('/')
        left, packed = int(size), gzip.compress(bytes(int(size))) if form == 'packed' else None
        self.send_response(200)
        if form == 'chunked':
            self.send_header('Transfer-Encoding', 'chunked')
        elif packed is not None:
            self.send_header('Content-Encoding', 'gzip')
        if form != 'chunked':
            self.send_header('Content-Length', str(len(packed) if packed is not None else left))
        self.end_headers()
        with contextlib.suppress(OSError):
            if packed is not None:
                self.wfile.write(packed)
                return
            while left:
                block = bytes(min(left, 1 << 16))
                self.wfile.write(b'%x\r\n%s\r\n' % (len(block), block) if form == 'chunked' else block)
                left -= len(block)
                type(self).sent += len(block)
            if form == 'chunked':
                self.wfile.write(b'0\r\n\r\n')

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def long(conf, monkeypatch):
    """An adapter whose service gives answers of any size, at a bound of one MiB."""
    monkeypatch.setattr(session, 'MOST', BOUND, raising=False)
    monkeypatch.setattr(_Long, 'sent', 0)
    monkeypatch.setattr(_Long, 'asked', 0)
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Long) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        conf.set_override('auth_type', 'none', 'placement')
        conf.set_override('endpoint_override', f'http://127.0.0.1:{server.server_port}', 'placement')
        yield session.adapter(conf, 'placement')
        server.shutdown()


@pytest.mark.parametrize('form', ['whole', 'chunked', 'packed'])
def test_an_answer_is_not_read_beyond_the_bound(long, form):
    with pytest.raises(
        errors.Unanswered, match=f'Placement does not answer: its answer to GET /{form}/{LARGE} has more than 1 MiB'
    ):
        session.send(long, 'Placement', 'GET', f'/{form}/{LARGE}', attempts=session.READ_ATTEMPTS)
    assert _Long.asked == 1
    assert _Long.sent < LARGE


@pytest.mark.parametrize('form', ['whole', 'chunked', 'packed'])
def test_an_answer_of_just_the_bound_is_read(long, form):
    for _ in range(2):
        answer = session.send(long, 'Placement', 'GET', f'/{form}/{BOUND}')
        assert answer.content == bytes(BOUND)


def test_a_stream_is_left_to_its_reader(long):
    with session.send(long, 'Placement', 'GET', f'/whole/{LARGE}', stream=True) as answer:
        assert len(next(answer.iter_content(1 << 16))) == 1 << 16
        assert sum(map(len, answer.iter_content(1 << 20))) == LARGE - (1 << 16)
