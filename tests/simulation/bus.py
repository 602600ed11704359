"""A model of RabbitMQ with oslo.messaging on both ends.

    bus = Bus(timeline, links)
    transport = bus.transport('conductor1', conf)        # a kilonova.rpc transport of that process

A queue for each topic and each server of it. Messages outlive a dead receiver, calls expire in the queue after their
time-out, a receiver acknowledges a message before it handles it and handles a bounded number at once, replies may be
lost. Arguments travel as JSON, as on the real bus.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import oslo_messaging as messaging
from oslo_serialization import jsonutils

from kilonova import objects
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.errors import KilonovaError, Unanswered, Unsent
from kilonova.rpc.interface import RpcInterface
from kilonova.rpc.transport import DirectTransport, with_base
from tests.simulation.links import OPEN, Links
from tests.simulation.timeline import Process, Timeline, Waiter

# Seconds until a sender gives up a broker that it can't reach, and until a receiver does with a reply.
SEND_PATIENCE, REPLY_PATIENCE = 10.0, 60.0
# Messages that one server handles at once.
HANDLERS = 16
# Usual seconds that a message is on its way.
TRAVEL = 0.002


@dataclass
class Weather:
    """What becomes of messages: chances of being lost, doubled or late, and how late (s)."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_by: float = 0.0
    # Of casts alone.
    lost_casts: float = 0.0


@dataclass
class Message:
    """One cast or call on its way."""

    kind: str
    topic: str
    namespace: str | None
    server: str | None
    version: str
    method: str
    wire: str
    sender: str
    seed: int
    number: int
    # When the broker throws it away, and when its sender stops waiting.
    expires: float | None = None
    deadline: float = 0.0
    reply: Waiter | None = None
    answer: tuple[str, Any] | None = None
    handled_by: Process | None = None
    handling: bool = False

    def __str__(self) -> str:
        return f'{self.topic}.{self.method} #{self.number}'


@dataclass
class Server:
    """A process that listens."""

    process: Process
    topic: str
    name: str
    endpoints: Sequence
    transport: Transport
    busy: int = 0
    taken: list[tuple[str, Message]] = field(default_factory=list)


