"""Write the claims and results of hosts that work on an operation, each in one transaction.

This implements rules 13, 14 and 21 of docs/contributor/operations.md. A host works under a step key, ``<operation
uuid>/<position>.<step>/<attempt>``. Each write first stores its name (the *mark*) in the operation row, and raises
KeyGone if the row is deleted, cancelled, being undone, or at another step or attempt. The mark shows whether a write is
new or was sent again, and whether the host has undone its work under the key. ``ClaimWrite`` and ``SaveWrite`` are the
requests of the host, with the fields of ``objects.Claim`` and ``objects.Save``.
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
    """A request of a host to write to the database: the fields that claims and saves have in common.

    A field that is None or empty changes nothing. Times are ISO texts.

    Attributes:
        instance_uuid: The server.
        key: The step key, which names the operation, step and attempt for which the host works.
        transition: The event that changes the server's state.
        expect: {column of instances: the value, or a list of the values, that the column may have before the write}.
        values: {column of instances: new value}.
        extra: {column of instance_extra: JSON text}.
        devices: Changes of PCI devices, a list of {id, address, from, to, instance_uuid, request_id}. ``from`` is the
            status that the device must have, and ``to`` its new status.
        usage: The host's usage, a dict with compute_node_id and columns of compute_nodes.
        migration: A dict with uuid and columns of migrations.
    """

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
class ClaimWrite(Written):
    """A request of a host to claim its resources for a server.

    ``host`` is the name of this host. If it is None, it is not checked whether the host is forced down or has a pending
    release of the server. ``group`` is None, or {'uuid': uuid of the server's group, 'host': name of this host}. Then
    the policy of the group is checked (see ``group_claims``).
    """

    key: str
    host: str | None = None
    group: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class SaveWrite(Written):
    """The result of a step of an operation on a host.

    Attributes:
        system_metadata: {key: value, or None to delete the key}.
        event: An event of the action, {event, result, host, start_time, finish_time, details, traceback}.
        fault: A fault, {code, message, details, host}.
        message: The message of the action; 'Error' marks a failed action.
        end: True if this save writes the server's end state. Then the operation row is deleted in the same transaction.
        undo: True if this save belongs to the undo of the step. Such a save is written only while the operation is at
            the same attempt. It does not change the server's state if another request has set the state since, for
            example to ``deleting``.
        undone: A text: why the host undid its work on this step. It is stored in the operation row, and later calls
            with this key are refused with this text. Only for a save with ``undo``.
        mark: A number that distinguishes several saves under one key that have no event and no transition.
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
    """Return the parts of a step key: (operation uuid, position, step, attempt)."""
    operation, step, attempt = key.split('/')
    position, name = step.split('.', 1)
    return operation, int(position), name, int(attempt)


def make_key(operation: str, position: int, step: str, attempt: int) -> str:
    """Return the step key ``<operation uuid>/<position>.<step>/<attempt>`` for one step of one attempt."""
    return f'{operation}/{position}.{step}/{attempt}'


# SQL conditions: the operation is at the position and attempt that a step key names. ``_parts`` returns the parameters.
_AT = (
    operations.c.uuid == sa.bindparam('of_operation'),
    operations.c.position == sa.bindparam('of_position'),
    operations.c.attempt == sa.bindparam('of_attempt'),
)
_STANDING = (
    *_AT,
    operations.c.cancelled == sa.false(),
    operations.c.failed == sa.false(),
    operations.c.undoing == sa.false(),
)


def _parts(key: str) -> dict[str, Any]:
    operation, position, _step, attempt = parse(key)
    return {'of_operation': operation, 'of_position': position, 'of_attempt': attempt}


_HELD = ('claimed', 'allocated')
_BESIDE_RELEASES = ('release', 'delete')
# After a host has undone a step, the column ``written`` of the operation row has the step key, _UNDONE and the reason.
# Later calls of the host with the step key of an undone step are refused.
_UNDONE = ':undone:'
# Maximum number of characters of the reason that a host gives when it has undone its work.
_REASON = 1000

_RELEASES = sa.alias(operations)
# The SQL condition that an operator has forced the host down. A host that is forced down gets no new work.
# The servers of a forced-down host may already be evacuated, and its operations may already continue on other hosts.
_FORCED_DOWN = sa.exists().where(
    services.LIVE,
    services.services.c.binary == services.COMPUTE,
    services.services.c.host == sa.bindparam('of_host'),
    services.services.c.forced_down == sa.true(),
)
_CHECK = sa.select(
    operations.c.written,
    sa.exists()
    .where(
        _RELEASES.c.instance_uuid == operations.c.instance_uuid,
        _RELEASES.c.host == sa.bindparam('host'),
        _RELEASES.c.kind == 'release',
        operations.c.kind.not_in(_BESIDE_RELEASES),
    )
    .label('waiting'),
    sa.and_(operations.c.kind.not_in(_BESIDE_RELEASES), _FORCED_DOWN).label('forced'),
).where(*_STANDING)
_CHECK_ATTEMPT = sa.select(operations.c.id).where(
    operations.c.uuid == sa.bindparam('of_operation'), operations.c.attempt == sa.bindparam('of_attempt')
)
# The operation is at this step, or is being undone.
_AT_STEP_OR_ENDING = sa.or_(
    operations.c.position == sa.bindparam('of_position'),
    operations.c.cancelled == sa.true(),
    operations.c.failed == sa.true(),
    operations.c.undoing == sa.true(),
)
_WRITTEN = sa.select(operations.c.written).where(*_AT)
_MARK, _END = operations.update().where(*_STANDING), operations.delete().where(*_STANDING)
# The SQL condition that no pending release of the server is stored for the host.
# A pending release is an operation that frees, when a host is up again, what an earlier operation left on the host.
# A pending release would also free a claim that is made before the release runs.
# The inner SELECT is a derived table: MySQL refuses an UPDATE whose subquery reads the updated table directly.
_NO_RELEASE = sa.not_(
    sa.exists(
        sa.select(
            sa.select(_RELEASES.c.id)
            .where(
                _RELEASES.c.instance_uuid == sa.bindparam('of_instance'),
                _RELEASES.c.kind == 'release',
                _RELEASES.c.host == sa.bindparam('of_host'),
            )
            .subquery()
            .c.id
        )
    )
)


def was_moved(conn: sa.Connection, key: str, event: str) -> bool:
    """Return whether the last write that a host sent for the step key ``key`` changed the server's state by ``event``.

    ``event`` is a key of states.TRANSITIONS. The operation row stores the name of the last write.
    """
    written = conn.execute(_WRITTEN, _parts(key)).scalar() or ''
    return written.startswith(f'{key}:{event}:')


def check(conn: sa.Connection, key: str, undo: bool = False, host: str | None = None) -> None:
    """Check that an operation is still at the step and attempt of this key, before the host begins to work on it.

    If ``undo`` is True, the host wants to undo the step. Then the operation must be undoing this step of this attempt,
    or it must be a pending release (a task to free later what a host holds of a server).

    Raises:
        KeyGone: The operation row is deleted, cancelled, being undone, or at another step or attempt.
        HostRejected: The host did this step before and undid it, but its reply to the conductor was lost. The conductor
            tries another host.
        ReleasePending: ``host`` must first do its pending release of the server, or ``host`` is forced down. A delete
            is allowed even then, because it releases everything.
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
        raise ReleasePending(f'Host {host} is forced down: it starts no work until forced_down is unset.')
    if host is not None and row.waiting:
        raise ReleasePending(host=host)


def _check_undo(conn: sa.Connection, key: str) -> None:
    operation, position, _step, attempt = parse(key)
    if not conn.execute(
        sa.select(operations.c.id).where(
            operations.c.uuid == operation,
            operations.c.attempt == attempt,
            operations.c.position >= position,
            sa.or_(operations.c.failed == sa.true(), operations.c.undoing == sa.true(), operations.c.kind == 'release'),
        )
    ).first():
        raise KeyGone(key=key)


def _mark(conn: sa.Connection, key: str, mark: str, free_of: tuple[str, str] | None = None) -> bool:
    """Store the mark of a host's write in the operation row, so that a repeated write is recognised.

    A mark is the step key and the kind of the write, such as '<step key>:claim'. Return False if the row has this mark
    already, or if the host may not claim. ``free_of`` is (server uuid, host) for a claim: the host may not claim if it
    is forced down or has a pending release of this server. Raises KeyGone if the row is at another step or attempt, and
    HostRejected if the host has undone this step.
    """
    statement, values = _MARK, _parts(key)
    if free_of is not None:
        statement = statement.where(_NO_RELEASE, sa.not_(_FORCED_DOWN))
        values.update(of_instance=free_of[0], of_host=free_of[1])
    if conn.execute(
        statement.where(
            operations.c.written != mark, sa.not_(operations.c.written.startswith(key + _UNDONE, autoescape=True))
        ).values(written=mark),
        values,
    ).rowcount:
        return True
    # If the row has ``mark``, this write was committed before: raise nothing, even if the operation is cancelled now.
    # The host must learn that its claim exists, so that it can release the claim.
    written = conn.execute(_WRITTEN, _parts(key)).scalar()
    if written != mark:
        check(conn, key)
    return False


def _mark_undone(conn: sa.Connection, key: str, reason: str) -> None:
    """Record that a host undid its work for a step key, if the operation is still at this step and attempt."""
    conn.execute(_MARK.values(written=f'{key}{_UNDONE}{shortened(reason, _REASON)}'), _parts(key))


def _check_attempt(conn: sa.Connection, key: str, is_own: bool = False) -> None:
    """Raise KeyGone if the operation is no longer at the attempt that the step key ``key`` names.

    Called before a host's result of an undo is written. After the end of the attempt, the result must not be written:
    it could release resources that a later operation holds. ``is_own`` is True if the host itself undid its work. Then
    KeyGone is also raised if the operation has gone on to another step, because the step of ``key`` has succeeded.
    """
    statement = _CHECK_ATTEMPT.where(_AT_STEP_OR_ENDING) if is_own else _CHECK_ATTEMPT
    if not conn.execute(statement, _parts(key)).first():
        raise KeyGone(key=key)


def _refuse(conn: sa.Connection, request: ClaimWrite) -> None:
    """Raise HostRejected if the host may not claim. Called after ``_mark`` has returned False.

    Nothing is raised if this claim was written before and the host is not forced down. If the host is forced down,
    HostRejected is always raised, because the operation may already continue on another host.
    """
    row = conn.execute(
        sa.select(operations.c.written, _FORCED_DOWN.label('forced')).where(operations.c.uuid == parse(request.key)[0]),
        {'of_host': request.host},
    ).first()
    if row is not None and row.forced:
        raise HostRejected(f'Host {request.host} is forced down: it accepts no servers until forced_down is unset.')
    if row is None or row.written != f'{request.key}:claim':
        raise HostRejected(ReleasePending(host=request.host).message)


@engine.retried
def claim(
    db: engine.Database, request: ClaimWrite, verify: Callable[[sa.Connection], None] | None = None
) -> dict[str, Any]:
    """Claim CPUs, memory and PCI devices for a server on a host, and return {'written': True}.

    ``verify(conn)`` may raise an exception to refuse the claim (see ``group_claims``). If the same claim was written
    before and only its answer was lost, it is not written again.

    Raises:
        KeyGone: The operation row is deleted, cancelled, being undone, or at another step or attempt.
        ClaimConflict: A device does not have the status that its change expects (``from``).
        Conflict: The server has changed, for example its host.
        HostRejected: The host undid this claim before, is forced down, or must first free what an earlier operation of
            the server left on it (a pending release).
    """
    uuid = request.instance_uuid
    with db.write() as conn:
        if not _mark(conn, request.key, f'{request.key}:claim', (uuid, request.host) if request.host else None):
            _refuse(conn, request)
            _write_usage_again(conn, request.usage)
            return {'written': True}
        if verify is not None:
            verify(conn)
        _move(conn, request)
        _write_parts(conn, request, strict=True)
    return {'written': True}


@engine.retried
def save(db: engine.Database, request: SaveWrite) -> dict[str, Any]:
    """Write the result of a host's step, and return {'written': True}.

    If the same save was written before and only its answer was lost, it is not written again.

    Raises:
        KeyGone: The operation row is deleted, cancelled, being undone, or at another step or attempt.
        ClaimConflict: A device does not have the status that its change expects (``from``).
        Conflict: The server has changed, for example its host.
        HostRejected: The host undid its work under this key before.
    """
    uuid, key = request.instance_uuid, request.key
    with db.write() as conn:
        if request.end and key:
            # Delete the operation row, unless the operation was cancelled.
            # No waiting operation has to be started here, because an operation waits only for a cancelled operation.
            if not conn.execute(_END, _parts(key)).rowcount:
                _write_usage_again(conn, request.usage)
                return _ended_before(conn, request, key)
        elif key and not request.undo:
            event = request.event or {}
            what = request.transition or event.get('event') or f'save {request.mark or ""}'
            if not _mark(conn, key, f'{key}:{what}:{event.get("host") or ""}'):
                _write_usage_again(conn, request.usage)
                return {'written': True}
        elif key:
            _check_attempt(conn, key, is_own=request.undone is not None)
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


def _ended_before(conn: sa.Connection, request: SaveWrite, key: str) -> dict[str, Any]:
    """Return {'written': True} if an earlier call, whose reply was lost, has written the server's end state.

    Called if the operation row could not be deleted. The end state is written if the row does not exist and the server
    has the vm_state of ``request.transition``. Otherwise KeyGone is raised, for example because the operation was
    cancelled.
    """
    rule = states.TRANSITIONS[request.transition or '']
    row = conn.execute(
        sa.select(instances.c.vm_state, instances.c.task_state, operations.c.id.label('row'))
        .join_from(
            instances,
            operations,
            sa.and_(operations.c.instance_uuid == instances.c.uuid, operations.c.uuid == parse(key)[0]),
            isouter=True,
        )
        .where(instances.c.uuid == request.instance_uuid)
    ).first()
    wanted = rule.to_vm.value if rule.to_vm else (row.vm_state if row else None)
    if row is None or row.row is not None or row.vm_state != wanted:
        raise KeyGone(key=key)
    return {'written': True}


def _move(conn: sa.Connection, request: Written, lenient: bool = False) -> None:
    """Change the columns ``request.values`` of the server's row, and its state if ``request.transition`` is set.

    ``request.transition`` is the name of the event that changes the state. Raises Conflict if the server's state does
    not allow this event, or if the row does not have the values in ``request.expect``. If ``lenient`` is True, the row
    stays unchanged instead of raising Conflict.
    """
    uuid, values, event = request.instance_uuid, _columns(request.values), request.transition
    if event:
        if instance_queries.transition(conn, uuid, event, values, request.expect) or lenient:
            return
        raise Conflict(str(instance_queries.refuse(conn, uuid, event)))
    if not instance_queries.update(conn, uuid, values, request.expect) and not lenient:
        raise Conflict(f'Instance {uuid} was changed during this operation (expected {request.expect or None}).')


def _write_parts(conn: sa.Connection, request: Written, strict: bool) -> None:
    """Write the changes in other tables than instances: devices, instance_extra, compute_nodes and migrations.

    If ``strict`` is True, ClaimConflict is raised if a device does not have the status that its change expects.
    """
    _write_devices(conn, request.devices or [], strict)
    instance_queries.update_extra(conn, request.instance_uuid, request.extra or {})
    _write_usage(conn, request.usage)
    _write_migration(conn, request.migration)


def _write_devices(conn: sa.Connection, changes: list[dict[str, Any]], strict: bool) -> None:
    """Change the status of PCI devices. Each of ``changes`` has the device's ``id`` and its new status ``to``.

    A device that is released must be held by the server ``instance_uuid`` of the change; otherwise it stays unchanged.
    If ``strict`` is True, ClaimConflict is raised if a device stays unchanged or does not have the status ``from``.
    """
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
            values['request_id'] = (
                sa.case({change['id']: change.get('request_id') for change in group}, value=table.c.id)
                if any(c.get('request_id') for c in group)
                else None
            )
            if before in _HELD:
                conditions.append(table.c.instance_uuid == owner)
                del values['request_id']
            else:
                values['held_since'] = now
        elif after in ('available', 'removed') or owner is not None:
            # The server gives the device back. The device's new status is 'available', 'removed' or 'unavailable'.
            # 'removed': the host does not have the device any more. 'unavailable': the device is not offered.
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
        # A compute of the previous release sends no serial number, so its usage is always written.
        if 'usage_serial' in usage:
            conditions.append(nodes.c.usage_serial <= usage['usage_serial'])
        # The database's clock sets the time, because schedulers read the rows that changed since their last reading.
        conn.execute(nodes.update().where(*conditions).values(updated_at=db_utcnow(), **values))


def _write_usage_again(conn: sa.Connection, usage: dict[str, Any] | None) -> None:
    """Write the host's usage again. Called when a claim or save that was already written is repeated.

    The host may have died after the first write. When it restarted, it reported a usage without this server, and this
    replaced the usage of the first write.
    """
    if usage and 'usage_serial' in usage:
        _write_usage(conn, usage)


def _write_migration(conn: sa.Connection, migration: dict[str, Any] | None) -> None:
    if migration:
        values = {name: value for name, value in migration.items() if name != 'uuid'}
        conn.execute(
            migrations.update()
            .where(migrations.c.uuid == migration['uuid'])
            .values(updated_at=instance_queries.utcnow(), **values)
        )


def _columns(values: dict[str, Any] | None) -> dict[str, Any]:
    """Return {column: value} for the database from JSON ``values``: ISO texts of times become datetimes."""
    return {
        name: instance_queries.parse_time(value) if name.endswith('_at') else value
        for name, value in (values or {}).items()
    }
