"""Declare RPC interfaces as classes. The client of an interface, and the check of its server, are made from the class.

    class Scheduler(RpcInterface):
        topic, version = 'scheduler', '4.5'

        @long_call('4.4', claim='4.5')
        def select_destinations(self, ctxt, spec_obj, instance_uuids, claim=True): ...

    client = Client(Scheduler, transport, cap='4.4')
    client.select_destinations(ctxt, spec_obj=spec, instance_uuids=[uuid])

A client sends each message with the lowest version of the interface that has the arguments of the message. If ``cap``
limits the version, arguments that are newer than ``cap`` are left out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from kilonova.context import RequestContext
from kilonova.errors import KilonovaError

_F = TypeVar('_F', bound=Callable[..., Any])


class VersionCapError(KilonovaError):
    """The receiver accepts only older versions of the interface, which do not have this method."""

    msg_fmt = 'Requested message version, %(version)s is incompatible: the peer accepts up to %(cap)s.'


@dataclass(frozen=True)
class Declared:
    """The declaration of an RPC method.

    ``kind`` is 'cast', 'call' or 'long'. ``since`` is the version that introduced the method. ``args_since`` is a dict
    from the name of an argument to the version that introduced the argument. If ``keyed`` is True, the message has a
    further argument ``key``, the step key, which is not among the declared parameters.
    """

    kind: str
    since: str
    args_since: dict[str, str] = field(default_factory=dict)
    keyed: bool = False


@functools.cache
def signature_of(declared: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a declared method, with ``key`` as the last parameter if the message has one."""
    signature = inspect.signature(declared)
    if not declared.rpc.keyed:  # type: ignore[attr-defined]
        return signature
    key = inspect.Parameter('key', inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature.replace(parameters=[*signature.parameters.values(), key])


def _declare(kind: str, since: str, args_since: dict[str, str], *, keyed: bool = False) -> Callable[[_F], _F]:
    def mark(func: _F) -> _F:
        func.rpc = Declared(kind, since, args_since, keyed)  # type: ignore[attr-defined]
        return func

    return mark


def cast(since: str, **args_since: str) -> Callable[[_F], _F]:
    """Declare a method whose messages are sent without waiting for a reply.

    ``since`` is the version of the interface that introduced the method. ``args_since`` maps each argument that was
    added later to the version that introduced it.

    A message may get lost, and this must do no harm. If a message that names an operation row is lost, conductors find
    the row later, because they search the databases periodically.
    """
    return _declare('cast', since, args_since)


def call(since: str, **args_since: str) -> Callable[[_F], _F]:
    """Declare a method whose caller waits for the reply for at most rpc_response_timeout seconds.

    ``since`` is the version of the interface that introduced the method. ``args_since`` maps each argument that was
    added later to the version that introduced it.
    """
    return _declare('call', since, args_since)


def long_call(since: str, **args_since: str) -> Callable[[_F], _F]:
    """Declare a method whose caller waits for the reply for at most long_rpc_timeout seconds.

    The wait ends earlier if the receiver stops sending heartbeats.

    ``since`` is the version of the interface that introduced the method. ``args_since`` maps each argument that was
    added later to the version that introduced it.
    """
    return _declare('long', since, args_since)


def step_call(since: str, **args_since: str) -> Callable[[_F], _F]:
    """Declare a method that runs a step of an operation on a host. Its caller waits as long as for a ``long_call``.

    The message also has the argument ``key``, the step key, which is not among the declared parameters.

    ``since`` is the version of the interface that introduced the method. ``args_since`` maps each argument that was
    added later to the version that introduced it.
    """
    return _declare('long', since, args_since, keyed=True)


class RpcInterface:
    """Base class of all RPC interfaces. Subclasses have a topic, a version and decorated methods without a body.

    A large interface inherits its methods from several base classes, one for each subject.
    """

    topic: ClassVar[str]
    namespace: ClassVar[str | None] = None
    version: ClassVar[str]

    @classmethod
    @functools.cache
    def methods(cls) -> dict[str, Callable[..., Any]]:
        """Return all declared methods by name, including those of base classes.

        The dict is shared and must not be changed.
        """
        return {name: func for base in cls.__mro__ for name, func in vars(base).items() if hasattr(func, 'rpc')}

    @classmethod
    def arguments(cls, method: str) -> frozenset[str]:
        """Return the names of a method's arguments, except the context."""
        return frozenset(signature_of(cls.methods()[method]).parameters) - {'self', 'ctxt'}

    @classmethod
    def fingerprint(cls) -> dict[str, list[Any]]:
        """Return the declared methods with their signatures and versions, as a dict from name to list.

        A test compares the dict with a stored one, so that no method is changed without a new version.
        """
        return {
            name: [call.kind, call.since, _plain(signature_of(func)), call.args_since]
            for name, func in cls.methods().items()
            for call in (func.rpc,)  # type: ignore[attr-defined]
        }

    @classmethod
    def check_server(cls, endpoint: object) -> None:
        """Check that ``endpoint`` has all declared methods with the declared parameters, before its server starts.

        Raises TypeError if a method is missing or has other parameters.
        """
        for name, func in cls.methods().items():
            have = getattr(endpoint, name, None)
            if have is None:
                raise TypeError(f'{cls.topic}.{name} has no implementation in {type(endpoint).__name__}')
            wanted = [(p.name, p.default) for p in list(signature_of(func).parameters.values())[1:]]
            found = [(p.name, p.default) for p in inspect.signature(have).parameters.values()]
            if wanted != found:
                raise TypeError(f'{cls.topic}.{name} has the parameters {found}, not {wanted}')


def _plain(signature: inspect.Signature) -> str:
    return ', '.join(
        name if p.default is p.empty else f'{name}={p.default!r}'
        for name, p in signature.parameters.items()
        if name != 'self'
    )


class ClientTransport(Protocol):
    """The interface of a transport that clients use. The module ``transport`` has the implementations."""

    def send(
        self,
        kind: str,
        topic: str,
        namespace: str | None,
        server: str | None,
        version: str,
        ctxt: RequestContext,
        method: str,
        args: dict[str, Any],
    ) -> Any:
        """Send one message. Return the reply if ``kind`` is 'call' or 'long', and None if it is 'cast'.

        A 'call' waits for its reply for at most rpc_response_timeout seconds, and a 'long' for long_rpc_timeout
        seconds. ``topic`` and ``namespace`` are those of the interface. ``server`` is the receiving host, or None for
        any host. ``version`` is the version of the message.
        """


class ServerTransport(ClientTransport, Protocol):
    """The interface of a transport that can also create RPC servers, which receive messages."""

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[RpcInterface], object]]) -> Any:
        """Return an RPC server, which the caller starts.

        After its start, the RPC server receives the messages that are sent to ``topic`` for the host ``server``.
        ``endpoints`` are pairs of an interface and the object that implements it.
        """


