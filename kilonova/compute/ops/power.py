"""Power, pause, suspend, rescue and password operations of a guest.

Each operation consists of one step on one host: check that the operation is current, change the guest, save the end
state. The save ends the operation even if the change failed; the reply only informs the conductor. There are two
exceptions: ``resume_guest``, and ``soft_delete``, which is repeated until it succeeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.endpoint import operation_method
from kilonova.compute.guests import WANTED_RUNNING, resume
from kilonova.compute.host import image_of
from kilonova.compute.operation import HostTask, NotificationFacts, Reply, SaveFields, readable, tags_found
from kilonova.compute.ops.build import opened
from kilonova.rpc.compute import Compute
from kilonova.states import PowerState
from kilonova.virt import guest_password

LOG = logging.getLogger(__name__)

# {operation: its name in Nova's notifications, or None if Nova sends no notification for the operation}.
# An operation that is not listed has the same name in notifications.
TOLD_AS: dict[str, str | None] = {'stop': 'power_off', 'start': 'power_on', 'set_admin_password': None}


@operation_method(Compute.stop_instance)
def stop(op: HostTask, clean_shutdown: bool) -> Reply:
    """Shut the guest down, or cut its power if it has not shut down in time."""
    with _single_host_operation(op, 'stop') as reply:
        op.host.driver.power.power_off(op.instance, *op.host.shutdown_wait(op.instance, clean_shutdown))
    return reply


@operation_method(Compute.start_instance)
def start(op: HostTask) -> Reply:
    """Define the guest's domain anew, with the devices that the server holds, and start the guest."""
    with _single_host_operation(op, 'start') as reply:
        op.host.driver.power.power_on(op.instance, image_of(op.instance), op.host.devices_of(op.instance))
    return reply


@operation_method(Compute.resume_guest, forward=True)
def resume_guest(op: HostTask) -> Reply:
    """Start a guest that ran when this host went down. Does nothing if the guest runs already.

    Return {'is_running': False} if the guest must not be started: the server is deleted, on another host, in another
    operation, or is to be off.
    """
    with op.exclusive():
        host, server = op.host, records.instance(op.ctxt, op.instance.uuid)
        if (
            server is None
            or server.host != host.name
            or server.task_state is not None
            or server.vm_state not in WANTED_RUNNING
        ):
            return {'is_running': False}
        state = host.driver.guests.get_info(server)
        if state not in (PowerState.RUNNING, PowerState.PAUSED):
            resume(op.ctxt, host, server)
            state = host.driver.guests.get_info(server)
        return {'is_running': True, 'power_state': state}


@operation_method(Compute.reboot_instance)
def reboot(op: HostTask, reboot_type: str) -> Reply:
    """Reboot the guest. ``reboot_type`` is SOFT or HARD."""
    with _single_host_operation(op, 'reboot') as reply:
        op.host.driver.power.reboot(op.instance, reboot_type, image_of(op.instance), op.host.devices_of(op.instance))
    return reply


@operation_method(Compute.pause_instance)
def pause(op: HostTask) -> Reply:
    """Stop the guest's CPUs."""
    with _single_host_operation(op, 'pause') as reply:
        op.host.driver.power.pause(op.instance)
    return reply


@operation_method(Compute.unpause_instance)
def unpause(op: HostTask) -> Reply:
    """Let the guest's CPUs continue."""
    with _single_host_operation(op, 'unpause') as reply:
        op.host.driver.power.unpause(op.instance)
    return reply


@operation_method(Compute.suspend_instance)
def suspend(op: HostTask) -> Reply:
    """Save the guest's memory and stop the guest. The server keeps its claim on the devices."""
    with _single_host_operation(op, 'suspend') as reply:
        op.host.driver.power.suspend(op.instance, op.check)
    return reply


@operation_method(Compute.resume_instance)
def resume_instance(op: HostTask) -> Reply:
    """Resume the guest from its saved memory with the devices that its server holds."""
    with _single_host_operation(op, 'resume') as reply:
        op.host.driver.power.resume(op.instance, op.host.devices_of(op.instance), op.check)
    return reply


@operation_method(Compute.trigger_crash_dump)
def trigger_crash_dump(op: HostTask) -> Reply:
    """Send the guest a non-maskable interrupt."""
    with _single_host_operation(op, 'trigger_crash_dump', event='compute_trigger_crash_dump') as reply:
        op.host.driver.power.trigger_crash_dump(op.instance)
    return reply


@operation_method(Compute.rescue_instance)
def rescue(op: HostTask, order: objects.RescueOrder) -> Reply:
    """Start the guest from another system image, with its own disks and devices.

    Raises InstanceNotRescuable with the driver's text if the start fails.
    """
    host, instance = op.host, op.instance
    facts: NotificationFacts = {'rescue_image_ref': order.image_ref, 'rescue_image_name': order.image_name}
    with _single_host_operation(op, 'rescue', facts) as reply:
        try:
            secrets = opened(op, order.sealed)
            timeout, retry_interval = host.shutdown_wait(instance)
            host.driver.rescues.rescue(
                instance,
                image_of(instance),
                order.image or None,
                op.host.devices_of(op.instance),
                admin_password=secrets.admin_password,
                timeout=timeout,
                retry_interval=retry_interval,
            )
        except Exception as error:
            raise errors.InstanceNotRescuable(
                instance_id=instance.uuid, reason=f'Driver Error: {readable(error)}'
            ) from error
        op.notify('instance.exists')
    return reply


