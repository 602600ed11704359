"""Delete services. If a compute service is deleted, its host is removed from the cell, the API database and Placement.

One transaction of the cell deletes the service with its nodes and devices, and inserts an operation row. After the
transaction, this process deletes the host's mapping, its memberships of aggregates and its resource providers. If one
of these deletions fails, the operation row remains, and a conductor completes the removal.
"""

from __future__ import annotations

from oslo_log import log as logging

from kilonova.api.services import hosts
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import is_silence
from kilonova.clients import host_removal as removal
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.arguments.releases import HostRemovalArguments
from kilonova.db.engine import Connection, Database
from kilonova.db.queries import host_removals, migrations, operations, servers, services
from kilonova.db.queries.operations import OperationRow
from kilonova.db.queries.servers import Filters
from kilonova.db.rows import Row
from kilonova.errors import Conflict, KilonovaError, LeaseLost

LOG = logging.getLogger(__name__)

# If this process has not completed the removal of a host after this number of seconds, a conductor completes it.
MEND_AFTER = 10.0


class HostInUse(Conflict):
    """Error 409: the host still has servers or unfinished migrations."""

    msg_fmt = '%(reason)s'


def delete_service(backend: Backend, ctxt: RequestContext, service: hosts.InCell) -> None:
    """Delete a service. If it is a compute service, also remove its host.

    Operations of the kind 'release', which wait to free on this host what servers left there, are deleted without
    running, because the host will not come back.

    Raises HostInUse (409) if the host has servers or unfinished migrations, and NoSuchService if the service was
    deleted in the meantime. After the service is deleted, errors are only logged, and a conductor completes the
    removal.
    """
    row, cell = service.row, service.cell
    wanted = None
    if row['binary'] == hosts.COMPUTE:
        wanted = OperationRow.new(ctxt, host_removals.KIND, row['uuid'], beside=True, host=row['host'])
    operation = _destroy(cell, row, wanted)
    backend.notify.emit(ctxt, 'service.delete', service=row)
    if operation is not None:
        hosts.hurry(backend, ctxt, cell, row['host'])
        _complete(backend, cell, operation)


@engine.retried
def _destroy(cell: Database, row: Row, wanted: OperationRow | None) -> OperationRow | None:
    """Delete a service. If it is a compute service, also delete its nodes and devices, and insert an operation.

    The operation, ``wanted``, removes the host from the API database and Placement. Its arguments are the host's name
    and the uuids of its nodes, which are read in this transaction. Return the inserted operation. For other services,
    ``wanted`` and the result are None.
    """
    with cell.write() as conn:
        if wanted is not None and engine.repeated() and (written := operations.get(conn, wanted.uuid)):
            return written
        if services.get(conn, service_id=row['id']) is None:
            raise hosts.NoSuchService(service_id=row['uuid'])
        if wanted is None:
            services.destroy(conn, row['id'])
            return None
        _refuse_in_use(conn, row['host'])
        nodes = services.destroy(conn, row['id'])
        released = operations.end_releases(conn, row['host'])
        operation = wanted.with_arguments(
            HostRemovalArguments(host=row['host'], nodes=[node['uuid'] for node in nodes]),
            not_before=engine.now(conn) + MEND_AFTER,
        )
        operations.insert(conn, [operation])
    if released:
        LOG.info(
            'Compute service on host %s was deleted. %d operations that waited to free resources on this host were '
            'deleted without running',
            row['host'],
            released,
        )
    return operation


def _refuse_in_use(conn: Connection, host: str) -> None:
    if servers.names(conn, Filters(equal={'host': [host]}), (), 1):
        raise HostInUse(
            reason=f'Unable to delete compute service that is hosting instances. Migrate or delete '
            f'the instances of {host} first.'
        )
    if migrations.unended_on_host(conn, host):
        raise HostInUse(
            reason='Unable to delete compute service that has in-progress migrations. Complete the '
            f'migrations of {host} or delete the instances first.'
        )


def _complete(backend: Backend, cell: Database, operation: OperationRow) -> None:
    """Remove the host from the API database and Placement, and delete the operation row.

    If an error occurs, log a warning and keep the operation row, so that a conductor completes the removal.
    """
    args = operation.arguments(HostRemovalArguments)
    host = args.host

    def check() -> None:
        """Raise LeaseLost if a conductor has completed the removal already.

        Called before each deletion of a resource provider in Placement. After a completed removal, a new host with the
        same name may register its providers, which this process must not delete.
        """
        with cell.read() as conn:
            if operations.get(conn, operation.uuid) is None:
                raise LeaseLost(operation=operation.uuid)

    try:
        removal.forget(backend.api_db, cell, host)
        if backend.placement is None:
            return
        removal.delete_providers(backend.placement, backend.cells, args.nodes, check)
        with cell.write() as conn:
            operations.end(conn, operation.uuid, operation.instance_uuid)
    except Exception as error:
        if not isinstance(error, KilonovaError) and not is_silence(error):
            raise
        LOG.warning(
            'The removal of host %s is not complete; a conductor will complete it (operation %s): %s',
            host,
            operation.uuid,
            error,
        )
