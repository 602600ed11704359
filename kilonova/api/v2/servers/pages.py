"""Lists of servers over all cells: the filters of a request, and one page of servers.

A build request is the row of a server that is not in a cell yet. Build requests are read before the cells, so that no
server is missed while it moves to a cell (rule 18 of operations.md). If a server is found both as a build request and
in a cell, its row in the cell is listed.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from oslo_utils import strutils

from kilonova import states
from kilonova.api.schemas import types as t
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import ask_cells
from kilonova.api.v2.servers import show
from kilonova.db import expressions
from kilonova.db.engine import Database
from kilonova.db.queries import addresses, flavors, owners, servers
from kilonova.db.queries.owners import Owner
from kilonova.db.queries.servers import Filters
from kilonova.errors import Forbidden, Invalid, MarkerNotFound, Unavailable

NEVER = 10**6
STATUS_STRICT_SINCE = 38
PARTIAL_SINCE = 69


class FilterRow(NamedTuple):
    """A filter of the server list that compares a column with values.

    ``column`` is the column's name. ``read(name, text)`` converts the text of the filter to a list of accepted values.
    In microversion 2.``since`` and later, every user may use the filter. In earlier microversions, only callers who may
    use all filters may use it.
    """

    name: str
    column: str
    read: Callable[[str, str], list[Any]]
    since: int


def _text(name: str, value: str) -> list[Any]:
    return [value]


def _text_or_none(name: str, value: str) -> list[Any]:
    """Return the list of column values that match the filter ``name`` with the value ``value``.

    An empty value matches rows whose column is empty or NULL: the result is ['', None].
    """
    return [value] if value else ['', None]


def _number(name: str, value: str) -> list[Any]:
    if re.fullmatch(r'-?[0-9]{1,9}', value) is None:
        raise Invalid(f"Invalid filter value for {name}: '{value}' is not an integer.")
    return [int(value)]


def _boolean(name: str, value: str) -> list[Any]:
    try:
        wanted = strutils.bool_from_string(value, strict=True)
    except ValueError as error:
        raise Invalid(f'Invalid filter value for {name}: {error}') from None
    return [True] if wanted else [False, None]


def _drive(name: str, value: str) -> list[Any]:
    return ['True'] if _boolean(name, value)[0] else ['', None]


def _date(name: str, value: str) -> list[Any]:
    return [t.when(value)]


EQUAL = (
    FilterRow('reservation_id', 'reservation_id', _text, 1),
    FilterRow('image', 'image_ref', _text, 1),
    FilterRow('locked', 'locked', _boolean, 73),
    FilterRow('availability_zone', 'availability_zone', _text, 83),
    FilterRow('config_drive', 'config_drive', _drive, 83),
    FilterRow('key_name', 'key_name', _text_or_none, 83),
    FilterRow('created_at', 'created_at', _date, 83),
    FilterRow('launched_at', 'launched_at', _date, 83),
    FilterRow('terminated_at', 'terminated_at', _date, 83),
    FilterRow('power_state', 'power_state', _number, 83),
    FilterRow('task_state', 'task_state', _text_or_none, 83),
    FilterRow('vm_state', 'vm_state', _text, 83),
    FilterRow('progress', 'progress', _number, 83),
    FilterRow('user_id', 'user_id', _text, 83),
    FilterRow('hostname', 'hostname', _text, 90),
    FilterRow('launch_index', 'launch_index', _number, NEVER),
    FilterRow('image_ref', 'image_ref', _text, NEVER),
    FilterRow('kernel_id', 'kernel_id', _text_or_none, NEVER),
    FilterRow('ramdisk_id', 'ramdisk_id', _text_or_none, NEVER),
    FilterRow('host', 'host', _text, NEVER),
    FilterRow('node', 'node', _text, NEVER),
    FilterRow('locked_by', 'locked_by', _text_or_none, NEVER),
    FilterRow('uuid', 'uuid', _text, NEVER),
    FilterRow('root_device_name', 'root_device_name', _text, NEVER),
    FilterRow('access_ip_v4', 'access_ip_v4', _text, NEVER),
    FilterRow('access_ip_v6', 'access_ip_v6', _text, NEVER),
    FilterRow('auto_disk_config', 'auto_disk_config', _boolean, NEVER),
)
# REGEX is a dict from filter to (column, N). From microversion 2.N on, every user may use the filter.
# Before microversion 2.N, only a caller who may use all filters (an administrator) may use the filter.
REGEX = {
    'name': ('display_name', 1),
    'display_name': ('display_name', NEVER),
    'description': ('display_description', NEVER),
    'display_description': ('display_description', NEVER),
}
# ADDRESSES is a dict from filter to (IP version, N). From microversion 2.N on, every user may use the filter.
# Before microversion 2.N, only a caller who may use all filters (an administrator) may use the filter.
ADDRESSES = {'ip': (4, 1), 'ip6': (6, 5)}
TAGS = {'tags': 'tags', 'tags-any': 'tags_any', 'not-tags': 'not_tags', 'not-tags-any': 'not_tags_any'}


@dataclass(frozen=True)
class Listing:
    """A request for a page of servers.

    ``marker`` is the uuid of the last server of the page before. If ``plain`` is true, only uuid and name of each
    server are read. If ``bulky`` is true, the column user_data, which may be large, is read, too. If ``host_status`` is
    true, the states of the servers' hosts (UP, DOWN, UNKNOWN, MAINTENANCE) are read, too.
    """

    filters: Filters
    owner: Owner
    order: Sequence[tuple[str, str]] = (('created_at', 'desc'),)
    limit: int = 1000
    marker: str | None = None
    plain: bool = False
    bulky: bool = False
    version: int = 1
    host_status: bool = False
    # True if the request has no filters, order, limit or marker. Then all servers are listed.
    whole: bool = False

    @property
    def tells_unknown(self) -> bool:
        """True if the list also contains servers of cells that do not answer, with the status UNKNOWN.

        The entries of these servers only have values from the instance mappings.
        """
        return self.whole and self.version >= PARTIAL_SINCE


@dataclass
class Listed:
    """One page of servers.

    ``rows`` are the rows of servers in the requested order. ``unknown`` are the instance mappings of servers whose
    cells do not answer: they are shown with the status UNKNOWN. ``host_states`` is a dict from host to its host_status,
    such as 'UP'. ``wishes`` is a dict from a server's uuid to values of its request spec: {'zone': <the zone to which
    the server is pinned, or None>, 'hints': <scheduler hints>}.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[dict[str, Any]] = field(default_factory=list)
    host_states: dict[str, str] = field(default_factory=dict)
    wishes: dict[str, dict[str, Any]] = field(default_factory=dict)


