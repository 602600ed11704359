"""A build makes ports without a look at those that the server has: each attempt makes them anew.

The simulator should see ports that a server's info cache lacks.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flows.network import ports
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def bind_wanted(work: Any, host: Any, is_first: bool) -> Any:
        return real(work, host, True)

    real = replace(ports, 'bind_wanted', bind_wanted)
