"""The service record of a daemon that has a database: created at the start, then updated by heartbeats.

    record = ServiceRecord(databases.main, host='ctl1', binary='nova-scheduler', interval=10)
    record.start()                # the service is up from now on
    record.stop()

A heartbeat is written every report_interval seconds. ``os-services`` lists the records. A service whose last heartbeat
is older than service_down_time counts as down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from kilonova import concurrency
from kilonova.context import get_admin_context
from kilonova.db.queries import services
from kilonova.rpc.notify import OFF, Notifications
from kilonova.rpc.versions import SERVICE_VERSION

LOG = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0


class ServiceRecord:
    """The record and heartbeat of one service. ``database`` is a function that returns the cell's database.

    If the database does not answer, one line is logged, and the next heartbeat tries again.
    """

    def __init__(
        self, database: Callable[[], Any], *, host: str, binary: str, interval: float, notify: Notifications = OFF
    ) -> None:
        self._database, self._host, self._binary, self._interval = database, host, binary, interval
        self._topic, self._notify = binary.removeprefix('nova-'), notify
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._id: int | None = None
        self._lost = False

    def start(self) -> None:
        """Send a heartbeat now, and start a thread that sends one every ``interval`` seconds."""
        LOG.debug(
            'DB_Driver: join new ServiceGroup member %s to the %s group, service = %s',
            self._host,
            self._topic,
            self._binary,
        )
        self.beat()
        self._thread = concurrency.spawn(self._loop, name='report_state')

    def stop(self) -> None:
        """Stop the heartbeats. The record is kept, and the service counts as down after [DEFAULT]service_down_time."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)

    def beat(self) -> None:
        """Write one heartbeat. Never raises. The first failure and the recovery are logged once."""
        try:
            self._report()
        except Exception as error:  # noqa: BLE001 - a heartbeat that raised would be the last one
            if not self._lost:
                self._lost = True
                LOG.warning('Lost connection to the database for reporting service status. (%s)', error)
        else:
            if self._lost:
                self._lost = False
                LOG.info('Recovered from being unable to report status.')

    def _report(self) -> None:
        with self._database().write() as connection:
            made = None
            if self._id is None:
                known = services.get(connection, host=self._host, binary=self._binary)
                row = services.get_or_create(connection, self._host, self._binary, self._topic, version=SERVICE_VERSION)
                self._id, made = row['id'], row if known is None else None
            if not services.report(connection, self._id):
                # The record was deleted, although this service is running. The next heartbeat creates a new record.
                self._id = None
                raise LookupError('the record of this service was deleted')
        if made is not None:
            self._notify.emit(get_admin_context(), 'service.create', service=made)

    def _loop(self) -> None:
        while not self._stopping.wait(self._interval):
            self.beat()
