"""Images of guests: the root disk is copied, then sent.

    copy = Copy(directory, image_id, 'qcow2')
    copy.copy(disk_path, check)                # while the guest is off, or held still
    copy.flatten('qcow2', check)               # afterwards; copy.path is what is sent
    copy.remove()

A QEMU that runs the guest can write ``part`` itself, in place of both, and ``take`` makes that the image. Where it
can't, only the server's own file is copied while the guest waits, shared with the original where the file system can
do that; reading the base behind it into one flat file comes later. Either is what a disk is after a power cut: the
guest's file system brings itself in order. Room is looked for before anything is written.

A disk in a pool is kept there as it is in a moment, and copied from that while the guest goes on, whoever runs it.
"""
from __future__ import annotations

import os
import time

from kilonova import objects
from kilonova.states import PowerState
from kilonova.virt import command
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.storage import files, layers
from kilonova.virt.libvirt.storage.instance import DISK
from kilonova.virt.libvirt.storage.pool import image_of
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.parts.disks import Check, ImageClient
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import DriverMisconfigured

_COPY, _PART, _CONVERTED, _IMAGE, _HELD = 'disk', 'image.part', 'image.converted', 'image', 'held'
_QCOW2 = 'qcow2'
# Seconds between two looks whether QEMU still copies a disk.
_LOOK = 0.2


class Snapshots:
    """``parts.disks.Snapshots``. ``directory``: for the copies; ``format_``: of the images."""

    def __init__(self, connection: Connection, disks: ServerDisks, images: ImageClient | None,
                 directory: str, format_: str = _QCOW2) -> None:
        self._libvirt, self._disks, self._images = connection, disks, images
        self._directory, self._format = directory, format_

    @translated
    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        if self._images is None:
            raise DriverMisconfigured(reason='there is no image client to send images with')
        made = self.copy(image_id)
        if not made.is_made():
            # Looked at first: nobody is held still for an image that is gone, or a service that is silent.
            if self._images.get(image_id)['status'] == 'active':
                return
            self._copy_root_disk(instance, image_id, made, check)
        copied()
        if self._format != _QCOW2:
            self._images.update(image_id, [{'op': 'replace', 'path': '/disk_format', 'value': self._format}])
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
        if DISK in self._disks.directory(instance.uuid).pooled():
            self._disks.pool.forget(image_of(instance.uuid, DISK), image_id)
        made.remove()

    def copy(self, image_id: str) -> Copy:
        """The files of an image that is being made."""
        return Copy(self._directory, image_id, self._format)

    def _copy_root_disk(self, instance: objects.Instance, image_id: str, made: Copy, check: Check) -> None:
        """By QEMU while the guest runs; where that won't, the file while the guest can't write."""
        root = self._disks.present(instance)[0]
        need = self._disks.root_bytes(instance.uuid)
        if root.pool is not None:
            made.make_room()
            made.see_room(need)
            self._copy_kept(image_of(instance.uuid, DISK), image_id, made, check)
            return
        self._let_go_on(instance, made)
        guest = self._libvirt.find(instance.uuid)
        is_running = guest is not None and guest.power_state() == PowerState.RUNNING
        if guest is not None and is_running and self._copy_running(guest, root.path, made, need, check):
            return
        made.see_room(need + files.used(root.path))
        if guest is not None and is_running and guest.power_state() == PowerState.RUNNING:
            made.hold()
            guest.hold()
        try:
            made.copy(root.path, check)
        finally:
            self._let_go_on(instance, made)
        made.flatten(root.format, check)

    def _copy_kept(self, image: str, image_id: str, made: Copy, check: Check) -> None:
        """What an earlier try kept is as old as that: it goes first."""
        pool = self._disks.pool
        pool.forget(image, image_id)
        pool.keep(image, image_id)
        try:
            made.read(pool.kept(image, image_id), check)
        finally:
            pool.forget(image, image_id)

    def _copy_running(self, guest: Guest, path: str, made: Copy, need: int, check: Check) -> bool:
        """False: QEMU won't, or the guest stopped meanwhile. A process that died may have left a copy under way."""
        guest.end_copy(made.part)
        made.make_room()
        made.see_room(need if self._format == _QCOW2 else 2 * need)
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
            made.convert(check)
            return True
        if guest.is_active():
            raise GuestFailed(act='copy the disk of', uuid=guest.uuid, reason='QEMU did not come to its end')
        return False

    def _let_go_on(self, instance: objects.Instance, made: Copy) -> None:
        if made.is_held():
            guest = self._libvirt.find(instance.uuid)
            if guest is not None:
                guest.go_on()
            made.let_go()


class Copy:
    """One image's files, <snapshots_directory>/<image id>; a crash leaves them for the next try or for ``remove``."""

    def __init__(self, directory: str, image_id: str, format_: str) -> None:
        self._directory, self._image_id, self._format = os.path.join(directory, image_id), image_id, format_
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
        """One file of the copy and all that it reads from. ``format_``: the copy's."""
        files.remove(self.part)
        command.watched(check, 'qemu-img', 'convert', '-O', self._format, '-f', format_, self._file(_COPY), self.part)
        self._take(self.part)
        files.remove(self._file(_COPY))

    def read(self, source: str, check: Check) -> None:
        """The image of a raw disk by QEMU's name."""
        command.watched(check, 'qemu-img', 'convert', '-O', self._format, '-f', 'raw', source, self.part)
        self._take(self.part)

    def convert(self, check: Check) -> None:
        """``part`` is whole, a qcow2 that QEMU wrote: the image is made of it."""
        if self._format == _QCOW2:
            self._take(self.part)
            return
        converted = self._file(_CONVERTED)
        files.remove(converted)
        command.watched(check, 'qemu-img', 'convert', '-O', self._format, '-f', _QCOW2, self.part, converted)
        self._take(converted)
        files.remove(self.part)

    def see_room(self, need: int) -> None:
        """errors.NoRoom: so many bytes are not free."""
        files.check_room(self._directory, need, f'image {self._image_id}')

    def make_room(self) -> None:
        """For ``part``: what an earlier try left there goes."""
        os.makedirs(self._directory, exist_ok=True)
        files.remove(self.part)

    def _take(self, path: str) -> None:
        files.sync(path)
        os.replace(path, self.path)

    def remove(self) -> None:
        """All of it goes; fine if there is none."""
        files.remove_tree(self._directory)

    def _file(self, name: str) -> str:
        return os.path.join(self._directory, name)
