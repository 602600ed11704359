"""Cells: their mappings, their databases, and the mappings of hosts to cells.

    cells = CellDatabases(databases)
    with cells.by_uuid(uuid).read() as connection: ...
    for database in cells.enabled(): ...                # cells in which new servers may be created
    database.cell.transport_url                         # from its mapping, with templates filled in

``map_cell0`` and the functions that follow it do the work of kilonova-manage cell_v2. They return data and print
nothing.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.parse
import uuid as uuids
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from oslo_log import log as logging

from kilonova import errors
from kilonova.db.engine import Database, Databases, is_unreachable
from kilonova.db.models.api import CellMapping, HostMapping
from kilonova.db.models.cell import Service
from kilonova.db.queries import compute_nodes
from kilonova.db.rows import Row, insert_missing, many, one

cell_mappings = CellMapping.__table__
host_mappings = HostMapping.__table__
services = Service.__table__

LOG = logging.getLogger(__name__)

# Seconds after which the cell mappings are read again.
REFRESH = 60.0

CELL0_UUID = '00000000-0000-0000-0000-000000000000'
CELL0_TRANSPORT = 'none:///'

_TEMPLATE = re.compile(r'\{(scheme|path|query|fragment|(?:username|password|hostname|port)\d*)\}')
# Matches the password of each host in a URL: the text after 'user:', up to the last '@' before the host name.
# The password may contain '/', ':' and '@' without percent-encoding, because SQLAlchemy accepts such URLs.
_PASSWORD = re.compile(r'(?<=[/,])([^/:@,?]*:)(?:[^,@]|,(?![^/:@,]*:)|@(?=[^/,?]*@))*(?=@)')
_IN_QUERY = re.compile(r'(?<=[?&])((?:password|passwd)=)[^&]*')


class CellExists(errors.Conflict):
    """Another cell has the same transport URL or database URL."""

    msg_fmt = (
        'The specified transport_url and/or database_connection combination already exists for '
        'another cell with uuid %(uuid)s.'
    )


class HostMapped(errors.Conflict):
    """The host can't be mapped to this cell, because another cell has a host of the same name."""

    msg_fmt = "Host '%(host)s' is already mapped to cell %(cell)s."


# --- rows
def get_cells(connection: sa.Connection) -> list[Row]:
    """Return all cell mappings as they are stored (templates are not filled in), sorted by id."""
    return many(connection.execute(sa.select(cell_mappings).order_by(cell_mappings.c.id)))


def get_cell(connection: sa.Connection, uuid: str) -> Row | None:
    """Return the cell mapping with this uuid, or None if it does not exist."""
    return one(connection.execute(sa.select(cell_mappings).where(cell_mappings.c.uuid == uuid)))


def get_host(connection: sa.Connection, host: str) -> Row | None:
    """Return a host's mapping, with ``cell_uuid`` and ``cell_name``, or None if the host is not mapped."""
    return one(connection.execute(_hosts().where(host_mappings.c.host == host)))


def get_hosts(
    connection: sa.Connection, *, hosts: Iterable[str] | None = None, cell_uuid: str | None = None
) -> list[Row]:
    """Return host mappings with ``cell_uuid`` and ``cell_name``, sorted by cell and host name.

    ``hosts`` and ``cell_uuid`` limit the result.
    """
    query = _hosts().order_by(host_mappings.c.cell_id, host_mappings.c.host)
    if hosts is not None:
        query = query.where(host_mappings.c.host.in_(list(hosts)))
    if cell_uuid is not None:
        query = query.where(cell_mappings.c.uuid == cell_uuid)
    return many(connection.execute(query))


def hosts_by_cell(connection: sa.Connection) -> dict[int, set[str]]:
    """Return {id of a cell mapping: set of the cell's hosts}. Cells without hosts are left out."""
    found: dict[int, set[str]] = {}
    for cell_id, host in connection.execute(sa.select(host_mappings.c.cell_id, host_mappings.c.host)):
        found.setdefault(cell_id, set()).add(host)
    return found


def map_hosts(connection: sa.Connection, cell_id: int, hosts: Iterable[str]) -> None:
    """Map these hosts to a cell. Hosts that are mapped already keep their mapping."""
    insert_missing(connection, host_mappings, [{'cell_id': cell_id, 'host': host} for host in hosts])


