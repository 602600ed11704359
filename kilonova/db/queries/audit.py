"""Read the rows that ``kilonova-manage audit`` compares, with a fixed number of SQL statements in each database."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova.db import envelopes
from kilonova.db.clock import db_age
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as models
from kilonova.db.queries import aggregates, cells, operations
from kilonova.db.queries.migrations import ENDED
from kilonova.db.queries.services import COMPUTE

instances = models.Instance.__table__
extras = models.InstanceExtra.__table__
caches = models.InstanceInfoCache.__table__
metadata = models.InstanceSystemMetadata.__table__
bdms = models.BlockDeviceMapping.__table__
devices = models.PciDevice.__table__
nodes = models.ComputeNode.__table__
migrations = models.Migration.__table__
mappings = api_models.InstanceMapping.__table__
services = models.Service.__table__
build_requests = api_models.BuildRequest.__table__
request_specs = api_models.RequestSpec.__table__

# Number of request specs that are read into memory at once, because request specs are long.
SPECS_AT_ONCE = 500


# The statements are built once, because they never change.
_OF_CELL = {
    'instances': sa.select(
        instances.c.uuid,
        instances.c.host,
        instances.c.node,
        instances.c.vm_state,
        instances.c.task_state,
        instances.c.image_ref,
        instances.c.instance_type_id,
        instances.c.vcpus,
        instances.c.memory_mb,
        instances.c.root_gb,
        instances.c.ephemeral_gb,
        instances.c.updated_at,
        extras.c.flavor,
        extras.c.numa_topology,
        extras.c.migration_context,
        caches.c.network_info,
    )
    .select_from(
        instances.outerjoin(extras, extras.c.instance_uuid == instances.c.uuid).outerjoin(
            caches, caches.c.instance_uuid == instances.c.uuid
        )
    )
    .where(instances.c.deleted == 0),
    'devices': sa.select(
        devices.c.address,
        devices.c.status,
        devices.c.instance_uuid,
        devices.c.dev_type,
        devices.c.parent_addr,
        devices.c.extra_info,
        devices.c.updated_at,
        nodes.c.host,
        nodes.c.hypervisor_hostname.label('node'),
    )
    .join_from(devices, nodes, nodes.c.id == devices.c.compute_node_id)
    .where(devices.c.deleted == 0),
    'volumes': sa.select(bdms).where(bdms.c.deleted == 0, bdms.c.destination_type == 'volume'),
    'migrations': sa.select(migrations).where(migrations.c.deleted == 0, migrations.c.status.not_in(ENDED)),
    'operations': sa.select(operations.operations),
    'nodes': sa.select(
        nodes.c.uuid, nodes.c.host, nodes.c.hypervisor_hostname.label('node'), nodes.c.pci_stats, nodes.c.updated_at
    ).where(nodes.c.deleted == 0),
    'services': sa.select(services.c.uuid, services.c.host, db_age(services.c.created_at).label('age')).where(
        services.c.deleted == 0, services.c.binary == COMPUTE
    ),
}
_MARKS = sa.select(metadata.c.instance_uuid, metadata.c.key, metadata.c.value).where(
    metadata.c.deleted == 0, metadata.c.key.in_(sa.bindparam('keys', expanding=True))
)
_BUILD_REQUESTS = sa.select(build_requests.c.instance_uuid)
_UNMAPPED = sa.select(mappings.c.instance_uuid).where(mappings.c.cell_id.is_(None))
_SPECS = (
    sa.select(request_specs.c.instance_uuid, request_specs.c.spec)
    .join_from(request_specs, mappings, mappings.c.instance_uuid == request_specs.c.instance_uuid)
    .where(sa.func.coalesce(mappings.c.queued_for_delete, sa.false()) == sa.false())
    .execution_options(yield_per=SPECS_AT_ONCE)
)


@dataclass(frozen=True)
class OfApi:
    """The rows of the API database that ``kilonova-manage audit`` reads.

    Attributes:
        operations: Operation rows.
        build_requests: Servers that have a build request.
        unmapped: Servers that have a mapping without a cell.
        specs: {server: JSON text of the flavor in its request spec, or 'null'}. Servers that are being deleted are left
            out.
        hosts: Host mappings with cell_id, cell_uuid and cell_name.
        aggregates: Aggregates with their hosts.
    """

    operations: list[dict[str, Any]]
    build_requests: list[str]
    unmapped: list[str]
    specs: dict[str, str]
    hosts: list[dict[str, Any]]
    aggregates: list[dict[str, Any]]


def _rows(conn: Connection, query: sa.Select[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in conn.execute(query).mappings()]


def cell(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """Return {kind: rows} with all rows of a cell that ``kilonova-manage audit`` reads.

    The kinds are instances (with flavor, NUMA topology, migration context and info cache), devices, volumes, unfinished
    migrations, operations, compute nodes, and compute services with their age in seconds.
    """
    return {name: _rows(conn, query) for name, query in _OF_CELL.items()}


def marks(conn: Connection, keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return {server uuid: {key: value}} with the servers' system metadata that have one of these ``keys``.

    ``keys`` are keys by which Kilonova marks servers, for example that they have accelerators. Servers without any of
    these keys are left out.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for uuid, key, value in conn.execute(_MARKS, {'keys': list(keys)}):
        found[uuid][key] = value
    return found


def api(conn: Connection) -> OfApi:
    """Return the rows of the API database that an audit reads."""
    return OfApi(
        _rows(conn, _OF_CELL['operations']),
        list(conn.execute(_BUILD_REQUESTS).scalars()),
        list(conn.execute(_UNMAPPED).scalars()),
        _specs(conn),
        cells.get_hosts(conn),
        aggregates.snapshot(conn),
    )


def _specs(conn: Connection) -> dict[str, str]:
    """Return {server: JSON text of the flavor in its request spec}.

    Request specs of deleted servers remain until the servers are archived, and are not read here.
    """
    found: dict[str, str] = {}
    # Equal texts are stored as one string in memory, because most servers have one of a few flavors.
    same: dict[str, str] = {}
    for uuid, spec in conn.execute(_SPECS):
        flavor = json.dumps(_flavor(spec))
        found[uuid] = same.setdefault(flavor, flavor)
    return found


def _flavor(spec: str) -> Any:
    try:
        return envelopes.fields(json.loads(spec)).get('flavor')
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
