"""The NUMA topology of a server (``/servers/{server_id}/topology``)."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import ADMIN, READER, rule
from kilonova.api.services.server_operations import WHOLE
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.objects import InstanceNUMACell
from kilonova.objects.base import KilonovaObject

READ, SEE_HOST = 'compute:server:topology:index', 'compute:server:topology:host:index'
RULES = (
    rule(READ, READER, 'See the NUMA topology of a server.'),
    rule(SEE_HOST, ADMIN, 'See on which NUMA nodes and CPUs of its host a server runs.'),
)


def index(call: Call) -> Any:
    """Return the NUMA topology of a server (``GET /servers/{server_id}/topology``)."""
    # A server that is not in a cell yet has no topology.
    return _body(call.server.row.get('extra_numa_topology'), host=call.may(SEE_HOST))


def _body(text: str | None, host: bool) -> dict[str, Any]:
    """Return the response body of a topology.

    ``text`` is the column ``numa_topology`` of instance_extra. With ``host`` the caller also sees the NUMA nodes and
    CPUs of the host.
    """
    found: Any = KilonovaObject.from_json(text, None) if text else None
    cells = found.cells if found is not None else []
    # All NUMA cells of a server have the same page size, so show the first one that is set.
    return {
        'nodes': [_node(cell, host) for cell in cells],
        'pagesize_kb': next((cell.pagesize for cell in cells if _value(cell, 'pagesize')), None),
    }


def _node(cell: InstanceNUMACell, host: bool) -> dict[str, Any]:
    cpus = sorted(cell.total_cpus)
    body: dict[str, Any] = {'memory_mb': cell.memory, 'vcpu_set': cpus, 'siblings': _siblings(cell)}
    if host:
        body['host_node'] = cell.id
        body['cpu_pinning'] = {
            str(guest): cpu
            for guest, cpu in sorted((_value(cell, 'cpu_pinning_raw') or {}).items(), key=lambda pair: int(pair[0]))
        }
    return body


def _siblings(cell: InstanceNUMACell) -> list[list[int]]:
    """Return lists of guest CPUs, where each list has the threads of one core.

    Return an empty list if the cores of the guest have only one thread.
    """
    layout = _value(cell, 'cpu_topology')
    threads = layout.threads if layout is not None else 1
    cpus = sorted(cell.total_cpus)
    if not threads or threads < 2:
        return []
    return [cpus[first : first + threads] for first in range(0, len(cpus), threads)]


def _value(cell: InstanceNUMACell, name: str) -> Any:
    return getattr(cell, name) if name in cell else None


ROUTES = (Route('GET', f'{SERVER}/topology', index, READ, server=WHOLE, since=78, asks=(SEE_HOST,)),)
