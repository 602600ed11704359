"""kilonova-manage periodic list, and what /health tells of periodic tasks."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from kilonova.cmd.daemon import health
from kilonova.timers import Timers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def daemon(parse):
    """A compute's /health with a task that ran once, and one that is off: its port."""
    port, stopping, ran = free_port(), threading.Event(), threading.Event()
    timers = Timers(stopping)
    timers.every(3600, ran.set, 'update_available_resource', at_once=True)
    timers.every(-1, ran.set, 'run_pending_deletes')
    assert ran.wait(60)
    stopping.set()
    timers.join(60)
    server = health.HealthServer.of(parse(f'host = gpu1\n[health]\ncompute_port = {port}\n'), 'compute', {}, timers)
    server.start()
    yield port
    server.stop()


def test_what_running_daemons_tell(run, daemon):
    """`kilonova-manage periodic list` shows each task of a running daemon with its spacing, its last run and the
    result."""
    url = f'http://127.0.0.1:{daemon}/health'
    code, lines = run('periodic', 'list', '--url', url, '--format', 'json')
    off, update = json.loads('\n'.join(lines))
    assert code == 0 and (off['name'], off['spacing'], off['last run']) == ('run_pending_deletes', -1, None)
    assert (update['name'], update['service'], update['host'], update['spacing'], update['result']) == (
        'update_available_resource',
        'nova-compute',
        'gpu1',
        3600,
        'ok',
    )
    assert update['took'] >= 0 and update['last run']
    code, lines = run('periodic', 'list', '--url', url)
    assert code == 0 and 'update_available_resource' in '\n'.join(lines)


def test_ports_of_the_configuration(run, daemon, write_conf):
    write_conf(sections=f'[health]\ncompute_port = {daemon}\n')
    assert run('periodic', 'list')[0] == 0
    write_conf(sections=f'[health]\ncompute_port = {daemon}\nconductor_port = {free_port()}\n')
    # Who does not answer is named, and the others are told.
    code, lines = run('periodic', 'list')
    assert code == 1 and 'update_available_resource' in '\n'.join(lines)


def test_nobody_to_ask(run):
    assert run('periodic', 'list')[0] == 1


@pytest.mark.parametrize('url', ['ftp://127.0.0.1/health', 'nonsense', 'http://'])
def test_only_such_ports_are_asked(run, url, capsys):
    assert run('periodic', 'list', '--url', url)[0] == 1
