"""Run one daemon: signals, logging, start and graceful end.

    def build(conf): ...                    # returns a Part: start(), stop()
    sys.exit(daemon.run('scheduler', build, sys.argv[1:]))

SIGTERM and SIGINT end it gracefully within [DEFAULT]manager_shutdown_timeout, a second one at once. SIGHUP reads the
configuration files again and takes over what may change in place, log settings and files with it. SIGUSR2 writes a
report of all threads and options. One process, as started, unless an option asks for several workers (``workers``).
"""
from __future__ import annotations

import gc
import logging as stdlib_logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from oslo_config import cfg
from oslo_log import log as logging
from oslo_reports import guru_meditation_report
from oslo_reports.generators.conf import ConfigReportGenerator

from kilonova import concurrency
from kilonova.cmd import health, notify, options, sockets, workers
from kilonova.cmd.signals import ENDING, Ears
from kilonova.timers import Timers

LOG = logging.getLogger(__name__)

# No signal has these numbers.
_FAILED, _STOPPED, _TOLD, _TOLD_AGAIN = 0xfe, 0xff, 0xfc, 0xfb


class Refused(Exception):
    """Why a daemon doesn't start, in words for its operator: a traceback would say nothing more."""


class Part(Protocol):
    """What a daemon consists of. ``start`` may take long; ``stop`` may be called while it does."""

    @property
    def checks(self) -> Mapping[str, health.Ask]:
        """What it can't work without, and how each is asked for (see ``health``)."""

    @property
    def timers(self) -> Timers | None:
        """Its periodic tasks, if it has any."""

    def start(self) -> None:
        """Serve; returns once it does."""

    def reload(self) -> None:
        """SIGHUP: look anew at what was learnt from outside and kept."""

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


def run(name: str, build: Callable[[cfg.ConfigOpts], Part], argv: Sequence[str],
        listens: Callable[[cfg.ConfigOpts], dict[str, sockets.Address]] | None = None) -> int:
    """The whole life of the daemon ``kilonova-<name>``; the exit code. ``listens``: its own listening sockets."""
    conf = options.parse(argv, f'kilonova-{name}')
    options.setup_logging(conf)
    try:
        return _run(conf, name, build, listens)
    except (Refused, cfg.Error) as error:
        why = str(error)
    # Not while the error is handled: oslo.log would add it to the line.
    LOG.error('kilonova-%s does not start: %s', name, why)
    return 1


def _run(conf: cfg.ConfigOpts, name: str, build: Callable[[cfg.ConfigOpts], Part],
         listens: Callable[[cfg.ConfigOpts], dict[str, sockets.Address]] | None) -> int:
    wanted = workers.count(conf, name)
    try:
        if wanted > 1 and not workers.is_worker():
            options.warn_unread(conf)
            gc.enable()
            shared = (listens(conf) if listens else {}) | health.addresses(conf, name)
            return workers.Workers(conf, name, wanted, shared).run()
        report = guru_meditation_report.TextGuruMeditation
        # Its own section shows the global configuration, which nothing here uses.
        report.register_section('Options', ConfigReportGenerator(conf))
        report.setup_autorun(Version(), service_name=workers.title(name), conf=conf)
        options.check_intervals(conf)
        part = build(conf)
        life = Life(conf, name, part)
    except (Refused, cfg.Error):
        raise
    except Exception:
        LOG.exception('kilonova-%s does not start', name)
        return 1
    if not workers.is_worker():
        options.warn_unread(conf)
    # What was made so far stays: the collector needn't look at it again and again.
    gc.collect()
    gc.freeze()
    gc.enable()
    LOG.info('Starting %s node (version %s)', name, options.version())
    if concurrency.backend() == 'threading':
        LOG.debug('Native threads are used, not eventlet')
    code = life.run()
    if code:
        # Somebody still works in a thread that Python would wait for.
        stdlib_logging.shutdown()
        os._exit(code)
    return code


class Life:
    """From start to end, in the main thread: it sleeps until a signal or one of its own two threads wakes it."""

    def __init__(self, conf: cfg.ConfigOpts, name: str, part: Part) -> None:
        self._conf, self._name, self._part = conf, name, part
        self._ears = Ears((*ENDING, signal.SIGHUP))
        self._health = health.Server.of(conf, name, part.checks, part.timers)
        self._failed = False
        self._channel: workers.Channel

    def run(self) -> int:
        """Start, serve until told to end, end. 0: gracefully; 1: not started, or not ended in time."""
        with self._ears:
            self._channel = workers.Channel(lambda at_once: self._ears.ring(_TOLD_AGAIN if at_once else _TOLD))
            if self._health is not None:
                self._health.start()
            concurrency.spawn(self._start, name='start')
            while True:
                for byte in self._ears.hear():
                    if byte in ENDING:
                        LOG.info('Caught %s, ending', signal.Signals(byte).name)
                        return self._end()
                    if byte in (_TOLD, _TOLD_AGAIN):
                        LOG.info('Told to end by the parent')
                        return self._end()
                    if byte == signal.SIGHUP and options.reload(self._conf):
                        self._part.reload()
                    if byte == _FAILED:
                        self._end()
                        return 1

    def _start(self) -> None:
        try:
            self._part.start()
        except (Exception, SystemExit):
            LOG.exception('kilonova-%s does not start', self._name)
            self._failed = True
            self._ears.ring(_FAILED)
            return
        self._say('serving')
        self._channel.serving()

    def _say(self, state: str) -> None:
        if self._health is not None:
            self._health.state = state

    def _end(self) -> int:
        self._say('ending')
        if not workers.is_worker():
            notify.tell('STOPPING=1')
        concurrency.spawn(self._stop, name='stop')
        deadline = time.monotonic() + self._conf.manager_shutdown_timeout
        while True:
            received = list(self._ears.hear(deadline - time.monotonic()))
            if _STOPPED in received:
                LOG.info('Ended')
                return 0
            if any(byte in (*ENDING, _TOLD_AGAIN) for byte in received):
                LOG.warning('Told to end again: work under way is left')
                return 1
            if time.monotonic() >= deadline:
                LOG.warning('Work under way did not end within %d seconds; it is left',
                            self._conf.manager_shutdown_timeout)
                return 1

    def _stop(self) -> None:
        try:
            self._part.stop()
            if self._health is not None:
                self._health.stop()
        except Exception as error:
            # What never started can't be expected to end well.
            LOG.log(stdlib_logging.DEBUG if self._failed else stdlib_logging.ERROR, 'Ending met an error: %s', error,
                    exc_info=True)
        finally:
            self._ears.ring(_STOPPED)
