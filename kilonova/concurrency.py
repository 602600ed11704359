"""Eventlet or native threads: the only file that imports eventlet.

``setup()`` is called once, before anything else is imported (see ``cmd``). Afterwards the standard ``threading``,
``queue``, ``time`` and ``socket`` are used everywhere; under eventlet they are green.

    setup('eventlet')
    info = native(connection.getInfo)       # a blocking C call that must not stop the other green threads
"""
from __future__ import annotations

import concurrent.futures
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

LOG = logging.getLogger(__name__)

# Open connections for each request at once that a green server takes, and seconds that one may be silent.
CONNECTIONS, IDLE = 10, 75
_backend = 'threading'


def choose(configured: str | None = None) -> str:
    """'eventlet' or 'threading' from the environment (KILONOVA_CONCURRENCY), the option, or the default."""
    wanted = os.environ.get('KILONOVA_CONCURRENCY') or configured or 'auto'
    names = {'auto': 'eventlet', 'eventlet': 'eventlet', 'native': 'threading', 'threading': 'threading'}
    if wanted not in names:
        raise ValueError(f'concurrency_backend is {wanted!r}; accepted: {", ".join(names)}')
    return names[wanted]


def setup(name: str) -> None:
    """Choose the backend of this process: 'eventlet' patches the standard library, 'threading' changes nothing."""
    global _backend  # noqa: PLW0603 - a process is patched once
    # Without this eventlet's hub asks its own resolver, which knows nothing of /etc/hosts changes. (Oslo libraries
    # import eventlet for threads, too, and that resolver is a tenth of what a process imports.)
    os.environ.setdefault('EVENTLET_NO_GREENDNS', 'yes')
    if name == 'eventlet':
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            import eventlet
            eventlet.monkey_patch()
    elif name != 'threading':
        raise ValueError(f'unknown concurrency backend {name!r}')
    # oslo.messaging imports oslo.service, which chooses eventlet unless told otherwise.
    from oslo_service import backend as service_backend
    service_backend.init_backend(service_backend.BackendType.EVENTLET if name == 'eventlet'
                                 else service_backend.BackendType.THREADING)
    _backend = name


def backend() -> str:
    """'eventlet' or 'threading'."""
    return _backend


def native(func: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run a blocking C call; under eventlet in a native thread, so that the hub goes on."""
    if _backend == 'eventlet':
        from eventlet import tpool
        return tpool.execute(func, *args, **kwargs)
    return func(*args, **kwargs)


def spawn(func: Callable, *args: Any, name: str | None = None) -> threading.Thread:
    """Start a (green) thread; an exception that leaves it is logged."""
    def run() -> None:
        try:
            func(*args)
        except Exception:
            LOG.exception('%s failed', name or getattr(func, '__name__', func))
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def pool(size: int, name: str = 'worker') -> concurrent.futures.ThreadPoolExecutor:
    """A bounded pool of (green) threads."""
    return concurrent.futures.ThreadPoolExecutor(max_workers=size, thread_name_prefix=name)


class WsgiServer:
    """A WSGI application on a listening socket: eventlet's server or cheroot's thread pool.

    ``threads``: requests at once. A connection that waits for its next request takes none of them.
    """

    def __init__(self, sock: socket.socket, app: Callable, threads: int, log: logging.Logger) -> None:
        self._sock, self._app, self._threads, self._log = sock, app, threads, log
        self._server: Any = None
        self._serving: Any = None

    def start(self) -> None:
        if _backend == 'eventlet':
            import eventlet
            self._server = eventlet.GreenPool(self._threads * CONNECTIONS)
            self._serving = eventlet.spawn(self._serve_green)
            return
        from cheroot import wsgi
        host, port = self._sock.getsockname()[:2]
        self._server = wsgi.Server((host, port), self._app, numthreads=self._threads, max=self._threads)

        def bind(*_address: Any) -> None:
            # prepare() drops the socket first and wants bind() to make one; ours is listening already.
            self._server.socket = self._sock
        self._server.bind = bind
        self._server.prepare()
        # Another worker may take the connection that select() told of: then accept() must not wait for the next one.
        self._sock.settimeout(0)
        spawn(self._server.serve, name='wsgi')

    def _serve_green(self) -> None:
        from eventlet import wsgi
        # One green thread a connection; those wait here while as many as may be are at work.
        slots = threading.Semaphore(self._threads)

        def app(environ: dict[str, Any], start_response: Callable) -> Any:
            with slots:
                return self._app(environ, start_response)
        try:
            wsgi.server(self._sock, app, custom_pool=self._server, log=self._log, log_output=False,
                        keepalive=True, socket_timeout=IDLE)
        except OSError as error:
            self._log.debug('wsgi socket closed: %s', error)

    def stop(self, timeout: float = 10.0) -> None:
        """Close the listening socket; requests under way get ``timeout`` seconds."""
        if _backend == 'eventlet':
            self._sock.close()
            if self._serving is not None:
                import eventlet
                # It doesn't notice that its socket is closed; now it ends the idle connections and waits for the rest.
                eventlet.kill(self._serving)
                with eventlet.Timeout(timeout, False):
                    self._server.waitall()
        elif self._server is not None:
            self._server.stop()
