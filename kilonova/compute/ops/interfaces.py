"""Attach a network port to a guest or detach it. The conductor creates and deletes the port.

A port that is a function of a PCI device (SR-IOV) is attached in three steps: ``claim`` claims a device, the conductor
binds the port to the device, and ``attach`` attaches it. The port is detached in three steps as well: ``detach``, then
the conductor unbinds the port, then ``free`` frees the device. In a live migration, an SR-IOV port is detached at the
source and attached at the destination.
"""

from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import image_of
from kilonova.compute.operation import HostTask, Reply, StepCheck, tags_found
from kilonova.objects.vif import Vif
from kilonova.pci import ports as pci_ports
from kilonova.rpc.compute import Compute
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)


@operation_method(Compute.claim_function, checks=StepCheck.WRITE)
def claim(op: HostTask, request: objects.InstancePCIRequest) -> Reply:
    """Claim one more device for a port of the server, and return {'profile': the binding profile for the port}.

    Raises HostRejected if no device that fits the request is free, or if the device fails its health check.
    """
    with op.exclusive():
        device = op.claim_more(request)
        op.host.check_claimed(op.ctxt, op.instance, [device])
    return {'profile': pci_ports.profiles([request], [device])[request.requester_id]}


@operation_method(Compute.undo_claim_function, checks=StepCheck.UNDO, forward=True)
def undo_claim(op: HostTask, request_id: str) -> Reply:
    """Free the device that ``claim`` claimed, if any. The conductor deletes the PCI request."""
    _free(op, request_id, undo=True)
    return {}


@operation_method(Compute.free_function, forward=True)
def free(op: HostTask, request_id: str) -> Reply:
    """Free the device of a port that is detached from the guest and unbound. The conductor deletes the PCI request."""
    _free(op, request_id, undo=False)
    return {}


def _free(op: HostTask, request_id: str, undo: bool) -> None:
    tracker = op.host.tracker
    with op.exclusive(), tracker.writing(op.ctxt):
        op.save(tracker.plan_less(op.instance.uuid, request_id), undo=undo)


@operation_method(Compute.attach_interface)
def attach(op: HostTask, vif: dict[str, Any]) -> Reply:
    """Attach a port to the guest. ``vif`` is the port in the form in which the info cache stores it."""
    with op.exclusive():
        op.notify('instance.interface_attach.start')
        try:
            plug(op, Vif.read(vif))
        except Exception as error:
            op.notify('instance.interface_attach.error', fault=error)
            raise
        if Vif.read(vif).is_function:
            with op.host.tracker.writing(op.ctxt):
                op.save(op.host.tracker.plan_allocate(op.instance.uuid), extra=tags_found(op.instance))
        else:
            op.save_tags()
        op.notify('instance.interface_attach.end')
    return {}


@operation_method(Compute.undo_attach_interface, checks=StepCheck.UNDO, forward=True)
def undo_attach(op: HostTask, vif: dict[str, Any]) -> Reply:
    """Detach the port that ``attach`` attached. It is safe to call it even if the port was not attached."""
    with op.exclusive():
        unplug(op, Vif.read(vif))
        op.save_tags()
    return {}


@operation_method(Compute.detach_interface)
def detach(op: HostTask, vif: dict[str, Any]) -> Reply:
    """Detach a port from the guest. Returns after the guest has released it."""
    with op.exclusive():
        op.notify('instance.interface_detach.start')
        unplug(op, Vif.read(vif))
        op.save_tags()
        op.notify('instance.interface_detach.end')
    return {}


@operation_method(Compute.undo_detach_interface, checks=StepCheck.UNDO, forward=True)
def undo_detach(op: HostTask, vif: dict[str, Any]) -> Reply:
    """Undo ``detach``: attach the port to the guest again.

    It is safe to call it even if the guest never released the port. Nothing is done if the server is on another host
    now.
    """
    with op.exclusive():
        if op.is_at_home():
            plug(op, Vif.read(vif))
            op.save_tags()
    return {}


@operation_method(Compute.unplug_functions)
def unplug_functions(op: HostTask, vifs: list[dict[str, Any]]) -> Reply:
    """Detach the ports that are PCI functions from the guest, at the source, before a live migration."""
    with op.exclusive():
        for vif in vifs:
            unplug(op, Vif.read(vif))
    return {}


@operation_method(Compute.undo_unplug_functions, checks=StepCheck.UNDO, forward=True)
def undo_unplug_functions(op: HostTask, vifs: list[dict[str, Any]]) -> Reply:
    """Undo ``unplug_functions``: attach the ports ``vifs`` to the guest again.

    Nothing is done if the server is on another host now.
    """
    with op.exclusive():
        if op.is_at_home():
            for vif in vifs:
                plug(op, Vif.read(vif))
            op.save_tags()
    return {}


@operation_method(Compute.plug_functions, forward=True)
def plug_functions(op: HostTask, vifs: list[dict[str, Any]]) -> Reply:
    """Attach PCI functions of this host, the destination, to a guest after its live migration.

    A port that can't be attached now is attached when the guest is started the next time.
    """
    with op.exclusive():
        op.host.driver.live_migrations.receive(op.instance)
        for vif in map(Vif.read, vifs):
            try:
                plug(op, vif)
            except (GuestFailed, errors.DevicesFailed) as error:
                op.host.devices_failed(op.ctxt, op.instance.uuid, error)
                LOG.exception(
                    'Port %s could not be attached to the guest; a hard reboot attaches it',
                    vif.id,
                    instance_uuid=op.instance.uuid,
                )
        op.save_tags(late=True)
    return {}


def plug(op: HostTask, vif: Vif) -> None:
    """Attach a port to the guest."""
    held = op.host.tracker.devices(op.instance.uuid) if vif.is_function else []
    op.host.driver.guests.attach_interface(op.instance, image_of(op.instance), vif, held)


def unplug(op: HostTask, vif: Vif) -> None:
    """Detach a port from the guest. Returns after the guest has released it."""
    op.host.driver.guests.detach_interface(op.instance, vif, op.check)
