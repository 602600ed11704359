"""Schemas: bring a database to a revision, tell its revision, compare it with the models.

    sync(databases.api(), 'api')                # to the newest revision
    version(databases.main(), 'cell')           # 'c0000000…' or None
    differences(databases.main(), 'cell')       # [] when the tables are what the models say

alembic is driven in this process, over the transaction of the ``Database``; there is no ini file.
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
    msg_fmt = '%(version)s is no revision of the %(schema)s database.'


class NoDowngrade(errors.Invalid):
    msg_fmt = 'The %(schema)s database is at %(current)s and can not go back to %(version)s.'


def config(schema: Schema) -> Config:
    """alembic's configuration of one of the two chains of revisions."""
    settings = Config()
    settings.set_main_option('script_location', str(_DIRECTORY / schema).replace('%', '%%'))
    settings.set_main_option('path_separator', 'os')
    return settings


def newest(schema: Schema) -> str:
    """The revision that ``sync`` leads to."""
    head = ScriptDirectory.from_config(config(schema)).get_current_head()
    if head is None:
        raise UnknownRevision(version='head', schema=schema)
    return head


def version(database: Database, schema: Schema) -> str | None:
    """The revision that the database is at; None for an empty one."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def sync(database: Database, schema: Schema, revision: str = 'head') -> str:
    """Bring the database to ``revision`` and return it; each step is logged by alembic at INFO.

    There are no downgrades: the table of a newer release is kept, as it may hold rows of live servers.
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
    if current is not None and current != wanted.revision \
            and wanted.revision in {step.revision for step in scripts.iterate_revisions(current, 'base')}:
        raise NoDowngrade(schema=schema, current=current, version=wanted.revision)
    with database.write() as connection:
        settings.attributes['connection'] = connection
        command.upgrade(settings, wanted.revision)
    return wanted.revision


def differences(database: Database, schema: Schema) -> list[Any]:
    """What alembic would change to make the tables what the models say."""
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={'compare_type': True})
        found: list[Any] = autogenerate.compare_metadata(context, METADATA[schema])
        return found
