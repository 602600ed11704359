"""Tables of response fields, which build the body of a resource from its database row.

    FIELDS = Fields(Field('id', lambda row, viewer: row['uuid']), Field('locked', lambda row, viewer: …, since=9))
    FIELDS.render(row, viewer, version=9)

A field whose value is ``ABSENT`` is left out of the body. ``viewer`` is an object with the values that the fields need
in addition to the row, such as the rights of the caller.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kilonova.api.versions import MAX, MIN

ABSENT: Any = object()


class Field(NamedTuple):
    """One key of a response body, in the microversions ``since`` to ``until``.

    ``read(row, viewer)`` returns the value. A resource may have several kinds of bodies, for example a short and a
    detailed one. ``kinds`` is the set of kinds that have the key, where None means all.
    """

    name: str
    read: Callable[[Mapping[str, Any], Any], Any]
    since: int = MIN
    until: int = MAX
    kinds: frozenset[str] | None = None


class Fields:
    """The response fields of a resource.

    The list of fields for each microversion is computed once.
    """

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self._shown: dict[tuple[int, str | None], tuple[Field, ...]] = {}

    def at(self, version: int, kind: str | None = None) -> tuple[Field, ...]:
        """Return the fields that a body of ``kind`` has in a microversion."""
        key = version, kind
        if key not in self._shown:
            self._shown[key] = tuple(
                field
                for field in self.fields
                if field.since <= version <= field.until
                and (kind is None or field.kinds is None or kind in field.kinds)
            )
        return self._shown[key]

    def render(self, row: Mapping[str, Any], viewer: Any, version: int, kind: str | None = None) -> dict[str, Any]:
        """Return the response body of one row.

        ``kind`` is a kind of body that the resource defines. If it is None, the body has the fields of all kinds.
        """
        body = {}
        for field in self.at(version, kind):
            value = field.read(row, viewer)
            if value is not ABSENT:
                body[field.name] = value
        return body


def column(name: str, default: Any = None) -> Callable[[Mapping[str, Any], Any], Any]:
    """Return a function that reads one column of a row, and returns ``default`` if the column is NULL."""
    if default is None:
        return lambda row, viewer: row[name]
    return lambda row, viewer: default if row[name] is None else row[name]


def zulu(value: datetime.datetime | None) -> str | None:
    """Return a UTC time as text with a Z, such as '2026-11-21T10:00:00Z'. Return None if the value is None."""
    return None if value is None else f'{value:%Y-%m-%dT%H:%M:%S}Z'


def micro(value: datetime.datetime | None) -> str | None:
    """Return a UTC time in the older form without a zone, such as '2026-11-21T10:00:00.000000'.

    Return None if the value is None.
    """
    return None if value is None else f'{value:%Y-%m-%dT%H:%M:%S.%f}'
