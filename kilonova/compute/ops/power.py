"""What is done with a guest's power, pause and suspend among it: check the key · act · save the end state.

Each is a whole operation of one host. The save ends it whether the act went well or not, so the reply only tells the
conductor what happened; but a soft delete only goes forward, and a failure is tried again, as with a delete.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.endpoint import order
from kilonova.compute.guests import WANTED_RUNNING, resume
from kilonova.compute.host import image_of
from kilonova.compute.operation import Facts, Operation, Reply, SaveFields, readable, tags_found
from kilonova.compute.ops.build import opened
from kilonova.rpc.compute import Compute
from kilonova.states import PowerState
from kilonova.virt import guest_password

LOG = logging.getLogger(__name__)

# What notifications call them; None: the field has none.
TOLD_AS: dict[str, str | None] = {'stop': 'power_off', 'start': 'power_on', 'set_admin_password': None}


@order(Compute.stop_instance)
def stop(op: Operation, clean_shutdown: bool) -> Reply:
    """Shut the guest down, or cut its power when it doesn't go in time."""
    with _whole(op, 'stop') as reply:
        op.host.driver.power.power_off(op.instance, *op.host.shutdown_wait(op.instance, clean_shutdown))
    return reply


@order(Compute.start_instance)
def start(op: Operation) -> Reply:
    """Start the guest from a fresh domain with the devices that it holds."""
    with _whole(op, 'start') as reply:
        op.host.driver.power.power_on(op.instance, image_of(op.instance), op.host.devices_of(op.instance))
    return reply


@order(Compute.resume_guest, forward=True)
def resume_guest(op: Operation) -> Reply:
    """Start a guest that ran when this host went down, unless it runs or its server is not at rest any more."""
    with op.turn():
        host, server = op.host, records.instance(op.ctxt, op.instance.uuid)
        if (server is None or server.host != host.name or server.task_state is not None
                or server.vm_state not in WANTED_RUNNING):
            return {'is_running': False}
        state = host.driver.guests.get_info(server)
        if state not in (PowerState.RUNNING, PowerState.PAUSED):
            resume(op.ctxt, host, server)
            state = host.driver.guests.get_info(server)
        return {'is_running': True, 'power_state': state}


@order(Compute.reboot_instance)
def reboot(op: Operation, reboot_type: str) -> Reply:
    """``reboot_type`` SOFT or HARD."""
    with _whole(op, 'reboot') as reply:
        op.host.driver.power.reboot(op.instance, reboot_type, image_of(op.instance), op.host.devices_of(op.instance))
    return reply


@order(Compute.pause_instance)
def pause(op: Operation) -> Reply:
    """Stop the guest's CPUs."""
    with _whole(op, 'pause') as reply:
        op.host.driver.power.pause(op.instance)
    return reply


@order(Compute.unpause_instance)
def unpause(op: Operation) -> Reply:
    """Let them go on."""
    with _whole(op, 'unpause') as reply:
        op.host.driver.power.unpause(op.instance)
    return reply


@order(Compute.suspend_instance)
def suspend(op: Operation) -> Reply:
    """Save the guest's memory; the devices that the guest gives up stay claimed for its server."""
    with _whole(op, 'suspend') as reply:
        op.host.driver.power.suspend(op.instance, op.check)
    return reply


@order(Compute.resume_instance)
def resume_instance(op: Operation) -> Reply:
    """Let the guest go on from its saved memory with the devices that its server holds."""
    with _whole(op, 'resume') as reply:
        op.host.driver.power.resume(op.instance, op.host.devices_of(op.instance), op.check)
    return reply


@order(Compute.trigger_crash_dump)
def trigger_crash_dump(op: Operation) -> Reply:
    """Send the guest a non-maskable interrupt."""
    with _whole(op, 'trigger_crash_dump', event='compute_trigger_crash_dump') as reply:
        op.host.driver.power.trigger_crash_dump(op.instance)
    return reply


@order(Compute.rescue_instance)
def rescue(op: Operation, order: objects.RescueOrder) -> Reply:
    """Start the guest from another system, with its disks and devices. A failure is InstanceNotRescuable, with what the
    driver said."""
    host, instance = op.host, op.instance
    facts: Facts = {'rescue_image_ref': order.image_ref, 'rescue_image_name': order.image_name}
    with _whole(op, 'rescue', facts) as reply:
        try:
            secrets = opened(op, order.sealed)
            timeout, retry_interval = host.shutdown_wait(instance)
            host.driver.rescues.rescue(
                instance, image_of(instance), order.image or None, op.host.devices_of(op.instance),
                admin_password=secrets.admin_password, timeout=timeout, retry_interval=retry_interval)
        except Exception as error:
            raise errors.InstanceNotRescuable(instance_id=instance.uuid,
                                              reason=f'Driver Error: {readable(error)}') from error
        op.notify('instance.exists')
    return reply


