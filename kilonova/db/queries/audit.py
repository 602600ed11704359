"""What an audit reads of the databases: a fixed number of statements a database."""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from kilonova.db.models import api as api_models
from kilonova.db.models import cell as models
from kilonova.db.queries import operations
from kilonova.db.queries.migrations import ENDED

instances = models.Instance.__table__
extras = models.InstanceExtra.__table__
devices = models.PciDevice.__table__
nodes = models.ComputeNode.__table__
migrations = models.Migration.__table__
mappings = api_models.InstanceMapping.__table__
build_requests = api_models.BuildRequest.__table__


def _rows(conn: Any, query: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in conn.execute(query).mappings()]


def cell(conn: Any) -> dict[str, list[dict[str, Any]]]:
    """Servers with their flavors and places, devices, unfinished migrations, operations and compute nodes of a cell."""
    return {
        'instances': _rows(conn, sa.select(
            instances.c.uuid, instances.c.host, instances.c.node, instances.c.vm_state, instances.c.task_state,
            instances.c.image_ref, extras.c.flavor, extras.c.numa_topology, extras.c.migration_context).join_from(
            instances, extras, extras.c.instance_uuid == instances.c.uuid, isouter=True)
            .where(instances.c.deleted == 0)),
        'devices': _rows(conn, sa.select(
            devices.c.address, devices.c.status, devices.c.instance_uuid, devices.c.dev_type, devices.c.parent_addr,
            nodes.c.host, nodes.c.hypervisor_hostname.label('node')).join_from(
            devices, nodes, nodes.c.id == devices.c.compute_node_id).where(devices.c.deleted == 0)),
        'migrations': _rows(conn, sa.select(migrations).where(
            migrations.c.deleted == 0, migrations.c.status.not_in(ENDED))),
        'operations': _rows(conn, sa.select(operations.operations)),
        'nodes': _rows(conn, sa.select(
            nodes.c.uuid, nodes.c.host, nodes.c.hypervisor_hostname.label('node'), nodes.c.pci_stats).where(
            nodes.c.deleted == 0)),
    }


def api(conn: Any) -> dict[str, list[dict[str, Any]]]:
    """Operations, build requests and mappings without a cell in the api database."""
    return {
        'operations': _rows(conn, sa.select(operations.operations)),
        'build_requests': _rows(conn, sa.select(build_requests.c.instance_uuid)),
        'unmapped': _rows(conn, sa.select(mappings.c.instance_uuid).where(mappings.c.cell_id.is_(None))),
    }
