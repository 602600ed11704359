"""What schedulers answer (scheduler.md §1)."""
from __future__ import annotations

from typing import Any

from kilonova.rpc.interface import Interface, long_call


class Scheduler(Interface):
    """One long call; ``claim`` and ``deadline`` are ours: moves claim later, and nobody claims for a gone asker."""

    topic = 'scheduler'
    version = '4.6'

    @long_call('4.5', claim='4.6', deadline='4.6')
    def select_destinations(self, ctxt, spec_obj, instance_uuids, return_objects=True, return_alternates=True,
                            claim=True, deadline=None) -> Any: ...
