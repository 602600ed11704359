"""Give a guest that is there a volume more, or less. The flow attaches it to this host before, and writes the end."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova import errors, objects
from kilonova.compute.endpoint import answer, order
from kilonova.compute.host import Host, image_of
from kilonova.compute.operation import Check, Operation, Reply
from kilonova.context import RequestContext
from kilonova.objects.volume import AttachedVolume
from kilonova.rpc.compute import Compute


@answer(Compute.prepare_volumes)
def prepare(host: Host, ctxt: RequestContext, instance: objects.Instance) -> Mapping[str, Any]:
    """See ``Compute.prepare_volumes``."""
    volumes = host.driver.volumes
    return {'connector': volumes.connector(), 'devices': volumes.names(instance, image_of(instance))}


@order(Compute.attach_volume)
def attach(op: Operation, volume_id: str) -> Reply:
    """The host connects it, the guest gets it."""
    with op.turn():
        op.notify('instance.volume_attach.start', volume_id=volume_id)
        try:
            _plug(op, volume_id)
        except Exception as error:
            op.notify('instance.volume_attach.error', volume_id=volume_id, fault=error)
            raise
        op.notify('instance.volume_attach.end', volume_id=volume_id)
    return {}


@order(Compute.undo_attach_volume, checks=Check.UNDO, forward=True)
def undo_attach(op: Operation, volume_id: str) -> Reply:
    """The flow's undo: safe when the guest never got it."""
    with op.turn():
        _unplug(op, volume_id)
    return {}


@order(Compute.detach_volume)
def detach(op: Operation, volume_id: str) -> Reply:
    """Returns when the guest has let it go, and this host."""
    with op.turn():
        op.notify('instance.volume_detach.start', volume_id=volume_id)
        _unplug(op, volume_id)
        op.notify('instance.volume_detach.end', volume_id=volume_id)
    return {}


@order(Compute.undo_detach_volume, checks=Check.UNDO, forward=True)
def undo_detach(op: Operation, volume_id: str) -> Reply:
    """The flow's undo: the guest has it again; safe when it never let it go."""
    with op.turn():
        _plug(op, volume_id)
    return {}


@order(Compute.extend_volume)
def extend(op: Operation, volume_id: str) -> Reply:
    """The guest sees the size that it has now."""
    with op.turn():
        op.host.driver.volumes.extend(op.instance, _volume(op, volume_id))
    return {}


def _plug(op: Operation, volume_id: str) -> None:
    op.host.driver.volumes.attach(op.instance, image_of(op.instance), _volume(op, volume_id))
    op.save_tags()


def _unplug(op: Operation, volume_id: str) -> None:
    op.host.driver.volumes.detach(op.instance, _volume(op, volume_id), op.check)
    op.save_tags()


def _volume(op: Operation, volume_id: str) -> AttachedVolume:
    for volume in op.instance.volumes:
        if volume.volume_id == volume_id:
            return volume
    raise errors.Invalid(f'Volume {volume_id} did not come with server {op.instance.uuid}.')
