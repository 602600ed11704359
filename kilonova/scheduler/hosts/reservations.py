"""Reservations: resources that this scheduler process gave to servers, and that the hosts' rows do not contain yet.

    reservations = Reservations(lock, count)              # ``count`` subtracts them from the columns of table.Table
    reservations.take(uuid, Reservation(host_index, …))   # before the claim: other threads see the resources as used
    reservations.made(uuid)                               # the claim is written
    reservations.give_back(uuid)                          # the claim was refused or released
    reservations.reported(uuid)                           # the host's row counts the server
    made, under_way = reservations.since(asked)           # claimed amounts since that time, and amounts being claimed

Threads that choose at the same time all see the same free devices in Placement's answers. So each thread subtracts the
claims that other threads made after Placement answered, and waits for claims that are under way. Without this, 50
requests for 8 devices sent 168 claims that had to fail. Several scheduler processes still compete in Placement. Callers
must hold the lock.
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
# {(provider uuid, resource class): amount}
Uses = Counter[tuple[str, str]]
# Seconds after which a reservation is removed if no host has reported the server. Scheduling calls are shorter.
FORGET_AFTER = 60.0
# Seconds for which a stored answer of Placement about hosts is used for further requests.
BELIEVED = 5.0


@dataclass
class Reservation:
    """Resources that one server gets on a host.

    Attributes:
        host_index: The host's index in the table.
        vcpus: Number of shared CPUs.
        memory_mb: Memory in MiB.
        disk_mb: Disk in MiB.
        devices: Number of devices by provider uuid.
        at: Monotonic time of creation.
        topology: The server's NUMA topology on the host's cells, if it asked for one.
        requests: PCI requests whose devices Placement does not count. The host itself chooses the devices.
        uses: The server's allocation in Placement.
        claimed: Monotonic time of the claim; None while the claim is under way.
        building: True if the server counts as one of the host's builds under way.
    """

    host_index: int
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


def reserve(
    host_index: int,
    spec: RequestSpec,
    request: Request,
    topology: InstanceNUMATopology | None = None,
    building: bool = True,
) -> Reservation:
    """Return the reservation of the resources that a server of request ``spec`` gets on the host at ``host_index``.

    ``request`` is the allocation request with which the host is claimed.
    """
    mappings = request['mappings']
    wanted = spec.numa_topology if 'numa_topology' in spec else None
    requests = spec.pci_requests if 'pci_requests' in spec else None
    return Reservation(
        host_index,
        shared_cpus(spec, wanted),
        spec.memory_mb,
        (spec.root_gb + spec.ephemeral_gb) * 1024 + (spec.swap or 0),
        Counter(rp for suffix, rps in mappings.items() if suffix for rp in rps),
        topology=topology,
        requests=tuple(
            with_allocation([one], mappings).requests[0] if guarantors(one, mappings) else one
            for one in as_list(requests)
            if group_name(one.request_id, 0) not in mappings
        ),
        uses=uses(request),
        building=building,
    )


def uses(request: Request) -> Uses:
    """Return the resources of an allocation request as a dict {(provider uuid, resource class): amount}."""
    return Counter(
        {
            (rp, name): amount
            for rp, given in request['allocations'].items()
            for name, amount in given['resources'].items()
        }
    )


class Reservations:
    """All reservations of one scheduler process.

    ``count(reservation, sign)`` is a function that updates the columns of the host table. It is called with sign 1
    after a reservation is added, and with -1 after it is removed. It is not called for reservations on a deleted host,
    which has no columns any more.
    """

    def __init__(self, lock: threading.RLock, count: Callable[[Reservation, int], None]) -> None:
        self._changed, self._count = threading.Condition(lock), count
        self._of: dict[str, Reservation] = {}
        self._on: dict[int, dict[str, Reservation]] = {}
        # (Monotonic time, amounts) of claims whose server is reported. Older answers of Placement do not count them.
        self._counted: deque[tuple[float, Uses]] = deque()
        # A number that grows with each change. Callers may reuse a sum of reservations until this number changes.
        self.version = 0

    def on(self, host_index: int) -> dict[str, Reservation]:
        """Return {server: reservation} for the host at ``host_index``, as a copy.

        The host's row does not contain these servers yet.
        """
        return dict(self._on.get(host_index, ()))

    def sent_to(self, uuid: str) -> list[int]:
        """Return a list with the index of the host that has the server's reservation.

        The list is empty if the server has none.
        """
        return [self._of[uuid].host_index] if uuid in self._of else []

    def take(self, uuid: str, reservation: Reservation) -> None:
        """Add a server's reservation. An earlier reservation of the same server is removed."""
        self.give_back(uuid)
        self._of[uuid] = reservation
        self._on.setdefault(reservation.host_index, {})[uuid] = reservation
        self._note()
        self._count(reservation, 1)

    def reported(self, uuid: str) -> None:
        """Remove a server's reservation because its host has reported the server.

        A stored answer of Placement that is older than the server's claim still shows the claimed amounts as free. So
        ``since`` returns these amounts for older answers.
        """
        reservation = self._of.get(uuid)
        if reservation is not None and reservation.claimed is not None:
            self._counted.append((reservation.claimed, reservation.uses))
        self.give_back(uuid)

    def give_back(self, uuid: str) -> None:
        """Remove a server's reservation, because the server does not use the reserved resources."""
        reservation = self._of.pop(uuid, None)
        if reservation is not None:
            self._on[reservation.host_index].pop(uuid)
            self._note()
            self._count(reservation, -1)

    def drop(self, host_index: int) -> None:
        """Remove the reservations on a deleted host."""
        for uuid in self._on.pop(host_index, {}):
            del self._of[uuid]
        self._note()

    def made(self, uuid: str, at: float | None = None) -> None:
        """Record that the server's claim is written. ``at`` is the monotonic time of the claim, by default now."""
        reservation = self._of.get(uuid)
        if reservation is not None:
            reservation.claimed = time.monotonic() if at is None else at
            self._note()

    def forget_old(self, now: float | None = None) -> None:
        """Remove reservations of servers that no host has reported within FORGET_AFTER seconds.

        Also remove the claims of reported servers that are older than 2 * BELIEVED seconds: every stored answer of
        Placement is newer and already counts the amounts of these claims.
        """
        now = time.monotonic() if now is None else now
        self._counted = deque(one for one in self._counted if now - one[0] <= 2 * BELIEVED)
        for uuid in [uuid for uuid, one in self._of.items() if now - one.at > FORGET_AFTER]:
            self.give_back(uuid)

    def places(self) -> dict[str, int]:
        """Return {server: index of the host on which the server has a reservation}."""
        return {uuid: reservation.host_index for uuid, reservation in self._of.items()}

    def since(self, asked: float) -> tuple[Uses, Uses]:
        """Return a pair (made, under_way). Each item is a dict {(provider uuid, resource class): claimed amount}.

        ``made`` counts the claims that were written to Placement after the monotonic time ``asked``. ``under_way``
        counts the claims that are not written to Placement yet.
        """
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
        """Wait until a reservation changes, and release the lock during this time.

        Return False if no reservation changed within ``seconds``.
        """
        return seconds > 0 and self._changed.wait(seconds)

    def _note(self) -> None:
        self.version += 1
        with self._changed:
            self._changed.notify_all()
