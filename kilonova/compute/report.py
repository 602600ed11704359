"""What a host tells by itself: that it is up, and of each period which servers were here.

The heartbeat: each report_interval the service's report count goes up. Two ways
lead there. A call of the object's ``save`` through the conductor is answered: it comes first, and whenever this host
doesn't know whether it is heard. While it is, it sends reports that conductors take together (``rpc.reports``), for a
tenth of the cost, and nobody answers.
"""
from __future__ import annotations

import datetime
import time
from collections.abc import Callable

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.host import Host
from kilonova.context import RequestContext
from kilonova.objects.audit_period import last_period
from kilonova.objects.task_log import TaskLog

LOG = logging.getLogger(__name__)

TASK = 'instance_usage_audit'
Send = Callable[[int, str], None]


class Heartbeat:
    """``beat()`` never raises: a host that can't report goes on working, it only counts as down after a while.

    ``send``: a report that nobody answers (Unanswered when it isn't taken); None: all are calls. ``recovered`` is
    called at the first report after failed ones, after ``patience`` seconds without one, or after a conductor said that
    this host counted as down (``again``): what was decided meanwhile it was not told.
    """

    def __init__(self, service: objects.Service, recovered: Callable[[], None] = lambda: None,
                 patience: float = float('inf'), clock: Callable[[], float] = time.monotonic,
                 send: Send | None = None) -> None:
        self._service, self._recovered, self._patience, self._clock = service, recovered, patience, clock
        self._send = send
        self._beaten = clock()
        self._lost = False
        # Whether the last report was answered, or taken.
        self._heard = False
        self._missed = False
        LOG.debug('DB_Driver: join new ServiceGroup member %s to the %s group, service = %s', service.host,
                  service.topic, service.binary)

    @property
    def lost(self) -> bool:
        """Whether the last report failed."""
        return self._lost

    def again(self) -> None:
        """The next report is a call, and if it is answered this host has recovered."""
        self._missed = True

    def beat(self) -> None:
        """One report; the first failure and the recovery are told once."""
        if not self._sent():
            self._call()

    def _sent(self) -> bool:
        if self._send is None or not self._heard or self._missed or self._late():
            return False
        try:
            self._send(self._service.id, self._service.host)
        except errors.Unanswered as error:
            LOG.debug('%s', error)
            return False
        self._beaten = self._clock()
        return True

    def _call(self) -> None:
        service, missed = self._service, self._missed
        service.report_count += 1
        self._heard = False
        try:
            service.save()
            if self._lost or missed or self._late():
                self._recovered()
            self._beaten = self._clock()
            if missed:
                self._missed = False
        except errors.ServiceNotFound:
            self._say_lost('its record is gone: it was deleted, or the database was made anew')
        except Exception as error:  # noqa: BLE001 - a heart that stops at a surprise is worse than the surprise
            self._say_lost(str(error) or type(error).__name__)
        else:
            self._heard = True
            if self._lost:
                self._lost = False
                LOG.info('Recovered from being unable to report status.')

    def _late(self) -> bool:
        return self._clock() - self._beaten > self._patience

    def _say_lost(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            LOG.warning('Lost connection to nova-conductor for reporting service status. (%s)', reason)


def audit_usage(host: Host, ctxt: RequestContext, now: datetime.datetime | None = None) -> int | None:
    """Tell of each server that was here in the last whole period, once (instance.exists). How many; None: the period
    was audited before. A line of task_log says how it went."""
    moment = now or datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    begin, end = last_period(host.conf.instance_usage_audit_period, moment)
    run = TaskLog(ctxt, task_name=TASK, host=host.name, period_beginning=begin, period_ending=end)
    uuids = run.begin_task()
    if uuids is None:
        return None
    LOG.info('Running instance usage audit for host %s from %s to %s. %d instances.', host.name, begin, end,
             len(uuids))
    failed = sum(not _tell(host, ctxt, uuid) for uuid in uuids)
    run.errors, run.message = failed, f'Instance usage audit ran for host {host.name}, {len(uuids)} instances.'
    run.end_task()
    return len(uuids) - failed


def _tell(host: Host, ctxt: RequestContext, uuid: str) -> bool:
    try:
        server = TaskLog.get_server(ctxt, uuid)
        if server is not None:
            host.notify.emit(ctxt, 'instance.exists', instance=server, whole=True)
    except Exception:
        LOG.exception('The usage of instance could not be told', instance_uuid=uuid)
        return False
    return True
