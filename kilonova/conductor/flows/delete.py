"""Flows of a delete and a soft delete. No step is undone: a failed step is retried (operations.md, rules 10 and 17).

The steps of a delete are terminate, drop_allocations and mark_deleted. The steps of a soft delete are confirm_source,
drop_allocation, settle_move and soft_delete_instance.

A delete has priority over all other operations. Devices are freed in the database before their allocation is deleted,
so that no other server gets a device that still has an owner. A server in the middle of a move is destroyed on the
source and on the destination. For a host that is down, a pending release is added: an operation row, which a conductor
runs when the host is up again. A soft-deleted server keeps its host, disks, devices and allocation until it is
reclaimed. If a resize waits to be confirmed, a soft delete confirms it first. A later restore then yields the resized
server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kilonova.conductor.ending import Ending
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import accelerators, confirm_revert, releases, shelve
from kilonova.conductor.flows.network import port_releases
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, Step, Work
from kilonova.db import engine
from kilonova.db.arguments.moves import SoftDeleteArguments
from kilonova.db.queries import info_caches, instance_mappings, instances, migrations
from kilonova.db.queries import volumes as volume_rows
from kilonova.errors import InstanceNotFound
from kilonova.rpc.compute import Compute


# --- delete ----------------------------------------------------------------------------------------------------------
@dataclass
class DeleteOutputs(Outputs):
    """Stored results of a delete.

    ``terminate`` is a dict with the key ``consumers``, a list of the uuids of the server's unfinished migrations. These
    migrations may hold allocations.
    """

    terminate: dict[str, list[str]] | None = None

    @property
    def consumers(self) -> list[str]:
        """The uuids of the server's unfinished migrations."""
        return (self.terminate or {})['consumers']


def _moves(work: Work[DeleteOutputs]) -> list[dict[str, Any]]:
    with engine.silence(), work.db.read() as conn:
        return migrations.unended_of_instance(conn, work.instance_uuid)


def terminate(work: Work[DeleteOutputs]) -> None:
    """Ask each of the server's hosts to delete the server's guest, files and devices.

    If a host is down, an operation row is added (a pending release). A conductor calls the host when it is up again.
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
    """Release the server's accelerators, allocations, ports and volumes, and the image to which it was shelved.

    The allocations of the server and of its unfinished migrations are deleted. Accelerators are released before the
    allocations, because otherwise another server could get a device that is not free.
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

    The server's mapping in the API database is marked as deleted first, because lists and quotas use the mapping if the
    cell does not answer.
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
            # The server is deleted already, so only the operation row must be deleted.
            work.end()
            work.close()
            return
        except Exception as error:  # noqa: BLE001 - a delete only goes forward, so it is tried again
            work.give_back(error)
            return
        super().run(work)


# --- soft delete -----------------------------------------------------------------------------------------------------
def _moved(work: Work[Outputs]) -> bool:
    return bool(work.arguments(SoftDeleteArguments).migration_uuid)


def confirm_source(work: Work[Outputs]) -> None:
    """If a resize waits to be confirmed, ask its source host to delete the server's files and free the old devices."""
    if _moved(work):
        confirm_revert.confirm_source(work)


def drop_allocation(work: Work[Outputs]) -> None:
    """If a resize waits to be confirmed, release the old accelerators and delete the migration's allocation."""
    if _moved(work):
        confirm_revert.drop_allocation(work)


def settle_move(work: Work[Outputs]) -> None:
    """If a resize waits to be confirmed, write it as confirmed.

    The old flavor and the migration context are deleted from the server's row.
    """
    if _moved(work):
        with engine.silence():
            _write(work)
        work.changed()


@engine.retried
def _write(work: Work[Outputs]) -> None:
    changes = replace(confirm_revert.settled(work), finish=False)
    with work.db.write() as conn:
        changes.write(conn, work)


def soft_delete_instance(work: Work[Outputs]) -> None:
    """Ask the host to power the guest off and to write the state of the soft-deleted server.

    If the host is down, the conductor writes the state. When the host is up again, the host powers the guest off,
    because the state says that the guest must be off.
    """
    host = work.instance_row()['host']
    try:
        if host is None:
            raise HostDown(host='(none)')
        work.call_host(host, Compute.soft_delete_instance, instance=work.instance())
    except HostDown:
        row = work.instance()
        work.env.notify.emit(work.ctxt, 'instance.soft_delete.start', instance=row, host=host)
        moved = Ending(event='soft_delete.done').end(work)
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
        """End a soft delete that was cancelled by a delete. Its instance action gets the result Error.

        The delete waits for the end of the soft delete, and then deletes the server.
        """
        Ending(failed=True).end(work)
