"""Processes are known by pid and start time, and by the marks in their environment."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from tools.cloud import process
from tools.cloud.layout import Layout

SLEEP = (sys.executable, '-S', '-c', 'import time; time.sleep(60)')


@pytest.fixture
def layout(tmp_path):
    made = Layout(
        var=tmp_path / 'var',
        venv=tmp_path,
        services_venv=tmp_path,
        tempest_venv=tmp_path,
        cyborg_venv=tmp_path,
        neutron_venv=tmp_path,
        cinder_venv=tmp_path,
    )
    made.make_directories()
    yield made
    process.stop(made, set(process.marked(made.var).values()), patience=0.1)


def test_a_started_process_runs_until_it_is_stopped(layout):
    record = process.start(layout, 'one', SLEEP, env={}, digest='d')
    assert process.running(layout, 'one') == record
    assert layout.pid('one').read_text() == f'{record.pid}\n'
    assert process.stop(layout, ['one']) == ['one']
    assert process.running(layout, 'one') is None
    assert process.recorded(layout) == []


def test_another_process_with_the_same_pid_is_not_ours(layout):
    process.start(layout, 'one', SLEEP, env={}, digest='d')
    path = process.record_path(layout, 'one')
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {'start': 'another-boot/1'}))
    assert process.running(layout, 'one') is None


def test_a_process_is_found_by_its_marks_when_the_pid_file_is_gone(layout):
    record = process.start(layout, 'one', SLEEP, env={}, digest='d')
    layout.pid('one').unlink()
    process.record_path(layout, 'one').unlink()
    # A process that has just become another program has no environment for a moment.
    deadline = time.monotonic() + 10
    while not (found := process.marked(layout.var)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == {record.pid: 'one'}
    assert process.stop(layout, ['one'], patience=0.1) == ['one']
    assert process.marked(layout.var) == {}


def test_stopping_one_leaves_the_other(layout):
    process.start(layout, 'one', SLEEP, env={}, digest='d')
    other = process.start(layout, 'two', SLEEP, env={}, digest='d')
    process.stop(layout, ['one'])
    assert process.running(layout, 'two') == other


def test_a_broken_record_is_no_running_process(layout):
    process.record_path(layout, 'one').write_text('{"pid": 1')
    assert process.running(layout, 'one') is None


def test_nothing_of_the_callers_cloud_or_python_reaches_a_daemon(layout, monkeypatch):
    monkeypatch.setenv('OS_CLOUD', 'elsewhere')
    monkeypatch.setenv('PYTHONPATH', '/elsewhere')
    monkeypatch.setenv('KILONOVA_CONCURRENCY', 'threading')
    env = process.child_environment(layout, 'one', {'A': 'b'})
    assert 'OS_CLOUD' not in env and 'PYTHONPATH' not in env
    assert env['KILONOVA_CONCURRENCY'] == 'threading'
    assert (env['A'], env[process.MARK_VAR], env[process.MARK_SERVICE]) == ('b', str(layout.var), 'one')


def test_start_time_reads_past_a_command_with_parentheses_and_ignores_zombies(tmp_path):
    boot = tmp_path / 'sys' / 'kernel' / 'random' / 'boot_id'
    boot.parent.mkdir(parents=True)
    boot.write_text('boot\n')
    for pid, state in ((7, 'S'), (8, 'Z')):
        (tmp_path / str(pid)).mkdir()
        fields = [state, *(str(number) for number in range(4, 30))]
        (tmp_path / str(pid) / 'stat').write_text(f'{pid} (a) b) {" ".join(fields)}')
    assert process.start_time(7, tmp_path) == 'boot/22'
    assert process.start_time(8, tmp_path) is None
    assert process.start_time(9, tmp_path) is None


def test_own_start_time_is_stable():
    assert process.start_time(os.getpid()) == process.start_time(os.getpid()) is not None