def unmap_host(connection: sa.Connection, host: str) -> bool:
    """Delete the mapping of a host. Return False if the host has no mapping."""
    return connection.execute(sa.delete(host_mappings).where(host_mappings.c.host == host)).rowcount == 1


def _hosts() -> sa.Select[Any]:
    return sa.select(
        host_mappings, cell_mappings.c.uuid.label('cell_uuid'), cell_mappings.c.name.label('cell_name')
    ).join_from(host_mappings, cell_mappings, cell_mappings.c.id == host_mappings.c.cell_id)


# -- URLs of cells that contain templates ------------------------------------------------------------------------------
def fill(template: str, local_url: str | None) -> str:
    """Replace {scheme}, {hostname} and so on in a cell mapping's URL by the parts of the local URL.

    The names are {scheme}, {username}, {password}, {hostname}, {port}, {path}, {query} and {fragment}. If the local URL
    has several hosts, {hostname2} and so on are parts of the second host, and {hostname1} is {hostname}. Other braces
    are left unchanged. Raises Invalid if the local URL lacks a part that the template contains.
    """
    if not _TEMPLATE.search(template):
        return template
    parts = _parts(local_url or '')

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in parts:
            raise errors.Invalid(
                f'The cell mapping contains {{{name}}}, but the URL in the local configuration has no such part.'
            )
        return parts[name]

    return _TEMPLATE.sub(value, template)


def _parts(url: str) -> dict[str, str]:
    split = urllib.parse.urlsplit(url)
    parts = {
        'scheme': split.scheme,
        'path': split.path.removeprefix('/'),
        'query': split.query,
        'fragment': split.fragment,
    }
    for number, host in enumerate(split.netloc.split(','), start=1):
        one_host = urllib.parse.urlsplit(f'//{host}')
        found = {
            'username': one_host.username,
            'password': one_host.password,
            'hostname': one_host.hostname,
            'port': str(one_host.port) if one_host.port else None,
        }
        for name, value in found.items():
            if value is not None:
                parts[f'{name}{number}'] = value
                if number == 1:
                    parts[name] = value
    return parts


def mask_password(url: str | None) -> str:
    """Return the URL with its passwords replaced by ****."""
    return _IN_QUERY.sub(r'\1****', _PASSWORD.sub(r'\1****', url or ''))


def cell0_url(main_url: str) -> str:
    """Return the default database URL of cell0.

    The default is the URL of the main database with ``_cell0`` added to the database's name.
    """
    base, mark, query = main_url.partition('?')
    return f'{base}_cell0{mark}{query}'


# --- the cells of this cloud
@dataclass(frozen=True)
class CellRecord:
    """A cell mapping with its templates filled in.

    The attribute ``Database.cell`` of a cell's database is a CellRecord.
    """

    id: int
    uuid: str
    name: str | None
    transport_url: str = field(repr=False)
    database_connection: str = field(repr=False)
    disabled: bool


