"""What a select comes to: a host for each server, and others that may stand in."""
from __future__ import annotations

from dataclasses import dataclass

from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.reservations import Request


@dataclass(frozen=True)
class Choice:
    """A host, and what to allocate there (None: nothing, the server is on it already).

    ``held``: an earlier select for the same server allocated it; Placement's answer counted it as used.
    """

    host: HostState
    request: Request | None = None
    held: bool = False


@dataclass(frozen=True)
class Plan:
    """One choice a server, in the order asked for, and as many lists of alternates."""

    choices: list[Choice]
    alternates: list[list[Choice]]