# --- filters of the server list --------------------------------------------------------------------------------------
def read_filters(
    backend: Backend,
    query: Mapping[str, str],
    *,
    version: int,
    all_filters: bool,
    is_admin: bool,
    all_tenants: bool,
    statuses: Sequence[str] = (),
) -> Filters:
    """Return the filters of a request. Filters that the caller may not use are ignored.

    ``query`` has one value for each filter. With ``all_filters`` the caller may use every filter. With ``all_tenants``
    the servers of all projects are listed, so the request can filter by project. ``statuses`` are the values of the
    filter 'status', one of which must match.

    Raises:
        Invalid: The value of a filter is malformed (400).
        Forbidden: The caller filters by the status of deleted servers and is no administrator (403).
    """

    def usable(name: str, since: int) -> bool:
        return name in query and (all_filters or version >= since)

    equal: dict[str, Sequence[Any]] = {
        row.column: row.read(row.name, query[row.name]) for row in EQUAL if usable(row.name, row.since)
    }
    if all_tenants and all_filters:
        for name in ('tenant_id', 'project_id'):
            if name in query:
                equal['project_id'] = [query[name]]
    regex = {column: _pattern(name, query[name]) for name, (column, since) in REGEX.items() if usable(name, since)}
    changed = _changed(query, version)
    found = Filters(
        equal=equal,
        regex=regex,
        deleted=_deleted(query, all_filters, changed),
        changed=changed,
        addresses=[
            _address(name, query[name], family)
            for name, (family, since) in ADDRESSES.items()
            if usable(name, since) and query[name]
        ],
    )
    if version >= 26:
        tags: dict[str, Any] = {
            attribute: tuple(filter(None, query[name].split(','))) for name, attribute in TAGS.items() if name in query
        }
        found = replace(found, **tags)
    if statuses:
        found = _with_status(found, statuses, version, is_admin)
    soft = (
        bool(_boolean('soft_deleted', query['soft_deleted'])[0])
        if usable('soft_deleted', NEVER)
        else _asks_for_soft_deleted(found)
    )
    found = replace(found, soft_deleted=soft)
    if 'flavor' in query:
        with backend.api_db.read() as conn:
            number = flavors.id_of(conn, query['flavor'])
        found = replace(
            found, equal={**found.equal, 'instance_type_id': [number]}, nothing=found.nothing or number is None
        )
    return found


