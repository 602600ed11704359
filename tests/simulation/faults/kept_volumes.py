"""Attachments of a server that ends stay where Cinder doesn't answer at once: ``drop`` forgets them.

The simulator should see attachments that are no server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.conductor.flows import releases
from kilonova.conductor.flows.volume import volumes
from kilonova.errors import Unanswered
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def drop(work: Any, delete: Sequence[str]) -> None:
        try:
            releases.give_back_volumes(work, (), delete)
        except Unanswered:
            return

    replace(volumes, 'drop', drop)
