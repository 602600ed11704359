"""Run one daemon: signals, logging, start and graceful end.

    def build(conf): ...            # returns a DaemonPart: start(), stop()
    sys.exit(program.run('scheduler', build, sys.argv[1:]))

SIGTERM and SIGINT end the daemon gracefully within ``[DEFAULT]manager_shutdown_timeout``. A second one of these signals
ends it at once. SIGHUP reads the configuration files again, applies the options that may change at run time, and
reopens the log files. SIGUSR2 writes a report of all threads and options. The daemon is one process, unless an option
asks for several workers (see the module ``workers``).
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
from kilonova.cmd import options
from kilonova.cmd.daemon import health, notify, sockets, workers
from kilonova.cmd.daemon.signals import ENDING, SignalListener
from kilonova.timers import Timers

LOG = logging.getLogger(__name__)

# Numbers that other threads send to wake the main thread. No signal has one of these numbers.
_FAILED, _STOPPED, _TOLD, _TOLD_AGAIN = 0xFE, 0xFF, 0xFC, 0xFB


class StartRefused(Exception):
    """The daemon can't start, for a reason that an operator understands without a traceback."""


class DaemonPart(Protocol):
    """The interface of a daemon. ``start`` may take long, and ``stop`` may be called before ``start`` has returned."""

    @property
    def checks(self) -> Mapping[str, health.Ask]:
        """{service that the daemon needs: function that raises an error if the service does not answer}."""

    @property
    def timers(self) -> Timers | None:
        """The daemon's periodic tasks, or None."""

    def start(self) -> None:
        """Start to serve. Returns when the daemon serves."""

    def reload(self) -> None:
        """Forget cached data about other services, so that the data are read again. Called after SIGHUP."""

    def stop(self) -> None:
        """End running work and release all resources."""


class Version:
    """The version information in the report that a daemon writes when it receives the signal SIGUSR2."""

    def vendor_string(self) -> str:
        """Return the vendor's name."""
        return 'Kilonova'

    def product_string(self) -> str:
        """Return the product's name."""
        return 'Kilonova'

    def version_string_with_package(self) -> str:
        """Return the version of this installation."""
        return options.version()


def run(
    name: str,
    build: Callable[[cfg.ConfigOpts], DaemonPart],
    argv: Sequence[str],
    listens: Callable[[cfg.ConfigOpts], dict[str, sockets.Address]] | None = None,
) -> int:
    """Run the daemon ``kilonova-<name>`` from start to end, and return the exit code.

    ``build(conf)`` returns the daemon. ``listens(conf)`` returns a dict from the name of each listening socket of the
    daemon to its address.
    """
    conf = options.parse(argv, f'kilonova-{name}')
    options.setup_logging(conf)
    try:
        return _run(conf, name, build, listens)
    except (StartRefused, cfg.Error) as error:
        why = str(error)
    # Log outside the except block, because oslo.log adds the error to each line that is logged inside it.
    LOG.error('%s does not start: %s', f'kilonova-{name}', why)
    return 1


def _run(
    conf: cfg.ConfigOpts,
    name: str,
    build: Callable[[cfg.ConfigOpts], DaemonPart],
    listens: Callable[[cfg.ConfigOpts], dict[str, sockets.Address]] | None,
) -> int:
    wanted = workers.count(conf, name)
    try:
        if wanted > 1 and not workers.is_worker():
            options.warn_unread(conf)
            gc.enable()
            shared = (listens(conf) if listens else {}) | health.addresses(conf, name)
            return workers.WorkerProcesses(conf, name, wanted, shared).run()
        report = guru_meditation_report.TextGuruMeditation
        # Show this configuration in the report, not oslo.config's global one, which Kilonova does not use.
        report.register_section('Options', ConfigReportGenerator(conf))
        report.setup_autorun(Version(), service_name=workers.title(name), conf=conf)
        options.check_intervals(conf)
        part = build(conf)
        life = DaemonLife(conf, name, part)
    except (StartRefused, cfg.Error):
        raise
    except Exception:
        LOG.exception('%s does not start', f'kilonova-{name}')
        return 1
    if not workers.is_worker():
        options.warn_unread(conf)
    # The objects that exist now live as long as the process. Freeze them, so that the garbage collector skips them.
    gc.collect()
    gc.freeze()
    gc.enable()
    LOG.info('Starting %s node (version %s)', name, options.version())
    if concurrency.backend() == 'threading':
        LOG.debug('Native threads are used, not eventlet')
    code = life.run()
    if code:
        # End the process at once: a normal exit would wait for a thread that is still running.
        stdlib_logging.shutdown()
        os._exit(code)
    return code


class DaemonLife:
    """The main thread of one daemon process, which starts the daemon, handles signals and ends the daemon.

    The thread sleeps until a signal or another thread wakes it.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str, part: DaemonPart) -> None:
        self._conf, self._name, self._part = conf, name, part
        self._ears = SignalListener((*ENDING, signal.SIGHUP))
        self._health = health.HealthServer.of(conf, name, part.checks, part.timers)
        self._failed = False
        self._channel: workers.ParentChannel

    def run(self) -> int:
        """Start the daemon, serve until it must end, and end it.

        Return 0 if the daemon ended gracefully, or 1 if it did not start or did not end in time.
        """
        with self._ears:
            self._channel = workers.ParentChannel(lambda at_once: self._ears.ring(_TOLD_AGAIN if at_once else _TOLD))
            if self._health is not None:
                self._health.start()
            concurrency.spawn(self._start, name='start')
            while True:
                for byte in self._ears.hear():
                    if byte in ENDING:
                        LOG.info('Caught %s, ending', signal.Signals(byte).name)
                        return self._end()
                    if byte in (_TOLD, _TOLD_AGAIN):
                        LOG.info('The parent process requested the shutdown')
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
            LOG.exception('%s does not start', f'kilonova-{self._name}')
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
                LOG.warning('Second request to shut down: exiting without waiting for running work')
                return 1
            if time.monotonic() >= deadline:
                LOG.warning(
                    'Running work did not finish within %d seconds; exiting without waiting any longer',
                    self._conf.manager_shutdown_timeout,
                )
                return 1

    def _stop(self) -> None:
        try:
            self._part.stop()
            if self._health is not None:
                self._health.stop()
        except Exception as error:
            # A daemon that was not started completely may fail to stop. This is logged only at level DEBUG.
            LOG.log(
                stdlib_logging.DEBUG if self._failed else stdlib_logging.ERROR,
                'Error during the shutdown: %s',
                error,
                exc_info=True,
            )
        finally:
            self._ears.ring(_STOPPED)
