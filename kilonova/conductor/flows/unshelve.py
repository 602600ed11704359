"""Flows that unshelve a server.

If the server was offloaded, the steps are get_image_info, select, claim, unshelve_instance, save_spec and
mark_unshelved. If it is still on its host, the steps are start_shelved_instance and mark_started.

A failure leaves the server shelved. The transaction that writes the state ACTIVE also inserts an operation which
deletes the image of the shelved server. The image is not deleted earlier, because it is the only copy of the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kilonova import objects, states
from kilonova.accel import holder
from kilonova.accel import profile as device_profile
from kilonova.conductor.ending import Ending
from kilonova.conductor.flows import accelerators, boot, moving, releases
from kilonova.conductor.flows.moving import Choosing, Rechosen, store_spec
from kilonova.conductor.flows.network import port_moves
from kilonova.conductor.flows.one_step import OneStep
from kilonova.conductor.flows.shelve import IMAGE, forgotten, release_of_image
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.arguments.moves import UnshelveArguments
from kilonova.db.queries import instances, metadata
from kilonova.errors import ImageNotFound, NotFound, NoValidHost
from kilonova.rpc.compute import Compute


class ShelvedImageMissing(NotFound):
    """The image of the shelved server does not exist or is not active."""

    msg_fmt = 'Unshelve attempted but the image %(image_id)s cannot be found.'


@dataclass
class UnshelveOutputs(Rechosen):
    """Stored results of an unshelve.

    ``image`` is the metadata of the image from which the root disk is made, or None until the image is read.
    """

    image: dict[str, Any] | None = None


UnshelveWork = Work[UnshelveOutputs]


def get_image_info(work: UnshelveWork) -> None:
    """Read the metadata of the image to which the server was shelved.

    Only fields such as id, size and format are taken from this image. The image properties come from the image from
    which the server was built, and are stored in its system metadata. A server that boots from a volume was shelved to
    no image. Raises ShelvedImageMissing if the image does not exist or is not active.
    """
    instance = work.instance()
    kept = objects.ImageMeta.from_system_metadata(instance.system_metadata, instance.image_ref).to_dict()
    if instance.is_from_volume:
        work.outputs.image = kept
        return
    image_id = instance.system_metadata.get(IMAGE)
    try:
        record = work.env.images.get(image_id or '') if image_id else None
    except ImageNotFound:
        record = None
    if record is None or record['status'] != 'active':
        raise ShelvedImageMissing(image_id=image_id)
    work.outputs.image = {
        **kept,
        **{
            name: record.get(name)
            for name in ('id', 'name', 'status', 'disk_format', 'container_format', 'min_disk', 'min_ram', 'size')
        },
    }


def claim(work: UnshelveWork) -> None:
    """Claim the host of this attempt in Placement, and bind accelerators on this host."""
    boot.claim_chosen(work)
    if (profile := device_profile.name_of(work.instance().flavor.extra_specs)) is not None:
        accelerators.await_releases(work, work.instance_uuid)
        accelerators.bind(work, profile, work.chosen(), work.instance_uuid)


def undo_claim(work: UnshelveWork) -> None:
    """Delete the accelerator requests that this attempt created, and the server's allocation."""
    accelerators.unbind(work)
    if work.outputs.select is not None:
        work.env.placement.drop(work.instance_uuid, work.compare_now)


def unshelve_instance(work: UnshelveWork) -> None:
    """Bind ports and attach volumes to the host. Ask the host to claim resources and to build the guest."""
    host = work.chosen()
    port_moves.to_host(work, host)
    volumes.to_host(work, host.host)
    instance = work.instance(fresh=True)
    with engine.silence(), work.db.read() as conn:
        disks = instances.get_bdms(conn, work.instance_uuid)
        instance.metadata = metadata.get(conn, work.instance_uuid)
    instance.availability_zone = host.availability_zone
    spec = moving.allocated_spec(work)
    instance.pci_requests = spec.pci_requests
    work.call_host(
        host.host,
        Compute.unshelve_instance,
        order=objects.UnshelveOrder(
            instance=instance,
            image=work.outputs.image,
            request_spec=spec,
            limits=host.scheduler_limits,
            block_devices=list(objects.BlockDeviceMappingList.of_server(work.ctxt, work.instance_uuid, disks)),
        ),
    )


def undo_unshelve_instance(work: UnshelveWork) -> None:
    """Ask the host to destroy the guest and to release its devices. Unbind the ports and detach the volumes.

    Ports and volumes are kept if another host will be tried. If the host is down and may run the guest, the undo is
    retried until the host answers or an operator forces it down: otherwise a later unshelve could start a second guest.
    """
    if work.outputs.select is None:
        return
    instance = work.instance(fresh=True)

    host = work.chosen().host

    def may_run() -> bool:
        # Return True if this host may run the guest and another host could start a second one.
        # Before a host starts the guest, it writes its claim and its name to the server's row.
        # If the row does not have the host's name, the host has not started the guest.
        # If the server is being deleted, no other host starts the guest.
        return instance.task_state not in states.ENDING and instance.host == host

    def leave(conn: engine.Connection) -> None:
        instances.leave_host(conn, work.instance_uuid, host, expect={})

    releases.ask_to_undo(work, host, Compute.undo_unshelve_instance, leave, may_run, instance=instance)
    if work.failed:
        port_moves.off_host(work)
        volumes.off_host(work)


