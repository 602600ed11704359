"""The disks that a create asks for, checked and as rows of ``block_device_mapping``.

    wanted = read(request.block_devices, request.old_block_devices, flavor, limit=3, volumes=True, has_image=True)
    wanted.root_volume      # the one that is booted from; None: the root disk is made of an image
    wanted.image            # the image that the root disk names, None: imageRef does
    wanted.rows(image_id)   # fresh rows for one server; none where flavor and image say everything
    wanted.volumes          # those that ``services.volumes`` looks up, makes and adds

Local disks: the root disk from the image, blank ones (ephemeral in GiB, swap in MiB). Who asks for an ephemeral or swap
disk gets those asked for instead of the flavor's, and no more than the flavor has. Volumes are there already, or are
made of a snapshot, of an image, or blank.
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
# What the programs of a host make; anything else would fail there.
FILE_SYSTEMS = frozenset(('ext2', 'ext3', 'ext4', 'xfs', 'vfat'))
BUSES = frozenset(('virtio', 'scsi', 'sata', 'ide', 'usb'))
DEVICE_TYPES = frozenset(('disk', 'cdrom'))
# Properties of an image that names block devices, and how many it may name.
DEVICES, _SECOND, MOST_OF_IMAGE = 'block_device_mapping', 'bdm_v2', 64
OF_DEVICES = (DEVICES, _SECOND, 'root_device_name')
MOST_GIB = 2 ** 31 - 1
_OF_IMAGE: dict[str, type] = {
    'source_type': str, 'destination_type': str, 'snapshot_id': str, 'volume_id': str, 'image_id': str,
    'volume_size': int, 'boot_index': int, 'delete_on_termination': bool, 'guest_format': str, 'device_type': str,
    'disk_bus': str, 'tag': str, 'volume_type': str, 'no_device': bool}
_COPIED = ('guest_format', 'device_type', 'disk_bus', 'device_name', 'tag')
# The member that names what a volume is made of, besides uuid.
_SOURCE_IDS = {VOLUME: 'volume_id', SNAPSHOT: 'snapshot_id', IMAGE: 'image_id'}


class NoVolumeService(Invalid):
    msg_fmt = 'There is no volume service in this cloud: a server cannot have a %(wanted)s.'


class InvalidBlockDevice(Invalid):
    msg_fmt = 'Block Device Mapping is Invalid: %(reason)s'


class BadDevices(Invalid):
    msg_fmt = 'Image property block_device_mapping can not be read: %(reason)s'


class BootSequence(InvalidBlockDevice):
    def __init__(self) -> None:
        super().__init__(reason='Boot sequence for the instance and image/block device mapping combination is not '
                                'valid.')


class TooManyDisks(Forbidden):
    msg_fmt = ('The maximum allowed number of disk devices (%(most)d) to attach to a single instance has been '
               'exceeded.')


@dataclass(frozen=True)
class VolumeWish:
    """A volume that a server is to have. ``source``: VOLUME, or what it is made of; ``source_id``: of that, None where
    it is BLANK; ``size``: GiB, None: the source's; ``device``: as it was asked for."""

    source: str
    source_id: str | None
    size: int | None
    volume_type: str | None
    device: Mapping[str, Any]

    @property
    def is_root(self) -> bool:
        """Whether the server boots from it."""
        return _boot_index(self.device) == 0

    def row(self, volume_id: str, **columns: Any) -> dict[str, Any]:
        """Columns for one server, of this volume: these, and what was asked for. Its host gives it a name."""
        source = {} if self.source == BLANK else {_SOURCE_IDS[self.source]: self.source_id}
        return _row({'delete_on_termination': False, **self.device, 'device_name': None}, self.source, VOLUME,
                    **source | {'volume_id': volume_id}, **columns)


