"""The audit's part about accelerators: servers and what Cyborg says that they hold.

    accelerators = Accelerators(client)
    accelerators.read()                       # None, or that Cyborg doesn't answer
    accelerators.learn(marks)                 # of each cell: under which uuids its servers' requests are bound
    accelerators.give_back(releases)          # what of it is still to be deleted
    accelerators.attached(server)             # what its domain has besides the devices of its rows
    accelerators.compare(servers, moving, busy)
    accelerators.disagreements()
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kilonova.accel import holder
from kilonova.accel import profile as device_profile
from kilonova.accel import request as accel_request
from kilonova.accel.client import AcceleratorClient, NoAccelerators
from kilonova.accel.request import AcceleratorRequest
from kilonova.conductor import audit_rows
from kilonova.conductor.flows import beside
from kilonova.db.rows import Row
from kilonova.errors import KilonovaError

# The system metadata that ``learn`` needs.
MARKS = (holder.BOUND_TO, holder.BEFORE)


class Accelerators:
    """``client``: None where there is no accelerator service."""

    NAME = 'accelerators'

    def __init__(self, client: AcceleratorClient | None) -> None:
        self._client = client
        # None: nobody knows.
        self._held: dict[str, list[AcceleratorRequest]] | None = None
        self._unbound: list[AcceleratorRequest] = []
        self._known: set[str] = set()
        self._released: set[str] = set()
        self._marks: dict[str, dict[str, str]] = {}
        self._busy = False
        self._wrong: list[str] = []

    def read(self) -> str | None:
        """All requests; what to say of a service that doesn't answer."""
        if self._client is None:
            return None
        try:
            requests = self._client.every()
        except NoAccelerators:
            return None
        except KilonovaError as error:
            return str(error)
        held: dict[str, list[AcceleratorRequest]] = defaultdict(list)
        for one in requests:
            if one.instance_uuid is None:
                self._unbound.append(one)
            else:
                held[one.instance_uuid].append(one)
        self._held = held
        return None

    def learn(self, marks: Mapping[str, dict[str, str]]) -> None:
        """{server: its system metadata of these names}."""
        self._marks.update(marks)

    def give_back(self, releases: Iterable[Mapping[str, Any]]) -> None:
        """Requests that pending releases will delete are not lost. ``releases``: their operations' arguments."""
        for args in releases:
            self._known.add(args.get(beside.ACCELERATORS_OF, ''))
            self._released.update(args.get(beside.ACCELERATOR_REQUESTS, ()))

    def attached(self, server: Row) -> list[str] | None:
        """Addresses and uuids of the accelerators in a server's domain; None: that can't be told."""
        if not self._wants(server):
            return []
        if self._held is None:
            return None
        try:
            found = accel_request.handles(self._of(server))
        except accel_request.AttachHandleInvalid:
            return None
        return [handle.mdev or handle.address for handle in found]

    def _of(self, server: Row) -> list[AcceleratorRequest]:
        return (self._held or {}).get(holder.of(server['uuid'], self._marks.get(server['uuid'], {})), [])

    def _wants(self, server: Row) -> bool:
        flavor = audit_rows.flavors(server['flavor']).get('cur')
        return holder.has_ports(server['uuid'], self._marks.get(server['uuid'], {})) or (
            flavor is not None and device_profile.name_of(flavor.extra_specs) is not None)

    def compare(self, servers: Mapping[str, Row], moving: Mapping[str, Row], busy: set[str]) -> None:
        """Servers of a cell at rest with what they hold, at both ends of a move; ``busy``: those that an operation
        works on."""
        for uuid in {*servers, *busy}:
            marks = self._marks.get(uuid, {})
            self._known.update((holder.of(uuid, marks), *((holder.before(uuid, marks),) if uuid in moving else ()),
                                *((uuid,) if uuid in busy else ())))
        self._known.update(row['uuid'] for row in moving.values())
        self._busy = self._busy or bool(busy)
        for uuid, server in servers.items():
            if uuid in busy or self._held is None or not self._wants(server):
                continue
            held = self._of(server)
            bound = [one for one in held if one.state == accel_request.BOUND]
            if server['host'] is not None and server['vm_state'] != 'error' and not bound:
                self._wrong.append(f'accelerators: server {uuid} has a device profile and no bound request')
            if server['host'] is None and held:
                self._wrong.append(f'accelerators: server {uuid} has no host and holds {_named(held)}')

    def disagreements(self) -> list[str]:
        """When all cells are compared. A request that belongs to no server yet may be about to, while anything is under
        way."""
        lost = [f'accelerators: {_named(requests)} belong to {uuid}, which is no server'
                for uuid, held in (self._held or {}).items() if uuid not in self._known
                and (requests := [one for one in held if one.uuid not in self._released])]
        unbound = [] if self._busy or not self._unbound else [
            f'accelerators: {_named(self._unbound)} belong to no server']
        return self._wrong + lost + unbound


def _named(requests: list[AcceleratorRequest]) -> str:
    return 'requests ' + ', '.join(sorted(one.uuid for one in requests))
