"""One server's directory: its disks, and disk.info, which says what format each is.

    directory = InstanceDirectory(instances_path, uuid)
    directory.record('disk', 'qcow2')
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
from kilonova.virt.libvirt.storage.asked import CONFIG, DISK, SWAP, Wish

__all__ = ('ASKED', 'COMING', 'CONFIG', 'CONSOLE', 'DISK', 'DOMAIN_XML', 'INFO', 'KEPT', 'KERNEL', 'MOVE', 'OWNER',
           'RAMDISK', 'RBD', 'SWAP', 'InstanceDirectory')
# What disk.info says of a disk that is an image in a pool of Ceph.
RBD = 'rbd'
INFO, ASKED, OWNER, TAKEN = 'disk.info', 'disk.asked', 'owner', 'taken_from'
KERNEL, RAMDISK = 'kernel', 'ramdisk'
DOMAIN_XML, CONSOLE, MOVE = 'libvirt.xml', 'console.log', 'move.json'
# Suffixes of a server's other directories: the originals of a move, and a copy that is on its way.
KEPT, COMING = '_resize', '_incoming'
# How much of the console log is read, in bytes.
CONSOLE_LIMIT = 100 * 1024

LOG = logging.getLogger(__name__)


def mark_of(move: str) -> str:
    """What the mark of a move says."""
    return json.dumps({'move': move})


class InstanceDirectory:
    """<instances_path>/<uuid>, or that with a suffix (``_resize``)."""

    def __init__(self, instances_path: str, uuid: str, suffix: str = '') -> None:
        self.path = os.path.join(instances_path, uuid + suffix)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def create(self) -> None:
        os.makedirs(self.path, exist_ok=True)

    # -- disk.info -----------------------------------------------------------------------------------

    def formats(self) -> dict[str, str]:
        """{'disk': 'qcow2', 'disk.eph0': …} in the order in which they were made."""
        with contextlib.suppress(FileNotFoundError), open(self.file(INFO), encoding='utf-8') as stream:
            found: dict[str, str] = json.load(stream)
            return found
        return {}

    def pooled(self) -> list[str]:
        """The disks that are no files here but images in a pool."""
        return [name for name, format_ in self.formats().items() if format_ == RBD]

    def record(self, name: str, format_: str) -> None:
        """Note a disk's format: it is never guessed from bytes that its guest may have written."""
        formats = self.formats()
        if formats.get(name) != format_:
            files.write_whole(self.file(INFO), json.dumps({**formats, name: format_}))

    def forget(self, name: str) -> None:
        """Note that a disk has gone."""
        formats = self.formats()
        if formats.pop(name, None):
            files.write_whole(self.file(INFO), json.dumps(formats))

    def carried(self, left_behind: Collection[str]) -> list[str]:
        """Names of the files that go along when the server moves."""
        return sorted(name for name in os.listdir(self.path) if name not in left_behind
                      and not name.endswith('.new') and os.path.isfile(self.file(name)))

    def disks(self) -> dict[str, disk.DiskFile]:
        """Headers of the disks that there are."""
        return {name: disk.look(self.file(name), format_) for name, format_ in self.formats().items()
                if os.path.exists(self.file(name))}

    # -- what its user asked for ---------------------------------------------------------------------

    def asked(self) -> dict[str, Wish]:
        """Name of a disk → wish; {} where flavor and image say everything."""
        with contextlib.suppress(FileNotFoundError), open(self.file(ASKED), encoding='utf-8') as stream:
            return {name: Wish.from_dict(values) for name, values in json.load(stream).items()}
        return {}

    def keep_asked(self, asked: Mapping[str, Wish]) -> None:
        """Note it beside the disks, which carry it along."""
        if asked:
            files.write_whole(self.file(ASKED), json.dumps({name: wish.to_dict() for name, wish in asked.items()}))
        else:
            files.remove(self.file(ASKED))

    # -- which move it belongs to --------------------------------------------------------------------

    def move(self) -> str | None:
        """The move that put this directory here (a copy), or aside (the kept original)."""
        with contextlib.suppress(FileNotFoundError), open(self.file(MOVE), encoding='utf-8') as stream:
            return str(json.load(stream)['move'])
        return None

    def mark_move(self, move: str) -> None:
        files.write_whole(self.file(MOVE), mark_of(move))

    def unmark_move(self) -> None:
        files.remove(self.file(MOVE))

    # -- whose it is, where hosts share their storage ------------------------------------------------

    def own(self, host: str) -> None:
        """Note the host that the server, or what is kept of it, belongs to."""
        if self.owner() != host:
            files.write_whole(self.file(OWNER), host)

    def owner(self) -> str | None:
        """None: of whoever looks (a copy that has just come, or one of a release that noted nothing)."""
        with contextlib.suppress(FileNotFoundError), open(self.file(OWNER), encoding='utf-8') as stream:
            return stream.read() or None
        return None

    def is_of(self, host: str) -> bool:
        return self.owner() in (None, host)

    def take_from(self, host: str | None) -> None:
        """Note from whom another host takes the directory over; None: nobody."""
        if host is None:
            files.remove(self.file(TAKEN))
        else:
            files.write_whole(self.file(TAKEN), host)

    def taken_from(self) -> str | None:
        with contextlib.suppress(FileNotFoundError), open(self.file(TAKEN), encoding='utf-8') as stream:
            return stream.read() or None
        return None

    # -- the console ---------------------------------------------------------------------------------

    def console(self) -> str:
        """The end of the console log; '' without one. Raises ConsoleNotAvailable when it can't be read."""
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

    # -- the XML for people --------------------------------------------------------------------------

    def show_domain(self, xml: str) -> None:
        """Let people read what libvirt holds; a server without a directory has none to show, and a full disk keeps no
        guest from starting."""
        try:
            files.write_whole(self.file(DOMAIN_XML), xml)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            LOG.warning('%s is not written, the disk is full: %s', self.file(DOMAIN_XML), error)
            files.remove(self.file(DOMAIN_XML))
            files.remove(f'{self.file(DOMAIN_XML)}.new')

    def hide_domain(self) -> None:
        files.remove(self.file(DOMAIN_XML))
