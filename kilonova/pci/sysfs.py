"""Read properties of PCI devices that only the kernel's sysfs has.

    address_of_netdev('ens1f0')      # '0000:81:00.0', or None
    vgpu_type('0000:3b:00.4')        # 1519; 0 if it has no vGPU type yet; None if it never has one

``root`` is the directory of sysfs; tests use another one.
"""

from __future__ import annotations

import re
from pathlib import Path

from kilonova.pci.vpd import MOST

ROOT = '/sys'
# Pattern of sysfs's phys_port_name of a representor, of a virtual function (pf0vf3) or a subfunction (c1pf0sf7).
# The pattern does not match p0 (a physical port of the card) and pf0 (a physical function).
_REPRESENTOR, _MOST_NAME = re.compile(rb'[vs]f\d+\s*$'), 64
_NUMBER, _MOST = re.compile(rb'^\s*\d{1,9}\s*$'), 64
# Number of bytes of the PCI configuration space that every user may read.
_HEAD = 64
_ADDRESS = re.compile(r'^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$', re.IGNORECASE)


def address_of_netdev(name: str, root: str = ROOT) -> str | None:
    """Return the PCI address of a network interface, or None if there is no such interface or it is not a PCI device.

    The link /sys/class/net/<name>/device may lead to a device below the PCI function, for example to virtio0. The
    result is the last PCI address in the path to which the link leads.
    """
    if '/' in name:
        return None
    for part in reversed(Path(root, 'class', 'net', name, 'device').resolve().parts):
        if _ADDRESS.match(part):
            return part
    return None


def is_physical_function(address: str, root: str = ROOT) -> bool:
    """Return whether the device can have virtual functions, even if it has none at present."""
    return Path(root, 'bus', 'pci', 'devices', address, 'sriov_totalvfs').exists()


def is_representor(name: str, root: str = ROOT) -> bool:
    """Return whether an interface represents a virtual function on the switch of its card (pf0vf3).

    The virtual function's own interface is not a representor.
    """
    if '/' in name:
        return False
    try:
        with Path(root, 'class', 'net', name, 'phys_port_name').open('rb') as file:
            return _REPRESENTOR.search(file.read(_MOST_NAME)) is not None
    except OSError:
        return False


def vgpu_type(address: str, root: str | None = None) -> int | None:
    """Return the vGPU type of a virtual function of an NVIDIA card, or 0 if the function has no type yet.

    The type is read from the function's file ``current_vgpu_type``, to which an operator writes one of the types that
    the file ``creatable_vgpu_types`` lists. After a reboot of the host, the function has no type. Return None if
    ``current_vgpu_type`` is missing or unreadable, or if it contains no number.
    """
    path = Path(root or ROOT, 'bus', 'pci', 'devices', address, 'nvidia', 'current_vgpu_type')
    try:
        with path.open('rb') as file:
            text = file.read(_MOST)
    except OSError:
        return None
    return int(text) if _NUMBER.match(text) else None


def has_fallen_off(address: str, root: str | None = None) -> bool:
    """Return whether a PCI function no longer answers on the bus: each byte of its configuration space reads as 0xff.

    The first 64 bytes are read and must all be 0xff. The vendor id alone does not suffice, because a working virtual
    function has the vendor id 0xffff. Return False if the configuration space can't be read.
    """
    try:
        with Path(root or ROOT, 'bus', 'pci', 'devices', address, 'config').open('rb') as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return len(head) == _HEAD and not head.strip(b'\xff')


def vpd(address: str, root: str = ROOT) -> bytes:
    """Return the device's vital product data (VPD).

    Return empty bytes if the device has no VPD, or if it can't be read, for example because the process does not run as
    root.
    """
    try:
        with Path(root, 'bus', 'pci', 'devices', address, 'vpd').open('rb') as file:
            return file.read(MOST)
    except OSError:
        return b''
