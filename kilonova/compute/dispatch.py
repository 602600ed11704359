"""From an RPC method to what does it: the endpoint of this host is made from the declaration (``rpc.compute``).

    @order(Compute.stop_instance)
    def stop(host, work, ctxt, instance, clean_shutdown): ...       # part of an operation: once a key

    @answer(Compute.get_diagnostics)
    def flat(host, ctxt, instance): ...                             # no part of one

    endpoint = Endpoint(host, keys, [power, diagnostics])

Names and arguments are those of the declaration, and there is no other list of them: a method that nobody does, or that
takes other arguments, refuses the start. Errors leave as ``kilonova.errors`` say them.
"""
from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from oslo_log import log as logging

from kilonova import errors
from kilonova.compute.events import readable
from kilonova.compute.host import Host
from kilonova.compute.keys import Keys, Work
from kilonova.compute.upcalls import Stopping
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)

# Nothing went wrong here: somebody else decided, or another host shall try.
EXPECTED = (errors.KeyGone, errors.Cancelled, errors.HostRejected, errors.ReleasePending, Stopping)

_Act = TypeVar('_Act', bound=Callable[..., Any])


class Check(enum.Enum):
    """What an order must find before it changes anything: STEP: the operation stands at this step of this attempt;
    UNDO: it is undoing it; WRITE: its own first write looks (a claim, a state)."""

    STEP = 'step'
    UNDO = 'undo'
    WRITE = 'write'


@dataclass(frozen=True)
class Order:
    """How a method of an operation behaves.

    ``forward``: it only goes forward or only gives back, so nobody cancels it and a failure under a key isn't final.
    ``verdict(error, …)``: what the flow is told of what the act raised; it gets the act's own arguments.
    """

    checks: Check = Check.STEP
    forward: bool = False
    verdict: Callable[..., Exception] | None = None


def order(declared: Callable[..., Any], checks: Check = Check.STEP, forward: bool = False,
          verdict: Callable[..., Exception] | None = None) -> Callable[[_Act], _Act]:
    """``act(host, work, ctxt, …)`` does this method of ``Compute``; … are the declared arguments without the key."""
    def mark(act: _Act) -> _Act:
        act.does = (declared.__name__, Order(checks, forward, verdict))  # type: ignore[attr-defined]
        return act
    return mark


def answer(declared: Callable[..., Any]) -> Callable[[_Act], _Act]:
    """``act(host, ctxt, …)`` answers this method of ``Compute``, which is no part of an operation."""
    def mark(act: _Act) -> _Act:
        act.does = (declared.__name__, None)  # type: ignore[attr-defined]
        return act
    return mark


class Endpoint:
    """What a host answers: each declared method, done by the marked function of one of the ``modules``, or by one of
    ``own``: ``method(ctxt, …)`` of the declared name."""

    def __init__(self, host: Host, keys: Keys, modules: Iterable[ModuleType],
                 own: Iterable[Callable[..., Any]] = ()) -> None:
        made: dict[str, Callable[..., Any]] = {act.__name__: Answer(act.__name__, act) for act in own}
        for module in modules:
            for act in vars(module).values():
                name, behaviour = getattr(act, 'does', (None, None))
                if name is None:
                    continue
                made[name] = Answer(name, functools.partial(act, host)) if behaviour is None else Operation(
                    name, act, behaviour, host, keys)
        vars(self).update(made)
        Compute.check_server(self)


class Answer:
    """One method that is no part of an operation."""

    def __init__(self, method: str, act: Callable[..., Any]) -> None:
        self._method, self._act = method, act
        self.__signature__ = inspect.signature(act)

    def __call__(self, ctxt: Any, *given: Any, **named: Any) -> Any:
        try:
            return self._act(ctxt, *given, **named)
        except Exception as error:
            _log(self._method, None, error)
            raise as_known(error) from error


class Operation:
    """One method of an operation: done once a key, with the key's work."""

    def __init__(self, method: str, act: Callable[..., Any], behaviour: Order, host: Host, keys: Keys) -> None:
        self._method, self._act, self._order, self._host, self._keys = method, act, behaviour, host, keys
        _, _, *taken = inspect.signature(act).parameters.values()
        key = inspect.Parameter('key', inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.__signature__ = inspect.Signature([*taken, key])

    def __call__(self, ctxt: Any, *given: Any, key: str, **named: Any) -> Any:
        return self._keys.run(self._method, key, lambda work: self._do(work, ctxt, given, named),
                              cancellable=not self._order.forward, remember_errors=not self._order.forward)

    def _do(self, work: Work, ctxt: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        checks = self._order.checks
        if checks is not Check.WRITE:
            work.verify = functools.partial(self._host.upcalls.check_key, ctxt, work.key, self._host.name,
                                            undo=checks is Check.UNDO)
        try:
            return self._act(self._host, work, ctxt, *given, **named)
        except Exception as error:
            told = self._told(error, given, named)
            _log(self._method, work.key, error)
            if not isinstance(error, EXPECTED):
                self._host.notify.emit(ctxt, 'compute.exception', error=error, method=self._method)
            if told is error:
                raise
            raise told from error

    def _told(self, error: Exception, given: tuple[Any, ...], named: dict[str, Any]) -> Exception:
        if isinstance(error, (Stopping, errors.ReleasePending)):
            # Nothing was decided: it is to be asked again.
            return errors.Unanswered(error.message)
        verdict = self._order.verdict
        return as_known(error if verdict is None else verdict(error, *given, **named))


def as_known(error: Exception) -> Exception:
    """The error as a class that the other side of the bus can rebuild: of its own name, else the nearest base."""
    if not isinstance(error, errors.KilonovaError):
        return errors.KilonovaError(readable(error))
    if type(error).__module__ == errors.__name__:
        return error
    same = getattr(errors, type(error).__name__, None)
    nearest = same or next(base for base in type(error).__mro__ if base.__module__ == errors.__name__)
    return nearest(error.message)


def _log(method: str, key: str | None, error: Exception) -> None:
    if isinstance(error, EXPECTED):
        LOG.info('%s %s: %s', method, key, error)
    elif isinstance(error, errors.KilonovaError):
        LOG.error('%s %s failed: %s', method, key, error)
    else:
        LOG.error('%s %s failed', method, key, exc_info=error)
