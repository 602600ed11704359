"""Events of servers that other services report (``POST /os-server-external-events``).

The response contains the result of each event:

- ``network-vif-plugged`` and ``network-vif-unplugged`` are sent to the server's host, which may wait for such an event.
  During a move the event is sent to source and destination. Without a network service the event is refused.
- ``network-changed`` and ``network-vif-deleted`` make a conductor read the server's ports and rewrite its info cache.
- ``volume-extended`` makes a conductor read a volume of the server and report its new size to the guest.
- ``volume-reimaged`` continues a rebuild that waits until the volume service has written an image to the volume.
- ``power-update`` reports that the server was switched on or off without Kilonova. The server is then started or
  stopped as by a request of its user, so that Kilonova stores its real state.
- ``accelerator-request-bound`` is sent to the server's host, if the server has accelerators by its flavor or its ports.

All other events are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from kilonova import states
from kilonova.api.rules import PREFIX, SERVICE, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import accelerators, rebuild, server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.api.wsgi import Call, Reply, Route
from kilonova.context import RequestContext
from kilonova.db.arguments.attachments import VolumeArguments
from kilonova.db.queries import instance_mappings, instances, migrations
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Conflict, NotFound, Unanswered
from kilonova.objects import Instance, InstanceExternalEvent

LOG = logging.getLogger(__name__)


# --- policy rules ----------------------------------------------------------------------------------------------------
CREATE = f'{PREFIX}os-server-external-events:create'
RULES = (rule(CREATE, SERVICE, 'Report events of servers, as the network and volume services do.'),)


# --- request schemas -------------------------------------------------------------------------------------------------
_FIRST = ('network-changed', 'network-vif-plugged', 'network-vif-unplugged', 'network-vif-deleted')
_VOLUMES = (*_FIRST, 'volume-extended')
_POWER = (*_VOLUMES, 'power-update')
_ACCELERATORS = (*_POWER, 'accelerator-request-bound')
_REIMAGED = (*_ACCELERATORS, 'volume-reimaged')

BODY = Obj(
    Prop(
        'events',
        {
            'type': 'array',
            'minItems': 1,
            'maxItems': 1000,
            'items': Obj(
                Prop('name', t.one_of(*_FIRST), required=True, until=50),
                Prop('name', t.one_of(*_VOLUMES), required=True, since=51, until=75),
                Prop('name', t.one_of(*_POWER), required=True, since=76, until=81),
                Prop('name', t.one_of(*_ACCELERATORS), required=True, since=82, until=92),
                Prop('name', t.one_of(*_REIMAGED), required=True, since=93),
                Prop('server_uuid', t.UUID, required=True),
                Prop('status', t.one_of('failed', 'completed', 'in-progress')),
                Prop('tag', {'type': 'string', 'maxLength': 255}),
            ),
        },
        required=True,
    )
)


# --- functions that the handlers call, and their errors --------------------------------------------------------------
POWER_UPDATE, ACCELERATOR = 'power-update', 'accelerator-request-bound'
GROWN, REIMAGED = 'volume-extended', 'volume-reimaged'
# Events whose tag is the id of a port.
PLUGGING = frozenset(('network-vif-plugged', 'network-vif-unplugged'))
# Events which report that the server's info cache is outdated.
CHANGES = frozenset(('network-changed', 'network-vif-deleted'))
# POWER is a dict from tag of the event power-update to (kind of operation, state change, vm_state).
# An operation of this kind is started if the server has the vm_state. The operation begins with the state change.
POWER = {
    'POWER_ON': ('start', 'start.start', states.VmState.STOPPED),
    'POWER_OFF': ('stop', 'stop.start', states.VmState.ACTIVE),
}
# Events that need a tag: the id of a volume or of an accelerator request.
TAGGED = frozenset((GROWN, REIMAGED, ACCELERATOR))
# Codes of the response. NOTHING_THERE: the server has no host, or does not have the object that the event names.
ACCEPTED, BAD_TAG, UNKNOWN, NOTHING_THERE = 200, 400, 404, 422


def _dispatch(backend: Backend, ctxt: RequestContext, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Handle each event and return it with the members ``status`` and ``code``.

    The code is 200 (accepted), 400 (the tag is missing or, for power-update, unknown), 404 (unknown server) or 422.
    Code 422 means that the server has no host, or that the volume or accelerator in the tag does not belong to the
    server.
    """
    servers = _find(backend, {event['server_uuid'] for event in events})
    moves = _moves(
        backend,
        {
            event['server_uuid']
            for event in events
            if event['name'] == ACCELERATOR and event['server_uuid'] not in servers
        },
    )
    ends = _ends(backend, servers, {event['server_uuid'] for event in events if event['name'] in PLUGGING})
    answers = []
    changed: dict[str, ServerRef] = {}
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
                server_operations.run_beside(
                    backend, ctxt, server, 'volume_extended', VolumeArguments(volume_id=event['tag'])
                )
            elif event['name'] == REIMAGED:
                rebuild.look_again(backend, ctxt, server)
            else:
                for host in sorted({server.row['host'], *ends.get(uuid, ())}):
                    of_host[host].append(event)
        answers.append({**event, 'code': code, **({} if code == ACCEPTED else {'status': 'failed'})})
    for host, told in of_host.items():
        _hand_on(backend, ctxt, host, told, servers)
    for server in changed.values():
        server_operations.run_beside(backend, ctxt, server, 'network_changed')
    return answers


