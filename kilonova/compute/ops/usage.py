"""The audit of usage: each server that was here in the last whole period is told once (instance.exists)."""
from __future__ import annotations

import datetime
from typing import Any

from oslo_log import log as logging

from kilonova.compute.host import Host
from kilonova.objects.audit_period import last_period
from kilonova.objects.task_log import TaskLog

LOG = logging.getLogger(__name__)

TASK = 'instance_usage_audit'


def audit(host: Host, ctxt: Any, now: datetime.datetime | None = None) -> int | None:
    """How many servers were told; None: the period was audited before. A line of task_log says how it went."""
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


def _tell(host: Host, ctxt: Any, uuid: str) -> bool:
    try:
        server = TaskLog.get_server(ctxt, uuid)
        if server is not None:
            host.notify.emit(ctxt, 'instance.exists', instance=server, whole=True)
    except Exception:
        LOG.exception('The usage of instance could not be told', instance_uuid=uuid)
        return False
    return True
