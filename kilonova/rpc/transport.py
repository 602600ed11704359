"""Carry messages: over RabbitMQ with oslo.messaging, or inside one process.

    transport = OsloTransport(conf)
    server = transport.serve('conductor', 'host1', [(Conductor, manager), (ComputeTask, tasks)])
    server.start()

Both transports send only what JSON can carry, so that a test over ``DirectTransport`` sees what the bus would see.
Silence (a time-out, a broker that is gone) is ``errors.Unanswered``; errors of ``kilonova.errors`` come back as their
own class.
"""
from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import kombu.exceptions
import oslo_messaging as messaging
from oslo_serialization import jsonutils

from kilonova import concurrency
from kilonova.context import RequestContext
from kilonova.errors import REMOTE_MODULES, KilonovaError, Unanswered, Unsent
from kilonova.rpc.baseapi import Base, BaseApi
from kilonova.rpc.interface import Interface, key

LOG = logging.getLogger(__name__)

EXCHANGE = 'nova'
# What sending comes to while the broker is away: oslo.messaging lets some of what is below it through.
BROKER_AWAY = (messaging.MessageDeliveryFailure, kombu.exceptions.OperationalError, kombu.exceptions.ConnectionError,
               OSError)
# A call for whom no queue stands (the broker began anew, the receiver isn't back) ends at once, not after the time-out.
FOR_SOMEBODY = messaging.TransportOptions(at_least_once=True)


class Entities:
    """How objects in arguments and replies become primitives; ``objects.base.Serializer`` is one."""

    def serialize_entity(self, ctxt: Any, entity: Any) -> Any:
        return entity

    def deserialize_entity(self, ctxt: Any, entity: Any) -> Any:
        return entity


class _Serializer(messaging.NoOpSerializer):
    def __init__(self, entities: Any) -> None:
        self._entities = entities

    def serialize_entity(self, ctxt: Any, entity: Any) -> Any:
        return self._entities.serialize_entity(ctxt, entity)

    def deserialize_entity(self, ctxt: Any, entity: Any) -> Any:
        return self._entities.deserialize_entity(ctxt, entity)

    def serialize_context(self, ctxt: Any) -> dict:
        return ctxt.to_dict()

    def deserialize_context(self, values: dict) -> RequestContext:
        return RequestContext.from_dict(values)


def _endpoint(interface: type[Interface], implementation: object) -> object:
    """An oslo.messaging endpoint that shows exactly the declared methods."""
    interface.check_server(implementation)

    def method(name: str) -> Callable:
        target = getattr(implementation, name)

        def handle(self: object, ctxt: RequestContext, **kwargs: Any) -> Any:
            try:
                return target(ctxt, **kwargs)
            except KilonovaError as error:
                LOG.debug('%s answers %s: %s', name, type(error).__name__, error)
                answer = _for_the_bus(error)
            try:
                raise answer
            except KilonovaError as error:
                raise messaging.ExpectedException from error
        return handle

    members: dict[str, Any] = {name: method(name) for name in interface.methods()}
    members['target'] = messaging.Target(namespace=interface.namespace, version=interface.version)
    return type(interface.__name__ + 'Endpoint', (), members)()


def _for_the_bus(error: KilonovaError) -> KilonovaError:
    """The error itself, or its name and text where the other side would not take its class."""
    return error if type(error).__module__ in REMOTE_MODULES else KilonovaError(f'{type(error).__name__}: {error}')


def _as_own(error: KilonovaError) -> KilonovaError:
    """The class and the message alone: oslo.messaging makes a class of its own whose text holds the other side's
    traceback, which must not get into a fault that a user reads."""
    own = next(cls for cls in type(error).__mro__ if cls.__module__ in REMOTE_MODULES)
    return own(error.message)


class OsloTransport:
    """RabbitMQ (or any oslo.messaging driver). ``rpc_response_timeout`` and ``long_rpc_timeout`` are read from conf."""

    def __init__(self, conf: Any, url: str | None = None, entities: Any = None) -> None:
        self._conf = conf
        messaging.set_transport_defaults(EXCHANGE)
        self._transport = messaging.get_rpc_transport(conf, url=url, allowed_remote_exmods=REMOTE_MODULES)
        self._serializer = _Serializer(entities or Entities())
        self._clients: dict[tuple, Any] = {}
        self._lock = threading.Lock()

    def send(self, kind: str, topic: str, namespace: str | None, server: str | None, version: str,
             ctxt: Any, method: str, args: dict[str, Any]) -> Any:
        client = self._client(topic, namespace)
        options: dict[str, Any] = {'server': server, 'version': version}
        try:
            if kind == 'cast':
                client.prepare(retry=1, **options).cast(ctxt, method, **args)
                return None
            if kind == 'long':
                options.update(timeout=self._conf.long_rpc_timeout,
                               call_monitor_timeout=self._conf.rpc_response_timeout)
            return client.prepare(retry=2, transport_options=FOR_SOMEBODY, **options).call(ctxt, method, **args)
        except KilonovaError as error:
            raise _as_own(error) from error
        except messaging.MessagingTimeout as error:
            raise Unanswered(who=f'{topic} {server or ""}'.strip(), reason=f'{method}: timed out') from error
        except (messaging.MessageUndeliverable, *BROKER_AWAY) as error:
            if kind == 'cast':
                LOG.warning('cast of %s.%s not sent (%s); its row will be found by the sweep', topic, method, error)
                return None
            silence = Unanswered if isinstance(error, messaging.MessageUndeliverable) else Unsent
            raise silence(who=f'{topic} {server or ""}'.strip(), reason=f'{method}: {error}') from error

    def _client(self, topic: str, namespace: str | None) -> Any:
        with self._lock:
            if (topic, namespace) not in self._clients:
                target = messaging.Target(topic=topic, namespace=namespace)
                self._clients[topic, namespace] = messaging.get_rpc_client(
                    self._transport, target, serializer=self._serializer)
            return self._clients[topic, namespace]

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[Interface], object]]) -> Any:
        """A server with start(), stop(), wait(); it refuses endpoints whose signatures drifted. It answers ``BaseApi``,
        too."""
        target = messaging.Target(topic=topic, server=server)
        made = [_endpoint(interface, implementation) for interface, implementation in with_base(topic, endpoints)]
        executor = 'eventlet' if concurrency.backend() == 'eventlet' else 'threading'
        return messaging.get_rpc_server(self._transport, target, made, executor=executor, serializer=self._serializer,
                                        access_policy=messaging.DefaultRPCAccessPolicy)

    def close(self) -> None:
        """Give back the connections."""
        self._transport.cleanup()


