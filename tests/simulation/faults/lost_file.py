"""The row of a volume goes on saying the file that it was in before a snapshot.

The simulator should see guests that write to another file than the one that Cinder knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.conductor.flows.volume import volume_snapshots
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def _is_in(work: Any, name: str, format_: str) -> Callable[[Any], object]:
        return lambda conn: None

    replace(volume_snapshots, '_is_in', _is_in)
