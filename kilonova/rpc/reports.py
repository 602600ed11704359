"""Reports by which hosts say that they are alive: small messages, which a conductor collects every two seconds.

    sender = ReportSender(broker, expires=10)
    sender.send(17, 'gpu1')             # raises Unanswered if no conductor collects reports or the broker is down

    collector = Collector(broker, handle)       # calls handle({17: 'gpu1', …}), a dict from service id to host
    collector.start()

A message of oslo.messaging costs sender and receiver some 2 ms of CPU time each, which is too much for frequent
reports. Therefore reports are sent by kombu, the library below oslo.messaging, to the same broker with the same
options. A report has the service id and the host. No conductor replies to it, but the broker confirms it. The queue
exists only while a conductor reads from it, so the broker returns a report that no conductor would receive. The broker
drops a report that waits longer than ``expires`` seconds.
"""

from __future__ import annotations

import contextlib
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
from oslo_log import log as logging
from oslo_utils import strutils

from kilonova import concurrency
from kilonova.errors import Unanswered

LOG = logging.getLogger(__name__)

QUEUE = Queue('kilonova-reports', durable=False, auto_delete=True)
# Maximum seconds for connecting to the broker, for sending a report, and for the broker's confirmation (each).
PATIENCE = 5.0
# Maximum seconds between two collections of reports. Each collection costs one transaction.
PERIOD = 2.0
# Seconds until a collector tries again after it could not receive or write reports.
PAUSE = 1.0
# Maximum number of messages that one collection reads. Further messages wait for the next collection.
MOST = 5000
_LONGEST = 255


class Broker:
    """The RabbitMQ broker of ``[DEFAULT]transport_url`` or of ``url``, with the options of oslo.messaging.

    A transport of oslo.messaging must be created before a ``Broker``, because the transport registers the options.
    """

    def __init__(self, conf: cfg.ConfigOpts, url: str | None = None) -> None:
        self._url = messaging.TransportURL.parse(conf, url)
        self._options = conf.oslo_messaging_rabbit

    def connect(self, listening: bool = False) -> Connection:
        """Return a connection to the broker that is not open yet.

        When the connection is opened, it tries the hosts of the URL one after the other. If ``listening`` is True,
        client and broker send each other heartbeats, so that the client notices if the broker is gone, and vice versa.
        """
        hosts = self._url.hosts
        urls = [
            f'amqp://{_quoted(host.username or "")}:{_quoted(host.password or "")}@'
            f'{_bracketed(host.hostname or "")}:{host.port or 5672}/{_quoted(self._url.virtual_host or "")}'
            for host in hosts
        ]
        return Connection(
            urls,
            connect_timeout=PATIENCE,
            heartbeat=int(self._option('heartbeat_timeout_threshold')) if listening else 0,
            ssl=self._ssl(hosts[0].hostname),
            login_method=self._option('rabbit_login_method'),
            failover_strategy=self._option('kombu_failover_strategy'),
            transport_options={'confirm_publish': True, 'client_properties': {'connection_name': 'kilonova reports'}},
        )

    def _option(self, name: str) -> Any:
        """Return the value of an option: the value in the URL's query if there is one, else the configured value.

        This is the order in which oslo.messaging reads its options.
        """
        return self._url.query.get(name, self._options[name])

    def _ssl(self, hostname: str | None) -> dict[str, Any] | bool:
        if not strutils.bool_from_string(self._option('ssl')):
            return False
        files = {
            'keyfile': self._option('ssl_key_file'),
            'certfile': self._option('ssl_cert_file'),
            'ca_certs': self._option('ssl_ca_file'),
        }
        found: dict[str, Any] = {name: path for name, path in files.items() if path}
        if 'ca_certs' in found:
            found |= {'cert_reqs': ssl.CERT_REQUIRED, 'server_hostname': hostname}
        return found or True


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe='')


def _bracketed(host: str) -> str:
    return f'[{host}]' if ':' in host else host


class ReportSender:
    """The connection through which a host sends its reports. The connection stays open between two reports.

    Only one thread may use a sender. ``expires`` is the number of seconds after which the broker drops a waiting
    report.
    """

    def __init__(self, broker: Broker, expires: float) -> None:
        self._broker, self._expires = broker, expires
        self._connection: Connection | None = None
        self._producer: Producer | None = None

    def send(self, service_id: int, host: str) -> None:
        """Send a report, and return when the broker has put it into the collectors' queue.

        Raises Unanswered if no conductor collects reports, or if the broker does not take the report in time.
        """
        try:
            if self._producer is None:
                self._connection = self._broker.connect()
                self._connection.connect()
                self._producer = Producer(self._connection)
            self._producer.publish(
                {'id': service_id, 'host': host},
                serializer='json',
                routing_key=QUEUE.name,
                mandatory=True,
                delivery_mode='transient',
                expiration=self._expires,
                timeout=PATIENCE,
                confirm_timeout=PATIENCE,
            )
        except Exception as error:
            self.close()
            raise Unanswered(who='conductor', reason=f'the report was not accepted: {error}') from error

    def close(self) -> None:
        """Close the connection. The next report opens a new one."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.release()


class Collector:
    """The thread with which a conductor collects reports.

    ``handle(reports)`` gets a dict from service id to host. It is called every ``period`` seconds if reports have
    arrived. Before the first collection and after each error, ``handle({})`` is called to check that reports can be
    written. Until this call succeeds, the thread receives no reports. Meanwhile the broker returns each report to its
    host, so that the host notices that no conductor collects reports.
    """

    def __init__(self, broker: Broker, handle: Callable[[dict[int, str]], None], period: float = PERIOD) -> None:
        self._broker, self._handle, self._period = broker, handle, period
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._reports: dict[int, str] = {}
        self._failing = False

    def start(self) -> None:
        """Start the thread that collects reports."""
        self._thread = concurrency.spawn(self._run, name='reports')

    def stop(self) -> None:
        """Stop the thread after it has handled the reports that have arrived."""
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
                # Reports that were collected before the error are dropped, because they will be too old later.
                self._reports.clear()
                level = logging.DEBUG if self._failing else logging.WARNING
                LOG.log(level, 'Cannot receive the reports of hosts, retrying: %s', error)
                self._failing = True
                self._stopping.wait(PAUSE)

    def _collect(self, connection: Connection) -> None:
        consumer = Consumer(connection, [QUEUE], on_message=self._take, no_ack=True, accept=['json'])
        with consumer:
            self._failing = False
            LOG.info('Receiving the reports of hosts')
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
            LOG.warning('Dropped a malformed report of a host: %s', error)
            return
        if type(number) is int and 0 < number < 2**31 and isinstance(host, str) and len(host) <= _LONGEST:
            self._reports[number] = host
        else:
            LOG.warning(
                'Dropped a report of service %.40r on host %.40r: the service must be a number and the host a name',
                number,
                host,
            )
