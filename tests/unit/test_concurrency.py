"""The API's server: requests at once are bounded, connections without one cost nothing."""
from __future__ import annotations

import json
import subprocess
import sys

import pytest

SLOTS, IDLE = 2, 8
SERVER = f"""
import http.client, json, logging, socket, sys, threading, time
from kilonova import concurrency
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
server = concurrency.WsgiServer(listener, app, {SLOTS}, logging.getLogger('x'))
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
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', SERVER, backend], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {'idle': ['ok'] * IDLE, 'while idle': 'ok', 'slow': ['ok'] * IDLE, 'most': SLOTS,
                                       'under way at stop': ['ok'], 'ended': [True] * IDLE, 'after stop': 'refused'}
