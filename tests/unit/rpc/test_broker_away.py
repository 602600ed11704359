"""A process whose first call meets a broker that is away gets an error in time, and can end."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = """
import os, sys, threading
from kilonova import concurrency
concurrency.setup(sys.argv[2])
from kilonova.cmd import options
from kilonova.cmd.daemon import parts
from kilonova.context import get_admin_context
from kilonova.errors import Unsent
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import Client
conf = options.parse(['--config-file', sys.argv[1]], 'test')
options.setup_logging(conf)
compute = Client(Compute, parts.transport(conf))
def ask():
    try:
        compute.get_console_output(get_admin_context(), instance=None, tail_length=1, server='gpu1')
    except Unsent as error:
        # In one write: others print meanwhile.
        os.write(1, f'{error.code} {error}\\n'.encode())
asking = [threading.Thread(target=ask) for _ in range(3)]
for one in asking:
    one.start()
for one in asking:
    one.join()
"""


@pytest.mark.parametrize('backend', ['threading', 'eventlet'])
def test_calls_end_and_so_does_the_process(tmp_path: Path, backend: str) -> None:
    with socket.socket() as closed:
        closed.bind(('127.0.0.1', 0))
        path = tmp_path / 'conf'
        path.write_text(
            f'[DEFAULT]\ntransport_url = rabbit://a:b@127.0.0.1:{closed.getsockname()[1]}/\nrpc_send_timeout = 2\n'
        )
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', CALLS, str(path), backend],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    lines = (done.stdout + done.stderr).splitlines()
    assert (done.returncode, [line for line in lines if 'Traceback' in line]) == (0, [])
    assert [line for line in lines if line.startswith('503 ')] == [
        '503 compute gpu1 does not answer: get_console_output: RabbitMQ did not create the reply queue in time'
    ] * 3
    # oslo.messaging logs the outage once, however often it is tried.
    assert len([line for line in lines if 'oslo.messaging' in line]) == 1
