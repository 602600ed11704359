"""``AcceleratorAudit``, the part of the audit that compares servers with the accelerator requests in Cyborg.

``compare.Audit`` calls the methods in this order:

    accelerators = AcceleratorAudit(client)
    accelerators.read()                       # None, or the reason why Cyborg does not answer
    accelerators.learn(marks)                 # for each cell: system metadata of its servers (keys in MARKS)
    accelerators.give_back(releases)          # the requests that operations of kind release will delete
    accelerators.attached(server)             # the accelerators that the server's domain must have
    accelerators.compare(servers, moving, busy)
    accelerators.disagreements()
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kilonova.accel import holder
from kilonova.accel import profile as device_profile
from kilonova.accel import request as accel_request
from kilonova.accel.client import AcceleratorClient, NoAccelerators
from kilonova.accel.request import AcceleratorRequest
from kilonova.conductor.audit import rows as audit_rows
from kilonova.db.arguments.base import Arguments
from kilonova.db.arguments.releases import AcceleratorRequestsRelease, AcceleratorsRelease
from kilonova.db.rows import Row
from kilonova.errors import KilonovaError

# Keys of a server's system metadata, whose values are uuids to which Cyborg has bound accelerator requests.
# BOUND_TO has the uuid for the server's current host, and BEFORE the uuid for the source of an unconfirmed move.
# A uuid under BOUND_TO or BEFORE is the server's uuid or the uuid of a migration.
MARKS = (holder.BOUND_TO, holder.BEFORE)


class AcceleratorAudit:
    """Compares servers with their accelerator requests in Cyborg.

    ``client`` is None if the cloud has no accelerator service (Cyborg).
    """

    NAME = 'accelerators'

    def __init__(self, client: AcceleratorClient | None) -> None:
        self._client = client
        # Accelerator requests by the uuid to which they are bound; None if Cyborg's requests could not be read.
        self._held: dict[str, list[AcceleratorRequest]] | None = None
        self._unbound: list[AcceleratorRequest] = []
        self._known: set[str] = set()
        self._released: set[str] = set()
        self._marks: dict[str, dict[str, str]] = {}
        self._busy = False
        self._wrong: list[str] = []

    def read(self) -> str | None:
        """Read all accelerator requests from Cyborg.

        Returns the text of the error if Cyborg does not answer, else None.
        """
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
        """Store the system metadata by which the audit finds the accelerator requests of one cell's servers.

        ``marks`` is {server uuid: {key: value}} with keys in ``MARKS``. Called once for each cell, before ``compare``.
        """
        self._marks.update(marks)

    def give_back(self, pending: Iterable[Arguments | None]) -> None:
        """Remember the accelerator requests that pending releases (operations of kind ``release``) will delete.

        Such requests may belong to no server, but the audit does not report them. ``pending`` are the arguments of
        these operations, with None for an operation row that can't be parsed.
        """
        for args in pending:
            if isinstance(args, AcceleratorsRelease):
                self._known.add(args.accelerators_of)
            if isinstance(args, AcceleratorRequestsRelease):
                self._released.update(args.accelerator_requests)

    def attached(self, server: Row) -> list[str] | None:
        """Return the PCI addresses and mdev uuids of the accelerators that a server's domain must have.

        Returns None if the requests could not be read or parsed, and an empty list if the server has no accelerators.
        """
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
            flavor is not None and device_profile.name_of(flavor.extra_specs) is not None
        )

    def compare(self, servers: Mapping[str, Row], moving: Mapping[str, Row], busy: set[str]) -> None:
        """Compare the servers of a cell with the accelerator requests that are bound to them.

        ``servers`` is {server uuid: row of the server}, and ``moving`` is {server uuid: row of its migration}.
        Servers in ``busy``, on which an operation works, are left out.
        """
        for uuid in {*servers, *busy}:
            marks = self._marks.get(uuid, {})
            self._known.update(
                (
                    holder.of(uuid, marks),
                    *((holder.before(uuid, marks),) if uuid in moving else ()),
                    *((uuid,) if uuid in busy else ()),
                )
            )
        self._known.update(row['uuid'] for row in moving.values())
        self._busy = self._busy or bool(busy)
        for uuid, server in servers.items():
            if uuid in busy or self._held is None or not self._wants(server):
                continue
            held = self._of(server)
            bound = [one for one in held if one.state == accel_request.BOUND]
            if server['host'] is not None and server['vm_state'] != 'error' and not bound:
                self._wrong.append(f'accelerators: server {uuid} has a device profile and no bound accelerator request')
            if server['host'] is None and held:
                self._wrong.append(f'accelerators: server {uuid} has no host and holds {_named(held)}')

    def disagreements(self) -> list[str]:
        """Return one line of text for each difference between the servers and Cyborg.

        Call this after ``compare`` for all cells. Unbound requests are reported only if no operation is in flight,
        because an operation may be about to bind them.
        """
        lost = [
            f'accelerators: {_named(requests)} belong to {uuid}, which is not a server'
            for uuid, held in (self._held or {}).items()
            if uuid not in self._known and (requests := [one for one in held if one.uuid not in self._released])
        ]
        unbound = (
            [] if self._busy or not self._unbound else [f'accelerators: {_named(self._unbound)} belong to no server']
        )
        return self._wrong + lost + unbound


def _named(requests: list[AcceleratorRequest]) -> str:
    return 'requests ' + ', '.join(sorted(one.uuid for one in requests))
