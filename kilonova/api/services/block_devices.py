"""Disks that a create asks for: check the block devices of the request, and build rows of block_device_mapping.

    wanted = read(request.block_devices, request.old_block_devices, flavor, limit=3, volumes=True, has_image=True)
    wanted.root_volume      # the volume that the server boots from; None if the root disk is a local disk
    wanted.image            # the image id in the block device of a local root disk; None if the id is only in imageRef
    wanted.rows(image_id)   # new rows for one server's local disks; [] if it has just the flavor's disks
    wanted.volumes          # the volumes that ``services.volumes`` looks up, creates and attaches

In this example a server may have at most 3 local disks, the cloud has a volume service, and the request has imageRef.

Local disks are the root disk, which is made from the image, and blank disks. Blank disks are ephemeral disks (size in
GiB) and swap disks (size in MiB). A request may ask for its own ephemeral or swap disks. They replace the flavor's
disks and must not be larger. A requested volume either exists already, or is created from a snapshot, from an image, or
blank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_utils import strutils, uuidutils

from kilonova.errors import Forbidden, Invalid

SWAP = 'swap'
VOLUME, SNAPSHOT, IMAGE, BLANK = 'volume', 'snapshot', 'image', 'blank'
LOCAL = 'local'
# The file systems, buses and device types that hosts support.
# The API refuses other values with error 400. Otherwise the new server would fail later, on its host.
FILE_SYSTEMS = frozenset(('ext2', 'ext3', 'ext4', 'xfs', 'vfat'))
BUSES = frozenset(('virtio', 'scsi', 'sata', 'ide', 'usb'))
DEVICE_TYPES = frozenset(('disk', 'cdrom'))
# Names of the image properties that describe block devices, and the maximum number of block devices of one image.
DEVICES, _SECOND, MOST_OF_IMAGE = 'block_device_mapping', 'bdm_v2', 64
OF_DEVICES = (DEVICES, _SECOND, 'root_device_name')
MOST_GIB = 2**31 - 1
_OF_IMAGE: dict[str, type] = {
    'source_type': str,
    'destination_type': str,
    'snapshot_id': str,
    'volume_id': str,
    'image_id': str,
    'volume_size': int,
    'boot_index': int,
    'delete_on_termination': bool,
    'guest_format': str,
    'device_type': str,
    'disk_bus': str,
    'tag': str,
    'volume_type': str,
    'no_device': bool,
}
_COPIED = ('guest_format', 'device_type', 'disk_bus', 'device_name', 'tag')
# A block device names its source by the key ``uuid`` or, in image properties, by a key that depends on the source type.
_SOURCE_IDS = {VOLUME: 'volume_id', SNAPSHOT: 'snapshot_id', IMAGE: 'image_id'}


class NoVolumeService(Invalid):
    """Error 400: the request needs a volume, and this cloud has no volume service."""

    msg_fmt = 'There is no volume service in this cloud: a server cannot have a %(wanted)s.'


class InvalidBlockDevice(Invalid):
    """Error 400: a block device of the request is not valid."""

    msg_fmt = 'Block Device Mapping is Invalid: %(reason)s'


class BadDevices(Invalid):
    """Error 400: the block devices that an image names are malformed."""

    msg_fmt = 'Image property block_device_mapping cannot be read: %(reason)s'


class BootSequence(InvalidBlockDevice):
    """Error 400: the boot indexes of the block devices are not 0, 1, 2 and so on."""

    def __init__(self) -> None:
        super().__init__(
            reason='Boot sequence for the instance and image/block device mapping combination is not valid.'
        )


class TooManyDisks(Forbidden):
    """Error 403: the server would have more disks than [compute]max_disk_devices_to_attach allows."""

    msg_fmt = 'The maximum allowed number of disk devices (%(most)d) to attach to a single instance has been exceeded.'


@dataclass(frozen=True)
class VolumeWish:
    """A volume that a request asks for, existing or new.

    ``source`` is VOLUME for an existing volume. For a new volume it is SNAPSHOT or IMAGE, or BLANK for an empty volume.
    ``source_id`` is the id of the volume, snapshot or image, and None for BLANK. ``size`` is in GiB, where None means
    the size of the source. ``device`` is the block device as the request has it.
    """

    source: str
    source_id: str | None
    size: int | None
    volume_type: str | None
    device: Mapping[str, Any]

    @property
    def is_root(self) -> bool:
        """Return whether the server boots from the volume."""
        return _boot_index(self.device) == 0

    def row(self, volume_id: str, **columns: Any) -> dict[str, Any]:
        """Return a block_device_mapping row of the volume for one server.

        ``columns`` are added to the values of the request. The device name is None, because the host chooses it.
        """
        source = {} if self.source == BLANK else {_SOURCE_IDS[self.source]: self.source_id}
        return _row(
            {'delete_on_termination': False, **self.device, 'device_name': None},
            self.source,
            VOLUME,
            **source | {'volume_id': volume_id},
            **columns,
        )


@dataclass(frozen=True)
class WantedDisks:
    """The disks that a request asks for.

    ``root`` is the request's block device for a local root disk, or None if the request has none. ``blanks`` are the
    blank local disks, in the order in which the guest gets them. ``local`` is the number of local disks, including the
    flavor's disks.
    """

    root: Mapping[str, Any] | None = None
    blanks: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[VolumeWish] = ()
    local: int = 1

    @property
    def image(self) -> str | None:
        """The id of the image that the root disk names, or None."""
        return _source_id(self.root) if self.root is not None else None

    @property
    def root_volume(self) -> VolumeWish | None:
        """The volume that the server boots from, or None if its root disk is local."""
        return next((wish for wish in self.volumes if wish.is_root), None)

    def rows(self, image_id: str) -> list[dict[str, Any]]:
        """Return the block_device_mapping rows of one server's local disks.

        Return an empty list if the server has exactly the local disks of its flavor, because these need no rows.
        """
        blanks = [_row(blank, BLANK, LOCAL, volume_size=blank['volume_size']) for blank in self.blanks]
        if self.root_volume is not None:
            return blanks
        root = self.root or {'boot_index': 0, 'delete_on_termination': True}
        if not self.blanks and not any(root.get(name) for name in _COPIED):
            return []
        return [_row(root, IMAGE, LOCAL, image_id=image_id), *blanks]


def is_volume(device: Mapping[str, Any]) -> bool:
    """Return whether a block device of a request needs the volume service."""
    return device.get('source_type') in (VOLUME, SNAPSHOT) or device.get('destination_type') == VOLUME


def read(
    devices: Sequence[Mapping[str, Any]],
    old_devices: Sequence[Mapping[str, Any]],
    flavor: Mapping[str, Any],
    limit: int,
    *,
    volumes: bool,
    has_image: bool,
) -> WantedDisks:
    """Check the block devices of a request, and return them as ``WantedDisks``.

    ``devices`` are in the syntax of block_device_mapping_v2, and ``old_devices`` in the older one. ``flavor`` is the
    flavor's row. ``limit`` is the maximum number of local disks (-1: no limit). ``volumes`` says whether there is a
    volume service. ``has_image`` says whether imageRef names an image. Raises Invalid if the block devices are not
    valid or don't fit the flavor.
    """
    if old_devices and devices:
        raise Invalid('Using different block_device_mapping syntaxes is not allowed in the same request.')
    devices = [device for device in devices or _from_old(old_devices, has_image) if not device.get('no_device')]
    for device in devices:
        _check(device, volumes)
    local = [device for device in devices if not is_volume(device)]
    wishes = [_wish(device) for device in devices if is_volume(device)]
    roots = [device for device in local if device['source_type'] == IMAGE]
    blanks = [device for device in local if device['source_type'] == BLANK]
    if has_root(blanks):
        raise BootSequence
    _check_boot_order([*roots, *blanks, *(wish.device for wish in wishes)], has_image)
    _check_volumes(wishes)
    ephemerals = [blank for blank in blanks if blank.get('guest_format') != SWAP]
    swaps = [blank for blank in blanks if blank.get('guest_format') == SWAP]
    _check_sizes(ephemerals, swaps, flavor)
    disks = local_disks(ephemerals, swaps, flavor, has_root=not any(wish.is_root for wish in wishes))
    if 0 <= limit < disks:
        raise InvalidBlockDevice(reason='You specified more local devices than the limit allows')
    sized = [{**blank, 'volume_size': _size(blank, flavor['ephemeral_gb'])} for blank in ephemerals]
    sized += [{**blank, 'volume_size': _size(blank, flavor['swap'])} for blank in swaps]
    return WantedDisks(roots[0] if roots else None, sized, wishes, disks)


def local_disks(
    ephemerals: Sequence[object], swaps: Sequence[object], flavor: Mapping[str, Any], *, has_root: bool
) -> int:
    """Return how many local disks a server will have.

    ``ephemerals`` and ``swaps`` are the requested disks. If one of the two is empty, the flavor's disks of this kind
    are counted instead. ``has_root`` says whether the root disk is local.
    """
    return has_root + (len(ephemerals) or bool(flavor['ephemeral_gb'])) + (len(swaps) or bool(flavor['swap']))


def check_count(limit: int, disks: int) -> None:
    """Raise TooManyDisks if ``disks`` is more than ``limit``.

    ``limit`` is the option [compute]max_disk_devices_to_attach, where -1 means no limit.
    """
    if 0 <= limit < disks:
        raise TooManyDisks(most=limit)


# --- block devices of images -----------------------------------------------------------------------------------------
def of_snapshot(row: Mapping[str, Any], snapshot_id: str) -> dict[str, Any]:
    """Return the block device that describes one volume's snapshot in an image that is created from a server.

    Only the image of a server that boots from a volume has block devices. ``row`` is the volume's block_device_mapping
    row, and ``snapshot_id`` is the id of the volume's snapshot.
    """
    return {
        'source_type': SNAPSHOT,
        'destination_type': VOLUME,
        'snapshot_id': snapshot_id,
        'volume_size': row['volume_size'],
        'delete_on_termination': bool(row['delete_on_termination']),
        'volume_id': None,
        'image_id': None,
        'no_device': None,
        **{name: row[name] for name in (*_COPIED, 'boot_index', 'volume_type')},
    }


def as_properties(devices: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the image properties that describe these block devices.

    The result is {'block_device_mapping': <the devices as JSON>, 'bdm_v2': 'True', 'root_device_name': <such as
    '/dev/vda', or ''>}.
    """
    return {
        DEVICES: json.dumps(devices),
        _SECOND: 'True',
        'root_device_name': next(
            (device['device_name'] for device in devices if device['boot_index'] == 0 and device['device_name']), ''
        ),
    }


