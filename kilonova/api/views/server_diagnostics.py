"""The body of diagnostics from 2.48 on: the fields of ``objects.Diagnostics`` (rest-api.md §6)."""
from __future__ import annotations

from typing import Any

_PLAIN = ('state', 'driver', 'hypervisor', 'hypervisor_os', 'uptime', 'config_drive', 'num_cpus', 'num_nics',
          'num_disks')
_MEMORY = ('maximum', 'used')
_CPU = ('id', 'time', 'utilisation')
_NIC = ('mac_address', 'rx_octets', 'rx_errors', 'rx_drop', 'rx_packets', 'rx_rate', 'tx_octets', 'tx_errors',
        'tx_drop', 'tx_packets', 'tx_rate')
_DISK = ('read_bytes', 'read_requests', 'write_bytes', 'write_requests', 'errors_count')


def show(found: Any) -> dict[str, Any]:
    """``found``: an objects.Diagnostics; what its driver couldn't tell is null."""
    return {**_of(found, _PLAIN), 'memory_details': _of(found.memory_details, _MEMORY),
            'cpu_details': [_of(cpu, _CPU) for cpu in found.cpu_details],
            'nic_details': [_of(nic, _NIC) for nic in found.nic_details],
            'disk_details': [_of(disk, _DISK) for disk in found.disk_details]}


def _of(part: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(part, name) if name in part else None for name in names}
