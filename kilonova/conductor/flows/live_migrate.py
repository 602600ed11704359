"""Flow of a live migration.

The steps are create_migration, check_source, select, claim_and_move, check_destination, pre_live_migration,
live_migration, post_live_migration_at_destination, clean_source, drop_allocation and mark_migrated.

Until the guest has left the source, each step can be undone, and a failed migration leaves the server on the source
unchanged. After the guest has left the source, it is not moved back. If a later step fails or the operation is
cancelled, the migration is completed (``settle``). Only the hypervisors know whether the guest has left: the source is
asked first, and the destination if the source does not have the guest. If the host that must answer is down, the
operation waits, so that a server never has two guests.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from oslo_log import log as logging

from kilonova import objects
from kilonova.accel import holder
from kilonova.conductor.ending import Ending
from kilonova.conductor.flows import accelerators, moving, releases
from kilonova.conductor.flows.moving import Choosing, Rechosen, allocated_spec, migration
from kilonova.conductor.flows.network import port_moves
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.work import HostDown, Step, WaitingForHostSlot, Work
from kilonova.db import engine
from kilonova.db.arguments.moves import LiveMigrateArguments
from kilonova.db.queries import instances
from kilonova.errors import (
    DisksUnmovable,
    HostRejected,
    KilonovaError,
    LeaseLost,
    LiveMigrationAborted,
    MigrationPreCheckError,
    Unanswered,
)
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import VersionCapError

LOG = logging.getLogger(__name__)


@dataclass
class LiveOutputs(Rechosen):
    """Stored results of a live migration.

    Attributes:
        guest: Reply of the source in the step ``check_source``: what the guest needs at a destination. None before.
        offer: Replies of the destination in the steps ``check_destination`` and ``pre_live_migration``, merged into one
            dict: how the source can send the guest. None before.
        gone: Whether the guest has left the source; None if this is not known yet.
    """

    guest: dict[str, Any] | None = None
    offer: dict[str, Any] | None = None
    gone: bool | None = None


LiveWork = Work[LiveOutputs]


# --- the steps -------------------------------------------------------------------------------------------------------
def check_source(work: LiveWork) -> None:
    """Ask the source to check that the guest runs. Store the reply: what the guest needs at a destination.

    Raises HostDown if the source is down, because the guest can't be migrated without the source.
    """
    source = migration(work).source_compute
    guest = work.call_host(source, Compute.check_can_live_migrate_source, instance=work.instance())
    _check_release(work, source, guest)
    work.outputs.guest = guest


def _check_release(work: LiveWork, host: str, said: dict[str, Any]) -> None:
    """Raise MigrationPreCheckError if the host has the previous release and the server has volumes.

    Computes of the previous release can't live migrate a guest with volumes. Their reply ``said`` has no key
    ``volumes``.
    """
    if work.instance().volumes and 'volumes' not in said:
        raise MigrationPreCheckError(
            reason=f'the compute service of host {host} is of an older release, which cannot '
            f'live migrate a server with volumes'
        )


def undo_check_source(work: LiveWork) -> None:
    """Ask the source to resume the guest if the migration has stopped it. All later steps are undone already."""
    if work.outputs.offer is not None or _by_user(work):
        _ask_to_abort(work, resume=True)


def check_destination(work: LiveWork) -> None:
    """Ask the destination to compare itself with the source and to claim resources.

    Store the destination's reply, which describes how the source can send the guest.
    """
    host, args = work.chosen(), work.arguments(LiveMigrateArguments)
    order = objects.LiveMigrationCheckOrder(
        instance=work.instance(),
        migration=migration(work),
        request_spec=allocated_spec(work),
        limits=host.scheduler_limits,
        guest=work.outputs.guest,
        block=args.block,
        over_commit=args.over_commit,
    )
    work.outputs.offer = work.call_host(host.host, Compute.check_can_live_migrate_destination, order=order)
    work.changed()


def undo_check_destination(work: LiveWork) -> None:
    """Ask the destination to delete the incoming guest, the guest's disks and the claim."""
    if work.outputs.select is not None:
        releases.ask_to_undo(
            work, work.chosen().host, Compute.rollback_live_migration_at_destination, order=_undo(work, gone=False)
        )
        port_moves.renounce(work, work.chosen().host)
        volumes.renounce(work, work.chosen().host)


