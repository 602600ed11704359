"""Snapshots of volumes that are files of a share: the guest goes on in another file, and files become one. The flow
tells the volume service, and writes where the volume is."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.compute.endpoint import order
from kilonova.compute.host import image_of
from kilonova.compute.operation import Check, Operation, Reply
from kilonova.compute.ops.volumes import find_volume, volume_of
from kilonova.objects.volume import QCOW2, AttachedVolume
from kilonova.rpc.compute import Compute
from kilonova.virt.parts.volume_snapshots import Merge


@order(Compute.snapshot_volume)
def take(op: Operation, files: Mapping[str, str]) -> Reply:
    """Returns when the guest writes to the other file."""
    with op.turn():
        op.host.driver.volume_snapshots.take(op.instance, image_of(op.instance), *_both(op, files))
    return {}


@order(Compute.undo_snapshot_volume, checks=Check.UNDO, forward=True)
def undo_take(op: Operation, files: Mapping[str, str]) -> Reply:
    """Return {'taken': whether the guest writes to the other file}. Changes nothing: what is written to that file is in
    no other. A server that has lost the volume writes to neither."""
    with op.turn():
        if find_volume(op, files['volume_id']) is None:
            return {'taken': False}
        _old, new = _both(op, files)
        return {'taken': op.host.driver.volume_snapshots.has(op.instance, new)}


@order(Compute.withdraw_volume_snapshot)
def withdraw(op: Operation, files: Mapping[str, str]) -> Reply:
    """Returns when the guest writes to the first file again."""
    with op.turn():
        op.host.driver.volume_snapshots.withdraw(
            op.instance, image_of(op.instance), *_both(op, files), op.check)
    return {}


@order(Compute.merge_volume)
def merge(op: Operation, merge: Mapping[str, Any]) -> Reply:
    """Returns when the files are one."""
    with op.turn():
        op.host.driver.volume_snapshots.merge(op.instance, *_merge(op, merge), op.check)
    return {}


@order(Compute.undo_merge_volume, checks=Check.UNDO, forward=True)
def undo_merge(op: Operation, merge: Mapping[str, Any]) -> Reply:
    """Return {'merged': whether the files are one}, when nothing is at work on them. Nothing is for a server that has
    lost the volume."""
    with op.turn():
        if find_volume(op, merge['volume_id']) is None:
            return {'merged': False}
        return {'merged': op.host.driver.volume_snapshots.end_merge(op.instance, *_merge(op, merge))}


def _both(op: Operation, files: Mapping[str, str]) -> tuple[AttachedVolume, AttachedVolume]:
    """The volume in the first file, and in the other."""
    volume = volume_of(op, files['volume_id'])
    return volume.in_file(files['name'], files['format']), volume.in_file(files['new'], QCOW2)


def _merge(op: Operation, merge: Mapping[str, Any]) -> tuple[AttachedVolume, Merge]:
    return volume_of(op, merge['volume_id']), Merge(merge['file'], merge['into'])
