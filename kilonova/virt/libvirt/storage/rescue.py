"""The rescue system of a server: its files next to the server's files, and a record of how the rescue system starts.

    found = files.prepare(instance, image_meta, image)     # fetches images; nothing of the server changes
    files.make(instance, directory, found, password)       # writes disk, config drive, kernel, and then the record
    read(directory)                                        # RescueSystem from the record, or None without a record
    forget(disks, uuid)                                    # deletes the record, and then the files

A guest starts its rescue system if the record ``rescued.json`` exists in its directory. Otherwise it starts from its
own disk.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from oslo_config import cfg

from kilonova import objects
from kilonova.virt.libvirt.domain.guest import GuestDisk
from kilonova.virt.libvirt.storage import configdrive, disk, files
from kilonova.virt.libvirt.storage.cache import ImageCache
from kilonova.virt.libvirt.storage.instance import CONFIG, KERNEL, RAMDISK, RBD, InstanceDirectory
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.parts.disks import ImageMeta, ImageSource
from kilonova.virt.parts.host import DriverMisconfigured

NOTE = 'rescued.json'
_SUFFIX = '.rescue'
_DISK = 'disk' + _SUFFIX
# Image properties that a rescue uses.
_PROPERTIES = ('hw_rescue_device', 'hw_rescue_bus', 'kernel_id', 'ramdisk_id', 'os_command_line')


@dataclass(frozen=True)
class RescueSystem:
    """The disks and settings with which a rescue system starts.

    Attributes:
        format: Format of the rescue disk.
        device: Device type of the rescue disk.
        bus: Bus of the rescue disk. None means the guest's default.
        stable: True for a stable device rescue: the rescue disk is the guest's last disk, and the guest boots from it.
            If False, the rescue disk is the first disk (vda), and the server's disks come after it.
        files: Names of the files that the rescue system has of its own: config drive, kernel and ramdisk.
        drive: Device type of the rescue system's config drive.
        command_line: The kernel command line of the rescue image, '' if it has none. None means that an older release
            wrote the record.
    """

    format: str
    device: str = 'disk'
    bus: str | None = None
    stable: bool = False
    files: tuple[str, ...] = ()
    drive: str = 'cdrom'
    command_line: str | None = None

    def disks(self, at: Callable[[str, str], GuestDisk], own: tuple[GuestDisk, ...]) -> tuple[GuestDisk, ...]:
        """Return the rescued guest's disks in their order: the server's disks ``own``, and the rescue system's disks.

        The rescue disk is the last one in a stable device rescue, otherwise the first one. ``at(name, format)`` must
        return the server's disk of this name as a GuestDisk.
        """
        kept = tuple(each for each in own if CONFIG not in self.files or each.name != CONFIG)
        drive = (
            (replace(at(CONFIG + _SUFFIX, RBD if self.format == RBD else 'raw'), device=self.drive),)
            if CONFIG in self.files
            else ()
        )
        first = replace(at(_DISK, self.format), device=self.device, bus=self.bus, boots=self.stable)
        return (*kept, *drive, first) if self.stable else (first, *kept, *drive)

    def kernel(self, directory: InstanceDirectory) -> tuple[str | None, str | None]:
        """Return the paths of the rescue system's kernel and ramdisk.

        A path is None if the rescue system has no such file.
        """
        kernel, ramdisk = (directory.file(name + _SUFFIX) if name in self.files else None for name in (KERNEL, RAMDISK))
        return kernel, ramdisk


@dataclass(frozen=True)
class Prepared:
    """Images that were fetched for a rescue.

    ``base`` is the file of the rescue image. ``kernels`` is a dict from file name to the path of a kernel or ramdisk.
    ``rescue`` has the disks and settings of the rescue system.
    """

    base: disk.BaseFile
    kernels: dict[str, str]
    rescue: RescueSystem


def read(directory: InstanceDirectory) -> RescueSystem | None:
    """Return the disks and settings of the server's rescue system, or None if the server is not rescued."""
    with contextlib.suppress(FileNotFoundError), open(directory.file(NOTE), encoding='utf-8') as stream:
        values = json.load(stream)
        return RescueSystem(**{**values, 'files': tuple(values['files'])})
    return None


