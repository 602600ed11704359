"""Each daemon is put together from a configuration, without a broker, and starts and stops."""

from __future__ import annotations

import socket
import threading
import types
import urllib.error
import urllib.request

import pytest
from oslo_config import cfg

from kilonova.cmd import api, compute, conductor, scheduler
from kilonova.cmd.daemon import database_parts, parts
from kilonova.cmd.daemon.program import StartRefused
from kilonova.db import engine
from kilonova.db.queries import cells, services
from kilonova.errors import DBNotAllowed
from kilonova.objects import base

# stevedore deprecates an option that its older releases need.
pytestmark = pytest.mark.filterwarnings('ignore:The warn_on_missing_entrypoint option:DeprecationWarning')


@pytest.fixture
def conf(synced):
    made = synced('report_interval = 60', 'osapi_compute_listen_port = 1')
    made.set_override('osapi_compute_listen_port', 0)
    databases = engine.configure(made)
    cells.map_cell0(databases)
    databases.dispose()
    return made


def binaries():
    with engine.main().read() as connection:
        return [row['binary'] for row in services.list_services(connection, down_time=60)]


@pytest.mark.parametrize('program', [conductor, scheduler])
def test_daemons_with_a_record(conf, program, monkeypatch):
    monkeypatch.setattr(cells.CellDatabases, 'databases', lambda self: [engine.main()])
    part = program.build(conf)
    part.start()
    assert binaries() == [f'nova-{program.__name__.rpartition(".")[2]}']
    part.stop()


@pytest.mark.parametrize('program', [conductor, scheduler])
def test_told_to_end_before_the_database_answers(conf, program):
    part = program.build(conf)
    part._stopping.set()
    part.start()
    assert binaries() == []
    part.stop()


def test_database_that_does_not_answer_is_waited_for(conf, monkeypatch, caplog):
    databases, _ = database_parts.opened(_with_transport(conf))
    answers = [ConnectionError('refused'), ConnectionError('refused'), 1.0, 1.0]

    def now(connection):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(database_parts.engine, 'now', now)
    monkeypatch.setattr(database_parts.engine, 'is_unreachable', lambda error: isinstance(error, ConnectionError))
    monkeypatch.setattr(database_parts, 'PAUSE', 0.0)
    database_parts.await_all(databases, threading.Event())
    assert answers == []
    assert caplog.text.count('does not answer') == 1
    answers.append(ValueError('no such table'))
    with pytest.raises(ValueError, match='no such table'):
        database_parts.await_all(databases, threading.Event())


def _with_transport(conf):
    parts.transport(conf).close()
    return conf


def test_api(conf, monkeypatch):
    served = {}

    class Server:
        def __init__(self, sock, app, threads, log, most_body):
            served.update(port=sock.getsockname()[1], threads=threads, sock=sock, most_body=most_body)

        def start(self):
            served['started'] = True

        def stop(self, timeout):
            served.update(timeout=timeout)
            served['sock'].close()

    monkeypatch.setattr('kilonova.serving.WsgiServer', Server)
    part = api.build(conf)
    part.start()
    assert served['started']
    assert served['port'] > 0
    assert (served['threads'], served['most_body']) == (10, 114688)
    part.stop()
    assert served['timeout'] == api.REQUEST_TIME


def test_the_metadata_service_has_a_socket_of_its_own(conf):
    """Over real sockets; without a proxy that signs it does not start, and says why."""
    conf.set_override('enabled_apis', ['osapi_compute', 'metadata'])
    conf.set_override('metadata_listen', '127.0.0.1')
    with pytest.raises(StartRefused, match='service_metadata_proxy is not set'):
        api.build(conf)
    conf.set_override('service_metadata_proxy', True, 'neutron')
    conf.set_override('metadata_proxy_shared_secret', 'secret', 'neutron')
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        conf.set_override('metadata_listen_port', probe.getsockname()[1])
    part = api.build(conf)
    part.start()
    try:
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(f'http://127.0.0.1:{conf.metadata_listen_port}/latest/meta-data', timeout=60)
        assert (told.value.code, told.value.read()) == (400, b'X-Instance-ID header is missing from request.')
        told.value.close()
    finally:
        part.stop()


