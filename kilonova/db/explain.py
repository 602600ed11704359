"""Explain an error to an operator in one line: what does not answer or is missing, and which option configures it.

    explain.line(databases, error)
    # "[api_database]connection (sqlite:////var/lib/kilonova/api.db) has no tables yet: run 'kilonova-manage api_db
    #  sync' first"

The command line programs print the line. For an unexpected error there is no line, because its traceback helps more.
"""

from __future__ import annotations

import sqlalchemy as sa
from oslo_config import cfg

from kilonova import errors
from kilonova.db import engine, failures, migration

API, MAIN = '[api_database]connection', '[database]connection'


def check_urls(conf: cfg.ConfigOpts) -> None:
    """Raise cfg.ConfigFileValueError if a database URL in the options is invalid or its driver can't be loaded.

    The message has the option's name but no password.
    """
    for option, url in ((API, conf.api_database.connection), (MAIN, conf.database.connection)):
        if not url:
            continue
        try:
            parsed = sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError):
            raise cfg.ConfigFileValueError(
                f'{option} is not the URL of a database, such as mysql+pymysql://USER:PASSWORD@HOST/NAME'
            ) from None
        try:
            parsed.get_dialect().import_dbapi()
        except sa.exc.NoSuchModuleError:
            raise cfg.ConfigFileValueError(
                f'{option}: there is no dialect or driver {parsed.drivername!r}; sqlite, '
                'mysql+pymysql and postgresql+psycopg2 are supported'
            ) from None
        except ImportError as error:
            raise cfg.ConfigFileValueError(f'{option}: {parsed.drivername} lacks a package: {error}') from None


def name(database: engine.Database, databases: engine.Databases) -> str:
    """Return a text that names a database in messages, with its URL without password.

    For example '[api_database]connection (mysql://…)' or 'the database of cell cell1 (mysql://…)'.
    """
    where = f'({sa.make_url(database.url).render_as_string(hide_password=True)})'
    if database.name == 'api':
        return f'{API} {where}'
    return f'{MAIN} {where}' if database.url == databases.main_url else f'the database of cell {database.name} {where}'


def line(databases: engine.Databases | None, error: BaseException) -> str | None:
    """Return a line that explains an error to an operator, or None for an unexpected error.

    If the error comes from a database, the line names the database and contains the database's message. No other
    database is queried. If the error says that a table or a column is missing, one SQL statement is run on the
    database.
    """
    if isinstance(error, (errors.KilonovaError, cfg.Error)):
        return str(error)
    if databases is None or not isinstance(error, sa.exc.SQLAlchemyError):
        return None
    database = failures.database_of(error)
    if database is None:
        return f'a database does not answer: {reason(error)}' if engine.is_unreachable(error) else None
    where = name(database, databases)
    if failures.is_missing(error):
        other = (
            "map another one with 'kilonova-manage cell_v2 update_cell'"
            if _is_of_cell(database, databases)
            else 'set the option to another one'
        )
        return f'{where} does not exist: {reason(error)}. Create it and grant its account rights on it, or {other}.'
    if failures.is_refused(error):
        return f'{where} refuses the account of its URL: {reason(error)}'
    if engine.is_unreachable(error):
        return f'{where} does not answer: {reason(error)}'
    return _of_tables(where, database, error) if failures.lacks_tables(error) else None


def _of_tables(where: str, database: engine.Database, error: sa.exc.SQLAlchemyError) -> str | None:
    """Return a line that tells an operator which database lacks tables or columns, and which command creates them.

    ``where`` names the database in the line. Return None if the database already has the newest schema revision,
    because then the command would not help.
    """
    schema, sync = ('api', 'api_db sync') if database.name == 'api' else ('cell', 'db sync')
    try:
        revision = migration.version(database, schema)  # type: ignore[arg-type]
    except sa.exc.SQLAlchemyError as found:
        return f'{where} does not answer: {reason(found)}'
    if revision is None:
        return no_tables(where, sync)
    if revision == migration.newest(schema):  # type: ignore[arg-type]
        return None
    return f"{where} is at revision {revision} ({reason(error)}): run 'kilonova-manage {sync}' first"


def no_tables(where: str, sync: str) -> str:
    """Return the line that tells an operator that a database has no tables.

    ``where`` names the database, and ``sync`` is the command that creates its tables.
    """
    return f"{where} has no tables yet: run 'kilonova-manage {sync}' first"


def _is_of_cell(database: engine.Database, databases: engine.Databases) -> bool:
    """Return whether the database is configured by a cell mapping and not by an option of this process."""
    return database.name != 'api' and database.url != databases.main_url


def reason(error: BaseException) -> str:
    """Return the database driver's message of an error, without the statement and links that SQLAlchemy adds."""
    original = getattr(error, 'orig', None) or error
    return ' '.join(str(original).split())
