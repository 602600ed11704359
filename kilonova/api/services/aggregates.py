"""Host aggregates: create, change and delete aggregates, add hosts to them, and remove hosts from them.

An aggregate may name an availability zone for its hosts. A host is in at most one zone. While a host has servers, its
zone cannot change, because users have chosen the zone of their servers.

Placement has a copy of the aggregates, with the compute nodes of the hosts as members (``clients.aggregates``). The
transaction that changes the hosts of an aggregate also inserts an operation row for the update of Placement. If this
update fails, the operation row remains, and a conductor repeats the update.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from oslo_log import log as logging
from oslo_utils import uuidutils

from kilonova.api.services import hosts as host_service
from kilonova.api.services.backend import Backend
from kilonova.clients import aggregates as mirror
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.arguments.releases import SyncAggregateArguments
from kilonova.db.queries import aggregates, cells, operations, servers
from kilonova.db.queries.aggregates import ZONE, AggregateNotFound
from kilonova.db.queries.servers import Filters
from kilonova.errors import Conflict, Invalid, KilonovaError, NotFound

LOG = logging.getLogger(__name__)

# This process updates Placement at once. If the update fails, a conductor repeats it after this number of seconds.
MEND_AFTER = 10.0
IN_ANOTHER_ZONE = 'One or more hosts already in availability zone(s) %s'
HAS_SERVERS = 'One or more hosts contain instances in this zone'

Zone = str | None


class NotAMember(NotFound):
    """Error 404: the host is not in the aggregate, or the host or the aggregate does not exist."""

    msg_fmt = 'Cannot remove host %(host)s in aggregate %(aggregate_id)s'


class NotANumber(Invalid):
    """Error 400: the id of an aggregate is not an integer."""

    msg_fmt = 'Invalid input received: id must be an integer'


class NotAdded(Conflict):
    """Error 409: a host cannot be added to an aggregate, because of the aggregate's availability zone.

    Either another aggregate puts the host into a different zone, or the host has servers, and the aggregate would move
    the host, with its servers, to another zone.
    """

    msg_fmt = 'Cannot add host to aggregate %(aggregate_id)s. Reason: %(reason)s.'


class NotRemoved(Conflict):
    """Error 409: without the aggregate the host would be in another zone, which is forbidden while it has servers."""

    msg_fmt = 'Cannot remove host from aggregate %(aggregate_id)s. Reason: %(reason)s.'


class NotUpdated(Invalid):
    """Error 400: the aggregate's new zone is refused, because its hosts have servers or are in another zone already."""

    msg_fmt = 'Cannot update aggregate %(aggregate_id)s. Reason: %(reason)s.'


class MetadataNotUpdated(Invalid):
    """Error 400: the zone in the new metadata is refused, because hosts have servers or are in another zone already."""

    msg_fmt = 'Cannot update metadata of aggregate %(aggregate_id)s. Reason: %(reason)s.'


class NotDeleted(Invalid):
    """Error 400: the aggregate still has hosts."""

    msg_fmt = 'Cannot remove host from aggregate %(aggregate_id)s. Reason: %(reason)s.'


def list_aggregates(backend: Backend) -> list[dict[str, Any]]:
    """Return all aggregates with their hosts and metadata, ordered by id."""
    with backend.api_db.read() as conn:
        return aggregates.snapshot(conn)


def get(backend: Backend, identifier: str) -> dict[str, Any]:
    """Return an aggregate with its hosts and metadata.

    Raises AggregateNotFound if the aggregate does not exist, and NotANumber (400) if ``identifier`` is not an integer.
    """
    with backend.api_db.read() as conn:
        return aggregates.get(conn, _number(identifier))


