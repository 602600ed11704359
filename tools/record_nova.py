"""Record one database of a Nova as a gzip'd SQL script for SQLite: all tables and all rows.

    python3 -m tools.record_nova mysql+pymysql://nova:secret@controller/nova_api api.sql.gz --replace /opt/lab=/srv/nova
    python3 -m tools.record_nova sqlite:////tmp/api.sqlite api.sql.gz

The tests of ``kilonova-manage adopt`` load these scripts, so that they need no Nova. A script holds columns with their
types and NULLs, primary keys and unique keys; indexes, foreign keys and defaults are left out, and so are the lines of
Nova's source that tracebacks quote. The same database gives the same bytes. The environment needs SQLAlchemy, and
PyMySQL for MySQL and MariaDB.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sqlite3
import sys
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy as sa  # noqa: TID251 -- a tool that reads the databases of another program

QUOTED_SOURCE = re.compile(r'(^ *File "[^"\n]+", line \d+, in [^\n]+\n)(?: {4,}[^\n]*(?:\n|$))+', re.MULTILINE)


def plain_text(text: str, replaced: Sequence[tuple[str, str]]) -> str:
    """Return the text with each old piece of ``replaced`` made new; its tracebacks keep files and lines, not source."""
    text = QUOTED_SOURCE.sub(r'\1', text)
    for old, new in replaced:
        text = text.replace(old, new)
    return text


def plain_type(kind: Any) -> str:
    """Return the type of a SQLite column for a column type that SQLAlchemy reflected.

    An integer key must be INTEGER, else SQLite makes another number for each row. Booleans are integers, as MySQL
    stores them; enumerated words are text.
    """
    if isinstance(kind, sa.DateTime):
        return 'DATETIME'
    if isinstance(kind, sa.Date):
        return 'DATE'
    if isinstance(kind, sa.Integer | sa.Boolean):
        return 'BIGINT' if isinstance(kind, sa.BigInteger) else 'INTEGER'
    if isinstance(kind, sa.Numeric | sa.Float):
        return 'FLOAT'
    length = None if isinstance(kind, sa.Enum | sa.Text) else getattr(kind, 'length', None)
    return f'VARCHAR({length})' if length else 'TEXT'


def plain_value(value: Any, replaced: Sequence[tuple[str, str]]) -> Any:
    """Return a column's value as SQLite stores it; text is changed as ``plain_text`` says.

    Raises TypeError for a value that a script of text can't hold.
    """
    if isinstance(value, datetime):
        return value.strftime('%Y-%m-%d %H:%M:%S.%f')
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, str):
        return plain_text(value, replaced)
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f'cannot record {value!r} of {type(value)}')
    return value


def create_statement(inspector: sa.Inspector, table: str) -> tuple[str, list[str]]:
    """Return the CREATE TABLE statement of a table for SQLite, and the names of its primary key's columns."""
    key = inspector.get_pk_constraint(table)['constrained_columns']
    lines = [
        f'"{column["name"]}" {plain_type(column["type"])}{"" if column["nullable"] else " NOT NULL"}'
        for column in inspector.get_columns(table)
    ]
    unique = {tuple(one['column_names']) for one in inspector.get_unique_constraints(table)}
    # MySQL shows a unique key among the indexes, too.
    unique |= {tuple(map(str, one['column_names'])) for one in inspector.get_indexes(table) if one['unique']}
    for word, columns in [('PRIMARY KEY', tuple(key)), *(('UNIQUE', one) for one in sorted(unique))]:
        if columns:
            names = ', '.join(f'"{name}"' for name in columns)
            lines.append(f'{word} ({names})')
    text = ',\n  '.join(lines)
    return f'CREATE TABLE "{table}" (\n  {text}\n)', key


def copy(url: str, replaced: Sequence[tuple[str, str]] = (), empty: Sequence[str] = ()) -> sqlite3.Connection:
    """Return an in-memory SQLite database with the tables and rows of the database at ``url``.

    All tables are read in one transaction. Tables whose name starts with a word of ``empty`` get no rows.
    """
    target = sqlite3.connect(':memory:')
    engine = sa.create_engine(url)
    with engine.connect() as source:
        inspector = sa.inspect(source)
        for table in sorted(inspector.get_table_names()):
            statement, key = create_statement(inspector, table)
            target.execute(statement)
            if table.startswith(tuple(empty)):
                continue
            columns = [sa.column(one['name'], one['type']) for one in inspector.get_columns(table)]
            # Rows without a primary key are sorted by all their columns: the script must not depend on the server.
            order = [one for one in columns if one.name in key] or columns
            rows = source.execute(sa.select(*columns).select_from(sa.table(table)).order_by(*order))
            target.executemany(
                f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})',  # noqa: S608 -- names of tables
                ([plain_value(value, replaced) for value in row] for row in rows),
            )
    target.commit()
    return target


def row_counts(database: sqlite3.Connection) -> dict[str, int]:
    """Return the number of rows of each table."""
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608 -- names of tables
        for name in sorted(tables)
    }


def load(path: Path) -> sqlite3.Connection:
    """Return an in-memory SQLite database that a recorded script has filled."""
    database = sqlite3.connect(':memory:')
    database.executescript(gzip.decompress(path.read_bytes()).decode())
    return database


def write(database: sqlite3.Connection, path: Path) -> None:
    """Write the script of a database and load it again.

    Raises RuntimeError if the loaded tables don't have as many rows as the database.
    """
    script = '\n'.join(database.iterdump()) + '\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(script.encode(), compresslevel=9, mtime=0))
    if row_counts(load(path)) != row_counts(database):
        raise RuntimeError(f'{path} does not hold the rows of the database')


def parse_replacement(argument: str) -> tuple[str, str]:
    """Return (old, new) of ``OLD=NEW``; raises ValueError without either."""
    old, _, new = argument.rpartition('=')
    if not old:
        raise ValueError(argument)
    return old, new


def main(argv: Sequence[str]) -> int:
    """Record one database, print the rows of each table that has some; return the exit code."""
    parser = argparse.ArgumentParser(prog='record_nova', description=__doc__.partition('\n')[0])
    parser.add_argument('url', help="SQLAlchemy's URL of the database")
    parser.add_argument('file', type=Path, help='the file to write, FILE.sql.gz')
    parser.add_argument(
        '--replace', metavar='OLD=NEW', type=parse_replacement, action='append', default=[], help='in all text'
    )
    parser.add_argument('--empty', metavar='PREFIX', action='append', default=[], help='tables to record without rows')
    arguments = parser.parse_args(argv)
    database = copy(arguments.url, arguments.replace, arguments.empty)
    write(database, arguments.file)
    for table, count in row_counts(database).items():
        if count:
            print(f'{count:6} {table}')
    print(f'{arguments.file}: {arguments.file.stat().st_size} bytes')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
