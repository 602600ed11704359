from __future__ import annotations

import logging
import os
import signal
import socket
import threading

import pytest
from oslo_log import formatters

from kilonova.cmd import options
from kilonova.cmd.daemon import program as daemon
from kilonova.context import RequestContext


class Part:
    """Does as told, and remembers."""

    checks = {}
    timers = None

    def __init__(self, start=lambda: None, stop=lambda: None):
        self.calls = []
        self._start, self._stop = start, stop

    def start(self):
        self.calls.append('start')
        self._start()

    def reload(self):
        self.calls.append('reload')

    def stop(self):
        self.calls.append('stop')
        self._stop()


def kill(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)


def live(conf, part):
    return daemon.DaemonLife(conf, 'test', part).run()


@pytest.fixture
def conf(parse):
    return parse('manager_shutdown_timeout = 20')


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_told_to_end(conf, number, caplog):
    caplog.set_level('INFO')
    before = signal.getsignal(number)
    part = Part(start=lambda: kill(number))
    assert live(conf, part) == 0
    assert part.calls == ['start', 'stop']
    assert f'Caught {number.name}, ending' in caplog.text
    assert signal.getsignal(number) is before


def test_told_to_end_while_it_starts(conf):
    ended = threading.Event()

    def start():
        kill(signal.SIGTERM)
        assert ended.wait(10)

    part = Part(start, ended.set)
    assert live(conf, part) == 0
    assert part.calls == ['start', 'stop']


@pytest.mark.parametrize('error', [RuntimeError('no host'), SystemExit(3)])
def test_failed_start(conf, error, caplog):
    def start():
        raise error

    part = Part(start)
    assert live(conf, part) == 1
    assert part.calls == ['start', 'stop']
    assert 'kilonova-test does not start' in caplog.text


def test_failed_stop_is_logged(conf, caplog):
    def stop():
        raise RuntimeError('stuck queue')

    assert live(conf, Part(lambda: kill(signal.SIGTERM), stop)) == 0
    assert 'Error during the shutdown: stuck queue' in caplog.text


def test_ending_is_bounded(parse, caplog):
    release = threading.Event()
    assert live(parse('manager_shutdown_timeout = 0'), Part(lambda: kill(signal.SIGTERM), release.wait)) == 1
    release.set()
    assert 'Running work did not finish within 0 seconds' in caplog.text


def test_told_to_end_twice(conf, caplog):
    release = threading.Event()

    def stop():
        kill(signal.SIGTERM)
        release.wait(10)

    assert live(conf, Part(lambda: kill(signal.SIGTERM), stop)) == 1
    release.set()
    assert 'Second request to shut down' in caplog.text


@pytest.fixture
def parent(monkeypatch):
    """The parent's end of the channel to this process, a worker."""
    ours, theirs = socket.socketpair()
    monkeypatch.setenv(daemon.workers.VARIABLE, f'1:{theirs.detach()}')
    yield ours
    ours.close()


def test_a_worker_leaves_it_to_its_parent_what_nobody_reads(write_conf, parent, monkeypatch, caplog):
    caplog.set_level('INFO')
    monkeypatch.setattr(daemon.guru_meditation_report.TextGuruMeditation, 'setup_autorun', lambda *a, **k: None)
    monkeypatch.setattr(daemon.guru_meditation_report.TextGuruMeditation, 'register_section', lambda *a, **k: None)
    argv = ['--config-file', write_conf('old_option = 1')]
    assert daemon.run('scheduler', lambda conf: Part(lambda: kill(signal.SIGTERM)), argv) == 0
    assert 'Starting scheduler node' in caplog.text and 'Kilonova does not read' not in caplog.text


def test_a_signal_to_all_and_the_parents_word_for_it_are_not_told_twice(conf, parent):
    def start():
        kill(signal.SIGTERM)
        parent.send(daemon.workers.END)

    assert live(conf, Part(start)) == 0
    assert parent.recv(1) == daemon.workers.SERVING


def test_a_worker_that_its_parent_tells_twice_ends_at_once(conf, parent, caplog):
    release = threading.Event()

    def stop():
        parent.send(daemon.workers.END_NOW)
        release.wait(10)

    assert live(conf, Part(lambda: parent.send(daemon.workers.END), stop)) == 1
    release.set()
    assert 'Second request to shut down' in caplog.text


def test_reload_takes_over_what_may_change(write_conf, monkeypatch):
    path = write_conf()
    conf = options.parse(['--config-file', path], 'kilonova-test')
    reopened = threading.Event()
    monkeypatch.setattr(options, 'setup_logging', lambda conf: reopened.set())
    assert not conf.debug

    def start():
        write_conf('debug = true')
        kill(signal.SIGHUP)
        assert reopened.wait(10)
        kill(signal.SIGTERM)

    part = Part(start)
    assert live(conf, part) == 0
    assert conf.debug
    assert part.calls == ['start', 'reload', 'stop']


def test_bad_configuration_at_reload_changes_nothing(write_conf, monkeypatch, caplog):
    conf = options.parse(['--config-file', write_conf()], 'kilonova-test')
    tried, reload = threading.Event(), options.reload

    def try_to_reload(conf):
        try:
            return reload(conf)
        finally:
            tried.set()

    monkeypatch.setattr(options, 'reload', try_to_reload)

    def start():
        write_conf('debug = perhaps')
        kill(signal.SIGHUP)
        assert tried.wait(10)
        kill(signal.SIGTERM)

    assert live(conf, Part(start)) == 0
    assert not conf.debug
    assert 'all options keep their values' in caplog.text


def test_a_line_of_a_request_tells_who_asked(parse):
    """A log line of a request has the request's id, user and project in brackets."""
    record = logging.LogRecord('kilonova.api', logging.INFO, __file__, 1, 'told', (), None)
    record.context = RequestContext(user_id='bob', project_id='p1', request_id='req-1', overwrite=False)
    line = formatters.ContextFormatter(config=parse()).format(record)
    assert line.endswith(' INFO kilonova.api [None req-1 bob p1 - - - -] told')


def test_whole_run(write_conf, monkeypatch, caplog):
    """A daemon logs its start with its version and the options that nobody reads, and exits with 0 after SIGTERM.
    If its parts cannot be built, it logs that it does not start and exits with 1."""
    caplog.set_level('INFO')
    monkeypatch.setattr(daemon.guru_meditation_report.TextGuruMeditation, 'setup_autorun', lambda *a, **k: None)
    monkeypatch.setattr(daemon.guru_meditation_report.TextGuruMeditation, 'register_section', lambda *a, **k: None)
    part = Part(lambda: kill(signal.SIGTERM))
    argv = ['--config-file', write_conf('old_option = 1', sections='[scheduler]\nworkers = 1')]
    assert daemon.run('scheduler', lambda conf: part, argv) == 0
    assert f'Starting scheduler node (version {options.version()})' in caplog.text
    assert 'Kilonova does not read: [DEFAULT]old_option' in caplog.text

    def refuse(conf):
        raise RuntimeError('no such driver')

    assert daemon.run('scheduler', refuse, argv) == 1
    assert 'kilonova-scheduler does not start' in caplog.text
