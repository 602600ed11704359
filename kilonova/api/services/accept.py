"""The server that a request names: found wherever it stands (in a cell, or still as a build request), checked, and an
operation on it accepted: its row, its action, the transaction, the wake-up; and its end waited for."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kilonova import states
from kilonova.api.services.backend import Backend
from kilonova.api.services.silence import is_silence
from kilonova.context import RequestContext
from kilonova.db.engine import Connection, Database
from kilonova.db.queries import actions, info_caches, instances, operations, servers
from kilonova.errors import (
    InstanceBusy,
    InstanceInvalidState,
    InstanceIsLocked,
    InstanceNotFound,
    InstanceNotReady,
    Invalid,
)
from kilonova.objects.vif import ACCELERATED, Vif

# What a server is found for: to be shown; to be worked on (with all that moves need); to be shown though deleted; to be
# shown though its cell doesn't answer.
VIEW, WORK, HISTORY, PARTIAL = 'view', 'work', 'history', 'partial'
# Servers whose cell doesn't answer can be shown from this version on.
PARTIAL_SINCE = 69
# Stories of deleted servers can be read from this version on.
HISTORY_SINCE = 21
# Seconds between two looks whether what is waited for is there: at first, and at most.
_LOOK, _LONGEST_LOOK = 0.05, 0.5
# Operations that give a server a device, or take one, or snapshots of a volume, and leave its states as they are:
# clients ask for several at once, and for the next thing as soon as a device is there.
_BRIEF = frozenset(('attach_interface', 'detach_interface', 'attach_volume', 'detach_volume', 'volume_snapshot_create',
                    'volume_snapshot_delete'))

# What servers whose ports are accelerators don't do.
_STAYING = frozenset(('suspend.start', 'shelve.start', 'shelve_offload.start', 'resize.start', 'migrate.start',
                      'live_migrate.start', 'evacuate.start'))

T = TypeVar('T')


class PortAccelerated(Invalid):
    msg_fmt = 'Feature not supported with Ports that have accelerators.'


@dataclass(frozen=True)
class Found:
    """A server. ``cell`` is its database, None while it is a build request; ``row`` as the queries give it. ``silent``:
    the cell doesn't answer, the row is what the API database knows (``servers.known``)."""

    uuid: str
    cell: Any
    row: dict[str, Any]
    silent: bool = False

    @property
    def target(self) -> dict[str, Any]:
        """What policies are asked about."""
        return {'project_id': self.row['project_id'], 'user_id': self.row['user_id']}


def find_server(backend: Backend, ctxt: RequestContext, uuid: str, *, purpose: str = VIEW, version: int = 1,
                for_services: bool = False) -> Found:
    """InstanceNotFound also for servers of other projects: nobody learns that they exist; ``for_services``: but another
    service. Two statements."""
    with backend.api_db.read() as conn:
        place = servers.find(conn, uuid)
    if place is not None and (ctxt.is_admin or place['project_id'] == ctxt.project_id or (
            for_services and 'service' in ctxt.roles)):
        if place['cell_id'] is not None:
            cell = backend.cells.by_id(place['cell_id'])
            try:
                with cell.read() as conn:
                    row = instances.get(conn, uuid) if purpose == WORK else servers.get(
                        conn, uuid, deleted=purpose == HISTORY and version >= HISTORY_SINCE)
            except Exception as error:
                if purpose != PARTIAL or version < PARTIAL_SINCE or not is_silence(error):
                    raise
                return _known(backend, cell, uuid)
            if row is not None:
                return Found(uuid, cell, row)
        elif place['request'] is not None:
            return Found(uuid, None, place['request'])
    raise InstanceNotFound(instance_id=uuid)


def _known(backend: Backend, cell: Database, uuid: str) -> Found:
    with backend.api_db.read() as conn:
        row = servers.known(conn, uuid)
    if row is None:
        raise InstanceNotFound(instance_id=uuid)
    return Found(uuid, cell, row, silent=True)


def check_lock(ctxt: RequestContext, server: Found) -> None:
    """InstanceIsLocked unless an administrator asks."""
    if server.row.get('locked') and not ctxt.is_admin:
        raise InstanceIsLocked(instance_uuid=server.uuid)


def check_ready(server: Found) -> None:
    """InstanceNotReady while nobody but the scheduler can do anything with it."""
    if server.cell is None or not server.row.get('host'):
        raise InstanceNotReady(instance_id=server.uuid)


def check_editable(server: Found, method: str) -> None:
    """InstanceInvalidState (409, ``method`` names the act) where metadata and tags can't be changed; InstanceNotReady
    while no cell has the server. The row in hand is asked: the writing transaction asks once more."""
    state = server.row['vm_state']
    if state not in states.EDITABLE:
        raise InstanceInvalidState(method=method, instance_uuid=server.uuid, attr='vm_state', state=state)
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)


def action(ctxt: RequestContext, name: str) -> dict[str, Any]:
    """The row that tells the server's story."""
    return {'action': name, 'request_id': ctxt.request_id, 'user_id': ctxt.user_id, 'project_id': ctxt.project_id}