def _order(work: LiveWork) -> objects.LiveMigrationOrder:
    return objects.LiveMigrationOrder(
        instance=work.instance(), migration=migration(work), guest=work.outputs.guest, offer=work.outputs.offer
    )


def _undo(work: LiveWork, resume: bool = False, gone: bool | None = None) -> objects.LiveMigrationUndo:
    # If ``aborted`` is True, the source sends the notification that a user aborted the migration.
    # The source may get two undo calls: for live_migration and for check_source (``resume``).
    # Only the first undo call has ``aborted`` True, so that the notification is sent once.
    first = not resume or work.position < FLOW.index('live_migration')
    return objects.LiveMigrationUndo(
        instance=work.instance(fresh=True),
        migration=migration(work),
        resume=resume,
        aborted=first and _by_user(work),
        gone=gone,
    )


def _by_user(work: LiveWork) -> bool:
    """Return whether a user aborted the migration."""
    return work.error is not None and work.error['class'] == LiveMigrationAborted.__name__


def _end_abort(work: LiveWork, conn: engine.Connection) -> None:
    """End the action of the request that aborted the migration, if a user has aborted it."""
    if work.error is not None and _by_user(work):
        request = work.error['request_id']
        event = {
            **work.event('compute_live_migration_abort', host=migration(work).source_compute),
            'details': None,
            'traceback': None,
        }
        instances.add_events(conn, work.instance_uuid, request, [event])
        instances.finish_action(conn, work.instance_uuid, request)


def pre_live_migration(work: LiveWork) -> None:
    """Bind the ports and attach the volumes to the destination. Ask the destination to create the disks.

    The ports stay bound and the volumes stay attached to the source as well. The destination also connects the volumes.
    """
    host = work.chosen().host
    port_moves.announce(work, work.chosen(), allocated_spec(work).pci_requests)
    volumes.announce(work, host)
    said = work.call_host(host, Compute.pre_live_migration, order=_order(work))
    _check_release(work, host, said)
    work.outputs.offer = {**(work.outputs.offer or {}), **said}


def live_migration(work: LiveWork) -> None:
    """Ask the source to migrate the guest to the destination.

    Some ports of the guest may be PCI functions of the source. The source first unplugs these ports from the guest.
    After this step has succeeded, the migration is always completed and never undone.
    """
    source, vifs = migration(work).source_compute, _functions(work)
    if vifs:
        work.call_host(source, Compute.unplug_functions, instance=work.instance(), vifs=vifs)
    work.call_host(source, Compute.live_migration, order=_order(work))
    work.outputs.gone = True


def undo_live_migration(work: LiveWork) -> None:
    """Ask the source to abort the migration and to plug the unplugged ports into the guest again."""
    _ask_to_abort(work, resume=False)
    vifs = _functions(work)
    if vifs:
        releases.ask_to_undo(
            work,
            migration(work).source_compute,
            Compute.undo_unplug_functions,
            instance=work.instance(fresh=True),
            vifs=vifs,
        )


def _functions(work: LiveWork) -> list[dict[str, Any]]:
    """Return the server's SR-IOV interfaces as dicts, in the form in which the info cache stores them."""
    return [vif.stored() for vif in work.vifs() if vif.is_function]


def _arriving(work: LiveWork) -> objects.Instance:
    """Return the server with the PCI requests that it has at the destination."""
    server = work.instance(fresh=True)
    context = server.migration_context
    if context is not None and 'new_pci_requests' in context:
        server.pci_requests = context.new_pci_requests
    return server


def _ask_to_abort(work: LiveWork, resume: bool) -> None:
    releases.ask_to_undo(
        work, migration(work).source_compute, Compute.undo_live_migration, order=_undo(work, resume=resume)
    )


def post_live_migration_at_destination(work: LiveWork) -> None:
    """Ask the destination to take over the server. Activate the new port bindings and volume attachments.

    The new bindings and attachments are those for the destination. Some ports may be PCI functions of the destination.
    The destination plugs these ports into the guest last.
    """
    moved = migration(work)
    work.call_host(
        work.chosen().host, Compute.post_live_migration_at_destination, instance=work.instance(), migration=moved
    )
    port_moves.arrived(work, work.chosen().host, moved.source_compute)
    volumes.arrived(work, work.chosen().host)
    work.changed()
    vifs = _functions(work)
    if vifs:
        work.call_host(work.chosen().host, Compute.plug_functions, instance=_arriving(work), vifs=vifs)


