"""Images of servers: look them up with the user's token, and check them against the flavor or the volume.

The functions return and expect an image as a dict of its fields, such as ``id`` and ``min_disk``. The key
``properties`` is a dict of the image's other properties.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from oslo_utils import strutils, uuidutils

from kilonova.api.services import block_devices, unsupported
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.errors import Forbidden, ImageNotFound, Invalid
from kilonova.objects import ImageMeta
from kilonova.objects.image_meta import SYSMETA_PREFIX, check_texts

_MEMBERS = (
    'id',
    'name',
    'status',
    'visibility',
    'protected',
    'checksum',
    'owner',
    'size',
    'container_format',
    'disk_format',
    'created_at',
    'updated_at',
    'tags',
    'min_ram',
    'min_disk',
)
# Members of the image service's record that are not properties of the image.
_OTHERS = frozenset(
    (
        'file',
        'schema',
        'self',
        'locations',
        'direct_url',
        'virtual_size',
        'os_hash_algo',
        'os_hash_value',
        'os_hidden',
        'stores',
        'owner_specified',
    )
)
# Names that an image property can't have, because they are members of the image service's record.
NO_PROPERTIES = frozenset((*_MEMBERS, *_OTHERS))
GIB = 2**30
_SIZE = re.compile(r'[0-9]{1,9}')
# The values of kernel_id and ramdisk_id that mean "none".
_NO_KERNEL = ('', 'none', 'nokernel')


class ImageRefInvalid(Invalid):
    """Error 400: the image does not exist, or the user can't see it."""

    msg_fmt = 'Can not find requested image'


class NoDisk(Invalid):
    """Error 400: the image has no disk data. It only names volume snapshots."""

    msg_fmt = 'Image %(image_id)s has no data: it only names volume snapshots, from which new servers can be created.'


class FlavorMemoryTooSmall(Invalid):
    """Error 400: the image needs more memory than the flavor has."""

    msg_fmt = "Flavor's memory is too small for requested image."


class FlavorDiskTooSmall(Invalid):
    """Error 400: the image is larger than the flavor's root disk."""

    msg_fmt = (
        "Flavor's disk is too small for requested image. Flavor disk is %(flavor)s bytes, image is %(image)s bytes."
    )


class FlavorDiskSmallerThanMinimum(Invalid):
    """Error 400: the flavor's root disk is smaller than the image's min_disk."""

    msg_fmt = (
        'Flavor disk is smaller than the minimum size specified in image metadata. Flavor disk is %(flavor)s '
        'bytes, minimum size is %(minimum)s bytes.'
    )


class VolumeSmallerThanMinimum(Invalid):
    """Error 400: the root volume is smaller than the image's min_disk."""

    msg_fmt = (
        'Volume is smaller than the minimum size specified in image metadata. Volume size is %(volume)s bytes, '
        'minimum size is %(minimum)s bytes.'
    )


class VolumeTooSmall(Invalid):
    """Error 400: the image is larger than the volume."""

    msg_fmt = 'Volume is too small for requested image. Volume is %(volume)s bytes, image is %(image)s bytes.'


class ZeroDiskForbidden(Forbidden):
    """Error 403: the user may not boot an image on a flavor without a root disk."""

    msg_fmt = 'Only volume-backed servers are allowed for flavors with zero disk.'


class KernelUnusable(Invalid):
    """Error 400: the kernel or ramdisk that an image names can't be used."""

    msg_fmt = 'Image property %(name)s: %(reason)s'


class DiskConfigDisabled(Invalid):
    """Error 400: diskConfig AUTO is requested, and the image disables it."""

    msg_fmt = 'Requested image %(image_id)s has automatic disk resize disabled.'


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """Convert an image record of the image service's v2 API to the dict that this module uses.

    The dict has the standard fields of images, such as ``id`` and ``min_disk``. Its key ``properties`` is a dict of all
    other properties.
    """
    image = {name: record.get(name) for name in _MEMBERS}
    image['size'] = image['size'] or 0
    image['min_ram'], image['min_disk'] = image['min_ram'] or 0, image['min_disk'] or 0
    image['is_public'], image['deleted'] = image['visibility'] == 'public', False
    image['properties'] = {
        name: value
        for name, value in record.items()
        if name not in _OTHERS and name not in image and isinstance(value, (str, int, bool))
    }
    return image