def save_spec(work: UnshelveWork) -> None:
    """Store the request spec with the new availability zone, if the user requested one with the unshelve."""
    if spec := work.arguments(UnshelveArguments).new_request_spec:
        store_spec(work, work.request_spec(spec))


def undo_save_spec(work: UnshelveWork) -> None:
    """Store the request spec that the server had before the unshelve."""
    if spec := work.arguments(UnshelveArguments).old_request_spec:
        store_spec(work, work.request_spec(spec))


def _end(
    work: Work[Any], event: str, *events: dict[str, Any], bound: Mapping[str, str | None] = MappingProxyType({})
) -> objects.Instance:
    """Set the server's state to ACTIVE, and end the operation in the same transaction.

    The transaction also deletes the system metadata that the shelve has stored. It inserts an operation row (a pending
    release), with which a conductor then deletes the image of the shelved server. ``event`` is the name of the state
    transition (``states.TRANSITIONS``). ``events`` are added to the instance action. ``bound`` has changes of the
    system metadata that name the holder of the server's accelerator requests (``accel.holder``). Returns the server as
    it was before.
    """
    row = work.instance(fresh=True)
    image_id = row.system_metadata.get(IMAGE)
    release = [release_of_image(work, image_id)] if image_id else []
    Ending(
        event=event,
        required=True,
        system_metadata={**forgotten(), **bound},
        operations=release,
        events=events,
    ).end(work)
    if release:
        work.env.runner.wake(work.db, [release[0].uuid])
    return row


def _conductor_events(work: UnshelveWork, *results: str) -> list[dict[str, Any]]:
    return [
        work.event(name, result, work.env.host)
        for name, result in zip(('get_image_info', 'schedule_instances'), results, strict=False)
    ]


def mark_unshelved(work: UnshelveWork) -> None:
    """Set the server's state to ACTIVE, even if the server was stopped before it was shelved."""
    row = _end(
        work,
        'unshelve.done',
        *_conductor_events(work, 'Success', 'Success'),
        bound=holder.its_own(work.instance().system_metadata),
    )
    work.env.notify.emit(work.ctxt, 'instance.unshelve.end', instance=row, host=row.host, moved='unshelve.done')


class Unshelve(Choosing[UnshelveOutputs]):
    """The operation that unshelves an offloaded server."""

    name, outputs = 'unshelve', UnshelveOutputs
    steps = (
        Step('get_image_info', get_image_info),
        Step('select', moving.select),
        Step('claim', claim, undo_claim, again_from='claim'),
        Step('unshelve_instance', unshelve_instance, undo_unshelve_instance, again_from='claim'),
        Step(
            'save_spec',
            save_spec,
            undo_save_spec,
            saved=lambda work: bool(work.arguments(UnshelveArguments).new_request_spec),
        ),
        Step('mark_unshelved', mark_unshelved),
    )

    def ended_badly(self, work: UnshelveWork) -> None:
        """Set the server's state to SHELVED_OFFLOADED again, and write a fault and the events of the failure."""
        kind = (work.error or {}).get('class')
        if work.outputs.image is None:
            events = _conductor_events(work, 'Error')
        else:
            failed = work.outputs.select is None or kind == NoValidHost.__name__
            events = _conductor_events(work, 'Success', 'Error' if failed else 'Success')
        Ending(event='unshelve.failed', fault=True, events=events, failed=True).end(work)


# --- unshelve of a server that is still on its host ------------------------------------------------------------------
def start_shelved_instance(work: Work[Outputs]) -> None:
    """Ask the host to start the guest with the devices that the server has kept."""
    work.call_host(work.instance_row()['host'], Compute.start_shelved_instance, instance=work.instance())


def undo_start_shelved_instance(work: Work[Outputs]) -> None:
    """Ask the host to stop the guest, because the server stays shelved."""
    host = work.instance_row(fresh=True)['host']
    if host is not None:
        releases.ask_to_undo(work, host, Compute.undo_start_shelved_instance, instance=work.instance())


def mark_started(work: Work[Outputs]) -> None:
    """Set the server's state to ACTIVE, and add an operation that deletes the image to which the server was shelved."""
    row = _end(work, 'unshelve_start.done')
    work.env.notify.emit(work.ctxt, 'instance.power_on.end', instance=row, host=row.host, moved='unshelve_start.done')


class UnshelveStart(OneStep):
    """The operation that unshelves a server which is still on its host."""

    name, failed, action_event = 'unshelve_start', 'unshelve_start.failed', 'compute_start_instance'
    steps = (
        Step('start_shelved_instance', start_shelved_instance, undo_start_shelved_instance),
        Step('mark_started', mark_started),
    )


FLOWS = (Unshelve(), UnshelveStart())
