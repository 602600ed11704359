"""A reverted server looks for its accelerators under the uuid of the migration, whose requests are gone.

The simulator should see a server with a device profile and without requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.accel import holder
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def reverted(metadata: Mapping[str, str]) -> dict[str, str | None]:
        return {holder.BEFORE: None}

    replace(holder, 'reverted', reverted)
