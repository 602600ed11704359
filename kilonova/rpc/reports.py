"""Reports of hosts that are there: small messages that a conductor takes together, every other second.

    sender = Sender(broker, expires=10)
    sender.send(17, 'gpu1')             # Unanswered, when no conductor takes reports or the broker is away

    collector = Collector(broker, handle)       # handle({17: 'gpu1', …}): reports since the last time, or {}
    collector.start()

A message of oslo.messaging costs its receiver some 2 ms of CPU before anything is done with it, and its sender as much;
hosts report all the time, and nobody needs an answer. So these go through kombu, the library below oslo.messaging, to
the same broker with the same options: {service id: host}, confirmed by the broker. The queue lives as long as a
conductor takes from it: a report that nobody would take comes back. What waits longer than a host's next report is
dropped.
"""
from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

import oslo_messaging as messaging
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.message import Message
from kombu.messaging import Consumer, Producer
from oslo_config import cfg
from oslo_utils import strutils

from kilonova import concurrency
from kilonova.errors import Unanswered

LOG = logging.getLogger(__name__)

QUEUE = Queue('kilonova-reports', durable=False, auto_delete=True)
# Seconds that the broker may take to let us in, to take a report, and to say so.
PATIENCE = 5.0
# Seconds between two looks of a collector, at most: each costs a transaction.
PERIOD = 2.0
# Seconds until it tries again when it can't take or write reports.
PAUSE = 1.0
# Messages that a collector takes at a time, whatever they are; the others wait.
MOST = 5000
_LONGEST = 255


class Broker:
    """The RabbitMQ of ``[DEFAULT]transport_url``: how to connect to it. Transports of oslo.messaging must have been
    made before, which registers its options."""

    def __init__(self, conf: cfg.ConfigOpts, url: str | None = None) -> None:
        self._url = messaging.TransportURL.parse(conf, url)
        self._options = conf.oslo_messaging_rabbit

    def connect(self, listening: bool = False) -> Connection:
        """A connection that isn't open yet; it tries the hosts of the URL one after the other. On one that listens both
        sides send heartbeats, so that each notices when the other is gone."""
        hosts = self._url.hosts
        urls = [f'amqp://{_quoted(host.username or "")}:{_quoted(host.password or "")}@'
                f'{_bracketed(host.hostname or "")}:{host.port or 5672}/{_quoted(self._url.virtual_host or "")}'
                for host in hosts]
        return Connection(
            urls, connect_timeout=PATIENCE,
            heartbeat=int(self._option('heartbeat_timeout_threshold')) if listening else 0,
            ssl=self._ssl(hosts[0].hostname),
            login_method=self._option('rabbit_login_method'), failover_strategy=self._option('kombu_failover_strategy'),
            transport_options={'confirm_publish': True,
                               'client_properties': {'connection_name': 'kilonova reports'}})

    def _option(self, name: str) -> Any:
        """As oslo.messaging reads it: what the URL says goes first."""
        return self._url.query.get(name, self._options[name])

    def _ssl(self, hostname: str | None) -> dict[str, Any] | bool:
        if not strutils.bool_from_string(self._option('ssl')):
            return False
        files = {'keyfile': self._option('ssl_key_file'), 'certfile': self._option('ssl_cert_file'),
                 'ca_certs': self._option('ssl_ca_file')}
        found: dict[str, Any] = {name: path for name, path in files.items() if path}
        if 'ca_certs' in found:
            found |= {'cert_reqs': ssl.CERT_REQUIRED, 'server_hostname': hostname}
        return found or True


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe='')


def _bracketed(host: str) -> str:
    return f'[{host}]' if ':' in host else host


class Sender:
    """What a host sends with; one thread uses it. The connection stays open."""

    def __init__(self, broker: Broker, expires: float) -> None:
        self._broker, self._expires = broker, expires
        self._connection: Connection | None = None
        self._producer: Producer | None = None

    def send(self, service_id: int, host: str) -> None:
        """Returns when the broker has put it into the queue of the collectors."""
        try:
            if self._producer is None:
                self._connection = self._broker.connect()
                self._connection.connect()
                self._producer = Producer(self._connection)
            self._producer.publish({'id': service_id, 'host': host}, serializer='json', routing_key=QUEUE.name,
                                   mandatory=True, delivery_mode='transient', expiration=self._expires,
                                   timeout=PATIENCE, confirm_timeout=PATIENCE)
        except Exception as error:
            self.close()
            raise Unanswered(who='conductor', reason=f'report not taken: {error}') from error

    def close(self) -> None:
        """The next report connects again."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.release()


class Collector:
    """What a conductor takes reports with. ``handle`` is given them each ``period``; the first time, and again after it
    has raised, with none, and as long as it raises nothing is taken: who reports learns that nobody takes it."""

    def __init__(self, broker: Broker, handle: Callable[[dict[int, str]], None], period: float = PERIOD) -> None:
        self._broker, self._handle, self._period = broker, handle, period
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._reports: dict[int, str] = {}
        self._failing = False

    def start(self) -> None:
        self._thread = concurrency.spawn(self._run, name='reports')

    def stop(self) -> None:
        """What has come is handled still."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._handle({})
                with self._broker.connect(listening=True) as connection:
                    self._collect(connection)
            except Exception as error:  # noqa: BLE001 - whatever it is, reports must be taken again
                # What came before is old when it goes on.
                self._reports.clear()
                level = logging.DEBUG if self._failing else logging.WARNING
                LOG.log(level, 'Reports of hosts are not taken: %s', error)
                self._failing = True
                self._stopping.wait(PAUSE)

    def _collect(self, connection: Connection) -> None:
        consumer = Consumer(connection, [QUEUE], on_message=self._take, no_ack=True, accept=['json'])
        with consumer:
            self._failing = False
            LOG.info('Reports of hosts are taken')
            while not self._stopping.wait(self._period):
                self._drain(connection)
                connection.heartbeat_check()
            consumer.cancel()
            self._drain(connection)

    def _drain(self, connection: Connection) -> None:
        with contextlib.suppress(socket.timeout):
            for _ in range(MOST):
                connection.drain_events(timeout=0.001)
        if self._reports:
            reports, self._reports = self._reports, {}
            self._handle(reports)

    def _take(self, message: Message) -> None:
        try:
            found = message.decode()
            number, host = found['id'], found['host']
        except Exception as error:  # noqa: BLE001 - of another program
            LOG.warning('A report that is none was dropped: %s', error)
            return
        if type(number) is int and 0 < number < 2 ** 31 and isinstance(host, str) and len(host) <= _LONGEST:
            self._reports[number] = host
        else:
            LOG.warning('A report of service %.40r on %.40r was dropped: a number and a host name are needed',
                        number, host)
