"""Read JSON texts of database rows. A restore or an operator's script may have cut such a text or changed its form.

    stats = texts.read('stats of node gpu1', row['stats'], texts.mapping, {})
    values, why = texts.split(row, ('args', 'outputs'))     # {'args': {…}, 'outputs': {}}, 'outputs (ValueError: …)'

Objects, queries, the scheduler and the audit use these functions, so that an unreadable text affects no other row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from oslo_log import log as logging
from oslo_versionedobjects import exception as ovo_exception

LOG = logging.getLogger(__name__)
ValueT = TypeVar('ValueT')

# Errors that functions raise when they read a text that is not JSON, or that is JSON of an unexpected form.
BROKEN = (ValueError, LookupError, TypeError, AttributeError, ovo_exception.VersionedObjectsException)


def read(what: str, text: str | None, reader: Callable[[str], ValueT], otherwise: Any) -> ValueT:
    """Return the result of ``reader(text)``, or ``otherwise`` if the text is empty or can't be read.

    An error is logged if the text can't be read. ``what`` names the column and the row of the text in the log.
    """
    if not text:
        return cast('ValueT', otherwise)
    try:
        return reader(text)
    except BROKEN as error:
        LOG.error('The %s cannot be read (%s: %s); treating it as empty', what, type(error).__name__, error)
        return cast('ValueT', otherwise)


def mapping(text: str | None) -> dict[str, Any]:
    """Return the object of a JSON text as a dict, or an empty dict if the text is empty.

    Raises ValueError if the text is not JSON, and TypeError if it is JSON but not an object.
    """
    if not text:
        return {}
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f'the JSON text is a {type(found).__name__}, not an object')
    return found


def triples(text: str) -> list[list[str]]:
    """Return the content of a JSON text that is a list of lists of three words each.

    Raises an error that is in BROKEN if the text has another form.
    """
    found = json.loads(text)
    return [[str(arch), str(kind), str(mode)] for arch, kind, mode in found]


def split(row: Mapping[Any, Any], names: Iterable[str]) -> tuple[dict[str, dict[str, Any]], str]:
    """Return {column: object} of a row's JSON columns, and a text that says which columns could not be read.

    Columns that are not in the row are left out. A column that can't be read counts as an empty object. The text gives
    the reason for each such column, and is '' if all columns could be read.
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