class Bus:
    """The broker. ``weather`` changes during a run; ``prepare(topic, server, ctxt)`` dresses contexts."""

    def __init__(self, timeline: Timeline, links: Links) -> None:
        self.timeline, self.links = timeline, links
        self.queues: dict[str, list[Message]] = {}
        self.servers: list[Server] = []
        self.weather = Weather()
        # (method, seconds): the next such message comes once more, so much later.
        self.echoes: list[tuple[str, float]] = []
        self.prepare: Callable[[str, str, Any], None] = lambda topic, server, ctxt: None
        # What processes do with reports of hosts.
        self.collectors: dict[Process, Callable[[dict[int, str]], None]] = {}
        self._turn = itertools.count()
        self.sent = itertools.count(1)
        self.messages = 0
        links.changed.append(self.pump)

    def transport(self, process: str, conf: Any) -> Transport:
        """A transport of one process."""
        return Transport(self, process, conf)

    def report(self, sender: str, service_id: int, host: str) -> None:
        """A report of a host that one of those who collect takes within a second (``kilonova.rpc.reports``)."""
        timeline = self.timeline
        timeline.step()
        if self.links.reach(sender, 'broker', SEND_PATIENCE) != OPEN:
            raise Unanswered(who='conductor', reason='no broker')
        takers = [process for process in self.collectors if not process.dead]
        if not takers:
            raise Unanswered(who='conductor', reason='nobody takes reports')
        taker, chance = takers[next(self._turn) % len(takers)], timeline.random()
        if self.links.state(taker.name, 'broker') != OPEN or chance.random() < self.weather.lost:
            timeline.tell(f'the report of {host} is lost', 'broker')
            return
        take = self.collectors[taker]

        def work() -> None:
            try:
                take({service_id: host})
            except Exception as error:
                if not engine.is_unreachable(error):
                    raise
                timeline.tell(f'the report of {host} is lost: no database')

        timeline.after(chance.random(), lambda: timeline.spawn(taker, work, 'report', background=True), taker)

    # -- the broker ---------------------------------------------------------------------------------------------------
    def arrive(self, message: Message) -> None:
        """A message reaches its queue."""
        name = _queue(message.topic, message.server)
        if name in self.queues:
            self.queues[name].append(message)
            self.pump()

    def declare(self, server: Server) -> None:
        """A server listens; its queues are there from now on."""
        self.servers.append(server)
        for name in (server.topic, _queue(server.topic, server.name)):
            self.queues.setdefault(name, [])
        self.pump()

    def leave(self, process: Process) -> None:
        """A process is gone: what it took and hadn't begun goes back."""
        self.collectors.pop(process, None)
        for server in [one for one in self.servers if one.process is process]:
            self.servers.remove(server)
            self._give_back(server)
        self.pump()

    def _give_back(self, server: Server) -> None:
        for name, message in reversed(server.taken):
            self.queues.setdefault(name, []).insert(0, message)
        server.taken.clear()

    def requeue(self, process: Process) -> None:
        """The broker closes the connection of a process that stands still for long."""
        for server in self.servers:
            if server.process is process:
                self._give_back(server)
        self.pump()

    def restart(self) -> None:
        """Queues that aren't durable are gone with what was in them; those who listen declare them again."""
        self.queues.clear()
        for server in self.servers:
            server.taken.clear()

            def again(server: Server = server) -> None:
                if server in self.servers:
                    for name in (server.topic, _queue(server.topic, server.name)):
                        self.queues.setdefault(name, [])

            self.timeline.after(1.0 + self.timeline.random().random() * 4, again)

    def pump(self) -> None:
        """Hand out what waits."""
        now = self.timeline.now
        for name, waiting in self.queues.items():
            while waiting:
                if waiting[0].expires is not None and waiting[0].expires <= now:
                    self.timeline.tell(f'{waiting.pop(0)} expired in the queue', 'broker')
                    continue
                server = self._receiver(name)
                if server is None:
                    break
                message = waiting.pop(0)
                server.busy += 1
                server.taken.append((name, message))
                self.timeline.after(
                    TRAVEL * 0.2, lambda server=server, message=message: self._handle(server, message), server.process
                )

    def _receiver(self, queue: str) -> Server | None:
        ready = [
            server
            for server in self.servers
            if queue in (server.topic, _queue(server.topic, server.name))
            and server.busy < HANDLERS
            and not (server.process.stopped and len(server.taken) > 3)
            and self.links.state(server.process.name, 'broker') == OPEN
        ]
        return ready[next(self._turn) % len(ready)] if ready else None

    def _handle(self, server: Server, message: Message) -> None:
        entry = next((entry for entry in server.taken if entry[1] is message), None)
        if entry is None:
            server.busy -= 1
            return
        server.taken.remove(entry)
        message.handled_by, message.handling = server.process, True
        self.timeline.spawn(
            server.process,
            lambda: self._work(server, message),
            message.method,
            seed=message.seed,
            background=message.method in BACKGROUND,
        )

    # -- the receiver -------------------------------------------------------------------------------------------------
    def _work(self, server: Server, message: Message) -> None:
        self.timeline.tell(f'takes {message}')
        self.timeline.step()
        try:
            answer = self._answer(server, message)
        finally:
            server.busy -= 1
            message.handling = False
        if message.reply is not None:
            self._reply(server.process, message, answer)
        self.pump()

    def _answer(self, server: Server, message: Message) -> tuple[str, Any]:
        context, args = jsonutils.loads(message.wire)
        ctxt = RequestContext.from_dict(context)
        self.prepare(server.topic, server.name, ctxt)
        entities = server.transport.entities
        try:
            handle = DirectTransport.handler(
                server.endpoints, message.namespace, message.version, message.topic, message.method
            )
            kwargs = {arg: entities.deserialize_entity(ctxt, value) for arg, value in args.items()}
            result = handle(ctxt, **kwargs)
        except KilonovaError as error:
            return 'error', DirectTransport._as_remote(error)
        except Exception as error:  # noqa: BLE001 - as oslo.messaging
            self.timeline.tell(f'{message} fails unexpectedly: {type(error).__name__}: {error}')
            return 'error', messaging.RemoteError(type(error).__name__, str(error))
        return 'result', jsonutils.dumps(entities.serialize_entity(ctxt, result))

    def _reply(self, process: Process, message: Message, answer: tuple[str, Any]) -> None:
        self.timeline.step()
        if self.links.reach(process.name, 'broker', REPLY_PATIENCE) != OPEN:
            self.timeline.tell(f'the reply to {message} is lost: no broker')
            return
        chance, weather = self.timeline.random(), self.weather
        if weather.lost and chance.random() < weather.lost:
            self.timeline.tell(f'the reply to {message} is lost')
            return
        delay = TRAVEL * (0.5 + chance.random())
        if weather.late and chance.random() < weather.late:
            delay += chance.random() * weather.late_by

        def arrive() -> None:
            if message.answer is None and self.links.state(message.sender, 'broker') == OPEN:
                message.answer = answer
                message.reply.set()

        self.timeline.after(delay, arrive)


BACKGROUND = frozenset(('ping',))


def _queue(topic: str, server: str | None) -> str:
    return f'{topic}.{server}' if server else topic