@order(Compute.unrescue_instance)
def unrescue(op: Operation) -> Reply:
    """Start the guest from its own disk, whether it ran before the rescue or not."""
    with _whole(op, 'unrescue') as reply:
        op.host.driver.power.power_on(op.instance, image_of(op.instance), op.host.devices_of(op.instance))
    return reply


@order(Compute.set_admin_password)
def set_admin_password(op: Operation, sealed: str) -> Reply:
    """Let the guest's agent set the administrator's password; an owner with an RSA key finds it, encrypted.

    ``sealed``: the password (``sealing``). A failure says nothing that the agent said: it may have named the password.
    """
    instance = op.instance
    kept: dict[str, str | None] = {}
    with _whole(op, 'set_admin_password', event='compute_set_admin_password', system_metadata=kept) as reply:
        password = opened(op, sealed).admin_password or ''
        user = guest_password.administrator(image_of(instance), instance.os_type)
        op.host.driver.guests.set_admin_password(instance, user, password)
        text = guest_password.encrypted(password, instance.key_data)
        if text is not None:
            kept.update(guest_password.in_parts(text))
    return reply


@order(Compute.soft_delete_instance, forward=True)
def soft_delete(op: Operation) -> Reply:
    """Power off and say so: the guest keeps all it has."""
    op.begin('compute_soft_delete_instance')
    with op.turn():
        op.notify('instance.soft_delete.start')
        op.host.driver.power.power_off(op.instance, *op.host.shutdown_wait(op.instance))
        power_state = op.host.driver.guests.get_info(op.instance)
        op.save(end=True, transition='soft_delete.done', expect={'host': op.host.name},
                values={'power_state': power_state}, event=op.event())
    op.notify('instance.soft_delete.end', moved='soft_delete.done', values={'power_state': power_state})
    return {'power_state': power_state}


@order(Compute.restore_instance)
def restore(op: Operation) -> Reply:
    """Start the guest with the devices that it kept."""
    with _whole(op, 'restore', deleted_at=None) as reply:
        op.host.driver.power.power_on(op.instance, image_of(op.instance), op.host.devices_of(op.instance))
    return reply


@contextlib.contextmanager
def _whole(op: Operation, verb: str, facts: Facts | None = None, *, event: str | None = None,
          system_metadata: Mapping[str, str | None] | None = None, **when_done: object) -> Iterator[dict[str, object]]:
    """The operation around its act, which is the block. A failure of it is an end state to be saved like success is.

    ``facts``: what is told besides the server; ``event``: of the instance action, where it isn't named as usual;
    ``system_metadata``: what is changed of it, ``when_done``: columns that are written when all went well. Yields the
    reply, which has its values afterwards.
    """
    op.begin(event or f'compute_{verb}_instance')
    reply: dict[str, object] = {}
    told: Facts = facts or {}
    name = TOLD_AS.get(verb, verb)
    with op.turn():
        if name is not None:
            op.notify(f'instance.{name}.start', **told)
        failed: Exception | None = None
        try:
            yield reply
        except errors.KilonovaError as error:
            LOG.error('%s failed: %s', verb, error, instance_uuid=op.instance.uuid)
            failed = error
        except Exception as error:
            LOG.exception('%s failed', verb, instance_uuid=op.instance.uuid)
            failed = error
        if failed is not None:
            op.host.devices_failed(op.ctxt, op.instance.uuid, failed)
        power_state = op.host.driver.guests.get_info(op.instance)
        values = {} if failed is not None and _is_to_run_again(op, power_state) else {'power_state': power_state}
        fields: SaveFields = {'end': True, 'expect': {'host': op.host.name}, 'values': values,
                              'event': op.event(failed), 'extra': tags_found(op.instance),
                              'transition': f'{verb}.done' if failed is None else f'{verb}.failed'}
        if failed is None:
            fields['values'] = {**values, **when_done}
            if system_metadata:
                fields['system_metadata'] = system_metadata
        else:
            fields['message'], fields['fault'] = 'Error', op.fault(failed)
        op.save(**fields)
    if name is not None:
        _notify(op, f'instance.{name}', fields, failed, told)
    reply.update(power_state=power_state, error=None if failed is None else readable(failed))


def _is_to_run_again(op: Operation, power_state: int) -> bool:
    """Return whether the guest of a server whose operation was under way when this process started ran then and is off
    now: its host lost power. The server's row keeps the power state with which ``Guests.look_again`` starts it."""
    return (power_state == PowerState.SHUTDOWN and op.instance.uuid in op.host.interrupted
            and op.instance.power_state == PowerState.RUNNING)


def _notify(op: Operation, name: str, saved: SaveFields, failed: Exception | None, told: Facts) -> None:
    """As the field has it: only a reboot tells its failure, and its end too when the guest runs nevertheless."""
    is_reboot = name == 'instance.reboot'
    if failed is not None and is_reboot:
        op.notify(f'{name}.error', moved='reboot.failed', fault=failed)
    if failed is None or (is_reboot and saved['values'].get('power_state') == PowerState.RUNNING):
        facts: Facts = {**told, 'values': saved['values'], 'moved': saved['transition']}
        op.notify(f'{name}.end', **facts)
