"""The transfer of a server's disks to another host, or within one host. A transfer can be reverted.

``DiskMover`` is used on the source and on the destination of a move, in this order. Each call may be repeated:

- ``offer`` on the destination describes where and how the disks can be received.
- ``check`` on the source checks that the disks can be moved.
- ``carry`` on the source keeps the original disks in <uuid>_resize, and puts a copy of them at the destination.
- ``confirm`` on the source deletes the originals. If the move is reverted instead, ``discard`` on the destination
  deletes the copy, and ``restore`` on the source takes the originals back.

The id of the move is written into the directories on source and destination. It shows whether a directory belongs to
this move or is a leftover of another one.

If the two hosts share their storage, no disk is copied (see ``layers``). Then each directory has a record of the host
that owns it, and other hosts do not touch it. Disks in a Ceph pool stay where they are, and a snapshot keeps their
content from before the move.
"""

from __future__ import annotations

import glob
import os
import shutil
import uuid as uuidlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.virt import command, identity
from kilonova.virt.libvirt.storage import destination, disk, files, layers, ssh
from kilonova.virt.libvirt.storage import requested_disks as wishes
from kilonova.virt.libvirt.storage.cache import is_blank
from kilonova.virt.libvirt.storage.destination import Going, MoveDestination
from kilonova.virt.libvirt.storage.instance import COMING, DISK, KEPT, MOVE, OWNER, SWAP, InstanceDirectory
from kilonova.virt.libvirt.storage.rbd.pool import RbdPool, image_of
from kilonova.virt.libvirt.storage.requested_disks import RequestedDisk
from kilonova.virt.parts.moves import DiskInfo, MoveOffer, Progress

LOG = logging.getLogger(__name__)

# Files that are not copied to the destination, which makes its own swap and its own records of the move.
_LEFT_BEHIND = frozenset({SWAP, MOVE, OWNER})


