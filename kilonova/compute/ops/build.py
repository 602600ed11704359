"""Build a server on this host, undo a build, and delete a server's guest and claims.

A build claims resources, spawns the guest and saves the end state. A successful build makes two calls to the conductor.
A failed build is undone on this host: the guest and its files are deleted and the devices released. ``verdict`` decides
whether another host may try.
"""

from __future__ import annotations

from typing import Unpack

from oslo_log import log as logging

from kilonova import errors, objects, sealing
from kilonova.compute import records
from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import metadata
from kilonova.compute.operation import (
    ClaimFields,
    HostTask,
    Reply,
    SaveFields,
    StepCheck,
    Undone,
    now,
    readable,
    tags_found,
)
from kilonova.compute.tracker import RUN
from kilonova.rpc.compute import Compute
from kilonova.states import VmState

LOG = logging.getLogger(__name__)

# Errors of a build that are sent to the conductor unchanged.
PASSED_THROUGH = (errors.HostRejected, errors.KeyGone, errors.Cancelled, errors.Conflict)


def verdict(op: HostTask, error: Exception) -> Exception:
    """Return the error that is sent to the conductor for a failed build.

    After HostRejected the conductor tries the next host. After BuildAbort it tries no other host. The errors in
    ``PASSED_THROUGH`` are returned unchanged.
    """
    if isinstance(error, (*PASSED_THROUGH, errors.BuildAbort)):
        return error
    text = readable(error)
    # If the network service did not connect the ports in time, it would probably fail on another host as well.
    # After BuildAbort the conductor tries no other host.
    if errors.cause_of(error) is errors.Cause.REQUEST or isinstance(error, errors.VirtualInterfaceCreateException):
        return errors.BuildAbort(instance_uuid=op.instance.uuid, reason=text)
    return errors.HostRejected(f'Build of instance {op.instance.uuid} was re-scheduled: {text}')


@operation_method(Compute.build_and_run_instance, checks=StepCheck.WRITE, verdict=verdict)
def build(op: HostTask, order: objects.BuildOrder) -> Reply:
    """Build and run the server that the order describes. ``verdict`` converts the errors for the conductor."""
    host, instance = op.host, op.instance
    with op.exclusive(), host.build_slots.hold(op.check):
        began = host.clock()
        LOG.info('Starting instance...', instance_uuid=instance.uuid)
        op.begin('compute__do_build_and_run_instance')
        with op.undoing('build'):
            # 1. Claim CPU, memory, disk and devices. If this fails there is nothing to undo.
            op.check()
            op.notify('instance.create.start', image_name=order.image.get('name') or '', bdms=order.block_devices)
            op.undo(_refused, op)
            devices = _claim(op, order)
            instance.numa_topology = host.tracker.topology(instance.uuid, RUN)
            # 2. Create the guest.
            op.undo(_release, op)
            op.check()
            host.check_claimed(op.ctxt, instance, devices)
            accelerators, accelerated = host.await_new(instance, op.check)
            op.bind_ports(devices, accelerated)
            devices = devices + accelerators
            _spawn(op, order, devices)
            # 3. Save the end state, which also ends the operation.
            op.check()
            _save(op, order)
        LOG.info('Took %0.2f seconds to build instance.', host.clock() - began, instance_uuid=instance.uuid)
    return {'host': host.name, 'node': host.tracker.nodename}


def _claim(op: HostTask, order: objects.BuildOrder) -> list[objects.PciDevice]:
    host, instance, requests = op.host, op.instance, order.pci_requests
    values = {
        'host': host.name,
        'node': host.tracker.nodename,
        'compute_id': host.tracker.node.id,
        'launched_on': host.name,
    }
    if 'availability_zone' in instance and instance.availability_zone:
        values['availability_zone'] = instance.availability_zone
    # The server's row has the PCI requests with the Placement providers of the first host, where the build failed.
    # For a later attempt, write the PCI requests to the row again, with the Placement providers of this host.
    extra = {'pci_requests': requests.to_column()} if requests is not None and order.attempt > 1 else {}
    fields: ClaimFields = {
        'transition': 'build.claim',
        'expect': {'host': [None, host.name]},
        'values': values,
        'migration': None,
        'group': op.group_of(order.request_spec),
    }
    return op.claim(RUN, instance.flavor, requests, order.numa_topology, order.limits, lambda _: extra, **fields)


def _spawn(op: HostTask, order: objects.BuildOrder, devices: list[objects.PciDevice]) -> None:
    host, instance, began = op.host, op.instance, op.host.clock()
    LOG.info('Start spawning the instance on the hypervisor.', instance_uuid=instance.uuid)
    secrets = opened(op, order.sealed)
    host.driver.guests.spawn(
        instance,
        order.image,
        pci_devices=devices,
        admin_password=secrets.admin_password,
        files=secrets.files,
        block_devices=order.block_devices,
        plugged=host.ports.plugged(instance, op.check),
    )
    LOG.info(
        'Took %0.2f seconds to spawn the instance on the hypervisor.', host.clock() - began, instance_uuid=instance.uuid
    )


