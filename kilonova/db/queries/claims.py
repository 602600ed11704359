"""What a host writes while it works on an operation: one transaction each (operations.md rules 13, 14, 21).

A key is ``<operation uuid>/<position>.<step>/<attempt>``. Each write first marks the operation row under its key: the
row is the tombstone (gone, cancelled, being undone or at another place: KeyGone) and the mark tells a write that is
sent again from a new one, and that what was done under the key was undone by its host. ``Claim`` and ``Save`` are what
the host sent (``objects.Claim``, ``objects.Save``), by its fields.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from kilonova import states
from kilonova.db import engine
from kilonova.db.clock import db_utcnow
from kilonova.db.models import cell as models
from kilonova.db.queries import device_history, services
from kilonova.db.queries import instances as instance_queries
from kilonova.errors import ClaimConflict, Conflict, HostRejected, KeyGone, ReleasePending, shortened

operations = models.Operation.__table__
devices_table = models.PciDevice.__table__
nodes = models.ComputeNode.__table__
migrations = models.Migration.__table__
instances = models.Instance.__table__


@dataclass(frozen=True, kw_only=True)
class Written:
    """What claims and saves have in common; what is None (or empty) changes nothing. ``transition``: the event by which
    the server's state moves, ``expect`` {column of instances: value or values} what it must be like before, ``values``
    {column of instances: value}, ``extra`` {column of instance_extra: JSON text}, ``devices`` [{id, address, from, to,
    instance_uuid, request_id}], ``usage`` {compute_node_id, columns of compute_nodes}, ``migration`` {uuid, columns of
    migrations}. Times are ISO text."""

    instance_uuid: str
    key: str | None = None
    request_id: str | None = None
    transition: str | None = None
    expect: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    extra: dict[str, str | None] | None = None
    devices: list[dict[str, Any]] | None = None
    usage: dict[str, Any] | None = None
    migration: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Claim(Written):
    """``host``: the one that claims. ``group`` {uuid, host}: see ``group_claims``."""

    key: str
    host: str | None = None
    group: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Save(Written):
    """``system_metadata`` {key: value|None}; ``event`` {event, result, host, start_time, finish_time, details,
    traceback}; ``fault`` {code, message, details, host}; ``message``: the action's, 'Error' for a failed one.

    ``end``: this is the server's end state, the operation row goes with it. ``undo``: the step gives back what it took,
    as long as its attempt isn't over; a state that moved on, such as ``deleting``, is left alone. ``undone``: why the
    host took back what it did under this key, so the key is refused when it is asked again. ``mark`` tells several
    saves under one key apart that have neither event nor transition.
    """

    system_metadata: dict[str, str | None] | None = None
    event: dict[str, Any] | None = None
    fault: dict[str, Any] | None = None
    message: str | None = None
    end: bool = False
    undo: bool = False
    undone: str | None = None
    mark: int | None = None


def parse(key: str) -> tuple[str, int, str, int]:
    """A key as (operation uuid, position, step, attempt)."""
    operation, step, attempt = key.split('/')
    position, name = step.split('.', 1)
    return operation, int(position), name, int(attempt)


def make_key(operation: str, position: int, step: str, attempt: int) -> str:
    """The key of one step of one attempt."""
    return f'{operation}/{position}.{step}/{attempt}'


# The row stands at a key, whose parts ``_parts`` gives.
_AT = (operations.c.uuid == sa.bindparam('of_operation'), operations.c.position == sa.bindparam('of_position'),
       operations.c.attempt == sa.bindparam('of_attempt'))
_STANDING = (*_AT, operations.c.cancelled == sa.false(), operations.c.failed == sa.false(),
             operations.c.undoing == sa.false())


def _parts(key: str) -> dict[str, Any]:
    operation, position, _step, attempt = parse(key)
    return {'of_operation': operation, 'of_position': position, 'of_attempt': attempt}


_HELD = ('claimed', 'allocated')
_BESIDE_RELEASES = ('release', 'delete')
# Begins what a row says of a key whose acts the host undid; the reason follows.
_UNDONE = ':undone:'
# Characters of the reason that are kept.
_REASON = 1000

_RELEASES = sa.alias(operations)
# A host that an operator said is off gets nothing new: its flow may go on elsewhere at once (``Hearing.is_fenced``).
_FORCED_DOWN = sa.exists().where(
    services.LIVE, services.services.c.binary == services.COMPUTE, services.services.c.host == sa.bindparam('of_host'),
    services.services.c.forced_down == sa.true())
_CHECK = sa.select(operations.c.written, sa.exists().where(
    _RELEASES.c.instance_uuid == operations.c.instance_uuid, _RELEASES.c.host == sa.bindparam('host'),
    _RELEASES.c.kind == 'release', operations.c.kind.not_in(_BESIDE_RELEASES)).label('waiting'),
    sa.and_(operations.c.kind.not_in(_BESIDE_RELEASES), _FORCED_DOWN).label('forced')).where(*_STANDING)
_CHECK_ATTEMPT = sa.select(operations.c.id).where(
    operations.c.uuid == sa.bindparam('of_operation'), operations.c.attempt == sa.bindparam('of_attempt'))
_WRITTEN = sa.select(operations.c.written).where(*_AT)
_MARK, _END = operations.update().where(*_STANDING), operations.delete().where(*_STANDING)
# Nothing of a server is still to be given back on a host: that would take the new things along. MySQL reads a table
# that it updates from a derived table only.
_NO_RELEASE = sa.not_(sa.exists(sa.select(sa.select(_RELEASES.c.id).where(
    _RELEASES.c.instance_uuid == sa.bindparam('of_instance'), _RELEASES.c.kind == 'release',
    _RELEASES.c.host == sa.bindparam('of_host')).subquery().c.id)))


def was_moved(conn: sa.Connection, key: str, event: str) -> bool:
    """Whether the last that a host wrote under a key is that it moved the server by ``event``."""
    written = conn.execute(_WRITTEN, _parts(key)).scalar() or ''
    return written.startswith(f'{key}:{event}:')


def check(conn: sa.Connection, key: str, undo: bool = False, host: str | None = None) -> None:
    """The first act of a host on a key that it doesn't remember: KeyGone when the row no longer stands there.

    HostRejected: it did this before and undid it, and the answer was lost with its memory. ``undo``: the key is that of
    an undo, so the row must say that this step of this attempt is being undone, or be a pending release. ``host`` has a
    pending release of the server that must go first, or is forced down, so that its flow may go on without it:
    ReleasePending. (A delete takes all there is.)
    """
    if undo:
        _check_undo(conn, key)
        return
    row = conn.execute(_CHECK, {**_parts(key), 'host': host, 'of_host': host}).first()
    if row is None:
        raise KeyGone(key=key)
    if row.written.startswith(key + _UNDONE):
        raise HostRejected(row.written.removeprefix(key + _UNDONE))
    if host is not None and row.forced:
        raise ReleasePending(f'Host {host} is forced down and begins nothing before that mark is taken away.')
    if host is not None and row.waiting:
        raise ReleasePending(host=host)


def _check_undo(conn: sa.Connection, key: str) -> None:
    operation, position, _step, attempt = parse(key)
    if not conn.execute(sa.select(operations.c.id).where(
            operations.c.uuid == operation, operations.c.attempt == attempt, operations.c.position >= position,
            sa.or_(operations.c.failed == sa.true(), operations.c.undoing == sa.true(),
                   operations.c.kind == 'release'))).first():
        raise KeyGone(key=key)


def _mark(conn: sa.Connection, key: str, mark: str, free_of: tuple[str, str] | None = None) -> bool:
    """Mark the row, if no release of a server, ``free_of``: (its uuid, the host), waits and the host isn't forced down;
    False when this very write was done before, or the host may take nothing. KeyGone when the row doesn't stand at the
    key, HostRejected when the host undid what it did under it."""
    statement, values = _MARK, _parts(key)
    if free_of is not None:
        statement = statement.where(_NO_RELEASE, sa.not_(_FORCED_DOWN))
        values.update(of_instance=free_of[0], of_host=free_of[1])
    if conn.execute(statement.where(
            operations.c.written != mark, sa.not_(operations.c.written.startswith(key + _UNDONE, autoescape=True)))
            .values(written=mark), values).rowcount:
        return True
    # What was written stays so, though the operation was cancelled since: who asks again must know what it has.
    written = conn.execute(_WRITTEN, _parts(key)).scalar()
    if written != mark:
        check(conn, key)
    return False


def _mark_undone(conn: sa.Connection, key: str, reason: str) -> None:
    """Note that a host took back what it did under the key, where the row still stands there."""
    conn.execute(_MARK.values(written=f'{key}{_UNDONE}{shortened(reason, _REASON)}'), _parts(key))


def _check_attempt(conn: sa.Connection, key: str) -> None:
    """KeyGone when this attempt is over: all of it was given back then, or is left to a pending release, and what comes
    late would take things of a later operation along."""
    if not conn.execute(_CHECK_ATTEMPT, _parts(key)).first():
        raise KeyGone(key=key)


def _refuse(conn: sa.Connection, request: Claim) -> None:
    """Why a claim wasn't marked, unless it was written before. A host that is forced down may not go on with that one
    either: its process is another than the one that wrote it, or its flow doesn't wait for it."""
    row = conn.execute(sa.select(operations.c.written, _FORCED_DOWN.label('forced')).where(
        operations.c.uuid == parse(request.key)[0]), {'of_host': request.host}).first()
    if row is not None and row.forced:
        raise HostRejected(f'Host {request.host} is forced down and takes no server before that mark is taken away.')
    if row is None or row.written != f'{request.key}:claim':
        raise HostRejected(ReleasePending(host=request.host).message)