@dataclass(frozen=True)
class Wanted:
    """``root``: what is said about the root disk, None if nothing. ``blanks``: in the order of the guest's disks.
    ``local``: how many disks that aren't volumes it has."""

    root: Mapping[str, Any] | None = None
    blanks: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[VolumeWish] = ()
    local: int = 1

    @property
    def image(self) -> str | None:
        """The id of the image that the root disk names."""
        return _source_id(self.root) if self.root is not None else None

    @property
    def root_volume(self) -> VolumeWish | None:
        """The one that the server boots from; None: its root disk is local."""
        return next((wish for wish in self.volumes if wish.is_root), None)

    def rows(self, image_id: str) -> list[dict[str, Any]]:
        """Columns of one server's local disks. Nobody would read rows that say no more than the flavor does: there are
        none then."""
        blanks = [_row(blank, BLANK, LOCAL, volume_size=blank['volume_size']) for blank in self.blanks]
        if self.root_volume is not None:
            return blanks
        root = self.root or {'boot_index': 0, 'delete_on_termination': True}
        if not self.blanks and not any(root.get(name) for name in _COPIED):
            return []
        return [_row(root, IMAGE, LOCAL, image_id=image_id), *blanks]


def is_volume(device: Mapping[str, Any]) -> bool:
    """Whether a block device needs a volume service."""
    return device.get('source_type') in (VOLUME, SNAPSHOT) or device.get('destination_type') == VOLUME


def read(devices: Sequence[Mapping[str, Any]], old_devices: Sequence[Mapping[str, Any]], flavor: Mapping[str, Any],
         limit: int, *, volumes: bool, has_image: bool) -> Wanted:
    """``flavor``: its row. ``limit``: local disks that a server may have, -1 any. ``volumes``: whether there is a
    volume service. ``has_image``: whether imageRef names an image. Raises Invalid."""
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
    return Wanted(roots[0] if roots else None, sized, wishes, disks)


def local_disks(ephemerals: Sequence[object], swaps: Sequence[object], flavor: Mapping[str, Any], *,
                has_root: bool) -> int:
    """How many a server has of which these were asked for; ``has_root``: its root disk is one of them."""
    return has_root + (len(ephemerals) or bool(flavor['ephemeral_gb'])) + (len(swaps) or bool(flavor['swap']))


def check_count(limit: int, disks: int) -> None:
    """TooManyDisks: more than [compute]max_disk_devices_to_attach (``limit``, -1 any)."""
    if 0 <= limit < disks:
        raise TooManyDisks(most=limit)


# --- those of images -------------------------------------------------------------------------------------------------
def of_snapshot(row: Mapping[str, Any], snapshot_id: str) -> dict[str, Any]:
    """What an image says of a volume of a server (``row``), of which this snapshot was made."""
    return {'source_type': SNAPSHOT, 'destination_type': VOLUME, 'snapshot_id': snapshot_id,
            'volume_size': row['volume_size'], 'delete_on_termination': bool(row['delete_on_termination']),
            'volume_id': None, 'image_id': None, 'no_device': None,
            **{name: row[name] for name in (*_COPIED, 'boot_index', 'volume_type')}}


