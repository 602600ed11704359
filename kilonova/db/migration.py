"""Database schemas: upgrade a database to a revision, return its revision, and compare it with the models.

    sync(databases.api(), 'api')                # to the newest revision
    version(databases.main(), 'cell')           # 'c0000000…' or None
    differences(databases.main(), 'cell')       # [] if the tables are as the models define them

alembic runs in this process, in a transaction of ``Database``. No ini file is needed.
"""

from __future__ import annotations

import pathlib
from typing import Any, Literal

import sqlalchemy as sa
from alembic import autogenerate, command, util
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from kilonova import errors
from kilonova.db.engine import Database
from kilonova.db.models import api, cell

Schema = Literal['api', 'cell']

METADATA: dict[str, sa.MetaData] = {'api': api.Base.metadata, 'cell': cell.Base.metadata}
_DIRECTORY = pathlib.Path(__file__).parent / 'migrations'


class UnknownRevision(errors.Invalid):
    """The schema has no revision of this name."""

    msg_fmt = 'The %(schema)s database has no revision %(version)s.'


class NoDowngrade(errors.Invalid):
    """The database has a newer revision than the requested one, and can't be downgraded."""

    msg_fmt = 'The %(schema)s database is at revision %(current)s and cannot be downgraded to %(version)s.'


def config(schema: Schema) -> Config:
    """Return alembic's configuration for the revisions of one schema."""
    settings = Config()
    settings.set_main_option('script_location', str(_DIRECTORY / schema).replace('%', '%%'))
    settings.set_main_option('path_separator', 'os')
    return settings


def newest(schema: Schema) -> str:
    """Return the newest revision of a schema, to which ``sync`` upgrades."""
    head = ScriptDirectory.from_config(config(schema)).get_current_head()
    if head is None:
        raise UnknownRevision(version='head', schema=schema)
    return head


def version(database: Database, schema: Schema) -> str | None:
    """Return the schema revision of a database, or None for a database without tables."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def sync(database: Database, schema: Schema, revision: str = 'head') -> str:
    """Upgrade the database to ``revision`` and return that revision. alembic logs each step at level INFO.

    Raises UnknownRevision if the revision does not exist, and NoDowngrade if the database has a newer revision.
    Downgrades are impossible, because tables of a newer release may have rows of existing servers.
    """
    settings = config(schema)
    scripts = ScriptDirectory.from_config(settings)
    try:
        wanted = scripts.get_revision(revision)
    except util.CommandError as error:
        raise UnknownRevision(version=revision, schema=schema) from error
    if wanted is None:
        raise UnknownRevision(version=revision, schema=schema)
    current = version(database, schema)
    if (
        current is not None
        and current != wanted.revision
        and wanted.revision in {step.revision for step in scripts.iterate_revisions(current, 'base')}
    ):
        raise NoDowngrade(schema=schema, current=current, version=wanted.revision)
    with database.write() as connection:
        settings.attributes['connection'] = connection
        command.upgrade(settings, wanted.revision)
    return wanted.revision


def differences(database: Database, schema: Schema) -> list[Any]:
    """Return the changes that alembic would make so that the tables agree with the models."""
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={'compare_type': True})
        found: list[Any] = autogenerate.compare_metadata(context, METADATA[schema])
        return found
