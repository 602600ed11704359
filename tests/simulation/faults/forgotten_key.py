"""A host forgets the keys of orders that it finished, and does what is sent twice twice."""
from __future__ import annotations

from kilonova.compute.keys import Keys


def install() -> None:
    """Nothing is kept."""
    Keys._prune = lambda self: self._finished.clear()  # type: ignore[method-assign]
