"""Transports of RPC messages, over RabbitMQ with oslo.messaging or inside one process.

    transport = OsloTransport(conf)
    server = transport.serve('conductor', 'host1', [(Conductor, manager), (ComputeTask, tasks)])
    server.start()

The two transports convert messages to JSON, so a test with ``DirectTransport`` finds values that can't be sent through
RabbitMQ. ``errors.Unanswered`` is raised if no reply arrives in time, for example because the broker is down. If a
server replies with an error of ``kilonova.errors``, ``send`` raises an error of the same class.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

import kombu.exceptions
import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging
from oslo_serialization import jsonutils

from kilonova import concurrency
from kilonova.context import RequestContext, get_admin_context
from kilonova.errors import REMOTE_MODULES, KilonovaError, Unanswered, Unsent
from kilonova.rpc import bounded
from kilonova.rpc.baseapi import BaseApi, BaseEndpoint
from kilonova.rpc.interface import RpcInterface, key

LOG = logging.getLogger(__name__)

EXCHANGE = 'nova'
# Errors that mean that the broker can't be reached. oslo.messaging raises some of them without wrapping them.
BROKER_AWAY = (
    messaging.MessageDeliveryFailure,
    kombu.exceptions.OperationalError,
    kombu.exceptions.ConnectionError,
    OSError,
    bounded.Overdue,
)
# With this option a call fails at once, and not after the time-out, if the receiver has no queue at the broker.
FOR_SOMEBODY = messaging.TransportOptions(at_least_once=True)
# Default of heartbeat_timeout_threshold: seconds without a heartbeat after which RabbitMQ counts as down.
HEARTBEAT = 20
# Maximum number of threads that hang while they send a message, because the broker does not answer.
# While HANGING threads hang, sending a further message fails at once.
HANGING = 8
# Time-out in seconds of the test call that makes oslo.messaging open the queue of replies.
PROBE = 3
# Maximum seconds for closing the connections to the broker.
CLOSING = 5.0


class Entities:
    """A serializer that leaves the arguments and results of calls unchanged.

    ``objects.base.Serializer`` has the same methods, and serializes Kilonova's objects.
    """

    def serialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
        """Return the value unchanged, because it must be JSON already."""
        return entity

    def deserialize_entity(self, ctxt: RequestContext, entity: object) -> Any:
        """Return the received value unchanged."""
        return entity


class _Serializer(messaging.NoOpSerializer):  # type: ignore[misc]  # oslo.messaging has no type hints
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


def _endpoint(interface: type[RpcInterface], implementation: object) -> object:
    """Return an oslo.messaging endpoint with the methods that the interface declares, and no other methods."""
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
    """Return the error in a form that receivers accept.

    This is the error itself if receivers know its class. Otherwise it is a KilonovaError whose text has the name of the
    class and the message.
    """
    return error if type(error).__module__ in REMOTE_MODULES else KilonovaError(f'{type(error).__name__}: {error}')


def _as_own(error: KilonovaError) -> KilonovaError:
    """Return a received error as an error of Kilonova's own class, with only the message.

    oslo.messaging raises errors of a class that it creates, whose text contains the traceback of the sender. The
    traceback must not get into a fault that a user reads.
    """
    own = next(cls for cls in type(error).__mro__ if cls.__module__ in REMOTE_MODULES)
    found: KilonovaError = own(error.message)
    return found


class OsloTransport:
    """A transport over RabbitMQ, or over another driver of oslo.messaging.

    The options ``rpc_send_timeout``, ``rpc_response_timeout`` and ``long_rpc_timeout`` limit all waits. oslo.messaging
    itself has no limit in two cases: when the first call of a process opens the queue of replies, and when a broker
    does not confirm a message. Therefore messages are sent in threads, and the calling thread waits no longer than the
    limits.
    """

    def __init__(self, conf: cfg.ConfigOpts, url: str | None = None, entities: Any = None) -> None:
        self._conf = conf
        messaging.set_transport_defaults(EXCHANGE)
        self._transport = messaging.get_rpc_transport(conf, url=url, allowed_remote_exmods=REMOTE_MODULES)
        # Create an unused client, because this registers oslo.messaging's options of clients, which other code reads.
        messaging.get_rpc_client(self._transport, messaging.Target())
        self._serializer = _Serializer(entities or Entities())
        self._clients: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()
        self._bounded = bounded.Bounded(HANGING)
        self._opening: Future[None] | None = None
        self._opening_since = 0.0
        rabbit = messaging.TransportURL.parse(conf, url).transport.startswith('rabbit')
        # True if this process can receive replies.
        # On RabbitMQ, the value is False until ``_open_replies`` has created the reply queue.
        # Drivers other than RabbitMQ's need no reply queue.
        self._replies_come = not rabbit
        if rabbit:
            conf.set_default('heartbeat_timeout_threshold', HEARTBEAT, group='oslo_messaging_rabbit')

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

        A cast that can't be sent is logged and raises nothing.

        Raises:
            Unanswered: No reply arrived in time, or no server listens.
            Unsent: The broker could not be reached.
            KilonovaError: The server replied with this error.
        """
        client = self._client(topic, namespace)
        options: dict[str, Any] = {'server': server, 'version': version}
        answered = 0
        if kind == 'call':
            answered = self._conf.rpc_response_timeout
        elif kind == 'long':
            answered = self._conf.long_rpc_timeout
            options.update(timeout=answered, call_monitor_timeout=self._conf.rpc_response_timeout)

        def act() -> Any:
            # Set the context of this thread, so that log lines of oslo.messaging have the id of the request.
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
                LOG.warning(
                    'Could not send the message %s.%s (%s); if it starts an operation, no action is needed, because a '
                    'conductor finds the operation in the database and runs it',
                    topic,
                    method,
                    error,
                )
                return None
            silence = Unanswered if isinstance(error, messaging.MessageUndeliverable) else Unsent
            raise silence(who=f'{topic} {server or ""}'.strip(), reason=f'{method}: {error}') from error

    def _await_replies(self) -> None:
        """Wait until this process has a queue for replies, which is opened when the first call is made.

        The broker must open the queue within rpc_send_timeout seconds. If it does not, Overdue is raised, and calls
        that are made later raise it at once.
        """
        if self._replies_come:
            return
        with self._lock:
            if self._opening is None or self._opening.done():
                self._opening, self._opening_since = bounded.begin(self._open_replies), time.monotonic()
            opening, since = self._opening, self._opening_since
        wait([opening], max(0.0, since + self._conf.rpc_send_timeout - time.monotonic()))
        if not opening.done():
            raise bounded.Overdue('RabbitMQ did not create the reply queue in time')
        opening.result()

    def _open_replies(self) -> None:
        """Open the queue of replies by a test call, because oslo.messaging opens the queue only when a call is made.

        The call is sent to a topic that no server has, so the broker returns the message, or the call times out.
        """
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
                    self._transport, target, serializer=self._serializer
                )
            return self._clients[topic, namespace]

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[RpcInterface], object]]) -> Any:
        """Return a server with start(), stop() and wait() that answers messages of the topic for the host ``server``.

        ``endpoints`` are pairs of an interface and the object that implements it. The server answers ``BaseApi`` as
        well. Raises TypeError if an object's methods differ from those that the interface declares.
        """
        target = messaging.Target(topic=topic, server=server)
        made = [_endpoint(interface, implementation) for interface, implementation in with_base(topic, endpoints)]
        executor = 'eventlet' if concurrency.backend() == 'eventlet' else 'threading'
        return messaging.get_rpc_server(
            self._transport,
            target,
            made,
            executor=executor,
            serializer=self._serializer,
            access_policy=messaging.DefaultRPCAccessPolicy,
        )

    def close(self) -> None:
        """Close the connections to the broker. Connections that hang are closed when the process ends."""
        try:
            self._bounded.run(self._transport.cleanup, CLOSING)
        except bounded.Overdue as error:
            LOG.info('Connections to the broker were not closed: %s', error)


