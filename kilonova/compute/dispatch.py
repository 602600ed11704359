"""From an RPC method to its operation: the key first, then the work; errors leave as ``kilonova.errors`` say them.

The table in ``manager`` names each method's act and how it behaves:

    'stop_instance': Order(power.stop),
    'terminate_instance': Order(terminate.run, checks=Check.WRITE, forward=True),
    'undo_build': Order(build.undo, checks=Check.UNDO, forward=True),
"""
from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from oslo_log import log as logging

from kilonova import errors
from kilonova.compute.events import readable
from kilonova.compute.host import Host
from kilonova.compute.keys import Keys, Work
from kilonova.compute.upcalls import Stopping

LOG = logging.getLogger(__name__)

# Nothing went wrong here: somebody else decided, or another host shall try.
EXPECTED = (errors.KeyGone, errors.Cancelled, errors.HostRejected, errors.ReleasePending, Stopping)


class Check(enum.Enum):
    """What an order must find before it changes anything: STEP: the operation stands at this step of this attempt;
    UNDO: it is undoing it; WRITE: its own first write looks (a claim, a state)."""

    STEP = 'step'
    UNDO = 'undo'
    WRITE = 'write'


@dataclass(frozen=True)
class Order:
    """One RPC method of an operation.

    ``forward``: it only goes forward or only gives back, so nobody cancels it and a failure under a key isn't final.
    """

    act: Callable[..., Any]
    checks: Check = Check.STEP
    forward: bool = False


class Dispatcher:
    """Runs orders, each once a key."""

    def __init__(self, host: Host, keys: Keys, orders: dict[str, Order]) -> None:
        self._host, self.keys, self._orders = host, keys, orders

    def run(self, method: str, ctxt: Any, key: str | None, *args: Any,
            verdict: Callable[[Exception], Exception] | None = None) -> Any:
        """``act(host, work, ctxt, *args)``. ``verdict`` turns what it raised into what the flow is told."""
        order = self._orders[method]

        def act(work: Work) -> Any:
            try:
                if order.checks is not Check.WRITE and key is not None:
                    work.verify = functools.partial(self._host.upcalls.check_key, ctxt, key, self._host.name,
                                                    undo=order.checks is Check.UNDO)
                return order.act(self._host, work, ctxt, *args)
            except Exception as error:
                told = _told(error, verdict)
                _log(method, key, error)
                if not isinstance(error, EXPECTED):
                    self._host.notify.emit(ctxt, 'compute.exception', error=error, method=method)
                if told is error:
                    raise
                raise told from error
        return self.keys.run(method, key, act, cancellable=not order.forward, remember_errors=not order.forward)


def _told(error: Exception, verdict: Callable[[Exception], Exception] | None) -> Exception:
    if isinstance(error, (Stopping, errors.ReleasePending)):
        # Nothing was decided: it is to be asked again.
        return errors.Unanswered(error.message)
    return as_known(verdict(error) if verdict is not None else error)


def as_known(error: Exception) -> Exception:
    """The error as a class that the other side of the bus can rebuild: of its own name, else the nearest base."""
    if not isinstance(error, errors.KilonovaError):
        return errors.KilonovaError(readable(error))
    if type(error).__module__ == errors.__name__:
        return error
    same = getattr(errors, type(error).__name__, None)
    nearest = same or next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
    return nearest(error.message)


@contextlib.contextmanager
def known_errors(method: str) -> Iterator[None]:
    """For methods that are no part of an operation."""
    try:
        yield
    except Exception as error:
        _log(method, None, error)
        raise as_known(error) from error


def _log(method: str, key: str | None, error: Exception) -> None:
    if isinstance(error, EXPECTED):
        LOG.info('%s %s: %s', method, key, error)
    elif isinstance(error, errors.KilonovaError):
        LOG.error('%s %s failed: %s', method, key, error)
    else:
        LOG.error('%s %s failed', method, key, exc_info=error)
