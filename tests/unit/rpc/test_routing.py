"""Messages to hosts go over the queue of their cell."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import exc

from kilonova.errors import Unanswered
from kilonova.rpc.routing import RoutedTransport

QUEUES = {'near': 'rabbit://local/', 'far': 'rabbit://far/', 'farther': 'rabbit://far/'}


class Queue:
    def __init__(self, url: str) -> None:
        self.url, self.closed, self.served = url, False, False

    def send(self, kind: str, topic: str, namespace: str | None, server: str | None, *rest: Any) -> str:
        return f'{topic} {server} over {self.url}'

    def serve(self, topic: str, server: str, endpoints: Any) -> str:
        return f'{topic} {server} on {self.url}'

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def opened() -> list[Queue]:
    return []


@pytest.fixture
def transport(opened: list[Queue]) -> RoutedTransport:
    def make(url: str) -> Queue:
        opened.append(Queue(url))
        return opened[-1]

    return RoutedTransport(Queue('rabbit://local/'), 'rabbit://local/', QUEUES.get, make)


def send(transport: RoutedTransport, topic: str, server: str | None) -> Any:
    return transport.send('cast', topic, None, server, '6.0', None, 'build', {})


@pytest.mark.parametrize(
    ('topic', 'server', 'url'),
    [
        ('compute', 'near', 'rabbit://local/'),
        ('compute', 'far', 'rabbit://far/'),
        ('compute', 'new', 'rabbit://local/'),
        ('compute', None, 'rabbit://local/'),
        ('conductor', 'far', 'rabbit://local/'),
        ('scheduler', None, 'rabbit://local/'),
    ],
)
def test_only_messages_to_hosts_take_another_queue(
    transport: RoutedTransport, topic: str, server: str | None, url: str
) -> None:
    assert send(transport, topic, server) == f'{topic} {server} over {url}'


def test_each_queue_is_opened_once_and_closed_with_the_local_one(
    transport: RoutedTransport, opened: list[Queue]
) -> None:
    for server in ('far', 'farther', 'far', 'near'):
        send(transport, 'compute', server)
    assert [queue.url for queue in opened] == ['rabbit://far/']
    assert transport.serve('conductor', 'here', []) == 'conductor here on rabbit://local/'
    transport.close()
    assert opened[0].closed and transport._local.closed


def test_a_database_that_can_not_tell_where_a_host_is_is_silence() -> None:
    def ask(host: str) -> str | None:
        raise exc.OperationalError('SELECT', None, Exception(2003, 'refused'), connection_invalidated=True)

    transport = RoutedTransport(Queue('rabbit://local/'), 'rabbit://local/', ask, Queue)
    with pytest.raises(Unanswered, match='looking up the cell of host far'):
        send(transport, 'compute', 'far')
    assert send(transport, 'conductor', None)


def test_other_errors_are_not_hidden() -> None:
    def ask(host: str) -> str | None:
        raise LookupError(host)

    with pytest.raises(LookupError):
        send(RoutedTransport(Queue('rabbit://local/'), 'rabbit://local/', ask, Queue), 'compute', 'far')
