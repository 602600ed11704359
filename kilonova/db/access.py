"""Record whether this process may use databases. nova-compute may not.

    access.forbid('nova-compute')

This module imports no other module of ``kilonova.db``, so that nova-compute can use it without loading SQLAlchemy.
"""

from __future__ import annotations

from kilonova import errors

_forbidden: str | None = None


def forbid(binary: str | None) -> None:
    """Forbid this process to open databases: each attempt raises DBNotAllowed, which names the daemon ``binary``.

    If ``binary`` is None, databases are allowed again.
    """
    global _forbidden  # noqa: PLW0603 - what a process may do
    _forbidden = binary


def check() -> None:
    """Raise DBNotAllowed if this process must not use databases."""
    if _forbidden is not None:
        raise errors.DBNotAllowed(binary=_forbidden)
