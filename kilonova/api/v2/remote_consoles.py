"""Consoles of servers: create a URL with a token, and look a token up for a console proxy.

A console proxy accepts each token once.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from kilonova import states
from kilonova.api.rules import ADMIN, MEMBER, PREFIX, rule
from kilonova.api.schemas.base import Obj, Prop, Window, Windows
from kilonova.api.services import ask_host
from kilonova.api.services.scatter_gather import first
from kilonova.api.services.server_operations import WORK, check_ready
from kilonova.api.wsgi import ANYBODY, SERVER, Call, Route, server_action
from kilonova.db.queries import console_tokens
from kilonova.errors import ConsoleTypeInvalid, ConsoleTypeUnavailable, InstanceInvalidState, KilonovaError, NotFound
from kilonova.objects import ConsoleOffer

# --- policy rules ----------------------------------------------------------------------------------------------------
OPEN, SHOW = f'{PREFIX}os-remote-consoles', f'{PREFIX}os-console-auth-tokens'
RULES = (
    rule(OPEN, MEMBER, 'Open a console of a server.'),
    rule(SHOW, ADMIN, 'Show the server, host and port to which a console token gives access.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------

# TYPES: for each protocol, the console types that hosts may offer.
# UNSERVED: for each protocol, Nova's other console types. No host of Kilonova offers them.
TYPES = {'vnc': ('novnc',), 'spice': ('spice-html5', 'spice-direct'), 'serial': ('serial',)}
UNSERVED = {'vnc': ('xvpvnc',), 'rdp': ('rdp-html5',), 'mks': ('webmks',)}
_OLD, _MKS, _SHOWN, _DIRECT = 5, 8, 31, 99


def _one_of(*words: str) -> dict[str, Any]:
    return {'type': 'string', 'enum': list(words)}


def _body(protocols: tuple[str, ...], kinds: tuple[str, ...]) -> Obj:
    return Obj(
        Prop(
            'remote_console',
            Obj(Prop('protocol', _one_of(*protocols), required=True), Prop('type', _one_of(*kinds), required=True)),
            required=True,
        )
    )


_PROTOCOLS, _KINDS = ('vnc', 'spice', 'rdp', 'serial'), ('novnc', 'xvpvnc', 'rdp-html5', 'spice-html5', 'serial')
BODY = Windows(
    Window(_body(_PROTOCOLS, _KINDS), until=_MKS - 1),
    Window(_body((*_PROTOCOLS, 'mks'), (*_KINDS, 'webmks')), since=_MKS, until=_DIRECT - 1),
    Window(_body((*_PROTOCOLS, 'mks'), (*_KINDS, 'webmks', 'spice-direct')), since=_DIRECT),
)


def _old_body(key: str, *kinds: str) -> Obj:
    return Obj(Prop(key, Obj(Prop('type', _one_of(*kinds), required=True)), required=True))


# --- functions that the handlers call, and their errors --------------------------------------------------------------
class TokenNotFound(NotFound):
    """Error 404: no cell has this console token, or it has expired."""

    msg_fmt = 'Token not found'


class TokenNotShown(KilonovaError):
    """Error 401: ``GET /os-console-auth-tokens/{console_token}`` is requested with a microversion below 2.31.

    Before 2.31 Nova shows only the tokens of RDP consoles. Kilonova has no RDP consoles, so it refuses every token.
    """

    msg_fmt = 'The requested console type details are not accessible'
    code = 401


def _open(call: Call, protocol: str, kind: str) -> str:
    """Create a console token and return the console's URL. ``kind`` is a console type, such as 'novnc'.

    Raises:
        ConsoleTypeInvalid: The protocol has no such console type (400).
        ConsoleTypeUnavailable: The console type is known, but no host has it (400).
        InstanceNotReady: The server has no host (409).
        InstanceInvalidState: The server is being deleted or migrated (409).
    """
    if kind in UNSERVED.get(protocol, ()):
        raise ConsoleTypeUnavailable(console_type=kind)
    if kind not in TYPES.get(protocol, ()):
        raise ConsoleTypeInvalid(console_type=kind)
    server = call.server
    check_ready(server)
    task = server.row['task_state']
    if task in states.NO_CONSOLE:
        raise InstanceInvalidState(
            method=f'get_{protocol}_console', instance_uuid=server.uuid, attr='task_state', state=task
        )
    offer: ConsoleOffer = ask_host.ask(call.backend, call.ctxt, server, f'get_{protocol}_console', console_type=kind)
    token = console_tokens.add(
        server.cell,
        {
            'console_type': offer.console_type,
            'host': offer.host,
            'port': offer.port,
            'tls_port': offer.tls_port,
            'access_url_base': offer.access_url_base,
        },
        compute_host=server.row['host'],
        instance_uuid=server.uuid,
        lifetime=call.backend.options.console_seconds,
    )
    return address(offer.access_url_base, kind, token)


def address(base: str, kind: str, token: str) -> str:
    """Return the console's URL for the user: ``base`` with the token.

    The URL of noVNC has the token in the parameter ``path``, because noVNC passes the value of ``path`` to the proxy
    unchanged.
    """
    query = {'path': f'?token={token}'} if kind == 'novnc' else {'token': token}
    return f'{base}{"&" if "?" in base else "?"}{urlencode(query)}'


def _find(call: Call) -> dict[str, Any]:
    """Return the row of the console token in the path. Runs one SQL statement per cell.

    Raises TokenNotFound (404) if no cell has the token, and Unanswered (503) if it may be in a cell that does not
    answer.
    """
    token = call.path['console_token']
    return first(call.backend.compute_cells(), lambda conn: console_tokens.find(conn, token), TokenNotFound())


# --- handlers of requests --------------------------------------------------------------------------------------------
def create(call: Call) -> dict[str, Any]:
    """Open a console (``POST /servers/{server_id}/remote-consoles``, from microversion 2.6 on)."""
    wanted = call.body['remote_console']
    protocol, kind = wanted['protocol'], wanted['type']
    return {'remote_console': {'protocol': protocol, 'type': kind, 'url': _open(call, protocol, kind)}}


def _old(call: Call, key: str, protocol: str) -> dict[str, Any]:
    kind = call.body[key]['type']
    return {'console': {'type': kind, 'url': _open(call, protocol, kind)}}


def vnc(call: Call) -> dict[str, Any]:
    """Accept the action os-getVNCConsole (until microversion 2.5): open a VNC console."""
    return _old(call, 'os-getVNCConsole', 'vnc')


def spice(call: Call) -> dict[str, Any]:
    """Accept the action os-getSPICEConsole (until microversion 2.5): open a SPICE console."""
    return _old(call, 'os-getSPICEConsole', 'spice')


def serial(call: Call) -> dict[str, Any]:
    """Accept the action os-getSerialConsole (until microversion 2.5): open a serial console."""
    return _old(call, 'os-getSerialConsole', 'serial')


def rdp(call: Call) -> dict[str, Any]:
    """Refuse the action os-getRDPConsole (until microversion 2.5) with 400: supported hypervisors have no RDP."""
    return _old(call, 'os-getRDPConsole', 'rdp')


def show(call: Call) -> dict[str, Any]:
    """Return the server and address of a console token (``GET /os-console-auth-tokens/{console_token}``).

    Raises TokenNotFound (404) if the token does not exist, TokenNotShown (401) if the microversion is older than 2.31,
    and Unanswered (503) if the token may be in a cell that does not answer.
    """
    found = _find(call)
    if call.version < _SHOWN:
        raise TokenNotShown
    tls = ('tls_port',) if call.version >= _DIRECT else ()
    return {'console': {name: found[name] for name in ('instance_uuid', 'host', 'port', 'internal_access_path', *tls)}}


ROUTES = (
    server_action('os-getVNCConsole', vnc, OPEN, _old_body('os-getVNCConsole', 'novnc', 'xvpvnc'), 200, until=_OLD),
    server_action('os-getSPICEConsole', spice, OPEN, _old_body('os-getSPICEConsole', 'spice-html5'), 200, until=_OLD),
    server_action('os-getSerialConsole', serial, OPEN, _old_body('os-getSerialConsole', 'serial'), 200, until=_OLD),
    Route(
        'POST',
        f'{SERVER}/action',
        rdp,
        ANYBODY,
        body=_old_body('os-getRDPConsole', 'rdp-html5'),
        status=400,
        action='os-getRDPConsole',
        until=_OLD,
    ),
    Route('POST', f'{SERVER}/remote-consoles', create, OPEN, body=BODY, server=WORK, since=_OLD + 1),
    Route('GET', '/os-console-auth-tokens/{console_token}', show, SHOW),
)
