"""Soft delete and restore: the guest goes off and keeps all it has; it comes back from that."""
from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import claims
from kilonova.compute.dispatch import order
from kilonova.compute.events import readable
from kilonova.compute.host import Host, image_of
from kilonova.compute.keys import Work
from kilonova.compute.ops import move
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@order(Compute.soft_delete_instance, forward=True)
def run(host: Host, work: Work, ctxt: Any, instance: objects.Instance) -> dict[str, Any]:
    """Power off and say so. Only forward: a failure is tried again, as with a delete."""
    event = host.event('compute_soft_delete_instance')
    with host.turn(work, instance.uuid):
        host.notify.emit(ctxt, 'instance.soft_delete.start', instance=instance)
        host.driver.power_off(instance, *host.shutdown_wait(instance))
        power_state = host.driver.get_info(instance)
        claims.tell(host, work, ctxt, instance.uuid, end=True, transition='soft_delete.done',
                    expect={'host': host.name}, values={'power_state': power_state}, event=event.success())
    host.notify.emit(ctxt, 'instance.soft_delete.end', instance=instance, moved='soft_delete.done',
                     values={'power_state': power_state})
    return {'power_state': power_state}


@order(Compute.restore_instance)
def restore(host: Host, work: Work, ctxt: Any, instance: objects.Instance) -> dict[str, Any]:
    """Start the guest with the devices that it kept. The save ends the operation whether that went well or not."""
    event = host.event('compute_restore_instance')
    with host.turn(work, instance.uuid):
        host.notify.emit(ctxt, 'instance.restore.start', instance=instance)
        failed = _power_on(host, ctxt, instance)
        power_state = host.driver.get_info(instance)
        values: dict[str, Any] = {'power_state': power_state}
        fields: dict[str, Any] = {'transition': 'restore.done', 'event': event.success(),
                                  'values': {**values, 'deleted_at': None}}
        if failed is not None:
            fields = {'transition': 'restore.failed', 'event': event.failure(failed), 'message': 'Error',
                      'fault': claims.fault(host, failed), 'values': values}
        claims.tell(host, work, ctxt, instance.uuid, end=True, expect={'host': host.name}, **fields)
    if failed is None:
        host.notify.emit(ctxt, 'instance.restore.end', instance=instance, moved='restore.done', values=fields['values'])
    return {'power_state': power_state, 'error': None if failed is None else readable(failed)}


def _power_on(host: Host, ctxt: Any, instance: objects.Instance) -> Exception | None:
    """The failure, which is an end state to be saved like success is."""
    try:
        devices = host.tracker.devices(instance.uuid)
        move.check_devices(host, instance, devices)
        host.driver.power_on(ctxt, instance, image_of(instance), devices)
    except errors.KilonovaError as error:
        LOG.error('restore failed: %s', error, instance_uuid=instance.uuid)
        return error
    except Exception as error:
        LOG.exception('restore failed', instance_uuid=instance.uuid)
        return error
    return None
