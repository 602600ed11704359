"""Result of one host selection: a host for each server, and alternate hosts."""

from __future__ import annotations

from dataclasses import dataclass

from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.reservations import Request


@dataclass(frozen=True)
class Candidate:
    """A host that a server may get, and the allocation that the server gets on it.

    Attributes:
        host: The host.
        request: The allocation request; None if nothing is to be allocated because the server is on this host already.
        held: True if an earlier scheduling call for the same server has already written the allocation. Placement's
            answer then counts its amounts as used, so they must not be subtracted again.
    """

    host: HostState
    request: Request | None = None
    held: bool = False


@dataclass(frozen=True)
class SelectionPlan:
    """The chosen hosts, one for each server in the order of the request, and the alternate hosts of each server."""

    choices: list[Candidate]
    alternates: list[list[Candidate]]
