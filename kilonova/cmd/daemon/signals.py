"""Receive signals as messages in the main thread, without code in signal handlers.

    with SignalListener((signal.SIGTERM, signal.SIGHUP)) as listener:
        for number in listener.hear(timeout=5): ...     # 15 for SIGTERM, 1 for SIGHUP, or a number from ``ring``

The modules ``program`` and ``workers`` use the class.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

ENDING = (signal.SIGTERM, signal.SIGINT)


class SignalListener:
    """A receiver of signals. Inside its ``with`` block, a signal only sends its number to the main thread.

    The signal handlers do nothing, because a handler may interrupt any code.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = tuple(numbers)
        self._ears, self._bell = socket.socketpair()
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def __enter__(self) -> Self:
        self._bell.setblocking(False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in self._numbers}
        self._wakeup = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ring(self, byte: int) -> None:
        """Wake the main thread from another thread. ``hear`` then yields the number ``byte``.

        ``byte`` is a number from 0 to 255 that no signal has.
        """
        self._bell.send(bytes((byte,)))

    def hear(self, timeout: float | None = None) -> Iterator[int]:
        """Return an iterator over the numbers of the signals and messages that have arrived, in order.

        The iterator is empty if none arrives within ``timeout`` seconds. None means to wait without a limit.
        """
        self._ears.settimeout(None if timeout is None else max(timeout, 0.001))
        try:
            return iter(self._ears.recv(64))
        except TimeoutError:
            return iter(b'')