@engine.retried
def claim(db: engine.Database, request: Claim, look: Callable[[sa.Connection], None] | None = None) -> dict[str, Any]:
    """Claim a server's place on a host; ``look(conn)`` may raise against it (see ``group_claims``).

    Raises KeyGone, ClaimConflict (a device was not in its ``from`` status), Conflict (the server is elsewhere by now),
    HostRejected (the host undid this very claim, has something of the server still to give back, or is forced down).
    """
    uuid = request.instance_uuid
    with db.write() as conn:
        if not _mark(conn, request.key, f'{request.key}:claim', (uuid, request.host) if request.host else None):
            _refuse(conn, request)
            _write_usage_again(conn, request.usage)
            return {'written': True}
        if look is not None:
            look(conn)
        _move(conn, request)
        _write_parts(conn, request, strict=True)
    return {'written': True}


@engine.retried
def save(db: engine.Database, request: Save) -> dict[str, Any]:
    """What a host's step came to. As ``claim``; returns {'written': True}."""
    uuid, key = request.instance_uuid, request.key
    with db.write() as conn:
        if request.end and key:
            # Nothing waits behind a row that wasn't cancelled: one DELETE ends it.
            if not conn.execute(_END, _parts(key)).rowcount:
                _write_usage_again(conn, request.usage)
                return _ended_before(conn, request, key)
        elif key and not request.undo:
            event = request.event or {}
            what = request.transition or event.get('event') or f"save {request.mark or ''}"
            if not _mark(conn, key, f"{key}:{what}:{event.get('host') or ''}"):
                _write_usage_again(conn, request.usage)
                return {'written': True}
        elif key:
            _check_attempt(conn, key)
            if request.undone is not None:
                _mark_undone(conn, key, request.undone)
        _move(conn, request, lenient=request.undo)
        _write_parts(conn, request, strict=not request.undo)
        instance_queries.set_system_metadata(conn, uuid, request.system_metadata or {})
        if request.event and request.request_id:
            instance_queries.add_events(conn, uuid, request.request_id, [request.event])
        if request.fault:
            instance_queries.add_fault(conn, uuid, request.fault)
        if request.request_id and (request.end or request.message):
            instance_queries.finish_action(conn, uuid, request.request_id, request.message)
    return {'written': True}


