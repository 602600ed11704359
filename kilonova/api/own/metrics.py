"""The resource ``/metrics``: the numbers of PCI devices by host, kind, status and project, as text for Prometheus."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import ADMIN, rule
from kilonova.api.schemas.base import QuerySchema
from kilonova.api.services.scatter_gather import ask_cells
from kilonova.api.wsgi import Call, Reply, Route
from kilonova.db.engine import Database
from kilonova.db.queries import device_counts
from kilonova.pci import metrics
from kilonova.pci.device import BARS

SHOW = 'kilonova:metrics:show'
RULES = (rule(SHOW, ADMIN, 'Read how many devices there are, by host, kind, status and project, for Prometheus.'),)


def show(call: Call) -> Any:
    """Return the numbers of PCI devices by host, kind, status and project, for Prometheus (``GET /metrics``).

    The text also says for each cell whether its database answered. Runs at most three SQL statements for each cell.
    """
    silent: list[Database] = []

    def ask(cell: Database) -> tuple[str, list[device_counts.Counted], list[device_counts.Barred]]:
        with cell.read() as conn:
            return cell.name, device_counts.counts(conn), device_counts.with_words(conn, BARS)

    found = [answer for _, answer in ask_cells(call.backend.compute_cells(), ask, silent)]
    return Reply(
        text=metrics.text(found, [cell.name for cell in silent]), headers=(('Content-Type', metrics.CONTENT_TYPE),)
    )


ROUTES = (Route('GET', '/metrics', show, SHOW, query=QuerySchema.of()),)
