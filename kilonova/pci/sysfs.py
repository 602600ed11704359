"""The facts of PCI that only the kernel's sysfs knows.

    address_of_netdev('ens1f0')      # '0000:81:00.0', or None
"""
from __future__ import annotations

import re
from pathlib import Path

from kilonova.pci.vpd import MOST

ROOT = '/sys'
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


def vpd(address: str, root: str = ROOT) -> bytes:
    """Its vital product data; empty: it has none, or they can't be read, as by another user than root."""
    try:
        with Path(root, 'bus', 'pci', 'devices', address, 'vpd').open('rb') as file:
            return file.read(MOST)
    except OSError:
        return b''
