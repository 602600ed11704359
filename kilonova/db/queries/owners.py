"""Whose rows a query is about: a project's, or everybody's, which is said in so many words.

    query.where(owners.of(table.c.project_id, ctxt.project_id))     # nothing for a caller without a project
    query.where(owners.of(table.c.project_id, owners.ALL))

Tokens without a project (unscoped ones, those of a domain or the system) have ``project_id`` None: it must never mean
everything.
"""
from __future__ import annotations

import enum
from typing import Any

import sqlalchemy as sa

from kilonova.context import RequestContext


class Everybody(enum.Enum):
    """All projects together."""

    ALL = 'all'


ALL = Everybody.ALL
Owner = str | Everybody | None


def of(column: sa.ColumnElement[Any], owner: Owner) -> Any:
    """The condition that a row is one of the owner's."""
    if isinstance(owner, Everybody):
        return sa.true()
    return sa.false() if owner is None else column == owner


def has(owner: Owner, project_id: str | None) -> bool:
    """The same for a row in hand."""
    return isinstance(owner, Everybody) or (owner is not None and owner == project_id)


def seen_by(ctxt: RequestContext) -> Owner:
    """Whose rows a caller may see: administrators those of all projects."""
    return ALL if ctxt.is_admin else ctxt.project_id
