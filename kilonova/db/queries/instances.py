"""Statements on one server: read, create, compare-and-swap its state, its events and faults.

Every function works inside the caller's transaction (``conn`` first). ``transition`` is the only writer of vm_state and task_state
(states.TRANSITIONS); zero rows hit means somebody else was quicker.
"""
from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from kilonova import states
from kilonova.db.models import cell as models
from kilonova.errors import InstanceInvalidState, InstanceNotFound

instances = models.Instance.__table__
extras = models.InstanceExtra.__table__
system_metadata_table = models.InstanceSystemMetadata.__table__
metadata_table = models.InstanceMetadata.__table__
tags_table = models.Tag.__table__
bdm_table = models.BlockDeviceMapping.__table__
actions = models.InstanceAction.__table__
action_events = models.InstanceActionEvent.__table__
faults = models.InstanceFault.__table__

EXTRA_COLUMNS = ('numa_topology', 'pci_requests', 'flavor', 'migration_context', 'trusted_certs', 'resources',
                 'vcpu_model', 'keypairs', 'device_metadata')


def utcnow() -> datetime.datetime:
    """Now, naive UTC: what datetime columns hold."""
    return datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)


def get(conn: Any, uuid: str, deleted: bool = False) -> dict[str, Any] | None:
    """The instances row joined with its extra columns (as ``extra_<column>``), or None."""
    columns = [*instances.c, *(extras.c[name].label(f'extra_{name}') for name in EXTRA_COLUMNS)]
    query = sa.select(*columns).join_from(
        instances, extras, extras.c.instance_uuid == instances.c.uuid, isouter=True).where(instances.c.uuid == uuid)
    if not deleted:
        query = query.where(instances.c.deleted == 0)
    row = conn.execute(query).mappings().first()
    return dict(row) if row else None


