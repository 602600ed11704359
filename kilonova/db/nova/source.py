"""Open the databases of a Nova and read their tables in batches. They are read-only unless ``writable`` is set.

    with NovaDatabase(url, 'cell', 'cell1') as database, database.read() as connection:
        for rows in database.batches(connection, 'instances', deleted=False):
            ...                                     # lists of dicts; columns that this release lacks are None

The release of Nova is determined from the revision of the database's schema. Every statement of one ``read`` sees the
same state of the database.
"""

from __future__ import annotations

import contextlib
import pathlib
import urllib.parse
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import event, pool

from kilonova import errors
from kilonova.db import access, explain, failures
from kilonova.db.migration import METADATA, Schema
from kilonova.db.rows import Row

# The revisions of the schemas, and the releases of Nova that have them.
REVISIONS: Mapping[Schema, Mapping[str, str]] = {
    'api': {'b30f573d3377': '27', 'cdeec0c85668': '28 to 34'},
    'cell': {
        '960aac0e09ea': '27',
        '1acf2c98e646': '28',
        '13863f4e1612': '29 and 30',
        '2903cd72dc14': '31 to 33',
        'ab450ba04102': '34',
    },
}
# Tables that Nova has and Kilonova doesn't, with the columns that are read.
ONLY_NOVA: Mapping[Schema, Mapping[str, Sequence[str]]] = {
    'api': {},
    'cell': {
        'share_mapping': ('id', 'instance_uuid', 'share_id'),
        'virtual_interfaces': ('id', 'uuid', 'address', 'instance_uuid', 'tag', 'deleted'),
    },
}
# Columns of Nova that Kilonova's tables lack, by table.
ONLY_NOVA_COLUMNS: Mapping[str, Sequence[str]] = {'instance_extra': ('vpmems',)}
# Character sets of MySQL that lack the characters outside of the Basic Multilingual Plane.
NARROW = ('utf8', 'utf8mb3', 'latin1')
# Rows of a batch.
BATCH = 500
# Seconds to wait for a server that does not answer.
CONNECT_TIMEOUT = 10


