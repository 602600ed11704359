"""Whoever goes on with an operation doesn't look for attachments that an earlier try has made.

The simulator should see attachments that no row of a server has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.conductor.flows.volume import volumes
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def _delete_unknown_attachments(work: Any, volumes: Sequence[Any]) -> None:
        return None

    def _release(work: Any, delete: Sequence[str], delay: float = 0) -> None:
        if not delay:
            real(work, delete, delay)

    replace(volumes, '_delete_unknown_attachments', _delete_unknown_attachments)
    real = replace(volumes, '_release', _release)
