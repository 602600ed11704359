"""A server that is deleted keeps its accelerators: ``drop_all`` does nothing.

The simulator should see requests that are no server's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kilonova.conductor.flows import accelerators
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def drop_all(work: Any, instance: Any, moves: Iterable[str] = ()) -> None:
        pass

    replace(accelerators, 'drop_all', drop_all)
