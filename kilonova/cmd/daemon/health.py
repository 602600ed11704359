"""GET /health on a separate port of each daemon ([health]): which services the daemon can reach.

    server = HealthServer.of(conf, 'scheduler', {'database': ask})   # None if the option sets no port
    server.start()
    server.state = 'serving'

Each service is checked by a function that raises an error if the service does not answer. All checks run at the same
time, for at most [health]timeout seconds. The response has status 200 if all services answer and the daemon serves,
otherwise 503. The response shows only the class of an error, because its text may contain addresses and accounts. The
text is logged.
"""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import concurrency, serving
from kilonova.cmd import options
from kilonova.cmd.daemon import sockets
from kilonova.timers import Timers

LOG = logging.getLogger(__name__)

Ask = Callable[[], Any]

PATH = '/health'
NAME = 'health'
# Number of requests that are answered at the same time. Further requests wait.
THREADS = 2
OK, SILENT = 'ok', 'no answer'


def addresses(conf: cfg.ConfigOpts, name: str) -> dict[str, sockets.Address]:
    """Return a dict from the name of the health socket of ``kilonova-<name>`` to its address.

    Return an empty dict if no port is configured for the daemon.
    """
    port = conf.health[f'{name}_port'] if f'{name}_port' in conf.health else None  # noqa: SIM401 - its get() raises
    return {NAME: (conf.health.listen, port)} if port else {}


class ServiceCheck:
    """The check of one service that the daemon needs. While a check hangs, it is not started a second time."""

    def __init__(self, name: str, ask: Ask) -> None:
        self.name, self._ask = name, ask
        self._asked: concurrent.futures.Future[None] | None = None
        self._last = OK

    def begin(self) -> None:
        """Start the check in a thread of its own."""
        if self._asked is None or self._asked.done():
            self._asked = concurrent.futures.Future()
            concurrency.spawn(self._run, self._asked, name=f'health-{self.name}')

    def _run(self, asked: concurrent.futures.Future[None]) -> None:
        try:
            self._ask()
        except Exception as error:  # noqa: BLE001 - whatever it raises means that it doesn't answer
            asked.set_exception(error)
        else:
            asked.set_result(None)

    def outcome(self, deadline: float) -> str:
        """Return 'ok', the class of the error, or 'no answer' if the check has not ended at ``deadline``.

        ``deadline`` is a time of the monotonic clock. Raises RuntimeError if ``begin`` was not called first.
        """
        if self._asked is None:
            raise RuntimeError('begin() was not called')
        reason: object = f'no response within {deadline - time.monotonic():.0f} s'
        try:
            error = self._asked.exception(max(deadline - time.monotonic(), 0.001))
        except concurrent.futures.TimeoutError:
            found = SILENT
        else:
            found, reason = (type(error).__name__, error) if error else (OK, '')
        self._tell(found, reason)
        return found

    def _tell(self, found: str, reason: object) -> None:
        if found != self._last:
            self._last = found
            if found == OK:
                LOG.info('Health: %s answers again', self.name)
            else:
                LOG.warning('Health: %s does not answer (%s: %s)', self.name, found, reason)


class Health:
    """The WSGI application of /health. ``state`` is 'starting', 'serving' or 'ending'."""

    def __init__(
        self, service: str, host: str, checks: Mapping[str, Ask], timeout: float, timers: Timers | None = None
    ) -> None:
        self._who = {'service': service, 'host': host, 'version': options.version()}
        self._checks = [ServiceCheck(name, ask) for name, ask in checks.items()]
        self._timeout, self._timers = timeout, timers
        self.state = 'starting'

    def report(self) -> dict[str, Any]:
        """Return the body of the response, with ``healthy`` and the names of ``unreachable`` services."""
        deadline = time.monotonic() + self._timeout
        for check in self._checks:
            check.begin()
        found = {check.name: check.outcome(deadline) for check in self._checks}
        unreachable = sorted(name for name, outcome in found.items() if outcome != OK)
        return {
            **self._who,
            'state': self.state,
            'healthy': self.state == 'serving' and not unreachable,
            'checks': found,
            'unreachable': unreachable,
            **({'periodic': self._timers.told()} if self._timers is not None else {}),
        }

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one WSGI request."""
        if environ.get('PATH_INFO') != PATH:
            return _answer(start_response, environ, '404 Not Found', {'error': f'only {PATH} exists'})
        if environ['REQUEST_METHOD'] not in ('GET', 'HEAD'):
            return _answer(
                start_response, environ, '405 Method Not Allowed', {'error': 'only GET and HEAD are supported'}
            )
        report = self.report()
        return _answer(start_response, environ, '200 OK' if report['healthy'] else '503 Service Unavailable', report)


def _answer(
    start_response: Callable[..., Any], environ: dict[str, Any], status: str, body: dict[str, Any]
) -> Iterable[bytes]:
    text = json.dumps(body, indent=1).encode() + b'\n'
    start_response(
        status,
        [
            ('Content-Type', 'application/json'),
            ('Content-Length', str(len(text))),
            ('Cache-Control', 'no-store'),
            ('Connection', 'close'),
        ],
    )
    return [] if environ['REQUEST_METHOD'] == 'HEAD' else [text]


class HealthServer:
    """The WSGI server of /health."""

    def __init__(self, health: Health, address: sockets.Address) -> None:
        self._health = health
        self._server = serving.WsgiServer(sockets.listen(NAME, address), health, THREADS, LOG.logger)

    @classmethod
    def of(
        cls, conf: cfg.ConfigOpts, name: str, checks: Mapping[str, Ask], timers: Timers | None = None
    ) -> HealthServer | None:
        """Return the server for the port that [health] sets for this daemon, or None if it sets none.

        ``timers`` are the periodic tasks to report. Raises OSError if the port is in use.
        """
        address = addresses(conf, name).get(NAME)
        if address is None:
            return None
        return cls(Health(f'nova-{name}', conf.host, checks, conf.health.timeout, timers), address)

    @property
    def state(self) -> str:
        """The state of the daemon: starting, serving or ending."""
        return self._health.state

    @state.setter
    def state(self, state: str) -> None:
        self._health.state = state

    def start(self) -> None:
        """Start to answer requests."""
        self._server.start()

    def stop(self) -> None:
        """Stop answering requests."""
        self._server.stop(0.0)
