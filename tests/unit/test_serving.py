"""The server of our applications: requests at once are bounded, connections without a whole one cost nothing."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest

SLOTS, IDLE = 2, 8
SERVER = f"""
import http.client, json, logging, socket, sys, threading, time
from kilonova import concurrency, serving
concurrency.setup(sys.argv[1])

class App:
    under_way = most = 0

    def __call__(self, environ, start_response):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        time.sleep(0.2 if environ['PATH_INFO'] == '/slow' else 0)
        self.under_way -= 1
        start_response('200 OK', [('Content-Length', '2')])
        return [b'ok']

def ask(connection, path):
    connection.request('GET', path)
    return connection.getresponse().read().decode()

listener = socket.create_server(('127.0.0.1', 0))
address, app = listener.getsockname(), App()
server = serving.WsgiServer(listener, app, {SLOTS}, logging.getLogger('x'))
server.start()
idle = [http.client.HTTPConnection(*address, timeout=10) for _ in range({IDLE})]
told = {{'idle': [ask(connection, '/') for connection in idle]}}
told['while idle'] = ask(http.client.HTTPConnection(*address, timeout=10), '/')
slow = []
threads = [threading.Thread(target=lambda one=one: slow.append(ask(one, '/slow'))) for one in idle]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
told |= {{'slow': slow, 'most': app.most}}
last = []
answered = threading.Thread(target=lambda: last.append(ask(http.client.HTTPConnection(*address, timeout=10), '/slow')))
answered.start()
while not app.under_way:
    time.sleep(0.01)
server.stop(10)
answered.join()
told['under way at stop'] = last
told['ended'] = [connection.sock.recv(1) == b'' for connection in idle]
try:
    told['after stop'] = ask(http.client.HTTPConnection(*address, timeout=10), '/')
except OSError as error:
    told['after stop'] = 'refused'
print(json.dumps(told))
"""


@pytest.mark.parametrize('backend', ['eventlet', 'threading'])
def test_idle_connections_take_no_slot_of_requests_and_end_with_the_server(backend):
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', SERVER, backend], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        'idle': ['ok'] * IDLE,
        'while idle': 'ok',
        'slow': ['ok'] * IDLE,
        'most': SLOTS,
        'under way at stop': ['ok'],
        'ended': [True] * IDLE,
        'after stop': 'refused',
    }


BACKENDS = pytest.mark.parametrize('backend', ['eventlet', 'threading'])


@functools.cache
def site(backend: str) -> dict[str, Any]:
    """What came of all clients of tests/unit/serving_site.py."""
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'tests.unit.serving_site', backend],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def answer(status: str, body: str, *headers: str) -> str:
    return '|'.join((f'HTTP/1.1 {status}', *headers, '', body))


CLOSED = 'Connection: close'
UNDERSTOOD = {
    'two': answer('200 OK', 'GET /one ') + answer('200 OK', 'GET /last ', CLOSED),
    'old': answer('200 OK', 'GET /old ', CLOSED),
    'head': answer('200 OK', '') + answer('200 OK', 'GET /last ', CLOSED),
    'whole url': answer('200 OK', 'GET /a b ', CLOSED),
    'body': answer('200 OK', 'abc', CLOSED),
    'chunked': answer('200 OK', 'abc', CLOSED),
    'twice': answer('200 OK', 'POST /post 1,2', CLOSED),
    'expect': answer('100 ', '') + answer('200 OK', 'a', CLOSED),
}
REFUSED = {
    'two lengths': 400,
    'plus': 400,
    'negative': 400,
    'list': 400,
    'word': 400,
    'both': 400,
    'unknown coding': 501,
    'bad chunk': 400,
    'long line': 414,
    'long head': 431,
    'no host': 400,
    'nonsense': 400,
    'space': 400,
    'fails': 500,
    'too long': 413,
    'too long and never sent': 413,
    'too long in chunks': 413,
}


@BACKENDS
def test_what_is_understood(backend):
    """Bodies in chunks are read, repeated headers are joined, and headers whose names contain `_` are ignored."""
    assert {name: text for name, text in site(backend)['words'].items() if name not in REFUSED} == UNDERSTOOD


@BACKENDS
def test_what_two_programs_could_read_in_two_ways_is_refused(backend):
    """A request that two programs could read differently is refused, and its connection is closed after the answer."""
    told = site(backend)['words']
    assert {name: int(told[name].split()[1]) for name in REFUSED} == REFUSED
    assert all(told[name].count('HTTP/1.1') == 1 and CLOSED in told[name] for name in REFUSED)
    assert 'PASSWORD' not in told['fails']


@BACKENDS
def test_clients_that_hang_up(backend):
    """A client that closes its connection causes neither a request nor a traceback."""
    told = site(backend)['hung_up']
    # The one that wants an answer may be there or not.
    assert told['told'] == [''] * 4
    assert told['asked'] <= 2
    assert told['next'] == answer('200 OK', 'GET /last ', CLOSED)
    assert site(backend)['logged'] == ['A request to /fails failed']


@BACKENDS
def test_half_requests_and_unread_answers_take_no_slot(backend):
    """Sixty incomplete requests and unread answers leave both slots of the server free for other requests.

    The server sends its packets without waiting for the acknowledgement of earlier ones.
    """
    told = site(backend)['half']
    assert told == {'kept': ['HTTP/1.1 200 OK'] * 5, 'new': answer('200 OK', 'GET /last ', CLOSED), 'no delay': True}


@BACKENDS
def test_connections_and_what_they_hold_are_bounded(backend):
    """Too many connections or too much held data close the connections that have waited longest; others are served."""
    assert site(backend)['crowd'] == {'answers': [answer('200 OK', 'GET /last ', CLOSED)] * 5, 'bounded': True}
    assert site(backend)['full'] == {'answers': ['HTTP/1.1 200 OK'] * 3, 'bounded': True}


@BACKENDS
def test_each_part_has_its_time(backend):
    """Each part of a request has a time limit, even if the client sends a byte now and then."""
    told = site(backend)['late']
    assert told['ended'] == dict.fromkeys(('silent', 'head', 'body', 'idle', 'answer'), True)
    assert told['next'] == answer('200 OK', 'GET /last ', CLOSED)


@BACKENDS
def test_a_server_without_connections_does_not_wake_up(backend):
    """Each second it looks whether a connection is late, but only while there is one."""
    assert site(backend)['idle'] == [1.0, None]
