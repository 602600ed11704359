"""/health: what a daemon can reach and what not."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request

import pytest

from kilonova.cmd.daemon import database_parts, health, parts
from kilonova.db import engine
from kilonova.errors import Unanswered


def refused():
    raise ConnectionRefusedError('amqp://kilonova:PASSWORD@broker:5672')


def ask(app, path='/health', method='GET'):
    """(status, body) of one request."""
    told = {}

    def start_response(status, headers):
        told.update(status=int(status.split()[0]), headers=dict(headers))

    body = b''.join(app({'PATH_INFO': path, 'REQUEST_METHOD': method}, start_response))
    assert method == 'HEAD' or len(body) == int(told['headers']['Content-Length'])
    return told['status'], json.loads(body) if body else None


def app(checks, timeout=5.0, state='serving'):
    made = health.Health('nova-conductor', 'ctl1', checks, timeout)
    made.state = state
    return made


def test_all_answers():
    status, body = ask(app({'database': lambda: None, 'broker': lambda: 3}))
    assert status == 200
    assert body.pop('version')
    assert body == {
        'service': 'nova-conductor',
        'host': 'ctl1',
        'state': 'serving',
        'healthy': True,
        'checks': {'database': 'ok', 'broker': 'ok'},
        'unreachable': [],
    }


def test_what_does_not_answer_is_named_without_its_text(caplog):
    """Texts may hold addresses and passwords; the log has them, once."""
    caplog.set_level('INFO')
    broken = {'broker': refused, 'database': lambda: None}
    made = app(broken)
    status, body = ask(made)
    assert (status, body['unreachable'], body['healthy']) == (503, ['broker'], False)
    assert body['checks'] == {'broker': 'ConnectionRefusedError', 'database': 'ok'}
    assert 'PASSWORD' not in json.dumps(body)
    ask(made)
    assert caplog.text.count('Health: broker does not answer') == 1
    made._checks[0]._ask = lambda: None
    assert ask(made)[0] == 200
    assert 'Health: broker answers again' in caplog.text


def test_a_question_that_hangs_is_asked_once():
    release, asked = threading.Event(), []

    def hang():
        asked.append(1)
        release.wait(20)

    made = app({'libvirt': hang, 'broker': lambda: None}, timeout=0.05)
    for _ in range(3):
        status, body = ask(made)
        assert (status, body['checks']) == (503, {'libvirt': 'no answer', 'broker': 'ok'})
    assert asked == [1]
    release.set()
    made._checks[0]._asked.exception(10)
    made._timeout = 10
    assert ask(made)[0] == 200
    assert asked == [1, 1]


@pytest.mark.parametrize('state', ['starting', 'ending'])
def test_a_daemon_that_does_not_serve_is_not_healthy(state):
    status, body = ask(app({}, state=state))
    assert (status, body['state'], body['unreachable']) == (503, state, [])


def test_other_paths_and_methods():
    made = app({})
    assert ask(made, '/')[0] == 404
    assert ask(made, method='POST')[0] == 405
    assert ask(made, method='HEAD') == (200, None)


def test_no_port_no_server(parse):
    assert health.addresses(parse(), 'scheduler') == {}
    assert health.HealthServer.of(parse(), 'scheduler', {}) is None


def test_the_port_of_each_daemon(parse):
    conf = parse(sections='[health]\nlisten = 127.0.0.2\nscheduler_port = 9001\n')
    assert health.addresses(conf, 'scheduler') == {'health': ('127.0.0.2', 9001)}
    assert health.addresses(conf, 'api') == {}


def test_over_its_socket(parse):
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    server = health.HealthServer.of(parse(sections=f'[health]\nscheduler_port = {port}\n'), 'scheduler', {})
    server.start()
    server.state = 'serving'
    try:
        with urllib.request.urlopen(f'http://127.0.0.1:{port}/health', timeout=20) as answer:
            assert json.load(answer)['service'] == 'nova-scheduler'
    finally:
        server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(('127.0.0.1', port), 5).close()


# --- what is asked
def test_databases_are_asked_for_their_time(synced, tmp_path):
    databases = engine.configure(synced())
    for question in database_parts.checks(databases).values():
        question()
    databases.dispose()
    silent = engine.Databases(f'sqlite:///{tmp_path}/nowhere/api.db', None)
    checks = database_parts.checks(silent)
    for question in checks.values():
        with pytest.raises(Exception, match=r'unable to open|No database is configured'):
            question()
    assert set(checks) == {'api_database', 'database'}


def test_one_of_several_brokers_is_enough(parse):
    with socket.create_server(('127.0.0.1', 0)) as broker, socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        up, down = (f'u:p@127.0.0.1:{one.getsockname()[1]}' for one in (broker, closed))
        conf = parse()
        parts.transport(conf).close()
        conf.set_override('transport_url', f'rabbit://{down},{up}/')
        parts.broker_checks(conf)['broker']()
        conf.set_override('transport_url', f'rabbit://{down}/')
        with pytest.raises(OSError, match='refused'):
            parts.broker_checks(conf)['broker']()


def test_a_ping_goes_to_the_server_or_to_any():
    sent = []

    class Transport:
        def send(self, kind, topic, namespace, server, version, ctxt, method, args):
            sent.append((kind, topic, namespace, server, version, method))
            if topic == 'scheduler':
                raise Unanswered(who='scheduler', reason='timed out')

    checks = parts.ping_checks(
        Transport(), rpc=('compute', 'gpu1'), conductor=('conductor', None), scheduler=('scheduler', None)
    )
    checks['rpc']()
    checks['conductor']()
    assert sent == [
        ('call', 'compute', 'baseapi', 'gpu1', '1.0', 'ping'),
        ('call', 'conductor', 'baseapi', None, '1.0', 'ping'),
    ]
    with pytest.raises(Unanswered):
        checks['scheduler']()
