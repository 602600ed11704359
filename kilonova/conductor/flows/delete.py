"""Delete: terminate · drop_allocations · mark_deleted. Only forward; it always wins (operations.md rules 10, 17).

Devices are free in the database before their allocation goes, so nobody is given a device that still has an owner. A
server in the middle of a move is destroyed on both hosts; a dead host's part becomes a pending release.
"""
from __future__ import annotations

from typing import Any

from kilonova.conductor.environment import silence
from kilonova.conductor.flow import Flow
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db.queries import instance_mappings, instances, migrations
from kilonova.errors import InstanceNotFound


def _moves(work: Work) -> list[dict[str, Any]]:
    with silence(), work.db.read() as conn:
        return migrations.unended_of_instance(conn, work.instance_uuid)


def terminate(work: Work) -> dict[str, Any]:
    """Each host that holds a part of the server destroys it and frees its devices."""
    unfinished = _moves(work)
    instance = work.instance()
    hosts = [instance.host] if instance.host else []
    if not work.outputs.get('tries'):
        work.env.notify.emit(work.ctxt, 'instance.delete.start', instance=instance, host=instance.host)
    for row in unfinished:
        hosts += [host for host in (row['source_compute'], row['dest_compute']) if host and host not in hosts]
    for host in hosts:
        try:
            work.ask(host, 'terminate_instance', instance=instance)
        except HostGone:
            work.pend(host, 'terminate_instance', instance=instance)
    return {'consumers': [row['uuid'] for row in unfinished]}


def drop_allocations(work: Work) -> None:
    """The server's allocation in Placement goes, and what unfinished moves hold."""
    for consumer in [*work.outputs['terminate']['consumers'], work.instance_uuid]:
        work.env.placement.delete_allocations(consumer)


def mark_deleted(work: Work) -> None:
    """The row is soft-deleted and the operation is over, together; its mapping says so before, as lists and quotas go
    by that while the cell is silent."""
    with silence(), work.env.api.write() as conn:
        instance_mappings.set_queued_for_delete(conn, work.instance_uuid)
    moved = bool(work.outputs['terminate']['consumers'])

    def end(conn: Any) -> None:
        uuid = work.instance_uuid
        instances.mark_deleted(conn, uuid)
        if moved:
            migrations.end_all(conn, uuid, 'error')
        instances.finish_action(conn, uuid, work.request_id)
    row = work.instance() if work.env.notify.enabled else None
    work.end(end)
    if row is not None:
        now = instances.utcnow()
        work.env.notify.emit(work.ctxt, 'instance.delete.end', instance=row, host=row.host, moved='delete.done',
                             values={'deleted_at': now, 'terminated_at': now, 'power_state': 0, 'host': None,
                                     'node': None})


class Delete(Flow):
    name = 'delete'
    forward_only = True
    steps = (
        Step('terminate', terminate),
        Step('drop_allocations', drop_allocations, saved=False),
        Step('mark_deleted', mark_deleted, saved=False),
    )

    def run(self, work: Work) -> None:
        try:
            if work.position == 0:
                work.instance_row()
        except InstanceNotFound:
            # Deleted before (a lost reply): nothing is left but the row.
            work.end()
            work.close()
            return
        except Exception as error:  # noqa: BLE001 - a delete only goes forward, so it is tried again
            work.give_back(error)
            return
        super().run(work)


FLOW = Delete()