def as_properties(devices: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Properties of an image that has these."""
    return {DEVICES: json.dumps(devices), _SECOND: 'True', 'root_device_name': next(
        (device['device_name'] for device in devices if device['boot_index'] == 0 and device['device_name']), '')}


def of_image(properties: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Block devices that an image names (``as_properties``), in the form of a create's. BadDevices."""
    text = properties.get(DEVICES)
    if not text:
        return []
    if not strutils.bool_from_string(properties.get(_SECOND)):
        raise BadDevices(reason=f'it is of the first syntax, without {_SECOND}')
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadDevices(reason=f'it is no JSON: {error}') from None
    if not isinstance(found, list) or len(found) > MOST_OF_IMAGE or not all(isinstance(each, dict) for each in found):
        raise BadDevices(reason=f'it must be a list of at most {MOST_OF_IMAGE} block devices')
    return [_of_image(device) for device in found]


def _of_image(device: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {name: device[name] for name in _OF_IMAGE if device.get(name) is not None}
    for name, value in read.items():
        accepted = _OF_IMAGE[name]
        is_so = isinstance(value, accepted) and not (isinstance(value, bool) and accepted is not bool)
        if not is_so or len(str(value)) > 255 or (accepted is int and not -1 <= int(value) <= MOST_GIB):
            raise BadDevices(reason=f'{name} must be of type {accepted.__name__}, not {str(value)[:255]!r}')
    return read


def beside_image(devices: Sequence[Mapping[str, Any]], of_image: Sequence[Mapping[str, Any]],
                 image_id: str | None) -> list[Mapping[str, Any]]:
    """A create's block devices and those that its image names: who creates the server may name another root disk. What
    clients say of the image's own disk means nothing where it has none."""
    if not of_image:
        return list(devices)
    asked = [device for device in devices if is_volume(device) or _source_id(device) != image_id]
    other_root = has_root(asked)
    return [*(device for device in of_image if not (other_root and _boot_index(device) == 0)), *asked]


def has_root(devices: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of them is booted from."""
    return any(_boot_index(device) == 0 for device in devices)


# --- one device ------------------------------------------------------------------------------------------------------
def _from_old(devices: Iterable[Mapping[str, Any]], has_image: bool) -> list[dict[str, Any]]:
    """The first syntax: local disks are 'swap' and 'ephemeralN', the rest are volumes. It knows no boot_index: without
    an image the first volume is booted from."""
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
    return {**found, 'source_type': BLANK, 'destination_type': LOCAL, 'boot_index': -1,
            'guest_format': SWAP if name == SWAP else None}


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
    """What no host could make."""
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
    """None: it isn't booted from."""
    index = device.get('boot_index')
    return None if index is None or int(index) < 0 else int(index)


def _size(blank: Mapping[str, Any], default: int | None) -> int:
    return int(blank.get('volume_size') or default or 0)


def _wish(device: Mapping[str, Any]) -> VolumeWish:
    """Of a device that was checked."""
    source, size = device['source_type'], _size(device, None)
    if not size and source == IMAGE:
        raise Invalid("Images with destination_type 'volume' need to have a non-zero size specified")
    if not size and source == BLANK:
        raise Invalid("Blank volumes (source: 'blank', dest: 'volume') need to have non-zero size")
    return VolumeWish(source, _source_id(device), size or None, device.get('volume_type') or None, device)


def _row(device: Mapping[str, Any], source: str, destination: str, **more: Any) -> dict[str, Any]:
    """Every row has every column: they are inserted together."""
    index = device.get('boot_index')
    return {'uuid': uuidutils.generate_uuid(), 'source_type': source, 'destination_type': destination,
            'image_id': None, 'snapshot_id': None, 'volume_id': None, 'volume_type': None, 'volume_size': None,
            'connection_info': None, 'boot_index': None if index is None else int(index), 'no_device': False,
            'delete_on_termination': strutils.bool_from_string(device.get('delete_on_termination', True)),
            **{name: device.get(name) or None for name in _COPIED}, **more}


# --- all of them -----------------------------------------------------------------------------------------------------
def _check_boot_order(devices: Iterable[Mapping[str, Any]], has_image: bool) -> None:
    """0, 1, 2 …; 0 is the image of imageRef where no device has it."""
    found = sorted(index for index in map(_boot_index, devices) if index is not None)
    if has_image and found[:1] != [0]:
        found = [0, *found]
    if not found or found != list(range(len(found))):
        raise BootSequence


def _check_volumes(wishes: Sequence[VolumeWish]) -> None:
    """A server has a volume once."""
    named = [(wish.source_id or '').lower() for wish in wishes if wish.source == VOLUME]
    for volume_id in named:
        if named.count(volume_id) > 1:
            raise InvalidBlockDevice(reason=f'volume {volume_id} is named more than once.')


def _check_sizes(ephemerals: Sequence[Mapping[str, Any]], swaps: Sequence[Mapping[str, Any]],
                 flavor: Mapping[str, Any]) -> None:
    room = flavor['ephemeral_gb'] or 0
    # One of no size, on a flavor that has none, would be nothing.
    if ephemerals and (not room or sum(_size(blank, room) for blank in ephemerals) > room):
        raise InvalidBlockDevice(reason='Ephemeral disks requested are larger than the instance type allows. If no '
                                        'size is given in one block device mapping, flavor ephemeral size will be '
                                        'used.')
    if len(swaps) > 1:
        raise InvalidBlockDevice(reason='More than one swap drive requested.')
    if swaps and (not flavor['swap'] or _size(swaps[0], flavor['swap']) > flavor['swap']):
        raise InvalidBlockDevice(reason='Swap drive requested is larger than instance type allows.')
