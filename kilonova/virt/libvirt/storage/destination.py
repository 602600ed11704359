"""Where a move's disks go: a directory that this machine sees, another machine by ssh, or nowhere: both hosts use one
storage.

    place = of(offer, settings)          # what the destination offered
    place.check()                        # the bytes that are free there; DisksUnmovable
    place.begin(move)
    place.put([path, …], place.coming, going)
    place.end(move)

The kinds do the same steps, so a copy is made, marked and renamed in one way. Each step may be repeated: what another
move left is replaced, what this move has brought already is kept.
"""
from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Protocol

from kilonova import errors
from kilonova.virt import command, identity
from kilonova.virt.libvirt.storage import disk, files, layers, ssh
from kilonova.virt.libvirt.storage.instance import COMING, InstanceDirectory
from kilonova.virt.parts.moves import MoveOffer

# Called with the bytes that went since the last call; what it raises ends the carrying.
Going = Callable[[int], None]


class Destination(Protocol):
    """One server's directory there; ``coming`` is where its copy grows, ``arrived`` what it is called when whole."""

    coming: str

    def check(self) -> int:
        """Bytes that are free there. DisksUnmovable: it can't be reached, or is not what was offered."""

    def has_arrived(self, move: str) -> bool:
        """Whether the whole copy of this move is there."""

    def begin(self, move: str) -> None:
        """An empty directory, or what an earlier try of this very move brought."""

    def put(self, paths: Sequence[str], directory: str, going: Going) -> None:
        """Copy files, with their holes."""

    def base(self, path: str) -> str | None:
        """The format of a base file there: 'raw' or 'qcow2'; None if there is none."""

    def put_base(self, path: str, target: str, move: str, going: Going) -> None:
        """Copy a base file, compare it, and give it its name."""

    def rebase(self, name: str, base: str, format_: str) -> None:
        """Let an overlay that has come read from another base."""

    def end(self, move: str) -> None:
        """The copy is whole: it gets its name, in place of whatever had it."""

    def discard(self, move: str) -> list[str]:
        """Delete what this move brought; the directories."""


def of(offer: MoveOffer, uuid: str, here: str, instances_path: str, transport: ssh.Transport) -> Destination:
    """Where ``offer`` (see ``DiskMover.offer``) says that the server's disks shall go, from ``instances_path`` of host
    ``here``."""
    if offer['host'] != here and offer['storage_id'] == identity.storage_id(instances_path):
        return Shared(offer, uuid, here, instances_path)
    if (offer['machine_id'] == identity.machine_id() and offer['boot_id'] == identity.boot_id()
            and offer['storage_id'] == identity.storage_id(offer['instances_path'])):
        return Local(offer, uuid)
    return ssh.Remote(offer, uuid, here, transport)


class Local:
    """Another directory of this machine."""

    def __init__(self, offer: MoveOffer, uuid: str) -> None:
        self._path = offer['instances_path']
        self._coming, self._arrived = (InstanceDirectory(self._path, uuid, suffix) for suffix in (COMING, ''))
        self.coming = self._coming.path

    def check(self) -> int:
        return shutil.disk_usage(self._path).free

    def has_arrived(self, move: str) -> bool:
        return self._arrived.move() == move

    def begin(self, move: str) -> None:
        shutil.rmtree(self.coming, ignore_errors=True)
        self._coming.create()
        self._coming.mark_move(move)

    def put(self, paths: Sequence[str], directory: str, going: Going) -> None:
        if paths:
            command.watched(lambda: going(0), 'cp', '--sparse=always', '--', *paths, directory)
        for path in paths:
            going(files.used(path))

    def base(self, path: str) -> str | None:
        return disk.look_at_base(path).format if os.path.exists(path) else None

    def put_base(self, path: str, target: str, move: str, going: Going) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # A name of its own: the destination may be downloading the same image right now.
        aside = f'{target}.{move}'
        try:
            command.watched(lambda: going(0), 'cp', '--sparse=always', '--', path, aside)
            os.replace(aside, target)
        finally:
            files.remove(aside)
        going(files.used(path))

    def rebase(self, name: str, base: str, format_: str) -> None:
        command.run(*disk.rebase(self._coming.file(name), base, format_))

    def end(self, move: str) -> None:
        files.remove_tree(self._arrived.path)
        os.rename(self.coming, self._arrived.path)

    def discard(self, move: str) -> list[str]:
        found = [each for each in (self._coming, self._arrived) if each.exists() and each.move() == move]
        for each in found:
            files.remove_tree(each.path)
        return [each.path for each in found]


class Shared(Local):
    """The same directory, which another host uses, too: the disks are there already."""

    def __init__(self, offer: MoveOffer, uuid: str, here: str, instances_path: str) -> None:
        super().__init__(offer, uuid)
        self._offer, self._here, self._own_path = offer, here, instances_path

    def check(self) -> int:
        # 'run' is missing where the destination is of a release that did not share.
        if identity.run_of(self._own_path, self._offer['host']) != self._offer.get('run'):
            raise self._unmovable(f'both say that they use one storage, but that host is not seen at {self._own_path}: '
                                  f'it has just been restarted, or its {identity.STORAGE_ID} is a copy of this one')
        if self._path != self._own_path:
            raise self._unmovable(f'they share a storage which is at {self._own_path} here, at {self._path} there')
        return super().check()

    def _unmovable(self, reason: str) -> errors.DisksUnmovable:
        return errors.DisksUnmovable(source=self._here, dest=self._offer['host'], reason=reason)

    def lay(self, kept: InstanceDirectory, move: str, left_behind: frozenset[str]) -> None:
        """In place of ``put`` and its like."""
        self._coming.own(self._offer['host'])
        layers.lay(kept, self._coming, move, left_behind)
