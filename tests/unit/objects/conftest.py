"""A cell's database in memory, a context that works in it, and rows to start from."""

from __future__ import annotations

import datetime
import uuid as uuids
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kilonova.context import RequestContext
from kilonova.db.engine import Database
from kilonova.db.migration import METADATA
from kilonova.db.models import cell as models
from kilonova.objects import base

NOW = base.naive(datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC))


@pytest.fixture(autouse=True)
def no_indirection() -> Iterator[None]:
    """Each test starts without an indirection."""
    base.set_indirection(None)
    yield
    base.set_indirection(None)


@pytest.fixture
def cell() -> Iterator[Database]:
    database = Database('sqlite://', 'cell1')
    with database.write() as conn:
        METADATA['cell'].create_all(conn)
    yield database
    database.dispose()


@pytest.fixture
def ctxt(cell: Database) -> RequestContext:
    context = RequestContext(user_id='user', project_id='project')
    context.cell = cell
    return context


@pytest.fixture
def insert(cell: Database) -> Callable[..., int]:
    """``insert('Instance', uuid=...)`` → the row's id."""

    def add(model: str, **values: Any) -> int:
        with cell.write() as conn:
            return conn.execute(getattr(models, model).__table__.insert(), values).inserted_primary_key[0]

    return add


@pytest.fixture
def node_values() -> dict[str, Any]:
    """Columns that a node must have."""
    return {
        'uuid': str(uuids.uuid4()),
        'host': 'host1',
        'hypervisor_hostname': 'node1',
        'vcpus': 8,
        'memory_mb': 16384,
        'local_gb': 100,
        'vcpus_used': 0,
        'memory_mb_used': 512,
        'local_gb_used': 0,
        'hypervisor_type': 'QEMU',
        'hypervisor_version': 8002002,
        'cpu_info': '{}',
    }


@pytest.fixture
def instance_row() -> dict[str, Any]:
    """A row of the table instances, complete."""
    row = {column.name: None for column in models.Instance.__table__.columns}
    row.update(
        id=7,
        uuid=str(uuids.uuid4()),
        user_id='user',
        project_id='project',
        created_at=NOW,
        deleted=0,
        vm_state='active',
        power_state=1,
        memory_mb=2048,
        vcpus=2,
        root_gb=20,
        ephemeral_gb=0,
        host='host1',
        node='node1',
        display_name='one',
        hostname='one',
        instance_type_id=3,
        locked=False,
        cleaned=0,
        access_ip_v4='10.0.0.1',
        launched_at=NOW,
        hidden=False,
        image_ref='',
    )
    return row
