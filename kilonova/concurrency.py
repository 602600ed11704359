"""Run the daemons with eventlet's green threads or with native threads. Only this file imports eventlet.

Each command calls ``setup`` once, before it imports anything else. After that all code uses the standard modules
``threading``, ``queue``, ``time`` and ``socket``. Under eventlet these modules are patched, and their threads are
green.

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
    """Return the name of the backend, 'eventlet' or 'threading'.

    The environment variable KILONOVA_CONCURRENCY is used first, then the option's value ``configured``, then the
    default, which is eventlet. Raises ValueError if the name is unknown.
    """
    wanted = os.environ.get('KILONOVA_CONCURRENCY') or configured or 'auto'
    names = {'auto': 'eventlet', 'eventlet': 'eventlet', 'native': 'threading', 'threading': 'threading'}
    if wanted not in names:
        raise ValueError(f'concurrency_backend is {wanted!r}; accepted: {", ".join(names)}')
    return names[wanted]


def import_eventlet() -> Any:
    """Import eventlet and return the module, without its deprecation warning.

    Call this in the main thread before other threads run, even if the process uses native threads: oslo libraries
    import eventlet in any case. Eventlet regards the thread that imports it as the main thread. If another thread
    imports it, a process that waits for its threads never ends.
    """
    # Disable eventlet's own DNS resolver, which does not see changes of /etc/hosts and takes long to import.
    os.environ.setdefault('EVENTLET_NO_GREENDNS', 'yes')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        import eventlet
    return eventlet


def setup(name: str) -> None:
    """Choose the backend of this process. 'eventlet' patches the standard library, 'threading' patches nothing.

    Raises ValueError if the name is unknown.
    """
    global _backend  # noqa: PLW0603 - a process is patched once
    # Disable eventlet's DNS resolver, also for code that imports eventlet without calling ``import_eventlet``.
    os.environ.setdefault('EVENTLET_NO_GREENDNS', 'yes')
    if name == 'eventlet':
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            import_eventlet().monkey_patch()
    elif name != 'threading':
        raise ValueError(f'unknown concurrency backend {name!r}')
    # Set the backend of oslo.service, which oslo.messaging imports. Without this, oslo.service would choose eventlet.
    from oslo_service import backend as service_backend

    service_backend.init_backend(
        service_backend.BackendType.EVENTLET if name == 'eventlet' else service_backend.BackendType.THREADING
    )
    _backend = name


def backend() -> str:
    """Return the backend of this process, 'eventlet' or 'threading'."""
    return _backend


def native(func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking C call and return its result.

    Under eventlet the call runs in a native thread, so that the green threads continue.
    """
    if _backend == 'eventlet':
        from eventlet import tpool

        found: R = tpool.execute(func, *args, **kwargs)
        return found
    return func(*args, **kwargs)


def native_thread(func: Callable[[*Ts], object], *args: *Ts, name: str) -> None:
    """Run ``func`` in a native thread of the operating system, under eventlet as well.

    Locks of ``threading`` and logging do not work in such a thread, because they are green. The function must report
    its result through a ``Mailbox`` or through an attribute that other threads read.
    """
    threads: Any = threading
    if _backend == 'eventlet':
        from eventlet import patcher

        threads = patcher.original('threading')
    threads.Thread(target=func, args=args, name=name, daemon=True).start()


class Mailbox:
    """A queue through which native threads send objects to (green) threads, in the order in which they were added."""

    def __init__(self) -> None:
        self._waiting: collections.deque[Any] = collections.deque()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._bell = plain(self._writer)

    def put(self, thing: Any) -> None:
        """Add an object. Any thread may call this, and the call never blocks."""
        self._waiting.append(thing)
        # If the buffer of the socket is full, ignore the error: its bytes already wake the thread that calls ``take``.
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b'\0')

    def take(self) -> list[Any]:
        """Wait until an object arrives, then remove and return all objects that are in the queue.

        The list can be empty. Each ``put`` wakes this method once, even if an earlier call has already returned the
        object. Only one (green) thread may call this method.
        """
        self._reader.recv(4096)
        found = []
        while self._waiting:
            found.append(self._waiting.popleft())
        return found


def spawn(func: Callable[[*Ts], object], *args: *Ts, name: str | None = None) -> threading.Thread:
    """Start a (green) daemon thread and return it. An exception that ``func`` raises is logged."""

    def run() -> None:
        try:
            func(*args)
        except Exception:
            LOG.exception('%s failed', name or getattr(func, '__name__', func))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def pool(size: int, name: str = 'worker') -> concurrent.futures.ThreadPoolExecutor:
    """Create a pool of at most ``size`` (green) threads."""
    return concurrent.futures.ThreadPoolExecutor(max_workers=size, thread_name_prefix=name)


def plain(sock: socket.socket) -> socket.socket:
    """Return the operating system's socket inside a green socket, for code that never waits for the socket."""
    return getattr(sock, 'fd', sock) if _backend == 'eventlet' else sock


class Epoll:
    """A set of sockets on which one (green) thread waits.

    Under eventlet, the hub (its event loop) watches only the descriptor of the epoll object, whatever the number of its
    sockets.
    """

    def __init__(self) -> None:
        if _backend == 'eventlet':
            from eventlet import patcher

            self._epoll = patcher.original('select').epoll()
        else:
            self._epoll = select.epoll()
        self.register, self.modify, self.unregister = self._epoll.register, self._epoll.modify, self._epoll.unregister
        self.close = self._epoll.close

    def wait(self, seconds: float | None, most: int) -> list[int]:
        """Return at most ``most`` descriptors that are ready.

        Returns an empty list if none is ready after ``seconds``. If ``seconds`` is None, the call waits without a
        limit.
        """
        if _backend == 'eventlet':
            from eventlet import hubs

            try:
                hubs.trampoline(self._epoll.fileno(), read=True, timeout=seconds, timeout_exc=TimeoutError)
            except TimeoutError:
                return []
            seconds = 0
        return [number for number, _ in self._epoll.poll(seconds, most)]
