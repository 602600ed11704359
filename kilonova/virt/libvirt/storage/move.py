"""Carrying a server's disks to another host of the same machine, or to itself, with the way back kept.

Source: ``check``, ``carry`` (keeps <uuid>_resize, puts a copy at the destination), then ``confirm`` or
``restore``. Destination: ``offer``, then ``discard`` on the way back. Every step may be repeated; the id of
the move, written into both directories, tells a half-done move from the leftovers of another one.
"""
from __future__ import annotations

import logging
import os
import shutil
import uuid as uuidlib
from typing import Any

from kilonova import errors
from kilonova.virt import identity
from kilonova.virt.libvirt.storage import asked as wishes
from kilonova.virt.libvirt.storage import command, disk, files
from kilonova.virt.libvirt.storage.instance import MOVE, SWAP, InstanceDirectory

LOG = logging.getLogger(__name__)

KEPT = '_resize'
COMING = '_incoming'
# Not carried: swap is made anew, the mark belongs to the original.
_LEFT_BEHIND = frozenset({SWAP, MOVE})


class DiskMover:
    """Moves of the servers whose disks are in ``instances_path``."""

    def __init__(self, host: str, instances_path: str, base_path: str) -> None:
        self.host, self.instances_path, self.base_path = host, instances_path, base_path

    def offer(self) -> dict[str, Any]:
        """Destination: where disks shall go, and how the source can tell whether it can write there."""
        return {'host': self.host, 'machine_id': identity.machine_id(), 'boot_id': identity.boot_id(),
                'instances_path': self.instances_path, 'base_path': self.base_path,
                'storage_id': identity.storage_id(self.instances_path, create=True),
                'move': str(uuidlib.uuid4())}

    # -- source --------------------------------------------------------------------------------------

    def check(self, instance: Any, dest: dict[str, Any], flavor: Any) -> None:
        """Raise ResizeError for a move that can't be; nothing has changed then."""
        old = instance.flavor
        source = self._source(instance.uuid)
        if flavor.root_gb < old.root_gb or flavor.ephemeral_gb < wishes.ephemeral_gb(source.asked(), old):
            raise errors.ResizeError(reason='Unable to resize disk down.')
        self._check_reachable(dest)
        found = source.disks()
        root = found.get('disk')
        # A flavor without root_gb takes the image's size, so the flavors alone don't tell.
        if root and flavor.root_gb and flavor.root_gb * disk.GIB < root.virtual_size:
            raise errors.ResizeError(reason='Unable to resize disk down.')
        needed = sum(os.stat(source.file(name)).st_blocks * 512 for name in found)
        free = shutil.disk_usage(dest['instances_path']).free
        if needed > free:
            raise errors.ResizeError(reason=f"the disks need {needed} bytes, {dest['host']} has {free} left")

    def _check_reachable(self, dest: dict[str, Any]) -> None:
        same_machine = (dest['machine_id'] == identity.machine_id() and dest['boot_id'] == identity.boot_id())
        if not same_machine or dest['storage_id'] != identity.storage_id(dest['instances_path']):
            raise errors.ResizeError(
                reason=f"the disks can not be carried from {self.host} to {dest['host']}: that is another machine, "
                       'and no transport between machines is set')

    def _source(self, uuid: str) -> InstanceDirectory:
        """Where the originals are now."""
        kept, current = (InstanceDirectory(self.instances_path, uuid, suffix) for suffix in (KEPT, ''))
        return kept if self.is_aside(uuid) else current

    def carry(self, uuid: str, dest: dict[str, Any]) -> dict[str, Any]:
        """Keep the originals as <uuid>_resize and put a copy of them at the destination.

        The guest must be off. Returns {'move', 'disks'}; raises InstanceNotFound if there are no disks.
        """
        kept = self._set_aside(uuid, dest['move'])
        arrived = InstanceDirectory(dest['instances_path'], uuid)
        if arrived.move() != dest['move']:
            self._copy(kept, arrived, dest)
        return {'move': dest['move'], 'disks': list(arrived.formats())}

    def discard_copy(self, uuid: str, dest: dict[str, Any]) -> None:
        """Delete what ``carry`` put at a destination other than this host, if it is this move's."""
        if dest['instances_path'] == self.instances_path:
            return
        for suffix in (COMING, ''):
            arrived = InstanceDirectory(dest['instances_path'], uuid, suffix)
            if arrived.exists() and arrived.move() == dest['move']:
                LOG.warning('Removing %s: the move that carried it there has ended', arrived.path)
                files.remove_tree(arrived.path)

    def _set_aside(self, uuid: str, move: str) -> InstanceDirectory:
        kept, current = (InstanceDirectory(self.instances_path, uuid, suffix) for suffix in (KEPT, ''))
        if kept.exists() and kept.move() == move:
            return kept
        if current.exists():
            if kept.exists():
                LOG.warning('Removing %s: it was left by another move', kept.path)
                files.remove_tree(kept.path)
            current.mark_move(move)
            os.rename(current.path, kept.path)
        elif kept.exists():
            kept.mark_move(move)
        else:
            raise errors.InstanceNotFound(instance_id=uuid)
        return kept

    def _copy(self, kept: InstanceDirectory, arrived: InstanceDirectory, dest: dict[str, Any]) -> None:
        """Copy aside, turn the overlays to the destination's base files, then rename."""
        coming = InstanceDirectory(dest['instances_path'], os.path.basename(arrived.path), COMING)
        shutil.rmtree(coming.path, ignore_errors=True)
        coming.create()
        names = sorted(name for name in os.listdir(kept.path) if name not in _LEFT_BEHIND
                       and not name.endswith('.new') and os.path.isfile(kept.file(name)))
        if names:
            command.run('cp', '--sparse=always', '--', *(kept.file(name) for name in names), coming.path)
        for name, found in coming.disks().items():
            if found.backing:
                self._rebase(coming.file(name), found.backing, dest['base_path'])
        coming.mark_move(dest['move'])
        files.remove_tree(arrived.path)
        os.rename(coming.path, arrived.path)

    def _rebase(self, path: str, backing: str, base_path: str) -> None:
        """Let an overlay read from the destination's copy of its base, made if it has none."""
        target = os.path.join(base_path, os.path.basename(backing))
        if target == backing:
            return
        if not os.path.exists(target):
            os.makedirs(base_path, exist_ok=True)
            # A name of its own: the destination may be downloading the same image right now.
            aside = f'{target}.{uuidlib.uuid4()}'
            try:
                command.run('cp', '--sparse=always', '--', backing, aside)
                os.replace(aside, target)
            finally:
                files.remove(aside)
        command.run('qemu-img', 'rebase', '-q', '-u', '-f', 'qcow2', '-b', target,
                    '-F', disk.look_at_base(target).format, path)

    def confirm(self, uuid: str) -> None:
        """Delete the kept originals."""
        files.remove_tree(InstanceDirectory(self.instances_path, uuid, KEPT).path)
        # On the same host, or shared storage, the copy is the original now.
        current = InstanceDirectory(self.instances_path, uuid)
        if current.exists():
            current.unmark_move()

    def is_aside(self, uuid: str) -> bool:
        """Whether originals are kept here for which <uuid> is missing or a copy.

        A leftover of another move beside a server that was never moved isn't that.
        """
        kept, current = (InstanceDirectory(self.instances_path, uuid, suffix) for suffix in (KEPT, ''))
        return kept.exists() and (not current.exists() or (
            current.move() is not None and current.move() == kept.move()))

    def restore(self, uuid: str) -> None:
        """Bring the kept originals back; nothing to do if there are none."""
        kept, current = (InstanceDirectory(self.instances_path, uuid, suffix) for suffix in (KEPT, ''))
        if self.is_aside(uuid):
            files.remove_tree(current.path)
            os.rename(kept.path, current.path)
        current.unmark_move()

    # -- destination ---------------------------------------------------------------------------------

    def discard(self, uuid: str, same_host: bool) -> None:
        """Delete the copy that arrived; never the only copy, and never what no move has put here."""
        shutil.rmtree(InstanceDirectory(self.instances_path, uuid, COMING).path, ignore_errors=True)
        current = InstanceDirectory(self.instances_path, uuid)
        if current.move() and (not same_host or self.is_aside(uuid)):
            files.remove_tree(current.path)
