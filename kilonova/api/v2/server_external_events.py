"""Events of servers that other services tell. Whoever tells one learns what became of it, event by
event.

Where the cloud has a network service, ``network-vif-plugged`` and ``network-vif-unplugged`` go to the server's host,
which may wait for them, and to both hosts of a move that hasn't ended; for ``network-changed`` and
``network-vif-deleted`` a conductor looks at the server's ports and writes its info cache anew. For ``volume-extended``
one looks at a volume that the server has, and its guest learns the new size; for ``volume-reimaged`` a rebuild that
waits for the volume looks at it now. ``power-update`` says
that somebody switched a server on or off behind our back: the server is started or stopped like by its user, so that
its state, its host and its story agree again.
``accelerator-request-bound`` goes to the server's host, if its flavor asks for accelerators. With all others nothing
can be done: they are refused.
"""
from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kilonova import states
from kilonova.api.rules import PREFIX, SERVICE, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import accelerators, accept, rebuild
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.api.wsgi import Call, Reply, Route
from kilonova.context import RequestContext
from kilonova.db.queries import instance_mappings, instances, migrations
from kilonova.db.queries.operations import Operation
from kilonova.errors import Conflict, NotFound, Unanswered
from kilonova.objects import Instance, InstanceExternalEvent

LOG = logging.getLogger(__name__)


# --- rules -----------------------------------------------------------------------------------------------------------
CREATE = f'{PREFIX}os-server-external-events:create'
RULES = (rule(CREATE, SERVICE, 'Tell events of servers, as the network and volume services do.'),)


# --- what may be said ------------------------------------------------------------------------------------------------
_FIRST = ('network-changed', 'network-vif-plugged', 'network-vif-unplugged', 'network-vif-deleted')
_VOLUMES = (*_FIRST, 'volume-extended')
_POWER = (*_VOLUMES, 'power-update')
_ACCELERATORS = (*_POWER, 'accelerator-request-bound')
_REIMAGED = (*_ACCELERATORS, 'volume-reimaged')

BODY = Obj(Prop('events', {'type': 'array', 'minItems': 1, 'maxItems': 1000, 'items': Obj(
    Prop('name', t.one_of(*_FIRST), required=True, until=50),
    Prop('name', t.one_of(*_VOLUMES), required=True, since=51, until=75),
    Prop('name', t.one_of(*_POWER), required=True, since=76, until=81),
    Prop('name', t.one_of(*_ACCELERATORS), required=True, since=82, until=92),
    Prop('name', t.one_of(*_REIMAGED), required=True, since=93),
    Prop('server_uuid', t.UUID, required=True),
    Prop('status', t.one_of('failed', 'completed', 'in-progress')),
    Prop('tag', {'type': 'string', 'maxLength': 255}))}, required=True))


# --- use cases -------------------------------------------------------------------------------------------------------
POWER_UPDATE, ACCELERATOR = 'power-update', 'accelerator-request-bound'
GROWN, REIMAGED = 'volume-extended', 'volume-reimaged'
# The tag is the port's id.
PLUGGING = frozenset(('network-vif-plugged', 'network-vif-unplugged'))
# Something of a server's ports is no longer as its info cache says.
CHANGES = frozenset(('network-changed', 'network-vif-deleted'))
# tag → (kind of the operation, its event, the vm state that it leads out of)
POWER = {'POWER_ON': ('start', 'start.start', states.VmState.STOPPED, {}),
         'POWER_OFF': ('stop', 'stop.start', states.VmState.ACTIVE, {'clean_shutdown': True})}
# Events that mean nothing without what they are about: a volume, an accelerator request.
TAGGED = frozenset((GROWN, REIMAGED, ACCELERATOR))
# The last one: it has no host, or nothing that the event is about.
ACCEPTED, BAD_TAG, UNKNOWN, NOTHING_THERE = 200, 400, 404, 422


