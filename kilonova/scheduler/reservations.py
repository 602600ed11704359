"""What this scheduler chose and hosts don't report yet: the one ledger of all its selects.

    ledger = Reservations(lock, count)              # of table.Table, which counts what stands here in its columns
    ledger.take(uuid, Reservation(place, …))        # before the claim: whoever chooses meanwhile sees it gone
    ledger.made(uuid)                               # claimed
    ledger.give_back(uuid); ledger.reported(uuid)   # refused or given up; its host counts it itself
    made, under_way = ledger.since(asked)

Threads that choose at the same time all see the same free devices in Placement's answers. So each looks here what
others claimed since Placement answered, and waits for what is being claimed. Without that fifty selects for eight
devices sent 168 claims that could only fail; several schedulers still meet in Placement. Callers hold the lock.
"""
from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kilonova.objects import InstanceNUMATopology, InstancePCIRequest, RequestSpec
from kilonova.pci.request import as_list, group_name, guarantors, with_allocation
from kilonova.virt.hardware.constraints import shared_cpus

# An allocation request: {'allocations': {provider: {'resources': {class: amount}}}, 'mappings': {group: [provider]}}.
Request = dict[str, Any]
# {(provider, resource class): amount}
Uses = Counter[tuple[str, str]]
# A claim that no host has taken after so many seconds was given up by others.
FORGET_AFTER = 60.0
# Seconds for which what Placement said of hosts is believed.
BELIEVED = 5.0


@dataclass
class Reservation:
    """What one server was given on a host. ``vcpus``: shared ones; ``devices``: {provider uuid: number}; ``topology``:
    its place on the host's NUMA cells, if it asked for one; ``requests``: PCI requests whose devices Placement doesn't
    count, so that only the host will say which they are; ``uses``: its allocation in Placement. ``at`` and ``claimed``
    by the monotonic clock; None: it is being claimed. ``building``: it counts among the host's builds under way."""

    place: int
    vcpus: int
    memory_mb: int
    disk_mb: int
    devices: Counter[str]
    at: float = field(default_factory=time.monotonic)
    topology: InstanceNUMATopology | None = None
    requests: tuple[InstancePCIRequest, ...] = ()
    uses: Uses = field(default_factory=Counter)
    claimed: float | None = None
    building: bool = True


def reserve(place: int, spec: RequestSpec, request: Request, topology: InstanceNUMATopology | None = None,
            building: bool = True) -> Reservation:
    """What a server of this request takes with this allocation."""
    mappings = request['mappings']
    wanted = spec.numa_topology if 'numa_topology' in spec else None
    requests = spec.pci_requests if 'pci_requests' in spec else None
    return Reservation(
        place, shared_cpus(spec, wanted), spec.memory_mb, (spec.root_gb + spec.ephemeral_gb) * 1024 + (spec.swap or 0),
        Counter(rp for suffix, rps in mappings.items() if suffix for rp in rps), topology=topology,
        requests=tuple(with_allocation([one], mappings).requests[0] if guarantors(one, mappings) else one
                       for one in as_list(requests) if group_name(one.request_id, 0) not in mappings),
        uses=uses(request), building=building)


def uses(request: Request) -> Uses:
    """What an allocation request takes."""
    return Counter({(rp, name): amount for rp, given in request['allocations'].items()
                    for name, amount in given['resources'].items()})


class Reservations:
    """See the module. ``count(reservation, 1 or -1)`` is called after each change but that a host is gone."""

    def __init__(self, lock: threading.RLock, count: Callable[[Reservation, int], None]) -> None:
        self._changed, self._count = threading.Condition(lock), count
        self._of: dict[str, Reservation] = {}
        self._on: dict[int, dict[str, Reservation]] = {}
        # Claims of servers that their hosts count by now: (when it was claimed, what it takes in Placement).
        self._counted: deque[tuple[float, Uses]] = deque()
        # Goes up with each change: who has added all up need not do it again.
        self.version = 0

    def on(self, place: int) -> dict[str, Reservation]:
        """{server: what it was given} on a host and isn't in its row yet; one's own to keep."""
        return dict(self._on.get(place, ()))

    def sent_to(self, uuid: str) -> list[int]:
        """Where a server was just sent, if it was."""
        return [self._of[uuid].place] if uuid in self._of else []

    def take(self, uuid: str, reservation: Reservation) -> None:
        """Count what a server gets; what it was counted with before is forgotten."""
        self.give_back(uuid)
        self._of[uuid] = reservation
        self._on.setdefault(reservation.place, {})[uuid] = reservation
        self._note()
        self._count(reservation, 1)

    def reported(self, uuid: str) -> None:
        """The server's host counts it itself now; an answer that Placement gave before the claim doesn't."""
        reservation = self._of.get(uuid)
        if reservation is not None and reservation.claimed is not None:
            self._counted.append((reservation.claimed, reservation.uses))
        self.give_back(uuid)

    def give_back(self, uuid: str) -> None:
        """A server that doesn't get it after all."""
        reservation = self._of.pop(uuid, None)
        if reservation is not None:
            self._on[reservation.place].pop(uuid)
            self._note()
            self._count(reservation, -1)

    def drop(self, place: int) -> None:
        """The host is gone."""
        for uuid in self._on.pop(place, {}):
            del self._of[uuid]
        self._note()

    def made(self, uuid: str, at: float | None = None) -> None:
        """It is claimed; ``at``: when, if not now."""
        reservation = self._of.get(uuid)
        if reservation is not None:
            reservation.claimed = time.monotonic() if at is None else at
            self._note()

    def forget_old(self, now: float | None = None) -> None:
        """Drop servers that no host has taken in time, and claims that are older than any kept answer."""
        now = time.monotonic() if now is None else now
        self._counted = deque(one for one in self._counted if now - one[0] <= 2 * BELIEVED)
        for uuid in [uuid for uuid, one in self._of.items() if now - one.at > FORGET_AFTER]:
            self.give_back(uuid)

    def places(self) -> dict[str, int]:
        """{server: place} of all."""
        return {uuid: reservation.place for uuid, reservation in self._of.items()}

    def since(self, asked: float) -> tuple[Uses, Uses]:
        """What was claimed after ``asked``, and what is being claimed now."""
        made: Uses = Counter()
        under_way: Uses = Counter()
        for claimed, taken in self._counted:
            if claimed > asked:
                made.update(taken)
        for reservation in self._of.values():
            if reservation.claimed is None:
                under_way.update(reservation.uses)
            elif reservation.claimed > asked:
                made.update(reservation.uses)
        return made, under_way

    def wait(self, seconds: float) -> bool:
        """Let go of the lock until something changes; False: nothing did."""
        return seconds > 0 and self._changed.wait(seconds)

    def _note(self) -> None:
        self.version += 1
        with self._changed:
            self._changed.notify_all()
