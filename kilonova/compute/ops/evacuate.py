"""Evacuate a server of a host that is down: build it on this host.

The steps are: claim resources and devices, take over the server's disks or create them again, and save that the server
is on this host. The claim is made as for any server that moves to this host (``move.claim``): CPU, memory, disk, NUMA
placement and devices for the same flavor. ``compute.evacuated`` removes the guest, disks and devices from the old host
when that host is back.
"""

from __future__ import annotations

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import evacuated, records
from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import image_of
from kilonova.compute.operation import Extra, HostTask, Reply, StepCheck, tags_found
from kilonova.compute.ops import build, move
from kilonova.compute.tracker import claim_key
from kilonova.rpc.compute import Compute
from kilonova.states import TaskState

LOG = logging.getLogger(__name__)


class SharedStorageDiffers(errors.BuildAbort):
    """The request says that the disks are on shared storage and this host finds that they are not, or vice versa."""

    msg_fmt = 'Invalid state of instance files on shared storage'


def verdict(op: HostTask, error: Exception) -> Exception:
    """Return the error that is sent to the conductor for a failed evacuation.

    Unanswered is returned unchanged, so that the conductor sends the call again. Other errors are converted by
    ``build.verdict``.
    """
    return error if isinstance(error, errors.Unanswered) else build.verdict(op, error)


@operation_method(Compute.evacuate_instance, checks=StepCheck.WRITE, verdict=verdict)
def evacuate(op: HostTask, order: objects.EvacuateOrder) -> Reply:
    """Build the server that the order describes on this host.

    The server's row names the old host until the build is saved. ``verdict`` converts the errors for the conductor.
    """
    host, instance, migration = op.host, op.instance, order.migration
    side, both = claim_key(migration), [migration.source_compute, host.name]
    op.begin('compute_rebuild_instance')
    with op.exclusive(), host.build_slots.hold(op.check), op.undoing('evacuate'):
        # 1. Claim resources and devices on this host. If this fails there is nothing to undo.
        op.check()
        op.undo(_failed, op)
        devices = move.claim(op, order, TaskState.REBUILDING, both)
        op.undo(_put_back, op, migration)
        op.check()
        host.driver.guests.check(move.after(op, order), image_of(instance, order.image))
        host.check_claimed(op.ctxt, instance, devices)
        extra = _become_here(op, order)
        op.bind_ports(devices)
        devices = devices + host.await_accelerators(instance, instance.flavor, migration.uuid, op.check)
        op.notify('instance.exists')
        op.notify('instance.rebuild.start', image_name=order.image.get('name') or '')
        # 2. Create the guest.
        _build(op, order, devices)
        op.check()
        # 3. Save that the server belongs to this host.
        values = {
            'host': host.name,
            'node': host.tracker.nodename,
            'compute_id': host.tracker.node.id,
            'power_state': host.driver.guests.get_info(instance),
        }
        with host.tracker.writing(op.ctxt):
            plan = host.tracker.plan_allocate(instance.uuid, side)
            op.save(
                plan,
                usage=host.tracker.usage(plan),
                expect={'host': both},
                values=values,
                extra={**extra, **tags_found(instance)},
                event=op.event(),
                migration={'uuid': migration.uuid, 'status': 'post-migrating'},
            )
    return {'power_state': values['power_state']}


def _become_here(op: HostTask, order: objects.EvacuateOrder) -> Extra:
    """Set the PCI requests and the NUMA placement of the instance object to their values on this host.

    Return the columns of instance_extra to write.
    """
    instance, spec = op.instance, order.request_spec
    instance.pci_requests = spec.pci_requests if 'pci_requests' in spec else None
    move.take_place(op, order.migration, spec)
    return instance.extra_values({'pci_requests', 'numa_topology'})


def _build(op: HostTask, order: objects.EvacuateOrder, devices: list[objects.PciDevice]) -> None:
    driver, instance, image = op.host.driver, op.instance, image_of(op.instance, order.image)
    shared = driver.moves.take_over(instance, order.migration.source_compute)
    if order.shared is not None and order.shared != shared:
        raise SharedStorageDiffers
    LOG.info(
        'disk on shared storage, evacuating using existing disk'
        if shared
        else 'disk not on shared storage, evacuating from the image',
        instance_uuid=instance.uuid,
    )
    if not shared:
        secrets = build.opened(op, order.sealed)
        driver.guests.spawn(
            instance,
            image,
            pci_devices=devices,
            admin_password=secrets.admin_password,
            files=secrets.files,
            block_devices=order.block_devices,
            power_on=order.power_on,
            plugged=op.host.ports.plugged(instance, op.check),
        )
    elif order.power_on:
        driver.power.power_on(instance, image, devices)
    else:
        driver.power.define(instance, image, devices)


def _failed(op: HostTask) -> None:
    """Write that the event of the instance action has failed.

    If the error is Unanswered, nothing is written, because the conductor repeats the call.
    """
    if isinstance(op.error, (errors.KeyGone, errors.Unanswered)):
        return
    op.notify('instance.rebuild.error', fault=op.error)
    op.save(undo=True, event=op.event(op.error), undone=op.undone)


def _put_back(op: HostTask, migration: objects.Migration) -> None:
    """Undo an evacuation: delete the guest, release this host's claim, and write the old host as the server's host.

    The disks are deleted as well, unless they are the old host's disks on shared storage.
    """
    if not op.host.driver.moves.hand_back(op.instance, migration.source_compute):
        op.host.driver.guests.destroy(op.instance)
    fresh = records.instance(op.ctxt, op.instance.uuid)
    context = move.context_of(fresh, migration) if fresh is not None else None
    if fresh is None or context is None or fresh.host != op.host.name:
        op.give_back(move.of_destination(migration), undo=True, undone=op.undone)
        return
    op.give_back(
        move.of_destination(migration),
        undo=True,
        undone=op.undone,
        expect={'host': op.host.name},
        extra=fresh.go_back(context),
        values={'host': migration.source_compute, 'node': migration.source_node, 'compute_id': None},
    )


@operation_method(Compute.undo_evacuate_instance, checks=StepCheck.UNDO, forward=True)
def undo_evacuate(op: HostTask, migration: objects.Migration) -> Reply:
    """Undo ``evacuate`` on this host. It is safe to call it even if this host claimed nothing."""
    with op.exclusive():
        if migration.dest_compute == op.host.name:
            move.restore_claims(op.host, op.instance, migration)
            _put_back(op, migration)
    return {}


@operation_method(Compute.clean_evacuated, checks=StepCheck.UNDO, forward=True)
def clean_evacuated(op: HostTask, migration: objects.Migration) -> Reply:
    """Delete the server's guest and disks on the old host, and free its devices, once that host is back."""
    with op.exclusive():
        evacuated.clean(op, migration)
    return {}
