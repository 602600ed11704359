"""Mediated devices: parts of a PCI function, mostly vGPUs, which are created when a guest first needs them.

    mediated = LibvirtMdevs(connection)
    mediated.start_inactive()                                       # after the host was booted
    mediated.ensure([MediatedDevice(uuid, '0000:84:00.0', 'nvidia-35')])

A device stays on the host when its guest is deleted, so that the next guest can use it. ``remove`` deletes devices on
request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import libvirt
from oslo_log import log as logging
from oslo_utils import uuidutils

from kilonova.pci.device import MDEV
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices import pci
from kilonova.virt.libvirt.xml.base import node, to_text
from kilonova.virt.parts.host import MdevUnavailable

LOG = logging.getLogger(__name__)

# libvirt's name of a mediated device begins with 'mdev_' and the device's uuid, with '_' in place of '-'.
# Since libvirt 7.8, the name ends with '_' and the address of the device's parent.
_NAME, _UUID_LENGTH = 'mdev_', 36


@dataclass(frozen=True)
class MediatedDevice:
    """A mediated device that a guest gets. ``parent`` is the address of its PCI function."""

    uuid: str
    parent: str
    type: str


@dataclass(frozen=True)
class _Found:
    """A mediated device that libvirt reports. ``parent`` is libvirt's name of its PCI function."""

    name: str
    uuid: str
    parent: str
    type: str


def _read(text: str) -> _Found | None:
    """Return the mediated device that a node device's XML describes, or None if it is another kind of device."""
    device = ElementTree.fromstring(text)
    capability = device.find("capability[@type='mdev']")
    if capability is None:
        return None
    name, kind = device.findtext('name') or '', capability.find('type')
    uuid = (capability.findtext('uuid') or '').lower() or _uuid(name)
    if uuid is None:
        LOG.debug('Skipping mediated device %s: libvirt does not report its uuid', name)
        return None
    return _Found(name, uuid, device.findtext('parent') or '', kind.get('id', '') if kind is not None else '')


def _uuid(name: str) -> str | None:
    rest = name.removeprefix(_NAME)
    uuid, behind = rest[:_UUID_LENGTH].replace('_', '-').lower(), rest[_UUID_LENGTH:]
    is_one = name.startswith(_NAME) and behind[:1] in ('', '_') and uuidutils.is_uuid_like(uuid)
    return uuid if is_one else None


