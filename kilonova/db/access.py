"""Record whether this process may use databases. nova-compute may not.

    access.forbid('nova-compute')

This module imports nothing of the database code that it forbids.
"""

from __future__ import annotations

from kilonova import errors

_forbidden: str | None = None


def forbid(binary: str | None) -> None:
    """Make each database that this process opens raise DBNotAllowed for ``binary``. None allows databases again."""
    global _forbidden  # noqa: PLW0603 - what a process may do
    _forbidden = binary


def check() -> None:
    """Raise DBNotAllowed if this process must not use databases."""
    if _forbidden is not None:
        raise errors.DBNotAllowed(binary=_forbidden)
