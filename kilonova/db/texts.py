"""Read the JSON objects in texts of rows that a restore or a script of an operator may have cut.

    values, why = texts.split(row, ('args', 'outputs'))     # {'args': {…}, 'outputs': {}}, 'outputs (ValueError: …)'

Queries call this, so that one such row takes down no other.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa


def mapping(text: str | None) -> dict[str, Any]:
    """Return the object of a text, an empty one if there is no text.

    Raises ValueError if the text is no JSON, TypeError if it is JSON and no object.
    """
    if not text:
        return {}
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f'it is a {type(found).__name__} and no object')
    return found


def split(row: Mapping[str, Any] | sa.RowMapping, names: Iterable[str]) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the objects in those of the columns that a row has, and which of them could not be read and why.

    A column that cannot be read counts as an empty object. The second value is '' if all can be read.
    """
    values: dict[str, dict[str, Any]] = {}
    problems = []
    for name in names:
        if name not in row:
            continue
        try:
            values[name] = mapping(row[name])
        except (ValueError, TypeError) as error:
            values[name] = {}
            problems.append(f'{name} ({type(error).__name__}: {error})')
    return values, ', '.join(problems)


def json_column(dialect: str, column: sa.ColumnElement[Any]) -> Any:
    """Return a text column as one that SQL reads JSON in. A text that is no JSON counts as NULL.

    ``dialect``: the name of the database's dialect. PostgreSQL before its release 16 has no such test, so a text
    that is no JSON fails the statement there.
    """
    if dialect == 'postgresql':
        # PostgreSQL's operators want the type, the others' functions take the text.
        return sa.cast(column, sa.JSON)
    return sa.type_coerce(sa.case((sa.func.json_valid(column) == 1, column)), sa.JSON)
