"""Flows of a delete and a soft delete, which only go forward (operations.md, rules 10 and 17).

The steps of a delete are terminate, drop_allocations and mark_deleted. Those of a soft delete are confirm_source,
drop_allocation, settle_move and soft_delete_instance.

A delete has priority over all other operations. The devices are freed in the database before their allocation is
deleted, so that no server gets a device that still has an owner. A server in the middle of a move is destroyed on the
source and on the destination. The part of a host that is down becomes a pending release. A soft-deleted server keeps
host, disks, devices and allocation until it is reclaimed. A move that waits to be confirmed is confirmed before the
soft delete, so that a later restore yields the server in its last visible form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import accelerators, confirm_revert, releases, shelve
from kilonova.conductor.flows.network import port_releases
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, Step, Work
from kilonova.db import engine
from kilonova.db.queries import info_caches, instance_mappings, instances, migrations
from kilonova.db.queries import volumes as volume_rows
from kilonova.errors import InstanceNotFound
from kilonova.rpc.compute import Compute


# --- delete ----------------------------------------------------------------------------------------------------------
@dataclass
class DeleteOutputs(Outputs):
    """Stored results of a delete.

    ``terminate`` is a dict whose key ``consumers`` has the uuids of unfinished moves, which may hold allocations.
    """

    terminate: dict[str, list[str]] | None = None

    @property
    def consumers(self) -> list[str]:
        """The uuids of the server's unfinished moves."""
        return (self.terminate or {})['consumers']


def _moves(work: Work[DeleteOutputs]) -> list[dict[str, Any]]:
    with engine.silence(), work.db.read() as conn:
        return migrations.unended_of_instance(conn, work.instance_uuid)


def terminate(work: Work[DeleteOutputs]) -> None:
    """Have each host that holds a part of the server destroy it and free its devices.

    A pending release does it for a host that is down.
    """
    unfinished = _moves(work)
    instance = work.instance()
    hosts = [instance.host] if instance.host else []
    if not work.outputs.tries:
        work.env.notify.emit(work.ctxt, 'instance.delete.start', instance=instance, host=instance.host)
    for row in unfinished:
        hosts += [host for host in (row['source_compute'], row['dest_compute']) if host and host not in hosts]
    for host in hosts:
        try:
            work.call_host(host, Compute.terminate_instance, instance=instance)
        except HostDown:
            releases.add_pending_release(work, host, Compute.terminate_instance, instance=instance)
    work.outputs.terminate = {'consumers': [row['uuid'] for row in unfinished]}


def drop_allocations(work: Work[DeleteOutputs]) -> None:
    """Release accelerators, allocations, ports, volumes and the image to which the server was shelved.

    The allocations are those of the server and of its unfinished moves. Accelerators are released before them, because
    otherwise another server could get a device that is not free. The image is deleted because nothing would refer to it
    any more.
    """
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
        releases.drop_image(work, image_id)


def mark_deleted(work: Work[DeleteOutputs]) -> None:
    """Mark the server's row as deleted and end the operation in one transaction.

    The server's mapping is marked before, because lists and quotas use it while the cell does not answer.
    """
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
        work.env.notify.emit(
            work.ctxt,
            'instance.delete.end',
            instance=row,
            host=row.host,
            moved='delete.done',
            values={'deleted_at': now, 'terminated_at': now, 'power_state': 0, 'host': None, 'node': None},
        )


class DeleteServer(Flow[DeleteOutputs]):
    """The operation that deletes a server."""

    name, outputs = 'delete', DeleteOutputs
    forward_only = True
    steps = (
        Step('terminate', terminate),
        Step('drop_allocations', drop_allocations, saved=False),
        Step('mark_deleted', mark_deleted),
    )

    def run(self, work: Work[DeleteOutputs]) -> None:
        """Run the delete, or end it at once if the server's row does not exist any more."""
        try:
            if work.position == 0:
                work.instance_row()
        except InstanceNotFound:
            # The server was deleted before, and only the reply was lost: nothing is left but the row.
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
    """Have the source delete what it kept of the server, if a move waits to be confirmed."""
    if _moved(work):
        confirm_revert.confirm_source(work)


def drop_allocation(work: Work[Outputs]) -> None:
    """Delete the allocation of the migration, if a move waits to be confirmed."""
    if _moved(work):
        confirm_revert.drop_allocation(work)


def settle_move(work: Work[Outputs]) -> None:
    """Write the move as confirmed, if one waits for that.

    The server then has one flavor and no migration context.
    """
    if _moved(work):
        with engine.silence():
            _write(work)
        work.changed()


@engine.retried
def _write(work: Work[Outputs]) -> None:
    settle = confirm_revert.settled(work)
    with work.db.write() as conn:
        settle(conn)


def soft_delete_instance(work: Work[Outputs]) -> None:
    """Have the host power the guest off and write the end state.

    If the host is down, the end state is written here. When the host is back it finds that the guest must be off.
    """
    host = work.instance_row()['host']
    try:
        if host is None:
            raise HostDown(host='of the server')
        work.call_host(host, Compute.soft_delete_instance, instance=work.instance())
    except HostDown:
        row = work.instance()
        work.env.notify.emit(work.ctxt, 'instance.soft_delete.start', instance=row, host=host)
        moved = False

        def end(conn: engine.Connection) -> None:
            nonlocal moved
            moved = instances.transition(conn, work.instance_uuid, 'soft_delete.done')
            instances.finish_action(conn, work.instance_uuid, work.request_id)

        work.end(end)
        work.env.notify.emit(
            work.ctxt, 'instance.soft_delete.end', instance=row, host=host, moved='soft_delete.done' if moved else None
        )
    else:
        work.ended_by_host()


class SoftDeleteServer(Flow[Outputs]):
    """The operation that soft-deletes a server."""

    name, outputs = 'soft_delete', Outputs
    forward_only = True
    steps = (
        Step('confirm_source', confirm_source, saved=_moved),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('settle_move', settle_move),
        Step('soft_delete_instance', soft_delete_instance),
    )

    def ended_badly(self, work: Work[Outputs]) -> None:
        """End the operation with the result Error, because a waiting delete takes over the server as it is."""
        work.end(lambda conn: instances.finish_action(conn, work.instance_uuid, work.request_id, 'Error'))
