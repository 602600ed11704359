"""The facts of PCI that only the kernel's sysfs knows.

    address_of_netdev('ens1f0')      # '0000:81:00.0', or None
"""
from __future__ import annotations

import re
from pathlib import Path

from kilonova.pci.vpd import MOST

ROOT = '/sys'
# As the kernel calls the ports of a card's switch: p0, pf0, pf0vf3, c1pf0sf7.
_REPRESENTOR, _MOST_NAME = re.compile(rb'[vs]f\d+\s*$'), 64
_ADDRESS = re.compile(r'^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$', re.IGNORECASE)


def address_of_netdev(name: str, root: str = ROOT) -> str | None:
    """The PCI address behind a network interface; None when there is no such interface or it isn't PCI.

    A representor's ``device`` link may lead to a bus below the PCI function (virtio), so the path is walked
    upwards.
    """
    if '/' in name:
        return None
    for part in reversed(Path(root, 'class', 'net', name, 'device').resolve().parts):
        if _ADDRESS.match(part):
            return part
    return None


def is_physical_function(address: str, root: str = ROOT) -> bool:
    """Whether the device can have virtual functions (even when it has none now)."""
    return Path(root, 'bus', 'pci', 'devices', address, 'sriov_totalvfs').exists()


def is_representor(name: str, root: str = ROOT) -> bool:
    """Whether an interface stands for a virtual function on the switch of its card (pf0vf3), and isn't one itself."""
    if '/' in name:
        return False
    try:
        with Path(root, 'class', 'net', name, 'phys_port_name').open('rb') as file:
            return _REPRESENTOR.search(file.read(_MOST_NAME)) is not None
    except OSError:
        return False


def vpd(address: str, root: str = ROOT) -> bytes:
    """Its vital product data; empty: it has none, or they can't be read, as by another user than root."""
    try:
        with Path(root, 'bus', 'pci', 'devices', address, 'vpd').open('rb') as file:
            return file.read(MOST)
    except OSError:
        return b''
