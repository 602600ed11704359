"""Attach a volume to an existing guest, detach, swap or extend it.

The conductor creates the attachment in the volume service before it calls this host, and writes the server's state
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

from kilonova import errors, objects
from kilonova.compute.endpoint import operation_method, query_method
from kilonova.compute.host import ComputeHost, image_of
from kilonova.compute.operation import HostTask, Reply, StepCheck
from kilonova.context import RequestContext
from kilonova.objects.volume import AttachedVolume
from kilonova.rpc.compute import Compute


class NotSwapped(errors.KilonovaError):
    """The guest could not be switched to the new volume."""

    msg_fmt = (
        'Server %(server)s still has volume %(old_volume_id)s, because replacing it by volume '
        '%(new_volume_id)s failed: the guest has stopped, or copying the data has failed.'
    )


@query_method(Compute.prepare_volumes)
def prepare(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance) -> Mapping[str, Any]:
    """Return {'connector': this host's connector, 'devices': [device name]}, before volumes are attached to this host.

    There is one device name for each volume of the server that has no name yet.
    """
    volumes = host.driver.volumes
    return {'connector': volumes.connector(), 'devices': volumes.names(instance, image_of(instance))}


@operation_method(Compute.attach_volume)
def attach(op: HostTask, volume_id: str) -> Reply:
    """Connect the volume to this host and attach it to the guest."""
    with op.exclusive():
        op.notify('instance.volume_attach.start', volume_id=volume_id)
        try:
            _plug(op, volume_id)
        except Exception as error:
            op.notify('instance.volume_attach.error', volume_id=volume_id, fault=error)
            raise
        op.notify('instance.volume_attach.end', volume_id=volume_id)
    return {}


@operation_method(Compute.undo_attach_volume, checks=StepCheck.UNDO, forward=True)
def undo_attach(op: HostTask, volume_id: str) -> Reply:
    """Detach the volume that ``attach`` attached. It is safe to call it even if the guest never got the volume."""
    with op.exclusive():
        _unplug(op, volume_id)
    return {}


@operation_method(Compute.detach_volume)
def detach(op: HostTask, volume_id: str) -> Reply:
    """Detach the volume from the guest, then disconnect it from this host. Returns when the volume is disconnected."""
    with op.exclusive():
        op.notify('instance.volume_detach.start', volume_id=volume_id)
        _unplug(op, volume_id)
        op.notify('instance.volume_detach.end', volume_id=volume_id)
    return {}


@operation_method(Compute.undo_detach_volume, checks=StepCheck.UNDO, forward=True)
def undo_detach(op: HostTask, volume_id: str) -> Reply:
    """Undo ``detach``: attach the volume to the guest again.

    It is safe to call it even if the guest still has the volume. Nothing is done if the server is on another host now,
    or no longer has the volume.
    """
    with op.exclusive():
        if op.is_at_home() and find_volume(op, volume_id) is not None:
            _plug(op, volume_id)
    return {}


@operation_method(Compute.copy_volume)
def make_copy(op: HostTask, copy: Mapping[str, Any]) -> Reply:
    """Copy a volume to a second volume. Returns when the volumes are equal and each write of the guest goes to both.

    ``copy`` is a dict. Its item 'of' is the first volume's id. The other items are database columns of the second
    volume, such as its id, size and attachment.
    """
    with op.exclusive(), _told(op, copy):
        op.notify('instance.volume_swap.start', **_ids(copy))
        old, new = _both(op, copy)
        op.host.driver.volumes.copy(op.instance, image_of(op.instance), old, new, op.check)
    return {}


@operation_method(Compute.undo_copy_volume, checks=StepCheck.UNDO, forward=True)
def undo_copy(op: HostTask, copy: Mapping[str, Any]) -> Reply:
    """Undo ``make_copy``: end the copying and disconnect the second volume.

    It is safe to call it even if there was no copy, or if the server no longer has the first volume.
    """
    with op.exclusive():
        if find_volume(op, copy['of']) is not None:
            op.host.driver.volumes.end_copy(op.instance, *_both(op, copy))
    return {}


@operation_method(Compute.swap_volume)
def swap(op: HostTask, copy: Mapping[str, Any]) -> Reply:
    """Switch the guest to the copy of its volume. Raises NotSwapped if the guest can't be switched."""
    with op.exclusive(), _told(op, copy):
        if not _swap(op, copy):
            raise NotSwapped(server=op.instance.uuid, **_ids(copy))
        op.notify('instance.volume_swap.end', **_ids(copy))
    return {}


@operation_method(Compute.undo_swap_volume, checks=StepCheck.UNDO, forward=True)
def undo_swap(op: HostTask, copy: Mapping[str, Any]) -> Reply:
    """Undo ``swap``: switch the guest to the copy of its volume if this is still possible.

    An operation that is cancelled after the copy was made is completed, not undone. Return {'swapped': whether the
    guest uses the copy}.
    """
    with op.exclusive():
        return {'swapped': find_volume(op, copy['of']) is not None and _swap(op, copy)}


def _swap(op: HostTask, copy: Mapping[str, Any]) -> bool:
    return op.host.driver.volumes.swap(op.instance, image_of(op.instance), *_both(op, copy))


def _both(op: HostTask, copy: Mapping[str, Any]) -> tuple[AttachedVolume, AttachedVolume]:
    """Return the volume that the server uses now, and the second volume, which replaces it.

    ``copy`` is the dict that ``make_copy`` gets.
    """
    old = volume_of(op, copy['of'])
    return old, old.successor(copy)


class _Ids(TypedDict):
    old_volume_id: str
    new_volume_id: str


def _ids(copy: Mapping[str, Any]) -> _Ids:
    return {'old_volume_id': copy['of'], 'new_volume_id': copy['volume_id']}


@contextmanager
def _told(op: HostTask, copy: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        op.notify('instance.volume_swap.error', fault=error, **_ids(copy))
        raise


@operation_method(Compute.extend_volume)
def extend(op: HostTask, volume_id: str) -> Reply:
    """Make the guest see the volume's new size."""
    with op.exclusive():
        op.host.driver.volumes.extend(op.instance, volume_of(op, volume_id))
    return {}


def _plug(op: HostTask, volume_id: str) -> None:
    op.host.driver.volumes.attach(op.instance, image_of(op.instance), volume_of(op, volume_id))
    op.save_tags()


def _unplug(op: HostTask, volume_id: str) -> None:
    op.host.driver.volumes.detach(op.instance, volume_of(op, volume_id), op.check)
    op.save_tags()


def find_volume(op: HostTask, volume_id: str) -> AttachedVolume | None:
    """Return a volume of the server, or None if the server no longer has a volume with this id."""
    return next((volume for volume in op.instance.volumes if volume.volume_id == volume_id), None)


def volume_of(op: HostTask, volume_id: str) -> AttachedVolume:
    """Return a volume of the server. Raises Invalid if the server does not have a volume with this id.

    Undo functions, whose server may no longer have the volume, call ``find_volume`` first.
    """
    found = find_volume(op, volume_id)
    if found is None:
        raise errors.Invalid(f'Volume {volume_id} is not among the volumes of server {op.instance.uuid}.')
    return found