class DiskMover:
    """The transfers of servers' disks from and to one host.

    The disks are files in ``instances_path`` or images in ``pool``.
    """

    def __init__(
        self,
        host: str,
        address: str,
        instances_path: str,
        base_path: str,
        transport: ssh.FileTransport,
        pool: RbdPool,
        pools: bool = False,
    ) -> None:
        """Create a mover for the host ``host``.

        ``address`` is the address at which other hosts reach this host. ``base_path`` is the directory of the image
        cache. ``transport`` defines how this host copies disks to other machines. ``pools`` is True if this host makes
        new disks as images in the Ceph pool ``pool``, and False if it makes files in ``instances_path``.
        """
        self._pool, self._pools = pool, pools
        self.host, self.instances_path, self.base_path = host, instances_path, base_path
        self._address, self._transport = address, transport
        self._run = str(uuidlib.uuid4())

    def start(self) -> None:
        """Write the id of this start of the compute service to the storage. Must be called before ``offer``.

        Other hosts that use the same storage read the id, and thereby see that this host uses it, too.
        """
        identity.storage_id(self.instances_path, create=True)
        identity.show_run(self.instances_path, self.host, self._run)

    def offer(self) -> MoveOffer:
        """Return the data that the source of a move needs to send disks to this host, the destination.

        They are this host's address and paths, a new id for the move, and ids of the machine, its last boot, its
        storage, and the last start of its compute service. With these ids, the source finds out whether the destination
        is on the same machine or uses the same storage.
        """
        offer: MoveOffer = {
            'host': self.host,
            'address': self._address,
            'machine_id': identity.machine_id(),
            'boot_id': identity.boot_id(),
            'instances_path': self.instances_path,
            'base_path': self.base_path,
            'storage_id': identity.storage_id(self.instances_path, create=True),
            'run': self._run,
            'move': str(uuidlib.uuid4()),
        }
        if self._pools:
            offer['pool'] = self._pool.id
        return offer

    # -- work on the source of a move ----------------------------------------------------------------

    def check(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        """Check, as the source, whether a server's disks can be moved to ``dest``. Changes nothing.

        ``flavor`` is the new flavor. Raises ResizeError if it would shrink a disk, and DisksUnmovable if the
        destination cannot receive the disks.
        """
        old = instance.flavor
        source = self._source(instance.uuid)
        # Refuse a flavor that would shrink a disk. A server that boots from a volume has no root disk of root_gb.
        shrinks = not instance.is_from_volume and flavor.root_gb < old.root_gb
        if shrinks or flavor.ephemeral_gb < wishes.ephemeral_gb(source.asked(), old):
            raise errors.ResizeError(reason='Unable to resize disk down.')
        found, pooled = source.disks(), source.pooled()
        self._check_pool(pooled, dest)
        size = found[DISK].virtual_size if DISK in found else 0
        if DISK in pooled:
            size = self._pool.size(image_of(instance.uuid, DISK)) or 0
        # Compare the new root_gb with the disk's size, too: with an old root_gb of 0 the disk is as large as its image.
        if flavor.root_gb and flavor.root_gb * disk.GIB < size:
            raise errors.ResizeError(reason='Unable to resize disk down.')
        receiver = self.destination(dest, instance.uuid)
        free = receiver.check()
        if isinstance(receiver, destination.Shared):
            return
        needed = sum(files.used(source.file(name)) for name in found) + self._bases_to_carry(found, dest, receiver)
        if needed > free:
            raise errors.DisksUnmovable(
                source=self.host,
                dest=dest['host'],
                reason=f'the disks need {needed} bytes, but only {free} bytes are free on the destination',
            )

    def _check_pool(self, pooled: Sequence[str], dest: MoveOffer) -> None:
        if pooled and dest.get('pool') != self._pool.id:
            raise errors.DisksUnmovable(
                source=self.host,
                dest=dest['host'],
                reason=f'the disks are in Ceph pool {self._pool.name}, which the destination does not use',
            )

    def _bases_to_carry(self, found: Mapping[str, disk.DiskFile], dest: MoveOffer, receiver: MoveDestination) -> int:
        """Return how many bytes of base files must be copied to the destination together with the disks.

        A base file that a disk reads from is copied if the destination does not have it.
        """
        try:
            bases = [
                _Base.find(path, os.path.join(dest['base_path'], os.path.basename(path)), receiver)
                for path in {each.backing for each in found.values() if each.backing}
                if os.path.exists(path) and not layers.is_layer(os.path.basename(path)) and not is_blank(path)
            ]
        except command.CommandFailed as error:
            raise errors.DisksUnmovable(source=self.host, dest=dest['host'], reason=str(error)) from error
        return sum(files.used(base.path) for base in bases if base.there is None)

    def destination(self, dest: MoveOffer, uuid: str) -> MoveDestination:
        """Return the destination of a server's files that the offer ``dest`` describes."""
        return destination.of(dest, uuid, self.host, self.instances_path, self._transport)

    def _source(self, uuid: str) -> InstanceDirectory:
        """Return the directory with the server's original disks: <uuid>, or <uuid>_resize during a move."""
        kept, current = self._directories(uuid)
        return kept if self.is_aside(uuid) else current

    def carry(self, uuid: str, dest: MoveOffer, progress: Progress | None = None) -> DiskInfo:
        """Rename the directory of the server's disks to <uuid>_resize, and copy the disks to the destination.

        On shared storage, the destination gets overlays of the disks instead of copies. The guest must be off.
        ``progress`` is called with the numbers of copied bytes and of all bytes. Returns the id of the move and the
        names of the disks. Raises InstanceNotFound if there are no disks, and ResizeError if the transfer fails.
        """
        kept = self._set_aside(uuid, dest['move'])
        for image in _lasting(uuid, kept):
            self._pool.keep(image, dest['move'])
        receiver = self.destination(dest, uuid)
        try:
            if receiver.has_arrived(dest['move']):
                pass
            elif isinstance(receiver, destination.Shared):
                receiver.begin(dest['move'])
                receiver.lay(kept, dest['move'], _LEFT_BEHIND)
                receiver.end(dest['move'])
            else:
                self._copy(kept, receiver, dest, progress)
        except command.CommandFailed as error:
            raise errors.ResizeError(
                reason=f'could not copy the disks from {self.host} to {dest["host"]}: {error}'
            ) from error
        return {'move': dest['move'], 'disks': list(kept.formats())}

    def discard_copy(self, uuid: str, dest: MoveOffer) -> None:
        """Delete the copy of the disks that ``carry`` made at the host of ``dest``. Copies of other moves are kept."""
        receiver = self.destination(dest, uuid)
        if dest['host'] == self.host:
            return
        # If <uuid>_resize is not of this move, ``carry`` has not begun, so there is no copy at the destination.
        if InstanceDirectory(self.instances_path, uuid, KEPT).move() != dest['move']:
            return
        try:
            found = receiver.discard(dest['move'])
        except command.CommandFailed as error:
            # Log only a warning: when the move is undone at the destination, ``discard`` deletes the copy there.
            LOG.warning(
                'Host %s may still have a copy of the disks of server %s; the host deletes the copy when it undoes '
                'its part of the move: %s',
                dest['host'],
                uuid,
                error,
                instance_uuid=uuid,
            )
            return
        for path in found:
            LOG.warning(
                'Deleted %s on host %s, because the move that copied it there has ended',
                path,
                dest['host'],
                instance_uuid=uuid,
            )

    def _set_aside(self, uuid: str, move: str) -> InstanceDirectory:
        kept, current = self._directories(uuid)
        if kept.exists() and kept.move() == move:
            return kept
        if current.exists() and current.is_of(self.host):
            if kept.exists():
                LOG.warning('Removing %s, which another move of this server left behind', kept.path, instance_uuid=uuid)
                self._let_go(kept, current)
            current.mark_move(move)
            os.rename(current.path, kept.path)
        elif kept.exists() and kept.is_of(self.host):
            kept.mark_move(move)
        else:
            raise errors.InstanceNotFound(instance_id=uuid)
        return kept

    def _directories(self, uuid: str) -> tuple[InstanceDirectory, InstanceDirectory]:
        """Return two directories of a server: <uuid>_resize, and <uuid>, the directory of the disks in use.

        During a move, <uuid>_resize has the original disks, which are kept until the move is confirmed or reverted.
        """
        return (InstanceDirectory(self.instances_path, uuid, KEPT), InstanceDirectory(self.instances_path, uuid))

    def _copy(
        self, kept: InstanceDirectory, receiver: MoveDestination, dest: MoveOffer, progress: Progress | None
    ) -> None:
        """Copy the disks in ``kept`` to the destination, into a directory that is renamed when the copy is complete.

        ``receiver`` is the destination that the offer ``dest`` describes. Base files that the destination does not have
        are copied first. Before the rename, overlays are changed to read from the destination's base files.
        """
        layers.join(kept)
        for name, found in kept.disks().items():
            # Each host formats the base files of empty disks (ephemeral, swap) itself, so their bytes differ by host.
            # Flatten the overlay of an empty base file: its data are written into the overlay, and it is not copied.
            if found.backing and is_blank(found.backing):
                disk.flatten(kept.file(name), [found.backing])
        paths = [kept.file(name) for name in kept.carried(_LEFT_BEHIND)]
        overlays = {
            name: found.backing for name, found in kept.disks().items() if found.backing and kept.file(name) in paths
        }
        bases = {
            backing: _Base.find(backing, os.path.join(dest['base_path'], os.path.basename(backing)), receiver)
            for backing in overlays.values()
        }
        going = _counted([*paths, *(base.path for base in bases.values() if base.there is None)], progress)
        receiver.begin(dest['move'])
        for base in bases.values():
            if base.there is None:
                receiver.put_base(base.path, base.target, dest['move'], going)
        receiver.put(paths, receiver.coming, going)
        for name, backing in overlays.items():
            base = bases[backing]
            if (base.target, base.there or base.format) != (base.path, base.format):
                receiver.rebase(name, base.target, base.there or base.format)
        receiver.end(dest['move'])

    def confirm(self, uuid: str) -> None:
        """Delete the directory <uuid>_resize, in which a move has kept the original disks.

        On shared storage, the disks in use are overlays of these originals. In this case the originals are first moved
        to the server's directory <uuid>, where they stay as layers.
        """
        kept, current = self._directories(uuid)
        if kept.is_of(self.host):
            self._let_go(kept, current)

    def _let_go(self, kept: InstanceDirectory, current: InstanceDirectory) -> None:
        self._forget(current, kept)
        if kept.exists() and current.exists():
            layers.adopt(kept, current)
            # The disks in ``current`` were made by this move and are now the only ones: delete the record of the move.
            if current.move() == kept.move():
                current.unmark_move()
        files.remove_tree(kept.path)

    def is_aside(self, uuid: str) -> bool:
        """Return True if the server's original disks are in <uuid>_resize, where a move keeps them.

        Return True only if the directory <uuid> does not exist, or if move.json has the id of the same move in <uuid>
        and <uuid>_resize. Otherwise <uuid>_resize is a leftover of an earlier move.
        """
        kept, current = self._directories(uuid)
        return (
            kept.exists()
            and kept.is_of(self.host)
            and (not current.exists() or (current.move() is not None and current.move() == kept.move()))
        )

    def restore(self, uuid: str) -> None:
        """Restore the original disks that this host, the source of a move, has kept. Do nothing if there are none."""
        kept, current = self._directories(uuid)
        if self.is_aside(uuid):
            move = kept.move()
            for image in _lasting(uuid, kept) if move else ():
                self._pool.go_back(image, str(move))
            files.remove_tree(current.path)
            os.rename(kept.path, current.path)
        if current.is_of(self.host):
            asked = current.asked()
            for name in current.pooled() if current.move() else ():
                self._pool.own(image_of(uuid, name), self.host, asked.get(name, RequestedDisk()))
            self._forget(current, current)
            current.unmark_move()

    def _forget(self, current: InstanceDirectory, marked: InstanceDirectory) -> None:
        """Delete the snapshots that a move has made of the server's images in the Ceph pool.

        ``marked`` is the directory that records the id of the move and the images: <uuid>_resize or <uuid>.
        ``current`` is the directory <uuid>, whose name is the server's uuid.
        """
        move = marked.move()
        for image in _lasting(os.path.basename(current.path), marked) if move else ():
            self._pool.forget(image, str(move))

    # -- work on the destination of a move -----------------------------------------------------------

    def discard(self, uuid: str, same_host: bool) -> None:
        """Delete the copy of the disks that a move brought to this host.

        The copy is <uuid>_incoming while it is incomplete, and <uuid> afterwards. ``same_host`` is True if this host is
        also the source of the move: then <uuid> is deleted only if the original disks are in <uuid>_resize. A directory
        that records no move in move.json, or that has another host as its owner, is never deleted.
        """
        coming = InstanceDirectory(self.instances_path, uuid, COMING)
        if coming.is_of(self.host):
            # Delete incomplete base files of this move. Their suffix is the id of the move.
            for part in glob.glob(os.path.join(glob.escape(self.base_path), f'*.{coming.move()}')):
                files.remove(part)
            shutil.rmtree(coming.path, ignore_errors=True)
        current = InstanceDirectory(self.instances_path, uuid)
        move = current.move()
        if current.is_of(self.host) and move and (not same_host or self.is_aside(uuid)):
            self._discard_made(uuid, current, move)
            files.remove_tree(current.path)

    def _discard_made(self, uuid: str, current: InstanceDirectory, move: str) -> None:
        """Delete the server's images in the pool that this host, as the destination, has made during a move.

        ``current`` is the server's directory, which records the images. An image with a snapshot of the move is kept,
        because it existed before the move. An image whose recorded owner is another host is kept, too: it is in use by
        the source, which has already restored the server.
        """
        for name in current.pooled():
            image = image_of(uuid, name)
            owner = self._pool.owner(image)
            if (owner is None or owner.host == self.host) and not self._pool.has_kept(image, move):
                self._pool.remove(image)


def _lasting(uuid: str, directory: InstanceDirectory) -> list[str]:
    """Return the names of a server's images in the Ceph pool of which a move makes snapshots, to restore their content.

    They are the images of all disks except swap, which needs no restoring. ``directory`` records the disks.
    """
    return [image_of(uuid, name) for name in directory.pooled() if name not in _LEFT_BEHIND]


@dataclass(frozen=True)
class _Base:
    """A base file that an overlay reads from, on the source and at the destination.

    ``path`` and ``format`` describe the file on the source, ``target`` is its path at the destination. ``there`` is its
    format at the destination, or None if it does not exist there.
    """

    path: str
    format: str
    target: str
    there: str | None

    @classmethod
    def find(cls, path: str, target: str, receiver: MoveDestination) -> _Base:
        try:
            return cls(path, disk.look_at_base(path).format, target, receiver.base(target))
        except FileNotFoundError as error:
            raise command.CommandFailed(command='copying a base file', reason=f'{path} is missing') from error


def _counted(paths: Sequence[str], progress: Progress | None) -> Going:
    """Return a callback that is called with numbers of transferred bytes, adds them up, and reports the sum.

    It calls ``progress(sum, total)``. The total is the disk space of the files ``paths``, without their holes.
    """
    total, done = sum(files.used(path) for path in paths), 0

    def going(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, total), total)

    return going
