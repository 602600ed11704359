"""A server that can't be started when its host boots is off for good, and nobody says why."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.compute import records
from kilonova.compute.guests import HostGuests
from kilonova.context import RequestContext
from tests.simulation.faults import replace


def install() -> None:
    """Put the fault back."""

    def _resume_later(self: HostGuests, ctxt: RequestContext, failed: Mapping[str, str]) -> None:
        for uuid in failed:
            instance = records.instance(ctxt, uuid)
            if instance is not None and instance.task_state is None:
                self._end(ctxt, instance, self._host.driver.guests.get_info(instance))

    replace(HostGuests, '_resume_later', _resume_later)