def of_image(properties: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the block devices that the properties of an image describe, in the syntax of a create request.

    Return an empty list if the image describes none. Raises BadDevices if the properties are malformed.
    """
    text = properties.get(DEVICES)
    if not text:
        return []
    if not strutils.bool_from_string(properties.get(_SECOND)):
        raise BadDevices(
            reason=f'its value is in the syntax of version 1; only version 2 is supported (property {_SECOND} is true)'
        )
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadDevices(reason=f'the value is not JSON: {error}') from None
    if not isinstance(found, list) or len(found) > MOST_OF_IMAGE or not all(isinstance(each, dict) for each in found):
        raise BadDevices(reason=f'the value must be a list of at most {MOST_OF_IMAGE} block devices')
    return [_of_image(device) for device in found]


def _of_image(device: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {name: device[name] for name in _OF_IMAGE if device.get(name) is not None}
    for name, value in read.items():
        accepted = _OF_IMAGE[name]
        is_so = isinstance(value, accepted) and not (isinstance(value, bool) and accepted is not bool)
        if not is_so or len(str(value)) > 255 or (accepted is int and not -1 <= int(value) <= MOST_GIB):
            raise BadDevices(reason=f'{name} must be of type {accepted.__name__}, not {str(value)[:255]!r}')
    return read


def beside_image(
    devices: Sequence[Mapping[str, Any]], of_image: Sequence[Mapping[str, Any]], image_id: str | None
) -> list[Mapping[str, Any]]:
    """Return one list with the block devices of a create request and the block devices that its image describes.

    ``of_image`` are the image's block devices: volume snapshots, if the image was created from a server that boots from
    a volume. Such an image has no disk data, so a local disk that would be made from it (``image_id``) is left out. If
    the request names its own root disk, the image's root disk is left out.
    """
    if not of_image:
        return list(devices)
    asked = [device for device in devices if is_volume(device) or _source_id(device) != image_id]
    other_root = has_root(asked)
    return [*(device for device in of_image if not (other_root and _boot_index(device) == 0)), *asked]


def has_root(devices: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the block devices contain the root disk: a block device with boot index 0.

    A root disk that is only named by imageRef has no block device.
    """
    return any(_boot_index(device) == 0 for device in devices)


# --- conversion of one block device ----------------------------------------------------------------------------------
def _from_old(devices: Iterable[Mapping[str, Any]], has_image: bool) -> list[dict[str, Any]]:
    """Convert block devices from the older syntax to the newer one.

    In the older syntax, swap and ephemeral disks are named 'swap' and 'ephemeralN' in ``virtual_name``, and all other
    block devices are volumes. The older syntax has no boot_index. If ``has_image`` is false, the server boots from the
    first volume.
    """
    found = [_one_from_old(device) for device in devices]
    if not has_image:
        for device in found:
            if is_volume(device) and not device.get('no_device'):
                device['boot_index'] = 0
                break
    return found


def _one_from_old(device: Mapping[str, Any]) -> dict[str, Any]:
    name = device.get('virtual_name') or ''
    if device.get('no_device') or not (name == SWAP or name.startswith('ephemeral')):
        return {**device, 'source_type': SNAPSHOT if device.get('snapshot_id') else VOLUME}
    found = {key: device[key] for key in ('device_name', 'volume_size', 'delete_on_termination') if key in device}
    return {
        **found,
        'source_type': BLANK,
        'destination_type': LOCAL,
        'boot_index': -1,
        'guest_format': SWAP if name == SWAP else None,
    }


def _check(device: Mapping[str, Any], volumes: bool) -> None:
    source, destination = device.get('source_type'), device.get('destination_type')
    if is_volume(device):
        wanted = f'block device from {source} on {destination or VOLUME}'
        if not volumes:
            raise NoVolumeService(wanted=wanted)
    if source is None:
        raise InvalidBlockDevice(reason='Invalid source_type field.')
    source_id = _source_id(device)
    if source == BLANK:
        if source_id:
            raise InvalidBlockDevice(reason='Invalid device UUID.')
    elif not source_id:
        raise InvalidBlockDevice(reason='Missing device UUID.')
    elif destination == LOCAL and is_volume(device):
        raise InvalidBlockDevice(reason=f'Mapping {source} to local is not supported.')
    elif not is_volume(device) and _boot_index(device) != 0:
        raise InvalidBlockDevice(reason='Mapping image to local is not supported.')
    _check_hardware(device, source)


def _check_hardware(device: Mapping[str, Any], source: str) -> None:
    """Raise InvalidBlockDevice if the block device has a bus, device type or file system that no host supports.

    ``source`` is the source type of the block device, such as IMAGE.
    """
    kind = 'volume' if is_volume(device) else 'local disk'
    for name, known in (('disk_bus', BUSES), ('device_type', DEVICE_TYPES)):
        if device.get(name) and device[name] not in known:
            raise InvalidBlockDevice(reason=f"{name} '{device[name]}' is not supported for a {kind}.")
    asked = device.get('guest_format')
    if asked and (is_volume(device) or source == IMAGE or asked not in FILE_SYSTEMS | {SWAP}):
        raise InvalidBlockDevice(reason=f"guest_format '{asked}' is not supported for this disk.")


def _source_id(device: Mapping[str, Any]) -> str | None:
    return device.get('uuid') or device.get(_SOURCE_IDS.get(device['source_type'], 'image_id'))


def _boot_index(device: Mapping[str, Any]) -> int | None:
    """Return the boot index of a block device, or None if the server can't boot from it."""
    index = device.get('boot_index')
    return None if index is None or int(index) < 0 else int(index)


def _size(blank: Mapping[str, Any], default: int | None) -> int:
    return int(blank.get('volume_size') or default or 0)


def _wish(device: Mapping[str, Any]) -> VolumeWish:
    """Return the volume that a checked block device asks for. Raises Invalid if a new volume has no size."""
    source, size = device['source_type'], _size(device, None)
    if not size and source == IMAGE:
        raise Invalid("Images with destination_type 'volume' need to have a non-zero size specified")
    if not size and source == BLANK:
        raise Invalid("Blank volumes (source: 'blank', dest: 'volume') need to have non-zero size")
    return VolumeWish(source, _source_id(device), size or None, device.get('volume_type') or None, device)


def _row(device: Mapping[str, Any], source: str, destination: str, **more: Any) -> dict[str, Any]:
    """Return a new block_device_mapping row for the block device ``device`` of a request.

    ``source`` is the source type and ``destination`` the destination type of the row. ``more`` are values of further
    columns. Every row has the same columns, because one INSERT statement writes the rows of all disks and servers.
    """
    index = device.get('boot_index')
    return {
        'uuid': uuidutils.generate_uuid(),
        'source_type': source,
        'destination_type': destination,
        'image_id': None,
        'snapshot_id': None,
        'volume_id': None,
        'volume_type': None,
        'volume_size': None,
        'connection_info': None,
        'boot_index': None if index is None else int(index),
        'no_device': False,
        'delete_on_termination': strutils.bool_from_string(device.get('delete_on_termination', True)),
        **{name: device.get(name) or None for name in _COPIED},
        **more,
    }


# --- checks of all block devices -------------------------------------------------------------------------------------
def _check_boot_order(devices: Iterable[Mapping[str, Any]], has_image: bool) -> None:
    """Raise BootSequence if the boot indexes are not 0, 1, 2 and so on.

    If no block device has boot index 0 and ``has_image`` is true, the image of imageRef counts as the disk with boot
    index 0.
    """
    found = sorted(index for index in map(_boot_index, devices) if index is not None)
    if has_image and found[:1] != [0]:
        found = [0, *found]
    if not found or found != list(range(len(found))):
        raise BootSequence


def _check_volumes(wishes: Sequence[VolumeWish]) -> None:
    """Raise InvalidBlockDevice if a volume is named twice."""
    named = [(wish.source_id or '').lower() for wish in wishes if wish.source == VOLUME]
    for volume_id in named:
        if named.count(volume_id) > 1:
            raise InvalidBlockDevice(reason=f'volume {volume_id} is named more than once.')


def _check_sizes(
    ephemerals: Sequence[Mapping[str, Any]], swaps: Sequence[Mapping[str, Any]], flavor: Mapping[str, Any]
) -> None:
    room = flavor['ephemeral_gb'] or 0
    # An ephemeral disk without a size gets the flavor's ephemeral size. If the flavor has none, the disk is refused.
    if ephemerals and (not room or sum(_size(blank, room) for blank in ephemerals) > room):
        raise InvalidBlockDevice(
            reason='Ephemeral disks requested are larger than the instance type allows. If no '
            'size is given in one block device mapping, flavor ephemeral size will be '
            'used.'
        )
    if len(swaps) > 1:
        raise InvalidBlockDevice(reason='More than one swap drive requested.')
    if swaps and (not flavor['swap'] or _size(swaps[0], flavor['swap']) > flavor['swap']):
        raise InvalidBlockDevice(reason='Swap drive requested is larger than instance type allows.')
