"""Statements on one server: read and create it, change its state, lock it, and write its actions, events and faults.

A function whose first argument is ``conn`` works in the caller's transaction. Only ``transition`` (and ``create`` for a
new server) writes vm_state and task_state, as states.TRANSITIONS says. If a transition changes no row, another request
has changed the state first.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from kilonova import states
from kilonova.db import engine
from kilonova.db.clock import db_age
from kilonova.db.models import cell as models
from kilonova.db.queries import state_changes
from kilonova.errors import InstanceInvalidState, InstanceIsLocked, InstanceNotFound, shortened

instances = models.Instance.__table__
extras = models.InstanceExtra.__table__
caches = models.InstanceInfoCache.__table__
system_metadata_table = models.InstanceSystemMetadata.__table__
metadata_table = models.InstanceMetadata.__table__
tags_table = models.Tag.__table__
bdm_table = models.BlockDeviceMapping.__table__
actions = models.InstanceAction.__table__
action_events = models.InstanceActionEvent.__table__
faults = models.InstanceFault.__table__
operations_table = models.Operation.__table__

EXTRA_COLUMNS = (
    'numa_topology',
    'pci_requests',
    'flavor',
    'migration_context',
    'trusted_certs',
    'resources',
    'vcpu_model',
    'keypairs',
    'device_metadata',
)
# The key in a server's system metadata under which the reason for its lock is stored.
LOCKED_REASON = 'locked_reason'
STATES = frozenset(('vm_state', 'task_state'))
# Maximum number of characters in the message of an action or of a fault.
_MESSAGE = 255
# In the rows of ``_with_extra``, the columns of block_device_mapping have this prefix.
_VOLUME = 'volume_row_'
_VOLUME_COLUMNS = tuple(f'{_VOLUME}{column.name}' for column in bdm_table.c)
EVENT_COLUMNS = ('event', 'start_time', 'finish_time', 'result', 'traceback', 'host', 'details')


def utcnow() -> datetime.datetime:
    """Return the current time as naive UTC, the form in which datetime columns store times."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def get(conn: sa.Connection, uuid: str, deleted: bool = False) -> dict[str, Any] | None:
    """Return a server's row, or None if the cell doesn't have the server.

    A deleted server is returned only if ``deleted`` is True. The row has the columns of instances. Columns of
    instance_extra and of the info cache are added as ``extra_<column>``, and ``extra_volumes`` is the list of the
    volumes' rows in block_device_mapping, sorted by id.
    """
    found = _servers(conn.execute(_one(deleted), {'uuid': uuid}))
    return found[0] if found else None


@functools.cache
def _one(deleted: bool) -> Any:
    query = _with_extra().where(instances.c.uuid == sa.bindparam('uuid'))
    return query if deleted else query.where(instances.c.deleted == 0)


@functools.cache
def _with_extra() -> Any:
    columns = [
        *instances.c,
        *(extras.c[name].label(f'extra_{name}') for name in EXTRA_COLUMNS),
        caches.c.network_info.label('extra_network_info'),
        *(column.label(f'{_VOLUME}{column.name}') for column in bdm_table.c),
    ]
    return (
        sa.select(*columns)
        .select_from(
            instances.outerjoin(extras, extras.c.instance_uuid == instances.c.uuid)
            .outerjoin(caches, caches.c.instance_uuid == instances.c.uuid)
            .outerjoin(
                bdm_table,
                sa.and_(
                    bdm_table.c.instance_uuid == instances.c.uuid,
                    bdm_table.c.destination_type == 'volume',
                    bdm_table.c.deleted == 0,
                ),
            )
        )
        .order_by(instances.c.id, bdm_table.c.id)
    )


def _servers(rows: sa.CursorResult[Any]) -> list[dict[str, Any]]:
    """Return one row for each server.

    ``rows`` is the result of ``_with_extra``, in which a server has one row for each of its volumes.
    """
    found: list[dict[str, Any]] = []
    for row in rows.mappings():
        values = dict(row)
        volume = {name.removeprefix(_VOLUME): values.pop(name) for name in _VOLUME_COLUMNS}
        if not found or found[-1]['id'] != values['id']:
            found.append({**values, 'extra_volumes': []})
        if volume['id'] is not None:
            found[-1]['extra_volumes'].append(volume)
    return found


