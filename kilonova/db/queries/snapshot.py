"""Read the aggregates, zones and servers of hosts for the scheduler. The module ``changes`` reads the compute nodes.

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
