"""Adapters from sections of kilonova.conf, and what counts as silence."""
from __future__ import annotations

import itertools
import socket
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
    """Finding 1.6: three reads of a minute each are no set time."""
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
    monkeypatch.setattr(requests.adapters.HTTPAdapter, 'send',
                        lambda self, request, stream, timeout, *_args: seen.append(timeout))
    for scheme in ('http', 'https'):
        pool = session.adapter(conf, 'placement').session.session.get_adapter(f'{scheme}://placement/')
        pool.send(requests.PreparedRequest(), timeout=timeout)
    assert seen == [given, given]
