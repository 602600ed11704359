"""Finding 1.7: the delete of a server whose operation waits for a slot of a host waits for somebody else's call.

``wake`` passes over what is parked. The simulator should see such a delete take as long as the call does.
"""
from __future__ import annotations

from kilonova.conductor.runner import Runner
from kilonova.conductor.work import Work
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""
    def _unpark(self: Runner, uuid: str) -> Work | None:
        return None
    replace(Runner, '_unpark', _unpark)
