"""Read and write rows of ``compute_nodes``: hypervisors, each with the compute service of its host.

    with cell.read() as connection:
        for node in snapshot(connection, uuids, down_time=60):      # one SQL statement
            node['memory_mb'], node['service']['up']

JSON columns (cpu_info, stats, pci_stats, numa_topology and others) are returned as text. A node belongs to its host's
service 'nova-compute' that isn't deleted; ``node['service']`` is None if no such service exists. Soft-deleted nodes are
never returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from kilonova import errors
from kilonova.db.clock import db_utcnow
from kilonova.db.models.cell import ComputeNode, Instance, Service
from kilonova.db.queries.services import up
from kilonova.db.rows import Row, insert_missing, many, one, soft_delete

compute_nodes = ComputeNode.__table__
services = Service.__table__
instances = Instance.__table__


class NodeExists(errors.Conflict):
    """The host already has a compute node of this name with another uuid (HTTP 409)."""

    msg_fmt = 'Node %(node)s of host %(host)s already exists with another uuid.'


LIVE = compute_nodes.c.deleted == 0

_NODE = [column.name for column in compute_nodes.columns]
_SERVICE = ['id', 'uuid', 'host', 'binary', 'disabled', 'disabled_reason', 'forced_down', 'last_seen_up', 'version']


def snapshot(connection: sa.Connection, uuids: Sequence[str], down_time: float) -> list[Row]:
    """Return the nodes with these uuids, each with its ``service`` (a dict that includes ``up``, or None).

    Runs one SQL statement.
    """
    return _nested(connection.execute(_with_service(down_time).where(LIVE, compute_nodes.c.uuid.in_(list(uuids)))))


def list_nodes(
    connection: sa.Connection,
    down_time: float,
    *,
    pattern: str | None = None,
    hosts: Iterable[str] | None = None,
    after_id: int | None = None,
    limit: int | None = None,
    served: bool = False,
) -> list[Row]:
    """Return nodes, each with its ``service`` (a dict that includes ``up``, or None), sorted by id.

    ``pattern`` is a part of hypervisor_hostname. ``after_id`` is the id (in this cell) of the last node on the previous
    page. If ``served`` is True, nodes without a service are left out.
    """
    query = _with_service(down_time).where(LIVE).order_by(compute_nodes.c.id)
    if pattern is not None:
        query = query.where(compute_nodes.c.hypervisor_hostname.contains(pattern, autoescape=True))
    if hosts is not None:
        query = query.where(compute_nodes.c.host.in_(list(hosts)))
    if served:
        query = query.where(services.c.id.is_not(None))
    if after_id is not None:
        query = query.where(compute_nodes.c.id > after_id)
    if limit is not None:
        query = query.limit(limit)
    return _nested(connection.execute(query))


def show(
    connection: sa.Connection, down_time: float, *, uuid: str | None = None, node_id: int | None = None
) -> Row | None:
    """Return one node by uuid or id, with its ``service``, or None if the node does not exist."""
    criterion = compute_nodes.c.uuid == uuid if uuid is not None else compute_nodes.c.id == node_id
    rows = _nested(connection.execute(_with_service(down_time).where(LIVE, criterion)))
    return rows[0] if rows else None


def get(
    connection: sa.Connection,
    *,
    uuid: str | None = None,
    node_id: int | None = None,
    host: str | None = None,
    hypervisor_hostname: str | None = None,
) -> Row | None:
    """Return one node that isn't deleted, without its service, or None if no node has these values."""
    wanted = {'uuid': uuid, 'id': node_id, 'host': host, 'hypervisor_hostname': hypervisor_hostname}
    criteria = [compute_nodes.c[name] == value for name, value in wanted.items() if value is not None]
    if not criteria:
        raise ValueError('to find a node, its uuid, id, host or hypervisor_hostname is needed')
    query = sa.select(compute_nodes).where(LIVE, *criteria).order_by(compute_nodes.c.id)
    return one(connection.execute(query))


def by_host(connection: sa.Connection, host: str) -> list[Row]:
    """Return the nodes of a host that aren't deleted, without their service, sorted by id."""
    return many(
        connection.execute(
            sa.select(compute_nodes).where(LIVE, compute_nodes.c.host == host).order_by(compute_nodes.c.id)
        )
    )


def living(connection: sa.Connection, uuids: Sequence[str]) -> set[str]:
    """Return which of these uuids belong to nodes that aren't deleted. Runs one SQL statement."""
    return set(
        connection.execute(sa.select(compute_nodes.c.uuid).where(LIVE, compute_nodes.c.uuid.in_(list(uuids)))).scalars()
    )


def hosts_of_all(connection: sa.Connection) -> list[Row]:
    """Return uuid and host of every node that isn't deleted."""
    return many(connection.execute(sa.select(compute_nodes.c.uuid, compute_nodes.c.host).where(LIVE)))


