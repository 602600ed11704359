"""Find the server of an API request, check its state, and accept an operation on it.

The server may be in a cell, or still be a build request. To accept an operation is to write the operation row and the
instance action in one transaction of the cell. ``run``, or the caller of ``accept``, then wakes a conductor. ``wait``
waits for the end of an operation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kilonova import states
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import is_silence
from kilonova.context import RequestContext
from kilonova.db.arguments.attachments import NetworkChangedArguments
from kilonova.db.arguments.base import Arguments
from kilonova.db.engine import Connection, Database
from kilonova.db.queries import actions, adoption, info_caches, instances, operations, servers
from kilonova.errors import (
    InstanceBusy,
    InstanceInvalidState,
    InstanceIsLocked,
    InstanceNotFound,
    InstanceNotReady,
    Invalid,
)
from kilonova.objects.vif import ACCELERATED, Vif

# Purpose for ``find_server``: the caller only shows the server.
VIEW = 'view'
# Purpose for ``find_server``: the caller accepts an operation, so all columns that operations need are read.
WORK = 'work'
# Purpose for ``find_server``: the caller only shows the server, but needs all columns, as with WORK.
# Unlike WORK, the purpose WHOLE also finds servers whose host still runs nova-compute.
WHOLE = 'whole'
# Purpose for ``find_server``: the caller shows the server's history, so deleted servers are found, too.
HISTORY = 'history'
# Purpose for ``find_server``: the caller shows the server even if its cell's database does not answer.
PARTIAL = 'partial'
# From this microversion on servers are shown even if their cell's database does not answer.
PARTIAL_SINCE = 69
# From this microversion on the instance actions of deleted servers can be read.
HISTORY_SINCE = 21
# The first and the longest pause between two queries while a request waits for an operation, in seconds.
_LOOK, _LONGEST_LOOK = 0.05, 0.5
# The kinds of short operations. Clients often request several of them for one server at the same time.
# ``accept_in_turn`` lets a request for a server wait while a short operation runs, instead of refusing it with 409.
_BRIEF = frozenset(
    (
        'attach_interface',
        'detach_interface',
        'attach_volume',
        'detach_volume',
        'volume_snapshot_create',
        'volume_snapshot_delete',
    )
)

# Events (state changes, see ``kilonova.states``) that are refused if the server has a port of Cyborg.
# A port of Cyborg has the vnic_type accelerator-direct or accelerator-direct-physical.
_BLOCKED_BY_ACCELERATED_PORTS = frozenset(
    (
        'suspend.start',
        'shelve.start',
        'shelve_offload.start',
        'resize.start',
        'migrate.start',
        'live_migrate.start',
        'evacuate.start',
    )
)

T = TypeVar('T')


class PortAccelerated(Invalid):
    """Error 400: the action does not support servers with a Cyborg port (vnic_type accelerator-direct and others)."""

    msg_fmt = 'Feature not supported with Ports that have accelerators.'


@dataclass(frozen=True)
class ServerRef:
    """A server that ``find_server`` found.

    ``cell`` is the server's cell database, or None while the server is a build request. ``row`` is the row that the
    query returned. If ``silent`` is true, the cell's database did not answer, and ``row`` has only the few values that
    the API database stores.
    """

    uuid: str
    cell: Any
    row: dict[str, Any]
    silent: bool = False

    @property
    def target(self) -> dict[str, Any]:
        """The server's project and user, as the target of policy checks."""
        return {'project_id': self.row['project_id'], 'user_id': self.row['user_id']}


def find_server(
    backend: Backend,
    ctxt: RequestContext,
    uuid: str,
    *,
    purpose: str = VIEW,
    version: int = 1,
    for_services: bool = False,
) -> ServerRef:
    """Return the server with this uuid.

    ``purpose`` says what the caller does with the server, for example WORK to accept an operation. If ``for_services``
    is true, a caller with the role ``service`` finds servers of all projects. Runs two SQL statements.

    Raises HostNotAdopted for WORK if the server's host still runs nova-compute. Raises InstanceNotFound if the server
    does not exist, or belongs to another project, because the caller must not learn that such a server exists. Raises
    an error if the cell's database does not answer, unless ``purpose`` is PARTIAL and ``version`` is at least 69
    (microversion 2.69).
    """
    with backend.api_db.read() as conn:
        place = servers.find(conn, uuid)
    if place is not None and (
        ctxt.is_admin or place['project_id'] == ctxt.project_id or (for_services and 'service' in ctxt.roles)
    ):
        if place['cell_id'] is not None:
            cell = backend.cells.by_id(place['cell_id'])
            try:
                with cell.read() as conn:
                    if purpose == WORK:
                        adoption.refuse_not_adopted(cell, conn, uuid)
                    row = (
                        instances.get(conn, uuid)
                        if purpose in (WORK, WHOLE)
                        else servers.get(conn, uuid, deleted=purpose == HISTORY and version >= HISTORY_SINCE)
                    )
            except Exception as error:
                if purpose != PARTIAL or version < PARTIAL_SINCE or not is_silence(error):
                    raise
                return _known(backend, cell, uuid)
            if row is not None:
                return ServerRef(uuid, cell, row)
        elif place['request'] is not None:
            return ServerRef(uuid, None, place['request'])
    raise InstanceNotFound(instance_id=uuid)


