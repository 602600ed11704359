"""The RPC method that schedulers answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova.context import RequestContext
from kilonova.objects import RequestSpec
from kilonova.rpc.interface import RpcInterface, long_call


class Scheduler(RpcInterface):
    """The RPC interface of the scheduler, which has one method.

    The arguments ``claim``, ``time_left`` and ``operations`` do not exist in Nova. ``claim`` is False for moves,
    because the conductor claims the host later. ``time_left`` and ``operations`` prevent claims for a conductor that no
    longer waits for the reply. Version 4.6 had the argument ``deadline``, a time of the conductor's clock, instead of
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

        ``return_objects`` is False for Nova's old form of the reply, a dict for each server. When ``time_left`` seconds
        have passed since the call, the scheduler claims nothing any more, because the caller has given up.
        ``operations`` are the uuids of the servers' boot operations. The claim for a server whose boot was cancelled is
        released.
        """
