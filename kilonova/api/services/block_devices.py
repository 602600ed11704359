"""The disks that a create asks for, checked and as rows of ``block_device_mapping``.

    wanted = read(request.block_devices, request.old_block_devices, flavor, limit=3, volumes=True)
    wanted.image            # the image that the root disk names, None: imageRef does
    wanted.rows(image_id)   # fresh rows for one server; none where flavor and image say everything
    wanted.volumes          # those that ``services.volumes`` looks up, makes and adds

Local disks: the root disk from the image, blank ones (ephemeral in GiB, swap in MiB). Who asks for an ephemeral or swap
disk gets those asked for instead of the flavor's, and no more than the flavor has. Volumes are there already, or are
made of a snapshot, of an image, or blank.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_COPIED = ('guest_format', 'device_type', 'disk_bus', 'device_name', 'tag')
# The member that names what a volume is made of, besides uuid.
_SOURCE_IDS = {VOLUME: 'volume_id', SNAPSHOT: 'snapshot_id', IMAGE: 'image_id'}


class NoVolumeService(Invalid):
    msg_fmt = 'There is no volume service in this cloud: a server cannot have a %(wanted)s.'


class InvalidBlockDevice(Invalid):
    msg_fmt = 'Block Device Mapping is Invalid: %(reason)s'


class BootSequence(InvalidBlockDevice):
    def __init__(self) -> None:
        super().__init__(reason='Boot sequence for the instance and image/block device mapping combination is not '
                                'valid.')


class BootFromVolume(Invalid):
    msg_fmt = ('In this cloud booting from a volume is not served yet: the root disk is made of imageRef, not of a '
               '%(wanted)s.')


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

    def rows(self, image_id: str) -> list[dict[str, Any]]:
        """Columns for one server. Nobody would read rows that say no more than the flavor does: there are none then."""
        root = self.root or {'boot_index': 0, 'delete_on_termination': True}
        if not self.blanks and not any(root.get(name) for name in _COPIED):
            return []
        found = [_row(root, IMAGE, LOCAL, image_id=image_id)]
        return found + [_row(blank, BLANK, LOCAL, volume_size=blank['volume_size']) for blank in self.blanks]


def is_volume(device: Mapping[str, Any]) -> bool:
    """Whether a block device needs a volume service."""
    return device.get('source_type') in (VOLUME, SNAPSHOT) or device.get('destination_type') == VOLUME


def read(devices: Sequence[Mapping[str, Any]], old_devices: Sequence[Mapping[str, Any]], flavor: Mapping[str, Any],
         limit: int, *, volumes: bool) -> Wanted:
    """``flavor``: its row. ``limit``: local disks that a server may have, -1 any. ``volumes``: whether there is a
    volume service. Raises Invalid."""
    if old_devices and devices:
        raise Invalid('Using different block_device_mapping syntaxes is not allowed in the same request.')
    devices = [device for device in devices or map(_from_old, old_devices) if not device.get('no_device')]
    for device in devices:
        _check(device, volumes)
    local = [device for device in devices if not is_volume(device)]
    wishes = [_wish(device) for device in devices if is_volume(device)]
    roots = [device for device in local if device['source_type'] == IMAGE]
    blanks = [device for device in local if device['source_type'] == BLANK]
    _check_boot_order(roots, [*blanks, *(wish.device for wish in wishes)])
    _check_volumes(wishes)
    ephemerals = [blank for blank in blanks if blank.get('guest_format') != SWAP]
    swaps = [blank for blank in blanks if blank.get('guest_format') == SWAP]
    _check_sizes(ephemerals, swaps, flavor)
    disks = local_disks(ephemerals, swaps, flavor)
    if 0 <= limit < disks:
        raise InvalidBlockDevice(reason='You specified more local devices than the limit allows')
    sized = [{**blank, 'volume_size': _size(blank, flavor['ephemeral_gb'])} for blank in ephemerals]
    sized += [{**blank, 'volume_size': _size(blank, flavor['swap'])} for blank in swaps]
    return Wanted(roots[0] if roots else None, sized, wishes, disks)


def local_disks(ephemerals: Sequence[object], swaps: Sequence[object], flavor: Mapping[str, Any]) -> int:
    """How many a server has of which these were asked for."""
    return 1 + (len(ephemerals) or bool(flavor['ephemeral_gb'])) + (len(swaps) or bool(flavor['swap']))


def check_count(limit: int, disks: int) -> None:
    """TooManyDisks: more than [compute]max_disk_devices_to_attach (``limit``, -1 any)."""
    if 0 <= limit < disks:
        raise TooManyDisks(most=limit)


# --- one device ------------------------------------------------------------------------------------------------------
def _from_old(device: Mapping[str, Any]) -> dict[str, Any]:
    """The first syntax: local disks are 'swap' and 'ephemeralN', the rest are volumes."""
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
        if _boot_index(device) == 0:
            raise BootFromVolume(wanted=wanted)
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
def _check_boot_order(roots: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> None:
    """0, 1, 2 …, and 0 is the image's."""
    found = [index for index in map(_boot_index, [*roots, *others]) if index is not None]
    if sorted([*found, *([] if roots else [0])]) != list(range(len(found) + (not roots))):
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