def among(table: sa.Table, names: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> sa.ColumnElement[bool]:
    """Return the condition that a row has one of these keys. ``names`` are the columns of the key."""
    columns = [table.c[name] for name in names]
    return columns[0].in_([key[0] for key in keys]) if len(columns) == 1 else sa.tuple_(*columns).in_(keys)


class NovaUnreadable(errors.Unavailable):
    """A database of Nova can't be read: it does not answer, does not exist, or refuses the account."""

    msg_fmt = "Nova's %(name)s database (%(url)s) cannot be read: %(reason)s"


class NovaUnknown(errors.Invalid):
    """A database is not one of a release of Nova that can be adopted."""

    msg_fmt = "Nova's %(name)s database (%(url)s): %(reason)s"


class NovaDatabase(contextlib.AbstractContextManager['NovaDatabase']):
    """A database of Nova. It is only read, unless ``writable`` is True.

    ``schema`` is 'api' or 'cell'. ``name`` is 'api', or the name of the cell. ``open`` must be called before anything
    else; a ``with`` block does so.
    """

    def __init__(self, url: str, schema: Schema, name: str, writable: bool = False) -> None:
        access.check()
        self.schema, self.name, self._writable = schema, name, writable
        self.revision = self.release = ''
        self._tables: dict[str, sa.Table] = {}
        self._lengths: dict[tuple[str, str], int] = {}
        self._narrow: set[tuple[str, str]] = set()
        try:
            parsed = _with_driver(sa.make_url(url))
        except (sa.exc.ArgumentError, ValueError):
            raise NovaUnknown(name=name, url='its URL', reason='this is not the URL of a database') from None
        self.url = parsed.render_as_string(hide_password=True)
        self.dialect = parsed.get_backend_name()
        self._engine = self._create(parsed)

    def __repr__(self) -> str:
        return f'<NovaDatabase {self.name}: {self.url}>'

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def open(self) -> None:
        """Read the revision and the tables. Raises NovaUnreadable, or NovaUnknown for the revision of another release.

        A database that Kilonova made has revisions of its own, and so is refused here.
        """
        with self.read() as connection:
            inspector = sa.inspect(connection)
            existing = set(inspector.get_table_names())
            found = _revisions(connection) if 'alembic_version' in existing else []
            if len(found) != 1 or found[0] not in REVISIONS[self.schema]:
                raise NovaUnknown(name=self.name, url=self.url, reason=self._unknown(found))
            self.revision = found[0]
            self.release = REVISIONS[self.schema][self.revision]
            for name, columns in self._wanted().items():
                if name in existing:
                    kinds = {column['name']: column['type'] for column in inspector.get_columns(name)}
                    self._tables[name] = _reflected(name, columns, kinds)
                    self._lengths |= {
                        (name, column): kind.length
                        for column, kind in kinds.items()
                        if isinstance(kind, sa.String) and kind.length
                    }
                    self._narrow |= _narrow(inspector, name, kinds)

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads, in which all statements see the same state of the database.

        Raises NovaUnreadable if the database does not answer, also in the middle of the block. Errors of other
        databases, such as the one to which the block copies rows, are raised unchanged.
        """
        try:
            with self._engine.connect() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            if failures.database_of(error) is not self:
                raise
            raise NovaUnreadable(name=self.name, url=self.url, reason=explain.reason(error)) from error

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction that may write. It is committed at the end of the block, or rolled back after an error.

        Raises NovaUnreadable if the database does not answer, or refuses to write.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            if failures.database_of(error) is not self:
                raise
            raise NovaUnreadable(name=self.name, url=self.url, reason=explain.reason(error)) from error

    def length(self, table: str, column: str) -> int | None:
        """Return the maximum number of characters of a column, or None if it has no maximum."""
        return self._lengths.get((table, column))

    def is_narrow(self, table: str, column: str) -> bool:
        """Return whether a column of MySQL can only store characters of the Basic Multilingual Plane of Unicode."""
        return (table, column) in self._narrow

    def has(self, table: str, column: str | None = None) -> bool:
        """Return whether this release of Nova has the table, or the column of the table."""
        found = self._tables.get(table)
        return found is not None and (column is None or column in found.c)

    def table(self, name: str) -> sa.Table:
        """Return a table of this release of Nova as an SQLAlchemy table.

        It has the columns that Nova and Kilonova have, and the columns in ONLY_NOVA and ONLY_NOVA_COLUMNS. Raises
        KeyError if this release of Nova lacks the table.
        """
        return self._tables[name]

    def count(self, connection: sa.Connection, table: str, *where: sa.ColumnElement[bool]) -> int:
        """Return the number of rows of a table, or 0 if this release of Nova lacks the table."""
        if not self.has(table):
            return 0
        return connection.execute(sa.select(sa.func.count()).select_from(self.table(table)).where(*where)).scalar_one()

    def batches(
        self,
        connection: sa.Connection,
        table: str,
        columns: Sequence[str] | None = None,
        *where: sa.ColumnElement[bool],
        key: Sequence[str] = ('id',),
        deleted: bool | None = None,
    ) -> Iterator[list[Row]]:
        """Yield all rows of a table as lists of dicts, ordered by ``key``. One SQL statement for each list.

        Args:
            connection: The connection of ``read``.
            table: The table's name.
            columns: The columns to read, by default all of ``table``. Those of ``key`` are always among them. Columns
                that this release of Nova lacks are None.
            where: Further conditions.
            key: The columns of a unique key.
            deleted: Whether to read only deleted rows (True) or only others (False).
        """
        if not self.has(table):
            return
        source = self.table(table)
        names = list(dict.fromkeys((*key, *(columns or source.c.keys()))))
        lacking = dict.fromkeys(name for name in names if name not in source.c)
        order = [source.c[name] for name in key]
        query = sa.select(*(source.c[name] for name in names if name in source.c)).where(*where)
        if deleted is not None:
            query = query.where(source.c.deleted != 0 if deleted else source.c.deleted == 0)
        query = query.order_by(*order).limit(BATCH)
        page = query
        while True:
            rows = [{**row, **lacking} for row in connection.execute(page).mappings()]
            if rows:
                yield rows
            if len(rows) < BATCH:
                return
            last = [rows[-1][name] for name in key]
            page = query.where(order[0] > last[0] if len(key) == 1 else sa.tuple_(*order) > sa.tuple_(*last))

    def rows_of(
        self,
        connection: sa.Connection,
        table: str,
        key: str,
        values: Collection[str],
        columns: Sequence[str] | None = None,
        *where: sa.ColumnElement[bool],
    ) -> dict[str, list[Row]]:
        """Return {value: rows whose column ``key`` has this value, ordered by id}, in one SQL statement.

        Values without rows are left out. Columns that this release of Nova lacks are None.
        """
        found: dict[str, list[Row]] = {}
        if not values or not self.has(table):
            return found
        source = self.table(table)
        names = list(dict.fromkeys((key, *(columns or source.c.keys()))))
        lacking = dict.fromkeys(name for name in names if name not in source.c)
        query = sa.select(*(source.c[name] for name in names if name in source.c))
        order = [source.c.id] if 'id' in source.c else list(source.c)
        query = query.where(source.c[key].in_(list(values)), *where).order_by(*order)
        for row in connection.execute(query).mappings():
            found.setdefault(row[key], []).append({**row, **lacking})
        return found

    def existing(
        self,
        connection: sa.Connection,
        table: str,
        key: Sequence[str],
        keys: Sequence[tuple[Any, ...]],
        *where: sa.ColumnElement[bool],
    ) -> set[tuple[Any, ...]]:
        """Return those of ``keys`` for which the table has a row that fulfils the conditions ``where``.

        ``key`` are the names of the columns of a unique key. Each of ``keys`` is a tuple of values of these columns.
        """
        source = self.table(table)
        columns = [source.c[name] for name in key]
        query = sa.select(*columns).where(among(source, key, keys), *where)
        return {tuple(row) for row in connection.execute(query)}

    def by_key(
        self,
        connection: sa.Connection,
        table: str,
        key: Sequence[str],
        keys: Sequence[tuple[Any, ...]],
        columns: Sequence[str],
    ) -> dict[tuple[Any, ...], Row]:
        """Return {key: row} of the rows with these keys. ``key`` has the names of the keys' columns."""
        if not keys:
            return {}
        source = self.table(table)
        query = sa.select(*(source.c[name] for name in columns)).where(among(source, key, keys))
        rows = [dict(row) for row in connection.execute(query).mappings()]
        return {tuple(row[name] for name in key): row for row in rows}

    # --- how it is opened
    def _wanted(self) -> dict[str, Sequence[str]]:
        """Return {table: columns} with all tables and columns that Kilonova reads from Nova.

        A release of Nova may lack some of them.
        """
        tables = METADATA[self.schema].tables
        ours = {
            name: (*table.c.keys(), *ONLY_NOVA_COLUMNS.get(name, ()))
            for name, table in tables.items()
            if name not in ('operations', 'leases') and not name.startswith('shadow_')
        }
        return {**ours, **ONLY_NOVA[self.schema]}

    def _unknown(self, found: Sequence[str]) -> str:
        known = ', '.join(f'{revision} (Nova {release})' for revision, release in REVISIONS[self.schema].items())
        if not found:
            return f'it has no revision of a schema, so it is no {self.schema} database of Nova. Known are: {known}'
        return f'its schema has the revision {" and ".join(found)}. Known are: {known}'

    def _create(self, url: sa.URL) -> sa.Engine:
        arguments: dict[str, Any] = {}
        if self.dialect == 'sqlite':
            path = pathlib.Path(url.database or '')
            if not path.is_file():
                raise NovaUnreadable(name=self.name, url=self.url, reason='there is no such file')
            mode = 'rw' if self._writable else 'ro'
            url = sa.make_url(f'sqlite:///file:{urllib.parse.quote(str(path.absolute()))}?mode={mode}&uri=true')
        else:
            arguments['isolation_level'] = 'REPEATABLE READ'
            arguments['connect_args'] = {'connect_timeout': CONNECT_TIMEOUT}
        try:
            engine = sa.create_engine(url, hide_parameters=True, poolclass=pool.NullPool, **arguments)
        except (sa.exc.ArgumentError, ImportError, TypeError) as error:
            raise NovaUnknown(
                name=self.name,
                url=self.url,
                reason=f'there is no driver {url.drivername!r} ({error}); sqlite, mysql+pymysql and '
                'postgresql+psycopg2 are supported',
            ) from None
        event.listen(engine, 'connect', self._prepare)
        event.listen(engine, 'handle_error', lambda context: failures.note_database(context, self))
        if self.dialect == 'sqlite':
            event.listen(engine, 'begin', lambda connection: connection.exec_driver_sql('BEGIN'))
        return engine

    def _prepare(self, connection: Any, _record: pool.ConnectionPoolEntry) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            if self.dialect == 'sqlite':
                connection.isolation_level = None
                if not self._writable:
                    cursor.execute('PRAGMA query_only = ON')
            elif self._writable:
                pass
            elif self.dialect == 'postgresql':
                cursor.execute('SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY')
                connection.commit()
            else:
                cursor.execute('SET SESSION TRANSACTION READ ONLY')


def _with_driver(url: sa.URL) -> sa.URL:
    """Return the URL with the driver that Kilonova installs, if it names none or another one for Python."""
    drivers = {'mysql': 'mysql+pymysql', 'mariadb': 'mysql+pymysql', 'postgresql': 'postgresql+psycopg2'}
    return url.set(drivername=drivers.get(url.drivername.partition('+')[0], url.drivername))


def _revisions(connection: sa.Connection) -> list[str]:
    version = sa.table('alembic_version', sa.column('version_num', sa.String))
    return sorted(connection.execute(sa.select(version.c.version_num)).scalars())


def _narrow(inspector: sa.Inspector, table: str, columns: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return pairs (table, column) of the columns with a character set of MySQL that lacks some characters."""
    if inspector.dialect.name != 'mysql':
        return set()
    options = inspector.get_table_options(table)
    default = options.get('mysql_default charset') or options.get('mysql_collate') or ''
    texts = {column: kind for column, kind in columns.items() if isinstance(kind, sa.String)}
    sets = {
        column: getattr(kind, 'charset', None) or getattr(kind, 'collation', None) for column, kind in texts.items()
    }
    return {(table, column) for column, name in sets.items() if str(name or default).partition('_')[0] in NARROW}


def _reflected(name: str, wanted: Sequence[str], existing: Mapping[str, Any]) -> sa.Table:
    """Return the table ``name`` of Nova with those of the columns ``wanted`` that the database has.

    ``existing`` is {column of the database: its type}. A column that Kilonova's table has, too, gets Kilonova's type,
    so that its values are read as Kilonova reads them. Other columns, and columns of an enumeration type, are read as
    integers or texts.
    """
    ours = next((metadata.tables[name] for metadata in METADATA.values() if name in metadata.tables), None)

    def type_of(column: str) -> Any:
        if ours is None or column not in ours.c or isinstance(ours.c[column].type, sa.Enum):
            return sa.String() if not isinstance(existing[column], sa.Integer) else sa.Integer()
        return ours.c[column].type

    columns = [
        sa.Column(column, type_of(column), primary_key=column == 'id') for column in wanted if column in existing
    ]
    return sa.Table(name, sa.MetaData(), *columns)
