"""Read what the scheduler needs about hosts in addition to their nodes: aggregates, zones, node names and servers.

    with api.read() as connection:
        aggregates_of(connection, ['gpu1', 'gpu2'])

Each function runs one SQL statement.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from kilonova.db.models.api import Aggregate, AggregateHost, AggregateMetadata
from kilonova.db.models.cell import ComputeNode, Instance, InstanceSystemMetadata
from kilonova.db.rows import Row, many

aggregates = Aggregate.__table__
aggregate_hosts = AggregateHost.__table__
aggregate_metadata = AggregateMetadata.__table__
compute_nodes = ComputeNode.__table__
instances = Instance.__table__
system_metadata = InstanceSystemMetadata.__table__

ZONE_KEY = 'availability_zone'
IMAGE_PREFIX = 'image_'


def aggregates_of(connection: sa.Connection, hosts: Iterable[str]) -> dict[str, list[Row]]:
    """Return {host: aggregates} for the hosts that are in at least one aggregate.

    Each aggregate is a dict {'id', 'uuid', 'name', 'metadata': {key: value}}.
    """
    query = (
        sa.select(
            aggregate_hosts.c.host,
            aggregates.c.id,
            aggregates.c.uuid,
            aggregates.c.name,
            aggregate_metadata.c.key,
            aggregate_metadata.c.value,
        )
        .select_from(
            aggregate_hosts.join(aggregates, aggregates.c.id == aggregate_hosts.c.aggregate_id).outerjoin(
                aggregate_metadata, aggregate_metadata.c.aggregate_id == aggregates.c.id
            )
        )
        .where(aggregate_hosts.c.host.in_(list(hosts)))
        .order_by(aggregates.c.id)
    )
    found: dict[str, dict[int, Row]] = {}
    for host, aggregate_id, uuid, name, key, value in connection.execute(query):
        aggregate = found.setdefault(host, {}).setdefault(
            aggregate_id, {'id': aggregate_id, 'uuid': uuid, 'name': name, 'metadata': {}}
        )
        if key is not None:
            aggregate['metadata'][key] = value
    return {host: list(by_id.values()) for host, by_id in found.items()}


def zone_aggregates(connection: sa.Connection, zone: str) -> list[str]:
    """Return the uuids of the aggregates of an availability zone."""
    return list(
        connection.execute(
            sa.select(aggregates.c.uuid)
            .join(aggregate_metadata, aggregate_metadata.c.aggregate_id == aggregates.c.id)
            .where(aggregate_metadata.c.key == ZONE_KEY, aggregate_metadata.c.value == zone)
            .order_by(aggregates.c.id)
        ).scalars()
    )


def nodes_named(connection: sa.Connection, hosts: Iterable[str] = (), nodes: Iterable[str] = ()) -> list[Row]:
    """Return uuid, host and hypervisor_hostname of the nodes that have one of these hosts and one of these node names.

    Names are compared without regard to case. An empty list of hosts or nodes does not limit the result.
    """
    query = sa.select(compute_nodes.c.uuid, compute_nodes.c.host, compute_nodes.c.hypervisor_hostname).where(
        compute_nodes.c.deleted == 0
    )
    for column, names in ((compute_nodes.c.host, hosts), (compute_nodes.c.hypervisor_hostname, nodes)):
        lowered = [name.lower() for name in names]
        if lowered:
            query = query.where(sa.func.lower(column).in_(lowered))
    return many(connection.execute(query.order_by(compute_nodes.c.id)))


def servers_on(connection: sa.Connection, hosts: Iterable[str] = ()) -> dict[str, list[Row]]:
    """Return {host: rows of its servers} for these hosts, or for all hosts if ``hosts`` is empty."""
    found: dict[str, list[Row]] = {}
    names = list(hosts)
    which = instances.c.host.in_(names) if names else instances.c.host.is_not(None)
    for row in many(connection.execute(sa.select(instances).where(instances.c.deleted == 0, which))):
        found.setdefault(row['host'], []).append(row)
    return found


def image_properties_on(connection: sa.Connection, hosts: Iterable[str] = ()) -> dict[str, dict[str, dict[str, str]]]:
    """Return {host: {server: {property: value}}} with the image properties of servers on these hosts.

    If ``hosts`` is empty, the servers of all hosts are included.
    """
    names = list(hosts)
    which = instances.c.host.in_(names) if names else instances.c.host.is_not(None)
    found: dict[str, dict[str, dict[str, str]]] = {}
    for host, uuid, key, value in connection.execute(
        sa.select(instances.c.host, instances.c.uuid, system_metadata.c.key, system_metadata.c.value)
        .join(system_metadata, system_metadata.c.instance_uuid == instances.c.uuid)
        .where(
            instances.c.deleted == 0,
            system_metadata.c.deleted == 0,
            which,
            system_metadata.c.key.startswith(IMAGE_PREFIX, autoescape=True),
        )
    ):
        found.setdefault(host, {}).setdefault(uuid, {})[key.removeprefix(IMAGE_PREFIX)] = value
    return found
