"""The copy of a root disk on its way to an image: <snapshots_directory>/<image id>.

    snapshot = Snapshot(directory, image_id)
    snapshot.copy(disk_path, check)            # while the guest is off, or held still
    snapshot.flatten('qcow2', check)           # afterwards; snapshot.path is what is sent
    snapshot.remove()

A QEMU that runs the guest can write ``part`` itself, in place of both, and ``take`` makes that the image. Where it
can't, only the server's own file is copied while the guest waits, shared with the original where the file system can
do that; reading the base behind it into one flat qcow2 comes later. Either is what a disk is after a power cut: the
guest's file system brings itself in order.
"""
from __future__ import annotations

import os

from kilonova.virt.driver import Check
from kilonova.virt.libvirt.storage import command, files, layers

_COPY, _PART, _IMAGE, _HELD = 'disk', 'image.part', 'image.qcow2', 'held'


class Snapshot:
    """One image's files; a crash leaves them for the next try or for ``remove``."""

    def __init__(self, directory: str, image_id: str) -> None:
        self._directory = os.path.join(directory, image_id)
        self.path, self.part = self._file(_IMAGE), self._file(_PART)

    def is_made(self) -> bool:
        """Whether there is a whole image to send."""
        return os.path.exists(self.path)

    def is_held(self) -> bool:
        """Whether the guest was suspended for this and not yet resumed."""
        return os.path.exists(self._file(_HELD))

    def hold(self) -> None:
        """Note that the guest will be suspended for this."""
        os.makedirs(self._directory, exist_ok=True)
        files.write_whole(self._file(_HELD), '')

    def let_go(self) -> None:
        """Note that it runs again."""
        files.remove(self._file(_HELD))

    def copy(self, disk: str, check: Check) -> None:
        """The disk's file as it is now."""
        os.makedirs(self._directory, exist_ok=True)
        self._see_layers(os.path.dirname(disk))
        command.watched(check, 'cp', '--reflink=auto', '--sparse=always', disk, self._file(_COPY))

    def _see_layers(self, directory: str) -> None:
        """A disk names the layers below it without their directory."""
        for name in filter(layers.is_layer, os.listdir(directory)):
            files.remove(self._file(name))
            os.symlink(os.path.join(directory, name), self._file(name))

    def flatten(self, format_: str, check: Check) -> None:
        """One qcow2 of the copy and all that it reads from. ``format_``: the copy's."""
        files.remove(self.part)
        command.watched(check, 'qemu-img', 'convert', '-O', 'qcow2', '-f', format_, self._file(_COPY), self.part)
        self.take()
        files.remove(self._file(_COPY))

    def make_room(self) -> None:
        """For ``part``: what an earlier try left there goes."""
        os.makedirs(self._directory, exist_ok=True)
        files.remove(self.part)

    def take(self) -> None:
        """``part`` is whole."""
        files.sync(self.part)
        os.replace(self.part, self.path)

    def remove(self) -> None:
        """All of it goes; fine if there is none."""
        files.remove_tree(self._directory)

    def _file(self, name: str) -> str:
        return os.path.join(self._directory, name)
