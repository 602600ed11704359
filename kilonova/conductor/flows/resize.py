"""Flow of a resize or cold migration.

The steps are create_migration, select, claim_and_move, prep_resize, resize_instance, finish_resize, save_spec and
mark_resized. Each step that changes the server has an undo. A move that fails or is refused leaves the server
unchanged, and the event of its action has the reason. The request spec contains the PCI requests of the new flavor.
They name the resource providers that Placement allocated (``pci.request.on_host``), so that the host claims exactly the
allocated devices. The flows in ``confirm_revert`` confirm or revert the move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kilonova import objects
from kilonova.accel import holder
from kilonova.conductor.audit.rows import flavors
from kilonova.conductor.ending import Ending
from kilonova.conductor.flows import accelerators, releases
from kilonova.conductor.flows.moving import (
    Choosing,
    Rechosen,
    allocated_spec,
    as_before,
    claim_and_move,
    create_migration,
    image,
    migration,
    new_flavor,
    select,
    store_spec,
    undo_claim_and_move,
    will_have_guest,
)
from kilonova.conductor.flows.network import port_moves
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.work import Step, Work
from kilonova.db.arguments.moves import ResizeArguments
from kilonova.errors import NoValidHost
from kilonova.rpc.compute import Compute

# Names of the events that the conductor adds to the instance action.
EVENTS = ('conductor_migrate_server', 'cold_migrate')


@dataclass
class ResizeOutputs(Rechosen):
    """Stored results of a resize.

    Attributes:
        prep_resize: Reply of the destination in the step ``prep_resize``: {'disk': MoveOffer}, where and how the source
            must copy the disk (``virt.parts.moves``). None before.
        resize_instance: Reply of the source in the step ``resize_instance``: a description of the copied disk for the
            destination. None before.
    """

    prep_resize: dict[str, Any] | None = None
    resize_instance: dict[str, Any] | None = None


ResizeWork = Work[ResizeOutputs]


def prep_resize(work: ResizeWork) -> None:
    """Ask the destination to claim resources for the new flavor.

    Store the destination's reply, which says where the source must copy the disk.
    """
    host = work.chosen()
    work.outputs.prep_resize = work.call_host(
        host.host,
        Compute.prep_resize,
        order=objects.PrepResizeOrder(
            instance=work.instance(),
            image=image(work),
            migration=migration(work),
            flavor=new_flavor(work),
            request_spec=allocated_spec(work),
            limits=host.scheduler_limits,
        ),
    )
    work.changed()


def undo_prep_resize(work: ResizeWork) -> None:
    """Ask the destination to release the resources that it has claimed for the server."""
    if work.outputs.select is not None:
        releases.ask_to_undo(
            work,
            work.chosen().host,
            Compute.undo_prep_resize,
            instance=work.instance(fresh=True),
            migration=migration(work),
        )


def resize_instance(work: ResizeWork) -> None:
    """Ask the source to power the guest off and to copy its disk to the destination."""
    source = migration(work)
    work.outputs.resize_instance = work.call_host(
        source.source_compute,
        Compute.resize_instance,
        order=objects.ResizeOrder(
            instance=work.instance(),
            image=image(work),
            migration=source,
            flavor=new_flavor(work),
            clean_shutdown=work.arguments(ResizeArguments).clean_shutdown,
            disk=(work.outputs.prep_resize or {}).get('disk'),
        ),
    )
    work.changed()


def undo_resize_instance(work: ResizeWork) -> None:
    """Ask the source to restore the server's disk and devices, and to start the guest if it ran before."""
    source = migration(work)
    releases.ask_to_undo(
        work, source.source_compute, Compute.undo_resize_instance, instance=work.instance(fresh=True), migration=source
    )