@operation_method(Compute.unrescue_instance)
def unrescue(op: HostTask) -> Reply:
    """Start the guest from its own disk, even if it did not run before the rescue."""
    with _single_host_operation(op, 'unrescue') as reply:
        op.host.driver.power.power_on(op.instance, image_of(op.instance), op.host.devices_of(op.instance))
    return reply


@operation_method(Compute.set_admin_password)
def set_admin_password(op: HostTask, sealed: str) -> Reply:
    """Set the administrator's password through the guest's agent.

    ``sealed`` is the encrypted password (``sealing``). If the server has an RSA key, the password is also stored in the
    server's metadata, encrypted with that key. The error of a failure does not contain the agent's text, because the
    text might contain the password.
    """
    instance = op.instance
    kept: dict[str, str | None] = {}
    with _single_host_operation(
        op, 'set_admin_password', event='compute_set_admin_password', system_metadata=kept
    ) as reply:
        password = opened(op, sealed).admin_password or ''
        user = guest_password.administrator(image_of(instance), instance.os_type)
        op.host.driver.guests.set_admin_password(instance, user, password)
        text = guest_password.encrypted(password, instance.key_data)
        if text is not None:
            kept.update(guest_password.in_parts(text))
    return reply


@operation_method(Compute.soft_delete_instance, forward=True)
def soft_delete(op: HostTask) -> Reply:
    """Power the guest off and save that the server is soft-deleted. Disks and devices of the guest are kept."""
    op.begin('compute_soft_delete_instance')
    with op.exclusive():
        op.notify('instance.soft_delete.start')
        op.host.driver.power.power_off(op.instance, *op.host.shutdown_wait(op.instance))
        power_state = op.host.driver.guests.get_info(op.instance)
        op.save(
            end=True,
            transition='soft_delete.done',
            expect={'host': op.host.name},
            values={'power_state': power_state},
            event=op.event(),
        )
    op.notify('instance.soft_delete.end', moved='soft_delete.done', values={'power_state': power_state})
    return {'power_state': power_state}


@operation_method(Compute.restore_instance)
def restore(op: HostTask) -> Reply:
    """Start the guest of a soft-deleted server with the devices that it kept."""
    with _single_host_operation(op, 'restore', deleted_at=None) as reply:
        op.host.driver.power.power_on(op.instance, image_of(op.instance), op.host.devices_of(op.instance))
    return reply


@contextlib.contextmanager
def _single_host_operation(
    op: HostTask,
    verb: str,
    facts: NotificationFacts | None = None,
    *,
    event: str | None = None,
    system_metadata: Mapping[str, str | None] | None = None,
    **when_done: object,
) -> Iterator[dict[str, object]]:
    """Run an operation that has only one step. The caller changes the guest in a ``with`` block.

    Before the block, this function checks that the operation is current. After the block, it saves the end state of the
    server. If the block raises an error, the error is saved with the end state.

    ``facts`` are further fields of the notifications. ``event`` is the name of the action's event, by default
    compute_<verb>_instance. ``system_metadata`` and the columns ``when_done`` are written only if the block succeeds.
    Yields the reply as a dict. The dict is empty until the block has ended.
    """
    op.begin(event or f'compute_{verb}_instance')
    reply: dict[str, object] = {}
    facts = facts or {}
    name = TOLD_AS.get(verb, verb)
    with op.exclusive():
        if name is not None:
            op.notify(f'instance.{name}.start', **facts)
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
        fields: SaveFields = {
            'end': True,
            'expect': {'host': op.host.name},
            'values': values,
            'event': op.event(failed),
            'extra': tags_found(op.instance),
            'transition': f'{verb}.done' if failed is None else f'{verb}.failed',
        }
        if failed is None:
            fields['values'] = {**values, **when_done}
            if system_metadata:
                fields['system_metadata'] = system_metadata
        else:
            fields['message'], fields['fault'] = 'Error', op.fault(failed)
        op.save(**fields)
    if name is not None:
        _notify(op, f'instance.{name}', fields, failed, facts)
    reply.update(power_state=power_state, error=None if failed is None else readable(failed))


def _is_to_run_again(op: HostTask, power_state: int) -> bool:
    """Return whether the guest must be started again because its host went down during an operation of the server.

    Return True if the operation began before this process started, the server's row says that the guest runs, and the
    guest is off. The caller then keeps power state RUNNING in the row, so that ``HostGuests.look_again`` starts the
    guest.
    """
    return (
        power_state == PowerState.SHUTDOWN
        and op.instance.uuid in op.host.interrupted
        and op.instance.power_state == PowerState.RUNNING
    )


def _notify(op: HostTask, name: str, saved: SaveFields, failed: Exception | None, facts: NotificationFacts) -> None:
    """Send the notifications of the operation's end, as Nova does.

    An error notification is sent only for a reboot. A failed reboot also sends the end notification if the guest runs.
    """
    is_reboot = name == 'instance.reboot'
    if failed is not None and is_reboot:
        op.notify(f'{name}.error', moved='reboot.failed', fault=failed)
    if failed is None or (is_reboot and saved['values'].get('power_state') == PowerState.RUNNING):
        ended: NotificationFacts = {**facts, 'values': saved['values'], 'moved': saved['transition']}
        op.notify(f'{name}.end', **ended)