class _Listening:
    def __init__(self, transport: Transport, topic: str, server: str, endpoints: Sequence) -> None:
        self._transport, self._topic, self._server, self._endpoints = transport, topic, server, endpoints

    def start(self) -> None:
        bus = self._transport.bus
        bus.declare(Server(bus.timeline.current().process, self._topic, self._server, self._endpoints, self._transport))

    def stop(self) -> None:
        bus = self._transport.bus
        bus.leave(bus.timeline.current().process)

    def wait(self) -> None:
        """What is under way ends by itself."""


class Transport:
    """The same face as ``kilonova.rpc.transport``'s."""

    def __init__(self, bus: Bus, process: str, conf: Any) -> None:
        self.bus, self._process, self._conf = bus, process, conf
        self.entities = objects.base.Serializer()

    def serve(self, topic: str, server: str, endpoints: Sequence[tuple[type[RpcInterface], object]]) -> _Listening:
        for interface, implementation in endpoints:
            interface.check_server(implementation)
        return _Listening(self, topic, server, with_base(topic, endpoints))

    def close(self) -> None:
        """Nothing is open."""

    def send(
        self,
        kind: str,
        topic: str,
        namespace: str | None,
        server: str | None,
        version: str,
        ctxt: Any,
        method: str,
        args: dict[str, Any],
    ) -> Any:
        bus, timeline = self.bus, self.bus.timeline
        wire = jsonutils.dumps(
            [ctxt.to_dict(), {name: self.entities.serialize_entity(ctxt, value) for name, value in args.items()}]
        )
        who = f'{topic} {server or ""}'.strip()
        timeline.step()
        if bus.links.reach(self._process, 'broker', SEND_PATIENCE) != OPEN:
            timeline.tell(f'cannot send {topic}.{method}: no broker')
            if kind == 'cast':
                return None
            raise Unsent(who=who, reason=f'{method}: no broker')
        chance, weather = timeline.random(), bus.weather
        message = Message(
            kind, topic, namespace, server, version, method, wire, self._process, chance.getrandbits(64), next(bus.sent)
        )
        bus.messages += 1
        if kind != 'cast':
            if _queue(topic, server) not in bus.queues:
                raise Unanswered(who=who, reason=f'{method}: no queue')
            message.reply = Waiter(timeline)
            patience = self._conf.long_rpc_timeout if kind == 'long' else self._conf.rpc_response_timeout
            message.expires = message.deadline = timeline.now + patience
        timeline.tell(f'{kind} {message} to {server or topic}')
        delay = TRAVEL * (0.5 + chance.random())
        if weather.late and chance.random() < weather.late:
            delay += chance.random() * weather.late_by
            if chance.random() < 0.5:
                # It waits in a receiver's socket, where nothing expires.
                message.expires = None
        lost = max(weather.lost, weather.lost_casts if kind == 'cast' else 0.0)
        if lost and chance.random() < lost:
            timeline.tell(f'{message} is lost', 'broker')
        else:
            timeline.after(delay, lambda: bus.arrive(message))
        if weather.doubled and chance.random() < weather.doubled:
            timeline.tell(f'{message} is doubled', 'broker')
            copy = Message(**{**vars(message), 'seed': chance.getrandbits(64), 'reply': None})
            timeline.after(delay + chance.random() * 5, lambda: bus.arrive(copy))
        self._echo(message)
        if kind == 'cast':
            return None
        return self._wait(message, ctxt, who)

    def _echo(self, message: Message) -> None:
        bus = self.bus
        echo = next((one for one in bus.echoes if one[0] == message.method), None)
        if echo is not None:
            bus.echoes.remove(echo)
            copy = Message(
                **{**vars(message), 'seed': bus.timeline.random().getrandbits(64), 'reply': None, 'expires': None}
            )
            bus.timeline.tell(f'{message} comes again in {echo[1]:.0f} s', 'broker')
            bus.timeline.after(echo[1], lambda: bus.arrive(copy))

    def _wait(self, message: Message, ctxt: Any, who: str) -> Any:
        timeline, conf = self.bus.timeline, self._conf
        end = message.deadline
        while message.answer is None:
            left = end - timeline.now
            turn = min(left, conf.rpc_response_timeout) if message.kind == 'long' else left
            if left > 0 and message.reply.wait(turn):
                break
            if timeline.now >= end or not self._is_worked_on(message):
                timeline.tell(f'{message} timed out')
                message.answer = ('late', None)
                raise Unanswered(who=who, reason=f'{message.method}: timed out')
        what, value = message.answer
        timeline.step()
        if what == 'error':
            raise value
        return self.entities.deserialize_entity(ctxt, jsonutils.loads(value))

    def _is_worked_on(self, message: Message) -> bool:
        """Whether heartbeats of a long call come."""
        worker = message.handled_by
        return (
            worker is not None
            and message.handling
            and not worker.dead
            and not worker.stopped
            and self.bus.links.state(worker.name, 'broker') == OPEN
            and self.bus.links.state(self._process, 'broker') == OPEN
        )