def create(backend: Backend, ctxt: RequestContext, name: str, zone: Zone) -> dict[str, Any]:
    """Create an aggregate without hosts and return it. ``zone`` is its availability zone or None.

    Raises AggregateNameExists (409) if another aggregate has this name.
    """
    uuid, metadata = uuidutils.generate_uuid(), {ZONE: zone} if zone is not None else {}
    backend.notify.emit(
        ctxt, 'aggregate.create.start', aggregate={'name': name, 'uuid': uuid, 'hosts': [], 'metadata': metadata}
    )
    with backend.api_db.write() as conn:
        row = aggregates.create(conn, name, metadata, uuid)
    backend.notify.emit(ctxt, 'aggregate.create.end', aggregate=row)
    return row


def update(
    backend: Backend, ctxt: RequestContext, identifier: str, name: str | None, zone: Mapping[str, Zone]
) -> dict[str, Any]:
    """Change an aggregate's name or availability zone, and return the aggregate.

    If ``name`` is None, the name stays. ``zone`` is {'availability_zone': zone}, or empty if the zone stays.

    Raises:
        AggregateNotFound: The aggregate does not exist.
        NotANumber: ``identifier`` is not an integer.
        NotUpdated: Hosts of the aggregate have servers and would change their zone, or are in another zone (error 400).
        AggregateNameExists: Another aggregate has this name.
    """
    before = get(backend, identifier)
    number = before['id']
    _check_zone(backend, number, zone, NotUpdated)
    backend.notify.emit(ctxt, 'aggregate.update_prop.start', aggregate=before)
    with backend.api_db.write() as conn:
        if name is not None:
            aggregates.rename(conn, number, name)
        if zone:
            _change(conn, number, zone, NotUpdated)
        row = aggregates.get(conn, number)
    backend.notify.emit(ctxt, 'aggregate.update_prop.end', aggregate=row)
    return row


def set_metadata(
    backend: Backend, ctxt: RequestContext, identifier: str, metadata: Mapping[str, str | None]
) -> dict[str, Any]:
    """Set the keys of ``metadata`` in the metadata of an aggregate, and return the aggregate.

    A key with the value None is deleted from the aggregate. Keys that ``metadata`` does not have stay unchanged.

    Raises:
        AggregateNotFound: The aggregate does not exist.
        NotANumber: ``identifier`` is not an integer.
        MetadataNotUpdated: The new availability_zone would change the zone of hosts that have servers, or a host is in
            another aggregate that has a different zone. The API responds with error 400.
    """
    before = get(backend, identifier)
    number, changes = before['id'], dict(metadata)
    _check_zone(backend, number, metadata, MetadataNotUpdated)
    backend.notify.emit(ctxt, 'aggregate.update_metadata.start', aggregate=before, meta_data=changes)
    with backend.api_db.write() as conn:
        _change(conn, number, metadata, MetadataNotUpdated)
        row = aggregates.get(conn, number)
    backend.notify.emit(ctxt, 'aggregate.update_metadata.end', aggregate=row, meta_data=changes)
    return row


def delete(backend: Backend, ctxt: RequestContext, identifier: str) -> None:
    """Delete an aggregate.

    Raises AggregateNotFound if the aggregate does not exist, NotANumber if ``identifier`` is not an integer, and
    NotDeleted (400) if the aggregate still has hosts.
    """
    row = get(backend, identifier)
    backend.notify.emit(ctxt, 'aggregate.delete.start', aggregate=row)
    with backend.api_db.write() as conn:
        aggregates.lock(conn, row['id'])
        if aggregates.get(conn, row['id'])['hosts']:
            raise NotDeleted(aggregate_id=row['id'], reason='Host aggregate is not empty')
        aggregates.destroy(conn, row['id'])
    backend.notify.emit(ctxt, 'aggregate.delete.end', aggregate=row)