def discover(node_devices: Iterable[str], functions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mediated devices of the PCI functions ``functions``, sorted by uuid.

    ``node_devices`` are XML texts of libvirt. ``functions`` is a result of ``pci.discover``.
    """
    parents = {function['dev_id']: function for function in functions}
    found: dict[str, dict[str, Any]] = {}
    for one in sorted(filter(None, map(_read, node_devices)), key=lambda one: one.name):
        parent = parents.get(one.parent)
        if parent is None:
            LOG.debug('Skipping mediated device %s: its parent %s is not a PCI function', one.name, one.parent)
        elif one.uuid in found:
            # Definitions on several parents may have the same uuid, but only one of them can be active.
            LOG.warning('Skipping mediated device %s: device %s has the same uuid', one.name, found[one.uuid]['dev_id'])
        else:
            found[one.uuid] = {
                'dev_id': one.name,
                'address': one.uuid,
                'dev_type': MDEV,
                'mdev_type': one.type,
                'parent_addr': parent['address'],
                'capabilities': {},
                **{key: parent[key] for key in ('vendor_id', 'product_id', 'numa_node', 'label')},
            }
    return [found[uuid] for uuid in sorted(found)]


class LibvirtMdevs:
    """The mediated devices of one host."""

    def __init__(self, connection: Connection) -> None:
        self._libvirt = connection

    def start_inactive(self) -> None:
        """Start the mediated devices that are defined but not active. If one cannot be started, this is only logged."""
        inactive = [name for name in self._libvirt.mediated_devices() if not self._is_active(name)]
        if inactive:
            LOG.info('Found inactive mdevs: %s', inactive)
        for name in inactive:
            try:
                self._start(name)
            except libvirt.libvirtError as error:
                LOG.warning('Could not start mdev %s; guests that have it cannot start either: %s', name, error)

    def ensure(self, hostdevs: Iterable[object]) -> None:
        """Create and start the mediated devices that are in ``hostdevs``, the devices of a guest.

        A device that is active already is not changed. Repeated calls are safe. Raises MdevUnavailable if a device
        cannot be created or started. Devices that were created before the failure are kept.
        """
        for device in hostdevs:
            if isinstance(device, MediatedDevice):
                try:
                    self._ensure(device)
                except libvirt.libvirtError as error:
                    raise _unavailable(device, str(error)) from error

    def remove(self, uuids: Iterable[str]) -> None:
        """Stop and undefine the mediated devices with these uuids. If one cannot be removed, this is only logged."""
        wanted = set(uuids)
        for name in self._libvirt.mediated_devices():
            if _uuid(name) in wanted:
                try:
                    self._remove(name)
                except libvirt.libvirtError as error:
                    LOG.warning('Could not remove mdev %s: %s', name, error)

    def _remove(self, name: str) -> None:
        if self._is_active(name):
            self._libvirt.do(lambda connection: connection.nodeDeviceLookupByName(name).destroy())
        LOG.info('Removed mdev: %s', name)
        # A device without a persistent definition disappears when it stops. ``undefine`` then fails; ignore this.
        try:
            self._libvirt.do(lambda connection: connection.nodeDeviceLookupByName(name).undefine())
        except libvirt.libvirtError as error:
            if error.get_error_code() not in (libvirt.VIR_ERR_NO_NODE_DEVICE, libvirt.VIR_ERR_OPERATION_INVALID):
                raise

    def uuids(self) -> set[str]:
        """Return the uuids of all mediated devices of the host, both active and inactive ones."""
        return {uuid for uuid in map(_uuid, self._libvirt.mediated_devices()) if uuid is not None}

    def by_parent(self) -> dict[str, set[str]]:
        """Return a dict from libvirt's name of each parent PCI function to the uuids of its mediated devices."""
        found: dict[str, set[str]] = {}
        for name in self._libvirt.mediated_devices():
            uuid, parent = _uuid(name), name[len(_NAME) + _UUID_LENGTH + 1 :]
            if uuid is not None and parent:
                found.setdefault(f'pci_{parent}', set()).add(uuid)
                continue
            # Before libvirt 7.8, the device's name does not contain its parent, so the parent is read from the XML.
            text = self._libvirt.node_device(name)
            one = _read(text) if text is not None else None
            if one is not None:
                found.setdefault(one.parent, set()).add(one.uuid)
        return found

    def is_offered(self, device: MediatedDevice) -> bool:
        """Return True if the PCI function to which a mediated device belongs exists and supports the device's type.

        The capacity of the PCI function is not checked.
        """
        text = self._libvirt.node_device(pci.node_name(device.parent))
        capability = ElementTree.fromstring(text).find("capability[@type='pci']") if text is not None else None
        return capability is not None and device.type in (pci.mdev_types(capability) or {})

    def _ensure(self, device: MediatedDevice) -> None:
        name = self._name(device)
        if name is None:
            self._create(device)
        elif not self._is_active(name):
            self._start(name)

    def _name(self, device: MediatedDevice) -> str | None:
        """Return libvirt's name of the device, or None if there is no device of its uuid.

        Raises MdevUnavailable if the device of this uuid has another parent or type.
        """
        texts = [
            self._libvirt.node_device(name) for name in self._libvirt.mediated_devices() if _uuid(name) == device.uuid
        ]
        found = [one for one in (_read(text) for text in texts if text is not None) if one is not None]
        for one in found:
            if (one.parent, one.type) == (pci.node_name(device.parent), device.type):
                return one.name
        if found:
            one = found[0]
            raise _unavailable(device, f'{one.name} has this uuid and is of type {one.type} on {one.parent}')
        return None

    def _is_active(self, name: str) -> bool:
        try:
            return bool(self._libvirt.do(lambda connection: connection.nodeDeviceLookupByName(name).isActive()))
        except libvirt.libvirtError as error:
            # libvirt's test driver does not support the call isActive. All devices of this driver are active.
            if error.get_error_code() == libvirt.VIR_ERR_NO_SUPPORT:
                return True
            if error.get_error_code() == libvirt.VIR_ERR_NO_NODE_DEVICE:
                return False
            raise

    def _start(self, name: str) -> None:
        LOG.info('Starting inactive mdev: %s', name)
        try:
            self._libvirt.do(lambda connection: connection.nodeDeviceLookupByName(name).create())
        except libvirt.libvirtError:
            # Ignore the error if the device is active: the first call's answer was lost, only its repetition failed.
            if not self._is_active(name):
                raise

    def _create(self, device: MediatedDevice) -> None:
        xml = _xml(device)
        try:
            self._libvirt.do(lambda connection: connection.nodeDeviceCreateXML(xml, 0))
        except libvirt.libvirtError:
            # Ignore the error if the device is active: the first call's answer was lost, only its repetition failed.
            name = self._name(device)
            if name is None or not self._is_active(name):
                raise
        LOG.info('Created mdev: %s on pGPU: %s.', device.uuid, device.parent)
        try:
            self._libvirt.do(lambda connection: connection.nodeDeviceDefineXML(xml, 0).setAutostart(1))
        except libvirt.libvirtError as error:
            LOG.warning(
                'Failed to set autostart to True for mdev %s; after a reboot of this host it is created again '
                'only when a guest that has it starts: %s',
                device.uuid,
                error,
            )


def _xml(device: MediatedDevice) -> str:
    return to_text(
        node(
            'device',
            node('parent', pci.node_name(device.parent)),
            node('capability', node('type', id=device.type), node('uuid', device.uuid), type='mdev'),
        )
    )


def _unavailable(device: MediatedDevice, reason: str) -> MdevUnavailable:
    return MdevUnavailable(uuid=device.uuid, type=device.type, parent=device.parent, reason=reason)
