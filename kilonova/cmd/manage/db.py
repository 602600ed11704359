"""kilonova-manage api_db and db: update schemas, archive deleted rows, and delete archived rows."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kilonova.cmd.cli import VERBOSE, Cloud, Command, argument, moment, table

if TYPE_CHECKING:
    from kilonova.db.engine import Database
    from kilonova.db.migration import Schema

# The maximum value of --max_rows, as in Nova: the largest number of an INT column.
MAX_ROWS = 0x7FFFFFFF
BAD_BEFORE = 'Invalid value for --before: {}'
NO_API = 'Unable to get cell list from API DB. Is it configured?'


# -- commands for the schemas of databases ----------------------------------------------------------------------------
def api_db_sync(cloud: Cloud, args: argparse.Namespace) -> int:
    """Upgrade the API database to the newest (or the given) revision."""
    return _sync([cloud.databases.api()], 'api', args.version)


def api_db_version(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print the revision of the API database."""
    return _version(cloud.databases.api(), 'api')


def db_sync(cloud: Cloud, args: argparse.Namespace) -> int:
    """Upgrade the main database, and cell0 unless --local_cell is given, to the newest (or the given) revision."""
    databases = [cloud.databases.main()]
    if not args.local_cell:
        cell0 = _cell0(cloud)
        if cell0 is None:
            print(
                'cell0 is not mapped: only the main database is upgraded. Run api_db sync and cell_v2 map_cell0, '
                'then db sync again.',
                file=sys.stderr,
            )
        else:
            databases.insert(0, cell0)
    return _sync(databases, 'cell', args.version)


def db_version(cloud: Cloud, args: argparse.Namespace) -> int:
    """Print the revision of the main database."""
    return _version(cloud.databases.main(), 'cell')


def _cell0(cloud: Cloud) -> Any:
    from kilonova.db import migration

    if cloud.conf.api_database.connection is None or migration.version(cloud.databases.api(), 'api') is None:
        return None
    return cloud.cells.cell0()


def _sync(databases: Sequence[Any], schema: Schema, version: str) -> int:
    from kilonova.db import migration
    from kilonova.errors import Invalid

    for database in databases:
        try:
            migration.sync(database, schema, version)
        except Invalid as error:
            print(error)
            return 1
    return 0


def _version(database: Database, schema: Schema) -> int:
    from kilonova.db import migration

    print(migration.version(database, schema))
    return 0


# -- commands that archive and delete rows ----------------------------------------------------------------------------
def archive_deleted_rows(cloud: Cloud, args: argparse.Namespace) -> int:
    """Move deleted rows to the shadow tables.

    Exit code 0: there were no such rows. 1: some rows were moved. 2: an argument is wrong. 3: the API database
    cannot be used. 4: the date is wrong.
    """
    if args.max_rows <= 0:
        print('Must supply a positive value for max_rows')
        return 2
    if args.max_rows > MAX_ROWS:
        print(f'max rows must be <= {MAX_ROWS}')
        return 2
    try:
        before = moment(args.before) if args.before else None
    except ValueError as error:
        print(BAD_BEFORE.format(error))
        return 4
    databases = _chosen(cloud, args.all_cells)
    if databases is None:
        print(NO_API)
        return 3
    moved = _archive(cloud, databases, args, before)
    if args.verbose:
        if moved:
            table(('Table', 'Number of Rows Archived'), sorted(moved.items()))
        else:
            print('Nothing was archived.')
    if moved and args.purge:
        if args.verbose:
            print('Rows were archived, running purge...')
        _purge(databases, None, args)
    return 1 if moved else 0


def _chosen(cloud: Cloud, all_cells: bool) -> list[Any] | None:
    """Return the databases to work on, or None if the API database does not answer or has no tables.

    The reason is printed to standard error. Errors of databases other than the API database are raised.
    """
    from kilonova.db import engine, explain, migration
    from kilonova.errors import KilonovaError

    try:
        api = cloud.databases.api()
        if migration.version(api, 'api') is None:
            print(explain.no_tables(explain.name(api, cloud.databases), 'api_db sync'), file=sys.stderr)
            return None
        found = cloud.cells.databases() if all_cells else None
    except Exception as error:
        if isinstance(error, KilonovaError) or engine.is_unreachable(error):
            print(explain.line(vars(cloud).get('databases'), error), file=sys.stderr)
            return None
        raise
    return [cloud.databases.main()] if found is None else list(found)


