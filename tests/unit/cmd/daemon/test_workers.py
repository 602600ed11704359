"""A parent and its workers. The workers here are tiny programs: what the real ones do is shown in tests/integration."""

from __future__ import annotations

import os
import signal
import socket
import sys
import textwrap
import threading
import time

import pytest

from kilonova.cmd.daemon import workers

# Says that it serves, writes down signals, and ends with the code that its directory asks for.
WORKER = """
import os, pathlib, signal, socket, sys, threading
number, _, descriptor = os.environ['KILONOVA_WORKER'].partition(':')
home = pathlib.Path(sys.argv[1])
def note(what):
    with open(home / f'{number}.log', 'a') as log:
        log.write(f'{what} {os.getpid()}\\n')
signals = {signal.SIGHUP, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
note('started')
if (home / 'broken').exists():
    sys.exit(3)
channel = socket.socket(fileno=int(descriptor))
channel.send(b'+')
def watch():
    while True:
        note(signal.sigwait(signals).name)
threading.Thread(target=watch, daemon=True).start()
while word := channel.recv(1):
    note({b'-': 'end', b'!': 'now'}[word])
    if word == b'!' or not (home / 'deaf').exists():
        os._exit(int((home / 'code').read_text()) if (home / 'code').exists() else 0)
"""


class Herd:
    """The parent in this process; ``then`` runs in a thread beside it and must end it."""

    def __init__(self, conf, directory, wanted=2):
        self.directory, self.wanted = directory, wanted
        (directory / 'worker.py').write_text(textwrap.dedent(WORKER))
        self.parent = workers.WorkerProcesses(
            conf, 'scheduler', wanted, {}, [sys.executable, '-S', '-E', str(directory / 'worker.py'), str(directory)]
        )

    def run(self, *then):
        failed = []

        def act():
            try:
                self.until(lambda: all(one.serves for one in self.parent._workers))
                for step in then:
                    step()
            except AssertionError as error:
                failed.append(error)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=act)
        thread.start()
        code = self.parent.run()
        thread.join()
        assert failed == []
        return code

    def lines(self):
        return [line for path in sorted(self.directory.glob('*.log')) for line in path.read_text().splitlines()]

    def said(self, what):
        return sum(line.startswith(what) for line in self.lines())

    def pids(self):
        return [int(line.split()[1]) for line in self.lines() if line.startswith('started')]

    @staticmethod
    def until(question):
        deadline = time.monotonic() + 20
        while not question():
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def herd(parse, tmp_path):
    return Herd(parse('manager_shutdown_timeout = 0'), tmp_path)


def test_told_to_end_all_end(herd, caplog):
    caplog.set_level('INFO')
    assert herd.run() == 0
    assert herd.said('end') == 2
    assert len(set(herd.pids())) == 2
    assert 'Starting 2 workers of kilonova-scheduler' in caplog.text


@pytest.mark.parametrize('number', [signal.SIGHUP, signal.SIGUSR2])
def test_signals_are_passed_on(herd, number):
    def strike():
        os.kill(os.getpid(), number)
        herd.until(lambda: herd.said(number.name) == 2)

    assert herd.run(strike) == 0


def test_a_worker_that_dies_is_started_again(herd, monkeypatch, caplog):
    monkeypatch.setattr(workers, 'PAUSE', 0.02)

    def strike():
        for dead in (1, 2):
            os.kill(herd.pids()[0] if dead == 1 else herd.parent._workers[0].process.pid, signal.SIGKILL)
            herd.until(lambda dead=dead: len(herd.pids()) == 2 + dead)

    assert herd.run(strike) == 0
    assert len(set(herd.pids())) == 4
    assert caplog.text.count('ended with -9; starting it again') == 2


