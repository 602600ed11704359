"""Images of guests: the root disk is copied, then sent.

    copy = Copy(directory, image_id)
    copy.copy(disk_path, check)                # while the guest is off, or held still
    copy.flatten('qcow2', check)               # afterwards; copy.path is what is sent
    copy.remove()

A QEMU that runs the guest can write ``part`` itself, in place of both, and ``take`` makes that the image. Where it
can't, only the server's own file is copied while the guest waits, shared with the original where the file system can
do that; reading the base behind it into one flat qcow2 comes later. Either is what a disk is after a power cut: the
guest's file system brings itself in order.
"""
from __future__ import annotations

import os
import time

from kilonova import objects
from kilonova.states import PowerState
from kilonova.virt import driver
from kilonova.virt.driver import Check
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.storage import command, files, layers
from kilonova.virt.libvirt.storage.server import ServerDisks

_COPY, _PART, _IMAGE, _HELD = 'disk', 'image.part', 'image.qcow2', 'held'
# Seconds between two looks whether QEMU still copies a disk.
_LOOK = 0.2


class Snapshots:
    """``driver.Snapshots``. ``directory``: for the copies."""

    def __init__(self, connection: Connection, disks: ServerDisks, images: driver.ImageClient | None,
                 directory: str) -> None:
        self._libvirt, self._disks, self._images, self._directory = connection, disks, images, directory

    @translated
    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        if self._images is None:
            raise driver.DriverMisconfigured(reason='there is no image client to send images with')
        made = self.copy(image_id)
        if not made.is_made():
            # Looked at first: nobody is held still for an image that is gone, or a service that is silent.
            if self._images.get(image_id)['status'] == 'active':
                return
            self._copy_root_disk(instance, made, check)
        copied()
        with open(made.path, 'rb') as stream:
            self._images.upload(image_id, stream, check)
        made.remove()

    @translated
    def forget_snapshot(self, instance: objects.Instance, image_id: str) -> None:
        made = self.copy(image_id)
        self._let_go_on(instance, made)
        guest = self._libvirt.find(instance.uuid)
        if guest is not None:
            guest.end_copy(made.part)
        made.remove()

    def copy(self, image_id: str) -> Copy:
        """The files of an image that is being made."""
        return Copy(self._directory, image_id)

    def _copy_root_disk(self, instance: objects.Instance, made: Copy, check: Check) -> None:
        """By QEMU while the guest runs; where that won't, the file while the guest can't write."""
        root = self._disks.present(instance.uuid)[0]
        self._let_go_on(instance, made)
        guest = self._libvirt.find(instance.uuid)
        if guest is not None and guest.power_state() == PowerState.RUNNING:
            if self._copy_running(guest, root.path, made, check):
                return
            if guest.power_state() == PowerState.RUNNING:
                made.hold()
                guest.hold()
        try:
            made.copy(root.path, check)
        finally:
            self._let_go_on(instance, made)
        made.flatten(root.format, check)

    def _copy_running(self, guest: Guest, path: str, made: Copy, check: Check) -> bool:
        """False: QEMU won't, or the guest stopped meanwhile. A process that died may have left a copy under way."""
        guest.end_copy(made.part)
        made.make_room()
        if not guest.begin_copy(path, made.part):
            return False
        try:
            while guest.is_copying(made.part):
                check()
                time.sleep(_LOOK)
        except BaseException:
            guest.end_copy(made.part)
            raise
        if guest.has_copied():
            made.take()
            return True
        if guest.is_active():
            raise driver.GuestFailed(act='copy the disk of', uuid=guest.uuid, reason='QEMU did not come to its end')
        return False

    def _let_go_on(self, instance: objects.Instance, made: Copy) -> None:
        if made.is_held():
            guest = self._libvirt.find(instance.uuid)
            if guest is not None:
                guest.go_on()
            made.let_go()


class Copy:
    """One image's files, <snapshots_directory>/<image id>; a crash leaves them for the next try or for ``remove``."""

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
