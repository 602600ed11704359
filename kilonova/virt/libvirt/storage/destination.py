"""The destination of a server's disks in a move: a local directory, another machine by ssh, or shared storage.

    place = of(offer, uuid, host, instances_path, transport)          # offer: from the destination
    place.check()                        # free bytes at the destination; may raise DisksUnmovable
    place.begin(move)
    place.put([path, …], place.coming, going)
    place.end(move)

All kinds of destination have the same steps: make a directory that records the move, copy the files into it, and rename
it. On shared storage nothing is copied. Each step may be repeated: files of another move are replaced, and files that
this move has already sent to another machine are kept.
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

# A callback that gets the number of bytes transferred since its last call. If the callback raises, the transfer ends.
Going = Callable[[int], None]


class MoveDestination(Protocol):
    """The directory of one server at the destination.

    ``coming`` is the directory that receives the copy. When the copy is complete, it is renamed to the server's usual
    directory.
    """

    coming: str

    def check(self) -> int:
        """Return the number of free bytes at the destination.

        Raises DisksUnmovable if the destination cannot be reached, or if its storage is not the one in its offer.
        """

    def has_arrived(self, move: str) -> bool:
        """Return True if the server's directory at the destination is the complete copy that a move has made.

        ``move`` is the id of the move, which the directory records in move.json.
        """

    def begin(self, move: str) -> None:
        """Make the directory for the copy, and record in it the id ``move`` of the move.

        Files that an earlier try of the same move brought may be kept. All other files in the directory are deleted.
        """

    def put(self, paths: Sequence[str], directory: str, going: Going) -> None:
        """Copy files into a directory. Holes of sparse files are preserved.

        ``going`` is called often, with the number of bytes that were copied since its last call.
        """

    def base(self, path: str) -> str | None:
        """Return the format of a base file at the destination, 'raw' or 'qcow2', or None if the file does not exist."""

    def put_base(self, path: str, target: str, move: str, going: Going) -> None:
        """Copy the base file ``path``, compare the copy with the original, and rename the copy to ``target``.

        Until then the copy has a temporary name that contains ``move``, the id of the move. ``going`` is called often,
        with the number of bytes that were copied since its last call.
        """

    def rebase(self, name: str, base: str, format_: str) -> None:
        """Change the copied overlay ``name``, so that it reads from the base file ``base`` at the destination.

        ``format_`` is the format of the base file.
        """

    def end(self, move: str) -> None:
        """Rename the complete copy to the server's directory. A directory that has this name already is replaced."""

    def discard(self, move: str) -> list[str]:
        """Delete the server's directories that this move made at the destination, and return their paths."""


def of(offer: MoveOffer, uuid: str, here: str, instances_path: str, transport: ssh.FileTransport) -> MoveDestination:
    """Return the destination of a server's disks that ``offer`` describes (see ``DiskMover.offer``).

    ``here`` is this host, the source, and ``instances_path`` is the directory of its disks. Returns a Shared
    destination if the other host uses the same storage, and a Local one if the destination's directory is on this
    machine, which may run several compute services. Otherwise returns an ``ssh.Remote``.
    """
    if offer['host'] != here and offer['storage_id'] == identity.storage_id(instances_path):
        return Shared(offer, uuid, here, instances_path)
    if (
        offer['machine_id'] == identity.machine_id()
        and offer['boot_id'] == identity.boot_id()
        and offer['storage_id'] == identity.storage_id(offer['instances_path'])
    ):
        return Local(offer, uuid)
    return ssh.Remote(offer, uuid, here, transport)


