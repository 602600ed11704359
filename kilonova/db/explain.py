"""What an error means to an operator, in one line: what is away or missing, and the option that names it.

    explain.line(conf, databases, error)
    # "[api_database]connection (sqlite:////var/lib/kilonova/api.db) has no tables yet: run 'kilonova-manage api_db
    #  sync' first"

None for errors that nobody expects: their tracebacks are what helps.
"""
from __future__ import annotations

import sqlalchemy as sa
from oslo_config import cfg

from kilonova import errors
from kilonova.db import engine, migration

API, MAIN = '[api_database]connection', '[database]connection'


def check_urls(conf: cfg.ConfigOpts) -> None:
    """Raise for URLs of databases that can't be, with the option's name and without their passwords."""
    for option, url in ((API, conf.api_database.connection), (MAIN, conf.database.connection)):
        if not url:
            continue
        try:
            parsed = sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError):
            raise cfg.ConfigFileValueError(f'{option} is not the URL of a database, such as '
                                           'mysql+pymysql://USER:PASSWORD@HOST/NAME') from None
        try:
            parsed.get_dialect().import_dbapi()
        except sa.exc.NoSuchModuleError:
            raise cfg.ConfigFileValueError(f'{option}: there is no dialect or driver {parsed.drivername!r}; sqlite, '
                                           'mysql+pymysql and postgresql+psycopg2 are supported') from None
        except ImportError as error:
            raise cfg.ConfigFileValueError(f'{option}: {parsed.drivername} needs a package: {error}') from None


def name(database: engine.Database, databases: engine.Databases) -> str:
    """The option of a database and its URL; of a cell's, the cell."""
    where = f'({sa.make_url(database.url).render_as_string(hide_password=True)})'
    if database.name == 'api':
        return f'{API} {where}'
    return f'{MAIN} {where}' if database.url == databases.main_url else f'the database of cell {database.name} {where}'


def line(conf: cfg.ConfigOpts, databases: engine.Databases | None, error: BaseException) -> str | None:
    """The line; one of a database asks the databases which of them it is."""
    if isinstance(error, (errors.KilonovaError, cfg.Error)):
        return str(error)
    if databases is None or not isinstance(error, sa.exc.SQLAlchemyError):
        return None
    silent = engine.is_unreachable(error)
    for url, database, schema, sync in ((conf.api_database.connection, databases.api, 'api', 'api_db sync'),
                                        (conf.database.connection, databases.main, 'cell', 'db sync')):
        if not url:
            continue
        try:
            empty = migration.version(database(), schema) is None  # type: ignore[arg-type]
        except sa.exc.SQLAlchemyError as found:
            return f'{name(database(), databases)} does not answer: {reason(found)}'
        if empty and not silent:
            return f"{name(database(), databases)} has no tables yet: run 'kilonova-manage {sync}' first"
    return f'a database does not answer: {reason(error)}' if silent else None


def reason(error: BaseException) -> str:
    """What the driver says, without SQLAlchemy's statement and links."""
    original = getattr(error, 'orig', None) or error
    return ' '.join(str(original).split())