def get_or_create(connection: sa.Connection, values: Row) -> Row:
    """Return the compute node with ``values['uuid']``, and create it if it does not exist.

    A soft-deleted node with this uuid is restored with ``values``, otherwise a new row is inserted. An existing node is
    returned unchanged: if its ``host`` is another host, the caller must decide what to do. Raises NodeExists if the
    host has a node of this name with another uuid.
    """
    found = get(connection, uuid=values['uuid'])
    if found is not None:
        return found
    # The unique key of the uuid also includes deleted rows. So a host that was deleted and comes back gets its old row.
    brought_back = connection.execute(
        sa.update(compute_nodes)
        .where(compute_nodes.c.uuid == values['uuid'], compute_nodes.c.deleted != 0)
        .values({**values, 'deleted': 0, 'deleted_at': None, 'mapped': 0})
    )
    if not brought_back.rowcount:
        insert_missing(connection, compute_nodes, [values])
    found = get(connection, uuid=values['uuid'])
    if found is None:
        raise NodeExists(host=values.get('host'), node=values.get('hypervisor_hostname'))
    return found


def update(connection: sa.Connection, node_id: int, values: Row) -> bool:
    """Update columns of a node. Return False if the node does not exist any more."""
    result = connection.execute(sa.update(compute_nodes).where(compute_nodes.c.id == node_id, LIVE).values(values))
    return result.rowcount == 1


def destroy(connection: sa.Connection, node_id: int) -> bool:
    """Soft-delete a node. Return False if it was deleted already."""
    return soft_delete(connection, compute_nodes, compute_nodes.c.id == node_id) == 1


def statistics(connection: sa.Connection) -> Row:
    """Return sums over the nodes whose service is enabled, in the form of GET /os-hypervisors/statistics."""
    names = (
        'vcpus',
        'memory_mb',
        'local_gb',
        'vcpus_used',
        'memory_mb_used',
        'local_gb_used',
        'free_ram_mb',
        'free_disk_gb',
        'current_workload',
        'running_vms',
        'disk_available_least',
    )
    sums = [
        sa.cast(sa.func.coalesce(sa.func.sum(compute_nodes.c[name]), 0), sa.BigInteger).label(name) for name in names
    ]
    row = one(
        connection.execute(
            sa.select(sa.func.count().label('count'), *sums)
            .select_from(compute_nodes.join(services, _OF_HOST))
            .where(LIVE, services.c.disabled == sa.false())
        )
    )
    if row is None:
        raise LookupError('the query for sums of compute nodes returned no row')
    return row


def promised(connection: sa.Connection, host: str) -> list[Row]:
    """Return for each project the sums of the vCPUs, memory and disk in the flavors of its servers on a host.

    Each row has project_id, vcpus, memory_mb and disk_gb. The sums are sizes of flavors, not measured usage.
    """
    # A root disk that is a volume uses no space on the host's disk.
    root = sa.case(
        (sa.func.coalesce(instances.c.image_ref, '') == '', 0), else_=sa.func.coalesce(instances.c.root_gb, 0)
    )
    disk = root + sa.func.coalesce(instances.c.ephemeral_gb, 0)
    return many(
        connection.execute(
            sa.select(
                instances.c.project_id,
                sa.func.sum(instances.c.vcpus).label('vcpus'),
                sa.func.sum(instances.c.memory_mb).label('memory_mb'),
                sa.func.sum(disk).label('disk_gb'),
            )
            .where(instances.c.host == host, instances.c.deleted == 0)
            .group_by(instances.c.project_id)
            .order_by(instances.c.project_id)
        )
    )


def any_nodes(connection: sa.Connection) -> bool:
    """Return whether this database has a node that isn't deleted."""
    return connection.execute(sa.select(compute_nodes.c.id).where(LIVE).limit(1)).first() is not None


def unmapped(connection: sa.Connection) -> list[Row]:
    """Return id, uuid, host and hypervisor_hostname of the nodes whose host has no host mapping yet."""
    return many(
        connection.execute(
            sa.select(
                compute_nodes.c.id, compute_nodes.c.uuid, compute_nodes.c.host, compute_nodes.c.hypervisor_hostname
            )
            .where(LIVE, compute_nodes.c.mapped == 0)
            .order_by(compute_nodes.c.id)
        )
    )


def set_mapped(connection: sa.Connection, hosts: Iterable[str], mapped: bool) -> None:
    """Record whether these hosts have a host mapping. Schedulers see this when they next read the changed nodes."""
    connection.execute(
        sa.update(compute_nodes)
        .where(LIVE, compute_nodes.c.host.in_(list(hosts)))
        .values(mapped=int(mapped), updated_at=db_utcnow())
    )


_OF_HOST = sa.and_(
    services.c.host == compute_nodes.c.host, services.c.binary == 'nova-compute', services.c.deleted == 0
)


def _with_service(down_time: float) -> sa.Select[Any]:
    labelled = [services.c[name].label(f'service_of_{name}') for name in _SERVICE]
    return sa.select(compute_nodes, *labelled, up(down_time).label('service_of_up')).select_from(
        compute_nodes.outerjoin(services, _OF_HOST)
    )


def _nested(result: sa.CursorResult[Any]) -> list[Row]:
    split = len(_NODE)
    names = [*_SERVICE, 'up']
    nodes = []
    for row in result:
        node = dict(zip(_NODE, row[:split], strict=True))
        service = dict(zip(names, row[split:], strict=True))
        node['service'] = service if service['id'] is not None else None
        nodes.append(node)
    return nodes
