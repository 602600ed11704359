"""The route table, read for tests: names of rows, the versions where something of a row changes, bodies by version.

versions_of(route)     # [1, 2, 3, 8, 9, … 104]: each change, the version before it, the oldest and the newest
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from kilonova.api.fields import Field, Fields
from kilonova.api.routes import ROUTES
from kilonova.api.schemas import base as schemas
from kilonova.api.schemas.base import Obj, Prop, Window, Windows
from kilonova.api.versions import MAX, MIN
from kilonova.api.wsgi import Route

# The old name of a path whose answers are those of the new one.
ALIASES = {'/os-volumes_boot': '/servers'}


def key(route: Route) -> str:
    """'POST /servers/{server_id}/action os-stop'; with the window where two rows share the rest."""
    name = f'{route.method} {route.path} {route.action or ""}'.strip()
    same = [row for row in ROUTES if (row.method, row.path, row.action) == (route.method, route.path, route.action)]
    return name if len(same) == 1 else f'{name} since {route.since}'


def twin(path: str) -> str:
    """The path under its newer name."""
    return next((new + path[len(old) :] for old, new in ALIASES.items() if path.startswith(old)), path)


def is_gone(route: Route) -> bool:
    """Whether the route only says that it was there once (410)."""
    return route.status == 410 or route.handler.__module__.endswith('.gone')


def noun(route: Route) -> str:
    """The resource's name: that of its handlers' file, or of the folder that this is in."""
    return (
        route.handler.__module__.removeprefix('kilonova.api.v2.')
        .removeprefix('legacy.')
        .partition('.')[0]
        .replace('_', '-')
    )


def sample_name(route: Route) -> str:
    """'servers/show': where the samples of a route are, and how their files begin. Names of handlers that several
    paths share are followed by the path."""
    name = (route.action or route.handler.__name__).replace('_', '-')
    rows = {
        twin(row.path)
        for row in ROUTES
        if row.handler is route.handler and row.action == route.action and noun(row) == noun(route)
    }
    if len(rows) > 1:
        name += '-' + re.sub(r'[^a-z]+', '-', f'{route.method}{twin(route.path)}'.lower()).strip('-')
    return f'{noun(route)}/{name}'


# --- versions --------------------------------------------------------------------------------------------------------
def _edges(value: Any) -> Iterator[int]:
    """Where a schema changes."""
    if isinstance(value, (Prop, Window)):
        yield from (value.since, value.until + 1)
        yield from _edges(value.schema)
    elif isinstance(value, Obj):
        for prop in value.props:
            yield from _edges(prop)
        yield from _edges(value.more)
    elif isinstance(value, Windows):
        for window in value.windows:
            yield from _edges(window)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _edges(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _edges(item)


def _neighbours(module: ModuleType) -> list[ModuleType]:
    """The modules of nouns that a handlers' module works with."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, ModuleType) and value.__name__.startswith('kilonova.api.v2.')
    ]


def _tables(module: ModuleType) -> Iterator[int]:
    """Where the tables and named versions of a module change."""
    for name, value in vars(module).items():
        if isinstance(value, Fields):
            for field in value.fields:
                yield from (field.since, field.until + 1)
        elif isinstance(value, Field):
            yield from (value.since, value.until + 1)
        elif isinstance(value, int) and name.isupper() and name.endswith(('SINCE', 'UNTIL')):
            yield from (value, value + 1)


def changes(route: Route) -> set[int]:
    """Each version in which the route begins, ends, or something of its query, body or answer is another."""
    module = sys.modules[route.handler.__module__]
    found = {route.since, route.until + 1, route.query.strict_since, schemas.STRICT_SINCE}
    found.update(_edges(route.query.props), _edges(route.body))
    for each in (module, *_neighbours(module)):
        found.update(_tables(each))
    return found


def versions_of(route: Route) -> list[int]:
    """Each change, the version before it, the oldest and the newest; only those in which the route is there."""
    edges = changes(route)
    found = {MIN, MAX} | edges | {version - 1 for version in edges}
    return sorted(version for version in found if route.since <= version <= route.until)


# --- bodies ----------------------------------------------------------------------------------------------------------
def fit(body: Any, schema: dict[str, Any]) -> Any:
    """``body`` without the properties that a plain JSON schema doesn't know."""
    if isinstance(body, list) and isinstance(schema.get('items'), dict):
        return [fit(item, schema['items']) for item in body]
    if not isinstance(body, dict):
        return body
    known = schema.get('properties')
    if known is None:
        shapes = [shape for word in ('oneOf', 'anyOf') for shape in schema.get(word, ()) if 'properties' in shape]
        return fit(body, shapes[0]) if shapes else body
    patterns = schema.get('patternProperties', ())
    return {
        name: fit(value, known.get(name, {}))
        for name, value in body.items()
        if name in known or schema.get('additionalProperties') or any(re.search(each, name) for each in patterns)
    }
