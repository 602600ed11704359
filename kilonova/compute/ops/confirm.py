"""Confirm's part of the source: what was kept of the server goes, its old devices are free. Only forward."""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.compute import claims
from kilonova.compute.dispatch import order
from kilonova.compute.host import Host
from kilonova.compute.keys import Work
from kilonova.compute.ops import move
from kilonova.rpc.compute import Compute


@order(Compute.confirm_resize, forward=True)
def run(host: Host, work: Work, ctxt: Any, instance: objects.Instance,
        migration: objects.Migration) -> dict[str, Any]:
    """The server's end state is the flow's, and so is the notification of it; on one host the guest stays untouched."""
    event, both = host.event('compute_confirm_resize'), move.same_host(migration)
    with host.turn(work, instance.uuid):
        host.notify.emit(ctxt, 'instance.resize_confirm.start', instance=instance)
        move.learn(host, instance, migration, instance.flavor)
        if both and move.context_of(instance, migration) is None:
            # Confirmed before: without the context nobody could tell the old things from the new.
            host.driver.confirm_migration(instance, both)
            return {}
        host.driver.confirm_migration(instance, both)
        claims.give_back(host, work, ctxt, instance.uuid, move.of_source(migration), event=event.success())
    return {}