def add_host(backend: Backend, ctxt: RequestContext, identifier: str, host: str) -> dict[str, Any]:
    """Add a host to an aggregate, update Placement, and return the aggregate.

    If the update of Placement fails, a conductor repeats it later.

    Raises:
        AggregateNotFound: The aggregate does not exist.
        NotANumber: ``identifier`` is not an integer.
        HostNotMapped: The host does not exist (error 404).
        AggregateHostExists: The host is in the aggregate already.
        NotAdded: The host has servers and would change its zone, or is in another zone already (error 409).
    """
    number = _number(identifier)
    with backend.api_db.read() as conn:
        row = aggregates.get(conn, number)
        others = aggregates.snapshot(conn, hosts=[host])
    if _effective(backend, [*others, row]) != _effective(backend, others) and _have_servers(backend, [host]):
        raise NotAdded(aggregate_id=number, reason=HAS_SERVERS)
    backend.notify.emit(ctxt, 'aggregate.add_host.start', aggregate=row)
    with backend.api_db.write() as conn:
        aggregates.lock(conn, number)
        if not aggregates.lock_hosts(conn, [host]):
            raise host_service.HostNotMapped(host=host)
        row = aggregates.get(conn, number)
        _refuse_second_zone(row, aggregates.snapshot(conn, hosts=[host]), row['metadata'].get(ZONE), NotAdded)
        aggregates.add_host(conn, number, host)
        operation = _remember(conn, ctxt, row['uuid'], host)
        row = aggregates.get(conn, number)
    _mirror(backend, operation)
    backend.notify.emit(ctxt, 'aggregate.add_host.end', aggregate=row)
    return row


def remove_host(backend: Backend, ctxt: RequestContext, identifier: str, host: str) -> dict[str, Any]:
    """Remove a host from an aggregate, update Placement, and return the aggregate.

    If the update of Placement fails, a conductor repeats it later.

    Raises:
        NotAMember: The host is not in the aggregate, or the host or the aggregate does not exist (error 404).
        NotANumber: ``identifier`` is not an integer.
        NotRemoved: The host has servers and would change its zone (error 409).
    """
    number = _number(identifier)
    with backend.api_db.read() as conn:
        here = aggregates.snapshot(conn, hosts=[host])
    row = next((row for row in here if row['id'] == number), None)
    if row is None:
        raise NotAMember(aggregate_id=number, host=host)
    others = [other for other in here if other['id'] != number]
    if _effective(backend, here) != _effective(backend, others) and _have_servers(backend, [host]):
        raise NotRemoved(aggregate_id=number, reason=HAS_SERVERS)
    backend.notify.emit(ctxt, 'aggregate.remove_host.start', aggregate=row)
    with backend.api_db.write() as conn:
        if not aggregates.remove_host(conn, host, number):
            raise NotAMember(aggregate_id=number, host=host)
        operation = _remember(conn, ctxt, row['uuid'], host)
        row = aggregates.get(conn, number)
    _mirror(backend, operation)
    backend.notify.emit(ctxt, 'aggregate.remove_host.end', aggregate=row)
    return row


def _number(identifier: str) -> int:
    number = host_service.as_number(identifier)
    if number is None:
        # A text that is not an integer gets error 400. An integer that is too large to be an id gets error 404.
        if re.fullmatch('-?[0-9]+', identifier) is None:
            raise NotANumber
        raise AggregateNotFound(aggregate_id=identifier)
    return number


