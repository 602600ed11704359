"""Errors on the bus: the class and the text come back, the other side's traceback doesn't. A broker that hangs."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import kombu.exceptions
import oslo_messaging as messaging
import pytest
from oslo_messaging._drivers import common

from kilonova.cmd import options
from kilonova.context import RequestContext
from kilonova.errors import REMOTE_MODULES, KilonovaError, NoValidHost, Unanswered, Unsent
from kilonova.rpc import bounded, transport


class Elsewhere(KilonovaError):
    msg_fmt = 'device %(address)s is odd'


def over_the_bus(error: KilonovaError) -> KilonovaError:
    """What the caller's side of oslo.messaging makes of it."""
    try:
        raise transport._for_the_bus(error)
    except KilonovaError:
        data = common.serialize_remote_exception(sys.exc_info())
    return common.deserialize_remote_exception(data, REMOTE_MODULES)


def test_an_error_comes_back_as_its_own_class_without_the_traceback() -> None:
    received = over_the_bus(NoValidHost(reason='There are not enough hosts available.'))
    assert 'Traceback' in str(received)
    error = transport._as_own(received)
    assert type(error) is NoValidHost
    assert str(error) == 'No valid host was found. There are not enough hosts available.'


def test_a_class_that_the_other_side_does_not_take_keeps_name_and_text() -> None:
    error = transport._as_own(over_the_bus(Elsewhere(address='0000:08:00.0')))
    assert type(error) is KilonovaError
    assert str(error) == 'Elsewhere: device 0000:08:00.0 is odd'


@pytest.mark.parametrize(
    'failure',
    [
        messaging.MessageDeliveryFailure('gone'),
        kombu.exceptions.OperationalError('[Errno 111] ECONNREFUSED'),
        kombu.exceptions.ConnectionError('unknown error'),
        ConnectionRefusedError('refused'),
        bounded.Overdue('late'),
    ],
)
def test_a_message_that_was_not_sent_says_nothing_about_its_receiver(monkeypatch, failure: Exception) -> None:
    """Whatever oslo.messaging and what is below it raise while the broker is away; casts are lost in silence."""
    sender = sender_that(monkeypatch, failure)
    with pytest.raises(Unsent, match='compute gpu1 does not answer: build: '):
        send(sender, 'call')
    assert send(sender, 'cast') is None


@pytest.mark.parametrize(
    'failure',
    [
        messaging.MessagingTimeout('late'),
        messaging.MessageUndeliverable(exception=None, exchange=None, routing_key=None, message='nobody'),
    ],
)
def test_a_message_that_was_sent_and_not_answered(monkeypatch, failure: Exception) -> None:
    with pytest.raises(Unanswered) as caught:
        send(sender_that(monkeypatch, failure), 'long')
    assert not isinstance(caught.value, Unsent)


def sender_that(monkeypatch, failure: Exception) -> transport.OsloTransport:
    """A transport whose every sending fails so."""

    def fail(topic: str) -> None:
        raise failure

    sender = sender_with(monkeypatch, fail)
    monkeypatch.setattr(sender, '_replies_come', True)
    return sender


def sender_with(monkeypatch, act: Callable[[str], Any]) -> transport.OsloTransport:
    """A transport over RabbitMQ that does this with each message to a topic."""

    class Client:
        def __init__(self, topic: str) -> None:
            self.topic = topic

        def prepare(self, **options: Any) -> Client:
            return self

        def call(self, *args: Any, **kwargs: Any) -> Any:
            return act(self.topic)

        cast = call

    conf = options.new()
    conf([], project='kilonova', default_config_files=[])
    sender = transport.OsloTransport(conf, 'rabbit://nowhere/')
    set_times(sender, 5)
    monkeypatch.setattr(sender, '_client', lambda topic, namespace: Client(topic))
    return sender


def set_times(sender: transport.OsloTransport, sending: float, answering: float = 5) -> None:
    sender._conf = SimpleNamespace(rpc_send_timeout=sending, rpc_response_timeout=answering, long_rpc_timeout=answering)


def send(sender: transport.OsloTransport, kind: str) -> Any:
    return sender.send(kind, 'compute', None, 'gpu1', '6.0', RequestContext(overwrite=False), 'build', {})


# --- a broker that hangs ---------------------------------------------------------------------------------------------
class Hang:
    """What messages to one topic run into until ``end`` is set, and how many did."""

    def __init__(self, topic: str) -> None:
        self.topic, self.end, self.begun = topic, threading.Event(), 0

    def __call__(self, topic: str) -> Any:
        if topic == self.topic:
            self.begun += 1
            self.end.wait()
        if topic == 'nobody':
            raise messaging.MessageUndeliverable(exception=None, exchange=None, routing_key=None, message='nobody')
        return 'answer'


@pytest.fixture
def hang() -> Iterator[Callable[[str], Hang]]:
    made: list[Hang] = []
    yield lambda topic: made.append(Hang(topic)) or made[-1]
    for one in made:
        one.end.set()


