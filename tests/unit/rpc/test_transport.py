"""Errors on the bus: the class and the text come back, the other side's traceback doesn't."""
from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import kombu.exceptions
import oslo_messaging as messaging
import pytest
from oslo_messaging._drivers import common

from kilonova.context import RequestContext
from kilonova.errors import REMOTE_MODULES, KilonovaError, NoValidHost, Unanswered, Unsent
from kilonova.rpc import transport


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


@pytest.mark.parametrize('failure', [
    messaging.MessageDeliveryFailure('gone'), kombu.exceptions.OperationalError('[Errno 111] ECONNREFUSED'),
    kombu.exceptions.ConnectionError('unknown error'), ConnectionRefusedError('refused')])
def test_a_message_that_was_not_sent_says_nothing_about_its_receiver(monkeypatch, failure: Exception) -> None:
    """Whatever oslo.messaging and what is below it raise while the broker is away; casts are lost in silence."""
    sender = sender_that(monkeypatch, failure)
    with pytest.raises(Unsent, match='compute gpu1 does not answer: build: '):
        send(sender, 'call')
    assert send(sender, 'cast') is None


@pytest.mark.parametrize('failure', [messaging.MessagingTimeout('late'), messaging.MessageUndeliverable(
    exception=None, exchange=None, routing_key=None, message='nobody')])
def test_a_message_that_was_sent_and_not_answered(monkeypatch, failure: Exception) -> None:
    with pytest.raises(Unanswered) as caught:
        send(sender_that(monkeypatch, failure), 'long')
    assert not isinstance(caught.value, Unsent)


def sender_that(monkeypatch, failure: Exception) -> transport.OsloTransport:
    """A transport whose every sending fails so."""
    class Client:
        def prepare(self, **options: Any) -> Client:
            return self

        def call(self, *args: Any, **kwargs: Any) -> None:
            raise failure

        cast = call
    sender = transport.OsloTransport.__new__(transport.OsloTransport)
    monkeypatch.setattr(sender, '_conf', SimpleNamespace(long_rpc_timeout=1, rpc_response_timeout=1), raising=False)
    monkeypatch.setattr(sender, '_client', lambda topic, namespace: Client())
    return sender


def send(sender: transport.OsloTransport, kind: str) -> Any:
    return sender.send(kind, 'compute', None, 'gpu1', '6.0', RequestContext(overwrite=False), 'build', {})
