"""Host aggregates: the list, which clients read beside hypervisors."""
from __future__ import annotations

from typing import Any

from kilonova.api.views import aggregates as views
from kilonova.api.wsgi import Call
from kilonova.db.queries import aggregates


def index(call: Call) -> Any:
    """GET /os-aggregates."""
    with call.backend.api_db.read() as conn:
        rows = aggregates.snapshot(conn)
    return {'aggregates': [views.FIELDS.render(row, None, call.version) for row in rows]}
