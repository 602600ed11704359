"""What schedulers answer."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.context import RequestContext
from kilonova.objects import RequestSpec
from kilonova.rpc.interface import Interface, long_call


class Scheduler(Interface):
    """One long call; ``claim``, ``time_left`` and ``operations`` are ours: moves claim later, and nobody claims for a
    gone asker. Until 4.6 ``deadline``, a reading of the asker's clock, stood for ``time_left``."""

    topic = 'scheduler'
    version = '4.7'

    @long_call('4.5', claim='4.6', time_left='4.7', operations='4.7')
    def select_destinations(self, ctxt: RequestContext, spec_obj: RequestSpec, instance_uuids: Sequence[str],
                            return_objects: bool = True, return_alternates: bool = True, claim: bool = True,
                            time_left: float | None = None, operations: Sequence[str] | None = None) -> Any: ...