class CellDatabases:
    """The databases of all cells, as the API database lists them.

    The mappings are read again if an unknown cell is requested, or if they are ``refresh`` seconds old (None: never).
    So a change takes effect without a restart. ``transport_url`` is the local URL ([DEFAULT]transport_url), which fills
    templates in the mappings.
    """

    def __init__(self, databases: Databases, transport_url: str | None = None, refresh: float | None = REFRESH) -> None:
        self._databases = databases
        self._transport_url = transport_url
        self._refresh = refresh
        self._read_at = 0.0
        self._known: tuple[Database, ...] = ()
        self._hosts: dict[str, int] = {}
        self._loading = threading.Lock()

    def api(self) -> Database:
        """Return the API database, which lists the cells."""
        return self._databases.api()

    def reload(self) -> None:
        """Read the cell mappings from the API database again."""
        with self._loading:
            with self._databases.api().read() as connection:
                rows = get_cells(connection)
            self._known = tuple(self._open(row) for row in rows)
            self._hosts = {}
            self._read_at = time.monotonic()

    def databases(self) -> list[Database]:
        """Return the databases of all cells, including cell0 and disabled ones, sorted by id."""
        if not self._known:
            self.reload()
        elif self._refresh is not None and time.monotonic() - self._read_at > self._refresh:
            self._reload_old()
        return list(self._known)

    def _reload_old(self) -> None:
        """Read the cell mappings again. If the API database does not answer, keep the mappings that are known."""
        self._read_at = time.monotonic()
        try:
            self.reload()
        except Exception as error:
            if not is_unreachable(error):
                raise
            LOG.warning('Could not reload the cell mappings; continuing with the known ones: %s', error)

    def enabled(self) -> list[Database]:
        """Return the databases of the cells in which new servers may be created: not cell0, and not disabled cells."""
        return [database for database in self._with_hosts() if not database.cell.disabled]

    def cell0(self) -> Database | None:
        """Return the database of cell0, which has servers that never got a host, or None before ``map_cell0``."""
        return self._find(lambda cell: cell.uuid == CELL0_UUID)

    def by_uuid(self, uuid: str) -> Database:
        """Return a cell's database. Raises CellMappingNotFound if no cell has this uuid."""
        database = self._find(lambda cell: cell.uuid == uuid)
        if database is None:
            raise errors.CellMappingNotFound(uuid=uuid)
        return database

    def by_id(self, cell_id: int) -> Database:
        """Return the database of the cell whose mapping has this id.

        Raises CellMappingNotFound if no cell has this id.
        """
        database = self._find(lambda cell: cell.id == cell_id)
        if database is None:
            raise errors.CellMappingNotFound(uuid=cell_id)
        return database

    def id_of(self, database: Database) -> int:
        """Return the id of the cell mapping from which ``database`` was opened."""
        found: int = database.cell.id
        return found

    def transport_url_of(self, host: str) -> str | None:
        """Return the transport URL of a host's cell, or None if the host is in no cell.

        Runs no SQL statement if all cells have the same URL. Otherwise it runs one statement for each new host, until
        the mappings are read again.
        """
        urls: set[str | None] = {database.cell.transport_url for database in self._with_hosts()}
        if len(urls) == 1:
            return urls.pop()
        if host not in self._hosts:
            with self._databases.api().read() as connection:
                mapping = get_host(connection, host)
            if mapping is None:
                return None
            self._hosts[host] = mapping['cell_id']
        found: str | None = self.by_id(self._hosts[host]).cell.transport_url
        return found

    def _with_hosts(self) -> list[Database]:
        found = [database for database in self.databases() if database.cell.uuid != CELL0_UUID]
        if not found:
            # Only cell0 is known. Another cell may have been created since the mappings were read, so read them again.
            self.reload()
            found = [database for database in self._known if database.cell.uuid != CELL0_UUID]
        return found

    def _find(self, matches: Callable[[CellRecord], bool]) -> Database | None:
        for _ in range(2):
            for database in self._known:
                if matches(database.cell):
                    return database
            self.reload()
        return next((database for database in self._known if matches(database.cell)), None)

    def _open(self, row: Row) -> Database:
        url = fill(row['database_connection'], self._databases.main_url)
        name = 'cell0' if row['uuid'] == CELL0_UUID else row['name'] or row['uuid']
        database = self._databases.open(url, name)
        transport_url = fill(row['transport_url'], self._transport_url)
        database.cell = CellRecord(row['id'], row['uuid'], row['name'], transport_url, url, bool(row['disabled']))
        return database


# --- kilonova-manage cell_v2
def map_cell0(databases: Databases, database_connection: str | None = None) -> bool:
    """Create the mapping of cell0. Return False if the mapping exists already."""
    with databases.api().write() as connection:
        if get_cell(connection, CELL0_UUID) is not None:
            return False
        connection.execute(
            sa.insert(cell_mappings).values(
                uuid=CELL0_UUID,
                name='cell0',
                transport_url=CELL0_TRANSPORT,
                disabled=False,
                database_connection=database_connection or cell0_url(databases.main().url),
            )
        )
    return True


def create_cell(
    databases: Databases,
    *,
    transport_url: str,
    database_connection: str,
    name: str | None = None,
    disabled: bool = False,
) -> str:
    """Create the mapping of a cell and return its uuid. Raises CellExists if another cell has one of the URLs."""
    with databases.api().write() as connection:
        _refuse_known_urls(connection, transport_url, database_connection)
        uuid = str(uuids.uuid4())
        connection.execute(
            sa.insert(cell_mappings).values(
                uuid=uuid,
                name=name,
                transport_url=transport_url,
                database_connection=database_connection,
                disabled=disabled,
            )
        )
    return uuid


def _refuse_known_urls(connection: sa.Connection, transport_url: str, database_connection: str) -> None:
    for cell in get_cells(connection):
        if transport_url == cell['transport_url'] or database_connection == cell['database_connection']:
            raise CellExists(uuid=cell['uuid'])