def test_calls_end_while_the_queue_of_replies_does_not_open(monkeypatch, hang) -> None:
    """Calls fail in time while the queue of replies does not open; only the first calls wait for it.

    oslo.messaging itself would try to open the queue without a limit.
    """
    act = hang('nobody')
    sender = sender_with(monkeypatch, act)
    set_times(sender, 0.05)
    for _ in range(2):
        with pytest.raises(Unsent, match='did not create the reply queue in time'):
            send(sender, 'call')
    assert send(sender, 'cast') == 'answer', 'a cast needs no replies'
    set_times(sender, 5)
    act.end.set()
    assert [send(sender, 'call') for _ in range(2)] == ['answer', 'answer']
    assert act.begun == 1


def test_who_calls_later_does_not_wait_anew(monkeypatch, hang) -> None:
    sender = sender_with(monkeypatch, hang('nobody'))
    waits = []
    monkeypatch.setattr(transport, 'wait', lambda opening, seconds: waits.append(seconds))
    clock = itertools.count(100.0, 4.0)
    monkeypatch.setattr(transport, 'time', SimpleNamespace(monotonic=lambda: next(clock)))
    for _ in range(3):
        with pytest.raises(Unsent):
            send(sender, 'call')
    assert waits == [1.0, 0.0, 0.0]


@pytest.mark.parametrize('end', [messaging.MessagingTimeout('somebody else got it'), None])
def test_the_queue_of_replies_is_open_once_the_message_for_nobody_was_accepted(monkeypatch, end) -> None:
    asked = []

    def act(topic: str) -> str:
        asked.append(topic)
        if topic == 'nobody' and end is not None:
            raise end
        if topic == 'nobody':
            raise messaging.MessageUndeliverable(exception=None, exchange=None, routing_key=None, message='nobody')
        return 'answer'

    sender = sender_with(monkeypatch, act)
    assert [send(sender, 'call') for _ in range(2)] == ['answer', 'answer']
    assert asked == ['nobody', 'compute', 'compute']


def test_a_queue_of_replies_that_failed_to_open_is_tried_again(monkeypatch) -> None:
    failures = [messaging.MessageDeliveryFailure('gone'), messaging.MessagingTimeout('open')]

    def act(topic: str) -> str:
        if topic == 'nobody':
            raise failures.pop(0)
        return 'answer'

    sender = sender_with(monkeypatch, act)
    with pytest.raises(Unsent, match='gone'):
        send(sender, 'call')
    assert send(sender, 'call') == 'answer'


@pytest.mark.parametrize('kind', ['cast', 'call', 'long'])
def test_a_message_that_the_broker_does_not_confirm(monkeypatch, hang, kind: str) -> None:
    """RabbitMQ short of memory or disk holds its publishers for ever. Behind a few of them nobody waits any more."""
    act = hang('compute')
    sender = sender_with(monkeypatch, act)
    # A cast has no answer to wait for.
    set_times(sender, 0.01, 60 if kind == 'cast' else 0.01)
    monkeypatch.setattr(sender, '_replies_come', True)
    for _ in range(transport.HANGING + 2):
        if kind == 'cast':
            assert send(sender, kind) is None
        else:
            with pytest.raises(Unsent, match='compute gpu1 does not answer: build: '):
                send(sender, kind)
    assert act.begun == transport.HANGING
    set_times(sender, 5)
    act.end.set()
    for thread in threading.enumerate():
        if thread.name == 'bounded':
            thread.join()
    assert send(sender, kind) == 'answer'


def test_connections_that_hang_are_not_waited_for(monkeypatch) -> None:
    sender = sender_with(monkeypatch, lambda topic: None)
    end = threading.Event()
    monkeypatch.setattr(transport, 'CLOSING', 0.01)
    monkeypatch.setattr(sender._transport, 'cleanup', end.wait)
    sender.close()
    end.set()


@pytest.mark.parametrize(('line', 'seconds'), [('', 20), ('heartbeat_timeout_threshold = 9', 9)])
def test_heartbeats(tmp_path, line: str, seconds: int) -> None:
    path = tmp_path / 'kilonova.conf'
    path.write_text(f'[oslo_messaging_rabbit]\n{line}\n')
    conf = options.new()
    conf(['--config-file', str(path)], project='kilonova')
    transport.OsloTransport(conf, 'rabbit://nowhere/')
    assert conf.oslo_messaging_rabbit.heartbeat_timeout_threshold == seconds


def test_options_of_clients_are_there_with_the_first_transport() -> None:
    """The API reads rpc_response_timeout before it has sent anything."""
    conf = options.new()
    conf([], project='kilonova', default_config_files=[])
    with contextlib.closing(transport.OsloTransport(conf, 'fake:///')):
        assert conf.rpc_response_timeout == 60
