"""The disks that a create asks for, checked and as rows of ``block_device_mapping``.

    wanted = read(request.block_devices, request.old_block_devices, flavor, limit=3)
    wanted.image            # the image that the root disk names, None: imageRef does
    wanted.rows()           # fresh rows for one server; none where flavor and image say everything

Local disks only: the root disk from the image, blank ones (ephemeral in GiB, swap in MiB). Who asks for an ephemeral or
swap disk gets those asked for instead of the flavor's, and no more than the flavor has.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_utils import strutils, uuidutils

from kilonova.errors import Invalid

SWAP = 'swap'
# What the programs of a host make; anything else would fail there.
FILE_SYSTEMS = frozenset(('ext2', 'ext3', 'ext4', 'xfs', 'vfat'))
BUSES = frozenset(('virtio', 'scsi', 'sata', 'ide', 'usb'))
DEVICE_TYPES = frozenset(('disk', 'cdrom'))
_COPIED = ('guest_format', 'device_type', 'disk_bus', 'device_name', 'tag')


class NoVolumeService(Invalid):
    msg_fmt = 'There is no volume service in this cloud: a server cannot have a %(wanted)s.'


class InvalidBlockDevice(Invalid):
    msg_fmt = 'Block Device Mapping is Invalid: %(reason)s'


class BootSequence(InvalidBlockDevice):
    def __init__(self) -> None:
        super().__init__(reason='Boot sequence for the instance and image/block device mapping combination is not '
                                'valid.')


@dataclass(frozen=True)
class Wanted:
    """``root``: what is said about the root disk, None if nothing. ``blanks``: in the order of the guest's disks."""

    root: Mapping[str, Any] | None = None
    blanks: Sequence[Mapping[str, Any]] = ()

    @property
    def image(self) -> str | None:
        """The id of the image that the root disk names."""
        return _image_of(self.root) if self.root is not None else None

    def rows(self, image_id: str) -> list[dict[str, Any]]:
        """Columns for one server. Nobody would read rows that say no more than the flavor does: there are none then."""
        root = self.root or {'boot_index': 0, 'delete_on_termination': True}
        if not self.blanks and not any(root.get(name) for name in _COPIED):
            return []
        found = [_row(root, 'image', image_id=image_id)]
        return found + [_row(blank, 'blank') for blank in self.blanks]


def is_volume(device: Mapping[str, Any]) -> bool:
    """Whether a block device needs a volume service."""
    return device.get('source_type') in ('volume', 'snapshot') or device.get('destination_type') == 'volume'


def read(devices: Sequence[Mapping[str, Any]], old_devices: Sequence[Mapping[str, Any]], flavor: Mapping[str, Any],
         limit: int) -> Wanted:
    """``flavor``: its row. ``limit``: local disks that a server may have, -1 any. Raises Invalid."""
    if old_devices and devices:
        raise Invalid('Using different block_device_mapping syntaxes is not allowed in the same request.')
    devices = [device for device in devices or map(_from_old, old_devices) if not device.get('no_device')]
    for device in devices:
        _check(device)
    roots = [device for device in devices if device['source_type'] == 'image']
    blanks = [device for device in devices if device['source_type'] == 'blank']
    _check_boot_order(roots, blanks)
    ephemerals = [blank for blank in blanks if blank.get('guest_format') != SWAP]
    swaps = [blank for blank in blanks if blank.get('guest_format') == SWAP]
    _check_sizes(ephemerals, swaps, flavor)
    disks = 1 + (len(ephemerals) or bool(flavor['ephemeral_gb'])) + (len(swaps) or bool(flavor['swap']))
    if 0 <= limit < disks:
        raise InvalidBlockDevice(reason='You specified more local devices than the limit allows')
    sized = [{**blank, 'volume_size': _size(blank, flavor['ephemeral_gb'])} for blank in ephemerals]
    sized += [{**blank, 'volume_size': _size(blank, flavor['swap'])} for blank in swaps]
    return Wanted(roots[0] if roots else None, sized)


# --- one device ------------------------------------------------------------------------------------------------------
def _from_old(device: Mapping[str, Any]) -> dict[str, Any]:
    """The first syntax: local disks are 'swap' and 'ephemeralN', the rest are volumes."""
    name = device.get('virtual_name') or ''
    if device.get('no_device') or not (name == SWAP or name.startswith('ephemeral')):
        return {**device, 'source_type': 'snapshot' if device.get('snapshot_id') else 'volume'}
    found = {key: device[key] for key in ('device_name', 'volume_size', 'delete_on_termination') if key in device}
    return {**found, 'source_type': 'blank', 'destination_type': 'local', 'boot_index': -1,
            'guest_format': SWAP if name == SWAP else None}


def _check(device: Mapping[str, Any]) -> None:
    source, destination = device.get('source_type'), device.get('destination_type')
    if is_volume(device):
        raise NoVolumeService(wanted=f'block device from {source} on {destination or "volume"}')
    if source is None:
        raise InvalidBlockDevice(reason='Invalid source_type field.')
    image_id = _image_of(device)
    if source == 'blank':
        if image_id:
            raise InvalidBlockDevice(reason='Invalid device UUID.')
    elif not image_id:
        raise InvalidBlockDevice(reason='Missing device UUID.')
    elif _boot_index(device) != 0:
        raise InvalidBlockDevice(reason='Mapping image to local is not supported.')
    _check_hardware(device, source)


def _check_hardware(device: Mapping[str, Any], source: str) -> None:
    """What no host could make."""
    for name, known in (('disk_bus', BUSES), ('device_type', DEVICE_TYPES)):
        if device.get(name) and device[name] not in known:
            raise InvalidBlockDevice(reason=f"{name} '{device[name]}' is not supported for a local disk.")
    asked = device.get('guest_format')
    if asked and (source == 'image' or asked not in FILE_SYSTEMS | {SWAP}):
        raise InvalidBlockDevice(reason=f"guest_format '{asked}' is not supported for this disk.")


def _image_of(device: Mapping[str, Any]) -> str | None:
    return device.get('uuid') or device.get('image_id')


def _boot_index(device: Mapping[str, Any]) -> int | None:
    """None: it isn't booted from."""
    index = device.get('boot_index')
    return None if index is None or int(index) < 0 else int(index)


def _size(blank: Mapping[str, Any], default: int | None) -> int:
    return int(blank.get('volume_size') or default or 0)


def _row(device: Mapping[str, Any], source: str, image_id: str | None = None) -> dict[str, Any]:
    """Every row has every column: they are inserted together."""
    index = device.get('boot_index')
    size = device.get('volume_size') if source == 'blank' else None
    return {'uuid': uuidutils.generate_uuid(), 'source_type': source, 'destination_type': 'local',
            'image_id': image_id, 'boot_index': None if index is None else int(index),
            'volume_size': size, 'no_device': False,
            'delete_on_termination': strutils.bool_from_string(device.get('delete_on_termination', True)),
            **{name: device.get(name) or None for name in _COPIED}}


# --- all of them -----------------------------------------------------------------------------------------------------
def _check_boot_order(roots: Sequence[Mapping[str, Any]], blanks: Sequence[Mapping[str, Any]]) -> None:
    """0, 1, 2 …, and 0 is the image's."""
    found = [index for index in map(_boot_index, [*roots, *blanks]) if index is not None]
    if sorted([*found, *([] if roots else [0])]) != list(range(len(found) + (not roots))):
        raise BootSequence


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
