"""Undo the finished steps of one host's operation, newest first.

    with Undo('build') as undo:
        undo.add(tracker.abort, plan)       # before the act: a lost reply leaks nothing
        conductor.claim(ctxt, claim)
"""
from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from kilonova.compute.upcalls import Stopping
from kilonova.errors import KeyGone

LOG = logging.getLogger(__name__)


class Undo:
    """A stack of undos that runs only when the block raises; the block's own error survives.

    ``error`` is what the block raised, for undos that report it. A process that ends (no ``Exception``), or ends while
    it waits for an answer (``Stopping``), undoes nothing: the next process is asked again.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._stack: list[tuple[Callable[..., Any], tuple]] = []

    def add(self, func: Callable[..., Any], *args: Any) -> None:
        """Register ``func(*args)``; it must be safe when the act it undoes never happened."""
        self._stack.append((func, args))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.error = error
        if not isinstance(error, Exception) or isinstance(error, Stopping):
            return
        for func, args in reversed(self._stack):
            try:
                func(*args)
            except KeyGone as gone:
                # The attempt is over: what is still here is asked for by its flow's undo, or a pending release.
                LOG.info('%s: undo %s: %s', self.name, getattr(func, '__name__', func), gone)
            except Exception:
                LOG.exception('%s: undo %s failed', self.name, getattr(func, '__name__', func))
