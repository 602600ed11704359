"""Ports of a server that ends stay where Neutron doesn't answer at once: ``drop`` forgets them.

The simulator should see ports that are no server's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kilonova.conductor.flows import releases
from kilonova.conductor.flows.network import port_releases
from kilonova.errors import Unanswered
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def drop(work: Any, own: Sequence[str], keep: Collection[str] = ()) -> None:
        try:
            releases.give_back_ports(work, own, keep)
        except Unanswered:
            return

    replace(port_releases, 'drop', drop)
