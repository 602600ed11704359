"""Carry messages: over RabbitMQ with oslo.messaging, or inside one process.

    transport = OsloTransport(conf)
    server = transport.serve('conductor', 'host1', [(Conductor, manager), (ComputeTask, tasks)])
    server.start()

Both transports send only what JSON can carry, so that a test over ``DirectTransport`` sees what the bus would see.
Silence (a time-out, a broker that is gone or stands still) is ``errors.Unanswered``, within a set time; errors of
``kilonova.errors`` come back as their own class.
"""
from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

import kombu.exceptions
import oslo_messaging as messaging
from oslo_config import cfg
from oslo_serialization import jsonutils

from kilonova import concurrency
from kilonova.context import RequestContext, get_admin_context
from kilonova.errors import REMOTE_MODULES, KilonovaError, Unanswered, Unsent
from kilonova.rpc import bounded
from kilonova.rpc.baseapi import Base, BaseApi
from kilonova.rpc.interface import Interface, key

LOG = logging.getLogger(__name__)

EXCHANGE = 'nova'
# What sending comes to while the broker is away: oslo.messaging lets some of what is below it through.
BROKER_AWAY = (messaging.MessageDeliveryFailure, kombu.exceptions.OperationalError, kombu.exceptions.ConnectionError,
               OSError, bounded.Overdue)
# A call for whom no queue stands (the broker began anew, the receiver isn't back) ends at once, not after the time-out.
FOR_SOMEBODY = messaging.TransportOptions(at_least_once=True)
# Seconds of silence after which RabbitMQ counts as gone, unless another is configured (oslo.messaging: 60).
HEARTBEAT = 20
# Messages that may hang in the broker before further ones aren't sent at all.
HANGING = 8
# Seconds for which the broker keeps the message that opens the queue of replies.
PROBE = 3
# Seconds that giving the connections back may take.
CLOSING = 5.0


class Entities:
    """How objects in arguments and replies become primitives; ``objects.base.Serializer`` is one."""

    def serialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
        return entity

    def deserialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
        return entity


class _Serializer(messaging.NoOpSerializer):  # type: ignore[misc]  # oslo.messaging has no types
    def __init__(self, entities: Any) -> None:
        self._entities = entities

    def serialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
        return self._entities.serialize_entity(ctxt, entity)

    def deserialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
        return self._entities.deserialize_entity(ctxt, entity)

    def serialize_context(self, ctxt: RequestContext) -> dict[str, Any]:
        return ctxt.to_dict()

    def deserialize_context(self, values: dict[str, Any]) -> RequestContext:
        return RequestContext.from_dict(values)


def _endpoint(interface: type[Interface], implementation: object) -> object:
    """An oslo.messaging endpoint that shows exactly the declared methods."""
    interface.check_server(implementation)

    def method(name: str) -> Callable[..., Any]:
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
    found: KilonovaError = own(error.message)
    return found


class OsloTransport:
    """RabbitMQ (or any oslo.messaging driver). The time-outs ``rpc_send_timeout``, ``rpc_response_timeout`` and
    ``long_rpc_timeout`` are read from conf.

    oslo.messaging opens the queue of a process's replies with its first call, behind a lock and without an end, and
    a broker that accepts messages and confirms none can hold a sender for ever. So both happen in threads that nobody
    waits for longer than he may.
    """

    def __init__(self, conf: cfg.ConfigOpts, url: str | None = None, entities: Any = None) -> None:
        self._conf = conf
        messaging.set_transport_defaults(EXCHANGE)
        self._transport = messaging.get_rpc_transport(conf, url=url, allowed_remote_exmods=REMOTE_MODULES)
        # oslo.messaging registers the options of clients with the first one; others read them, too.
        messaging.get_rpc_client(self._transport, messaging.Target())
        self._serializer = _Serializer(entities or Entities())
        self._clients: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()
        self._bounded = bounded.Bounded(HANGING)
        self._opening: Future[None] | None = None
        self._opening_since = 0.0
        rabbit = messaging.TransportURL.parse(conf, url).transport.startswith('rabbit')
        # No other driver has such a queue.
        self._replies_come = not rabbit
        if rabbit:
            conf.set_default('heartbeat_timeout_threshold', HEARTBEAT, group='oslo_messaging_rabbit')

    def send(self, kind: str, topic: str, namespace: str | None, server: str | None, version: str,
             ctxt: RequestContext, method: str, args: dict[str, Any]) -> Any:
        client = self._client(topic, namespace)
        options: dict[str, Any] = {'server': server, 'version': version}
        answered = 0
        if kind == 'call':
            answered = self._conf.rpc_response_timeout
        elif kind == 'long':
            answered = self._conf.long_rpc_timeout
            options.update(timeout=answered, call_monitor_timeout=self._conf.rpc_response_timeout)

        def act() -> Any:
            # For what oslo.messaging logs.
            ctxt.update_store()
            if kind == 'cast':
                return client.prepare(retry=1, **options).cast(ctxt, method, **args)
            return client.prepare(retry=2, transport_options=FOR_SOMEBODY, **options).call(ctxt, method, **args)
        try:
            if kind != 'cast':
                self._await_replies()
            return self._bounded.run(act, self._conf.rpc_send_timeout + answered)
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

    def _await_replies(self) -> None:
        """Wait until replies can come; Overdue when the broker hasn't let us open their queue in time. Who comes while
        it is overdue doesn't wait."""
        if self._replies_come:
            return
        with self._lock:
            if self._opening is None or self._opening.done():
                self._opening, self._opening_since = bounded.begin(self._open_replies), time.monotonic()
            opening, since = self._opening, self._opening_since
        wait([opening], max(0.0, since + self._conf.rpc_send_timeout - time.monotonic()))
        if not opening.done():
            raise bounded.Overdue('the broker does not let us open a queue for replies')
        opening.result()

    def _open_replies(self) -> None:
        """A call to nobody: oslo.messaging opens the queue with it. The broker gives the message back, or hands it to
        somebody who listens to everything."""
        client = self._client('nobody', None).prepare(retry=1, timeout=PROBE, transport_options=FOR_SOMEBODY)
        try:
            client.call(get_admin_context(), 'ping')
        except (messaging.MessageUndeliverable, messaging.MessagingTimeout):
            self._replies_come = True

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
        """Give back the connections; those that hang end with the process."""
        try:
            self._bounded.run(self._transport.cleanup, CLOSING)
        except bounded.Overdue as error:
            LOG.info('Connections to the broker were not closed: %s', error)


