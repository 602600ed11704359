"""Unshelve a server: claim resources, and spawn the guest from its shelved image.

If the server is still on its host, its guest is only started. A failure is undone on this host: the guest and its files
are deleted and its devices released. The server then has no host again. The conductor writes the server's state.
"""

from __future__ import annotations

from typing import Unpack

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import image_of
from kilonova.compute.operation import ClaimFields, HostTask, Reply, StepCheck, Undone, tags_found
from kilonova.compute.ops import build
from kilonova.compute.tracker import RUN
from kilonova.rpc.compute import Compute
from kilonova.states import PowerState, VmState

LOG = logging.getLogger(__name__)


@operation_method(Compute.unshelve_instance, checks=StepCheck.WRITE, verdict=build.verdict)
def unshelve(op: HostTask, order: objects.UnshelveOrder) -> Reply:
    """Claim resources for the shelved server that the order describes, and build and run it.

    ``build.verdict`` converts the errors before they are sent to the conductor.
    """
    host, instance = op.host, op.instance
    with op.exclusive(), host.build_slots.hold(op.check):
        op.begin('compute_unshelve_instance')
        with op.undoing('unshelve'):
            op.check()
            op.notify('instance.unshelve.start')
            op.undo(_refused, op)
            devices = _claim(op, order)
            instance.numa_topology = host.tracker.topology(instance.uuid, RUN)
            op.undo(_release, op)
            op.check()
            host.check_claimed(op.ctxt, instance, devices)
            op.bind_ports(devices)
            devices = devices + host.await_accelerators(instance, instance.flavor, instance.uuid, op.check)
            host.driver.guests.spawn(
                instance,
                order.image,
                pci_devices=devices,
                block_devices=order.block_devices,
                plugged=host.ports.plugged(instance, op.check),
            )
            op.check()
            values = {'power_state': host.driver.guests.get_info(instance)}
            with host.tracker.writing(op.ctxt):
                plan = host.tracker.plan_allocate(instance.uuid, RUN)
                # Save the node's usage, which no longer counts this unshelve as a running task.
                op.save(
                    plan,
                    expect={'host': host.name},
                    values=values,
                    extra=tags_found(instance),
                    usage=host.tracker.usage(plan),
                    event=op.event(),
                )
    return values


def _claim(op: HostTask, order: objects.UnshelveOrder) -> list[objects.PciDevice]:
    host, spec = op.host, order.request_spec
    requests = spec.pci_requests if 'pci_requests' in spec else None
    values = {
        'host': host.name,
        'node': host.tracker.nodename,
        'compute_id': host.tracker.node.id,
        'launched_on': host.name,
        'availability_zone': op.instance.availability_zone,
    }
    fields: ClaimFields = {
        'transition': 'unshelve.claim',
        'expect': {'host': [None, host.name]},
        'values': values,
        'group': op.group_of(spec),
    }
    extra = {'pci_requests': requests.to_column()} if requests is not None else {}
    return op.claim(
        RUN,
        op.instance.flavor,
        requests,
        spec.numa_topology if 'numa_topology' in spec else None,
        order.limits,
        lambda _: extra,
        **fields,
    )


def _refused(op: HostTask) -> None:
    """If the host refused the claim, write the failed event of the instance action and the reason of the refusal.

    If the unshelve failed after the claim, the undo function ``_release`` writes the event and the reason.
    """
    if isinstance(op.error, errors.HostRejected) and not op.has_told:
        op.save(undo=True, event=op.event(op.error), undone=op.undone)


def _release(op: HostTask) -> None:
    _destroy(op, event=op.event(op.error), undone=op.undone)


def _destroy(op: HostTask, **ended: Unpack[Undone]) -> None:
    op.host.driver.guests.destroy(op.instance)
    op.give_back(
        undo=True,
        expect={'host': op.host.name},
        values={'host': None, 'node': None, 'compute_id': None, 'power_state': int(PowerState.SHUTDOWN)},
        **ended,
    )


@operation_method(Compute.undo_unshelve_instance, checks=StepCheck.UNDO, forward=True)
def undo_unshelve(op: HostTask) -> Reply:
    """Delete the guest and files that ``unshelve`` created, and release its resources.

    It is safe to call it even if nothing was begun, or if this host has undone it already.
    """
    with op.exclusive():
        _destroy(op)
    return {}


# --- start a shelved server that is still on its host ----------------------------------------------------------------
@operation_method(Compute.start_shelved_instance)
def start_shelved(op: HostTask) -> Reply:
    """Start the guest of a shelved server that is still on this host, with the devices that it kept."""
    host, instance = op.host, op.instance
    op.begin('compute_start_instance')
    with op.exclusive():
        op.notify('instance.power_on.start')
        op.save(transition='unshelve_start.starting', expect={'host': host.name})
        host.driver.power.power_on(instance, image_of(instance), host.devices_of(instance))
        op.check()
        power_state = host.driver.guests.get_info(instance)
        op.save(
            expect={'host': host.name},
            values={'power_state': power_state},
            extra=tags_found(instance),
            event=op.event(),
        )
    return {'power_state': power_state}


@operation_method(Compute.undo_start_shelved_instance, checks=StepCheck.UNDO, forward=True)
def undo_start_shelved(op: HostTask) -> Reply:
    """Undo ``start_shelved``: power the guest off if its server is still shelved."""
    with op.exclusive():
        fresh = records.instance(op.ctxt, op.instance.uuid)
        if fresh is None or fresh.host != op.host.name or fresh.vm_state != VmState.SHELVED:
            return {}
        op.host.driver.power.power_off(fresh)
        op.save(undo=True, expect={'host': op.host.name}, values={'power_state': op.host.driver.guests.get_info(fresh)})
    return {}
