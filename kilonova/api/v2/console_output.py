"""The server action os-getConsoleOutput: read the end of a server's console log."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import ask_host
from kilonova.api.wsgi import Call, server_action

READ = f'{PREFIX}os-console-output'
RULES = (rule(READ, MEMBER, 'Read the console log of a server.'),)

# The number of lines. -1 means the whole console log.
_LENGTH = {
    'type': ['integer', 'string', 'null'],
    'pattern': '^-?[0-9]+$',
    'minimum': -1,
    'maximum': t.MAX_INT,
    'maxLength': 20,
}
BODY = Obj(Prop('os-getConsoleOutput', Obj(Prop('length', _LENGTH)), required=True))


def get(call: Call) -> dict[str, Any]:
    """Return the last ``length`` lines of the server's console log.

    If ``length`` is missing, null or negative, return all lines that the host keeps.
    """
    length = call.body['os-getConsoleOutput'].get('length')
    lines = None if length is None or int(length) < 0 else int(length)
    return {'output': ask_host.ask(call.backend, call.ctxt, call.server, 'get_console_output', tail_length=lines)}


ROUTES = (server_action('os-getConsoleOutput', get, READ, BODY, status=200),)
