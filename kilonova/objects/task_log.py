"""TaskLog: one run of a periodic task of a host over one period (table ``task_log``).

    run = TaskLog(ctxt, task_name='instance_usage_audit', host='gpu1', period_beginning=begin, period_ending=end)
    for uuid in run.begin_task() or ():
        server = TaskLog.get_server(ctxt, uuid)
    run.errors, run.message = 0, '…'
    run.end_task()
"""
from __future__ import annotations

from kilonova.context import RequestContext
from kilonova.objects import fields, storage
from kilonova.objects.base import KilonovaObject, PersistentObject, naive, register, remotable, remotable_classmethod
from kilonova.objects.instance import Instance
from kilonova.objects.notifications import reading

RUNNING, DONE = 'RUNNING', 'DONE'


@register
class TaskLog(PersistentObject, KilonovaObject):
    """``task_items``: how many servers it is about; the times are the period's."""

    VERSION = '1.0'
    fields = {
        'id': fields.IntegerField(),
        'task_name': fields.StringField(),
        'state': fields.StringField(),
        'host': fields.StringField(),
        'period_beginning': fields.DateTimeField(),
        'period_ending': fields.DateTimeField(),
        'message': fields.StringField(),
        'task_items': fields.IntegerField(),
        'errors': fields.IntegerField(),
    }

    @remotable
    def begin_task(self) -> list[str] | None:
        """Write that it runs; the uuids of the servers that were on the host in the period, deleted ones too. None:
        this period was done before."""
        usages, begin, end = storage.queries('usages'), naive(self.period_beginning), naive(self.period_ending)
        with storage.database(self._context).write() as conn:
            uuids: list[str] = usages.of_host(conn, self.host, begin, end)
            row_id = usages.begin_audit(conn, {
                'task_name': self.task_name, 'host': self.host, 'state': RUNNING, 'period_beginning': begin,
                'period_ending': end, 'task_items': len(uuids)})
        if row_id is None:
            return None
        self.id, self.state, self.task_items = row_id, RUNNING, len(uuids)
        self.obj_reset_changes()
        return uuids

    @remotable
    def end_task(self) -> None:
        """Write how it ended: ``errors`` and ``message``."""
        with storage.database(self._context).write() as conn:
            storage.queries('usages').end_audit(conn, self.id, DONE, self.errors, self.message)
        self.state = DONE
        self.obj_reset_changes()

    @remotable_classmethod
    def get_server(cls, ctxt: RequestContext, uuid: str) -> Instance | None:
        """A server that the run is about, deleted or not, with its metadata."""
        return reading.server(ctxt, storage.database(ctxt), uuid)
