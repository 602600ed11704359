"""Whether this process may use a database at all. It imports nothing of what it forbids.

    access.forbid('nova-compute')
"""
from __future__ import annotations

from kilonova import errors

_forbidden: str | None = None


def forbid(binary: str | None) -> None:
    """From now on each database that this process opens raises DBNotAllowed for ``binary``; None allows it again."""
    global _forbidden  # noqa: PLW0603 - what a process may do
    _forbidden = binary


def check() -> None:
    """DBNotAllowed where it may not."""
    if _forbidden is not None:
        raise errors.DBNotAllowed(binary=_forbidden)
