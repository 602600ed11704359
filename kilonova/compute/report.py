"""The heartbeat: each report_interval the service's report count goes up, through the conductor (seed-map.md 2.2)."""
from __future__ import annotations

import time
from collections.abc import Callable

from oslo_log import log as logging

from kilonova import errors, objects

LOG = logging.getLogger(__name__)


class Heartbeat:
    """``beat()`` never raises: a host that can't report goes on working, it only counts as down after a while.

    ``recovered`` is called at the first report after failed ones, or after ``patience`` seconds without one: what was
    decided while this host counted as down it was not told.
    """

    def __init__(self, service: objects.Service, recovered: Callable[[], None] = lambda: None,
                 patience: float = float('inf'), clock: Callable[[], float] = time.monotonic) -> None:
        self._service, self._recovered, self._patience, self._clock = service, recovered, patience, clock
        self._beaten = clock()
        self._lost = False
        LOG.debug('DB_Driver: join new ServiceGroup member %s to the %s group, service = %s', service.host,
                  service.topic, service.binary)

    @property
    def lost(self) -> bool:
        """Whether the last report failed."""
        return self._lost

    def beat(self) -> None:
        """One report; the first failure and the recovery are told once."""
        service = self._service
        service.report_count += 1
        try:
            service.save()
            if self._lost or self._clock() - self._beaten > self._patience:
                self._recovered()
            self._beaten = self._clock()
        except errors.ServiceNotFound:
            self._say_lost('its record is gone: it was deleted, or the database was made anew')
        except Exception as error:  # noqa: BLE001 - a heart that stops at a surprise is worse than the surprise
            self._say_lost(str(error) or type(error).__name__)
        else:
            if self._lost:
                self._lost = False
                LOG.info('Recovered from being unable to report status.')

    def _say_lost(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            LOG.warning('Lost connection to nova-conductor for reporting service status. (%s)', reason)