def find(backend: Backend, ctxt: RequestContext, image_id: str) -> dict[str, Any]:
    """Return the image as a dict of its fields and ``properties``. The image is read with the user's token.

    Raises:
        ImageRefInvalid: The image does not exist, or the user can't see it.
        NoDisk: The image has no disk data. It only names volume snapshots.
        Invalid: The image is not active, or its properties are malformed or not supported.
    """
    image, devices = find_with_devices(backend, ctxt, image_id)
    if devices:
        raise NoDisk(image_id=image_id)
    return image


def find_with_devices(
    backend: Backend, ctxt: RequestContext, image_id: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a tuple of the image (a dict of its fields and ``properties``) and the block devices that it describes.

    An image describes block devices if it was created from a server that boots from a volume. For all other images
    the list is empty. Raises ImageRefInvalid if the user can't see the image, and Invalid if the image is not active,
    or if its properties are malformed or not supported.
    """
    try:
        image = plain(backend.images.get(image_id, ctxt))
    except ImageNotFound:
        raise ImageRefInvalid from None
    if image['status'] != 'active':
        raise Invalid(f'Image {image_id} is not active.')
    devices = block_devices.of_image(image['properties'])
    image['properties'] = {
        name: value
        for name, value in image['properties'].items()
        if not devices or name not in block_devices.OF_DEVICES
    }
    return _checked(image), devices


def _checked(image: dict[str, Any]) -> dict[str, Any]:
    # Refuse properties that are malformed, or that would have no effect, before a host is involved.
    unsupported.check_image(image['properties'])
    check_texts(image['properties'])
    ImageMeta.from_dict(image)
    return image


def of_volume(kept: Mapping[str, str]) -> dict[str, Any]:
    """Return the image that a volume was made from, as a dict of its fields and ``properties``, but without an id.

    ``kept`` is the volume's volume_image_metadata: a copy of the image's fields and properties, which Cinder stores. It
    is empty if the volume was not made from an image. Raises Invalid if a server can't boot from this image.
    """
    sizes = {}
    for name in ('min_ram', 'min_disk'):
        text = kept.get(name) or '0'
        if not _SIZE.fullmatch(text):
            raise Invalid(f"The volume was made from an image with {name} '{text[:255]}', which is not a number.")
        sizes[name] = int(text)
    properties = {name: value for name, value in kept.items() if name not in _MEMBERS and name not in _OTHERS}
    return _checked({**dict.fromkeys(_MEMBERS), 'status': 'active', 'size': 0, **sizes, 'properties': properties})


class Kernels(NamedTuple):
    """The image ids of the kernel and the ramdisk with which a server starts, instead of its disk's boot loader.

    An id is '' if the server has no kernel image or no ramdisk image.
    """

    kernel: str = ''
    ramdisk: str = ''


def find_kernels(backend: Backend, ctxt: RequestContext, image: dict[str, Any], memory_mb: int) -> Kernels:
    """Return the ids of the kernel and ramdisk images that the properties kernel_id and ramdisk_id of an image name.

    ``memory_mb`` is the memory of the flavor in MiB. Raises KernelUnusable if one of the two images can't be found or
    is not active, if both together are larger than the memory, or if the image has the property ramdisk_id or
    os_command_line, but no kernel_id.
    """
    properties = image['properties']
    found = Kernels(
        *(
            '' if str(properties.get(name, '')).lower() in _NO_KERNEL else str(properties[name])
            for name in ('kernel_id', 'ramdisk_id')
        )
    )
    if not found.kernel:
        for name, value in (('ramdisk_id', found.ramdisk), ('os_command_line', properties.get('os_command_line'))):
            if value:
                raise KernelUnusable(name=name, reason='the property cannot be used without kernel_id.')
    size = 0
    for name, image_id in zip(('kernel_id', 'ramdisk_id'), found, strict=True):
        if image_id:
            size += _kernel_size(backend, ctxt, name, image_id)
            if size > memory_mb << 20:
                raise KernelUnusable(
                    name=name, reason=f'{image_id} names an image that is too large for the memory of the flavor.'
                )
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
    """Return the server's stored copy of its image, as a dict of the image's fields and ``properties``.

    The copy is read from the server's system metadata. ``image_ref`` is the id of the image.
    """
    return ImageMeta.from_system_metadata(system_metadata_of_server, image_ref or None).to_dict()


def disk_config(properties: Mapping[str, Any], image_id: str | None, wanted: str | None) -> bool:
    """Return whether the diskConfig of a server that is created or rebuilt is AUTO.

    ``properties`` are the properties of its image. ``wanted`` is 'AUTO' or 'MANUAL'. If ``wanted`` is None, the image
    property ``auto_disk_config`` decides. Raises DiskConfigDisabled if AUTO is wanted and this property is 'Disabled'.
    """
    said = str(properties.get('auto_disk_config', properties.get('hw_auto_disk_config', '')))
    if wanted is None:
        return strutils.bool_from_string(said)
    if wanted == 'AUTO' and said.strip().lower() == 'disabled':
        raise DiskConfigDisabled(image_id=image_id or '')
    return wanted == 'AUTO'


def disk_config_of_server(kept: Mapping[str, Any], image_id: str | None, wanted: str | None) -> bool:
    """Return whether the diskConfig of an existing server is AUTO.

    ``kept`` is the server's system metadata, which has a copy of the image's properties. If ``wanted`` is None, the
    image property ``auto_disk_config`` decides. Raises DiskConfigDisabled if AUTO is wanted and this property is
    'Disabled'.
    """
    return disk_config(
        {name.removeprefix(SYSMETA_PREFIX): value for name, value in kept.items() if name.startswith(SYSMETA_PREFIX)},
        image_id,
        wanted,
    )


def check_fits(image: dict[str, Any], flavor: dict[str, Any], zero_disk_allowed: bool) -> None:
    """Check that a flavor has enough memory and root disk for an image.

    ``flavor`` is the flavor's row.

    Raises:
        FlavorMemoryTooSmall: The flavor has less memory than the image's min_ram.
        ZeroDiskForbidden: The flavor has no root disk, and ``zero_disk_allowed`` is false.
        FlavorDiskTooSmall: The image is larger than the flavor's root disk.
        FlavorDiskSmallerThanMinimum: The flavor's root disk is smaller than the image's min_disk.
    """
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
    """Raise FlavorMemoryTooSmall if the flavor's row has less memory than the image's min_ram."""
    if flavor['memory_mb'] < int(image.get('min_ram') or 0):
        raise FlavorMemoryTooSmall


def check_on_volume(image: Mapping[str, Any], flavor: Mapping[str, Any], volume_gb: int) -> None:
    """Check the image of a root volume of ``volume_gb`` GiB against the flavor's memory and the volume's size.

    The size of the flavor's root disk is not checked. Raises FlavorMemoryTooSmall if the flavor has less memory than
    the image's min_ram, and VolumeSmallerThanMinimum if the volume is smaller than the image's min_disk.
    """
    check_memory(image, flavor)
    minimum = int(image.get('min_disk') or 0)
    if volume_gb < minimum:
        raise VolumeSmallerThanMinimum(volume=volume_gb * GIB, minimum=minimum * GIB)


def check_size(image: Mapping[str, Any], volume_gb: int) -> None:
    """Raise VolumeTooSmall if the image is larger than ``volume_gb`` GiB."""
    size = int(image.get('size') or 0)
    if size > volume_gb * GIB:
        raise VolumeTooSmall(volume=volume_gb * GIB, image=size)
