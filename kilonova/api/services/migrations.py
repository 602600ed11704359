"""The moves of servers over all cells, newest first."""
from __future__ import annotations

from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.api.services.silence import ask_cells, refuse_if_any
from kilonova.db.queries import migrations
from kilonova.errors import UnknownMarker


def list_migrations(backend: Backend, filters: dict[str, Any], *, limit: int | None,
                    marker: str | None = None, seen_by: str | None = None) -> list[dict[str, Any]]:
    """One page of the cells that answer, or with ``limit`` None all. ``marker``: the uuid of the last one seen, by
    the project ``seen_by`` (None: by somebody who sees all); UnknownMarker: no cell has it.
    """
    rows: list[dict[str, Any]] = []
    last = _find(backend, marker, seen_by) if marker is not None else None

    def ask(cell: Any) -> list[dict[str, Any]]:
        with cell.read() as conn:
            known = last is not None and migrations.get(conn, uuid=marker) is not None
            found = migrations.list_migrations(conn, filters=filters, limit=None if last and not known else limit,
                                               marker=marker if known else None)
        return [row for row in found if known or last is None or _rank(row) < _rank(last)]
    for _, found in ask_cells(backend.compute_cells(), ask, []):
        rows.extend(found)
    rows.sort(key=_rank, reverse=True)
    return rows[:limit]


def _find(backend: Backend, uuid: str, seen_by: str | None) -> dict[str, Any]:
    def ask(cell: Any) -> dict[str, Any] | None:
        with cell.read() as conn:
            return migrations.get(conn, uuid=uuid)
    silent: list[Any] = []
    for _, found in ask_cells(backend.compute_cells(), ask, silent):
        if found is not None and seen_by in (None, found['project_id']):
            return found
    refuse_if_any(silent)
    raise UnknownMarker(marker=uuid)


def _rank(row: dict[str, Any]) -> tuple[Any, int]:
    return row['created_at'], row['id']
