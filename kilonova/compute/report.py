"""Messages that a host sends by itself: its heartbeat, and the usage notifications of each audit period.

A heartbeat increases the service's report count, every ``report_interval`` seconds. A host can send it in two ways. The
first is an RPC call: the service object's ``save`` through the conductor, which is answered. The host uses the call for
the first heartbeat, and whenever it does not know whether its heartbeats arrive. The second is a message without an
answer, which conductors write to the database in batches (``rpc.reports``). The message costs about a tenth of the
call, and the host sends messages as long as the message bus accepts them.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.host import ComputeHost
from kilonova.context import RequestContext
from kilonova.objects.audit_period import last_period
from kilonova.objects.task_log import TaskLog

LOG = logging.getLogger(__name__)

TASK = 'instance_usage_audit'
Send = Callable[[int, str], None]


class Heartbeat:
    """The heartbeat of one service.

    ``beat()`` sends a report to the conductor and never raises an error: a host that can't report continues to work,
    and after a while it counts as down. ``send(id, host)`` sends a report as an RPC cast, and raises Unanswered if the
    message bus does not accept it. If ``send`` is None, all reports are RPC calls.

    ``recovered()`` is called when a report is answered and the host may have counted as down before that report. This
    is assumed in three cases: the previous report failed, no report was sent for ``patience`` seconds, or a conductor
    has said that the host counted as down (``again``).
    """

    def __init__(
        self,
        service: objects.Service,
        recovered: Callable[[], None] = lambda: None,
        patience: float = float('inf'),
        clock: Callable[[], float] = time.monotonic,
        send: Send | None = None,
    ) -> None:
        self._service, self._recovered, self._patience, self._clock = service, recovered, patience, clock
        self._send = send
        self._beaten = clock()
        self._lost = False
        # True if the last report was answered by a conductor, or accepted by the message bus.
        self._heard = False
        self._missed = False
        LOG.debug(
            'DB_Driver: join new ServiceGroup member %s to the %s group, service = %s',
            service.host,
            service.topic,
            service.binary,
        )

    @property
    def lost(self) -> bool:
        """True if the last report failed."""
        return self._lost

    def again(self) -> None:
        """Send the next heartbeat as an RPC call, which a conductor answers, and not as a cast.

        A conductor asks for this if the host counted as down. When the call is answered, ``recovered()`` is called.
        """
        self._missed = True

    def beat(self) -> None:
        """Send one report. Of several failures in a row only the first is logged, and then the first success."""
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
            self._say_lost('its service record does not exist: it was deleted, or the database was recreated')
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


def audit_usage(host: ComputeHost, ctxt: RequestContext, now: datetime.datetime | None = None) -> int | None:
    """Send an instance.exists notification for each server that was on this host in the last complete audit period.

    Return the number of notifications, or None if the period has been audited before. The result is stored in a row of
    the table task_log.
    """
    moment = now or datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    begin, end = last_period(host.conf.instance_usage_audit_period, moment)
    run = TaskLog(ctxt, task_name=TASK, host=host.name, period_beginning=begin, period_ending=end)
    uuids = run.begin_task()
    if uuids is None:
        return None
    LOG.info('Running instance usage audit for host %s from %s to %s. %d instances.', host.name, begin, end, len(uuids))
    failed = sum(not _tell(host, ctxt, uuid) for uuid in uuids)
    run.errors, run.message = failed, f'Instance usage audit ran for host {host.name}, {len(uuids)} instances.'
    run.end_task()
    return len(uuids) - failed


def _tell(host: ComputeHost, ctxt: RequestContext, uuid: str) -> bool:
    try:
        server = TaskLog.get_server(ctxt, uuid)
        if server is not None:
            host.notify.emit(ctxt, 'instance.exists', instance=server, whole=True)
    except Exception:
        LOG.exception('Could not send the usage notification of the instance', instance_uuid=uuid)
        return False
    return True
