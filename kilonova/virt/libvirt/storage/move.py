"""Carrying a server's disks to another host, or to itself, with the way back kept.

Source: ``check``, ``carry`` (keeps <uuid>_resize, puts a copy at the destination), then ``confirm`` or
``restore``. Destination: ``offer``, then ``discard`` on the way back. Every step may be repeated; the id of
the move, written into both directories, tells a half-done move from the leftovers of another one. On storage that
both hosts use nothing is copied (``layers``), and each directory says whose it is: a host touches no other's. Disks in
a pool stay where they are: a snapshot keeps what they were.
"""
from __future__ import annotations

import glob
import logging
import os
import shutil
import uuid as uuidlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kilonova import errors, objects
from kilonova.virt import command, identity
from kilonova.virt.libvirt.storage import asked as wishes
from kilonova.virt.libvirt.storage import destination, disk, files, layers, ssh
from kilonova.virt.libvirt.storage.asked import Wish
from kilonova.virt.libvirt.storage.cache import is_blank
from kilonova.virt.libvirt.storage.destination import Destination, Going
from kilonova.virt.libvirt.storage.instance import COMING, DISK, KEPT, MOVE, OWNER, SWAP, InstanceDirectory
from kilonova.virt.libvirt.storage.pool import Pool, image_of
from kilonova.virt.parts.moves import DiskInfo, MoveOffer, Progress

LOG = logging.getLogger(__name__)

# Not carried: swap is made anew, the marks belong to the original.
_LEFT_BEHIND = frozenset({SWAP, MOVE, OWNER})