def clean_source(work: LiveWork) -> None:
    """Ask the source to delete the server's files and devices. Delete the attachments of volumes to the source.

    If the source is down, an operation row is added (a pending release). A conductor calls the source when it is up
    again.
    """
    order, host = _order(work), migration(work).source_compute
    try:
        work.call_host(host, Compute.post_live_migration, order=order)
    except HostDown:
        releases.add_pending_release(work, host, Compute.post_live_migration, order=order)
    volumes.forget_source(work)


def drop_allocation(work: LiveWork) -> None:
    """Release the server's accelerators on the source, and delete the migration's allocation."""
    server = work.instance()
    if accelerators.wanted_by(server.flavor):
        accelerators.drop(work, holder.of(server.uuid, server.system_metadata))
    work.env.placement.delete_allocations(work.arguments(LiveMigrateArguments).migration_uuid)


def mark_migrated(work: LiveWork) -> None:
    """Write that the server is on the destination, in the state that it had before the migration."""
    replace(_arrived(work), events=[_event(work, 'Success')]).end(work)


def _arrived(work: LiveWork) -> Ending:
    """Return the changes that are written when the migration has ended on the destination.

    The server gets the NUMA topology and the PCI requests of the migration context, which is then deleted. If it has
    accelerators, its system metadata get the migration's uuid, to which the accelerator requests are bound.
    """
    server = work.instance()
    context = server.migration_context
    extra: dict[str, str | None] = {'migration_context': None}
    if context is not None and context.new_numa_topology is not None:
        extra['numa_topology'] = context.new_numa_topology.to_json()
    if context is not None and 'new_pci_requests' in context and context.new_pci_requests is not None:
        extra['pci_requests'] = context.new_pci_requests.to_column()
    return Ending(
        event='live_migrate.done',
        extra=extra,
        system_metadata=holder.came(work.arguments(LiveMigrateArguments).migration_uuid)
        if accelerators.wanted_by(server.flavor)
        else {},
        migration='completed',
        after=functools.partial(_end_abort, work),
    )


def _event(work: LiveWork, result: str) -> dict[str, Any]:
    return work.event('conductor_live_migrate_instance', result, work.env.host)


# --- failed or cancelled migrations ----------------------------------------------------------------------------------
def has_gone(work: LiveWork) -> bool:
    """Abort the guest's migration if it is still running, and return whether the guest has left the source.

    The source is asked first, and aborts the migration, so the result is final. If the source is down or does not have
    the guest, the destination is asked. Raises HostNotFenced if the destination must answer, but is down and may run
    the guest.
    """
    if work.outputs.gone is None:
        order = _undo(work)
        found = _at_source(work, order)
        # After a switch to post-copy the guest runs on the destination, so the source no longer has its newest data.
        work.outputs.gone = found['switched'] or (not found['active'] and _has_arrived(work, order))
        work.decide({'position': work.position}, cancelled=True)
    return work.outputs.gone


def _at_source(work: LiveWork, order: objects.LiveMigrationUndo) -> dict[str, bool]:
    """Ask the source for the state of the guest, and return it as {'active': bool, 'switched': bool}.

    ``active`` is True if the source has the guest, ``switched`` if the migration was switched to post-copy. Both values
    are False if the source is down. ``order`` has the arguments of the call.
    """
    nothing = {'active': False, 'switched': False}
    try:
        answer = work.call_host(order.migration.source_compute, Compute.undo_live_migration, order=order)
    except (HostDown, VersionCapError):
        return nothing
    except (Unanswered, LeaseLost):
        raise
    except KilonovaError:
        # If the source has failed several times, return no state. The caller then asks the destination instead.
        if work.outputs.tries < releases.UNDO_TRIES:
            raise
        return nothing
    # A compute of the previous release does not return 'switched'.
    return {**nothing, **answer}


