"""Read servers for the API's lists and details, with a fixed number of SQL statements for any number of servers.

A row is a dict of ``instances`` columns. If the caller requests them, it also has ``flavor`` (a dict of the flavor's
fields), ``network_info``, ``trusted_certs``, ``metadata``, ``tags``, ``volumes``, ``image_properties`` and ``fault``.
Rows of build requests have the same form, so callers needn't distinguish them from servers of a cell.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from oslo_log import log as logging
from sqlalchemy import Connection

from kilonova import texts
from kilonova.db import engine, envelopes, expressions
from kilonova.db.collation import by_code_point
from kilonova.db.engine import Database
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import owners, patterns
from kilonova.db.queries.instances import LOCKED_REASON
from kilonova.db.queries.owners import Owner

instances = cell_models.Instance.__table__
extras = cell_models.InstanceExtra.__table__
caches = cell_models.InstanceInfoCache.__table__
metadata = cell_models.InstanceMetadata.__table__
system_metadata = cell_models.InstanceSystemMetadata.__table__
tags = cell_models.Tag.__table__
volumes = cell_models.BlockDeviceMapping.__table__
faults = cell_models.InstanceFault.__table__
services = cell_models.Service.__table__
mappings = api_models.InstanceMapping.__table__
requests = api_models.BuildRequest.__table__
specs = api_models.RequestSpec.__table__

LOG = logging.getLogger(__name__)

# Columns of a server that contain its sizes. The fields of a flavor have the same names.
SIZES = ('vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb')
IMAGE_PREFIX = 'image_'
# The system metadata key for the id of the server's image.
# This key has the prefix of image properties but is none, so it is left out of the image properties.
OWN_PROPERTY = f'{IMAGE_PREFIX}base_image_ref'
# In the rows of ``_facts``, this value marks a volume that is deleted together with its server.
_GOES = '1'
_TIMES = ('created_at', 'updated_at', 'deleted_at', 'launched_at', 'terminated_at')
# Long columns that only some users may see.
_BULKY = frozenset(('user_data', 'key_data'))
COLUMNS = tuple(column for column in instances.c if column.name not in _BULKY)
# Columns that are never NULL. Their conditions need no special case for NULL, so the database can use its indexes.
_SOLID = frozenset(('created_at', 'uuid'))


# _GONE is the SQL condition for deleted servers, _WAITING for soft-deleted servers, which can be restored.
# _STAYING is the SQL condition for servers that are not soft-deleted.
# Lists of servers leave out deleted and soft-deleted servers by default.
_GONE, _WAITING = instances.c.deleted != 0, instances.c.vm_state == 'soft-delete'
_STAYING = sa.or_(instances.c.vm_state.is_(None), sa.not_(_WAITING))


# The condition that Nova deleted a row of system metadata together with the row's server.
# Kilonova does not delete the system metadata of a deleted server until the server is archived.
_DELETED_WITH_SERVER = (
    sa.exists()
    .where(
        instances.c.uuid == system_metadata.c.instance_uuid,
        instances.c.deleted != 0,
        instances.c.deleted_at <= system_metadata.c.deleted_at,
    )
    .correlate(system_metadata)
)


# --- filters of server lists -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Filters:
    """The filters of a list of servers. Each filter narrows the list.

    Attributes:
        equal: {column: accepted values}, where None stands for NULL.
        regex: {column: pattern}.
        addresses: Patterns that the info cache must match (see ``addresses.of_cache``).
        states: A list of (vm_state, task states, whether these task states are accepted or refused). A server must fit
            one of them. None allows any state.
        deleted: True lists deleted servers, False the others, and None all servers.
        soft_deleted: Whether soft-deleted servers, which can still be restored, are listed. They count as deleted if
            ``deleted`` is True.
        changed: (since, before), the limits of updated_at in naive UTC.
        tags: The server must have all of these tags.
        tags_any: The server must have at least one of these tags.
        not_tags: The server must lack at least one of these tags.
        not_tags_any: The server must have none of these tags.
        nothing: True if the list is empty in any case.
    """

    equal: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    regex: Mapping[str, str] = field(default_factory=dict)
    addresses: Sequence[str] = ()
    states: Sequence[tuple[str, frozenset[str], bool]] | None = None
    deleted: bool | None = False
    soft_deleted: bool = True
    changed: tuple[datetime.datetime | None, datetime.datetime | None] = (None, None)
    tags: Sequence[str] = ()
    tags_any: Sequence[str] = ()
    not_tags: Sequence[str] = ()
    not_tags_any: Sequence[str] = ()
    nothing: bool = False

    def conditions(self) -> list[Any]:
        """Return the filters as SQL conditions."""
        found: list[Any] = []
        if self.deleted is not None:
            if self.deleted:
                found.append(sa.or_(_GONE, _WAITING) if self.soft_deleted else _GONE)
            else:
                found.append(sa.not_(_GONE))
                found.extend([] if self.soft_deleted else [_STAYING])
        found.extend(_among(_column(name), values) for name, values in self.equal.items())
        found.extend(instances.c[name].regexp_match(pattern) for name, pattern in self.regex.items())
        found.extend(
            sa.exists()
            .where(caches.c.instance_uuid == instances.c.uuid, caches.c.network_info.regexp_match(pattern))
            .correlate(instances)
            for pattern in self.addresses
        )
        if self.states is not None:
            found.append(sa.or_(sa.false(), *(_state(*state) for state in self.states)))
        since, before = self.changed
        stamp = sa.func.coalesce(instances.c.updated_at, instances.c.created_at)
        found.extend([stamp >= since] if since else [])
        found.extend([stamp <= before] if before else [])
        found.extend(_tag_conditions(self))
        return found

    def expressions(self) -> list[str]:
        """Return all regular expressions that the filters contain."""
        return [*self.regex.values(), *self.addresses]

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Return whether a build request fits the filters. ``row`` is the build request in the form of a server's row.

        A filter for addresses never fits, because a build request has no address yet.
        """
        if self.deleted or self.addresses or not all(row.get(name) in values for name, values in self.equal.items()):
            return False
        if not all(expressions.find(pattern, row.get(name) or '') for name, pattern in self.regex.items()):
            return False
        if self.states is not None and not any(
            row['vm_state'] == vm and (row['task_state'] in tasks) == accepted for vm, tasks, accepted in self.states
        ):
            return False
        since, before = self.changed
        stamp = row.get('updated_at') or row['created_at']
        if (since and stamp < since) or (before and stamp > before):
            return False
        own = set(row.get('tags', ()))
        return (
            own.issuperset(self.tags)
            and (not self.tags_any or bool(own.intersection(self.tags_any)))
            and not (self.not_tags and own.issuperset(self.not_tags))
            and own.isdisjoint(self.not_tags_any)
        )


