"""Bodies of hosts (rest-api.md §6)."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]


def brief(row: Row) -> dict[str, Any]:
    """An entry of the list: one for each service."""
    return {'host_name': row['host'], 'service': row['topic'], 'zone': row['zone']}


def resources(host: str, nodes: Iterable[Row], projects: Iterable[Row]) -> list[dict[str, Any]]:
    """What the host has, what its compute counts as used, what its servers were promised, and that by project."""
    nodes, projects = list(nodes), list(projects)

    def line(name: str, cpu: int, memory: int, disk: int) -> dict[str, Any]:
        return {'resource': {'host': host, 'project': name, 'cpu': cpu, 'memory_mb': memory, 'disk_gb': disk}}

    def sums(rows: list[Row], *names: str) -> list[int]:
        return [sum(int(row[name] or 0) for row in rows) for name in names]
    promised = ('vcpus', 'memory_mb', 'disk_gb')
    return [
        line('(total)', *sums(nodes, 'vcpus', 'memory_mb', 'local_gb')),
        line('(used_now)', *sums(nodes, 'vcpus_used', 'memory_mb_used', 'local_gb_used')),
        line('(used_max)', *sums(projects, *promised)),
        *(line(row['project_id'], *sums([row], *promised)) for row in projects)]