def _pattern(name: str, value: str) -> str:
    with _understood(name, value):
        expressions.compiled(value)
    return value


def _address(name: str, value: str, family: int) -> str:
    """Return a regular expression with which the database filters servers by the filter ip or ip6.

    ``name`` is the filter, and ``value`` is its value: a regular expression for addresses. The result is compared with
    the info cache, a JSON text with the server's addresses. ``family`` is the IP version, 4 or 6. Raises Invalid if
    ``value`` is malformed.
    """
    with _understood(name, value):
        return addresses.of_cache(value, family)


@contextlib.contextmanager
def _understood(name: str, value: str) -> Iterator[None]:
    try:
        yield
    except expressions.BadExpression as error:
        raise Invalid(f"Invalid filter value for {name}: '{value}' is not a regular expression: {error}.") from None


def _deleted(query: Mapping[str, str], all_filters: bool, changed: tuple[Any, ...]) -> bool | None:
    if all_filters and 'deleted' in query:
        return bool(_boolean('deleted', query['deleted'])[0])
    return None if any(changed) else False


def _changed(query: Mapping[str, str], version: int) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    since = t.when(query['changes-since']) if 'changes-since' in query else None
    before = t.when(query['changes-before']) if version >= 66 and 'changes-before' in query else None
    if since and before and since > before:
        raise Invalid('The value of changes-since must be less than or equal to changes-before.')
    return since, before


def _asks_for_soft_deleted(filters: Filters) -> bool:
    """Return whether the list also contains soft-deleted servers.

    This is true if the request has one of these filters: vm_state or status for SOFT_DELETED, deleted=true,
    changes-since or changes-before.
    """
    asked = {vm for vm, _, _ in filters.states or ()} | set(filters.equal.get('vm_state', ()))
    return states.VmState.SOFT_DELETED in asked or filters.deleted is not False


def _with_status(filters: Filters, wanted: Sequence[str], version: int, is_admin: bool) -> Filters:
    found = [state for status in wanted for state in _states_of(status)]
    if not found:
        if version >= STATUS_STRICT_SINCE:
            raise Invalid('Invalid status value')
        return replace(filters, nothing=True)
    if any(vm == states.VmState.DELETED for vm, _, _ in found):
        if not is_admin:
            raise Forbidden('Only administrators may list deleted instances')
        filters = replace(filters, deleted=True)
    return replace(filters, states=found)


def _states_of(status: str) -> Iterable[tuple[str, frozenset[str], bool]]:
    known = [str(task) for task in states.TaskState]
    for vm, tasks in states.from_status(status):
        if tasks is None:
            yield vm, frozenset(task for task in known if states.status(vm, task) != status.upper()), False
        else:
            yield vm, frozenset(map(str, tasks)), True