def _column(name: str) -> Any:
    """Return a column of instances for comparisons and sorting.

    An enum column is cast to text, because databases sort enums by their definition, and refuse to compare them with
    unknown values.
    """
    column = instances.c[name]
    return sa.cast(column, sa.String(255)) if isinstance(column.type, sa.Enum) else column


def _among(column: sa.ColumnElement[Any], values: Sequence[Any]) -> Any:
    solid = [value for value in values if value is not None]
    condition = column == solid[0] if len(solid) == 1 else column.in_(solid)
    return sa.or_(condition, column.is_(None)) if None in values else condition


def _state(vm: str, tasks: frozenset[str], accepted: bool) -> Any:
    column = instances.c.task_state
    task = column.in_(sorted(tasks)) if accepted else sa.or_(column.is_(None), column.not_in(sorted(tasks)))
    return sa.and_(instances.c.vm_state == vm, task)


def _tag_conditions(filters: Filters) -> Iterable[Any]:
    def has(wanted: Sequence[str]) -> Any:
        return sa.exists().where(tags.c.resource_id == instances.c.uuid, tags.c.tag.in_(list(wanted)))

    def has_all(wanted: Sequence[str]) -> Any:
        count = sa.select(sa.func.count()).where(tags.c.resource_id == instances.c.uuid, tags.c.tag.in_(list(wanted)))
        return count.scalar_subquery() == len(set(wanted))

    if filters.tags:
        yield has_all(filters.tags)
    if filters.tags_any:
        yield has(filters.tags_any)
    if filters.not_tags:
        yield sa.not_(has_all(filters.not_tags))
    if filters.not_tags_any:
        yield sa.not_(has(filters.not_tags_any))


