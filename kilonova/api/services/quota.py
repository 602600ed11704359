"""Quotas: how much a project may use, what it uses, and whether some more fits."""
from __future__ import annotations

from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.db.queries import quotas
from kilonova.errors import Forbidden, OverQuota

COUNTED = ('cores', 'instances', 'ram')


class MetadataLimitExceeded(Forbidden):
    msg_fmt = 'Maximum number of metadata items exceeds %(allowed)d'


def limits(backend: Backend, project_id: str | None) -> dict[str, int]:
    """resource → limit; None asks for those of a project that has none of its own."""
    with backend.api_db.read() as conn:
        found = quotas.limits(conn, project_id)
    return {name: found.get(name, default) for name, default in backend.options.quotas.items()}


def usage(backend: Backend, project_id: str) -> dict[str, int]:
    """What a project's servers use in all cells, those without a cell included. One statement a database."""
    with backend.api_db.read() as conn:
        total = quotas.requested(conn, project_id)
    for cell in backend.all_cells():
        with cell.read() as conn:
            for name, value in quotas.usage(conn, project_id).items():
                total[name] += value
    return total


def check_create(backend: Backend, project_id: str, allowed: dict[str, int], flavor: dict[str, Any], minimum: int,
                 maximum: int) -> int:
    """How many of ``maximum`` servers fit ``allowed`` (see ``limits``), at least ``minimum``. OverQuota otherwise."""
    each = {'instances': 1, 'cores': flavor['vcpus'], 'ram': flavor['memory_mb']}
    bounded = [name for name in COUNTED if allowed[name] >= 0 and each[name]]
    if not bounded:
        return maximum
    used = usage(backend, project_id)
    count = min([maximum, *(max(allowed[name] - used[name], 0) // each[name] for name in bounded)])
    if count < max(minimum, 1):
        _refuse({name: each[name] * minimum for name in COUNTED}, used, allowed)
    return count


def check_resize(backend: Backend, project_id: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """OverQuota when a larger flavor doesn't fit; a smaller one always does."""
    more = {'cores': new['vcpus'] - old['vcpus'], 'ram': new['memory_mb'] - old['memory_mb']}
    more = {name: delta for name, delta in more.items() if delta > 0}
    if not more:
        return
    allowed = limits(backend, project_id)
    if all(allowed[name] < 0 for name in more):
        return
    used = usage(backend, project_id)
    if any(0 <= allowed[name] < used[name] + delta for name, delta in more.items()):
        _refuse(more, used, allowed)


def check_metadata(allowed: dict[str, int], metadata: dict[str, str]) -> None:
    """MetadataLimitExceeded (403) for too many items."""
    limit = allowed['metadata_items']
    if 0 <= limit < len(metadata):
        raise MetadataLimitExceeded(allowed=limit)


def _refuse(wanted: dict[str, int], used: dict[str, int], allowed: dict[str, int]) -> None:
    overs = [name for name in sorted(wanted) if 0 <= allowed[name] < used[name] + wanted[name]]

    def listed(values: dict[str, int]) -> str:
        return ', '.join(str(values[name]) for name in overs)
    raise OverQuota(overs=', '.join(overs), req=listed(wanted), used=listed(used), allowed=listed(allowed))
