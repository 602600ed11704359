"""Statistics of a running guest, with libvirt's names and in the format that all drivers share.

    found = measure(guest)
    flat(found)                                     # {'cpu0_time': …, 'memory': …, 'vda_read': …, 'vnet1_rx': …}
    standard(found, instance, 'kvm')                # objects.Diagnostics

``guests`` returns these statistics for the API's server diagnostics.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from kilonova import objects
from kilonova.states import POWER_WORDS, PowerState
from kilonova.virt.libvirt.guest import Guest

# Names of the counters of a disk and of a network device, in the order in which libvirt returns them.
_DISK = ('read_req', 'read', 'write_req', 'write', 'errors')
_NIC = ('rx', 'rx_packets', 'rx_errors', 'rx_drop', 'tx', 'tx_packets', 'tx_errors', 'tx_drop')


@dataclass(frozen=True)
class Measured:
    """Statistics of one guest.

    Attributes:
        state: Power state of the guest.
        cpus: CPU time of each vCPU in nanoseconds, None if the hypervisor does not report CPU times.
        memory_max: Maximum memory in KiB.
        memory_now: Current memory in KiB.
        memory: The balloon's memory statistics in KiB, by libvirt's names.
        disks: A dict from the disk's device name ('vda') to its counters. The counters are empty if the hypervisor has
            none.
        nics: A dict from the name of the network device on the host to (MAC address, counters).
    """

    state: PowerState
    cpus: tuple[int | None, ...]
    memory_max: int
    memory_now: int
    memory: dict[str, int]
    disks: dict[str, dict[str, int]]
    nics: dict[str, tuple[str | None, dict[str, int]]]


def measure(guest: Guest) -> Measured:
    """Read the statistics of a guest.

    Makes a few calls to libvirt, and one more for each disk and for each network device.
    """
    state = guest.power_state()
    _, memory_max, memory_now, count, _ = guest.measured('info')
    vcpus = guest.measured('vcpus')
    times = tuple(vcpu[2] for vcpu in vcpus[0]) if vcpus else (None,) * count
    tree = ElementTree.fromstring(guest.xml())
    disks, nics = {}, {}
    for disk in tree.iterfind('devices/disk'):
        target = _attribute(disk, 'target', 'dev')
        if target is not None and disk.get('device') != 'cdrom':
            disks[target] = _counted(_DISK, guest.measured('blockStats', target))
    for nic in tree.iterfind('devices/interface'):
        target = _attribute(nic, 'target', 'dev')
        if target is not None:
            nics[target] = (_attribute(nic, 'mac', 'address'), _counted(_NIC, guest.measured('interfaceStats', target)))
    return Measured(state, times, memory_max, memory_now, guest.measured('memoryStats') or {}, disks, nics)


def _attribute(device: ElementTree.Element, tag: str, name: str) -> str | None:
    found = device.find(tag)
    return None if found is None else found.get(name)


def _counted(names: tuple[str, ...], counters: Sequence[int] | None) -> dict[str, int]:
    return dict(zip(names, counters, strict=True)) if counters else {}


def flat(found: Measured) -> dict[str, int]:
    """Return the statistics as one dict with libvirt's names, such as {'cpu0_time': …, 'memory': …, 'vda_read': …}."""
    values = {f'cpu{number}_time': spent for number, spent in enumerate(found.cpus) if spent is not None}
    values['memory'] = found.memory_max
    values.update((f'memory-{name}', value) for name, value in found.memory.items())
    for target, counters in found.disks.items():
        values.update((f'{target}_{name}', value) for name, value in counters.items())
    for target, (_, counters) in found.nics.items():
        values.update((f'{target}_{name}', value) for name, value in counters.items())
    return values


def standard(found: Measured, instance: objects.Instance, hypervisor: str) -> objects.Diagnostics:
    """Return the statistics as a Diagnostics object. ``hypervisor`` is kvm or qemu."""
    return objects.Diagnostics(
        state=POWER_WORDS[found.state],
        driver='libvirt',
        hypervisor=hypervisor,
        hypervisor_os='linux',
        uptime=_uptime(instance),
        config_drive=bool(getattr(instance, 'config_drive', None)),
        memory_details=objects.MemoryDiagnostics(maximum=found.memory_max // 1024, used=_used(found)),
        cpu_details=[
            objects.CpuDiagnostics(id=number, time=spent, utilisation=None) for number, spent in enumerate(found.cpus)
        ],
        nic_details=[_nic(mac, counters) for mac, counters in found.nics.values()],
        disk_details=[_disk(counters) for counters in found.disks.values()],
        num_cpus=len(found.cpus),
        num_nics=len(found.nics),
        num_disks=len(found.disks),
    )


def _used(found: Measured) -> int:
    """Return the memory that the guest's system uses, in MiB.

    If the guest's balloon driver reports available and unused memory, this is the difference. Otherwise it is all
    memory that the guest has now.
    """
    if {'available', 'unused'} <= found.memory.keys():
        return (found.memory['available'] - found.memory['unused']) // 1024
    return found.memory_now // 1024


def _uptime(instance: objects.Instance) -> int | None:
    """Return the seconds since the server was launched, or None if that time is not known."""
    launched = getattr(instance, 'launched_at', None)
    return None if launched is None else int((datetime.datetime.now(datetime.UTC) - launched).total_seconds())


def _nic(mac: str | None, counters: dict[str, int]) -> objects.NicDiagnostics:
    values = {
        f'{way}_{what}': counters.get(f'{way}_{what}') for way in ('rx', 'tx') for what in ('errors', 'drop', 'packets')
    }
    return objects.NicDiagnostics(
        mac_address=mac,
        rx_octets=counters.get('rx'),
        tx_octets=counters.get('tx'),
        rx_rate=None,
        tx_rate=None,
        **values,
    )


def _disk(counters: dict[str, int]) -> objects.DiskDiagnostics:
    return objects.DiskDiagnostics(
        read_bytes=counters.get('read'),
        read_requests=counters.get('read_req'),
        write_bytes=counters.get('write'),
        write_requests=counters.get('write_req'),
        errors_count=counters.get('errors'),
    )
