"""TaskLog: one run of a periodic task of a host for one period (table ``task_log``).

Example:
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
    """One run of a periodic task.

    ``task_items`` is the number of servers. The run handles the time from ``period_beginning`` to ``period_ending``.
    """

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
        """Write that the task is running, and return the uuids of the servers that were on the host in the period.

        Deleted servers are included. Return None if the task has already run for this period.
        """
        usages, begin, end = storage.queries('usages'), naive(self.period_beginning), naive(self.period_ending)
        with storage.database(self._context).write() as conn:
            uuids: list[str] = usages.of_host(conn, self.host, begin, end)
            row_id = usages.begin_audit(
                conn,
                {
                    'task_name': self.task_name,
                    'host': self.host,
                    'state': RUNNING,
                    'period_beginning': begin,
                    'period_ending': end,
                    'task_items': len(uuids),
                },
            )
        if row_id is None:
            return None
        self.id, self.state, self.task_items = row_id, RUNNING, len(uuids)
        self.obj_reset_changes()
        return uuids

    @remotable
    def end_task(self) -> None:
        """Write that the task is done, with the object's ``errors`` and ``message``."""
        with storage.database(self._context).write() as conn:
            storage.queries('usages').end_audit(conn, self.id, DONE, self.errors, self.message)
        self.state = DONE
        self.obj_reset_changes()

    @remotable_classmethod
    def get_server(cls, ctxt: RequestContext, uuid: str) -> Instance | None:
        """Return a server with its metadata, even if the server is deleted.

        Return None if the cell does not have it.
        """
        return reading.server(ctxt, storage.database(ctxt), uuid)
