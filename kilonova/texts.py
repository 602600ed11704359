"""Read the JSON texts of rows that a restore or a script of an operator may have cut or written in another form.

    stats = texts.read('stats of node gpu1', row['stats'], texts.mapping, {})
    values, why = texts.split(row, ('args', 'outputs'))     # {'args': {…}, 'outputs': {}}, 'outputs (ValueError: …)'

Objects, queries, the scheduler and the audit call this, so that one such text concerns no other row.
"""
from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from oslo_versionedobjects import exception as ovo_exception

LOG = logging.getLogger(__name__)
ValueT = TypeVar('ValueT')

# What reading a text raises that is no JSON, or is JSON of another form.
BROKEN = (ValueError, LookupError, TypeError, AttributeError, ovo_exception.VersionedObjectsException)


def read(what: str, text: str | None, reader: Callable[[str], ValueT], otherwise: Any) -> ValueT:
    """Return what ``reader`` makes of a text, ``otherwise`` if there is none or it cannot be read, which is logged.

    ``what``: the column and its row, for the log.
    """
    if not text:
        return cast('ValueT', otherwise)
    try:
        return reader(text)
    except BROKEN as error:
        LOG.error('The %s cannot be read (%s: %s): it counts as empty.', what, type(error).__name__, error)
        return cast('ValueT', otherwise)


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


def triples(text: str) -> list[list[str]]:
    """Return the lists of three words each of a text. Raises an error of BROKEN if it is of another form."""
    found = json.loads(text)
    return [[str(arch), str(kind), str(mode)] for arch, kind, mode in found]


def split(row: Mapping[Any, Any], names: Iterable[str]) -> tuple[dict[str, dict[str, Any]], str]:
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
