"""Stop, start and reboot: check the key · act · save the end state. Each is a whole operation of one host.

The save ends the operation whether the act went well or not, so the result only tells the conductor what happened.
"""
from __future__ import annotations

from collections.abc import Callable
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
from kilonova.states import PowerState

LOG = logging.getLogger(__name__)

# What notifications call them.
TOLD_AS = {'stop': 'power_off', 'start': 'power_on', 'reboot': 'reboot'}


@order(Compute.stop_instance)
def stop(host: Host, work: Work, ctxt: Any, instance: objects.Instance, clean_shutdown: bool) -> dict[str, Any]:
    """Shut the guest down, or cut its power when it doesn't go in time."""
    def act() -> None:
        timeout, retry = host.shutdown_wait(instance, clean_shutdown)
        host.driver.power_off(instance, timeout, retry)
    return _run(host, work, ctxt, instance, 'stop', act)


@order(Compute.start_instance)
def start(host: Host, work: Work, ctxt: Any, instance: objects.Instance) -> dict[str, Any]:
    """Start the guest from a fresh domain with the devices that it holds."""
    def act() -> None:
        host.driver.power_on(ctxt, instance, image_of(instance), _devices(host, instance))
    return _run(host, work, ctxt, instance, 'start', act)


@order(Compute.reboot_instance)
def reboot(host: Host, work: Work, ctxt: Any, instance: objects.Instance, reboot_type: str) -> dict[str, Any]:
    """``reboot_type`` SOFT or HARD."""
    def act() -> None:
        host.driver.reboot(ctxt, instance, reboot_type, image_of(instance), _devices(host, instance))
    return _run(host, work, ctxt, instance, 'reboot', act)


def _devices(host: Host, instance: objects.Instance) -> list[objects.PciDevice]:
    """What the server holds here: all that its flavor asks for, and all of it is there, or it isn't started."""
    devices = host.tracker.devices(instance.uuid)
    move.check_devices(host, instance, devices)
    return devices


def _run(host: Host, work: Work, ctxt: Any, instance: objects.Instance, verb: str,
         act: Callable[[], None]) -> dict[str, Any]:
    event = host.event(f'compute_{verb}_instance')
    with host.turn(work, instance.uuid):
        host.notify.emit(ctxt, f'instance.{TOLD_AS[verb]}.start', instance=instance)
        failed = _try(act, verb, instance)
        fields: dict[str, Any] = {'transition': f'{verb}.done', 'event': event.success()}
        if failed is not None:
            fields = {'transition': f'{verb}.failed', 'event': event.failure(failed), 'message': 'Error',
                      'fault': claims.fault(host, failed)}
        power_state = host.driver.get_info(instance)
        claims.tell(host, work, ctxt, instance.uuid, end=True, expect={'host': host.name},
                    values={'power_state': power_state}, **fields)
    _notify(host, ctxt, instance, verb, power_state, failed)
    return {'power_state': power_state, 'error': None if failed is None else readable(failed)}


def _notify(host: Host, ctxt: Any, instance: objects.Instance, verb: str, power_state: int,
            failed: Exception | None) -> None:
    """As the field has it: only a reboot tells its failure, and its end too when the guest runs nevertheless."""
    name = f'instance.{TOLD_AS[verb]}'
    if failed is not None and verb == 'reboot':
        host.notify.emit(ctxt, f'{name}.error', instance=instance, moved='reboot.failed', fault=failed)
    if failed is None or (verb == 'reboot' and power_state == PowerState.RUNNING):
        host.notify.emit(ctxt, f'{name}.end', instance=instance, values={'power_state': power_state},
                         moved=f"{verb}.{'done' if failed is None else 'failed'}")


def _try(act: Callable[[], None], verb: str, instance: objects.Instance) -> Exception | None:
    """The act's failure, which is an end state to be saved like success is."""
    try:
        act()
    except errors.KilonovaError as error:
        LOG.error('%s failed: %s', verb, error, instance_uuid=instance.uuid)
        return error
    except Exception as error:
        LOG.exception('%s failed', verb, instance_uuid=instance.uuid)
        return error
    return None