class DiskMover:
    """Moves of the servers whose disks are in ``instances_path``, or in ``pool``."""

    def __init__(self, host: str, address: str, instances_path: str, base_path: str, transport: ssh.Transport,
                 pool: Pool, pools: bool = False) -> None:
        """``address``: of this host, for others; ``transport``: how this host carries disks to other machines;
        ``pools``: whether disks are made in the pool."""
        self._pool, self._pools = pool, pools
        self.host, self.instances_path, self.base_path = host, instances_path, base_path
        self._address, self._transport = address, transport
        self._run = str(uuidlib.uuid4())

    def start(self) -> None:
        """Say who uses this storage; to be called before ``offer``."""
        identity.storage_id(self.instances_path, create=True)
        identity.show_run(self.instances_path, self.host, self._run)

    def offer(self) -> MoveOffer:
        """Destination: where disks shall go, and how the source can tell whether it can write there."""
        offer: MoveOffer = {
                'host': self.host, 'address': self._address, 'machine_id': identity.machine_id(),
                'boot_id': identity.boot_id(),
                'instances_path': self.instances_path, 'base_path': self.base_path,
                'storage_id': identity.storage_id(self.instances_path, create=True), 'run': self._run,
                'move': str(uuidlib.uuid4())}
        if self._pools:
            offer['pool'] = self._pool.id
        return offer

    # -- source --------------------------------------------------------------------------------------

    def check(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        """Raise ResizeError for a move that can't be, DisksUnmovable for one that can't be there; nothing has changed
        then."""
        old = instance.flavor
        source = self._source(instance.uuid)
        # A volume that is booted from has a size of its own.
        shrinks = not instance.is_from_volume and flavor.root_gb < old.root_gb
        if shrinks or flavor.ephemeral_gb < wishes.ephemeral_gb(source.asked(), old):
            raise errors.ResizeError(reason='Unable to resize disk down.')
        found, pooled = source.disks(), source.pooled()
        self._check_pool(pooled, dest)
        size = found[DISK].virtual_size if DISK in found else 0
        if DISK in pooled:
            size = self._pool.size(image_of(instance.uuid, DISK)) or 0
        # A flavor without root_gb takes the image's size, so the flavors alone don't tell.
        if flavor.root_gb and flavor.root_gb * disk.GIB < size:
            raise errors.ResizeError(reason='Unable to resize disk down.')
        place = self.destination(dest, instance.uuid)
        free = place.check()
        if isinstance(place, destination.Shared):
            return
        needed = sum(files.used(source.file(name)) for name in found) + self._bases_to_carry(found, dest, place)
        if needed > free:
            raise errors.DisksUnmovable(source=self.host, dest=dest['host'],
                                        reason=f'they need {needed} bytes, {free} are left there')

    def _check_pool(self, pooled: Sequence[str], dest: MoveOffer) -> None:
        if pooled and dest.get('pool') != self._pool.id:
            raise errors.DisksUnmovable(source=self.host, dest=dest['host'],
                                        reason=f'they are in pool {self._pool.name}, which that host does not use')

    def _bases_to_carry(self, found: Mapping[str, disk.DiskFile], dest: MoveOffer, place: Destination) -> int:
        """Bytes of what the disks read from and the destination hasn't got."""
        try:
            bases = [_Base.find(path, os.path.join(dest['base_path'], os.path.basename(path)), place)
                     for path in {each.backing for each in found.values() if each.backing}
                     if os.path.exists(path) and not layers.is_layer(os.path.basename(path)) and not is_blank(path)]
        except command.CommandFailed as error:
            raise errors.DisksUnmovable(source=self.host, dest=dest['host'], reason=str(error)) from error
        return sum(files.used(base.path) for base in bases if base.there is None)

    def destination(self, dest: MoveOffer, uuid: str) -> Destination:
        """Where a server's files go that ``dest`` offered a place."""
        return destination.of(dest, uuid, self.host, self.instances_path, self._transport)

    def _source(self, uuid: str) -> InstanceDirectory:
        """Where the originals are now."""
        kept, current = self._directories(uuid)
        return kept if self.is_aside(uuid) else current

    def carry(self, uuid: str, dest: MoveOffer, progress: Progress | None = None) -> DiskInfo:
        """Keep the originals as <uuid>_resize and put a copy of them at the destination; on storage that both use,
        files that read from them.

        The guest must be off. Returns {'move', 'disks'}; raises InstanceNotFound if there are no disks, ResizeError if
        they did not get there.
        """
        kept = self._set_aside(uuid, dest['move'])
        for image in _lasting(uuid, kept):
            self._pool.keep(image, dest['move'])
        place = self.destination(dest, uuid)
        try:
            if place.has_arrived(dest['move']):
                pass
            elif isinstance(place, destination.Shared):
                place.begin(dest['move'])
                place.lay(kept, dest['move'], _LEFT_BEHIND)
                place.end(dest['move'])
            else:
                self._copy(kept, place, dest, progress)
        except command.CommandFailed as error:
            raise errors.ResizeError(reason=f"the disks did not get from {self.host} to {dest['host']}: {error}"
                                     ) from error
        return {'move': dest['move'], 'disks': list(kept.formats())}

    def discard_copy(self, uuid: str, dest: MoveOffer) -> None:
        """Delete what ``carry`` put at a destination other than this host, if it is this move's."""
        place = self.destination(dest, uuid)
        if dest['host'] == self.host:
            return
        if InstanceDirectory(self.instances_path, uuid, KEPT).move() != dest['move']:
            return      # nothing was carried
        try:
            found = place.discard(dest['move'])
        except command.CommandFailed as error:
            # That host takes it away itself when it undoes its part of the move.
            LOG.warning('%s may still have a copy of %s: %s', dest['host'], uuid, error)
            return
        for path in found:
            LOG.warning('%s was removed from %s: the move that carried it there has ended', path, dest['host'])

    def _set_aside(self, uuid: str, move: str) -> InstanceDirectory:
        kept, current = self._directories(uuid)
        if kept.exists() and kept.move() == move:
            return kept
        if current.exists() and current.is_of(self.host):
            if kept.exists():
                LOG.warning('Removing %s: it was left by another move', kept.path)
                self._let_go(kept, current)
            current.mark_move(move)
            os.rename(current.path, kept.path)
        elif kept.exists() and kept.is_of(self.host):
            kept.mark_move(move)
        else:
            raise errors.InstanceNotFound(instance_id=uuid)
        return kept

    def _directories(self, uuid: str) -> tuple[InstanceDirectory, InstanceDirectory]:
        """What is kept, and what is current."""
        return (InstanceDirectory(self.instances_path, uuid, KEPT), InstanceDirectory(self.instances_path, uuid))

    def _copy(self, kept: InstanceDirectory, place: Destination, dest: MoveOffer,
              progress: Progress | None) -> None:
        """Copy aside, turn the overlays to the destination's base files, then rename."""
        layers.join(kept)
        for name, found in kept.disks().items():
            # Two hosts format the same empty disk in different ways: its overlay would not fit the other's.
            if found.backing and is_blank(found.backing):
                disk.flatten(kept.file(name), [found.backing])
        paths = [kept.file(name) for name in kept.carried(_LEFT_BEHIND)]
        overlays = {name: found.backing for name, found in kept.disks().items()
                    if found.backing and kept.file(name) in paths}
        bases = {backing: _Base.find(backing, os.path.join(dest['base_path'], os.path.basename(backing)), place)
                 for backing in overlays.values()}
        going = _counted([*paths, *(base.path for base in bases.values() if base.there is None)], progress)
        place.begin(dest['move'])
        for base in bases.values():
            if base.there is None:
                place.put_base(base.path, base.target, dest['move'], going)
        place.put(paths, place.coming, going)
        for name, backing in overlays.items():
            base = bases[backing]
            if (base.target, base.there or base.format) != (base.path, base.format):
                place.rebase(name, base.target, base.there or base.format)
        place.end(dest['move'])

    def confirm(self, uuid: str) -> None:
        """Delete the kept originals. What the destination reads of them, on storage that both use, is its own first."""
        kept, current = self._directories(uuid)
        if kept.is_of(self.host):
            self._let_go(kept, current)

    def _let_go(self, kept: InstanceDirectory, current: InstanceDirectory) -> None:
        self._forget(current, kept)
        if kept.exists() and current.exists():
            layers.adopt(kept, current)
            # On the same host, or shared storage, this is the original now.
            if current.move() == kept.move():
                current.unmark_move()
        files.remove_tree(kept.path)

    def is_aside(self, uuid: str) -> bool:
        """Whether originals are kept here for which <uuid> is missing or a copy.

        A leftover of another move beside a server that was never moved isn't that.
        """
        kept, current = self._directories(uuid)
        return kept.exists() and kept.is_of(self.host) and (not current.exists() or (
            current.move() is not None and current.move() == kept.move()))

    def restore(self, uuid: str) -> None:
        """Bring the kept originals back; nothing to do if there are none."""
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
                self._pool.own(image_of(uuid, name), self.host, asked.get(name, Wish()))
            self._forget(current, current)
            current.unmark_move()

    def _forget(self, current: InstanceDirectory, marked: InstanceDirectory) -> None:
        """What the pool keeps for the move that marked a directory."""
        move = marked.move()
        for image in _lasting(os.path.basename(current.path), marked) if move else ():
            self._pool.forget(image, str(move))

    # -- destination ---------------------------------------------------------------------------------

    def discard(self, uuid: str, same_host: bool) -> None:
        """Delete the copy that arrived; never the only copy, never what no move has put here, never another host's."""
        coming = InstanceDirectory(self.instances_path, uuid, COMING)
        if coming.is_of(self.host):
            # A base file that was on its way with it.
            for part in glob.glob(os.path.join(glob.escape(self.base_path), f'*.{coming.move()}')):
                files.remove(part)
            shutil.rmtree(coming.path, ignore_errors=True)
        current = InstanceDirectory(self.instances_path, uuid)
        move = current.move()
        if current.is_of(self.host) and move and (not same_host or self.is_aside(uuid)):
            self._discard_made(uuid, current, move)
            files.remove_tree(current.path)

    def _discard_made(self, uuid: str, current: InstanceDirectory, move: str) -> None:
        """What the pool keeps nothing of for this move was made here for the new flavor. The source may have its disks
        back by now: they are its own then."""
        for name in current.pooled():
            image = image_of(uuid, name)
            owner = self._pool.owner(image)
            if (owner is None or owner.host == self.host) and not self._pool.has_kept(image, move):
                self._pool.remove(image)


def _lasting(uuid: str, directory: InstanceDirectory) -> list[str]:
    """The images of a server's disks that a way back must have as they were."""
    return [image_of(uuid, name) for name in directory.pooled() if name not in _LEFT_BEHIND]


@dataclass(frozen=True)
class _Base:
    """What an overlay reads from: the file here and its format, the file at the destination and its format, if any."""

    path: str
    format: str
    target: str
    there: str | None

    @classmethod
    def find(cls, path: str, target: str, place: Destination) -> _Base:
        try:
            return cls(path, disk.look_at_base(path).format, target, place.base(target))
        except FileNotFoundError as error:
            raise command.CommandFailed(command='carrying', reason=f'{path} is missing') from error


def _counted(paths: Sequence[str], progress: Progress | None) -> Going:
    """Tells ``progress`` how many bytes went, and how many there are: what the files take up, holes left out."""
    total, done = sum(files.used(path) for path in paths), 0

    def going(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, total), total)
    return going