def opened(op: HostTask, sealed: str | None) -> sealing.ServerSecrets:
    """Return the decrypted admin password and files for the driver. Raises HostRejected if this host lacks the key."""
    if sealed is None:
        return sealing.ServerSecrets()
    try:
        return sealing.SealingKeys.read(op.host.conf.secrets.key_file).open(sealed, op.instance.uuid)
    except (sealing.NoKeys, sealing.NotOpened) as error:
        raise errors.HostRejected(f'{op.host.name} cannot decrypt the sealed password and files: {error}') from error


def _save(op: HostTask, order: objects.BuildOrder) -> None:
    host, tracker, instance = op.host, op.host.tracker, op.instance
    values = {'power_state': host.driver.guests.get_info(instance), 'launched_at': now()}
    fields: SaveFields = {
        'transition': 'build.done',
        'expect': {'host': host.name},
        'event': op.event(),
        'end': True,
        'values': values,
    }
    if extra := tags_found(instance):
        fields['extra'] = extra
    if 'boot_roles' not in metadata(instance):
        fields['system_metadata'] = {'boot_roles': ','.join(op.ctxt.roles)}
    with tracker.writing(op.ctxt):
        plan = tracker.plan_allocate(instance.uuid, RUN)
        # Set the count of failed builds to 0. Save the usage, which no longer counts this build as a running task.
        tracker.failed_builds = 0
        fields['usage'] = tracker.usage(plan)
        op.save(plan, **fields)
    op.notify(
        'instance.create.end',
        moved='build.done',
        bdms=order.block_devices,
        values={'host': host.name, 'node': tracker.nodename, 'launched_on': host.name, **values},
    )


def _refused(op: HostTask) -> None:
    """Send the notification instance.create.error, because the build failed. Send none for a cancelled build.

    If the host refused the claim, also save the failure as an event of the server's instance action. If the build
    failed after the claim, the undo function ``_release`` saves this event.
    """
    if not isinstance(op.error, (errors.KeyGone, errors.Cancelled)):
        op.notify('instance.create.error', fault=op.error)
    if isinstance(op.error, errors.HostRejected) and not op.has_told:
        op.save(undo=True, event=op.event(op.error), undone=op.undone)


def _release(op: HostTask) -> None:
    """Destroy the guest and files, free the devices, and leave the server without a host.

    Count a failed build, unless the request or a claim caused the failure.
    """
    if (
        op.host.conf.compute.consecutive_build_service_disable_threshold
        and op.error is not None
        and not isinstance(op.error, PASSED_THROUGH)
        and errors.cause_of(op.error) is not errors.Cause.REQUEST
    ):
        op.host.tracker.failed_builds += 1
    op.notify('instance.shutdown.start', moved='build.claim')
    destroy(op, event=op.event(op.error), undone=op.undone)
    op.notify('instance.shutdown.end', moved='build.claim')


def destroy(op: HostTask, **ended: Unpack[Undone]) -> None:
    """Destroy the guest of a build whose end was not saved, and release its claims. The build may not have begun.

    If the end of the build was saved, nothing is changed: the server is on this host, and only the reply to the
    conductor was lost. ``ended`` are further fields to save with the release.
    """
    fresh = records.instance(op.ctxt, op.instance.uuid)
    if fresh is not None and fresh.host == op.host.name and fresh.vm_state != VmState.BUILDING:
        LOG.warning(
            'Not undoing the build, because it has ended and the server is on this host', instance_uuid=op.instance.uuid
        )
        return
    op.host.driver.guests.destroy(op.instance)
    op.give_back(
        undo=True,
        expect={'host': op.host.name, 'vm_state': VmState.BUILDING.value},
        values={'host': None, 'node': None, 'compute_id': None, 'launched_on': None},
        **ended,
    )


@operation_method(Compute.undo_build, checks=StepCheck.UNDO, forward=True)
def undo_build(op: HostTask) -> Reply:
    """Destroy the guest that ``build`` created, and release the resources that it claimed.

    It is safe to call it even if the build never ran, was already undone on this host, or was interrupted by the end of
    an earlier process.
    """
    with op.exclusive():
        destroy(op)
    return {}


# WRITE: delete the guest without asking the conductor first, because a delete is never revoked.
# The final save of ``terminate`` is the only check whether the operation is still at this step.
@operation_method(Compute.terminate_instance, checks=StepCheck.WRITE, forward=True)
def terminate(op: HostTask) -> Reply:
    """Delete the server's guest and files on this host, and release all resources that the server holds on this host.

    The resources include those of an unconfirmed move, of which this host may be source or destination. The conductor
    writes the server's last state and sends the notifications of the begin and the end of the delete.
    """
    op.begin('compute_terminate_instance')
    at_home = op.instance.host == op.host.name
    with op.exclusive():
        if at_home:
            op.notify('instance.shutdown.start')
        op.host.driver.guests.destroy(op.instance)
        if at_home:
            op.notify('instance.shutdown.end')
        # If the server is in a move, source and destination save their results with the same operation key.
        # With ``undo=True`` the conductor writes the save even if it seems to be a repetition of an earlier save.
        op.give_back(undo=True, event=op.event())
    return {}
