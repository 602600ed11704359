"""POST /servers/{id}/action: one handler an action."""
from __future__ import annotations

from kilonova.api.policies import server_actions as policies
from kilonova.api.services import delete, power, resize
from kilonova.api.services.lookup import Found
from kilonova.api.wsgi import Call


def start(call: Call) -> None:
    """os-start."""
    power.start(call.backend, call.ctxt, _server(call))


def stop(call: Call) -> None:
    """os-stop."""
    power.stop(call.backend, call.ctxt, _server(call))


def reboot(call: Call) -> None:
    """reboot."""
    power.reboot(call.backend, call.ctxt, _server(call), call.body['reboot']['type'].upper())


def resize_server(call: Call) -> None:
    """resize."""
    body = call.body['resize']
    resize.resize(call.backend, call.ctxt, _server(call), str(body['flavorRef']), body.get('OS-DCF:diskConfig'))


def migrate(call: Call) -> None:
    """migrate; from 2.56 on perhaps to a named host."""
    body = call.body['migrate']
    host = body.get('host') if isinstance(body, dict) and call.version >= 56 else None
    if host is not None:
        call.authorise(policies.MIGRATE_HOST)
    resize.migrate(call.backend, call.ctxt, _server(call), host)


def confirm(call: Call) -> None:
    """confirmResize."""
    resize.confirm(call.backend, call.ctxt, _server(call))


def revert(call: Call) -> None:
    """revertResize."""
    resize.revert(call.backend, call.ctxt, _server(call))


def reset_state(call: Call) -> None:
    """os-resetState."""
    delete.reset_state(call.backend, call.ctxt, _server(call), call.body['os-resetState']['state'])


def _server(call: Call) -> Found:
    return call.server