def _dispatch(backend: Backend, ctxt: RequestContext, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each event with ``status`` and the ``code`` of what became of it: accepted, bad tag, unknown server, or nothing
    there that it could be about."""
    servers = _find(backend, {event['server_uuid'] for event in events})
    moves = _moves(backend, {event['server_uuid'] for event in events
                             if event['name'] == ACCELERATOR and event['server_uuid'] not in servers})
    ends = _ends(backend, servers, {event['server_uuid'] for event in events if event['name'] in PLUGGING})
    answers = []
    changed: dict[str, Found] = {}
    of_host: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for asked in events:
        event = {'status': 'completed', **asked}
        uuid = event['server_uuid']
        code = _code(backend, ctxt, event, servers, moves)
        server = servers.get(uuid)
        if code == ACCEPTED and uuid in moves:
            of_host[moves[uuid] or ''].append(event)
        elif code == ACCEPTED and server is not None:
            if event['name'] == POWER_UPDATE:
                _switch(backend, ctxt, server, event['tag'])
            elif event['name'] in CHANGES:
                changed[uuid] = server
            elif event['name'] == GROWN:
                accept.run_beside(backend, ctxt, server, 'volume_extended', {'volume_id': event['tag']})
            elif event['name'] == REIMAGED:
                rebuild.look_again(backend, ctxt, server)
            else:
                for host in sorted({server.row['host'], *ends.get(uuid, ())}):
                    of_host[host].append(event)
        answers.append({**event, 'code': code, **({} if code == ACCEPTED else {'status': 'failed'})})
    for host, told in of_host.items():
        _hand_on(backend, ctxt, host, told, servers)
    for server in changed.values():
        accept.run_beside(backend, ctxt, server, 'network_changed', {})
    return answers


def _hand_on(backend: Backend, ctxt: RequestContext, host: str, events: Sequence[dict[str, Any]],
             servers: dict[str, Found | None]) -> None:
    """To a host, in one message. One that gets lost is no loss: who waits looks for itself now and then."""
    if backend.compute is None:
        return
    about = {event['server_uuid']: server for event in events if (server := servers.get(event['server_uuid']))}
    try:
        backend.compute.external_instance_event(
            ctxt, server=host, instances=[_instance(ctxt, server) for server in about.values()],
            events=[InstanceExternalEvent(instance_uuid=event['server_uuid'], name=event['name'],
                                          status=event['status'], tag=event['tag'], data={}) for event in events])
    except Unanswered as error:
        LOG.warning('Events of %s did not get to host %s: %s', ', '.join(about), host, error)


def _instance(ctxt: RequestContext, server: Found) -> Instance:
    row, extra = instances.split(server.row)
    return Instance.from_row(ctxt, row, extra)


def _find(backend: Backend, uuids: Iterable[str]) -> dict[str, Found | None]:
    """uuid → server, None for one that no cell has yet. One statement of the API database and one a cell."""
    with backend.api_db.read() as conn:
        cells = instance_mappings.cells_of(conn, uuids)
    found: dict[str, Found | None] = {uuid: None for uuid, cell_id in cells.items() if cell_id is None}
    of_cell = defaultdict(list)
    for uuid, cell_id in cells.items():
        if cell_id is not None:
            of_cell[cell_id].append(uuid)
    for cell_id, members in of_cell.items():
        cell = backend.cells.by_id(cell_id)
        with cell.read() as conn:
            rows = instances.by_uuids(conn, members)
        found.update({uuid: Found(uuid, cell, row) for uuid, row in rows.items()})
    return found


def _moves(backend: Backend, uuids: set[str]) -> dict[str, str | None]:
    """{migration: where it goes, None: that isn't known yet} of these uuids: accelerators at the destination of a move
    are bound to it."""
    found: dict[str, str | None] = {}
    for cell in backend.compute_cells() if uuids else ():
        with cell.read() as conn:
            found.update({row['uuid']: row['dest_compute'] for row in migrations.by_uuids(conn, uuids)})
    return found


def _ends(backend: Backend, servers: Mapping[str, Found | None], uuids: set[str]) -> dict[str, set[str]]:
    """{server: hosts that it moves from and to} of those of these that move: a guest may wait for its ports on a host
    that isn't its server's yet, or is no more. One statement a cell."""
    of_cell = defaultdict(list)
    for uuid in uuids if backend.networks is not None else ():
        if (server := servers.get(uuid)) is not None:
            of_cell[server.cell].append(uuid)
    found: dict[str, set[str]] = defaultdict(set)
    for cell, members in of_cell.items():
        with cell.read() as conn:
            for row in migrations.unended_of_instances(conn, members):
                found[row['instance_uuid']].update(filter(None, (row['source_compute'], row['dest_compute'])))
    return found


def _code(backend: Backend, ctxt: RequestContext, event: dict[str, Any], servers: dict[str, Found | None],
          moves: dict[str, str | None]) -> int:
    uuid, name, tag = event['server_uuid'], event['name'], event.get('tag')
    if uuid not in servers and uuid not in moves:
        return UNKNOWN
    if (name == POWER_UPDATE and tag not in POWER) or (name in TAGGED and not tag):
        return BAD_TAG
    if uuid in moves:
        return ACCEPTED if moves[uuid] else NOTHING_THERE
    server = servers[uuid]
    if name in CHANGES and backend.networks is not None and server is not None and server.row['extra_network_info']:
        # Also of a server that has no host now: its ports keep their addresses.
        return ACCEPTED
    if server is None or not server.row['host']:
        return NOTHING_THERE
    if name in PLUGGING and backend.networks is not None:
        return ACCEPTED if tag else BAD_TAG
    if name in (GROWN, REIMAGED) and backend.volumes is not None and any(
            row['volume_id'] == tag for row in server.row['extra_volumes']):
        return ACCEPTED
    if name == POWER_UPDATE or (name == ACCELERATOR and accelerators.may_be_bound(ctxt, server)):
        return ACCEPTED
    return NOTHING_THERE


def _switch(backend: Backend, ctxt: RequestContext, server: Found, tag: str) -> None:
    """Start or stop a server whose state fits; one that is at something, or is so already, isn't touched.

    The power has changed already, whoever locked the server: a lock keeps nothing from being true.
    """
    kind, event, vm_state, args = POWER[tag]
    if server.row['vm_state'] != vm_state:
        LOG.info('power-update %s of %s: it is %s already, or at something else', tag, server.uuid,
                 server.row['vm_state'])
        return
    row = Operation.new(ctxt, kind, server.uuid, args)
    try:
        accept.accept(ctxt, server, event, row, kind)
    except (Conflict, NotFound) as error:
        LOG.info('power-update %s of %s has nothing to do: %s', tag, server.uuid, error)
        return
    backend.conductor.run_operation(ctxt, operation=row.uuid)


# --- handlers --------------------------------------------------------------------------------------------------------
def create(call: Call) -> Any:
    """POST /os-server-external-events: 207 when one of them is refused."""
    events = _dispatch(call.backend, call.ctxt, call.body['events'])
    return Reply({'events': events}, status=200 if all(event['code'] == 200 for event in events) else 207)


# --- routes ----------------------------------------------------------------------------------------------------------
ROUTES = (Route('POST', '/os-server-external-events', create, CREATE, body=BODY),)