def by_host(conn: sa.Connection, host: str) -> list[dict[str, Any]]:
    """Return the rows of the servers on a host, sorted by id, in the form of ``get``."""
    return _servers(conn.execute(_with_extra().where(instances.c.host == host, instances.c.deleted == 0)))


def by_uuids(conn: sa.Connection, uuids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return {uuid: row} for the servers that the cell has. Runs one SQL statement.

    Each row has the form of ``get``.
    """
    rows = conn.execute(_with_extra().where(instances.c.uuid.in_(list(uuids)), instances.c.deleted == 0))
    return {row['uuid']: row for row in _servers(rows)}


def deleted_among(conn: sa.Connection, uuids: Iterable[str], seconds: float) -> list[dict[str, Any]]:
    """Return the rows of the servers in ``uuids`` that were deleted at least ``seconds`` ago, in the form of ``get``.

    The time counts by the database's clock. Servers that have an operation of any kind are left out, because the
    operation may still have to free resources of the server. Runs one SQL statement.
    """
    rows = conn.execute(
        _with_extra().where(
            instances.c.uuid.in_(list(uuids)),
            instances.c.deleted != 0,
            db_age(instances.c.deleted_at) >= seconds,
            ~sa.exists().where(operations_table.c.instance_uuid == instances.c.uuid),
        )
    )
    return _servers(rows)


def split(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a row of ``get`` into two dicts: columns of instances, and columns from other tables.

    The second dict has the columns of instance_extra, ``network_info`` and ``volumes``.
    """
    prefix = 'extra_'
    extra = {name[len(prefix) :]: value for name, value in row.items() if name.startswith(prefix)}
    return {name: value for name, value in row.items() if not name.startswith(prefix)}, extra


_SYSTEM_METADATA = sa.select(system_metadata_table.c.key, system_metadata_table.c.value).where(
    system_metadata_table.c.instance_uuid == sa.bindparam('uuid'), system_metadata_table.c.deleted == 0
)


def get_system_metadata(conn: sa.Connection, uuid: str) -> dict[str, str]:
    """Return the server's system metadata as {key: value} (image_* properties, old_vm_state and others)."""
    return {row.key: row.value for row in conn.execute(_SYSTEM_METADATA, {'uuid': uuid})}


def get_system_metadata_of(conn: sa.Connection, uuids: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return {server: {key: value}} with the system metadata of several servers. Runs one SQL statement."""
    table = system_metadata_table
    found: dict[str, dict[str, str]] = {}
    for uuid, key, value in conn.execute(
        sa.select(table.c.instance_uuid, table.c.key, table.c.value).where(
            table.c.instance_uuid.in_(list(uuids)), table.c.deleted == 0
        )
    ):
        found.setdefault(uuid, {})[key] = value
    return found


def get_bdms(conn: sa.Connection, uuid: str) -> list[dict[str, Any]]:
    """Return the disks that a server's user requested (rows of block_device_mapping), sorted by id."""
    return [
        dict(row)
        for row in conn.execute(
            sa.select(bdm_table)
            .where(bdm_table.c.instance_uuid == uuid, bdm_table.c.deleted == 0)
            .order_by(bdm_table.c.id)
        ).mappings()
    ]


def create(
    conn: sa.Connection,
    event: str,
    values: dict[str, Any],
    extra: dict[str, Any],
    system_metadata: Mapping[str, str | None],
    metadata: Mapping[str, str | None],
    tags: Iterable[str] = (),
    bdms: Iterable[dict[str, Any]] = (),
) -> tuple[int, bool]:
    """Insert a server and its related rows, in the state to which ``event`` leads. Return (id of its row, True).

    If the server exists already, because the caller's step is repeated, return (id, False) and insert nothing.
    """
    uuid, now = values['uuid'], utcnow()
    there = conn.execute(sa.select(instances.c.id).where(instances.c.uuid == uuid)).scalar()
    if there is not None:
        return there, False
    stamp = {'created_at': now, 'deleted': 0}
    # In the row of instances, created_at is the time of the user's request (from ``values``).
    # In the rows of the other tables, created_at is the current time (from ``stamp``).
    new_id = _move(conn, uuid, event, instances.insert(), {**stamp, **values}).inserted_primary_key[0]
    conn.execute(extras.insert(), {'instance_uuid': uuid, **stamp, **extra})
    for table, pairs in ((system_metadata_table, system_metadata), (metadata_table, metadata)):
        if pairs:
            conn.execute(
                table.insert(),
                [{'instance_uuid': uuid, 'key': key, 'value': value, **stamp} for key, value in pairs.items()],
            )
    tags = list(tags)
    if tags:
        conn.execute(tags_table.insert(), [{'resource_id': uuid, 'tag': tag} for tag in tags])
    bdms = list(bdms)
    if bdms:
        conn.execute(bdm_table.insert(), [{**stamp, 'instance_uuid': uuid, **bdm} for bdm in bdms])
    return new_id, True


def update(conn: sa.Connection, uuid: str, values: dict[str, Any], expect: Mapping[str, Any] | None = None) -> int:
    """Update columns of a server other than its states. Return the number of changed rows, 0 or 1.

    Nothing is changed if the columns in ``expect`` do not have the given values (see ``transition``).
    """
    if not values:
        return 1
    return conn.execute(
        instances.update()
        .where(instances.c.uuid == uuid, instances.c.deleted == 0, *_as_expected(expect))
        .values(updated_at=utcnow(), **_plain(values))
    ).rowcount


def update_extra(conn: sa.Connection, uuid: str, values: dict[str, Any]) -> None:
    """Update columns of instance_extra. ``values`` is {column: JSON text or None}."""
    if values:
        conn.execute(extras.update().where(extras.c.instance_uuid == uuid).values(updated_at=utcnow(), **values))


def set_system_metadata(conn: sa.Connection, uuid: str, changes: dict[str, str | None]) -> None:
    """Replace these keys of the server's system metadata, and keep all others. A key with the value None is deleted."""
    if not changes:
        return
    table = system_metadata_table
    conn.execute(table.delete().where(table.c.instance_uuid == uuid, table.c.key.in_(list(changes))))
    kept = [
        {'instance_uuid': uuid, 'key': key, 'value': value, 'created_at': utcnow(), 'deleted': 0}
        for key, value in changes.items()
        if value is not None
    ]
    if kept:
        conn.execute(table.insert(), kept)


def transition(
    conn: sa.Connection,
    uuid: str,
    event: str,
    values: dict[str, Any] | None = None,
    expect: dict[str, Any] | None = None,
) -> bool:
    """Change a server's state by ``event`` in a compare-and-swap.

    Return False if the server's present state does not allow the event. ``values`` are further columns to write.
    ``expect`` are columns that must have the given value, in addition to the state. None means NULL, and a list means
    one of its values.
    """
    statement = _moved_by(event).where(*_as_expected(expect))
    found: bool = _move(conn, uuid, event, statement, {'updated_at': utcnow(), **(values or {})}).rowcount == 1
    return found


def _move(conn: sa.Connection, uuid: str, event: str, statement: sa.Insert | sa.Update, values: dict[str, Any]) -> Any:
    """Run an INSERT or UPDATE of a server's row that sets the states to which ``event`` leads.

    Only this function writes states.
    """
    rule, values = states.TRANSITIONS[event], _plain(values)
    values['task_state'] = _text(rule.to_task)
    if rule.to_vm is not None:
        values['vm_state'] = _text(rule.to_vm)
    created = rule.vm is states.NEW
    before = state_changes.before(conn, uuid, created)
    result = conn.execute(statement.values(**values), None if created else {'of_uuid': uuid})
    if created or result.rowcount == 1:
        state_changes.changed(conn, uuid, before, values.get('vm_state'), values['task_state'], created)
    return result


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of these columns of a server.

    Raises ValueError if vm_state or task_state is among them, because only ``_move`` writes these columns.
    """
    if not STATES.isdisjoint(values):
        raise ValueError(f'states are changed only by a transition, not by these values: {values}')
    return dict(values)


@functools.cache
def _moved_by(event: str) -> Any:
    rule = states.TRANSITIONS[event]
    conditions = [instances.c.uuid == sa.bindparam('of_uuid'), instances.c.deleted == 0]
    if rule.vm is not states.ANY:
        conditions.append(_one_of(instances.c.vm_state, rule.vm))
    if rule.task is not states.ANY:
        conditions.append(_one_of(instances.c.task_state, rule.task))
    return instances.update().where(*conditions)


def leave_host(conn: sa.Connection, uuid: str, host: str, expect: dict[str, Any]) -> bool:
    """Remove the server from its host, if it is on ``host`` and its columns have the values in ``expect``.

    Return False, and change nothing, if this is not the case.
    """
    conditions = [instances.c[name] == value for name, value in {'host': host, **expect}.items()]
    return (
        conn.execute(
            instances.update()
            .where(instances.c.uuid == uuid, instances.c.deleted == 0, *conditions)
            .values(host=None, node=None, compute_id=None, launched_on=None, updated_at=utcnow())
        ).rowcount
        == 1
    )


def put_back(conn: sa.Connection, uuid: str, values: dict[str, Any], hosts: Iterable[str | None]) -> bool:
    """Write the host, node and flavor columns of a server that did not stay on its new host.

    ``compute_id`` is set to the id of the node. Return False, and write nothing, if the server is not on one of
    ``hosts``.
    """
    nodes = models.ComputeNode.__table__
    node = (
        sa.select(nodes.c.id)
        .where(nodes.c.host == values['host'], nodes.c.hypervisor_hostname == values['node'], nodes.c.deleted == 0)
        .scalar_subquery()
    )
    return (
        conn.execute(
            instances.update()
            .where(instances.c.uuid == uuid, instances.c.deleted == 0, _one_of(instances.c.host, hosts))
            .values(**values, compute_id=node, updated_at=utcnow())
        ).rowcount
        == 1
    )


def hold(conn: sa.Connection, uuid: str, vm_states: Iterable[str], method: str) -> None:
    """Lock a server's row until the transaction ends, so that the caller can change rows that belong to the server.

    ``method`` is the name of the request in the error. Raises InstanceNotFound if the server does not exist, and
    InstanceInvalidState (HTTP 409) if its vm state is not one of ``vm_states``.
    """
    if conn.execute(
        instances.update()
        .where(instances.c.uuid == uuid, instances.c.deleted == 0, _one_of(instances.c.vm_state, vm_states))
        .values(updated_at=utcnow())
    ).rowcount:
        return
    state = conn.execute(
        sa.select(instances.c.vm_state).where(instances.c.uuid == uuid, instances.c.deleted == 0)
    ).first()
    if state is None:
        raise InstanceNotFound(instance_id=uuid)
    raise InstanceInvalidState(method=method, instance_uuid=uuid, attr='vm_state', state=state.vm_state)


@engine.retried
def lock(
    database: engine.Database,
    uuid: str,
    *,
    locked_by: str,
    reason: str | None,
    again: bool,
    action: dict[str, Any],
    host: str,
) -> bool:
    """Lock a server for ``locked_by`` ('owner' or 'admin'), and write the action and its event.

    If the server is locked already and ``again`` is True, the lock gets the new ``locked_by`` and ``reason``. If it is
    locked already and ``again`` is False, nothing is changed and the result is False. Raises InstanceNotFound if the
    server does not exist.
    """
    conditions = [] if again else [sa.func.coalesce(instances.c.locked, sa.false()) == sa.false()]
    with database.write() as conn:
        if not _set_lock(conn, uuid, conditions, locked=True, locked_by=locked_by):
            _living(conn, uuid)
            return False
        set_system_metadata(conn, uuid, {LOCKED_REASON: reason})
        _note_lock(conn, uuid, action, 'api_lock', host)
    return True


@engine.retried
def unlock(database: engine.Database, uuid: str, *, locked_by: str | None, action: dict[str, Any], host: str) -> None:
    """Unlock a server, if it is still locked by ``locked_by``, which is the value that the caller has read.

    Raises InstanceNotFound if the server does not exist, and InstanceIsLocked if the lock has changed in the meantime.
    """
    same = instances.c.locked_by.is_(None) if locked_by is None else instances.c.locked_by == locked_by
    with database.write() as conn:
        if not _set_lock(conn, uuid, [same], locked=False, locked_by=None):
            _living(conn, uuid)
            raise InstanceIsLocked(instance_uuid=uuid)
        set_system_metadata(conn, uuid, {LOCKED_REASON: None})
        _note_lock(conn, uuid, action, 'api_unlock', host)


def _set_lock(conn: sa.Connection, uuid: str, conditions: list[Any], **values: Any) -> bool:
    statement = instances.update().where(instances.c.uuid == uuid, instances.c.deleted == 0, *conditions)
    return conn.execute(statement.values(updated_at=utcnow(), **values)).rowcount == 1


def _living(conn: sa.Connection, uuid: str) -> None:
    query = sa.select(instances.c.id).where(instances.c.uuid == uuid, instances.c.deleted == 0)
    if conn.execute(query).first() is None:
        raise InstanceNotFound(instance_id=uuid)


def _note_lock(conn: sa.Connection, uuid: str, action: dict[str, Any], event: str, host: str) -> None:
    now = utcnow()
    start_action(conn, uuid, {**action, 'finish_time': now})
    add_events(
        conn,
        uuid,
        action['request_id'],
        [{'event': event, 'result': 'Success', 'host': host, 'start_time': now, 'finish_time': now}],
    )


def refuse(conn: sa.Connection, uuid: str, event: str) -> Exception:
    """Return the error to raise after ``transition`` changed no row: InstanceNotFound or InstanceInvalidState."""
    row = conn.execute(
        sa.select(instances.c.vm_state, instances.c.task_state).where(
            instances.c.uuid == uuid, instances.c.deleted == 0
        )
    ).first()
    if row is None:
        return InstanceNotFound(instance_id=uuid)
    rule = states.TRANSITIONS[event]
    if rule.vm is not states.ANY and row.vm_state not in rule.vm:
        attr, state = 'vm_state', row.vm_state
    else:
        attr, state = 'task_state', row.task_state
    return InstanceInvalidState(method=rule.method, instance_uuid=uuid, attr=attr, state=state)


def mark_deleted(conn: sa.Connection, uuid: str) -> bool:
    """Soft-delete the server's row and set its state to deleted.

    Return False if the server's state does not allow it.
    """
    now = utcnow()
    return transition(
        conn,
        uuid,
        'delete.done',
        {
            'deleted': instances.c.id,
            'deleted_at': now,
            'terminated_at': now,
            'updated_at': now,
            'power_state': int(states.PowerState.NOSTATE),
            'host': None,
            'node': None,
            'compute_id': None,
        },
    )


def start_action(conn: sa.Connection, uuid: str, action: dict[str, Any]) -> None:
    """Insert an instance action. ``action`` is {action, request_id, user_id, project_id, message?}."""
    now = utcnow()
    conn.execute(
        actions.insert(),
        {'instance_uuid': uuid, 'start_time': now, 'created_at': now, 'updated_at': now, 'deleted': 0, **action},
    )


def tell_once(conn: sa.Connection, action: dict[str, Any], entries: Iterable[dict[str, Any]]) -> None:
    """Write a finished instance action with a message for each of several servers.

    ``entries`` is a list of {instance_uuid, message}; the messages for one server are joined. ``action`` is the dict
    for ``start_action``. A server that already has an action with this request id and name gets no second one, so
    repeated calls are safe.
    """
    texts: dict[str, list[str]] = {}
    for one in entries:
        texts.setdefault(one['instance_uuid'], []).append(one['message'])
    if not texts:
        return
    there = set(
        conn.execute(
            sa.select(actions.c.instance_uuid).where(
                actions.c.instance_uuid.in_(list(texts)),
                actions.c.request_id == action['request_id'],
                actions.c.action == action['action'],
            )
        ).scalars()
    )
    for uuid, messages in texts.items():
        if uuid not in there:
            start_action(
                conn, uuid, {**action, 'finish_time': utcnow(), 'message': shortened('; '.join(messages), _MESSAGE)}
            )


def finish_action(conn: sa.Connection, uuid: str, request_id: str, message: str | None = None) -> None:
    """Write the end of a request's instance action. A ``message`` of 'Error' marks a failed action."""
    now = utcnow()
    values: dict[str, Any] = {'finish_time': now, 'updated_at': now}
    if message is not None:
        values['message'] = message
    conn.execute(
        actions.update().where(actions.c.instance_uuid == uuid, actions.c.request_id == request_id).values(**values)
    )


def forget_action(conn: sa.Connection, uuid: str, request_id: str) -> None:
    """Delete the instance action of a request that was accepted first and refused afterwards.

    The action must not have events yet.
    """
    conn.execute(actions.delete().where(actions.c.instance_uuid == uuid, actions.c.request_id == request_id))


_ADD_EVENT = action_events.insert().values(
    action_id=sa.select(sa.func.max(actions.c.id))
    .where(actions.c.instance_uuid == sa.bindparam('of_uuid'), actions.c.request_id == sa.bindparam('of_request'))
    .scalar_subquery()
)


def add_events(conn: sa.Connection, uuid: str, request_id: str, events: Iterable[dict[str, Any]]) -> None:
    """Insert events of an instance action. Each event is written only once, when it has ended.

    An event is a dict {event, result, host, start_time, finish_time, details, traceback}.
    """
    events = list(events)
    if not events:
        return
    now = utcnow()
    conn.execute(
        _ADD_EVENT,
        [
            {
                'of_uuid': uuid,
                'of_request': request_id,
                'created_at': now,
                'deleted': 0,
                **{
                    name: parse_time(event.get(name)) if name.endswith('_time') else event.get(name)
                    for name in EVENT_COLUMNS
                },
            }
            for event in events
        ],
    )


def add_event_once(conn: sa.Connection, uuid: str, request_id: str, event: dict[str, Any]) -> None:
    """Insert an event of an instance action, unless the action has an event of this name. Repeated calls are safe."""
    there = (
        sa.select(action_events.c.id)
        .join_from(action_events, actions, actions.c.id == action_events.c.action_id)
        .where(
            actions.c.instance_uuid == uuid, actions.c.request_id == request_id, action_events.c.event == event['event']
        )
    )
    if conn.execute(there).first() is None:
        add_events(conn, uuid, request_id, [event])


def add_fault(conn: sa.Connection, uuid: str, fault: dict[str, Any]) -> None:
    """Insert a fault, a dict {code, message, details, host}. A message that is too long for its column is shortened."""
    conn.execute(
        faults.insert(),
        {
            'instance_uuid': uuid,
            'created_at': utcnow(),
            'deleted': 0,
            **fault,
            'message': shortened(fault.get('message') or '', _MESSAGE),
        },
    )


def parse_time(value: str | datetime.datetime | None) -> datetime.datetime | None:
    """Return an ISO 8601 time, with or without Z, as naive UTC."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if value is None or value.tzinfo is None:
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None)


def _as_expected(expect: Mapping[str, Any] | None) -> list[Any]:
    return [
        _one_of(instances.c[name], wanted if isinstance(wanted, (list, tuple)) else [wanted])
        for name, wanted in (expect or {}).items()
    ]


def _text(value: object) -> str | None:
    return None if value is None else str(value.value if hasattr(value, 'value') else value)


def _one_of(column: sa.ColumnElement[Any], wanted: Iterable[Any]) -> Any:
    names = [_text(value) for value in wanted if value is not None]
    condition = column.in_(names) if names else sa.false()
    return sa.or_(condition, column.is_(None)) if None in list(wanted) else condition
