"""Reports of hosts that are alive: small messages, which a conductor collects every two seconds.

    sender = ReportSender(broker, expires=10)
    sender.send(17, 'gpu1')             # raises Unanswered if no conductor collects reports or the broker is down

    collector = Collector(broker, handle)       # handle({17: 'gpu1', …}): reports since the last time, or {}
    collector.start()

A message of oslo.messaging costs its receiver some 2 ms of CPU time before anything is done with it, and costs its
sender as much. Hosts report all the time, and a report needs no reply. So reports are sent through kombu, the library
below oslo.messaging, to the same broker with the same options. A report has the service id and the host, and the broker
confirms it. The queue exists as long as a conductor consumes it, so a report that no conductor would consume is
returned. Reports that wait longer than until a host's next report are dropped.
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
# Maximum seconds for each of: connecting to the broker, sending a report, and the broker's confirmation.
PATIENCE = 5.0
# Maximum seconds between two collections. Each one costs a transaction.
PERIOD = 2.0
# Seconds after which a collector that can't take or write reports tries again.
PAUSE = 1.0
# Maximum of messages of any kind in one collection. Further messages wait.
MOST = 5000
_LONGEST = 255


class Broker:
    """The RabbitMQ of ``[DEFAULT]transport_url``, and how to connect to it.

    A transport of oslo.messaging must have been created before, because that registers the options.
    """

    def __init__(self, conf: cfg.ConfigOpts, url: str | None = None) -> None:
        self._url = messaging.TransportURL.parse(conf, url)
        self._options = conf.oslo_messaging_rabbit

    def connect(self, listening: bool = False) -> Connection:
        """Return a connection that is not open yet.

        When it is opened it tries the hosts of the URL one after the other. If ``listening`` is True, client and broker
        send each other heartbeats, so that each notices when the other one is gone.
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
        """Return an option as oslo.messaging reads it: a value in the URL takes precedence."""
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
    """The connection through which a host sends its reports. It stays open, and only one thread may use it.

    ``expires`` is the number of seconds after which a waiting report is dropped.
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

    ``handle`` is called with the collected reports each ``period`` seconds if there are any. Before the first
    collection, and again after an error, it is called with an empty dict. No report is taken until that call succeeds,
    so that hosts notice that their reports are not taken.
    """

    def __init__(self, broker: Broker, handle: Callable[[dict[int, str]], None], period: float = PERIOD) -> None:
        self._broker, self._handle, self._period = broker, handle, period
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._reports: dict[int, str] = {}
        self._failing = False

    def start(self) -> None:
        """Start the thread."""
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
                # These reports will be too old when collecting continues.
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
                'Dropped a report of service %.40r on host %.40r: it needs a number and a host name', number, host
            )