@pytest.mark.parametrize(
    ('enabled', 'sockets'),
    [(['osapi_compute'], {'api'}), (['metadata'], {'metadata'}), (['osapi_compute', 'metadata'], {'api', 'metadata'})],
)
def test_what_is_enabled_is_served(conf, enabled, sockets):
    conf.set_override('enabled_apis', enabled)
    assert set(api.listens(conf)) == sockets


class Manager:
    """The compute manager as far as its part sees it."""

    timers = None

    def __init__(self):
        self.calls, self.endpoint = [], None
        self.host = types.SimpleNamespace(notify=types.SimpleNamespace(stop=lambda: None))

    def start(self, serve):
        self.calls.append('start')
        serve()

    def stop(self):
        self.calls.append('stop')


class Transport:
    def __init__(self):
        self.calls = []

    def serve(self, topic, server, endpoints):
        self.calls.append(('serve', topic, server))
        return self

    def __getattr__(self, name):
        return lambda: self.calls.append(name)


def test_compute_ends_its_orders_before_it_lets_go(conf):
    manager, transport = Manager(), Transport()
    part = compute.ComputePart(conf, manager, transport, {})
    part.start()
    part.stop()
    assert manager.calls == ['start', 'stop']
    assert transport.calls == [('serve', 'compute', 'ctl1'), 'start', 'stop', 'wait', 'close']


def test_compute_that_never_served(conf):
    manager, transport = Manager(), Transport()
    compute.ComputePart(conf, manager, transport, {}).stop()
    assert transport.calls == [('serve', 'compute', 'ctl1'), 'close']
    assert manager.calls == ['stop']


def test_compute_has_no_database(conf, monkeypatch):
    """A compute sends its objects' calls to the conductor. An attempt to open a database raises DBNotAllowed."""
    told = []
    monkeypatch.setattr(base, 'set_indirection', told.append)
    part = compute.build(conf)
    assert told[0].interface.topic == 'conductor'
    assert told[0].cap is None
    with pytest.raises(DBNotAllowed, match='nova-compute attempted direct database access'):
        engine.main()
    part.stop()


def test_the_conductor_cap_is_of_what_computes_call(conf, monkeypatch):
    made = []
    monkeypatch.setattr(base, 'set_indirection', made.append)
    monkeypatch.setattr('kilonova.api.app.make_app', lambda conf, **clients: made.append(clients['conductor']))
    conf.set_override('conductor', '3.4', group='upgrade_levels')
    api.build(conf).stop()
    assert made.pop().cap is None
    compute.build(conf).stop()
    assert made.pop().cap == '3.4'


@pytest.mark.parametrize('cap', ['3.0', '1.20'])
def test_a_conductor_cap_under_which_no_server_could_be_claimed_refuses_the_start(conf, monkeypatch, cap):
    monkeypatch.setattr(base, 'set_indirection', pytest.fail)
    conf.set_override('conductor', cap, group='upgrade_levels')
    with pytest.raises(cfg.Error, match=rf"\[upgrade_levels\]conductor is '{cap}': accepted values are auto, .*3.4"):
        compute.build(conf)


@pytest.mark.parametrize(
    ('backend', 'size', 'threads'), [('eventlet', 7, 7), ('threading', 100, 10), ('threading', 7, 1)]
)
def test_threads_of_the_api(conf, monkeypatch, backend, size, threads):
    monkeypatch.setattr('kilonova.concurrency.backend', lambda: backend)
    conf.set_override('default_pool_size', size, group='wsgi')
    assert api.threads(conf) == threads


def test_zones_of_volumes_that_nobody_compares_are_refused_at_the_start(parse):
    """Nova's [cinder]cross_az_attach = False was an option that nobody read."""
    assert parts.volumes(parse(sections='[cinder]\ncross_az_attach = true')) is None
    with pytest.raises(cfg.ConfigFileValueError, match=r'\[cinder\]cross_az_attach is False: only True is supported'):
        parts.volumes(parse(sections='[cinder]\ncross_az_attach = false'))