def list_cells(databases: Databases) -> list[Row]:
    """Return all cell mappings, sorted by id.

    Each mapping also has its URLs without passwords: ``masked_transport_url`` and ``masked_database_connection``.
    """
    with databases.api().read() as connection:
        rows = get_cells(connection)
    for row in rows:
        for name in ('transport_url', 'database_connection'):
            row[f'masked_{name}'] = mask_password(row[name])
    return rows


def list_hosts(databases: Databases, cell_uuid: str | None = None) -> list[Row]:
    """Return host mappings with ``cell_uuid`` and ``cell_name``. Raises CellMappingNotFound for an unknown cell."""
    with databases.api().read() as connection:
        if cell_uuid is not None and get_cell(connection, cell_uuid) is None:
            raise errors.CellMappingNotFound(uuid=cell_uuid)
        return get_hosts(connection, cell_uuid=cell_uuid)


@dataclass(frozen=True)
class Discovered:
    """The hosts that ``discover_hosts`` newly mapped in one cell."""

    cell: CellRecord
    hosts: tuple[str, ...]


def discover_hosts(
    databases: Databases, *, cell_uuid: str | None = None, by_service: bool = False, transport_url: str | None = None
) -> list[Discovered]:
    """Create the host mappings for compute nodes that have none yet, in one cell or in all cells except cell0.

    If ``by_service`` is True, hosts are found by their compute services and not by their nodes. ``transport_url`` is
    [DEFAULT]transport_url, which fills in templates in the cells' URLs. Raises CellMappingNotFound for an unknown cell,
    and HostMapped if another cell has a host of the same name. Mappings that were created before the error are kept.
    """
    cells = CellDatabases(databases, transport_url)
    chosen = [cells.by_uuid(cell_uuid)] if cell_uuid is not None else cells.databases()
    return [
        Discovered(database.cell, tuple(_discover(databases.api(), database, by_service)))
        for database in chosen
        if database.cell.uuid != CELL0_UUID
    ]


def _discover(api: Database, database: Database, by_service: bool) -> Iterator[str]:
    with database.read() as connection:
        if by_service:
            hosts = set(
                connection.execute(
                    sa.select(services.c.host).where(services.c.deleted == 0, services.c.binary == 'nova-compute')
                ).scalars()
            )
        else:
            hosts = {node['host'] for node in compute_nodes.unmapped(connection)}
    if not hosts:
        return
    with api.write() as connection:
        known = {row['host']: row for row in get_hosts(connection, hosts=hosts)}
        for host, row in known.items():
            if row['cell_id'] != database.cell.id:
                raise HostMapped(host=host, cell=row['cell_uuid'])
        new = sorted(hosts - set(known))
        map_hosts(connection, database.cell.id, new)
    with database.write() as connection:
        compute_nodes.set_mapped(connection, hosts, True)
    yield from new


@dataclass(frozen=True)
class SetUp:
    """The results of ``simple_cell_setup``.

    ``cell`` is None if there is no compute node. Then nothing was created.
    """

    cell0_created: bool
    cell_created: bool
    cell: CellRecord | None
    hosts: tuple[str, ...]


def simple_cell_setup(databases: Databases, transport_url: str, name: str | None = None) -> SetUp:
    """Create cell0, and then a cell with its hosts by ``map_cell_and_hosts``. Repeated calls are safe."""
    cell0_created = map_cell0(databases)
    return replace(map_cell_and_hosts(databases, transport_url, name), cell0_created=cell0_created)


def map_cell_and_hosts(databases: Databases, transport_url: str, name: str | None = None) -> SetUp:
    """Create a cell for [database]connection and this transport URL, and map its hosts. Repeated calls are safe.

    Nothing is created if there is no compute node, because a cell without hosts is useless.
    """
    main_url = databases.main().url
    with databases.main().read() as connection:
        if not compute_nodes.any_nodes(connection):
            return SetUp(False, False, None, ())
    created = False
    with databases.api().read() as connection:
        known = {row['database_connection']: row['uuid'] for row in get_cells(connection)}
    uuid = known.get(main_url)
    if uuid is None:
        uuid = create_cell(databases, transport_url=transport_url, database_connection=main_url, name=name)
        created = True
    found = discover_hosts(databases, cell_uuid=uuid, transport_url=transport_url)[0]
    return SetUp(False, created, found.cell, found.hosts)
