"""Run one daemon: signals, logging, start and graceful end.

    def build(conf): ...                    # returns a Part: start(), stop()
    sys.exit(daemon.run('scheduler', build, sys.argv[1:]))

SIGTERM and SIGINT end it gracefully within [DEFAULT]manager_shutdown_timeout, a second one at once. SIGHUP reads the
configuration files again and takes over what may change in place, log settings and files with it. SIGUSR2 writes a
report of all threads and options. There is no forking: one process, as started.
"""
from __future__ import annotations

import contextlib
import gc
import logging as stdlib_logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from oslo_config import cfg
from oslo_log import log as logging
from oslo_reports import guru_meditation_report
from oslo_reports.generators.conf import ConfigReportGenerator

from kilonova import concurrency
from kilonova.cmd import options

LOG = logging.getLogger(__name__)

ENDING = (signal.SIGTERM, signal.SIGINT)
# No signal has these numbers.
_FAILED, _STOPPED = b'\xfe', b'\xff'


class Part(Protocol):
    """What a daemon consists of. ``start`` may take long; ``stop`` may be called while it does."""

    def start(self) -> None:
        """Serve; returns once it does."""

    def stop(self) -> None:
        """End what is under way, give everything back."""


class Version:
    """What the report of SIGUSR2 asks for."""

    def vendor_string(self) -> str:
        return 'Kilonova'

    def product_string(self) -> str:
        return 'Kilonova'

    def version_string_with_package(self) -> str:
        return options.version()


def run(name: str, build: Callable[[cfg.ConfigOpts], Part], argv: Sequence[str]) -> int:
    """The whole life of the daemon ``kilonova-<name>``; the exit code."""
    conf = options.parse(argv, f'kilonova-{name}')
    options.setup_logging(conf)
    report = guru_meditation_report.TextGuruMeditation
    # Its own section shows the global configuration, which nothing here uses.
    report.register_section('Options', ConfigReportGenerator(conf))
    report.setup_autorun(Version(), conf=conf)
    options.check_intervals(conf)
    try:
        part = build(conf)
    except Exception:
        LOG.exception('kilonova-%s does not start', name)
        return 1
    options.warn_unread(conf)
    # What was made so far stays: the collector needn't look at it again and again.
    gc.collect()
    gc.freeze()
    LOG.info('Starting %s node (version %s)', name, options.version())
    if concurrency.backend() == 'threading':
        LOG.debug('Native threads are used, not eventlet')
    code = Life(conf, name, part).run()
    if code:
        # Somebody still works in a thread that Python would wait for.
        stdlib_logging.shutdown()
        os._exit(code)
    return code


class Life:
    """From start to end, in the main thread: it sleeps until a signal or one of its own two threads wakes it."""

    def __init__(self, conf: cfg.ConfigOpts, name: str, part: Part) -> None:
        self._conf, self._name, self._part = conf, name, part
        self._ears, self._bell = socket.socketpair()
        self._failed = False

    def run(self) -> int:
        """Start, serve until told to end, end. 0: gracefully; 1: not started, or not ended in time."""
        with self._listening():
            concurrency.spawn(self._start, name='start')
            while True:
                for byte in self._ears.recv(64):
                    if byte in ENDING:
                        LOG.info('Caught %s, ending', signal.Signals(byte).name)
                        return self._end()
                    if byte == signal.SIGHUP:
                        self._reload()
                    if byte == _FAILED[0]:
                        self._end()
                        return 1

    def _start(self) -> None:
        try:
            self._part.start()
        except (Exception, SystemExit):
            LOG.exception('kilonova-%s does not start', self._name)
            self._failed = True
            self._bell.send(_FAILED)

    def _end(self) -> int:
        concurrency.spawn(self._stop, name='stop')
        deadline = time.monotonic() + self._conf.manager_shutdown_timeout
        while True:
            self._ears.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                received = self._ears.recv(64)
            except TimeoutError:
                LOG.warning('Work under way did not end within %d seconds; it is left',
                            self._conf.manager_shutdown_timeout)
                return 1
            if _STOPPED[0] in received:
                LOG.info('Ended')
                return 0
            if any(byte in ENDING for byte in received):
                LOG.warning('Told to end again: work under way is left')
                return 1

    def _stop(self) -> None:
        try:
            self._part.stop()
        except Exception as error:
            # What never started can't be expected to end well.
            LOG.log(stdlib_logging.DEBUG if self._failed else stdlib_logging.ERROR, 'Ending met an error: %s', error,
                    exc_info=True)
        finally:
            self._bell.send(_STOPPED)

    def _reload(self) -> None:
        LOG.info('Caught SIGHUP, reading the configuration again')
        try:
            self._conf.mutate_config_files()
            options.setup_logging(self._conf)
        except (Exception, SystemExit):
            # oslo.config ends the program for a bad value of an option that the command line has too.
            LOG.exception('The configuration stays as it was')

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Signals ring the bell by their numbers; nothing runs in the handlers, as they may interrupt anything."""
        self._bell.setblocking(False)
        numbers = (*ENDING, signal.SIGHUP)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        wakeup = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
