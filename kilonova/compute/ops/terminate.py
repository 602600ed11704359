"""Delete's part of a host: guest and files go, whatever the server holds here is free. Only forward."""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.compute import claims
from kilonova.compute.host import Host
from kilonova.compute.keys import Work


def run(host: Host, work: Work, ctxt: Any, instance: objects.Instance) -> dict[str, Any]:
    """Both sides of an unconfirmed move go as well, if they are here. The server's end state is the flow's."""
    event = host.event('compute_terminate_instance')
    with host.locks.hold(instance.uuid):
        host.driver.destroy(instance)
        # An undo's save: both hosts of a move get this order under one key, and neither may pass for the other's.
        claims.give_back(host, work, ctxt, instance.uuid, undo=True, event=event.success())
    return {}