def split(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row of ``get`` as (instances columns, instance_extra columns)."""
    prefix = 'extra_'
    extra = {name[len(prefix):]: value for name, value in row.items() if name.startswith(prefix)}
    return {name: value for name, value in row.items() if not name.startswith(prefix)}, extra


def get_system_metadata(conn: Any, uuid: str) -> dict[str, str]:
    """The server's system metadata (image_* properties, old_vm_state …)."""
    table = system_metadata_table
    rows = conn.execute(sa.select(table.c.key, table.c.value).where(
        table.c.instance_uuid == uuid, table.c.deleted == 0))
    return {key: value for key, value in rows}


def create(conn: Any, values: dict[str, Any], extra: dict[str, Any], system_metadata: dict[str, str],
           metadata: dict[str, str], tags: Iterable[str] = (), bdms: Iterable[dict] = ()) -> tuple[int, bool]:
    """Insert a server with all that belongs to it; its id, and False when it is already there (a repeated step)."""
    uuid, now = values['uuid'], utcnow()
    there = conn.execute(sa.select(instances.c.id).where(instances.c.uuid == uuid)).scalar()
    if there is not None:
        return there, False
    stamp = {'created_at': now, 'deleted': 0}
    # created_at is when the user asked (the build request); the rest is stamped now.
    new_id = conn.execute(instances.insert().values(**{**stamp, **values})).inserted_primary_key[0]
    conn.execute(extras.insert(), {'instance_uuid': uuid, **stamp, **extra})
    for table, pairs in ((system_metadata_table, system_metadata), (metadata_table, metadata)):
        if pairs:
            conn.execute(table.insert(), [
                {'instance_uuid': uuid, 'key': key, 'value': value, **stamp} for key, value in pairs.items()])
    tags = list(tags)
    if tags:
        conn.execute(tags_table.insert(), [{'resource_id': uuid, 'tag': tag} for tag in tags])
    bdms = list(bdms)
    if bdms:
        conn.execute(bdm_table.insert(), [{**stamp, 'instance_uuid': uuid, **bdm} for bdm in bdms])
    return new_id, True


def update(conn: Any, uuid: str, values: dict[str, Any]) -> int:
    """Plain columns (no states); rows hit."""
    if not values:
        return 1
    statement = instances.update().where(instances.c.uuid == uuid, instances.c.deleted == 0)
    return conn.execute(statement.values(updated_at=utcnow(), **values)).rowcount


def update_extra(conn: Any, uuid: str, values: dict[str, Any]) -> None:
    """instance_extra columns (JSON text or None)."""
    if values:
        conn.execute(extras.update().where(extras.c.instance_uuid == uuid).values(updated_at=utcnow(), **values))


def set_system_metadata(conn: Any, uuid: str, changes: dict[str, str | None]) -> None:
    """Replace these keys; a None value removes the key."""
    if not changes:
        return
    table = system_metadata_table
    conn.execute(table.delete().where(table.c.instance_uuid == uuid, table.c.key.in_(list(changes))))
    kept = [{'instance_uuid': uuid, 'key': key, 'value': value, 'created_at': utcnow(), 'deleted': 0}
            for key, value in changes.items() if value is not None]
    if kept:
        conn.execute(table.insert(), kept)


def transition(conn: Any, uuid: str, event: str, values: dict[str, Any] | None = None,
               expect: dict[str, Any] | None = None) -> bool:
    """Compare-and-swap by the table of transitions; False when the server is not in an allowed state.

    ``expect``: further columns that must be equal (None: IS NULL; a list: one of them).
    """
    rule = states.TRANSITIONS[event]
    conditions = [instances.c.uuid == uuid, instances.c.deleted == 0]
    if rule.vm is not states.ANY:
        conditions.append(_one_of(instances.c.vm_state, rule.vm))
    if rule.task is not states.ANY:
        conditions.append(_one_of(instances.c.task_state, rule.task))
    for name, wanted in (expect or {}).items():
        conditions.append(_one_of(instances.c[name], wanted if isinstance(wanted, (list, tuple)) else [wanted]))
    changes: dict[str, Any] = {**(values or {}), 'task_state': _text(rule.to_task), 'updated_at': utcnow()}
    if rule.to_vm is not None:
        changes['vm_state'] = _text(rule.to_vm)
    return conn.execute(instances.update().where(*conditions).values(**changes)).rowcount == 1


def refuse(conn: Any, uuid: str, event: str) -> Exception:
    """Why ``transition`` hit no row: what to raise."""
    row = conn.execute(sa.select(instances.c.vm_state, instances.c.task_state).where(
        instances.c.uuid == uuid, instances.c.deleted == 0)).first()
    if row is None:
        return InstanceNotFound(instance_id=uuid)
    rule = states.TRANSITIONS[event]
    if rule.vm is not states.ANY and row.vm_state not in rule.vm:
        attr, state = 'vm_state', row.vm_state
    else:
        attr, state = 'task_state', row.task_state
    return InstanceInvalidState(method=rule.method, instance_uuid=uuid, attr=attr, state=state)


def mark_deleted(conn: Any, uuid: str) -> bool:
    """The end state of a delete: the row is soft-deleted, its state says so."""
    now = utcnow()
    return conn.execute(instances.update().where(instances.c.uuid == uuid, instances.c.deleted == 0).values(
        deleted=instances.c.id, deleted_at=now, terminated_at=now, updated_at=now, vm_state=states.VmState.DELETED.value,
        task_state=None, power_state=int(states.PowerState.NOSTATE), host=None, node=None, compute_id=None,
    )).rowcount == 1


def start_action(conn: Any, uuid: str, action: dict[str, Any]) -> None:
    """``action``: {action, request_id, user_id, project_id, message?}."""
    now = utcnow()
    conn.execute(actions.insert(), {'instance_uuid': uuid, 'start_time': now, 'created_at': now, 'updated_at': now,
                                    'deleted': 0, **action})


def finish_action(conn: Any, uuid: str, request_id: str, message: str | None = None) -> None:
    """The action's end; ``message`` 'Error' marks a failed one."""
    now = utcnow()
    values: dict[str, Any] = {'finish_time': now, 'updated_at': now}
    if message is not None:
        values['message'] = message
    conn.execute(actions.update().where(actions.c.instance_uuid == uuid, actions.c.request_id == request_id)
                 .values(**values))


def add_events(conn: Any, uuid: str, request_id: str, events: Iterable[dict[str, Any]]) -> None:
    """Events of an action, written once at their end: {event, result, host, start_time, finish_time, details, traceback}."""
    events = list(events)
    if not events:
        return
    now = utcnow()
    names = ('event', 'start_time', 'finish_time', 'result', 'traceback', 'host', 'details')
    parts = []
    for event in events:
        columns = [sa.cast(sa.literal(_when(event.get(name)), action_events.c[name].type), action_events.c[name].type)
                   .label(name) if event.get(name) is not None else sa.cast(sa.null(), action_events.c[name].type)
                   .label(name) for name in names]
        parts.append(sa.select(actions.c.id, sa.literal(now).label('created_at'), sa.literal(0).label('deleted'),
                               *columns).where(actions.c.instance_uuid == uuid, actions.c.request_id == request_id))
    selected = parts[0] if len(parts) == 1 else sa.union_all(*parts)
    conn.execute(action_events.insert().from_select(['action_id', 'created_at', 'deleted', *names], selected))


def add_fault(conn: Any, uuid: str, fault: dict[str, Any]) -> None:
    """``fault``: {code, message, details, host}; the message is cut at 255 characters (the column)."""
    conn.execute(faults.insert(), {'instance_uuid': uuid, 'created_at': utcnow(), 'deleted': 0, **fault,
                                   'message': (fault.get('message') or '')[:255]})


def _when(value: Any) -> Any:
    return parse_time(value) if isinstance(value, str) and len(value) > 18 and value[4:5] == '-' and 'T' in value[:11] \
        else value


def parse_time(value: str | datetime.datetime | None) -> datetime.datetime | None:
    """ISO 8601, with or without Z, as naive UTC."""
    if value is None or isinstance(value, datetime.datetime):
        return value
    return datetime.datetime.fromisoformat(value.replace('Z', '+00:00')).astimezone(
        datetime.timezone.utc).replace(tzinfo=None) if value.endswith('Z') or '+' in value[10:] \
        else datetime.datetime.fromisoformat(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value.value if hasattr(value, 'value') else value)


def _one_of(column: Any, wanted: Iterable[Any]) -> Any:
    names = [_text(value) for value in wanted if value is not None]
    condition = column.in_(names) if names else sa.false()
    return sa.or_(condition, column.is_(None)) if None in list(wanted) else condition
