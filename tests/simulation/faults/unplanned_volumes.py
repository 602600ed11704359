"""The API makes volumes without a plan to give them back.

The simulator should see volumes that nobody has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kilonova.api.services import volumes
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def _note(backend: Any, ctxt: Any, uuids: Iterable[str], delay: float) -> list[str]:
        return []

    replace(volumes, '_note', _note)
