"""Delete: terminate · drop_allocations · mark_deleted. Soft delete: confirm_source · drop_allocation · settle_move ·
soft_delete_instance. Both only go forward (operations.md rules 10, 17).

A delete always wins. Devices are free in the database before their allocation goes, so nobody is given a device that
still has an owner. A server in the middle of a move is destroyed on both hosts; a dead host's part becomes a pending
release. A soft-deleted server keeps host, disks, devices and allocation until it is reclaimed; one whose move waits for
an answer is confirmed first: what comes back one day is the server as it was last seen.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import accelerators, beside, port_releases, resized, shelve, volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db import engine
from kilonova.db.queries import info_caches, instance_mappings, instances, migrations
from kilonova.db.queries import volumes as volume_rows
from kilonova.errors import InstanceNotFound


# --- delete ----------------------------------------------------------------------------------------------------------
@dataclass
class DeleteOutputs(Outputs):
    """``terminate``: {consumers: what else than the server may hold allocations in Placement: its unended moves}."""

    terminate: dict[str, list[str]] | None = None

    @property
    def consumers(self) -> list[str]:
        """Uuids of the server's moves that had not ended."""
        return (self.terminate or {})['consumers']


def _moves(work: Work[DeleteOutputs]) -> list[dict[str, Any]]:
    with engine.silence(), work.db.read() as conn:
        return migrations.unended_of_instance(conn, work.instance_uuid)


def terminate(work: Work[DeleteOutputs]) -> None:
    """Each host that holds a part of the server destroys it and frees its devices."""
    unfinished = _moves(work)
    instance = work.instance()
    hosts = [instance.host] if instance.host else []
    if not work.outputs.tries:
        work.env.notify.emit(work.ctxt, 'instance.delete.start', instance=instance, host=instance.host)
    for row in unfinished:
        hosts += [host for host in (row['source_compute'], row['dest_compute']) if host and host not in hosts]
    for host in hosts:
        try:
            work.ask(host, 'terminate_instance', instance=instance)
        except HostGone:
            beside.pend(work, host, 'terminate_instance', instance=instance)
    work.outputs.terminate = {'consumers': [row['uuid'] for row in unfinished]}


def drop_allocations(work: Work[DeleteOutputs]) -> None:
    """The server's allocation in Placement goes, and what unfinished moves hold; before it its accelerators, or another
    server could be given a device that isn't free. So do its ports, and the image that it was shelved to: nobody would
    know what it is for."""
    instance = work.instance()
    accelerators.drop_all(work, instance, work.outputs.consumers)
    for consumer in [*work.outputs.consumers, work.instance_uuid]:
        work.env.placement.delete_allocations(consumer)
    if instance.vifs:
        port_releases.drop(work, [vif.id for vif in instance.vifs if vif.preserve_on_delete])
    if instance.volumes:
        volumes.drop(work, volumes.going_with(instance.volumes))
    image_id = instance.system_metadata.get(shelve.IMAGE)
    if image_id:
        beside.drop_image(work, image_id)


def mark_deleted(work: Work[DeleteOutputs]) -> None:
    """The row is soft-deleted and the operation is over, together; its mapping says so before, as lists and quotas go
    by that while the cell is silent."""
    with engine.silence(), work.env.api.write() as conn:
        instance_mappings.set_queued_for_delete(conn, work.instance_uuid)

    def end(conn: engine.Connection) -> None:
        uuid = work.instance_uuid
        instances.mark_deleted(conn, uuid)
        if had_ports:
            info_caches.write(conn, uuid, [])
        if had_volumes:
            volume_rows.remove_all(conn, uuid)
        if work.outputs.consumers:
            migrations.end_all(conn, uuid, 'error')
        instances.finish_action(conn, uuid, work.request_id)
    row = work.instance() if work.env.notify.enabled else None
    had_ports = bool(work.instance_row()['extra_network_info'])
    had_volumes = bool(work.instance_row()['extra_volumes'])
    work.end(end)
    if row is not None:
        now = instances.utcnow()
        work.env.notify.emit(work.ctxt, 'instance.delete.end', instance=row, host=row.host, moved='delete.done',
                             values={'deleted_at': now, 'terminated_at': now, 'power_state': 0, 'host': None,
                                     'node': None})


class Delete(Flow[DeleteOutputs]):
    name, outputs = 'delete', DeleteOutputs
    forward_only = True
    steps = (
        Step('terminate', terminate),
        Step('drop_allocations', drop_allocations, saved=False),
        Step('mark_deleted', mark_deleted),
    )

    def run(self, work: Work[DeleteOutputs]) -> None:
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


# --- soft delete -----------------------------------------------------------------------------------------------------
def _moved(work: Work[Outputs]) -> bool:
    return bool(work.args.get('migration_uuid'))


def confirm_source(work: Work[Outputs]) -> None:
    """What the source kept of the server goes."""
    if _moved(work):
        resized.confirm_source(work)


def drop_allocation(work: Work[Outputs]) -> None:
    """What the migration held in Placement goes."""
    if _moved(work):
        resized.drop_allocation(work)


def settle_move(work: Work[Outputs]) -> None:
    """One flavor, no migration context, the migration confirmed."""
    if _moved(work):
        with engine.silence():
            _write(work)
        work.changed()


@engine.retried
def _write(work: Work[Outputs]) -> None:
    settle = resized.settled(work)
    with work.db.write() as conn:
        settle(conn)


def soft_delete_instance(work: Work[Outputs]) -> None:
    """The host powers the guest off and writes the end state. For a host that is down it is written here: when it is
    back it finds a guest that is to be off."""
    host = work.instance_row()['host']
    try:
        if host is None:
            raise HostGone(host='of the server')
        work.ask(host, 'soft_delete_instance', instance=work.instance())
    except HostGone:
        row = work.instance()
        work.env.notify.emit(work.ctxt, 'instance.soft_delete.start', instance=row, host=host)
        moved = False

        def end(conn: engine.Connection) -> None:
            nonlocal moved
            moved = instances.transition(conn, work.instance_uuid, 'soft_delete.done')
            instances.finish_action(conn, work.instance_uuid, work.request_id)
        work.end(end)
        work.env.notify.emit(work.ctxt, 'instance.soft_delete.end', instance=row, host=host,
                             moved='soft_delete.done' if moved else None)
    else:
        work.ended_by_host()


class SoftDelete(Flow[Outputs]):
    name, outputs = 'soft_delete', Outputs
    forward_only = True
    steps = (
        Step('confirm_source', confirm_source, saved=_moved),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('settle_move', settle_move),
        Step('soft_delete_instance', soft_delete_instance),
    )

    def ended_badly(self, work: Work[Outputs]) -> None:
        """A delete waits behind it: that takes the server as it is."""
        work.end(lambda conn: instances.finish_action(conn, work.instance_uuid, work.request_id, 'Error'))
