"""Plug a guest that is there into one network more, or less. The flow makes and frees the port, and writes the end."""
from __future__ import annotations

from typing import Any

from kilonova.compute.endpoint import order
from kilonova.compute.host import image_of
from kilonova.compute.operation import Check, Operation, Reply
from kilonova.objects.vif import Vif
from kilonova.rpc.compute import Compute


@order(Compute.attach_interface)
def attach(op: Operation, vif: dict[str, Any]) -> Reply:
    """``vif``: as the info cache will have it."""
    with op.turn():
        op.notify('instance.interface_attach.start')
        try:
            _plug(op, vif)
        except Exception as error:
            op.notify('instance.interface_attach.error', fault=error)
            raise
        op.notify('instance.interface_attach.end')
    return {}


@order(Compute.undo_attach_interface, checks=Check.UNDO, forward=True)
def undo_attach(op: Operation, vif: dict[str, Any]) -> Reply:
    """The flow's undo: safe when nothing was plugged."""
    with op.turn():
        _unplug(op, vif)
    return {}


@order(Compute.detach_interface)
def detach(op: Operation, vif: dict[str, Any]) -> Reply:
    """Returns when the guest has let it go."""
    with op.turn():
        op.notify('instance.interface_detach.start')
        _unplug(op, vif)
        op.notify('instance.interface_detach.end')
    return {}


@order(Compute.undo_detach_interface, checks=Check.UNDO, forward=True)
def undo_detach(op: Operation, vif: dict[str, Any]) -> Reply:
    """The flow's undo: the guest has it again; safe when it never let it go."""
    with op.turn():
        _plug(op, vif)
    return {}


def _plug(op: Operation, vif: dict[str, Any]) -> None:
    op.host.driver.guests.attach_interface(op.instance, image_of(op.instance), Vif.read(vif))


def _unplug(op: Operation, vif: dict[str, Any]) -> None:
    op.host.driver.guests.detach_interface(op.instance, Vif.read(vif), op.check)
