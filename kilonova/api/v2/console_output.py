"""os-getConsoleOutput: the end of a server's console log."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import ask_host
from kilonova.api.wsgi import Call


def get(call: Call) -> Any:
    """The last ``length`` lines; all that the host keeps for None and -1."""
    server: Any = call.server
    length = call.body['os-getConsoleOutput'].get('length')
    lines = None if length is None or int(length) < 0 else int(length)
    return {'output': ask_host.ask(call.backend, call.ctxt, server, 'get_console_output', tail_length=lines)}
