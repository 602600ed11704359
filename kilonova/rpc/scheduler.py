"""The RPC method that schedulers answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.context import RequestContext
from kilonova.objects import RequestSpec
from kilonova.rpc.interface import RpcInterface, long_call


class Scheduler(RpcInterface):
    """The interface of the scheduler, which has one long call.

    The arguments ``claim``, ``time_left`` and ``operations`` do not exist in Nova. Moves claim later, and nothing is
    claimed for a caller that no longer waits. Version 4.6 had ``deadline``, a time of the caller's clock, in place of
    ``time_left``.
    """

    topic = 'scheduler'
    version = '4.7'

    @long_call('4.5', claim='4.6', time_left='4.7', operations='4.7')
    def select_destinations(
        self,
        ctxt: RequestContext,
        spec_obj: RequestSpec,
        instance_uuids: Sequence[str],
        return_objects: bool = True,
        return_alternates: bool = True,
        claim: bool = True,
        time_left: float | None = None,
        operations: Sequence[str] | None = None,
    ) -> Any:
        """Select a host and alternates for each server, and claim the host in Placement if ``claim`` is True.

        Nothing is claimed later than ``time_left`` seconds from now. ``operations`` are the boot operations of the
        servers.
        """