def forget(disks: ServerDisks, uuid: str) -> None:
    """Delete the record and then the files of a server's rescue system. Do nothing if there are none."""
    directory = disks.directory(uuid)
    if not directory.exists():
        return
    files.remove(directory.file(NOTE))
    pooled = directory.pooled()
    for name in ('disk', CONFIG, KERNEL, RAMDISK):
        files.remove(directory.file(name + _SUFFIX))
        if name + _SUFFIX in pooled:
            disks.drop(uuid, name + _SUFFIX)


class RescueFiles:
    """The files of rescue systems on one host.

    The options [libvirt]rescue_image_id, rescue_kernel_id and rescue_ramdisk_id name the host's images for rescues.
    """

    def __init__(self, conf: cfg.ConfigOpts, cache: ImageCache, images: ImageSource | None, disks: ServerDisks) -> None:
        self._conf, self._cache, self._images, self._disks = conf, cache, images, disks

    def prepare(self, instance: objects.Instance, image_meta: ImageMeta, image: ImageMeta | None) -> Prepared:
        """Fetch the images that the rescue system is made of.

        ``image`` is the rescue image. If it is None, the host's default rescue image is used, or the server's own image
        if the host has no default. Raises DriverMisconfigured if there is no image client, and ImageUnacceptable,
        FlavorDiskSmallerThanImage or errors.NoRoom if an image cannot be used.
        """
        if self._images is None:
            raise DriverMisconfigured(reason='no image client is configured, which is needed to fetch images')
        image = image or self._default(instance, image_meta)
        most = instance.flavor.root_gb * disk.GIB or None
        base = self._cache.image(image['id'], image, self._images.download, most)
        properties = image.get('properties') or {}
        options = self._conf.libvirt
        ids = {
            KERNEL: options.rescue_kernel_id or properties.get('kernel_id') or getattr(instance, 'kernel_id', None),
            RAMDISK: options.rescue_ramdisk_id or properties.get('ramdisk_id') or getattr(instance, 'ramdisk_id', None),
        }
        kernels = {
            name: self._cache.kernel(image_id, self._images.download) for name, image_id in ids.items() if image_id
        }
        device, bus = properties.get('hw_rescue_device'), properties.get('hw_rescue_bus')
        made = tuple(kernels) + ((CONFIG,) if configdrive.required(self._conf, instance, image_meta) else ())
        return Prepared(
            base,
            kernels,
            RescueSystem(
                self._disks.format,
                device or 'disk',
                bus,
                bool(device or bus),
                made,
                self._disks.drive.device,
                properties.get('os_command_line') or '',
            ),
        )

    def make(
        self, instance: objects.Instance, directory: InstanceDirectory, prepared: Prepared, admin_password: str | None
    ) -> None:
        """Write all files of the rescue system. Files of an earlier try are replaced.

        ``prepared`` is the result of ``prepare``. The record ``rescued.json`` is written last, because the guest starts
        the rescue system if this file exists.
        """
        forget(self._disks, instance.uuid)
        self._disks.make_rescue(instance.uuid, _DISK, prepared.base)
        for name, path in prepared.kernels.items():
            disk.create_copy(directory.file(name + _SUFFIX), disk.BaseFile(path, 'raw', 0), 0)
        if CONFIG in prepared.rescue.files:
            self._disks.build_drive(CONFIG + _SUFFIX, instance, admin_password)
        files.write_whole(directory.file(NOTE), json.dumps(asdict(prepared.rescue)))

    def _default(self, instance: objects.Instance, image_meta: ImageMeta) -> ImageMeta:
        image_id = self._conf.libvirt.rescue_image_id
        if not image_id:
            return {**image_meta, 'id': instance.image_ref}
        assert self._images is not None
        record = self._images.get(image_id)
        properties = {name: record[name] for name in _PROPERTIES if record.get(name)}
        return {**record, 'id': image_id, 'properties': properties}
