"""A move's step on its destination: the domain of the new flavor with the new devices, started if it ran before."""
from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import claims, records
from kilonova.compute.dispatch import Check, order
from kilonova.compute.events import Event
from kilonova.compute.host import Host, image_of, was_active
from kilonova.compute.keys import Work
from kilonova.compute.ops import move
from kilonova.compute.tracker import side_of
from kilonova.compute.undo import Undo
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@order(Compute.finish_resize)
def run(host: Host, work: Work, ctxt: Any, order: objects.FinishResizeOrder) -> dict[str, Any]:
    """The new flavor is the request spec's, the new devices are those that ``prep_resize`` claimed here."""
    instance, migration = order.instance, order.migration
    event, uuid, side = host.event('compute_finish_resize'), instance.uuid, side_of(migration)
    power_on, both = was_active(instance), move.same_host(migration)
    with host.turn(work, uuid), Undo('finish_resize') as undo:
        extra = _become_new(host, instance, migration, order.request_spec)
        devices = host.tracker.devices(uuid, side)
        move.check_devices(host, instance, devices)
        host.notify.emit(ctxt, 'instance.resize_finish.start', instance=instance, moved='resize.finishing')
        undo.add(_failed, host, work, ctxt, instance, event, undo)
        undo.add(host.driver.cleanup_move_dest, instance, both)
        host.driver.finish_migration(ctxt, instance, image_of(instance, order.image), devices, power_on,
                                     order.disk_info)
        work.check()
        power_state = host.driver.get_info(instance)
        with host.tracker.writing(ctxt):
            plan = host.tracker.plan_allocate(uuid, side)
            # Less work under way.
            claims.tell(host, work, ctxt, uuid, plan, transition='resize.finishing', usage=host.tracker.usage(plan),
                        expect={'host': host.name}, extra=extra, event=event.success(),
                        values={**instance.flavor_columns(), 'power_state': power_state})
    return {'power_state': power_state}


def _become_new(host: Host, instance: objects.Instance, migration: objects.Migration,
                request_spec: objects.RequestSpec) -> dict[str, str | None]:
    """Make the object the server after the move; the instance_extra columns that say so."""
    new, old = request_spec.flavor, move.old_flavor(instance)
    move.learn(host, instance, migration, new)
    instance.set_flavor(new)
    instance.old_flavor, instance.new_flavor = old, new
    instance.pci_requests = request_spec.pci_requests if 'pci_requests' in request_spec else None
    instance.numa_topology = host.tracker.topology(instance.uuid, side_of(migration))
    move.check_place(instance, request_spec.numa_topology if 'numa_topology' in request_spec else None)
    return instance.extra_values({'flavor', 'pci_requests', 'numa_topology'})


def _failed(host: Host, work: Work, ctxt: Any, instance: objects.Instance, event: Event, undo: Undo) -> None:
    host.notify.emit(ctxt, 'instance.resize.error', instance=instance, fault=undo.error)
    # A service that was silent is asked again under the same key.
    undone = None if isinstance(undo.error, errors.Unanswered) else claims.why(undo.error)
    claims.tell(host, work, ctxt, instance.uuid, undo=True, event=event.failure(undo.error), undone=undone)


@order(Compute.undo_finish_resize, checks=Check.UNDO, forward=True)
def undo(host: Host, work: Work, ctxt: Any, instance: objects.Instance,
         migration: objects.Migration) -> dict[str, Any]:
    """The guest and the copy of its disks go, the columns say the old flavor. The claim is ``undo_prep_resize``'s."""
    both = move.same_host(migration)
    with host.turn(work, instance.uuid):
        move.learn(host, instance, migration)
        if both or not host.tracker.sides(instance.uuid) - {side_of(migration)}:
            host.driver.cleanup_move_dest(instance, both)
        fresh = records.instance(ctxt, instance.uuid)
        context = move.context_of(fresh, migration) if fresh is not None else None
        if fresh is None or context is None or fresh.old_flavor is None:
            return {}
        extra = fresh.go_back(context)
        claims.tell(host, work, ctxt, instance.uuid, undo=True, values=fresh.flavor_columns(), extra=extra,
                    expect={'instance_type_id': [migration.new_instance_type_id]})
    return {}