# --- sort order of server lists --------------------------------------------------------------------------------------
def full_order(order: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return ``order`` with the uuid added, so that no two servers have the same place in the order.

    An order is a list of (column, 'asc' or 'desc') pairs. The uuid is ascending in every order, as in Nova. An empty
    order stays empty, because callers use it only to find out whether there is any server.
    """
    return [*order, ('uuid', 'asc')] if order and 'uuid' not in dict(order) else [*order]


def sort(rows: list[dict[str, Any]], order: Sequence[tuple[str, str]]) -> None:
    """Sort servers of several cells in place. ``order`` is a list of (column, 'asc' or 'desc')."""
    for name, direction in reversed(full_order(order)):

        def rank(row: dict[str, Any], name: str = name) -> tuple[Any, ...]:
            value = row.get(name)
            return (value is not None, 0 if value is None else value)

        rows.sort(key=rank, reverse=direction == 'desc')


def _order_by(order: Sequence[tuple[str, str]]) -> Iterable[Any]:
    for name, direction in full_order(order):
        column = _ordered(name)
        turn = sa.desc if direction == 'desc' else sa.asc
        if name not in _SOLID:
            # Databases differ in the order of NULL. With this expression, NULL is less than all values.
            yield turn(sa.case((column.is_(None), 0), else_=1))
        yield turn(column)


def _ordered(name: str) -> Any:
    column = _column(name)
    return by_code_point(column) if isinstance(column.type, sa.String) else column


def _after(order: Sequence[tuple[str, str]], marker: Mapping[str, Any]) -> Any:
    """Return the SQL condition that a row comes after ``marker`` ({column: value}) in this order."""
    reached: list[Any] = []
    options = []
    after: sa.ColumnElement[bool]
    for name, direction in full_order(order):
        column, value, down = _ordered(name), marker.get(name), direction == 'desc'
        if value is None:
            after = sa.false() if down else column.is_not(None)
            equal = column.is_(None)
        else:
            after = _beyond(column, value, down)
            equal = column == value
        options.append(sa.and_(*reached, after))
        reached.append(equal)
    return sa.or_(*options)


def _beyond(column: sa.ColumnElement[Any], value: Any, down: bool) -> Any:
    """Return the SQL condition that a column's value is sorted after ``value``. ``down`` means descending order.

    NULL is less than all values, and false is less than true. Booleans are compared only by ``=``, because some
    databases can't sort booleans.
    """
    if isinstance(value, bool):
        further = column == sa.literal(not down) if value == down else sa.false()
    else:
        further = column < value if down else column > value
    return sa.or_(further, column.is_(None)) if down else further


# --- statements on the API database ----------------------------------------------------------------------------------
_FIND = (
    sa.select(
        mappings.c.cell_id,
        mappings.c.project_id,
        mappings.c.user_id,
        requests.c.id.label('request_id'),
        requests.c.instance,
        requests.c.tags,
        requests.c.created_at,
    )
    .join_from(mappings, requests, requests.c.instance_uuid == mappings.c.instance_uuid, isouter=True)
    .where(mappings.c.instance_uuid == sa.bindparam('uuid'))
)
_WISHES = sa.select(specs.c.instance_uuid, specs.c.spec).where(
    specs.c.instance_uuid.in_(sa.bindparam('uuids', expanding=True))
)


def find(conn: Connection, uuid: str) -> dict[str, Any] | None:
    """Return {cell_id, project_id, user_id, request} for a server, or None for an unknown uuid.

    ``request`` is the server's build request in the form of a server's row, or None if it has no build request.
    """
    row = conn.execute(_FIND, {'uuid': uuid}).mappings().first()
    if row is None:
        return None
    request = None if row['request_id'] is None else from_request(row)
    return {'cell_id': row['cell_id'], 'project_id': row['project_id'], 'user_id': row['user_id'], 'request': request}


def build_requests(conn: Connection, owner: Owner) -> list[dict[str, Any]]:
    """Return the servers of the owner that have no cell yet. A server that cannot be read is logged and left out."""
    query = sa.select(requests.c.instance_uuid, requests.c.instance, requests.c.tags, requests.c.created_at).where(
        owners.of(requests.c.project_id, owner)
    )
    found = []
    for row in conn.execute(query).mappings():
        try:
            found.append(from_request(row))
        except texts.BROKEN as error:
            LOG.error(
                'Could not read the build request of server %s (%s: %s); lists omit the server',
                row['instance_uuid'],
                type(error).__name__,
                error,
                instance_uuid=row['instance_uuid'],
            )
    return found


def from_request(row: sa.RowMapping) -> dict[str, Any]:
    """Return a build request in the form of a server's row. ``row`` is its row in the API database."""
    stored = json.loads(row['instance'])
    data = envelopes.fields(stored)
    found = dict.fromkeys(column.name for column in instances.c)
    found.update({name: value for name, value in data.items() if name in found})
    for name in _TIMES:
        found[name] = _time(found[name])
    found.update(
        id=None,
        deleted=0,
        created_at=found['created_at'] or row['created_at'],
        network_info=None,
        fault=None,
        flavor=envelopes.fields(envelopes.flavor_of(stored)),
        metadata=data.get('metadata') or {},
        tags=_tags(row['tags']),
        volumes=[],
        image_properties=_image_properties(data.get('system_metadata') or {}),
        trusted_certs=json.dumps(data['trusted_certs']) if data.get('trusted_certs') else None,
    )
    return found


def _tags(text: str | None) -> list[str]:
    envelope = json.loads(text) if text else None
    if not envelope:
        return []
    return sorted(tag['tag'] for tag in envelopes.members(envelope))


def _image_properties(values: Mapping[str, str]) -> dict[str, str]:
    """Return the image's properties that users may see, from a server's system metadata."""
    return {
        key[len(IMAGE_PREFIX) :]: value
        for key, value in values.items()
        if key.startswith(IMAGE_PREFIX) and key != OWN_PROPERTY
    }


def _time(value: str | datetime.datetime | None) -> datetime.datetime | None:
    if not isinstance(value, str):
        return value
    parsed = datetime.datetime.fromisoformat(value)
    return parsed if parsed.tzinfo is None else parsed.astimezone(datetime.UTC).replace(tzinfo=None)


def wishes(conn: Connection, uuids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return {server: {zone, hints}}: the availability zone and scheduler hints that the server's user requested.

    The values are read from the request specs. A request spec that cannot be read is logged and left out, so that the
    other servers of a page are displayed.
    """
    found = {}
    for uuid, text in conn.execute(_WISHES, {'uuids': list(uuids)}):
        try:
            data = envelopes.fields(json.loads(text))
            found[uuid] = {'zone': data.get('availability_zone'), 'hints': dict(data.get('scheduler_hints') or {})}
        except texts.BROKEN as error:
            LOG.error(
                'Could not read the request spec of server %s (%s: %s); its availability zone and hints are not shown',
                uuid,
                type(error).__name__,
                error,
                instance_uuid=uuid,
            )
    return found


def mapped(conn: Connection, cell_ids: Sequence[int], owner: Owner, limit: int) -> list[dict[str, Any]]:
    """Return uuid, project_id and created_at of the owner's servers in cells that don't answer, newest first.

    The servers are read from the instance mappings in the API database.
    """
    query = sa.select(mappings.c.instance_uuid.label('uuid'), mappings.c.project_id, mappings.c.created_at).where(
        mappings.c.cell_id.in_(list(cell_ids)),
        sa.func.coalesce(mappings.c.queued_for_delete, sa.false()) == sa.false(),
        owners.of(mappings.c.project_id, owner),
    )
    return [dict(row) for row in conn.execute(query.order_by(mappings.c.id.desc()).limit(limit)).mappings()]


def known(conn: Connection, uuid: str) -> dict[str, Any] | None:
    """Return what the API database knows about a server whose cell doesn't answer.

    The result has uuid, project_id, user_id and created_at, and flavor, image_ref and availability_zone if the server's
    request spec contains them. Return None if the server is being deleted or unknown.
    """
    row = (
        conn.execute(
            sa.select(
                mappings.c.instance_uuid.label('uuid'),
                mappings.c.project_id,
                mappings.c.user_id,
                mappings.c.created_at,
                specs.c.spec,
            )
            .join_from(mappings, specs, specs.c.instance_uuid == mappings.c.instance_uuid, isouter=True)
            .where(
                mappings.c.instance_uuid == uuid,
                sa.func.coalesce(mappings.c.queued_for_delete, sa.false()) == sa.false(),
            )
        )
        .mappings()
        .first()
    )
    if row is None:
        return None
    found = dict(row)
    text = found.pop('spec')
    spec = envelopes.fields(json.loads(text)) if text else {}
    flavor, image = ((spec.get(name) or {}).get(envelopes.FIELDS, {}) for name in ('flavor', 'image'))
    return {**found, 'flavor': flavor, 'image_ref': image.get('id'), 'availability_zone': spec.get('availability_zone')}


# --- statements on a cell database -----------------------------------------------------------------------------------
@functools.cache
def _select(bulky: bool) -> Any:
    columns = [*COLUMNS, *([instances.c.user_data] if bulky else [])]
    return sa.select(
        *columns, extras.c.flavor.label('extra_flavor'), extras.c.trusted_certs, caches.c.network_info
    ).select_from(
        instances.outerjoin(extras, extras.c.instance_uuid == instances.c.uuid).outerjoin(
            caches, caches.c.instance_uuid == instances.c.uuid
        )
    )


@functools.cache
def _one(deleted: bool) -> Any:
    query = _select(bulky=True).where(instances.c.uuid == sa.bindparam('uuid'))
    return query if deleted else query.where(instances.c.deleted == 0)


def _plain(row: sa.RowMapping) -> dict[str, Any]:
    """Return a server's row with its flavor as a dict.

    A text that cannot be read is logged and counts as empty. If the flavor's text cannot be read, the flavor only has
    the sizes (vCPUs, memory, disks) from the row's own columns.
    """
    found = dict(row)
    text = found.pop('extra_flavor')
    where = f'of server {found["uuid"]}'
    found['flavor'] = texts.read(f'flavor {where}', text, lambda stored: {**envelopes.current_flavor(stored)}, None)
    if found['flavor'] is None:
        found['flavor'] = {name: found.get(name) for name in SIZES} if text else {}
    for name, check in _SHOWN.items():
        if texts.read(f'{name} {where}', found[name], check, None) is None:
            found[name] = None
    return found


def _has_networks(text: str) -> bool:
    """Return whether a server has interfaces. Raises one of the errors in BROKEN if the text is malformed."""
    stored = json.loads(text)
    for vif in stored:
        vif['id'], vif['network']['label'], vif['network'].get('subnets'), (vif.get('meta') or {}).get('')
    return bool(stored)


# A dict from each column with JSON text that users see to a function that raises an error in BROKEN for malformed text.
# A malformed text is not shown.
_SHOWN: Mapping[str, Callable[[str], object]] = {
    'network_info': _has_networks,
    'trusted_certs': lambda text: [*envelopes.certificate_ids(text)],
}


def page(
    conn: Connection,
    filters: Filters,
    order: Sequence[tuple[str, str]],
    limit: int,
    marker: Mapping[str, Any] | None = None,
    bulky: bool = False,
) -> list[dict[str, Any]]:
    """Return at most ``limit`` servers of a cell that come after ``marker``. Runs one SQL statement.

    ``order`` is a list of (column, 'asc' or 'desc'), and ``marker`` has the column values of the last server on the
    previous page. If ``bulky`` is True, the rows contain user_data. Raises InvalidPattern or SlowPattern if the
    database rejects the regular expression of a filter or takes too long for it.
    """
    query = _select(bulky).where(*filters.conditions()).order_by(*_order_by(order)).limit(limit)
    if marker is not None:
        query = query.where(_after(order, marker))
    with patterns.from_user(*filters.expressions()):
        return [_plain(row) for row in conn.execute(query).mappings()]


def names(
    conn: Connection,
    filters: Filters,
    order: Sequence[tuple[str, str]],
    limit: int,
    marker: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return at most ``limit`` servers of a cell that come after ``marker``, with few columns. Runs one SQL statement.

    Each row has uuid, display_name and the columns in ``order``. The arguments have the same meaning as in ``page``.
    """
    wanted = dict.fromkeys(('uuid', 'display_name', *(name for name, _ in order)))
    query = (
        sa.select(*(instances.c[name] for name in wanted))
        .where(*filters.conditions())
        .order_by(*_order_by(order))
        .limit(limit)
    )
    if marker is not None:
        query = query.where(_after(order, marker))
    with patterns.from_user(*filters.expressions()):
        return [dict(row) for row in conn.execute(query).mappings()]


def on_hosts(conn: Connection, hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Return id, uuid, project_id, display_name and host of all servers on these hosts, oldest first."""
    wanted = [instances.c[name] for name in ('id', 'uuid', 'project_id', 'display_name', 'host')]
    rows = conn.execute(
        sa.select(*wanted).where(instances.c.host.in_(list(hosts)), instances.c.deleted == 0).order_by(instances.c.id)
    ).mappings()
    return [dict(row) for row in rows]


def get(conn: Connection, uuid: str, deleted: bool = False) -> dict[str, Any] | None:
    """Return one server with user_data, or None if the cell doesn't have it. It has the same keys as a row of ``page``.

    A deleted server is returned only if ``deleted`` is True.
    """
    row = conn.execute(_one(deleted), {'uuid': uuid}).mappings().first()
    return _plain(row) if row else None


def facts(
    conn: Connection,
    uuids: Sequence[str],
    *,
    with_tags: bool = True,
    with_image: bool = False,
    with_reason: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return {server: {metadata, tags, volumes, image_properties, locked_reason}}. Runs one SQL statement.

    A value is empty or None if the server has none or the caller did not request it. ``volumes`` is a list of (volume
    id, whether the volume is deleted with the server), in the order in which the volumes were attached.
    """
    found: dict[str, dict[str, Any]] = {
        uuid: {'metadata': {}, 'tags': [], 'volumes': [], 'image_properties': {}, 'locked_reason': None}
        for uuid in uuids
    }
    if not found:
        return found
    rows = conn.execute(_facts(with_tags, with_image, with_reason), {'uuids': list(found)})
    for uuid, kind, key, value, _ in sorted(rows, key=lambda row: int(row.number)):
        if kind == 'm':
            found[uuid]['metadata'][key] = value
        elif kind == 't':
            found[uuid]['tags'].append(key)
        elif kind == 'v':
            found[uuid]['volumes'].append((key, value == _GOES))
        elif key == LOCKED_REASON:
            found[uuid]['locked_reason'] = value
        elif key != OWN_PROPERTY:
            found[uuid]['image_properties'][key[len(IMAGE_PREFIX) :]] = value
    for fact in found.values():
        fact['tags'].sort()
    return found


@functools.cache
def _facts(with_tags: bool, with_image: bool, with_reason: bool) -> Any:
    wanted: Any = sa.bindparam('uuids', expanding=True)
    zero: Any = sa.literal_column('0')
    parts = [
        sa.select(
            metadata.c.instance_uuid, sa.literal('m'), metadata.c.key, metadata.c.value, zero.label('number')
        ).where(metadata.c.instance_uuid.in_(wanted), metadata.c.deleted == 0),
        sa.select(
            volumes.c.instance_uuid,
            sa.literal('v'),
            volumes.c.volume_id,
            sa.case((volumes.c.delete_on_termination == sa.true(), _GOES), else_=''),
            volumes.c.id,
        ).where(
            volumes.c.instance_uuid.in_(wanted),
            volumes.c.destination_type == 'volume',
            volumes.c.volume_id.is_not(None),
            volumes.c.deleted == 0,
        ),
    ]
    if with_tags:
        parts.append(
            sa.select(tags.c.resource_id, sa.literal('t'), tags.c.tag, sa.null(), zero).where(
                tags.c.resource_id.in_(wanted)
            )
        )
    column = system_metadata.c.key
    keys = [
        *([column.startswith(IMAGE_PREFIX, autoescape=True)] if with_image else []),
        *([column == LOCKED_REASON] if with_reason else []),
    ]
    if keys:
        parts.append(
            sa.select(system_metadata.c.instance_uuid, sa.literal('s'), column, system_metadata.c.value, zero).where(
                system_metadata.c.instance_uuid.in_(wanted),
                sa.or_(system_metadata.c.deleted == 0, _DELETED_WITH_SERVER),
                sa.or_(*keys),
            )
        )
    return sa.union_all(*parts)


def last_faults(conn: Connection, uuids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return {server: its newest fault}, where a fault is {code, message, details, created_at, host}."""
    newest = (
        sa.select(sa.func.max(faults.c.id))
        .where(faults.c.instance_uuid.in_(list(uuids)), faults.c.deleted == 0)
        .group_by(faults.c.instance_uuid)
    )
    rows = conn.execute(
        sa.select(
            faults.c.instance_uuid,
            faults.c.code,
            faults.c.message,
            faults.c.details,
            faults.c.created_at,
            faults.c.host,
        ).where(faults.c.id.in_(newest))
    ).mappings()
    return {row['instance_uuid']: dict(row) for row in rows}


_HOST_STATES = sa.select(
    services.c.host,
    services.c.disabled,
    services.c.forced_down,
    (
        engine.db_age(sa.func.coalesce(services.c.last_seen_up, services.c.created_at))
        <= sa.bindparam('down_time', type_=sa.Double)
    ).label('up'),
).where(
    services.c.host.in_(sa.bindparam('hosts', expanding=True)),
    services.c.binary == 'nova-compute',
    services.c.deleted == 0,
)


def host_states(conn: Connection, hosts: Iterable[str], down_time: float) -> dict[str, str]:
    """Return {host: state}, where the state is 'UP', 'MAINTENANCE', 'UNKNOWN' or 'DOWN'.

    MAINTENANCE means that the compute service is disabled, UNKNOWN that it has not reported for ``down_time`` seconds,
    and DOWN that it is forced down.
    """
    found = {}
    for host, disabled, forced, up in conn.execute(_HOST_STATES, {'hosts': sorted(set(hosts)), 'down_time': down_time}):
        found[host] = 'DOWN' if forced else 'UNKNOWN' if not up else 'MAINTENANCE' if disabled else 'UP'
    return found


# --- changes of columns other than the states ------------------------------------------------------------------------
@engine.retried
def update(
    database: Database, uuid: str, values: Mapping[str, Any], write: Callable[[Connection], object] = lambda conn: None
) -> bool:
    """Update columns of a server other than its states, such as names, description and addresses.

    ``write(conn)`` is called in the same transaction. Return False if the server does not exist any more.
    """
    with database.write() as conn:
        if not conn.execute(
            instances.update().where(instances.c.uuid == uuid, instances.c.deleted == 0).values(**values)
        ).rowcount:
            return False
        write(conn)
    return True