def _has_arrived(work: LiveWork, order: objects.LiveMigrationUndo) -> bool:
    host = work.chosen().host
    try:
        answer = work.call_host(host, Compute.rollback_live_migration_at_destination, order=order)
    except HostDown:
        releases.check_no_guest(work, host, lambda: moving.will_have_guest(work, order.instance))
        return False
    return bool(answer['arrived'])


def settle(work: LiveWork) -> None:
    """Complete a migration that failed or was cancelled after the guest had left the source.

    The server is assigned to the destination. The server's files, devices and accelerators on the source and the
    migration's allocation are released. If a host is down, operation rows are added (pending releases), and a conductor
    calls the host when it is up again.
    """
    moved, host = migration(work), work.chosen()
    releases.ask_to_undo(work, host.host, Compute.rollback_live_migration_at_destination, order=_undo(work, gone=True))
    work.changed()
    port_moves.arrived(work, host.host, moved.source_compute)
    volumes.arrived(work, host.host)
    work.changed()
    vifs = _functions(work)
    if vifs:
        releases.add_pending_release(work, host.host, Compute.plug_functions, instance=_arriving(work), vifs=vifs)
    releases.add_pending_release(work, moved.source_compute, Compute.post_live_migration, order=_order(work))
    volumes.forget_source(work, later=True)
    drop_allocation(work)
    ending = _arrived(work)

    def to_destination(conn: engine.Connection) -> None:
        instances.put_back(
            conn, work.instance_uuid, {'host': host.host, 'node': moved.dest_node}, {moved.source_compute, host.host}
        )

    replace(ending, before=to_destination, events=[_event(work, 'Error')], failed=True).end(work)


class LiveMigrate(Choosing[LiveOutputs]):
    """The operation that live migrates a server."""

    name, outputs = 'live_migrate', LiveOutputs
    steps = (
        Step('create_migration', functools.partial(moving.create_migration, status='accepted')),
        Step('check_source', check_source, undo_check_source),
        Step('select', moving.select),
        Step('claim_and_move', moving.claim_and_move, moving.undo_claim_and_move, again_from='claim_and_move'),
        Step('check_destination', check_destination, undo_check_destination, again_from='claim_and_move'),
        # pre_live_migration creates disks at the destination. The undo of check_destination deletes these disks.
        Step('pre_live_migration', pre_live_migration, again_from='claim_and_move'),
        # Another host is tried if the source refuses this destination in live_migration, before the guest is moved.
        Step('live_migration', live_migration, undo_live_migration, again_from='claim_and_move'),
        Step('post_live_migration_at_destination', post_live_migration_at_destination),
        Step('clean_source', clean_source),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('mark_migrated', mark_migrated),
    )

    def next_attempt(self, work: LiveWork, step: Step[LiveOutputs], error: HostRejected) -> bool:
        """Undo this attempt and try the next chosen host. Returns False if no host is left.

        If the source refuses during ``live_migration``, the next host is tried only if the reason is that disks can't
        be sent to this destination. After any other refusal the guest may have left the source already.
        """
        if step.do is live_migration and not isinstance(error, DisksUnmovable):
            return False
        return super().next_attempt(work, step, error)

    def unwind(self, work: LiveWork) -> None:
        """Undo a failed or cancelled migration. If the guest has left the source already, complete the migration."""
        position = self.index('live_migration')
        if work.position < position:
            super().unwind(work)
            return
        work.at(position, self.steps[position])
        try:
            work.compare()
            gone = has_gone(work)
            if gone:
                settle(work)
        except (LeaseLost, Unanswered, WaitingForHostSlot):
            raise
        except Exception as error:
            LOG.exception(
                'Operation %s (%s): could not find out whether the guest has moved; it will be retried',
                work.uuid,
                self.name,
                instance_uuid=work.instance_uuid,
            )
            work.give_back(error)
            return
        if gone:
            work.close()
        else:
            super().unwind(work)

    def ended_badly(self, work: LiveWork) -> None:
        """Write the server's row as before the migration, with a fault and the event of the failure.

        There is no fault if a user aborted the migration.
        """
        Ending(
            before=moving.as_before(work),
            event='live_migrate.failed',
            fault=not _by_user(work),
            migration='cancelled' if _by_user(work) else 'error',
            events=[_event(work, 'Error')],
            failed=True,
            after=functools.partial(_end_abort, work),
        ).end(work)


FLOW = LiveMigrate()