class Client:
    """The client of an RPC interface, with one method for each declared method of the interface.

    Messages are sent with a version that the receiver accepts. ``cap`` is the newest version that the receiver accepts,
    or None if the receiver accepts all versions. ``cap`` may also be a function that returns the version or None; it is
    called for each message.
    """

    def __init__(
        self,
        interface: type[RpcInterface],
        transport: ClientTransport,
        cap: str | Callable[[], str | None] | None = None,
    ) -> None:
        self.interface = interface
        self._cap, self._transport = cap, transport

    @property
    def cap(self) -> str | None:
        """The newest version that the receiver accepts at present, or None if it accepts all versions."""
        return self._cap() if callable(self._cap) else self._cap

    def __getattr__(self, name: str) -> Callable[..., Any]:
        func = self.interface.methods().get(name)
        if func is None:
            raise AttributeError(f'{self.interface.__name__} declares no method {name}')
        declared: Declared = func.rpc  # type: ignore[attr-defined]
        signature = signature_of(func)

        def send(ctxt: RequestContext, *, server: str | None = None, **kwargs: Any) -> Any:
            signature.bind(self, ctxt, **kwargs)
            version, args = self._fit(declared, kwargs)
            return self._transport.send(
                declared.kind, self.interface.topic, self.interface.namespace, server, version, ctxt, name, args
            )

        send.__name__ = name
        setattr(self, name, send)
        return send

    def _fit(self, declared: Declared, kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        cap = self.cap
        if not within(declared.since, cap):
            raise VersionCapError(version=declared.since, cap=cap)
        version, args = declared.since, dict(kwargs)
        for argument, since in declared.args_since.items():
            if argument not in args:
                continue
            if not within(since, cap):
                del args[argument]
            elif args[argument] is not None:
                version = max(version, since, key=key)
        return version, args


def within(version: str, cap: str | None) -> bool:
    """Return whether a receiver accepts a message of this version.

    ``cap`` is the newest version that the receiver accepts, or None if it accepts all versions.
    """
    return cap is None or (key(version)[0] == key(cap)[0] and key(version) <= key(cap))


def key(version: str) -> tuple[int, ...]:
    """Return the version as a tuple of numbers, which can be compared. For example, '1.10' becomes (1, 10)."""
    return tuple(map(int, version.split('.')))