def with_base(
    topic: str, endpoints: Sequence[tuple[type[RpcInterface], object]]
) -> list[tuple[type[RpcInterface], object]]:
    """Return the endpoints of a server, and in addition the endpoint of ``BaseApi``, which all servers have."""
    return [*endpoints, (BaseApi, BaseEndpoint(topic))]


class _Direct:
    """The server that ``DirectTransport.serve`` returns. It has no thread of its own."""

    def __init__(self, transport: DirectTransport, topic: str, server: str, endpoints: Sequence[Any]) -> None:
        self._transport, self._topic, self._server, self._endpoints = transport, topic, server, endpoints

    def start(self) -> None:
        self._transport.register(self._topic, self._server, self._endpoints)

    def stop(self) -> None:
        self._transport.unregister(self._topic, self._server)

    def wait(self) -> None:
        """Return at once, because the server has no thread."""


class DirectTransport:
    """A transport without a broker, for tests that run all daemons of a cloud in one process.

    A test may set two functions. ``on_message(kind, topic, server, method, args, deliver)`` is called for each message,
    and delivers it by ``deliver()``, drops it or raises an error. ``prepare(topic, server, ctxt)`` may change the
    context before a server's method is called.
    """

    def __init__(
        self,
        entities: Any = None,
        on_message: Callable[..., Any] | None = None,
        prepare: Callable[..., Any] | None = None,
    ) -> None:
        self._entities = entities or Entities()
        self._servers: dict[str, dict[str, Sequence[Any]]] = {}
        self.on_message, self.prepare = on_message, prepare
        self.casts: list[threading.Thread] = []
        self._lock = threading.Lock()

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[RpcInterface], object]]) -> _Direct:
        """Return a server for these endpoints. ``start()`` makes it reachable.

        ``endpoints`` are pairs of an interface and the object that implements it. Raises TypeError if an object's
        methods differ from those that the interface declares.
        """
        for interface, implementation in endpoints:
            interface.check_server(implementation)
        return _Direct(self, topic, server, with_base(topic, endpoints))

    def register(self, topic: str, server: str, endpoints: Sequence[Any]) -> None:
        """Make the endpoints of the server ``server`` reachable for messages of the topic."""
        self._servers.setdefault(topic, {})[server] = endpoints

    def unregister(self, topic: str, server: str) -> None:
        """Make the server ``server`` unreachable for messages of the topic."""
        self._servers.get(topic, {}).pop(server, None)

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
        """Deliver one message. A call runs in the caller's thread, a cast in a thread of its own.

        Objects in the reply have the caller's context, as they have in a reply that arrives over RabbitMQ.

        Raises Unanswered if no server listens, and the errors that the method raises.
        """
        wire = jsonutils.dumps(
            [ctxt.to_dict(), {name: self._entities.serialize_entity(ctxt, value) for name, value in args.items()}]
        )

        def deliver() -> Any:
            return self._read_reply(ctxt, self._deliver(topic, namespace, server, version, method, wire))

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
            LOG.debug('A cast failed: %s', error)

    def _deliver(
        self, topic: str, namespace: str | None, server: str | None, version: str, method: str, wire: str
    ) -> str:
        """Call the method of a server, and return its result as JSON text.

        ``wire`` is the JSON text of the caller's context and of the arguments.
        """
        servers = self._servers.get(topic, {})
        name = server or next(iter(servers), None)
        if name not in servers:
            raise Unanswered(who=f'{topic} {server or ""}'.strip(), reason=f'{method}: no server is listening')
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
        reply: str = jsonutils.dumps(self._entities.serialize_entity(ctxt, result))
        return reply

    def _read_reply(self, ctxt: RequestContext, reply: str) -> Any:
        """Return the result of a call from its JSON text. Objects in the result get the caller's context."""
        return self._entities.deserialize_entity(ctxt, jsonutils.loads(reply))

    @staticmethod
    def handler(
        endpoints: Sequence[Any], namespace: str | None, version: str, topic: str, method: str
    ) -> Callable[..., Any]:
        """Return the function ``handler(ctxt, **arguments)`` of a server that answers messages with this method.

        Raises UnsupportedVersion if the server's interface is too old for ``version``, and NoSuchMethod if no interface
        of the server declares the method.
        """
        for interface, implementation in endpoints:
            if interface.namespace == namespace and method in interface.methods():
                if key(version) > key(interface.version) or key(version)[0] != key(interface.version)[0]:
                    raise messaging.UnsupportedVersion(version, method=method)
                answer: Callable[..., Any] = getattr(implementation, method)
                return answer
        raise messaging.NoSuchMethod(method)

    @staticmethod
    def _as_remote(error: KilonovaError) -> KilonovaError:
        """Return the error as a remote caller would receive it, with its class and message only."""
        if type(error).__module__ not in REMOTE_MODULES:
            return KilonovaError(f'{type(error).__name__}: {error}')
        remote = getattr(importlib.import_module(type(error).__module__), type(error).__name__)
        found: KilonovaError = remote(error.message)
        return found