class Local:
    """The directory of one server at the destination of a move, if the destination is on this machine."""

    def __init__(self, offer: MoveOffer, uuid: str) -> None:
        self._path = offer['instances_path']
        self._coming, self._arrived = (InstanceDirectory(self._path, uuid, suffix) for suffix in (COMING, ''))
        self.coming = self._coming.path

    def check(self) -> int:
        """Return the number of free bytes in the file system of the destination's directory."""
        return shutil.disk_usage(self._path).free

    def has_arrived(self, move: str) -> bool:
        """Return True if the server's directory at the destination is the copy that this move has made."""
        return self._arrived.move() == move

    def begin(self, move: str) -> None:
        """Make an empty directory for the copy, and record in it the id ``move`` of the move."""
        shutil.rmtree(self.coming, ignore_errors=True)
        self._coming.create()
        self._coming.mark_move(move)

    def put(self, paths: Sequence[str], directory: str, going: Going) -> None:
        """Copy files into a directory with the program cp.

        ``going`` is called often, with the number of bytes that were copied since its last call.
        """
        if paths:
            command.watched(lambda: going(0), 'cp', '--sparse=always', '--', *paths, directory)
        for path in paths:
            going(files.used(path))

    def base(self, path: str) -> str | None:
        """Return the format of a base file in the destination's cache, or None if the file does not exist."""
        return disk.look_at_base(path).format if os.path.exists(path) else None

    def put_base(self, path: str, target: str, move: str, going: Going) -> None:
        """Copy the base file ``path`` with cp to a temporary name, and rename the copy to ``target``.

        The temporary name contains ``move``, the id of the move. ``going`` is called with the number of copied bytes.
        """
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # The name contains the move's id, so it differs from the temporary name of a download of the same image.
        aside = f'{target}.{move}'
        try:
            command.watched(lambda: going(0), 'cp', '--sparse=always', '--', path, aside)
            os.replace(aside, target)
        finally:
            files.remove(aside)
        going(files.used(path))

    def rebase(self, name: str, base: str, format_: str) -> None:
        """Change the copied overlay ``name``, so that it reads from the base file ``base`` of format ``format_``."""
        command.run(*disk.rebase(self._coming.file(name), base, format_))

    def end(self, move: str) -> None:
        """Rename the complete copy to the server's directory. A directory that has this name already is replaced."""
        files.remove_tree(self._arrived.path)
        os.rename(self.coming, self._arrived.path)

    def discard(self, move: str) -> list[str]:
        """Delete the server's directories that record this move (in move.json), and return their paths."""
        found = [each for each in (self._coming, self._arrived) if each.exists() and each.move() == move]
        for each in found:
            files.remove_tree(each.path)
        return [each.path for each in found]


class Shared(Local):
    """A destination on storage that the source host uses, too.

    The disks are not copied. The destination's directory gets overlays of the disks in the source's directory.
    """

    def __init__(self, offer: MoveOffer, uuid: str, here: str, instances_path: str) -> None:
        super().__init__(offer, uuid)
        self._offer, self._here, self._own_path = offer, here, instances_path

    def check(self) -> int:
        """Return the number of free bytes.

        Raises DisksUnmovable if the storage is not really shared: it must contain the id that the destination's compute
        service wrote at its last start. Also raises DisksUnmovable if the destination has the storage under another
        path.
        """
        # 'run' is an id that the destination's compute service has written to its storage at its last start.
        if identity.run_of(self._own_path, self._offer['host']) != self._offer.get('run'):
            raise self._unmovable(
                f'both hosts have the same storage id, but the last start of the destination is not recorded in '
                f'{self._own_path}: the compute service of the destination has just been restarted, or its file '
                f'{identity.STORAGE_ID} is a copy of the file of this host'
            )
        if self._path != self._own_path:
            raise self._unmovable(
                f'both hosts share storage, but its path is {self._own_path} on the source and '
                f'{self._path} on the destination'
            )
        return super().check()

    def _unmovable(self, reason: str) -> errors.DisksUnmovable:
        return errors.DisksUnmovable(source=self._here, dest=self._offer['host'], reason=reason)

    def lay(self, kept: InstanceDirectory, move: str, left_behind: frozenset[str]) -> None:
        """Fill the directory at the destination with overlays of the disks in ``kept``, and with links to its files.

        Files with a name in ``left_behind`` are left out. This method replaces the steps that copy files: ``put``,
        ``put_base`` and ``rebase``.
        """
        self._coming.own(self._offer['host'])
        layers.lay(kept, self._coming, move, left_behind)
