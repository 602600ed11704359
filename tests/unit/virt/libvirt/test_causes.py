"""Errors of libvirt are assigned to the host, the request or a device by their code and text."""

from __future__ import annotations

import libvirt
import pytest

from kilonova.errors import Cause, DevicesFailed
from kilonova.virt.libvirt import causes
from kilonova.virt.parts.guests import GuestFailed

GPU, GPU2, MDEV = '0000:08:00.0', '0000:88:00.0', '5c0b7bc0-0fd5-4c4a-8a3f-5d8f2ac0c1de'
INTERNAL, UNSUPPORTED = libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_CONFIG_UNSUPPORTED
INVALID, SYSTEM, FAILED = (
    libvirt.VIR_ERR_OPERATION_INVALID,
    libvirt.VIR_ERR_SYSTEM_ERROR,
    libvirt.VIR_ERR_OPERATION_FAILED,
)
DIED = 'internal error: process exited while connecting to monitor: 2026-11-28T04:00:00.000Z qemu-system-x86_64: '
BOTH = [GPU, GPU2]


@pytest.mark.parametrize(
    ('code', 'text', 'given', 'failed'),
    [
        # QEMU's words, of either form of its command line.
        (
            INTERNAL,
            (
                f'{DIED}-device vfio-pci,host={GPU},id=hostdev0,bus=pci.5: vfio {GPU}: group 14 is not viable\n'
                'Please ensure all devices within the iommu_group are bound to their vfio bus driver.'
            ),
            BOTH,
            [GPU],
        ),
        (
            INTERNAL,
            DIED + '-device {"driver":"vfio-pci","host":"' + GPU2 + '","id":"hostdev1","bus":"pci.6"}: '
            f'vfio {GPU2}: error getting device from group 40: Permission denied',
            BOTH,
            [GPU2],
        ),
        (
            INTERNAL,
            DIED + '-device {"driver":"vfio-pci","sysfsdev":"/sys/bus/mdev/devices/' + MDEV + '"}: '
            f'vfio {MDEV}: error getting device from group 87: No such device',
            [GPU, MDEV],
            [MDEV],
        ),
        (
            INTERNAL,
            f'{DIED}-device vfio-pci,host={GPU2}: vfio {GPU2}: failed to open /dev/vfio/12: Device or resource busy',
            BOTH,
            [GPU2],
        ),
        # A warning before it, of another device.
        (
            INTERNAL,
            (
                f'{DIED}-device vfio-pci,host={GPU}: warning: vfio {GPU}: Could not enable error recovery\n'
                f'qemu-system-x86_64: -device vfio-pci,host={GPU2}: vfio {GPU2}: failed to get region 1 info: '
                f'Input/output error'
            ),
            BOTH,
            [GPU2],
        ),
        # libvirt's.
        (
            INVALID,
            f'Requested operation is not valid: PCI device {GPU} is in use by driver QEMU, domain instance-0000002a',
            BOTH,
            [GPU],
        ),
        (INTERNAL, f'internal error: Unable to reset PCI device {GPU}: no FLR or PM reset available', BOTH, [GPU]),
        (
            INTERNAL,
            f"internal error: Failed to bind PCI device '{GPU}' to vfio-pci: Device or resource busy",
            BOTH,
            [GPU],
        ),
        (
            libvirt.VIR_ERR_NO_NODE_DEVICE,
            (f'Device {GPU} not found: could not access /sys/bus/pci/devices/{GPU}/config: No such file or directory'),
            BOTH,
            [GPU],
        ),
        (
            libvirt.VIR_ERR_NO_NODE_DEVICE,
            "Node device not found: no node device with matching name 'pci_0000_88_00_0'",
            BOTH,
            [GPU2],
        ),
        (
            libvirt.VIR_ERR_NO_NODE_DEVICE,
            f"no node device with matching name 'mdev_{MDEV.replace('-', '_')}_0000_41_00_0'",
            [GPU, MDEV],
            [MDEV],
        ),
        (
            INVALID,
            f'Requested operation is not valid: mediated device {MDEV} is in use by driver QEMU, domain x',
            [MDEV],
            [MDEV],
        ),
        # It speaks of devices and names none: there is one alone.
        (INTERNAL, f'{DIED}vfio: error opening /dev/vfio/12: No such file or directory', [GPU], [GPU]),
        # It names another of its group.
        (INTERNAL, 'internal error: PCI device 0000:08:00.1 of the IOMMU group is not bound to vfio-pci', [GPU], [GPU]),
    ],
)
def test_devices(code, text, given, failed):
    assert causes.judge(code, text, given) == (Cause.DEVICE, tuple(failed))


