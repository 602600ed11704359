"""Declare an RPC interface once; derive its client and check its server.

    class Scheduler(Interface):
        topic, version = 'scheduler', '4.5'

        @long_call('4.4', claim='4.5')
        def select_destinations(self, ctxt, spec_obj, instance_uuids, claim=True): ...

    client = Client(Scheduler, transport, cap='4.4')
    client.select_destinations(ctxt, spec_obj=spec, instance_uuids=[uuid])

A client sends each message at the lowest version that carries its arguments. Under a cap it leaves out arguments that
are newer.
"""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from kilonova.context import RequestContext
from kilonova.errors import KilonovaError


class VersionCapError(KilonovaError):
    """The peer is too old for this message."""

    msg_fmt = 'Requested message version, %(version)s is incompatible: the peer accepts up to %(cap)s.'


@functools.cache
def _signature(declared: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(declared)


@dataclass(frozen=True)
class Declared:
    """``kind``: cast, call or long. ``args_since``: argument → version it came with."""

    kind: str
    since: str
    args_since: dict[str, str] = field(default_factory=dict)


def _declare(kind: str, since: str, args_since: dict[str, str]) -> Callable[..., Any]:
    def mark(func: Callable[..., Any]) -> Callable[..., Any]:
        func.rpc = Declared(kind, since, args_since)  # type: ignore[attr-defined]
        return func
    return mark


def cast(since: str, **args_since: str) -> Callable[..., Any]:
    """Fire and forget; losing it must not matter (a sweep finds the row)."""
    return _declare('cast', since, args_since)


def call(since: str, **args_since: str) -> Callable[..., Any]:
    """Wait for the reply, rpc_response_timeout seconds at most."""
    return _declare('call', since, args_since)


def long_call(since: str, **args_since: str) -> Callable[..., Any]:
    """Wait for the reply as long as the server's heartbeats come, long_rpc_timeout seconds at most."""
    return _declare('long', since, args_since)


class Interface:
    """Base of every interface; subclasses hold decorated, bodiless methods. A large one is put together from several,
    each of one subject."""

    topic: ClassVar[str]
    namespace: ClassVar[str | None] = None
    version: ClassVar[str]

    @classmethod
    @functools.cache
    def methods(cls) -> dict[str, Callable[..., Any]]:
        """Every declared method by name, those of its bases too. Shared: don't change it."""
        return {name: func for base in cls.__mro__ for name, func in vars(base).items() if hasattr(func, 'rpc')}

    @classmethod
    def arguments(cls, method: str) -> frozenset[str]:
        """The names of what a method takes besides the context."""
        return frozenset(_signature(cls.methods()[method]).parameters) - {'self', 'ctxt'}

    @classmethod
    def fingerprint(cls) -> dict[str, list[Any]]:
        """What must not change without a new version (a test compares it)."""
        return {name: [func.rpc.kind, func.rpc.since, _plain(inspect.signature(func)),  # type: ignore[attr-defined]
                       func.rpc.args_since]  # type: ignore[attr-defined]
                for name, func in cls.methods().items()}

    @classmethod
    def check_server(cls, endpoint: object) -> None:
        """Refuse to start a server whose signatures drifted from the declaration."""
        for name, func in cls.methods().items():
            have = getattr(endpoint, name, None)
            if have is None:
                raise TypeError(f'{cls.topic}.{name} has no implementation in {type(endpoint).__name__}')
            wanted = [(p.name, p.default) for p in list(_signature(func).parameters.values())[1:]]
            found = [(p.name, p.default) for p in inspect.signature(have).parameters.values()]
            if wanted != found:
                raise TypeError(f'{cls.topic}.{name}: {found} is not {wanted}')


def _plain(signature: inspect.Signature) -> str:
    return ', '.join(name if p.default is p.empty else f'{name}={p.default!r}'
                     for name, p in signature.parameters.items() if name != 'self')


class Transport(Protocol):
    """What a client needs of a transport: see ``transport``."""

    def send(self, kind: str, topic: str, namespace: str | None, server: str | None, version: str,
             ctxt: RequestContext, method: str, args: dict[str, Any]) -> Any:
        """Deliver one message; returns the reply of a call, None for a cast."""


class Server(Transport, Protocol):
    """A transport that takes messages as well."""

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[Interface], object]]) -> Any:
        """What listens for the topic's messages once it is started."""


class Client:
    """Sends each declared method at a version that the peer accepts. ``cap``: newest version of the peer, None =
    ours; or a function that gives it, asked for each message."""

    def __init__(self, interface: type[Interface], transport: Transport,
                 cap: str | Callable[[], str | None] | None = None) -> None:
        self.interface = interface
        self._cap, self._transport = cap, transport

    @property
    def cap(self) -> str | None:
        """The newest version that the peer accepts, as far as is known now."""
        return self._cap() if callable(self._cap) else self._cap

    def __getattr__(self, name: str) -> Callable[..., Any]:
        func = self.interface.methods().get(name)
        if func is None:
            raise AttributeError(f'{self.interface.__name__} declares no method {name}')
        declared: Declared = func.rpc  # type: ignore[attr-defined]
        signature = _signature(func)

        def send(ctxt: RequestContext, *, server: str | None = None, **kwargs: Any) -> Any:
            signature.bind(self, ctxt, **kwargs)
            version, args = self._fit(declared, kwargs)
            return self._transport.send(declared.kind, self.interface.topic, self.interface.namespace, server,
                                        version, ctxt, name, args)
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
    """Whether a peer that accepts messages up to ``cap`` (None: any) accepts one of this version."""
    return cap is None or (key(version)[0] == key(cap)[0] and key(version) <= key(cap))


def key(version: str) -> tuple[int, ...]:
    """'1.10' → (1, 10), for comparing."""
    return tuple(map(int, version.split('.')))
