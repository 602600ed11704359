"""Reports that conductors take together, over kombu's broker in memory.

integration/test_health.py tests them with a real broker.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest

from kilonova.cmd import options
from kilonova.errors import Unanswered
from kilonova.rpc import reports
from kilonova.rpc.reports import Broker, Collector, ReportSender
from kilonova.rpc.transport import OsloTransport


class Memory:
    """A broker of this process; ``away``: it lets nobody in."""

    def __init__(self) -> None:
        self.away, self.connected = False, 0

    def connect(self, listening: bool = False) -> kombu.Connection:
        if self.away:
            raise ConnectionRefusedError('away')
        self.connected += 1
        return kombu.Connection('memory://', transport_options={'polling_interval': 0.001})


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(reports, 'PAUSE', 0.05)
    made = Memory()
    with made.connect() as connection:
        reports.QUEUE(connection.default_channel).declare()
        reports.QUEUE(connection.default_channel).purge()
    return made


@contextlib.contextmanager
def collecting(broker: Any, handle: Callable[[dict[int, str]], None]) -> Iterator[Collector]:
    collector = Collector(broker, handle, period=0.05)
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()


def await_true(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_reports_are_taken_together(broker: Any) -> None:
    sender = ReportSender(broker, expires=10)
    for service_id in (1, 2, 3, 2):
        sender.send(service_id, f'h{service_id}')
    taken: list[dict[int, str]] = []
    with collecting(broker, taken.append):
        await_true(lambda: len(taken) > 1)
    assert taken == [{}, {1: 'h1', 2: 'h2', 3: 'h3'}]
    sender.close()


def test_what_has_come_is_handled_at_the_end(broker: Any) -> None:
    taken: list[dict[int, str]] = []
    with collecting(broker, taken.append) as collector:
        await_true(lambda: taken)
        collector._stopping.set()
        ReportSender(broker, expires=10).send(5, 'h5')
    assert taken[1:] in ([], [{5: 'h5'}])


def test_a_collector_that_cannot_write_takes_nothing(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    """As long as the database is away whoever reports is to learn it: no consumer, so no queue at a real broker."""
    taken: list[dict[int, str]] = []
    database_away = threading.Event()

    def handle(found: dict[int, str]) -> None:
        if database_away.is_set():
            raise RuntimeError('no database')
        taken.append(found)

    database_away.set()
    connected = broker.connected
    with collecting(broker, handle):
        await_true(lambda: 'Cannot receive the reports of hosts, retrying: no database' in caplog.text)
        assert broker.connected == connected
        database_away.clear()
        await_true(lambda: taken == [{}])
        database_away.set()
        sender = ReportSender(broker, expires=10)
        sender.send(1, 'h1')
        await_true(lambda: caplog.text.count('Cannot receive the reports of hosts') >= 2)
        database_away.clear()
        await_true(lambda: len(taken) == 2)
        sender.send(2, 'h2')
        await_true(lambda: len(taken) == 3)
    # The first report came while it couldn't be written: it says nothing about now.
    assert taken == [{}, {}, {2: 'h2'}]


def test_what_is_no_report_is_dropped(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    with broker.connect() as connection:
        producer = kombu.Producer(connection)
        for body in (
            {'id': 'x', 'host': 'h'},
            {'id': 0, 'host': 'h'},
            {'id': True, 'host': 'h'},
            [],
            {'id': 1, 'host': 3},
            {'id': 2**31, 'host': 'h'},
            {'id': 1, 'host': 'h' * 256},
            {'id': 9, 'host': 'h9'},
        ):
            producer.publish(body, serializer='json', routing_key=reports.QUEUE.name)
    taken: list[dict[int, str]] = []
    with collecting(broker, taken.append):
        await_true(lambda: {9: 'h9'} in taken)
    assert taken == [{}, {9: 'h9'}]
    assert caplog.text.count('Dropped a ') == 7


def test_a_broker_that_is_away_is_tried_again(broker: Any) -> None:
    sender = ReportSender(broker, expires=10)
    broker.away = True
    with pytest.raises(Unanswered, match='conductor does not answer: the report was not accepted: away'):
        sender.send(1, 'h1')
    broker.away = False
    sender.send(1, 'h1')
    connected = broker.connected
    sender.send(1, 'h1')
    assert broker.connected == connected


@pytest.fixture
def conf() -> Any:
    made = options.new()
    made([], project='kilonova', default_config_files=[], default_config_dirs=[])
    return made


def test_it_connects_as_oslo_messaging_does(conf: Any) -> None:
    """Each host of the URL, what needs quotes in it, and TLS."""
    url = 'rabbit://ko:p%2Fw@one:5673,ko:p%2Fw@[fd00::1]/cell?ssl=1&ssl_ca_file=/etc/ca.pem'
    OsloTransport(conf, url).close()
    connection = Broker(conf, url).connect(listening=True)
    assert connection.alt == ['amqp://ko:p%2Fw@one:5673/cell', 'amqp://ko:p%2Fw@[fd00::1]:5672/cell']
    assert (
        connection.userid,
        connection.password,
        connection.hostname,
        connection.port,
        connection.virtual_host,
        connection.heartbeat,
    ) == ('ko', 'p/w', 'one', 5673, 'cell', 20)
    assert connection.ssl == {'ca_certs': '/etc/ca.pem', 'cert_reqs': 2, 'server_hostname': 'one'}
    plain = Broker(conf, 'rabbit://ko:pw@one/').connect()
    assert (plain.port, plain.virtual_host, plain.ssl) == (5672, '/', False)
