"""The image of a server: found as its user, and checked against the flavor."""
from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from oslo_utils import strutils, uuidutils

from kilonova.api.services import block_devices, refusals
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.errors import Forbidden, ImageNotFound, Invalid
from kilonova.objects import ImageMeta
from kilonova.objects.image_meta import SYSMETA_PREFIX, check_texts

_MEMBERS = ('id', 'name', 'status', 'visibility', 'protected', 'checksum', 'owner', 'size', 'container_format',
            'disk_format', 'created_at', 'updated_at', 'tags', 'min_ram', 'min_disk')
# Members of the service's record that are no property of the image.
_OTHERS = frozenset(('file', 'schema', 'self', 'locations', 'direct_url', 'virtual_size', 'os_hash_algo',
                     'os_hash_value', 'os_hidden', 'stores', 'owner_specified'))
# Names that nobody can give to a property.
NO_PROPERTIES = frozenset((*_MEMBERS, *_OTHERS))
GIB = 2 ** 30
_SIZE = re.compile(r'[0-9]{1,9}')
# An image that has no kernel of its own says so by any of these.
_NO_KERNEL = ('', 'none', 'nokernel')


class NoSuchImage(Invalid):
    msg_fmt = 'Can not find requested image'


class NoDisk(Invalid):
    msg_fmt = 'Image %(image_id)s has no disk of its own: it names snapshots of volumes, for new servers.'


class FlavorMemoryTooSmall(Invalid):
    msg_fmt = "Flavor's memory is too small for requested image."


class FlavorDiskTooSmall(Invalid):
    msg_fmt = ("Flavor's disk is too small for requested image. Flavor disk is %(flavor)s bytes, image is %(image)s "
               'bytes.')


class FlavorDiskSmallerThanMinimum(Invalid):
    msg_fmt = ('Flavor disk is smaller than the minimum size specified in image metadata. Flavor disk is %(flavor)s '
               'bytes, minimum size is %(minimum)s bytes.')


class VolumeSmallerThanMinimum(Invalid):
    msg_fmt = ('Volume is smaller than the minimum size specified in image metadata. Volume size is %(volume)s bytes, '
               'minimum size is %(minimum)s bytes.')


class VolumeTooSmall(Invalid):
    msg_fmt = 'Volume is too small for requested image. Volume is %(volume)s bytes, image is %(image)s bytes.'


class ZeroDiskForbidden(Forbidden):
    msg_fmt = 'Only volume-backed servers are allowed for flavors with zero disk.'


class KernelUnusable(Invalid):
    msg_fmt = 'Image property %(name)s: %(reason)s'


class DiskConfigDisabled(Invalid):
    msg_fmt = 'Requested image %(image_id)s has automatic disk resize disabled.'


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """The image service's v2 record as the plain image dict: members, and ``properties`` in a dict of their own."""
    image = {name: record.get(name) for name in _MEMBERS}
    image['size'] = image['size'] or 0
    image['min_ram'], image['min_disk'] = image['min_ram'] or 0, image['min_disk'] or 0
    image['is_public'], image['deleted'] = image['visibility'] == 'public', False
    image['properties'] = {name: value for name, value in record.items()
                           if name not in _OTHERS and name not in image and isinstance(value, (str, int, bool))}
    return image


def find(backend: Backend, ctxt: RequestContext, image_id: str) -> dict[str, Any]:
    """The image as the user sees it. NoSuchImage: there is none for them. Invalid: it can't be booted now, or has no
    disk of its own."""
    image, devices = find_with_devices(backend, ctxt, image_id)
    if devices:
        raise NoDisk(image_id=image_id)
    return image