def _archive(
    cloud: Cloud, databases: Sequence[Any], args: argparse.Namespace, before: datetime.datetime | None
) -> Counter[str]:
    """Move deleted rows to the shadow tables, and return a dict from table to the number of moved rows.

    If ``before`` is not None, only rows that were deleted before this time are moved. With --all-cells the name of a
    table begins with the name of its cell.
    """
    from kilonova.db.queries import archive

    told = args.verbose and args.until_complete
    total: Counter[str] = Counter()
    if told:
        print('Archiving', end='', flush=True)
    for database in databases:
        prefix = f'{database.name}.' if args.all_cells else ''
        while True:
            moved = archive.archive(
                cloud.databases.api(),
                database,
                max_rows=args.max_rows - (0 if args.until_complete else archive.of_cells(total)),
                before=before,
                task_log=args.task_log,
            )
            for name, count in moved.items():
                total[name if name.startswith(archive.API) else prefix + name] += count
            if told:
                print('.', end='', flush=True)
            if not moved or not args.until_complete:
                break
            time.sleep(args.sleep)
        if not args.until_complete and archive.of_cells(total) >= args.max_rows:
            break
    if told:
        print('complete')
    return total


def purge(cloud: Cloud, args: argparse.Namespace) -> int:
    """Delete archived rows.

    Exit code 0: rows were deleted. 1: neither --all nor --before is given. 2: the date is wrong. 3: there was nothing
    to delete. 4: the API database cannot be used.
    """
    if not args.all and args.before is None:
        print('Either --before or --all is required')
        return 1
    try:
        before = moment(args.before) if args.before else None
    except ValueError as error:
        print(BAD_BEFORE.format(error))
        return 2
    databases = _chosen(cloud, args.all_cells) if args.all_cells else [cloud.databases.main()]
    if databases is None:
        print(NO_API)
        return 4
    return 0 if _purge(databases, before, args) else 3


def _purge(databases: Sequence[Any], before: datetime.datetime | None, args: argparse.Namespace) -> int:
    from kilonova.db.queries import archive

    total = 0
    for database in databases:
        prefix = f'{database.name}.' if args.all_cells else ''
        for name, count in sorted(archive.purge(database, before).items()):
            total += count
            if args.verbose:
                print(f'Deleted {count} rows from {prefix}{name}')
    return total


VERSION = argument('version', nargs='?', default='head', metavar='VERSION', help='revision; default: the newest')
ALL_CELLS = argument('--all-cells', '--all_cells', action='store_true', help='all cells, not only [database]connection')
API_DB = {
    'sync': Command(api_db_sync, (VERSION,), takes_long=True),
    'version': Command(api_db_version),
}
DB = {
    'sync': Command(
        db_sync,
        (VERSION, argument('--local_cell', '--local-cell', action='store_true', help='do not upgrade cell0')),
        takes_long=True,
    ),
    'version': Command(db_version),
    'archive_deleted_rows': Command(
        archive_deleted_rows,
        (
            argument(
                '--max_rows',
                '--max-rows',
                type=int,
                default=1000,
                metavar='ROWS',
                help='maximum number of rows to move in one round, not counting rows of the API database; default: '
                '1000. All rows of a server are moved together',
            ),
            VERBOSE,
            argument(
                '--until-complete',
                '--until_complete',
                action='store_true',
                help='repeat until no such rows are left, with at most --max_rows in each round',
            ),
            argument('--before', metavar='DATE', help='only rows that were deleted before DATE'),
            argument('--purge', action='store_true', help='empty the shadow tables afterwards'),
            ALL_CELLS,
            argument(
                '--task-log',
                '--task_log',
                action='store_true',
                help='also move rows of the task log, which are never deleted; with --before, those that were last '
                'written before DATE',
            ),
            argument(
                '--sleep', type=int, default=0, metavar='SECONDS', help='pause between rounds of --until-complete'
            ),
        ),
        takes_long=True,
    ),
    'purge': Command(
        purge,
        (
            argument('--all', action='store_true', help='delete all rows of the shadow tables'),
            argument('--before', metavar='DATE', help='delete rows that were deleted before DATE'),
            VERBOSE,
            ALL_CELLS,
        ),
        takes_long=True,
    ),
}
