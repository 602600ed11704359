"""Find out whether Kilonova's daemons have worked with a database: then Nova's rows must not be copied over theirs."""

from __future__ import annotations

import sqlalchemy as sa

from kilonova.db.engine import Database
from kilonova.db.migration import METADATA, Schema
from kilonova.db.models.cell import Service

# Tables that only daemons of Kilonova fill.
OWN: dict[Schema, tuple[str, ...]] = {
    'api': ('operations', 'scheduler_decisions', 'build_requests'),
    'cell': ('operations', 'device_history', 'console_auth_tokens'),
}
# Daemons whose services are not copied from Nova.
CONTROLLERS = ('nova-conductor', 'nova-scheduler')


def own_rows(database: Database, schema: Schema) -> str | None:
    """Return the name of a table with rows of Kilonova's daemons, or None if there is none."""
    services = Service.__table__
    with database.read() as connection:
        for name in OWN[schema]:
            table = METADATA[schema].tables[name]
            if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first():
                return name
        if schema == 'cell':
            query = sa.select(services.c.id).where(services.c.binary.in_(CONTROLLERS)).limit(1)
            if connection.execute(query).first():
                return 'services'
    return None
