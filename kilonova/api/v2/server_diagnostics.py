"""Diagnostics of a running server: CPU time, memory and traffic, for example (``/servers/{server_id}/diagnostics``)."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.services import ask_host
from kilonova.api.services.server_operations import WORK
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.objects import Diagnostics
from kilonova.objects.base import KilonovaObject

READ = f'{PREFIX}os-server-diagnostics'
RULES = (rule(READ, ADMIN, 'Show the diagnostics of a server, which the hypervisor measures.'),)

# The fields of ``objects.Diagnostics`` that are shown from microversion 2.48 on.
_PLAIN = (
    'state',
    'driver',
    'hypervisor',
    'hypervisor_os',
    'uptime',
    'config_drive',
    'num_cpus',
    'num_nics',
    'num_disks',
)
_MEMORY = ('maximum', 'used')
_CPU = ('id', 'time', 'utilisation')
_NIC = (
    'mac_address',
    'rx_octets',
    'rx_errors',
    'rx_drop',
    'rx_packets',
    'rx_rate',
    'tx_octets',
    'tx_errors',
    'tx_drop',
    'tx_packets',
    'tx_rate',
)
_DISK = ('read_bytes', 'read_requests', 'write_bytes', 'write_requests', 'errors_count')


def _body(found: Diagnostics) -> dict[str, Any]:
    """Return the response body of the diagnostics. Fields that the driver did not set are null."""
    return {
        **_of(found, _PLAIN),
        'memory_details': _of(found.memory_details, _MEMORY),
        'cpu_details': [_of(cpu, _CPU) for cpu in found.cpu_details],
        'nic_details': [_of(nic, _NIC) for nic in found.nic_details],
        'disk_details': [_of(disk, _DISK) for disk in found.disk_details],
    }


def _of(part: KilonovaObject, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(part, name) if name in part else None for name in names}


def flat(call: Call) -> Any:
    """Return the diagnostics in the driver's own format, until microversion 2.47 (``GET …/diagnostics``)."""
    return ask_host.ask(call.backend, call.ctxt, call.server, 'get_diagnostics')


def show(call: Call) -> Any:
    """Return the diagnostics in one format for all drivers, from microversion 2.48 on (``GET …/diagnostics``)."""
    return _body(ask_host.ask(call.backend, call.ctxt, call.server, 'get_instance_diagnostics'))


_PATH = f'{SERVER}/diagnostics'
ROUTES = (
    Route('GET', _PATH, flat, READ, server=WORK, until=47),
    Route('GET', _PATH, show, READ, server=WORK, since=48),
)