def test_each_death_doubles_the_pause_until_a_long_life():
    worker = workers.Worker(1)
    worker.began = 1000.0
    assert [worker.died(1001.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert worker.due == 1061.0
    assert worker.died(1000.0 + 61) == 1


def test_workers_that_end_before_any_serves_end_the_daemon(herd, caplog):
    (herd.directory / 'broken').touch()
    assert herd.parent.run() == 1
    assert 'kilonova-scheduler does not start' in caplog.text


def test_a_worker_that_left_work_shows_in_the_exit_code(herd):
    (herd.directory / 'code').write_text('1')
    assert herd.run() == 1


def test_workers_that_do_not_end_are_killed(herd, monkeypatch, caplog):
    (herd.directory / 'deaf').touch()
    monkeypatch.setattr(workers, 'GRACE', 0.1)
    assert herd.run() == 1
    assert '2 workers did not end in time' in caplog.text


def test_told_twice_workers_are_told_twice(parse, tmp_path, caplog):
    herd = Herd(parse('manager_shutdown_timeout = 20'), tmp_path)
    (tmp_path / 'deaf').touch()

    def again():
        os.kill(os.getpid(), signal.SIGTERM)
        herd.until(lambda: herd.said('end') == 2)

    assert herd.run(again) == 0
    assert herd.said('now') == 2
    assert 'Second request to shut down' in caplog.text


def test_the_service_manager_hears_when_all_serve(herd, monkeypatch, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / 'notify'))
        manager.settimeout(20)
        monkeypatch.setenv('NOTIFY_SOCKET', str(tmp_path / 'notify'))
        assert herd.run() == 0
        assert [manager.recv(64), manager.recv(64)] == [b'READY=1', b'STOPPING=1']


def test_a_worker_that_still_starts_is_ended_by_a_signal(parse, tmp_path):
    """Nobody listens at its end of the channel yet."""
    (tmp_path / 'worker.py').write_text('import time; time.sleep(60)')
    parent = workers.WorkerProcesses(
        parse('manager_shutdown_timeout = 20'), 'api', 1, {}, [sys.executable, '-S', '-E', str(tmp_path / 'worker.py')]
    )
    thread = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    thread.start()
    assert parent.run() == 0
    thread.join()
    assert parent._workers[0].process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ('name', 'sections', 'count'),
    [
        ('conductor', '[conductor]\nworkers = 3', 3),
        ('scheduler', '[scheduler]\nworkers = 1', 1),
        ('scheduler', '[scheduler]\nworkers = 0', 5),
        ('conductor', '', 5),
        ('api', '', 5),
        ('compute', '', 1),
    ],
)
def test_how_many(parse, monkeypatch, name, sections, count):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: range(5))
    assert workers.count(parse(sections=sections), name) == count


def test_api_workers(parse):
    assert workers.count(parse('osapi_compute_workers = 2'), 'api') == 2


def test_the_workers_end_of_the_channel(monkeypatch):
    heard, gone = [], threading.Event()

    def told(at_once):
        heard.append(at_once)
        if len(heard) == 3:
            gone.set()

    ours, theirs = socket.socketpair()
    monkeypatch.setenv(workers.VARIABLE, f'2:{theirs.fileno()}')
    assert workers.title('api') == 'kilonova-api-2'
    channel = workers.ParentChannel(told)
    channel.serving()
    assert ours.recv(1) == workers.SERVING
    ours.send(workers.END + workers.END_NOW)
    # A parent that is gone is reason enough, too.
    ours.close()
    assert gone.wait(10)
    assert heard == [False, True, False]
    theirs.detach()


def test_a_daemon_asked_for_workers_becomes_their_parent(write_conf, monkeypatch, caplog):
    from kilonova.cmd.daemon import program as daemon

    made = []

    class Parent:
        def __init__(self, conf, name, wanted, addresses):
            made.append((name, wanted, addresses))

        def run(self):
            return 0

    monkeypatch.setattr(workers, 'WorkerProcesses', Parent)
    path = write_conf('osapi_compute_workers = 3\nold_option = 1', sections='[health]\napi_port = 8775')
    assert daemon.run('api', pytest.fail, ['--config-file', path], lambda conf: {'api': ('127.0.0.1', 8774)}) == 0
    assert made == [('api', 3, {'api': ('127.0.0.1', 8774), 'health': ('127.0.0.1', 8775)})]
    # The parent says it, once for all.
    assert caplog.text.count('Kilonova does not read: [DEFAULT]old_option') == 1