@pytest.mark.parametrize(
    ('code', 'text'),
    [
        (INTERNAL, 'internal error: bps/iops/max values must be within [0, 1000000000000000]'),
        (INTERNAL, f'{DIED}-drive x: bps and bps_rd/bps_wr cannot be used at the same time'),
        (
            libvirt.VIR_ERR_INVALID_ARG,
            'invalid argument: total and read/write of bytes_sec cannot be set at the same time',
        ),
        (libvirt.VIR_ERR_INVALID_MAC, 'invalid MAC address: multicast 01:00:5e:00:00:01'),
    ],
)
def test_requests(code, text):
    assert causes.judge(code, text, BOTH) == (Cause.REQUEST, ())


@pytest.mark.parametrize(
    ('code', 'text', 'given'),
    [
        # Another host may have the other version of cgroups.
        (SYSTEM, "Unable to write to '/sys/fs/cgroup/machine.slice/x/cpu.weight': Numerical result out of range", []),
        (UNSUPPORTED, "unsupported configuration: Value of cputune 'shares' must be in range [2, 262144]", []),
        (UNSUPPORTED, "unsupported configuration: host doesn't support passthrough of host PCI devices", [GPU]),
        (UNSUPPORTED, "unsupported configuration: CPU mode 'host-passthrough' is not supported by hypervisor", [GPU]),
        (INTERNAL, f'{DIED}cannot set up guest memory pc.ram: Cannot allocate memory', [GPU]),
        (
            INTERNAL,
            (
                f'{DIED}-device vfio-pci,host={GPU}: vfio {GPU}: failed to setup container for group 14: '
                'memory listener initialization failed: VFIO_MAP_DMA failed: Cannot allocate memory'
            ),
            [GPU],
        ),
        (
            INTERNAL,
            f'{DIED}-device vfio-pci,host={GPU}: vfio {GPU}: failed to open /dev/vfio/vfio: No such file',
            [GPU],
        ),
        (INTERNAL, 'internal error: Failed to load PCI driver module vfio-pci', [GPU]),
        # The argument names the device, the reason doesn't.
        (INTERNAL, f"{DIED}-device vfio-pci,host={GPU},bus=pci.9: Bus 'pci.9' not found", [GPU]),
        # Which of two?
        (INTERNAL, f'{DIED}vfio: error opening /dev/vfio/12: No such file or directory', BOTH),
        # A device that this guest doesn't have.
        (INVALID, f'Requested operation is not valid: PCI device {GPU} is in use', []),
        (INTERNAL, f'{DIED}Could not open disk: Permission denied', [GPU]),
        (
            libvirt.VIR_ERR_NO_SUPPORT,
            f'this function is not supported by the connection driver: PCI device {GPU}',
            [GPU],
        ),
        (FAILED, 'operation failed: domain already exists', BOTH),
        (INTERNAL, '', [GPU]),
        (-1, 'x', [GPU]),
        (libvirt.VIR_ERR_XML_ERROR, 'XML error: No PCI buses available', [GPU]),
    ],
)
def test_what_is_not_known_is_the_hosts(code, text, given):
    assert causes.judge(code, text, given) == (Cause.HOST, ())


def _error(code, text):
    made = libvirt.libvirtError(text)
    made.err = (code, libvirt.VIR_FROM_QEMU, text, 2, '', None, None, -1, -1)
    return made


def test_what_callers_of_the_driver_get():
    device = causes.failed('start', 'u', _error(INTERNAL, f'vfio {GPU}: group 14 is not viable'), BOTH)
    assert isinstance(device, DevicesFailed) and device.addresses == (GPU,)
    assert device.reason == f'vfio {GPU}: group 14 is not viable'
    host = causes.failed('start', 'u', _error(INTERNAL, 'no'), BOTH)
    assert (type(host), host.cause, str(host)) == (
        GuestFailed,
        Cause.HOST,
        'The hypervisor could not start guest u: no',
    )
    assert causes.failed('define', 'u', _error(libvirt.VIR_ERR_INVALID_MAC, 'no')).cause is Cause.REQUEST
