"""The compute API as a WSGI application for another WSGI server, in place of the daemon kilonova-api.

    gunicorn --threads 10 --worker-class gthread kilonova.wsgi:application

``application`` is built at the first request of a process, so that no connection is open when the server forks. The
environment variable KILONOVA_CONFIG_FILES (or OS_KILONOVA_CONFIG_FILES) names the configuration files, separated by
';'. Relative names are relative to OS_KILONOVA_CONFIG_DIR (default /etc/kilonova). Without the variable, the files are
those that kilonova-api reads when it is started without arguments. The WSGI server must provide native threads, because
nothing is patched for green threads here.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kilonova import concurrency

__all__ = ['application']

PROG = 'kilonova-api'
FILES = ('KILONOVA_CONFIG_FILES', 'OS_KILONOVA_CONFIG_FILES')
DIRECTORY = 'OS_KILONOVA_CONFIG_DIR'


def config_arguments(environment: Mapping[str, str]) -> list[str]:
    """Return the command line arguments for kilonova-api that have the same effect as these environment variables."""
    named = next((environment[name] for name in FILES if environment.get(name)), '')
    directory = Path(environment.get(DIRECTORY) or '/etc/kilonova')
    files = [directory / name.strip() for name in named.split(';') if name.strip()]
    if not files and environment.get(DIRECTORY):
        files = [directory / 'kilonova.conf']
    return [part for path in files for part in ('--config-file', str(path))]


def build(environment: Mapping[str, str]) -> Callable[..., Iterable[bytes]]:
    """Build the application from the configuration.

    Raises SystemExit if the configuration has an error, in the same way as the daemon kilonova-api.
    """
    # The oslo libraries import eventlet with each backend, and eventlet warns at each import that it is deprecated.
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    concurrency.setup('threading')
    from kilonova.cmd import api, options
    from kilonova.cmd.daemon import caps, takeover

    conf = options.parse(config_arguments(environment), PROG)
    options.setup_logging(conf)
    part = api.build(conf)
    takeover.refuse_two_clouds(conf, part.cells)
    caps.refuse_old_computes(conf, part.cells)
    options.warn_unread(conf)
    logging.getLogger('kilonova.wsgi').info('Starting api node (version %s)', options.version())
    found: Callable[..., Iterable[bytes]] = part.app
    return found


class Application:
    """A WSGI application that is built by the first request. Requests that arrive during the build wait for it.

    If the configuration has an error, the error is logged and each request gets status 500, until the error is
    corrected.
    """

    def __init__(self, make: Callable[[], Callable[..., Iterable[bytes]]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._built: Callable[..., Iterable[bytes]] | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            built = self._application()
        except (Exception, SystemExit) as error:
            logging.getLogger('kilonova.wsgi').critical(
                'The compute API does not start: %s', error, exc_info=not isinstance(error, SystemExit)
            )
            body = b'The compute API is not configured.\n'
            start_response(
                '500 Internal Server Error', [('Content-Type', 'text/plain'), ('Content-Length', str(len(body)))]
            )
            return [body]
        return built(environ, start_response)

    def _application(self) -> Callable[..., Iterable[bytes]]:
        if self._built is None:
            with self._lock:
                if self._built is None:
                    self._built = self._make()
        return self._built


# Eventlet must be imported in the main thread, but the first request is handled in another thread of the server.
concurrency.import_eventlet()
application = Application(lambda: build(os.environ))