def find_with_devices(backend: Backend, ctxt: RequestContext,
                      image_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same, and the block devices that it names: of an image of a server that boots from a volume."""
    try:
        image = plain(backend.images.get(image_id, ctxt))
    except ImageNotFound:
        raise NoSuchImage from None
    if image['status'] != 'active':
        raise Invalid(f'Image {image_id} is not active.')
    devices = block_devices.of_image(image['properties'])
    image['properties'] = {name: value for name, value in image['properties'].items()
                           if not devices or name not in block_devices.OF_DEVICES}
    return _checked(image), devices


def _checked(image: dict[str, Any]) -> dict[str, Any]:
    # Properties that are malformed, or would have no effect, are refused here and not on a host.
    refusals.check_image(image['properties'])
    check_texts(image['properties'])
    ImageMeta.from_dict(image)
    return image


def of_volume(kept: Mapping[str, str]) -> dict[str, Any]:
    """The image that a volume was made of, as the plain image dict; ``kept``: what the volume service knows of it, {}:
    of none. Invalid: a server can't be booted from it."""
    sizes = {}
    for name in ('min_ram', 'min_disk'):
        text = kept.get(name) or '0'
        if not _SIZE.fullmatch(text):
            raise Invalid(f"The volume's image has {name} '{text[:255]}': it must be a number.")
        sizes[name] = int(text)
    properties = {name: value for name, value in kept.items() if name not in _MEMBERS and name not in _OTHERS}
    return _checked({**dict.fromkeys(_MEMBERS), 'status': 'active', 'size': 0, **sizes, 'properties': properties})


class Kernels(NamedTuple):
    """Ids of the images that a server starts from instead of its disk's boot loader; '' for none."""

    kernel: str = ''
    ramdisk: str = ''


def find_kernels(backend: Backend, ctxt: RequestContext, image: dict[str, Any], memory_mb: int) -> Kernels:
    """What ``kernel_id`` and ``ramdisk_id`` of an image name, as the user sees it. KernelUnusable: there is no such
    image, it can't be used now, or is larger than the guest's memory."""
    properties = image['properties']
    found = Kernels(*('' if str(properties.get(name, '')).lower() in _NO_KERNEL else str(properties[name])
                      for name in ('kernel_id', 'ramdisk_id')))
    if not found.kernel:
        for name, value in (('ramdisk_id', found.ramdisk), ('os_command_line', properties.get('os_command_line'))):
            if value:
                raise KernelUnusable(name=name, reason='it means nothing without kernel_id.')
    size = 0
    for name, image_id in zip(('kernel_id', 'ramdisk_id'), found, strict=True):
        if image_id:
            size += _kernel_size(backend, ctxt, name, image_id)
            if size > memory_mb << 20:
                raise KernelUnusable(name=name, reason=f'{image_id} does not fit into the memory of the flavor.')
    return found


def _kernel_size(backend: Backend, ctxt: RequestContext, name: str, image_id: str) -> int:
    record = None
    if uuidutils.is_uuid_like(image_id):
        with contextlib.suppress(ImageNotFound):
            record = backend.images.get(image_id, ctxt)
    if record is None:
        raise KernelUnusable(name=name, reason=f'image {image_id} could not be found.')
    if record['status'] != 'active':
        raise KernelUnusable(name=name, reason=f'image {image_id} is not active.')
    return record.get('size') or 0


def of_server(system_metadata_of_server: dict[str, str], image_ref: str | None) -> dict[str, Any]:
    """What a server keeps of its image, as the plain image dict."""
    return ImageMeta.from_system_metadata(system_metadata_of_server, image_ref or None).to_dict()


def disk_config(properties: Mapping[str, Any], image_id: str | None, wanted: str | None) -> bool:
    """Whether a server's diskConfig is AUTO: what is wanted (AUTO, MANUAL), else what its image says in
    ``auto_disk_config``. DiskConfigDisabled where that is 'Disabled' and AUTO is wanted."""
    said = str(properties.get('auto_disk_config', properties.get('hw_auto_disk_config', '')))
    if wanted is None:
        return strutils.bool_from_string(said)
    if wanted == 'AUTO' and said.strip().lower() == 'disabled':
        raise DiskConfigDisabled(image_id=image_id or '')
    return wanted == 'AUTO'


def disk_config_of_server(kept: Mapping[str, Any], image_id: str | None, wanted: str | None) -> bool:
    """The same for a server that there is; ``kept``: its system metadata."""
    return disk_config({name.removeprefix(SYSMETA_PREFIX): value for name, value in kept.items()
                        if name.startswith(SYSMETA_PREFIX)}, image_id, wanted)


def check_fits(image: dict[str, Any], flavor: dict[str, Any], zero_disk_allowed: bool) -> None:
    """Memory and disk of a flavor (row) against what an image needs. Forbidden: an image on a flavor without disk."""
    check_memory(image, flavor)
    disk = (flavor['root_gb'] or 0) * GIB
    if not disk:
        if not zero_disk_allowed:
            raise ZeroDiskForbidden
        return
    if int(image.get('size') or 0) > disk:
        raise FlavorDiskTooSmall(flavor=disk, image=image['size'])
    minimum = int(image.get('min_disk') or 0) * GIB
    if minimum > disk:
        raise FlavorDiskSmallerThanMinimum(flavor=disk, minimum=minimum)


def check_memory(image: Mapping[str, Any], flavor: Mapping[str, Any]) -> None:
    """The memory of a flavor (row) against what an image needs. FlavorMemoryTooSmall."""
    if flavor['memory_mb'] < int(image.get('min_ram') or 0):
        raise FlavorMemoryTooSmall


def check_on_volume(image: Mapping[str, Any], flavor: Mapping[str, Any], volume_gb: int) -> None:
    """The same of a server that boots from a volume, whose flavor's disk doesn't matter. VolumeSmallerThanMinimum."""
    check_memory(image, flavor)
    minimum = int(image.get('min_disk') or 0)
    if volume_gb < minimum:
        raise VolumeSmallerThanMinimum(volume=volume_gb * GIB, minimum=minimum * GIB)


def check_size(image: Mapping[str, Any], volume_gb: int) -> None:
    """Whether the image itself fits on a volume. VolumeTooSmall."""
    size = int(image.get('size') or 0)
    if size > volume_gb * GIB:
        raise VolumeTooSmall(volume=volume_gb * GIB, image=size)
