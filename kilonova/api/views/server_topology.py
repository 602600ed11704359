"""Bodies of NUMA topologies (rest-api.md §2.3)."""
from __future__ import annotations

from typing import Any

from kilonova.objects.base import KilonovaObject


def topology(text: str | None, host: bool) -> dict[str, Any]:
    """``text``: the column of instance_extra; ``host``: whether the caller sees where on the host the nodes are."""
    found: Any = KilonovaObject.from_json(text, None) if text else None
    cells = found.cells if found is not None else []
    # One server has pages of one size.
    return {'nodes': [_node(cell, host) for cell in cells],
            'pagesize_kb': next((cell.pagesize for cell in cells if _value(cell, 'pagesize')), None)}


def _node(cell: Any, host: bool) -> dict[str, Any]:
    cpus = sorted(cell.total_cpus)
    body: dict[str, Any] = {'memory_mb': cell.memory, 'vcpu_set': cpus, 'siblings': _siblings(cell)}
    if host:
        body['host_node'] = cell.id
        body['cpu_pinning'] = {str(guest): cpu for guest, cpu in sorted((_value(cell, 'cpu_pinning_raw') or {}).items(),
                                                                        key=lambda pair: int(pair[0]))}
    return body


def _siblings(cell: Any) -> list[list[int]]:
    """Guest CPUs that are threads of one core; none without threads."""
    layout = _value(cell, 'cpu_topology')
    threads = layout.threads if layout is not None else 1
    cpus = sorted(cell.total_cpus)
    if not threads or threads < 2:
        return []
    return [cpus[first:first + threads] for first in range(0, len(cpus), threads)]


def _value(cell: Any, name: str) -> Any:
    return getattr(cell, name) if name in cell else None
