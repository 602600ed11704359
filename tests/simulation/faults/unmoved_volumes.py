"""The volumes of a server that is reverted to its source stay attached to the host that it leaves.

The simulator should see volumes that are attached elsewhere.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flows.volume import volumes
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def to_host(work: Any, host: str, *, has_strays: bool = True, but: str | None = None) -> None:
        if work.kind != 'revert':
            real(work, host, has_strays=has_strays, but=but)

    real = replace(volumes, 'to_host', to_host)
