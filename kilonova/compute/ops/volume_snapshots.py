"""Snapshots of volumes that are files on a network share.

For a snapshot the guest begins to write to a new file. When a snapshot is deleted, two files are merged. The conductor
informs the volume service, and records in which file the volume's current data is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import image_of
from kilonova.compute.operation import HostTask, Reply, StepCheck
from kilonova.compute.ops.volumes import find_volume, volume_of
from kilonova.objects.volume import QCOW2, AttachedVolume
from kilonova.rpc.compute import Compute
from kilonova.virt.parts.volume_snapshots import Merge


@operation_method(Compute.snapshot_volume)
def take(op: HostTask, files: Mapping[str, str]) -> Reply:
    """Make the guest write to a new file of the volume. Returns when the guest writes to it.

    ``files`` has ``volume_id``, ``name`` and ``format`` of the current file, and ``new``, the name of the new file.
    """
    with op.exclusive():
        op.host.driver.volume_snapshots.take(op.instance, image_of(op.instance), *_both(op, files))
    return {}


@operation_method(Compute.undo_snapshot_volume, checks=StepCheck.UNDO, forward=True)
def undo_take(op: HostTask, files: Mapping[str, str]) -> Reply:
    """Return {'taken': True} if the guest writes to the snapshot's new file, otherwise {'taken': False}.

    The conductor calls this when it undoes a snapshot. Nothing is changed on the host: ``take`` can't be undone,
    because only the new file may have the guest's latest data. The result is {'taken': False} if the server no longer
    has the volume.
    """
    with op.exclusive():
        if find_volume(op, files['volume_id']) is None:
            return {'taken': False}
        _old, new = _both(op, files)
        return {'taken': op.host.driver.volume_snapshots.has(op.instance, new)}


@operation_method(Compute.withdraw_volume_snapshot)
def withdraw(op: HostTask, files: Mapping[str, str]) -> Reply:
    """Make the guest write again to the file that it used before ``take``. Returns when the guest does so.

    ``files`` has ``volume_id``, ``name`` and ``format`` of that file, and ``new``, the name of the snapshot's file.
    """
    with op.exclusive():
        op.host.driver.volume_snapshots.withdraw(op.instance, image_of(op.instance), *_both(op, files), op.check)
    return {}


@operation_method(Compute.merge_volume)
def merge(op: HostTask, merge: Mapping[str, Any]) -> Reply:
    """Merge two files of a volume. Returns when the merge has ended.

    ``merge`` has ``volume_id`` and the fields of ``virt.parts.volume_snapshots.Merge``: ``file`` and ``into``.
    """
    with op.exclusive():
        op.host.driver.volume_snapshots.merge(op.instance, *_merge(op, merge), op.check)
    return {}


@operation_method(Compute.undo_merge_volume, checks=StepCheck.UNDO, forward=True)
def undo_merge(op: HostTask, merge: Mapping[str, Any]) -> Reply:
    """Stop the merge of two files if it is still running. Return {'merged': True} if the merge is complete.

    A complete merge is not undone. The result is {'merged': False} if the merge is incomplete, if its state is unknown,
    or if the server no longer has the volume.
    """
    with op.exclusive():
        if find_volume(op, merge['volume_id']) is None:
            return {'merged': False}
        return {'merged': op.host.driver.volume_snapshots.end_merge(op.instance, *_merge(op, merge))}


def _both(op: HostTask, files: Mapping[str, str]) -> tuple[AttachedVolume, AttachedVolume]:
    """Return two objects for the same volume: one with its file before the snapshot, one with the snapshot's file.

    ``files`` has the file names as ``name`` and ``new``.
    """
    volume = volume_of(op, files['volume_id'])
    return volume.in_file(files['name'], files['format']), volume.in_file(files['new'], QCOW2)


def _merge(op: HostTask, merge: Mapping[str, Any]) -> tuple[AttachedVolume, Merge]:
    return volume_of(op, merge['volume_id']), Merge(merge['file'], merge['into'])