def finish_resize(work: ResizeWork) -> None:
    """Ask the destination to build the guest with the new flavor and the new devices.

    Before this request, the server's ports are bound to the destination, and its volumes are attached to the
    destination. This is possible in this step, because the source has stopped the guest already.
    """
    host, spec = work.chosen(), allocated_spec(work)
    is_away = host.host != migration(work).source_compute
    if is_away or port_moves.moves_here(work):
        port_moves.to_host(work, host, spec.pci_requests)
    if is_away:
        volumes.to_host(work, host.host)
    work.call_host(
        host.host,
        Compute.finish_resize,
        order=objects.FinishResizeOrder(
            instance=work.instance(),
            image=image(work),
            migration=migration(work),
            request_spec=spec,
            disk_info=work.outputs.resize_instance,
        ),
    )
    work.changed()


def undo_finish_resize(work: ResizeWork) -> None:
    """Ask the destination to destroy the new guest. Bind ports and attach volumes to the source again.

    The old guest is started on the source later, by the undo of ``resize_instance``.
    """
    instance, moved = work.instance(fresh=True), migration(work)
    releases.ask_to_undo(
        work,
        work.chosen().host,
        Compute.undo_finish_resize,
        instance=instance,
        migration=moved,
        may_run=lambda: will_have_guest(work, instance),
    )
    is_away = work.chosen().host != moved.source_compute
    if is_away or port_moves.moves_here(work):
        port_moves.to_source(work, moved, instance.availability_zone)
    if is_away:
        volumes.to_host(work, moved.source_compute)


def save_spec(work: ResizeWork) -> None:
    """Store the request spec of the new flavor."""
    store_spec(work, work.request_spec())


def undo_save_spec(work: ResizeWork) -> None:
    """Store the request spec of the old flavor again."""
    if spec := work.arguments(ResizeArguments).old_request_spec:
        store_spec(work, work.request_spec(spec))


def mark_resized(work: ResizeWork) -> None:
    """Set the server's state to VERIFY_RESIZE, in which the move waits until the user confirms or reverts it."""
    vm_state, bound = work.instance_row()['vm_state'], {}
    if any(map(accelerators.wanted_by, flavors(work.instance_row()['extra_flavor']).values())):
        bound = holder.moved(work.instance().system_metadata, work.arguments(ResizeArguments).migration_uuid)

    row = work.instance() if work.env.notify.enabled else None
    Ending(
        event='resize.done',
        required=True,
        system_metadata={'old_vm_state': vm_state, **bound},
        migration='finished',
        events=[work.event(name, host=work.env.host) for name in EVENTS],
    ).end(work)
    if row is not None:
        work.env.notify.emit(work.ctxt, 'instance.resize_finish.end', instance=row, moved='resize.done', host=row.host)


class Resize(Choosing[ResizeOutputs]):
    """The operation that resizes or cold migrates a server."""

    name, outputs = 'resize', ResizeOutputs
    steps = (
        Step('create_migration', create_migration, saved=False),
        Step('select', select),
        Step('claim_and_move', claim_and_move, undo_claim_and_move, again_from='claim_and_move'),
        Step('prep_resize', prep_resize, undo_prep_resize, again_from='claim_and_move'),
        # The source checks first whether it can reach the destination. If it can't, another host is tried.
        Step('resize_instance', resize_instance, undo_resize_instance, again_from='claim_and_move'),
        Step('finish_resize', finish_resize, undo_finish_resize),
        Step('save_spec', save_spec, undo_save_spec),
        Step('mark_resized', mark_resized),
    )

    def ended_badly(self, work: ResizeWork) -> None:
        """Write the server's row as before the move, with a fault and the events of the failure."""
        put_back = as_before(work)
        state = work.instance_row()['vm_state'] if work.env.notify.enabled else None
        Ending(
            before=put_back,
            event='resize.failed',
            fault=True,
            migration='error',
            events=[work.event(name, 'Error', work.env.host) for name in EVENTS],
            failed=True,
        ).end(work)
        if state is not None and (work.error or {}).get('class') == NoValidHost.__name__:
            work.env.notify.emit(
                work.ctxt,
                'compute_task.migrate_server.error',
                instance_uuid=work.instance_uuid,
                request_spec=work.request_spec(),
                state=state,
                record=work.error,
            )
