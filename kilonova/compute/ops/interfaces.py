"""Plug a guest that is there into one network more, or less. The flow makes and frees the port, and writes the end.

A port that is a function of a PCI device (SR-IOV) comes in three parts: ``claim``, then the flow binds the port to what
was claimed, then ``attach``; and it goes in three: ``detach``, the flow unbinds it, ``free``. No guest takes one
along in a live migration.
"""
from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.endpoint import order
from kilonova.compute.host import image_of
from kilonova.compute.operation import Check, Operation, Reply, tags_found
from kilonova.objects.vif import Vif
from kilonova.pci import ports as pci_ports
from kilonova.rpc.compute import Compute
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)


@order(Compute.claim_function, checks=Check.WRITE)
def claim(op: Operation, request: objects.InstancePCIRequest) -> Reply:
    """The server holds one device more, for a port. HostRejected: there is none, or it isn't well."""
    with op.turn():
        device = op.claim_more(request)
        op.host.check_claimed(op.ctxt, op.instance, [device])
    return {'profile': pci_ports.profiles([request], [device])[request.requester_id]}


@order(Compute.undo_claim_function, checks=Check.UNDO, forward=True)
def undo_claim(op: Operation, request_id: str) -> Reply:
    """The flow's undo: safe when nothing was claimed. The flow forgets the request."""
    _free(op, request_id, undo=True)
    return {}


@order(Compute.free_function, forward=True)
def free(op: Operation, request_id: str) -> Reply:
    """The device is there for others: the guest has let it go, and the port is unbound. The flow forgets the request.
    """
    _free(op, request_id, undo=False)
    return {}


def _free(op: Operation, request_id: str, undo: bool) -> None:
    tracker = op.host.tracker
    with op.turn(), tracker.writing(op.ctxt):
        op.save(tracker.plan_less(op.instance.uuid, request_id), undo=undo)


@order(Compute.attach_interface)
def attach(op: Operation, vif: dict[str, Any]) -> Reply:
    """``vif``: as the info cache will have it."""
    with op.turn():
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


@order(Compute.undo_attach_interface, checks=Check.UNDO, forward=True)
def undo_attach(op: Operation, vif: dict[str, Any]) -> Reply:
    """The flow's undo: safe when nothing was plugged."""
    with op.turn():
        unplug(op, Vif.read(vif))
        op.save_tags()
    return {}


@order(Compute.detach_interface)
def detach(op: Operation, vif: dict[str, Any]) -> Reply:
    """Returns when the guest has let it go."""
    with op.turn():
        op.notify('instance.interface_detach.start')
        unplug(op, Vif.read(vif))
        op.save_tags()
        op.notify('instance.interface_detach.end')
    return {}


@order(Compute.undo_detach_interface, checks=Check.UNDO, forward=True)
def undo_detach(op: Operation, vif: dict[str, Any]) -> Reply:
    """Undo ``detach``: plug the guest in again. Safe when it never let go; nothing is done for a server that is on
    another host by now."""
    with op.turn():
        if op.is_at_home():
            plug(op, Vif.read(vif))
            op.save_tags()
    return {}


@order(Compute.unplug_functions)
def unplug_functions(op: Operation, vifs: list[dict[str, Any]]) -> Reply:
    """The source of a live migration: the guest lets go what it can't take along."""
    with op.turn():
        for vif in vifs:
            unplug(op, Vif.read(vif))
    return {}


@order(Compute.undo_unplug_functions, checks=Check.UNDO, forward=True)
def undo_unplug_functions(op: Operation, vifs: list[dict[str, Any]]) -> Reply:
    """Undo ``unplug_functions``: plug the guest into all of these ports again. Nothing is done for a server that is on
    another host by now."""
    with op.turn():
        if op.is_at_home():
            for vif in vifs:
                plug(op, Vif.read(vif))
            op.save_tags()
    return {}


@order(Compute.plug_functions, forward=True)
def plug_functions(op: Operation, vifs: list[dict[str, Any]]) -> Reply:
    """The destination: the guest, which has come, gets those of this host. One that it can't get now it gets at its
    next start."""
    with op.turn():
        op.host.driver.live_migrations.receive(op.instance)
        for vif in map(Vif.read, vifs):
            try:
                plug(op, vif)
            except (GuestFailed, errors.DevicesFailed) as error:
                op.host.devices_failed(op.ctxt, op.instance.uuid, error)
                LOG.exception('Port %s is not plugged into the guest; a hard reboot does it', vif.id,
                              instance_uuid=op.instance.uuid)
        op.save_tags(late=True)
    return {}


def plug(op: Operation, vif: Vif) -> None:
    """The guest has it."""
    held = op.host.tracker.devices(op.instance.uuid) if vif.is_function else []
    op.host.driver.guests.attach_interface(op.instance, image_of(op.instance), vif, held)


def unplug(op: Operation, vif: Vif) -> None:
    """The guest has let it go."""
    op.host.driver.guests.detach_interface(op.instance, vif, op.check)
