"""Functions that find the cause of a libvirt error: the host, the request, or a device. None of them calls libvirt.

    judge(libvirt.VIR_ERR_INTERNAL_ERROR, 'vfio 0000:08:00.0: group 14 is not viable', ['0000:08:00.0'])
    # Verdict(Cause.DEVICE, ('0000:08:00.0',))
    raise failed('start', guest.uuid, error, given) from error

libvirt's error codes are not precise: most failures of a start are VIR_ERR_INTERNAL_ERROR with the last output of QEMU.
Therefore the functions also search the error text for well-known expressions. An error that matches none of them is
attributed to the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import libvirt

from kilonova.errors import Cause, DevicesFailed, KilonovaError
from kilonova.virt.parts.guests import GuestFailed

# libvirt's error codes whose cause is always the same, so that the error text need not be searched.
CODES: Mapping[int, Cause] = MappingProxyType(
    {
        # A port's MAC address is not a valid address of a network card.
        libvirt.VIR_ERR_INVALID_MAC: Cause.REQUEST,
        # The host has no free memory.
        libvirt.VIR_ERR_NO_MEMORY: Cause.HOST,
        # Another daemon (such as polkit), the kernel or a file system of the host has denied libvirt an operation.
        libvirt.VIR_ERR_ACCESS_DENIED: Cause.HOST,
        libvirt.VIR_ERR_OPERATION_DENIED: Cause.HOST,
        libvirt.VIR_ERR_AUTH_FAILED: Cause.HOST,
        libvirt.VIR_ERR_NO_SUPPORT: Cause.HOST,
        libvirt.VIR_ERR_OPERATION_UNSUPPORTED: Cause.HOST,
        libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED: Cause.HOST,
        libvirt.VIR_ERR_CPU_INCOMPATIBLE: Cause.HOST,
        libvirt.VIR_ERR_OPERATION_TIMEOUT: Cause.HOST,
        libvirt.VIR_ERR_HOOK_SCRIPT_FAILED: Cause.HOST,
        # A network, secret or storage of libvirt is missing on this host.
        libvirt.VIR_ERR_NO_NETWORK: Cause.HOST,
        libvirt.VIR_ERR_NO_SECRET: Cause.HOST,
        libvirt.VIR_ERR_NO_STORAGE_POOL: Cause.HOST,
        libvirt.VIR_ERR_NO_STORAGE_VOL: Cause.HOST,
    }
)
# Error codes that mean that a device failed. If the guest has several devices, the error text names the failed one.
_OF_DEVICES = frozenset({libvirt.VIR_ERR_NO_NODE_DEVICE, libvirt.VIR_ERR_INVALID_NODE_DEVICE})

# Error texts about the host as a whole. The host counts as the cause even if the text also names a device.
_HOST = re.compile(
    r'cgroup|cannot allocate memory|out of memory|no space left|memory ?lock|MEMLOCK|VFIO_MAP_DMA|VFIO_IOMMU_MAP_DMA'
    r"|host doesn't support|no iommu|failed to setup container|failed to open /dev/vfio/vfio|failed to open /dev/iommu"
    r'|interrupt remapping|failed to load PCI (driver|stub) module|vfio-pci driver.*(missing|not (found|loaded))'
    r'|no more available PCI',
    re.IGNORECASE,
)
# Error texts about values of the request that QEMU refuses on every host.
_REQUEST = re.compile(
    r'(bps|iops|max).{0,40} values must be within \[0, \d+\]'
    r'|(bps|iops)/?(bps|iops)? and .* cannot be used at the same time'
    r'|total and read/write of .* cannot be set at the same time',
    re.IGNORECASE,
)
_DEVICE = re.compile(
    r'vfio|iommu[ _]group|\bPCI device\b|\bmdev\b|mediated device|\bhostdev\b|\bnode device\b'
    r'|sysfsdev',
    re.IGNORECASE,
)
# QEMU's errors repeat the argument that QEMU was parsing. Device names in it are not the cause of the error.
_ARGUMENT = re.compile(r'-(device|netdev|blockdev|object) (\{.*?\}|\S+?)(?=: )')
# PCI addresses, also in the form that libvirt's node devices have: pci_0000_08_00_0.
_ADDRESS = re.compile(r'(?<![0-9a-f])([0-9a-f]{4})[:_]([0-9a-f]{2})[:_]([0-9a-f]{2})[._]([0-7])(?![0-9a-f])')
_UUID = re.compile(r'(?<![0-9a-f])[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}(?![0-9a-f])')


class Verdict(NamedTuple):
    """The cause of an error. ``addresses`` are the devices that failed. It is empty unless the cause is a device.

    A device is named by its PCI address or, if it is a mediated device, by its uuid.
    """

    cause: Cause
    addresses: tuple[str, ...] = ()


def judge(code: int, text: str, given: Iterable[str] = ()) -> Verdict:
    """Return the cause of a libvirt error that has the error code ``code`` and the error text ``text``.

    ``given`` are the PCI addresses and uuids of the devices that are passed through to the guest. If the text is about
    devices, the cause is each of these devices that the text names, or the guest's only device if the text names none.
    Unknown errors are attributed to the host.
    """
    if code in CODES:
        return Verdict(CODES[code])
    # Remove the warnings of QEMU from the text, because they are not the reason of the error.
    said = '\n'.join(_ARGUMENT.sub('', line) for line in text.splitlines() if 'warning:' not in line)
    if _HOST.search(said):
        return Verdict(Cause.HOST)
    given = tuple(given)
    about_devices = code in _OF_DEVICES or _DEVICE.search(said) is not None
    if about_devices and given:
        named = _named(said)
        failed = tuple(name for name in given if name in named) or (given if len(given) == 1 else ())
        return Verdict(Cause.DEVICE, failed) if failed else Verdict(Cause.HOST)
    return Verdict(Cause.REQUEST if _REQUEST.search(said) else Cause.HOST)


def _named(text: str) -> set[str]:
    return {'{}:{}:{}.{}'.format(*found.groups()) for found in _ADDRESS.finditer(text)} | {
        found[0].replace('_', '-') for found in _UUID.finditer(text)
    }


def failed(act: str, uuid: str, error: libvirt.libvirtError, given: Iterable[str] = ()) -> KilonovaError:
    """Return the exception that the driver raises for a libvirt error: DevicesFailed or GuestFailed.

    ``act`` is the operation that failed, such as 'start', and ``given`` are the PCI addresses and uuids of the guest's
    devices. The exception is DevicesFailed if some of these devices are the cause. Otherwise it is GuestFailed, which
    contains the cause.
    """
    text = str(error)
    verdict = judge(error.get_error_code(), text, given)
    if verdict.cause is Cause.DEVICE:
        return DevicesFailed(addresses=verdict.addresses, reason=text)
    return GuestFailed(act=act, uuid=uuid, reason=text, cause=verdict.cause)
