"""One server's directory: its disks, and disk.info, which says what format each is.

    directory = InstanceDirectory(instances_path, uuid)
    directory.record('disk', 'qcow2')
"""
from __future__ import annotations

import contextlib
import json
import os

from kilonova.virt.libvirt.storage import disk, files

DISK, CONFIG, SWAP, INFO = 'disk', 'disk.config', 'disk.swap', 'disk.info'
DOMAIN_XML, CONSOLE, MOVE = 'libvirt.xml', 'console.log', 'move.json'


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
            return json.load(stream)
        return {}

    def record(self, name: str, format_: str) -> None:
        """Note a disk's format: it is never guessed from bytes that its guest may have written."""
        formats = self.formats()
        if formats.get(name) != format_:
            files.write_whole(self.file(INFO), json.dumps({**formats, name: format_}))

    def disks(self) -> dict[str, disk.DiskFile]:
        """Headers of the disks that there are."""
        return {name: disk.look(self.file(name), format_) for name, format_ in self.formats().items()
                if os.path.exists(self.file(name))}

    # -- which move it belongs to --------------------------------------------------------------------

    def move(self) -> str | None:
        """The move that put this directory here (a copy), or aside (the kept original)."""
        with contextlib.suppress(FileNotFoundError), open(self.file(MOVE), encoding='utf-8') as stream:
            return json.load(stream)['move']
        return None

    def mark_move(self, move: str) -> None:
        files.write_whole(self.file(MOVE), json.dumps({'move': move}))

    def unmark_move(self) -> None:
        files.remove(self.file(MOVE))

    # -- the XML for people --------------------------------------------------------------------------

    def show_domain(self, xml: str) -> None:
        """Let people read what libvirt holds; a server without a directory has none to show."""
        with contextlib.suppress(FileNotFoundError):
            files.write_whole(self.file(DOMAIN_XML), xml)

    def hide_domain(self) -> None:
        files.remove(self.file(DOMAIN_XML))