def _hand_on(
    backend: Backend,
    ctxt: RequestContext,
    host: str,
    events: Sequence[dict[str, Any]],
    servers: dict[str, ServerRef | None],
) -> None:
    """Send events to the compute service of ``host`` in one RPC message.

    ``servers`` is a dict from uuid to server (None if the server is not in a cell yet). If the message can't be sent,
    only log a warning: a compute service that waits for an event also queries the port in Neutron, or the accelerator
    request in Cyborg, again and again.
    """
    if backend.compute is None:
        return
    about = {event['server_uuid']: server for event in events if (server := servers.get(event['server_uuid']))}
    try:
        backend.compute.external_instance_event(
            ctxt,
            server=host,
            instances=[_instance(ctxt, server) for server in about.values()],
            events=[
                InstanceExternalEvent(
                    instance_uuid=event['server_uuid'],
                    name=event['name'],
                    status=event['status'],
                    tag=event['tag'],
                    data={},
                )
                for event in events
            ],
        )
    except Unanswered as error:
        LOG.warning(
            'Could not send events of servers %s to host %s; the host will find the changes by polling: %s',
            ', '.join(about),
            host,
            error,
        )


def _instance(ctxt: RequestContext, server: ServerRef) -> Instance:
    row, extra = instances.split(server.row)
    return Instance.from_row(ctxt, row, extra)


def _find(backend: Backend, uuids: Iterable[str]) -> dict[str, ServerRef | None]:
    """Return a dict from uuid to server. The value is None for a server that is not in a cell yet.

    Unknown uuids are left out. Runs one SQL statement in the API database and one per cell.
    """
    with backend.api_db.read() as conn:
        cells = instance_mappings.cells_of(conn, uuids)
    found: dict[str, ServerRef | None] = {uuid: None for uuid, cell_id in cells.items() if cell_id is None}
    of_cell = defaultdict(list)
    for uuid, cell_id in cells.items():
        if cell_id is not None:
            of_cell[cell_id].append(uuid)
    for cell_id, members in of_cell.items():
        cell = backend.cells.by_id(cell_id)
        with cell.read() as conn:
            rows = instances.by_uuids(conn, members)
        found.update({uuid: ServerRef(uuid, cell, row) for uuid, row in rows.items()})
    return found