def _ended_before(conn: sa.Connection, request: Save, key: str) -> dict[str, Any]:
    """An end state whose row is gone: done before (the reply was lost), or the operation was cancelled."""
    rule = states.TRANSITIONS[request.transition or '']
    row = conn.execute(sa.select(instances.c.vm_state, instances.c.task_state, operations.c.id.label('row')).join_from(
        instances, operations, sa.and_(operations.c.instance_uuid == instances.c.uuid,
                                       operations.c.uuid == parse(key)[0]), isouter=True)
        .where(instances.c.uuid == request.instance_uuid)).first()
    wanted = rule.to_vm.value if rule.to_vm else (row.vm_state if row else None)
    if row is None or row.row is not None or row.vm_state != wanted:
        raise KeyGone(key=key)
    return {'written': True}


def _move(conn: sa.Connection, request: Written, lenient: bool = False) -> None:
    """The server's columns: by a transition, or a plain compare-and-swap on ``expect``."""
    uuid, values, event = request.instance_uuid, _columns(request.values), request.transition
    if event:
        if instance_queries.transition(conn, uuid, event, values, request.expect) or lenient:
            return
        raise Conflict(str(instance_queries.refuse(conn, uuid, event)))
    if not instance_queries.update(conn, uuid, values, request.expect) and not lenient:
        raise Conflict(f'Instance {uuid} changed under this operation (expected {request.expect or None}).')