def check(ctxt: RequestContext, server: Found, event: str, launched: bool = True, hosted: bool = True,
          locked: bool = False) -> None:
    """Lock, host and state, as the row in hand has them; the transaction checks the state once more. ``hosted`` False:
    it needs no host; ``locked``: one that is locked will do.

    Raises InstanceIsLocked, InstanceNotReady, InstanceInvalidState: all 409; PortAccelerated.
    """
    if not locked:
        check_lock(ctxt, server)
    if event in _STAYING and has_accelerated_ports(server):
        raise PortAccelerated
    row = server.row
    rule = states.TRANSITIONS[event]
    if not rule.allows(row['vm_state'], row['task_state']):
        wrong_vm = rule.vm is not states.ANY and row['vm_state'] not in rule.vm
        attr = 'vm_state' if wrong_vm else 'task_state'
        raise InstanceInvalidState(method=rule.method, instance_uuid=server.uuid, attr=attr, state=row[attr])
    if launched and not row['launched_at']:
        raise InstanceInvalidState(method=rule.method, instance_uuid=server.uuid, attr='launched_at',
                                   state=row['launched_at'])
    if hosted:
        check_ready(server)


def has_accelerated_ports(server: Found) -> bool:
    """Whether some of its ports are accelerators."""
    vifs = json.loads(server.row['extra_network_info'] or '[]') if server.cell is not None else []
    return any(vif.get('vnic_type') in ACCELERATED for vif in vifs)


def accept(ctxt: RequestContext, server: Found, event: str, row: operations.Operation, name: str, **more: Any) -> None:
    """One transaction: state, operation, action. Raises InstanceInvalidState for the loser of a race."""
    operations.accept(server.cell, instance_uuid=server.uuid, event=event, operation=row, action=action(ctxt, name),
                      **more)


def accept_in_turn(backend: Backend, ctxt: RequestContext, server: Found, event: str, row: operations.Operation,
                   name: str, **more: Any) -> None:
    """``accept``, behind one that gives the server a device or takes one: for what is asked for by nothing that such a
    one changes, or compares it once more in the transaction. InstanceBusy: that goes on for too long, or something
    else is at work."""
    end = time.monotonic() + backend.options.answer_seconds
    while True:
        try:
            accept(ctxt, server, event, row, name, **more)
            return
        except InstanceBusy:
            if time.monotonic() >= end or not wait(backend, server, lambda conn: _is_free(conn, server)):
                raise


def _is_free(conn: Connection, server: Found) -> bool | None:
    """Whether nothing is at work on it; None: what is will soon be over."""
    kind = operations.running(conn, server.uuid)
    return None if kind in _BRIEF else kind is None


def run(backend: Backend, ctxt: RequestContext, server: Found, kind: str, event: str,
        args: dict[str, Any] | None = None, hosted: bool = True, **more: Any) -> None:
    """One step on the server's host, accepted in turn and begun. ``hosted`` False: it needs no host."""
    check(ctxt, server, event, hosted=hosted)
    row = operations.Operation.new(ctxt, kind, server.uuid, args or {})
    accept_in_turn(backend, ctxt, server, event, row, kind, **more)
    backend.conductor.run_operation(ctxt, operation=row.uuid)


def run_beside(backend: Backend, ctxt: RequestContext, server: Found, kind: str, args: dict[str, Any]) -> None:
    """Begin what runs beside the server's operations, whatever its state: a conductor asks another service what the
    server's ports, or one of its volumes, are like now."""
    row = operations.Operation.new(ctxt, kind, server.uuid, args, beside=True)
    backend.conductor.run_operation(ctxt, operation=operations.add_beside(server.cell, row))


def ports_changed(backend: Backend, ctxt: RequestContext, server: Found, change: Callable[[Vif], Vif]) -> None:
    """Show each interface of a server with the ``change`` that the caller made in the network service, and have a
    conductor ask that service what else is new.

    The server is shown so when this returns, except if somebody else writes its interfaces at the same moment: then it
    is after the conductor has asked.
    """
    row = operations.Operation.new(ctxt, 'network_changed', server.uuid, {}, beside=True)
    uuid = operations.add_beside(server.cell, row, lambda conn: info_caches.amend(
        conn, server.uuid, lambda stored: change(Vif.read(stored)).stored()))
    backend.conductor.run_operation(ctxt, operation=uuid)


class Renaming:
    """The operation by which a conductor gives the server's ports its new hostname in DNS. ``write`` is called in the
    transaction that changes the hostname, ``wake`` after it. Without a network service both do nothing."""

    def __init__(self, backend: Backend, ctxt: RequestContext, server: Found) -> None:
        self._backend, self._ctxt, self._server = backend, ctxt, server
        self._row: str | None = None

    def write(self, conn: Connection) -> None:
        """Insert the operation row."""
        if self._backend.networks is not None:
            self._row = operations.put_beside(conn, operations.Operation.new(
                self._ctxt, 'network_changed', self._server.uuid, {'renamed': True}, beside=True))

    def wake(self) -> None:
        """Wake a conductor for the row."""
        if self._row is not None:
            self._backend.conductor.run_operation(self._ctxt, operation=self._row)


def wait(backend: Backend, server: Found, look: Callable[[Connection], T | None]) -> T | None:
    """What ``look`` finds in the server's cell, which is asked again and again; None: nothing in the time for which an
    answer may be waited for."""
    end, pause = time.monotonic() + backend.options.answer_seconds, _LOOK
    while True:
        with server.cell.read() as conn:
            found = look(conn)
        if found is not None or time.monotonic() >= end:
            return found
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_LOOK)


def failure(conn: Connection, server: Found, request_id: str) -> str | None:
    """Why an action of the server failed; None: it didn't."""
    action = actions.get(conn, server.uuid, request_id)
    if action is None or action['message'] is None:
        return None
    message: str = action['message']
    return actions.reasons(conn, [action['id']]).get(action['id'], message)