def _moves(backend: Backend, uuids: set[str]) -> dict[str, str | None]:
    """Find the migrations among ``uuids``, and return a dict from the uuid of a migration to its destination host.

    ``uuids`` are values of server_uuid in events that are no uuids of servers. Cyborg binds the accelerators at the
    destination of a move to the migration, and sends the migration's uuid as server_uuid. Uuids that are no migrations
    are left out. The destination host is None if it is not known yet.
    """
    found: dict[str, str | None] = {}
    for cell in backend.compute_cells() if uuids else ():
        with cell.read() as conn:
            found.update({row['uuid']: row['dest_compute'] for row in migrations.by_uuids(conn, uuids)})
    return found


def _ends(backend: Backend, servers: Mapping[str, ServerRef | None], uuids: set[str]) -> dict[str, set[str]]:
    """Return a dict from a server's uuid to the source and destination hosts of its unfinished migrations.

    ``uuids`` are the servers of events such as network-vif-plugged, and ``servers`` is a dict from uuid to server.
    These events must be sent to both hosts of a migration, because each of them may wait for an event, but the server's
    row names only one host. Runs one SQL statement per cell, and none without a network service.
    """
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


def _code(
    backend: Backend,
    ctxt: RequestContext,
    event: dict[str, Any],
    servers: dict[str, ServerRef | None],
    moves: dict[str, str | None],
) -> int:
    uuid, name, tag = event['server_uuid'], event['name'], event.get('tag')
    if uuid not in servers and uuid not in moves:
        return UNKNOWN
    if (name == POWER_UPDATE and tag not in POWER) or (name in TAGGED and not tag):
        return BAD_TAG
    if uuid in moves:
        return ACCEPTED if moves[uuid] else NOTHING_THERE
    server = servers[uuid]
    if name in CHANGES and backend.networks is not None and server is not None and server.row['extra_network_info']:
        # Accept the event even if the server has no host (a shelved offloaded server), because its ports exist.
        # A conductor reads the ports from Neutron and updates the info cache, for which no host is needed.
        return ACCEPTED
    if server is None or not server.row['host']:
        return NOTHING_THERE
    if name in PLUGGING and backend.networks is not None:
        return ACCEPTED if tag else BAD_TAG
    if (
        name in (GROWN, REIMAGED)
        and backend.volumes is not None
        and any(row['volume_id'] == tag for row in server.row['extra_volumes'])
    ):
        return ACCEPTED
    if name == POWER_UPDATE or (name == ACCELERATOR and accelerators.may_be_bound(ctxt, server)):
        return ACCEPTED
    return NOTHING_THERE


def _switch(backend: Backend, ctxt: RequestContext, server: ServerRef, tag: str) -> None:
    """Start or stop the server, as the tag POWER_ON or POWER_OFF of the event power-update says.

    The event reports that the machine was switched on or off without Kilonova, so the operation brings the server's
    stored state in line. Therefore the lock of the server is ignored. Do nothing if another operation of the server is
    running, or if the server already has the new state.
    """
    kind, event, vm_state = POWER[tag]
    if server.row['vm_state'] != vm_state:
        LOG.info(
            'Ignoring event power-update %s of server %s: its state is %s',
            tag,
            server.uuid,
            server.row['vm_state'],
            instance_uuid=server.uuid,
        )
        return
    row = OperationRow.new(ctxt, kind, server.uuid)
    try:
        server_operations.accept(ctxt, server, event, row, kind)
    except (Conflict, NotFound) as error:
        LOG.info('Ignoring event power-update %s of server %s: %s', tag, server.uuid, error, instance_uuid=server.uuid)
        return
    backend.conductor.run_operation(ctxt, operation=row.uuid)


# --- handlers of requests --------------------------------------------------------------------------------------------
def create(call: Call) -> Any:
    """Accept events of servers (``POST /os-server-external-events``).

    The response has status 200 if all events are accepted, and 207 if at least one is refused.
    """
    events = _dispatch(call.backend, call.ctxt, call.body['events'])
    return Reply({'events': events}, status=200 if all(event['code'] == 200 for event in events) else 207)


# --- routes of the handlers ------------------------------------------------------------------------------------------
ROUTES = (Route('POST', '/os-server-external-events', create, CREATE, body=BODY),)
