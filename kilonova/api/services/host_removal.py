"""Delete a service. With a compute service all goes that the cloud knows of the host, in three stores.

The service, its nodes and devices go in one transaction of the cell, which also writes an operation row. The host's
mapping, its memberships of aggregates and its providers go right after it. What fails then, conductors do by the row.
"""
from __future__ import annotations

import logging
from dataclasses import replace

from kilonova.api.services import hosts
from kilonova.api.services.backend import Backend
from kilonova.api.services.silence import is_silence
from kilonova.clients import host_removal as removal
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.engine import Connection, Database
from kilonova.db.queries import host_removals, migrations, operations, servers, services
from kilonova.db.queries.operations import Operation
from kilonova.db.queries.servers import Filters
from kilonova.db.rows import Row
from kilonova.errors import Conflict, KilonovaError, LeaseLost

LOG = logging.getLogger(__name__)

# Seconds until conductors look whether the removal of a host is complete.
MEND_AFTER = 10.0


class HostInUse(Conflict):
    msg_fmt = '%(reason)s'


def delete_service(backend: Backend, ctxt: RequestContext, service: hosts.InCell) -> None:
    """Delete a service, and with a compute service the host. Pending releases of the host end (operations.md rule 23).

    Raises HostInUse (409) if the host has servers or unfinished migrations, NoSuchService if the service was deleted
    meanwhile. Once the service is deleted nothing is raised: conductors complete what fails.
    """
    row, cell = service.row, service.cell
    wanted = None
    if row['binary'] == hosts.COMPUTE:
        wanted = Operation.new(ctxt, host_removals.KIND, row['uuid'], {'host': row['host']}, beside=True,
                               host=row['host'])
    operation = _destroy(cell, row, wanted)
    backend.notify.emit(ctxt, 'service.delete', service=row)
    if operation is not None:
        hosts.hurry(backend, ctxt, cell, row['host'])
        _complete(backend, cell, operation)


@engine.retried
def _destroy(cell: Database, row: Row, wanted: Operation | None) -> Operation | None:
    """Delete the service, its nodes and devices; insert and return the operation row that completes the removal."""
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
        operation = replace(wanted, args={**wanted.args, 'nodes': [node['uuid'] for node in nodes]},
                            not_before=engine.now(conn) + MEND_AFTER)
        operations.insert(conn, [operation])
    if released:
        LOG.info('Compute service on host %s was deleted with %d pending releases', row['host'], released)
    return operation


def _refuse_in_use(conn: Connection, host: str) -> None:
    if servers.names(conn, Filters(equal={'host': [host]}), (), 1):
        raise HostInUse(reason=f'Unable to delete compute service that is hosting instances. Migrate or delete '
                               f'the instances of {host} first.')
    if migrations.unended_on_host(conn, host):
        raise HostInUse(reason='Unable to delete compute service that has in-progress migrations. Complete the '
                               f'migrations of {host} or delete the instances first.')


def _complete(backend: Backend, cell: Database, operation: Operation) -> None:
    """Remove the host from the other stores and end the row; leave the row to conductors where that fails."""
    host = operation.args['host']

    def check() -> None:
        """Raise LeaseLost if a conductor was quicker: a new host of that name may be there."""
        with cell.read() as conn:
            if operations.get(conn, operation.uuid) is None:
                raise LeaseLost(operation=operation.uuid)
    try:
        removal.forget(backend.api_db, cell, host)
        if backend.placement is None:
            return
        removal.delete_providers(backend.placement, backend.cells, operation.args['nodes'], check)
        with cell.write() as conn:
            operations.end(conn, operation.uuid, operation.instance_uuid)
    except Exception as error:
        if not isinstance(error, KilonovaError) and not is_silence(error):
            raise
        LOG.warning('Host %s is not removed everywhere yet, conductors complete it (operation %s): %s', host,
                    operation.uuid, error)
