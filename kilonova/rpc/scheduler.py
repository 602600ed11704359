"""What schedulers answer (scheduler.md §1)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.objects import RequestSpec
from kilonova.rpc.interface import Interface, long_call


class Scheduler(Interface):
    """One long call; ``claim`` and ``deadline`` are ours: moves claim later, and nobody claims for a gone asker."""

    topic = 'scheduler'
    version = '4.6'

    @long_call('4.5', claim='4.6', deadline='4.6')
    def select_destinations(self, ctxt: Any, spec_obj: RequestSpec, instance_uuids: Sequence[str],
                            return_objects: bool = True, return_alternates: bool = True, claim: bool = True,
                            deadline: float | None = None) -> Any: ...
