"""The moves of servers over all cells, newest first."""
from __future__ import annotations

from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.db.queries import migrations
from kilonova.errors import MarkerNotFound


def list_migrations(backend: Backend, filters: dict[str, Any], *, limit: int,
                    marker: str | None = None) -> list[dict[str, Any]]:
    """One page. ``marker``: the uuid of the last one seen; MarkerNotFound where no cell has it."""
    rows: list[dict[str, Any]] = []
    last = _find(backend, marker) if marker is not None else None
    for cell in backend.compute_cells():
        with cell.read() as conn:
            known = last is not None and migrations.get(conn, uuid=marker) is not None
            found = migrations.list_migrations(conn, filters=filters, limit=None if last and not known else limit,
                                               marker=marker if known else None)
        rows.extend(row for row in found if known or last is None or _rank(row) < _rank(last))
    rows.sort(key=_rank, reverse=True)
    return rows[:limit]


def _find(backend: Backend, uuid: str) -> dict[str, Any]:
    for cell in backend.compute_cells():
        with cell.read() as conn:
            found = migrations.get(conn, uuid=uuid)
        if found is not None:
            return found
    raise MarkerNotFound(marker=uuid)


def _rank(row: dict[str, Any]) -> tuple[Any, int]:
    return row['created_at'], row['id']
