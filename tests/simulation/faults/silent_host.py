"""Accelerators are free when a server leaves a host that doesn't answer, though its guest may run there.

The simulator should see a running guest with an accelerator that isn't bound to its server.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flows import releases
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def hosts_left(work: Any) -> list[str]:
        return []

    replace(releases, 'hosts_left', hosts_left)