def _known(backend: Backend, cell: Database, uuid: str) -> ServerRef:
    with backend.api_db.read() as conn:
        row = servers.known(conn, uuid)
    if row is None:
        raise InstanceNotFound(instance_id=uuid)
    return ServerRef(uuid, cell, row, silent=True)


def check_lock(ctxt: RequestContext, server: ServerRef) -> None:
    """Raise InstanceIsLocked if the server is locked and the caller is no administrator."""
    if server.row.get('locked') and not ctxt.is_admin:
        raise InstanceIsLocked(instance_uuid=server.uuid)


def check_ready(server: ServerRef) -> None:
    """Raise InstanceNotReady if the server is in no cell or on no host yet."""
    if server.cell is None or not server.row.get('host'):
        raise InstanceNotReady(instance_id=server.uuid)


def check_editable(server: ServerRef, method: str) -> None:
    """Check that metadata and tags of the server can be changed in its current state.

    The check uses the row in ``server``. The transaction that writes the change must check the state again. ``method``
    is the name of the request in the error message.

    Raises:
        InstanceInvalidState: The server's state forbids the change (error 409).
        InstanceNotReady: The server is in no cell yet (error 409).
    """
    state = server.row['vm_state']
    if state not in states.EDITABLE:
        raise InstanceInvalidState(method=method, instance_uuid=server.uuid, attr='vm_state', state=state)
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)


def action(ctxt: RequestContext, name: str) -> dict[str, Any]:
    """Return the columns of a new instance action, which records that a request started the action ``name``."""
    return {'action': name, 'request_id': ctxt.request_id, 'user_id': ctxt.user_id, 'project_id': ctxt.project_id}


def check(
    ctxt: RequestContext,
    server: ServerRef,
    event: str,
    launched: bool = True,
    hosted: bool = True,
    locked: bool = False,
) -> None:
    """Check that a server's lock, state and host allow the state change ``event`` (see ``kilonova.states``).

    The check uses the row in ``server``. The transaction that accepts the operation checks the state again.
    ``launched`` requires that the server was started at least once, and ``hosted`` requires that it has a host. The
    lock is checked unless ``locked`` is true.

    Raises:
        InstanceIsLocked: The server is locked and the caller is no administrator (error 409).
        InstanceInvalidState: The server's state does not allow the event (error 409).
        InstanceNotReady: The server has no host yet (error 409).
        PortAccelerated: The server has ports of Cyborg, and the event is a move, suspend or shelve (error 400).
    """
    if not locked:
        check_lock(ctxt, server)
    if event in _BLOCKED_BY_ACCELERATED_PORTS and has_accelerated_ports(server):
        raise PortAccelerated
    row = server.row
    rule = states.TRANSITIONS[event]
    if not rule.allows(row['vm_state'], row['task_state']):
        wrong_vm = rule.vm is not states.ANY and row['vm_state'] not in rule.vm
        attr = 'vm_state' if wrong_vm else 'task_state'
        raise InstanceInvalidState(method=rule.method, instance_uuid=server.uuid, attr=attr, state=row[attr])
    if launched and not row['launched_at']:
        raise InstanceInvalidState(
            method=rule.method, instance_uuid=server.uuid, attr='launched_at', state=row['launched_at']
        )
    if hosted:
        check_ready(server)


def has_accelerated_ports(server: ServerRef) -> bool:
    """Return whether a port of the server has a vnic_type of Cyborg, such as accelerator-direct."""
    vifs = json.loads(server.row['extra_network_info'] or '[]') if server.cell is not None else []
    return any(vif.get('vnic_type') in ACCELERATED for vif in vifs)


def accept(
    ctxt: RequestContext, server: ServerRef, event: str, row: operations.OperationRow, name: str, **more: Any
) -> None:
    """Change the server's state by ``event`` and write the operation row and the instance action, in one transaction.

    ``row`` is the operation row, ``name`` is the name of the instance action, and ``more`` are further arguments of
    ``operations.accept``.

    Raises:
        InstanceInvalidState: The server's state does not allow the event, for example because a concurrent request has
            changed it.
        InstanceBusy: Another operation of the server is running. A subclass of InstanceInvalidState.
        InstanceNotFound: The server was deleted.
    """
    operations.accept(
        server.cell, instance_uuid=server.uuid, event=event, operation=row, action=action(ctxt, name), **more
    )


def accept_in_turn(
    backend: Backend,
    ctxt: RequestContext,
    server: ServerRef,
    event: str,
    row: operations.OperationRow,
    name: str,
    **more: Any,
) -> None:
    """Call ``accept`` with these arguments, and retry while a short operation of the server is running.

    A short operation attaches or detaches an interface or a volume, or creates or deletes a volume snapshot. It may
    change the server while this function waits, so the caller's earlier checks may be outdated. A caller can pass a
    function ``write(conn)`` (in ``more``), which repeats such checks in the transaction that accepts the operation.

    Raises InstanceBusy if the short operations don't end within the RPC response timeout, or if another kind of
    operation is running.
    """
    end = time.monotonic() + backend.options.answer_seconds
    while True:
        try:
            accept(ctxt, server, event, row, name, **more)
            return
        except InstanceBusy:
            if time.monotonic() >= end or not wait(backend, server, lambda conn: _is_free(conn, server)):
                raise