def with_base(topic: str, endpoints: Sequence[tuple[type[Interface], object]]) -> list[tuple[type[Interface], object]]:
    """The endpoints of a server, and the one that all servers have."""
    return [*endpoints, (BaseApi, Base(topic))]


class _Direct:
    """A server of the direct transport."""

    def __init__(self, transport: DirectTransport, topic: str, server: str, endpoints: Sequence) -> None:
        self._transport, self._topic, self._server, self._endpoints = transport, topic, server, endpoints

    def start(self) -> None:
        self._transport.register(self._topic, self._server, self._endpoints)

    def stop(self) -> None:
        self._transport.unregister(self._topic, self._server)

    def wait(self) -> None:
        """Nothing runs on its own."""


class DirectTransport:
    """Messages inside one process, for tests that run a whole cloud in it: no broker, no waiting.

    ``on_message(kind, topic, server, method, args, deliver)`` may watch, lose or fail messages; it returns
    ``deliver()``'s result. ``prepare(topic, server, ctxt)`` may dress the context that a server's methods get.
    """

    def __init__(self, entities: Any = None, on_message: Callable | None = None,
                 prepare: Callable | None = None) -> None:
        self._entities = entities or Entities()
        self._servers: dict[str, dict[str, Sequence]] = {}
        self.on_message, self.prepare = on_message, prepare
        self.casts: list[threading.Thread] = []

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[Interface], object]]) -> _Direct:
        for interface, implementation in endpoints:
            interface.check_server(implementation)
        return _Direct(self, topic, server, with_base(topic, endpoints))

    def register(self, topic: str, server: str, endpoints: Sequence) -> None:
        self._servers.setdefault(topic, {})[server] = endpoints

    def unregister(self, topic: str, server: str) -> None:
        self._servers.get(topic, {}).pop(server, None)

    def send(self, kind: str, topic: str, namespace: str | None, server: str | None, version: str,
             ctxt: Any, method: str, args: dict[str, Any]) -> Any:
        wire = jsonutils.dumps([ctxt.to_dict(), {name: self._entities.serialize_entity(ctxt, value)
                                                 for name, value in args.items()}])

        def deliver() -> Any:
            return self._deliver(topic, namespace, server, version, method, wire)

        def run() -> Any:
            return self.on_message(kind, topic, server, method, args, deliver) if self.on_message else deliver()

        if kind != 'cast':
            return run()
        self.casts = [thread for thread in self.casts if thread.is_alive()]
        self.casts.append(concurrency.spawn(self._cast, run, name=f'cast-{method}'))
        return None

    @staticmethod
    def _cast(run: Callable) -> None:
        try:
            run()
        except KilonovaError as error:
            LOG.debug('cast answered %s', error)

    def _deliver(self, topic: str, namespace: str | None, server: str | None, version: str, method: str,
                 wire: str) -> Any:
        servers = self._servers.get(topic, {})
        name = server or next(iter(servers), None)
        if name not in servers:
            raise Unanswered(who=f'{topic} {server or ""}'.strip(), reason=f'{method}: nobody listens')
        context, args = jsonutils.loads(wire)
        ctxt = RequestContext.from_dict(context)
        if self.prepare:
            self.prepare(topic, name, ctxt)
        implementation = self._find(servers[name], namespace, version, topic, method)
        kwargs = {arg: self._entities.deserialize_entity(ctxt, value) for arg, value in args.items()}
        try:
            result = getattr(implementation, method)(ctxt, **kwargs)
        except KilonovaError as error:
            raise self._as_remote(error) from error
        reply = jsonutils.dumps(self._entities.serialize_entity(ctxt, result))
        return self._entities.deserialize_entity(ctxt, jsonutils.loads(reply))

    @staticmethod
    def _find(endpoints: Sequence, namespace: str | None, version: str, topic: str, method: str) -> object:
        for interface, implementation in endpoints:
            if interface.namespace == namespace and method in interface.methods():
                if key(version) > key(interface.version) or key(version)[0] != key(interface.version)[0]:
                    raise messaging.UnsupportedVersion(version, method=method)
                return implementation
        raise messaging.NoSuchMethod(method)

    @staticmethod
    def _as_remote(error: KilonovaError) -> KilonovaError:
        """What the other side of a bus would see: class and message, nothing else."""
        if type(error).__module__ not in REMOTE_MODULES:
            return KilonovaError(f'{type(error).__name__}: {error}')
        remote = getattr(importlib.import_module(type(error).__module__), type(error).__name__)
        return remote(error.message)
