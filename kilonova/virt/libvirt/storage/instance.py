"""One server's directory: its disks, and the file disk.info, which records the format of each disk.

    directory = InstanceDirectory(instances_path, uuid)
    directory.record('disk', 'qcow2')

Other files in the directory record the disks that the user requested, the current move, and the host that owns the
directory on shared storage.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Collection, Mapping

from oslo_log import log as logging

from kilonova import errors
from kilonova.virt.libvirt.storage import disk, files
from kilonova.virt.libvirt.storage.requested_disks import CONFIG, DISK, SWAP, RequestedDisk

__all__ = (
    'ASKED',
    'COMING',
    'CONFIG',
    'CONSOLE',
    'DISK',
    'DOMAIN_XML',
    'INFO',
    'KEPT',
    'KERNEL',
    'MOVE',
    'OWNER',
    'RAMDISK',
    'RBD',
    'SWAP',
    'InstanceDirectory',
)
# The format in disk.info of a disk that is an image in a Ceph pool.
RBD = 'rbd'
INFO, ASKED, OWNER, TAKEN = 'disk.info', 'disk.asked', 'owner', 'taken_from'
KERNEL, RAMDISK = 'kernel', 'ramdisk'
DOMAIN_XML, CONSOLE, MOVE = 'libvirt.xml', 'console.log', 'move.json'
# Suffixes of two directories of a server during a move. KEPT has the original disks, COMING an incomplete copy.
KEPT, COMING = '_resize', '_incoming'
# The number of bytes that are read at the end of the console log.
CONSOLE_LIMIT = 100 * 1024

LOG = logging.getLogger(__name__)


def mark_of(move: str) -> str:
    """Return the content of the file move.json, which records in a directory that the move ``move`` made it."""
    return json.dumps({'move': move})


class InstanceDirectory:
    """The directory <instances_path>/<uuid> of a server, or the same name with a suffix such as ``_resize``."""

    def __init__(self, instances_path: str, uuid: str, suffix: str = '') -> None:
        self.path = os.path.join(instances_path, uuid + suffix)

    def file(self, name: str) -> str:
        """Return the path of a file in the server's directory."""
        return os.path.join(self.path, name)

    def exists(self) -> bool:
        """Return True if the server's directory exists."""
        return os.path.isdir(self.path)

    def create(self) -> None:
        """Create the server's directory if it does not exist."""
        os.makedirs(self.path, exist_ok=True)

    # -- disk.info, the record of the disks' formats -------------------------------------------------

    def formats(self) -> dict[str, str]:
        """Return a dict from disk name to format, {'disk': 'qcow2', 'disk.eph0': …}, in the order of creation."""
        with contextlib.suppress(FileNotFoundError), open(self.file(INFO), encoding='utf-8') as stream:
            found: dict[str, str] = json.load(stream)
            return found
        return {}

    def pooled(self) -> list[str]:
        """Return the names of the disks that are images in a pool instead of files in this directory."""
        return [name for name, format_ in self.formats().items() if format_ == RBD]

    def record(self, name: str, format_: str) -> None:
        """Record a disk's format.

        The format is never detected from the disk's bytes, because the guest may have written them.
        """
        formats = self.formats()
        if formats.get(name) != format_:
            files.write_whole(self.file(INFO), json.dumps({**formats, name: format_}))

    def forget(self, name: str) -> None:
        """Delete the record of a disk that has been deleted."""
        formats = self.formats()
        if formats.pop(name, None):
            files.write_whole(self.file(INFO), json.dumps(formats))

    def carried(self, left_behind: Collection[str]) -> list[str]:
        """Return the names of the files in this directory that a move takes to the destination, sorted.

        ``left_behind`` are names of files that the destination makes itself, such as swap. Incomplete files (.new) are
        left out, too.
        """
        return sorted(
            name
            for name in os.listdir(self.path)
            if name not in left_behind and not name.endswith('.new') and os.path.isfile(self.file(name))
        )

    def disks(self) -> dict[str, disk.DiskFile]:
        """Return the disks that exist as files, as a dict from disk name to the header of the file."""
        return {
            name: disk.look(self.file(name), format_)
            for name, format_ in self.formats().items()
            if os.path.exists(self.file(name))
        }

    # -- the disks that the user requested -----------------------------------------------------------

    def asked(self) -> dict[str, RequestedDisk]:
        """Return a dict from disk name to requested disk. The dict is empty if flavor and image define all disks."""
        with contextlib.suppress(FileNotFoundError), open(self.file(ASKED), encoding='utf-8') as stream:
            return {name: RequestedDisk.from_dict(values) for name, values in json.load(stream).items()}
        return {}

    def keep_asked(self, asked: Mapping[str, RequestedDisk]) -> None:
        """Store the requested disks in this directory, so that they are copied together with the disks in a move."""
        if asked:
            files.write_whole(self.file(ASKED), json.dumps({name: wish.to_dict() for name, wish in asked.items()}))
        else:
            files.remove(self.file(ASKED))

    # -- the move that the directory is part of ------------------------------------------------------

    def move(self) -> str | None:
        """Return the id of the move that this directory is part of, or None if it is not part of a move.

        The directory is the copy that the move made, or has the original disks that the move keeps.
        """
        with contextlib.suppress(FileNotFoundError), open(self.file(MOVE), encoding='utf-8') as stream:
            return str(json.load(stream)['move'])
        return None

    def mark_move(self, move: str) -> None:
        """Record in the directory, in move.json, that it is part of the move with the id ``move``."""
        files.write_whole(self.file(MOVE), mark_of(move))

    def unmark_move(self) -> None:
        """Delete the record (move.json) that the directory is part of a move."""
        files.remove(self.file(MOVE))

    # -- the host that owns the directory, on storage that several hosts share -----------------------

    def own(self, host: str) -> None:
        """Record ``host`` as the owner of the directory.

        On shared storage, other hosts do not change or delete a directory that has another owner.
        """
        if self.owner() != host:
            files.write_whole(self.file(OWNER), host)

    def owner(self) -> str | None:
        """Return the host that the directory belongs to, or None if no owner is recorded.

        A directory without an owner was made by an older release, which recorded none, or is a copy that has just
        arrived. Each host that has such a directory treats it as its own.
        """
        with contextlib.suppress(FileNotFoundError), open(self.file(OWNER), encoding='utf-8') as stream:
            return stream.read() or None
        return None

    def is_of(self, host: str) -> bool:
        """Return True if the directory belongs to ``host`` or has no recorded owner."""
        return self.owner() in (None, host)

    def take_from(self, host: str | None) -> None:
        """Record, in an evacuation, the dead host ``host`` that this directory is taken over from.

        If ``host`` is None, delete the record.
        """
        if host is None:
            files.remove(self.file(TAKEN))
        else:
            files.write_whole(self.file(TAKEN), host)

    def taken_from(self) -> str | None:
        """Return the host from which the directory was taken over, or None if it was not taken over."""
        with contextlib.suppress(FileNotFoundError), open(self.file(TAKEN), encoding='utf-8') as stream:
            return stream.read() or None
        return None

    # -- the log of the serial console ---------------------------------------------------------------

    def console(self) -> str:
        """Return the last 100 KiB of the console log, or '' if there is none.

        Raises ConsoleNotAvailable if the log cannot be read.
        """
        try:
            with open(self.file(CONSOLE), 'rb') as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(size - CONSOLE_LIMIT, 0))
                return stream.read().decode(errors='replace')
        except FileNotFoundError:
            return ''
        except OSError as error:
            LOG.error('The console log of a guest cannot be read: %s', error)
            raise errors.ConsoleNotAvailable from error

    # -- libvirt.xml, the copy of the guest's XML for operators --------------------------------------

    def show_domain(self, xml: str) -> None:
        """Write the domain's XML to libvirt.xml for operators to read.

        Nothing is written if the server has no directory. A full disk is logged and does not raise an error, so that it
        cannot prevent a guest from starting.
        """
        try:
            files.write_whole(self.file(DOMAIN_XML), xml)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            LOG.warning('Could not write %s, because the disk is full: %s', self.file(DOMAIN_XML), error)
            files.remove(self.file(DOMAIN_XML))
            files.remove(f'{self.file(DOMAIN_XML)}.new')

    def hide_domain(self) -> None:
        """Delete the file libvirt.xml, the copy of the domain's XML."""
        files.remove(self.file(DOMAIN_XML))
