"""Connect the RPC methods that ``rpc.compute`` declares with the functions of this host that implement them.

    @operation_method(Compute.stop_instance)
    def stop(op, clean_shutdown): ...               # a step of an operation: run once per operation key

    @query_method(Compute.get_diagnostics)
    def diagnostics(host, ctxt, instance): ...      # not part of an operation

    endpoint = Endpoint(host, keys, [power, answers])

An operation key names the operation, its step and the attempt at this step. The names and arguments of a method are
defined only by its declaration in ``rpc.compute``. The service does not start if a declared method has no function, or
if the function takes other arguments. Errors are sent to the caller as classes of ``kilonova.errors``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from oslo_log import log as logging

from kilonova import errors
from kilonova.compute.host import ComputeHost, Stopping
from kilonova.compute.keys import TaskRegistry
from kilonova.compute.operation import HostTask, StepCheck, readable
from kilonova.context import RequestContext
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)

# Errors of calls that do not mean that this host failed. They are logged at INFO, without an error notification.
# After KeyGone and Cancelled no conductor needs the result. After HostRejected the conductor tries another host.
# After ReleasePending and Stopping the conductor sends the same call again.
EXPECTED = (errors.KeyGone, errors.Cancelled, errors.HostRejected, errors.ReleasePending, Stopping)

_Act = TypeVar('_Act', bound=Callable[..., object])
Verdict = Callable[[HostTask, Exception], Exception]


@dataclass(frozen=True)
class Behaviour:
    """The settings with which a method of an operation is run.

    ``forward`` is True for a method that is repeated until it succeeds, such as a delete or an undo. Such a method
    can't be cancelled, and its failure is not stored as a final result. ``verdict(op, error)`` converts an error of the
    function to the error that is sent to the conductor.
    """

    checks: StepCheck = StepCheck.STEP
    forward: bool = False
    verdict: Verdict | None = None


def operation_method(
    declared: Callable[..., object],
    checks: StepCheck = StepCheck.STEP,
    forward: bool = False,
    verdict: Verdict | None = None,
) -> Callable[[_Act], _Act]:
    """Mark a function ``act(op, …)`` as the implementation of a ``Compute`` method that is a step of an operation.

    The function takes the arguments of the declared method, except the context, the instance and the operation key:
    these are attributes of ``op``.

    Args:
        declared: The method of ``Compute``.
        checks: The check that the step makes before it changes anything.
        forward: True if the step is repeated until it succeeds. It can't be cancelled, and an error is not its
            final result.
        verdict: ``verdict(op, error)`` converts an error of the function to the error that the conductor receives.
            If it is None, the error is not converted.
    """

    def mark(act: _Act) -> _Act:
        act.does = (declared.__name__, Behaviour(checks, forward, verdict))  # type: ignore[attr-defined]
        return act

    return mark


def query_method(declared: Callable[..., object]) -> Callable[[_Act], _Act]:
    """Mark a function ``act(host, ctxt, …)`` as the implementation of a ``Compute`` method outside operations."""

    def mark(act: _Act) -> _Act:
        act.does = (declared.__name__, None)  # type: ignore[attr-defined]
        return act

    return mark


class Endpoint:
    """The RPC endpoint of this host, with one attribute for each method that ``rpc.compute`` declares.

    A method is implemented by a function in one of the ``modules``, which is marked with ``operation_method`` or
    ``query_method``. ``own`` are further implementations, such as bound methods. They have the method's name and get
    the context as their first argument.
    """

    def __init__(
        self,
        host: ComputeHost,
        keys: TaskRegistry,
        modules: Iterable[ModuleType],
        own: Iterable[Callable[..., object]] = (),
    ) -> None:
        made: dict[str, QueryMethod | Order] = {act.__name__: QueryMethod(act.__name__, act) for act in own}
        for module in modules:
            for act in vars(module).values():
                name, behaviour = getattr(act, 'does', (None, None))
                if name is None:
                    continue
                made[name] = (
                    QueryMethod(name, functools.partial(act, host))
                    if behaviour is None
                    else Order(name, act, behaviour, host, keys)
                )
        vars(self).update(made)
        Compute.check_server(self)


class QueryMethod:
    """An RPC method that is not part of an operation."""

    def __init__(self, method: str, act: Callable[..., object]) -> None:
        self._method, self._act = method, act
        self.__signature__ = inspect.signature(act)

    def __call__(self, ctxt: RequestContext, **given: object) -> object:
        """Call the function that implements the method, and return its result.

        Its errors are raised as classes of ``kilonova.errors``, which the caller's process knows.
        """
        try:
            return self._act(ctxt, **given)
        except Exception as error:
            _log(self._method, None, error)
            raise as_known(error) from error


@functools.cache
def _signature_of(method: str, act: Callable[..., object]) -> inspect.Signature:
    """Return the signature of an RPC method that the marked function ``act`` implements."""
    _, *taken = inspect.signature(act).parameters.values()
    names = ['ctxt', 'instance', 'key'] if 'instance' in Compute.arguments(method) else ['ctxt', 'key']
    *first, key = (inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names)
    return inspect.Signature([*first, *taken, key])


class Order:
    """An RPC method that is a step of an operation. It runs once per operation key (operation, step and attempt)."""

    def __init__(
        self, method: str, act: Callable[..., object], behaviour: Behaviour, host: ComputeHost, keys: TaskRegistry
    ) -> None:
        self._method, self._act, self._behaviour, self._host, self._keys = method, act, behaviour, host, keys
        self.__signature__ = _signature_of(method, act)

    def __call__(self, ctxt: RequestContext, *, key: str, **given: Any) -> object:
        """Run the step and return its result. If a call with the same operation key runs already, wait for its result.

        Errors are raised as classes of ``kilonova.errors``, which the caller's process knows. Raises Unanswered if the
        step has no result yet; the conductor then sends the call again.
        """
        forward = self._behaviour.forward
        with self._keys.doing(self._method, key, cancellable=not forward, remember_errors=not forward) as (work, first):
            if not first:
                return work.outcome()
            instance = given.pop('instance') if 'instance' in given else given['order'].instance
            op = HostTask(self._host, work, ctxt, instance, self._behaviour.checks)
            try:
                work.result = self._act(op, **given)
                self._host.devices_used(ctxt, instance.uuid)
            except Exception as error:
                self._host.devices_failed(ctxt, instance.uuid, error)
                told = self._told(op, error)
                _log(self._method, key, error, instance.uuid)
                if not isinstance(error, EXPECTED):
                    self._host.notify.emit(ctxt, 'compute.exception', error=error, method=self._method)
                if told is error:
                    raise
                raise told from error
        return work.result

    def _told(self, op: HostTask, error: Exception) -> Exception:
        if isinstance(error, (Stopping, errors.ReleasePending)):
            # Stopping and ReleasePending are no result of the step: the conductor must send the call again.
            return errors.Unanswered(error.message)
        verdict = self._behaviour.verdict
        return as_known(error if verdict is None else verdict(op, error))


def as_known(error: Exception) -> Exception:
    """Return the error as an instance of a class in ``kilonova.errors``, which the caller's process can rebuild.

    The class has the name of the error's class, or is its nearest base class in ``kilonova.errors``. If the error's
    ``cause`` is REQUEST (no other host can help) and the found class has another cause, the result is an Invalid.
    """
    if not isinstance(error, errors.KilonovaError):
        return errors.KilonovaError(readable(error))
    if type(error).__module__ == errors.__name__:
        return error
    same: type[errors.KilonovaError] | None = getattr(errors, type(error).__name__, None)
    nearest = same or next(
        base
        for base in type(error).__mro__
        if issubclass(base, errors.KilonovaError) and base.__module__ == errors.__name__
    )
    if error.cause is errors.Cause.REQUEST and nearest.cause is not errors.Cause.REQUEST:
        nearest = errors.Invalid
    found: Exception = nearest(error.message)
    return found


def _log(method: str, key: str | None, error: Exception, uuid: str | None = None) -> None:
    what = method if key is None else f'{method} for step {key}'
    if isinstance(error, EXPECTED):
        LOG.info('The RPC call %s to this host ended without a result: %s', what, error, instance_uuid=uuid)
    elif isinstance(error, errors.KilonovaError):
        LOG.error('%s failed: %s', what, error, instance_uuid=uuid)
    else:
        LOG.error('%s failed', what, exc_info=error, instance_uuid=uuid)
