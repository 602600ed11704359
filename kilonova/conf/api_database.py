"""The [api_database] options: the database that all cells share (mappings, flavors, request specs, quotas)."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf import database

GROUP = 'api_database'

_CONNECTION = cfg.StrOpt(
    'connection',
    secret=True,
    help='SQLAlchemy URL of the API database. Set it for the API, the scheduler, the conductors and '
    'kilonova-manage; it must not be set on compute hosts.',
)

# The connection pool has the same options as in [database], but each section has its own values.
OPTS = [_CONNECTION, *(option for option in database.OPTS if option.name != 'connection')]