# --- the list of servers ---------------------------------------------------------------------------------------------
def list_servers(backend: Backend, listing: Listing) -> Listed:
    """Return one page of servers.

    Runs two SQL statements in the API database and at most four per cell.

    Raises:
        MarkerNotFound: The server ``listing.marker`` does not exist (400).
        Unavailable: A cell does not answer, and the options forbid partial lists (503).
    """
    found = Listed()
    if listing.limit == 0 or listing.filters.nothing:
        return found
    filters = listing.filters
    if listing.owner is None:
        # A caller without a project has no servers.
        return found
    if isinstance(listing.owner, str):
        filters = replace(filters, equal={**filters.equal, 'project_id': [listing.owner]})
    with backend.api_db.read() as conn:
        waiting = servers.build_requests(conn, listing.owner)
    marker = _marker(backend, listing, waiting) if listing.marker else None
    rows, silent = _of_cells(backend, listing, filters, marker, found)
    settled = {row['uuid'] for row in rows}
    waiting = [row for row in waiting if row['uuid'] not in settled and filters.matches(row)]
    rows.extend(_behind(waiting, listing.order, marker))
    servers.sort(rows, listing.order)
    found.rows = rows[: listing.limit]
    _read_api(backend, listing, found, silent)
    return found


def _of_cells(
    backend: Backend, listing: Listing, filters: Filters, marker: dict[str, Any] | None, found: Listed
) -> tuple[list[dict[str, Any]], list[Any]]:
    silent: list[Any] = []
    answers = ask_cells(
        backend.all_cells(), lambda cell: _of_cell(backend, cell, listing, filters, marker, found), silent
    )
    # If a cell does not answer, only the instance mappings of its servers are known.
    # From microversion 2.69 on, a list shows the servers of such a cell with the status UNKNOWN.
    # A list with filters, order or limit can't show UNKNOWN servers, because a mapping can't be filtered or sorted.
    # A list that can't show UNKNOWN servers fails with error 503.
    # With [api]list_records_by_skipping_down_cells, the list leaves out the servers of the cell instead of failing.
    if silent and not backend.options.skip_down_cells and not listing.tells_unknown:
        raise Unavailable(f'Cell {silent[0].name} is not responding.')
    return [row for _, rows in answers for row in rows], silent


def _of_cell(
    backend: Backend, cell: Database, listing: Listing, filters: Filters, marker: dict[str, Any] | None, found: Listed
) -> list[dict[str, Any]]:
    with cell.read() as conn:
        if listing.plain:
            return servers.names(conn, filters, listing.order, listing.limit, marker)
        rows = servers.page(conn, filters, listing.order, listing.limit, marker, bulky=listing.bulky)
        show.add_facts(conn, rows, listing.version)
        if listing.host_status and rows:
            found.host_states.update(
                servers.host_states(
                    conn, [row['host'] for row in rows if row['host']], backend.options.service_down_time
                )
            )
        return rows


def _marker(backend: Backend, listing: Listing, waiting: list[dict[str, Any]]) -> dict[str, Any]:
    uuid = listing.marker or ''
    found = next((row for row in waiting if row['uuid'] == uuid), None)
    if found is not None:
        return found
    with backend.api_db.read() as conn:
        place = servers.find(conn, uuid)
    allowed = place is not None and owners.has(listing.owner, place['project_id'])
    if place is not None and allowed and place['cell_id'] is not None:
        with backend.cells.by_id(place['cell_id']).read() as conn:
            found = servers.get(conn, uuid, deleted=True)
    if found is None:
        raise MarkerNotFound(marker=uuid)
    return found


def _behind(
    rows: list[dict[str, Any]], order: Sequence[tuple[str, str]], marker: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the rows that come after the row ``marker``, or all rows if ``marker`` is None.

    ``order`` is a list of pairs of a column and a direction, 'asc' or 'desc'.
    """
    if marker is None:
        return rows
    ordered = [*(row for row in rows if row['uuid'] != marker['uuid']), marker]
    servers.sort(ordered, order)
    return ordered[ordered.index(marker) + 1 :]


def _read_api(backend: Backend, listing: Listing, found: Listed, silent: Sequence[Any]) -> None:
    partial = silent and listing.tells_unknown
    wished = not listing.plain and listing.version >= 96 and found.rows
    if not (partial or wished):
        return
    with backend.api_db.read() as conn:
        if wished:
            found.wishes = servers.wishes(conn, [row['uuid'] for row in found.rows])
        if partial:
            ids = [cell.cell.id for cell in silent if cell.cell is not None]
            found.unknown = servers.mapped(conn, ids, listing.owner, listing.limit)