def with_base(topic: str, endpoints: Sequence[tuple[type[Interface], object]]) -> list[tuple[type[Interface], object]]:
    """The endpoints of a server, and the one that all servers have."""
    return [*endpoints, (BaseApi, Base(topic))]


class _Direct:
    """A server of the direct transport."""

    def __init__(self, transport: DirectTransport, topic: str, server: str, endpoints: Sequence[Any]) -> None:
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

    def __init__(self, entities: Any = None, on_message: Callable[..., Any] | None = None,
                 prepare: Callable[..., Any] | None = None) -> None:
        self._entities = entities or Entities()
        self._servers: dict[str, dict[str, Sequence[Any]]] = {}
        self.on_message, self.prepare = on_message, prepare
        self.casts: list[threading.Thread] = []
        self._lock = threading.Lock()

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[Interface], object]]) -> _Direct:
        for interface, implementation in endpoints:
            interface.check_server(implementation)
        return _Direct(self, topic, server, with_base(topic, endpoints))

    def register(self, topic: str, server: str, endpoints: Sequence[Any]) -> None:
        self._servers.setdefault(topic, {})[server] = endpoints

    def unregister(self, topic: str, server: str) -> None:
        self._servers.get(topic, {}).pop(server, None)

    def send(self, kind: str, topic: str, namespace: str | None, server: str | None, version: str,
             ctxt: RequestContext, method: str, args: dict[str, Any]) -> Any:
        wire = jsonutils.dumps([ctxt.to_dict(), {name: self._entities.serialize_entity(ctxt, value)
                                                 for name, value in args.items()}])

        def deliver() -> Any:
            return self._deliver(topic, namespace, server, version, method, wire)

        def run() -> Any:
            return self.on_message(kind, topic, server, method, args, deliver) if self.on_message else deliver()

        if kind != 'cast':
            return run()
        thread = concurrency.spawn(self._cast, run, name=f'cast-{method}')
        with self._lock:
            self.casts = [*(each for each in self.casts if each.is_alive()), thread]
        return None

    @staticmethod
    def _cast(run: Callable[..., Any]) -> None:
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
        handle = self.handler(servers[name], namespace, version, topic, method)
        kwargs = {arg: self._entities.deserialize_entity(ctxt, value) for arg, value in args.items()}
        try:
            result = handle(ctxt, **kwargs)
        except KilonovaError as error:
            raise self._as_remote(error) from error
        reply = jsonutils.dumps(self._entities.serialize_entity(ctxt, result))
        return self._entities.deserialize_entity(ctxt, jsonutils.loads(reply))

    @staticmethod
    def handler(endpoints: Sequence[Any], namespace: str | None, version: str, topic: str,
                method: str) -> Callable[..., Any]:
        """What answers a message: ``handler(ctxt, **arguments)``."""
        for interface, implementation in endpoints:
            if interface.namespace == namespace and method in interface.methods():
                if key(version) > key(interface.version) or key(version)[0] != key(interface.version)[0]:
                    raise messaging.UnsupportedVersion(version, method=method)
                answer: Callable[..., Any] = getattr(implementation, method)
                return answer
        raise messaging.NoSuchMethod(method)

    @staticmethod
    def _as_remote(error: KilonovaError) -> KilonovaError:
        """What the other side of a bus would see: class and message, nothing else."""
        if type(error).__module__ not in REMOTE_MODULES:
            return KilonovaError(f'{type(error).__name__}: {error}')
        remote = getattr(importlib.import_module(type(error).__module__), type(error).__name__)
        found: KilonovaError = remote(error.message)
        return found