def _write_parts(conn: sa.Connection, request: Written, strict: bool) -> None:
    """What isn't of the server's own row."""
    _write_devices(conn, request.devices or [], strict)
    instance_queries.update_extra(conn, request.instance_uuid, request.extra or {})
    _write_usage(conn, request.usage)
    _write_migration(conn, request.migration)


def _write_devices(conn: sa.Connection, changes: list[dict[str, Any]], strict: bool) -> None:
    """Each device from its status to the next; rows that give back check their owner, rows that take check ``from``."""
    groups: dict[tuple[str, str, str | None], list[dict[str, Any]]] = {}
    for change in changes:
        groups.setdefault((change['from'], change['to'], change.get('instance_uuid')), []).append(change)
    table, now = devices_table, instance_queries.utcnow()
    for (before, after, owner), group in groups.items():
        ids = [change['id'] for change in group]
        values: dict[str, Any] = {'status': after, 'updated_at': now}
        conditions = [table.c.id.in_(ids), table.c.deleted == 0]
        if after in _HELD:
            values['instance_uuid'] = owner
            values['request_id'] = sa.case({change['id']: change.get('request_id') for change in group},
                                           value=table.c.id) if any(c.get('request_id') for c in group) else None
            if before in _HELD:
                conditions.append(table.c.instance_uuid == owner)
                del values['request_id']
            else:
                values['held_since'] = now
        elif after in ('available', 'removed') or owner is not None:
            # Given back: free, gone, or one that is not given out again (unavailable).
            values.update(instance_uuid=None, request_id=None, held_since=None)
            if owner is not None:
                device_history.add(conn, ids, owner)
                conditions.append(table.c.instance_uuid == owner)
        if strict:
            conditions.append(table.c.status == before)
        hit = conn.execute(table.update().where(*conditions).values(**values)).rowcount
        if strict and hit != len(ids):
            raise ClaimConflict(devices=', '.join(str(change.get('address') or change['id']) for change in group))


def _write_usage(conn: sa.Connection, usage: dict[str, Any] | None) -> None:
    if usage:
        values = {name: value for name, value in usage.items() if name != 'compute_node_id'}
        conditions = [nodes.c.id == usage['compute_node_id']]
        # A compute of the release before numbers nothing; what it tells counts as it comes.
        if 'usage_serial' in usage:
            conditions.append(nodes.c.usage_serial <= usage['usage_serial'])
        # By the database's clock: schedulers read what changed since they last looked.
        conn.execute(nodes.update().where(*conditions).values(updated_at=db_utcnow(), **values))


def _write_usage_again(conn: sa.Connection, usage: dict[str, Any] | None) -> None:
    """Of what was written before: a host that died since counted the server once more when it started, and said so."""
    if usage and 'usage_serial' in usage:
        _write_usage(conn, usage)


def _write_migration(conn: sa.Connection, migration: dict[str, Any] | None) -> None:
    if migration:
        values = {name: value for name, value in migration.items() if name != 'uuid'}
        conn.execute(migrations.update().where(migrations.c.uuid == migration['uuid'])
                     .values(updated_at=instance_queries.utcnow(), **values))


def _columns(values: dict[str, Any] | None) -> dict[str, Any]:
    """JSON values as column values: ISO times become datetimes."""
    return {name: instance_queries.parse_time(value) if name.endswith('_at') else value
            for name, value in (values or {}).items()}
