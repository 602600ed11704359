"""Read the JSON texts of rows that may be cut or of another form, after a restore or a script of an operator.

    stats = texts.read('stats of node gpu1', row['stats'], texts.mapping, {})

Objects, the scheduler and the audit call this, so that one such text concerns no other row.
"""
from __future__ import annotations

import json
import logging
from collections.abc import Callable
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
        LOG.error('The %s cannot be read (%s: %s): it counts as empty until its host writes it anew.', what,
                  type(error).__name__, error)
        return cast('ValueT', otherwise)


def mapping(text: str) -> dict[str, Any]:
    """Return the object of a text. Raises an error of BROKEN if it is none."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f'it is a {type(found).__name__} and no object')
    return found


def triples(text: str) -> list[list[str]]:
    """Return the lists of three words each of a text. Raises an error of BROKEN if it is of another form."""
    found = json.loads(text)
    return [[str(arch), str(kind), str(mode)] for arch, kind, mode in found]
