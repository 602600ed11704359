"""Reports that users of other clouds made in public, tried here: docs/reference/regressions.md lists them all."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from kilonova.db import engine
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from tests.fixtures.cloud import Cloud

# Bytes that a TEXT of MariaDB and MySQL holds; SQLite and PostgreSQL know no such bound.
TEXT = 65535


def too_long(database: engine.Database, metadata: sa.MetaData) -> dict[str, int]:
    """Return the columns that hold more than they would on MariaDB, 'table.column', each with its bytes."""
    found: dict[str, int] = {}
    with database.read() as conn:
        for table in metadata.tables.values():
            texts = [column for column in table.columns if column.type.compile(mysql.dialect()) == 'TEXT']
            for row in conn.execute(sa.select(*texts)) if texts else ():
                for column, value in zip(texts, row, strict=True):
                    if (size := len((value or '').encode())) > TEXT:
                        found[f'{table.name}.{column.name}'] = size
    return found


def check_columns(cloud: Cloud) -> None:
    assert too_long(cloud.databases.api(), api_models.Base.metadata) == {}
    assert too_long(cloud.cell, cell_models.Base.metadata) == {}


@pytest.mark.database
@pytest.mark.parametrize('end', ['confirmResize', 'revertResize'])
def test_a_resize_of_a_server_with_many_devices(make_cloud: Callable[..., Cloud], end: str) -> None:
    """LP 1738094 and oVirt 1131: a text of a few devices or CPUs fits its column, that of many does not. A move keeps
    the devices of both sides: with 64 of them MariaDB refused the claim."""
    buses = range(0x10, 0x10 + 64)
    cloud = make_cloud({host: [f'0000:{bus:02x}:00.0' for bus in buses] for host in ('gpu1', 'gpu2')})
    server = cloud.boot(cloud.flavor(gpus=64))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=64, ram=1024)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    check_columns(cloud)
    cloud.action(server, end)
    assert cloud.status(server) == 'ACTIVE' and len(cloud.hostdevs(server)) == 64
    cloud.assert_clean()


@pytest.mark.database
def test_a_flavor_with_as_many_extra_specs_as_are_accepted(make_cloud: Callable[..., Cloud]) -> None:
    """The same: a server keeps the specs of its flavor, during a resize those of both."""
    cloud = make_cloud({'gpu1': [], 'gpu2': []})
    specs = {f'acme:{number:04}': 'x' * 255 for number in range(300)}
    server = cloud.boot(cloud.flavor(**specs))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(ram=1024, **specs)})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    check_columns(cloud)
    cloud.action(server, 'confirmResize')
    assert cloud.status(server) == 'ACTIVE'
    cloud.assert_clean()
