"""Eventlet or native threads: the only file that imports eventlet.

``setup()`` is called once, before anything else is imported (see ``cmd``). Afterwards the standard ``threading``,
``queue``, ``time`` and ``socket`` are used everywhere; under eventlet they are green.

    setup('eventlet')
    info = native(connection.getInfo)       # a blocking C call that must not stop the other green threads
"""
from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import logging
import os
import select
import socket
import threading
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

LOG = logging.getLogger(__name__)

P = ParamSpec('P')
R = TypeVar('R')
Ts = TypeVarTuple('Ts')

_backend = 'threading'


def choose(configured: str | None = None) -> str:
    """'eventlet' or 'threading' from the environment (KILONOVA_CONCURRENCY), the option, or the default."""
    wanted = os.environ.get('KILONOVA_CONCURRENCY') or configured or 'auto'
    names = {'auto': 'eventlet', 'eventlet': 'eventlet', 'native': 'threading', 'threading': 'threading'}
    if wanted not in names:
        raise ValueError(f'concurrency_backend is {wanted!r}; accepted: {", ".join(names)}')
    return names[wanted]


def import_eventlet() -> Any:
    """Oslo libraries import it for native threads, too. To be called in the main thread before others run: eventlet
    makes a second module ``threading``, which takes the thread that imports it for a main thread; any other one then
    never counts as ended, and a process that waits for it doesn't end."""
    # Without this eventlet's hub asks its own resolver, which knows nothing of /etc/hosts changes; and that resolver is
    # a tenth of what a process imports.
    os.environ.setdefault('EVENTLET_NO_GREENDNS', 'yes')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        import eventlet
    return eventlet


def setup(name: str) -> None:
    """Choose the backend of this process: 'eventlet' patches the standard library, 'threading' changes nothing."""
    global _backend  # noqa: PLW0603 - a process is patched once
    # Whoever imports eventlet later, see above.
    os.environ.setdefault('EVENTLET_NO_GREENDNS', 'yes')
    if name == 'eventlet':
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            import_eventlet().monkey_patch()
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


def native(func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking C call; under eventlet in a native thread, so that the hub goes on."""
    if _backend == 'eventlet':
        from eventlet import tpool
        found: R = tpool.execute(func, *args, **kwargs)
        return found
    return func(*args, **kwargs)


def native_thread(func: Callable[[*Ts], object], *args: *Ts, name: str) -> None:
    """Run ``func`` in a thread of the operating system's, under eventlet too. Nothing green works there: no lock of
    ``threading``, no logging. It says what happened by a ``Mailbox``, or by an attribute that others look at."""
    threads: Any = threading
    if _backend == 'eventlet':
        from eventlet import patcher
        threads = patcher.original('threading')
    threads.Thread(target=func, args=args, name=name, daemon=True).start()


class Mailbox:
    """What native threads have to tell (green) ones, in order."""

    def __init__(self) -> None:
        self._waiting: collections.deque[Any] = collections.deque()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._bell = plain(self._writer)

    def put(self, thing: Any) -> None:
        """From any thread; never waits."""
        self._waiting.append(thing)
        # A socket that is full rings, too.
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b'\0')

    def take(self) -> list[Any]:
        """Wait until something is there; all of it. One (green) thread reads."""
        self._reader.recv(4096)
        found = []
        while self._waiting:
            found.append(self._waiting.popleft())
        return found


def spawn(func: Callable[[*Ts], object], *args: *Ts, name: str | None = None) -> threading.Thread:
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


def plain(sock: socket.socket) -> socket.socket:
    """The operating system's socket behind a green one, for who never waits on it."""
    return getattr(sock, 'fd', sock) if _backend == 'eventlet' else sock


class Epoll:
    """Many sockets that one (green) thread waits for; under eventlet its hub waits for all of them as for one."""

    def __init__(self) -> None:
        if _backend == 'eventlet':
            from eventlet import patcher
            self._epoll = patcher.original('select').epoll()
        else:
            self._epoll = select.epoll()
        self.register, self.modify, self.unregister = self._epoll.register, self._epoll.modify, self._epoll.unregister
        self.close = self._epoll.close

    def wait(self, seconds: float | None, most: int) -> list[int]:
        """The descriptors, at most ``most``, that are ready; none after ``seconds`` (None: wait without end)."""
        if _backend == 'eventlet':
            from eventlet import hubs
            try:
                hubs.trampoline(self._epoll.fileno(), read=True, timeout=seconds, timeout_exc=TimeoutError)
            except TimeoutError:
                return []
            seconds = 0
        return [number for number, _ in self._epoll.poll(seconds, most)]