def _is_free(conn: Connection, server: ServerRef) -> bool | None:
    """Return whether a new operation can be accepted: True (now), False (not soon), or None (after a short wait).

    True means that no operation of the server is running. None means that a short operation (``_BRIEF``) is running:
    the caller asks again. False means that another operation is running: the caller refuses the request.
    """
    kind = operations.running(conn, server.uuid)
    return None if kind in _BRIEF else kind is None


def run(
    backend: Backend,
    ctxt: RequestContext,
    server: ServerRef,
    kind: str,
    event: str,
    args: Arguments | None = None,
    hosted: bool = True,
    **more: Any,
) -> None:
    """Check the server's state, accept an operation of the kind ``kind``, and wake a conductor.

    ``event`` is the state change with which the operation begins, such as 'pause.start' (see ``kilonova.states``).
    ``args`` are the arguments of the operation. If an attach, a detach or another short operation of the server is
    running, wait for its end. ``more`` are further arguments of ``accept_in_turn``. The server must be on a host,
    unless ``hosted`` is false. Raises the errors of ``check`` and ``accept_in_turn``.
    """
    check(ctxt, server, event, hosted=hosted)
    row = operations.OperationRow.new(ctxt, kind, server.uuid, args)
    accept_in_turn(backend, ctxt, server, event, row, kind, **more)
    backend.conductor.run_operation(ctxt, operation=row.uuid)


def run_beside(
    backend: Backend, ctxt: RequestContext, server: ServerRef, kind: str, args: Arguments | None = None
) -> None:
    """Start an operation that runs in parallel with the server's other operations, in every state of the server.

    ``kind`` and ``args`` are the kind and the arguments of the operation. Use this function only for operations that
    conflict with no other operation: those that update the server's info cache from Neutron, or the size of a volume
    from Cinder.
    """
    row = operations.OperationRow.new(ctxt, kind, server.uuid, args, beside=True)
    backend.conductor.run_operation(ctxt, operation=operations.add_beside(server.cell, row))


def ports_changed(backend: Backend, ctxt: RequestContext, server: ServerRef, change: Callable[[Vif], Vif]) -> None:
    """Apply ``change`` to each interface in the server's info cache, and wake a conductor that refreshes the cache.

    The caller has already made the same change in Neutron. The write to the cache is skipped if another process writes
    the cache at the same moment. In every case the conductor reads the server's ports from Neutron and corrects the
    cache a little later.
    """
    row = operations.OperationRow.new(ctxt, 'network_changed', server.uuid, beside=True)
    uuid = operations.add_beside(
        server.cell,
        row,
        lambda conn: info_caches.amend(conn, server.uuid, lambda stored: change(Vif.read(stored)).stored()),
    )
    backend.conductor.run_operation(ctxt, operation=uuid)


class Renaming:
    """The operation in which a conductor writes the server's new hostname to the DNS names of its ports.

    Call ``write`` in the transaction that changes the hostname, and ``wake`` after it. The methods do nothing if this
    cloud has no network service.
    """

    def __init__(self, backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
        self._backend, self._ctxt, self._server = backend, ctxt, server
        self._row: str | None = None

    def write(self, conn: Connection) -> None:
        """Insert the operation row in the transaction of ``conn``."""
        if self._backend.networks is not None:
            self._row = operations.put_beside(
                conn,
                operations.OperationRow.new(
                    self._ctxt,
                    'network_changed',
                    self._server.uuid,
                    NetworkChangedArguments(renamed=True),
                    beside=True,
                ),
            )

    def wake(self) -> None:
        """Wake a conductor for the operation row, if ``write`` inserted one."""
        if self._row is not None:
            self._backend.conductor.run_operation(self._ctxt, operation=self._row)


def wait(backend: Backend, server: ServerRef, read: Callable[[Connection], T | None]) -> T | None:
    """Call ``read`` with a connection to the server's cell repeatedly until it returns a value, and return the value.

    Return None if ``read`` still returns None after the RPC response timeout (``answer_seconds``). The pause between
    two calls grows from 0.05 to 0.5 seconds.
    """
    end, pause = time.monotonic() + backend.options.answer_seconds, _LOOK
    while True:
        with server.cell.read() as conn:
            found = read(conn)
        if found is not None or time.monotonic() >= end:
            return found
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_LOOK)


def failure(conn: Connection, server: ServerRef, request_id: str) -> str | None:
    """Return the reason why the server's instance action of the request ``request_id`` failed.

    Return None if the action has not failed, or if there is no such action.
    """
    action = actions.get(conn, server.uuid, request_id)
    if action is None or action['message'] is None:
        return None
    message: str = action['message']
    return actions.reasons(conn, [action['id']]).get(action['id'], message)
