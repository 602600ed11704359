"""Snapshots of servers: the root disk of a guest is copied, and the copy is sent to the image service.

    copy = Copy(directory, image_id, 'qcow2')
    ...                                        # copy the disk in one of three ways; copy.path is the file to send
    copy.remove()

- A disk in a Ceph pool: ``copy.read`` makes the image from a snapshot in the pool. The guest may run.
- A disk file of a running guest: QEMU writes ``copy.part``, and ``copy.convert`` makes the image from it.
- A disk file, if the guest is off or QEMU cannot copy the disk: ``copy.copy`` copies the file while the guest is off or
  paused, and ``copy.flatten`` makes the image from the copied file and its backing files.

The copy is like a disk after a power failure, which the guest's file system can repair. Free space is checked before a
disk is copied.
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
from kilonova.virt.libvirt.storage.rbd.pool import image_of
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.parts.disks import Check, ImageSource
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import DriverMisconfigured

_COPY, _PART, _CONVERTED, _IMAGE, _HELD = 'disk', 'image.part', 'image.converted', 'image', 'held'
_QCOW2 = 'qcow2'
# Seconds between two checks whether QEMU is still copying a disk.
_LOOK = 0.2


class LibvirtSnapshots:
    """Images made from the root disks of this host's guests. Implements ``parts.disks.Snapshots``.

    ``directory`` is the directory for copies of disks, and ``format_`` is the format of the images.
    """

    def __init__(
        self,
        connection: Connection,
        disks: ServerDisks,
        images: ImageSource | None,
        directory: str,
        format_: str = _QCOW2,
    ) -> None:
        self._libvirt, self._disks, self._images = connection, disks, images
        self._directory, self._format = directory, format_

    @translated
    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        """Copy a server's root disk and send the copy to the image service as the data of an image.

        ``copied()`` is called when the copy is complete, before it is sent. ``check()`` is called again and again
        during the work. If it raises an exception, the work ends.
        """
        if self._images is None:
            raise DriverMisconfigured(reason='no image client is configured, which is needed to upload images')
        made = self.copy(image_id)
        if not made.is_made():
            # Ask the image service first. If it does not answer, an error is raised before the guest is paused.
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
        """Resume the guest if it was paused for this image, stop the copy of its disk, and delete the copied files."""
        made = self.copy(image_id)
        self._let_go_on(instance, made)
        guest = self._libvirt.find(instance.uuid)
        if guest is not None:
            guest.end_copy(made.part)
        if DISK in self._disks.directory(instance.uuid).pooled():
            self._disks.pool.forget(image_of(instance.uuid, DISK), image_id)
        made.remove()

    def copy(self, image_id: str) -> Copy:
        """Return the object for the local files of the image ``image_id``, which is being made from a disk."""
        return Copy(self._directory, image_id, self._format)

    def _copy_root_disk(self, instance: objects.Instance, image_id: str, made: Copy, check: Check) -> None:
        """Copy the root disk of a server, and make the image from the copy.

        A disk in a Ceph pool is read from a snapshot. The disk file of a running guest is copied by QEMU. If QEMU
        cannot do this, or if the guest is off, the disk file is copied while the guest is paused or off.
        """
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
        """Make a Glance image from a server's disk in Ceph: create a snapshot of the disk, read it, and delete it.

        ``image`` is the name of the disk in the pool. ``image_id`` is the id of the Glance image, and names the
        snapshot. A snapshot of this name that an earlier attempt left is deleted first.
        """
        pool = self._disks.pool
        pool.forget(image, image_id)
        pool.keep(image, image_id)
        try:
            made.read(pool.kept(image, image_id), check)
        finally:
            pool.forget(image, image_id)

    def _copy_running(self, guest: Guest, path: str, made: Copy, need: int, check: Check) -> bool:
        """Copy the disk ``path`` with QEMU while the guest runs, and make the image's file from the copy.

        ``made`` has the files of the image, and ``need`` is the size of the image in bytes. Return False if QEMU
        refuses or the guest stopped in the meantime: then the caller copies the disk's file. A copy that an earlier,
        crashed process of this service started is ended first.
        """
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
            raise GuestFailed(act='copy the disk of', uuid=guest.uuid, reason='QEMU did not complete the copy')
        return False

    def _let_go_on(self, instance: objects.Instance, made: Copy) -> None:
        if made.is_held():
            guest = self._libvirt.find(instance.uuid)
            if guest is not None:
                guest.go_on()
            made.let_go()


class Copy:
    """The files of one image that is being made, in the directory <snapshots_directory>/<image id>.

    After a crash the files stay, until the next try uses them or ``remove`` deletes them.
    """

    def __init__(self, directory: str, image_id: str, format_: str) -> None:
        self._directory, self._image_id, self._format = os.path.join(directory, image_id), image_id, format_
        self.path, self.part = self._file(_IMAGE), self._file(_PART)

    def is_made(self) -> bool:
        """Return True if the image's file is complete on this host."""
        return os.path.exists(self.path)

    def is_held(self) -> bool:
        """Return True if the guest was paused for this image and has not been resumed."""
        return os.path.exists(self._file(_HELD))

    def hold(self) -> None:
        """Record that the guest will be paused for this image.

        If the compute service crashes while the guest is paused, the next attempt to make or to delete the image finds
        the record and resumes the guest.
        """
        os.makedirs(self._directory, exist_ok=True)
        files.write_whole(self._file(_HELD), '')

    def let_go(self) -> None:
        """Delete the record that the guest is paused for this image."""
        files.remove(self._file(_HELD))

    def copy(self, disk: str, check: Check) -> None:
        """Copy the disk file ``disk`` in its current state into the directory of the image's files.

        ``check()`` is called during the copy. If it raises an exception, the copy ends.
        """
        os.makedirs(self._directory, exist_ok=True)
        self._see_layers(os.path.dirname(disk))
        command.watched(check, 'cp', '--reflink=auto', '--sparse=always', disk, self._file(_COPY))

    def _see_layers(self, directory: str) -> None:
        """Link the disk's layers (backing files from earlier moves) into the directory of this copy.

        The header of the copied disk names a layer without a directory, so QEMU looks for it beside the copied disk.
        """
        for name in filter(layers.is_layer, os.listdir(directory)):
            files.remove(self._file(name))
            os.symlink(os.path.join(directory, name), self._file(name))

    def flatten(self, format_: str, check: Check) -> None:
        """Make the image from the copied disk file and all its backing files.

        ``format_`` is the format of the copied disk file. ``check()`` is called again and again until qemu-img has
        ended. If it raises an exception, the work ends.
        """
        files.remove(self.part)
        command.watched(check, 'qemu-img', 'convert', '-O', self._format, '-f', format_, self._file(_COPY), self.part)
        self._take(self.part)
        files.remove(self._file(_COPY))

    def read(self, source: str, check: Check) -> None:
        """Make the image from a raw disk. ``source`` is a file name or another name by which QEMU opens the disk.

        ``check()`` is called again and again until qemu-img has ended. If it raises an exception, the work ends.
        """
        command.watched(check, 'qemu-img', 'convert', '-O', self._format, '-f', 'raw', source, self.part)
        self._take(self.part)

    def convert(self, check: Check) -> None:
        """Make the image from ``part``, a complete qcow2 file that QEMU has written.

        ``check()`` is called again and again until qemu-img has ended. If it raises an exception, the work ends.
        """
        if self._format == _QCOW2:
            self._take(self.part)
            return
        converted = self._file(_CONVERTED)
        files.remove(converted)
        command.watched(check, 'qemu-img', 'convert', '-O', self._format, '-f', _QCOW2, self.part, converted)
        self._take(converted)
        files.remove(self.part)

    def see_room(self, need: int) -> None:
        """Check that ``need`` bytes are free for the image. Raises errors.NoRoom if they are not."""
        files.check_room(self._directory, need, f'image {self._image_id}')

    def make_room(self) -> None:
        """Create the directory for the image's files. Delete the partial file of an earlier try."""
        os.makedirs(self._directory, exist_ok=True)
        files.remove(self.part)

    def _take(self, path: str) -> None:
        files.sync(path)
        os.replace(path, self.path)

    def remove(self) -> None:
        """Delete all files of the image that is being made. Do nothing if there are none."""
        files.remove_tree(self._directory)

    def _file(self, name: str) -> str:
        return os.path.join(self._directory, name)
