"""The disk element of a volume. Its <source> is derived from the volume's connection and its path on this host.

    check(volume, 'gpu1', settings)                 # may raise VolumeUnsupported
    element = disk(guest, GuestVolume(volume, '/dev/sdc'), 'virtio', 'vdb')

QEMU itself connects to volumes in Ceph (rbd). Volumes of all other kinds are first connected to the host, where they
are files or block devices. QEMU decrypts encrypted volumes, with the secrets that ``storage.secrets`` stores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kilonova.objects.volume import NFS, QCOW2, RAW, AttachedVolume
from kilonova.virt.libvirt.domain.guest import GuestSettings, GuestSpec, GuestVolume
from kilonova.virt.libvirt.xml.base import Element, node, to_text
from kilonova.virt.libvirt.xml.disks import VolumeDisk
from kilonova.virt.parts.volumes import LUKS, VolumeUnsupported, why_locked

RBD = 'rbd'
# Kinds of volume connection for which os-brick provides a block device on the host.
BLOCK = ('fibre_channel', 'iscsi', 'iser', 'lightos', 'local', 'nvmeof', 'scaleio', 'storpool')
KINDS = (*BLOCK, NFS, RBD)
_FORMATS = (RAW, QCOW2)
# Names of the I/O limits that the volume service sets. libvirt has the same names.
_LIMIT = re.compile(r'(read|write|total)_(bytes|iops)_sec(_max(_length)?)?')


def check(volume: AttachedVolume, host: str, settings: GuestSettings) -> None:
    """Check whether guests of this host can use a volume with its current attachment.

    Raises VolumeUnsupported if they cannot use it.
    """
    connection, locked, reason = volume.connection, why_locked(volume), ''
    if volume.host != host:
        reason = f'it is attached to host {volume.host}'
    elif volume.kind not in KINDS:
        reason = f"its kind is '{volume.kind}'; accepted: {', '.join(sorted(KINDS))}"
    elif locked:
        reason = locked
    elif volume.encryption is not None and _format(volume) != 'raw':
        reason = f"it is encrypted, and its format is '{_format(volume)}'; accepted: raw"
    elif _format(volume) not in _FORMATS:
        reason = f"its format is '{_format(volume)}'; accepted: {', '.join(_FORMATS)}"
    elif volume.kind == RBD and connection.get('auth_enabled') and not _secret(connection, settings):
        reason = 'neither its connection nor [libvirt]rbd_secret_uuid names the libvirt secret with the Ceph key'
    if reason:
        raise VolumeUnsupported(volume=volume.volume_id, host=host, reason=reason)


def disk(guest: GuestSpec, given: GuestVolume, bus: str, target: str) -> VolumeDisk:
    """Return the disk element of the volume ``given``, with the device name ``target`` on ``bus``."""
    volume, settings = given.volume, guest.settings
    connection, device = volume.connection, volume.device_type or 'disk'
    type_, source, auth = _source(given, settings)
    cache = settings.volume_caches.get(type_, 'none')
    native = type_ == 'file' and _format(volume) == 'raw' and cache in ('none', 'directsync')
    limits = {
        name: int(value)
        for name, value in (connection.get('qos_specs') or {}).items()
        if _LIMIT.fullmatch(name) and str(value).isdecimal()
    }
    return VolumeDisk(
        id=volume.volume_id,
        type=type_,
        source=source,
        auth=auth,
        format=_format(volume),
        target=target,
        bus=bus,
        device=device,
        cache=cache,
        io='native' if native else None,
        discard='unmap' if connection.get('discard') else None,
        limits=limits,
        readonly=device == 'cdrom' or connection.get('access_mode') == 'ro',
        shareable=volume.multiattach,
        boots=volume.is_root and not any(own.boots for own in guest.disks),
        packed=bus == 'virtio' and guest.tuning.packed_ring,
    )


def origin(given: GuestVolume, settings: GuestSettings) -> str:
    """Return a <disk> element, as XML, with only the type, <source> and <auth> of a volume on this host.

    In a live migration to this host, the source host puts these values into the guest's XML.
    """
    type_, source, auth = _source(given, settings)
    return to_text(node('disk', auth, source, type=type_))


def _source(given: GuestVolume, settings: GuestSettings) -> tuple[str, Element, Element | None]:
    """Return the type of the disk, its <source>, and its <auth> or None."""
    volume, connection = given.volume, given.volume.connection
    lock = (
        None
        if volume.encryption is None
        else node('encryption', node('secret', type='passphrase', uuid=volume.volume_id), format=LUKS)
    )
    if volume.kind == NFS:
        return 'file', node('source', lock, file=given.path), None
    if volume.kind != RBD:
        return 'block', node('source', lock, dev=given.path), None
    # The brackets around IPv6 addresses in the connection are removed, because libvirt adds them itself.
    monitors = [
        node('host', name=str(name).strip('[]'), port=port)
        for name, port in zip(connection.get('hosts') or (), connection.get('ports') or (), strict=False)
    ]
    auth = None
    if connection.get('auth_enabled'):
        auth = node(
            'auth',
            node('secret', type='ceph', uuid=_secret(connection, settings)),
            username=connection.get('auth_username') or settings.rbd_user,
        )
    return 'network', node('source', *monitors, lock, protocol='rbd', name=connection.get('name')), auth


def _secret(connection: Mapping[str, Any], settings: GuestSettings) -> str | None:
    found: str | None = connection.get('secret_uuid') or settings.rbd_secret_uuid
    return found


def _format(volume: AttachedVolume) -> str:
    return str(volume.connection.get('format') or 'raw')
