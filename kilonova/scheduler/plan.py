"""Result of one host selection: a host for each server, and alternate hosts."""

from __future__ import annotations

from dataclasses import dataclass

from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.reservations import Request


@dataclass(frozen=True)
class Candidate:
    """A chosen host, and the allocation that a server gets on it.

    Attributes:
        host: The chosen host.
        request: The allocation request; None if nothing is to be allocated because the server is on this host already.
        held: True if an earlier call for the same server has already written the allocation. Placement's answer counts
            the amounts as used in this case.
    """

    host: HostState
    request: Request | None = None
    held: bool = False


@dataclass(frozen=True)
class SelectionPlan:
    """The chosen hosts, one for each server in the order of the request, and the alternate hosts of each server."""

    choices: list[Candidate]
    alternates: list[list[Candidate]]
