"""The list of extensions, which older clients read to learn what a cloud can do."""
from __future__ import annotations

from typing import Any

from kilonova.api.views import extensions as views
from kilonova.api.wsgi import Call
from kilonova.errors import NotFound


def index(call: Call) -> Any:
    """GET /extensions."""
    return {'extensions': [views.show(row) for row in views.EXTENSIONS]}


def show(call: Call) -> Any:
    """GET /extensions/{alias}."""
    found = next((row for row in views.EXTENSIONS if row.alias == call.path['alias']), None)
    if found is None:
        raise NotFound('The resource could not be found.')
    return {'extension': views.show(found)}
