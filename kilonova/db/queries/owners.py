"""Conditions that limit a query to the rows of one project, or explicitly to the rows of all projects.

    query.where(owners.of(table.c.project_id, ctxt.project_id))     # no rows for a caller without a project
    query.where(owners.of(table.c.project_id, owners.ALL))

Tokens without a project (unscoped tokens, and tokens of a domain or the system) have the ``project_id`` None. None must
never select the rows of all projects.
"""

from __future__ import annotations

import enum
from typing import Any

import sqlalchemy as sa

from kilonova.context import RequestContext


class Everybody(enum.Enum):
    """The type of ``ALL``, the owner that stands for all projects."""

    ALL = 'all'


ALL = Everybody.ALL
Owner = str | Everybody | None


def of(column: sa.ColumnElement[Any], owner: Owner) -> Any:
    """Return the SQL condition that a row belongs to the owner. If the owner is None, no row fulfils the condition."""
    if isinstance(owner, Everybody):
        return sa.true()
    return sa.false() if owner is None else column == owner


def has(owner: Owner, project_id: str | None) -> bool:
    """Return whether a row of project ``project_id`` belongs to the owner. Return False if the owner is None."""
    return isinstance(owner, Everybody) or (owner is not None and owner == project_id)


def seen_by(ctxt: RequestContext) -> Owner:
    """Return the owner whose rows a user may see: ALL for administrators, else the user's project."""
    return ALL if ctxt.is_admin else ctxt.project_id