# --- availability zones ----------------------------------------------------------------------------------------------
def _effective(backend: Backend, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the availability zone of a host. ``rows`` are all aggregates of the host.

    The result is the zone of the first aggregate that names one, or else [DEFAULT]default_availability_zone.
    """
    return next((row['metadata'][ZONE] for row in rows if ZONE in row['metadata']), backend.options.default_zone)


def _check_zone(backend: Backend, number: int, metadata: Mapping[str, Zone], error: type[Invalid]) -> None:
    """Raise ``error`` if new metadata of an aggregate would move a host that has servers to another availability zone.

    ``number`` is the id of the aggregate. ``metadata`` are the keys to set or, with the value None, to delete. Only the
    key ``availability_zone`` is checked.
    """
    if ZONE not in metadata:
        return
    with backend.api_db.read() as conn:
        row = aggregates.get(conn, number)
        rows = aggregates.snapshot(conn, hosts=row['hosts']) if row['hosts'] else []
    changed = {
        **row,
        'metadata': {
            name: value for name, value in {**row['metadata'], ZONE: metadata[ZONE]}.items() if value is not None
        },
    }
    moved = []
    for host in row['hosts']:
        before = [other for other in rows if host in other['hosts']]
        after = [changed if other['id'] == number else other for other in before]
        if _effective(backend, before) != _effective(backend, after):
            moved.append(host)
    if moved and _have_servers(backend, moved):
        raise error(aggregate_id=number, reason=HAS_SERVERS)


def _change(conn: engine.Connection, number: int, metadata: Mapping[str, str | None], error: type[Invalid]) -> None:
    aggregates.lock(conn, number)
    if metadata.get(ZONE) is not None:
        row = aggregates.get(conn, number)
        if row['hosts']:
            aggregates.lock_hosts(conn, row['hosts'])
            _refuse_second_zone(row, aggregates.snapshot(conn, hosts=row['hosts']), metadata[ZONE], error)
    aggregates.set_metadata(conn, number, dict(metadata))


def _refuse_second_zone(
    row: Mapping[str, Any], neighbours: Iterable[Mapping[str, Any]], zone: Zone, error: type[KilonovaError]
) -> None:
    """Raise ``error`` if a host of the aggregate ``row`` would be in two availability zones.

    ``zone`` is the zone that this aggregate has or gets. ``neighbours`` are all aggregates that share a host with this
    aggregate. If one of the neighbours names a different zone, raise ``error``. Do nothing if ``zone`` is None.
    """
    others = {other['metadata'][ZONE] for other in neighbours if other['id'] != row['id'] and ZONE in other['metadata']}
    if zone is not None and others - {zone}:
        raise error(aggregate_id=row['id'], reason=IN_ANOTHER_ZONE % ', '.join(sorted(others - {zone})))


def _have_servers(backend: Backend, hosts: list[str]) -> bool:
    with backend.api_db.read() as conn:
        mapped = cells.get_hosts(conn, hosts=hosts)
    by_cell: dict[int, list[str]] = {}
    for row in mapped:
        by_cell.setdefault(row['cell_id'], []).append(row['host'])
    for cell_id, names in by_cell.items():
        with backend.cells.by_id(cell_id).read() as conn:
            if servers.names(conn, Filters(equal={'host': names}), (), 1):
                return True
    return False


# --- update of Placement ---------------------------------------------------------------------------------------------
def _remember(conn: engine.Connection, ctxt: RequestContext, aggregate_uuid: str, host: str) -> operations.OperationRow:
    """Insert and return an operation row for the update of an aggregate in Placement.

    ``host`` is the host that was added to the aggregate or removed from it. This process makes the update and deletes
    the row. If this process has not done so within ``MEND_AFTER`` seconds, a conductor makes the update.
    """
    row = operations.OperationRow.new(
        ctxt,
        mirror.KIND,
        aggregate_uuid,
        SyncAggregateArguments(aggregate=aggregate_uuid, host=host),
        beside=True,
        not_before=engine.now(conn) + MEND_AFTER,
    )
    operations.insert(conn, [row])
    return row


def _mirror(backend: Backend, row: operations.OperationRow) -> None:
    """Update the aggregate's hosts in Placement, and delete the operation row ``row``.

    If an error occurs, only log it and keep the operation row, so that a conductor repeats the update.
    """
    args = row.arguments(SyncAggregateArguments)
    aggregate, host = args.aggregate, args.host
    try:
        if backend.placement is not None:
            mirror.bring_up_to_date(backend.placement, backend.api_db, backend.cells, aggregate, host)
    except KilonovaError as error:
        LOG.warning(
            'Could not update the membership of host %s in aggregate %s in Placement; a conductor will do it '
            '(operation %s): %s',
            host,
            aggregate,
            row.uuid,
            error,
        )
        return
    with backend.api_db.write() as conn:
        operations.end(conn, row.uuid, row.instance_uuid)
