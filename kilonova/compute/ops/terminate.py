"""Delete's part of a host: guest and files go, whatever the server holds here is free. Only forward."""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.compute import claims
from kilonova.compute.dispatch import Check, order
from kilonova.compute.host import Host
from kilonova.compute.keys import Work
from kilonova.rpc.compute import Compute


# A server that is being deleted never comes back, so what is still here may go; its save looks.
@order(Compute.terminate_instance, checks=Check.WRITE, forward=True)
def run(host: Host, work: Work, ctxt: Any, instance: objects.Instance) -> dict[str, Any]:
    """Both sides of an unconfirmed move go as well, if they are here. The server's end state is the flow's,
    and so are the notifications of its begin and end."""
    event = host.event('compute_terminate_instance')
    at_home = instance.host == host.name
    with host.turn(work, instance.uuid):
        if at_home:
            host.notify.emit(ctxt, 'instance.shutdown.start', instance=instance)
        host.driver.destroy(instance)
        if at_home:
            host.notify.emit(ctxt, 'instance.shutdown.end', instance=instance)
        # An undo's save: both hosts of a move get this order under one key, and neither may pass for the other's.
        claims.give_back(host, work, ctxt, instance.uuid, undo=True, event=event.success())
    return {}
