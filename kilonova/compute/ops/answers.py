"""Calls to a host outside operations: host description, console output, diagnostics and external events.

None of these calls changes the host or a server, so they take no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.endpoint import query_method
from kilonova.compute.host import ComputeHost
from kilonova.compute.operation import Reply
from kilonova.context import RequestContext
from kilonova.rpc.compute import Compute
from kilonova.states import POWER_WORDS, PowerState

LOG = logging.getLogger(__name__)

# Events that Neutron sends about the ports of servers.
PORT_EVENTS = frozenset(('network-vif-plugged', 'network-vif-unplugged'))
# Control characters that are kept in console output. JSON parsers refuse other control characters, such as escape.
_KEPT = frozenset('\t\n\r')

_Measured = TypeVar('_Measured')


@query_method(Compute.describe_host)
def describe(host: ComputeHost, ctxt: RequestContext) -> Reply:
    """Return a description of the host, for the audit and for administrators.

    It has the host's domains with their devices, the servers' directories, and the devices that servers hold but the
    host lacks.
    """
    driver, held = host.driver, host.tracker.host_devices.held()
    return {
        'missing_devices': driver.devices.missing_devices(held),
        'host': host.name,
        'node': host.tracker.nodename,
        'instances_path': host.conf.instances_path,
        'domains': driver.guests.describe(),
        'directories': driver.disks.list_directories(),
    }


@query_method(Compute.get_host_uptime)
def uptime(host: ComputeHost, ctxt: RequestContext) -> str | None:
    """Return the output of the uptime command on this host, or None if the driver can't provide it."""
    return host.driver.host.uptime()


@query_method(Compute.get_console_output)
def console_output(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance, tail_length: int | None) -> str:
    """Return the last ``tail_length`` lines that a guest wrote to its serial console.

    If ``tail_length`` is None, return all lines that the driver keeps. Raises ConsoleNotAvailable (404) if there is no
    console log to read.
    """
    text = ''.join(char for char in host.driver.guests.get_console_output(instance) if char >= ' ' or char in _KEPT)
    if tail_length is None:
        return text
    return '\n'.join(text.split('\n')[-tail_length:]) if tail_length else ''


@query_method(Compute.get_diagnostics)
def diagnostics(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance) -> Reply:
    """Return a guest's measurements under the driver's own names.

    Raises InstanceInvalidState (409) if the guest does not run.
    """
    return _of_running(host, instance, host.driver.guests.get_diagnostics)


@query_method(Compute.get_instance_diagnostics)
def instance_diagnostics(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance) -> objects.Diagnostics:
    """Return a guest's measurements under names that are the same for all drivers.

    Raises InstanceInvalidState (409) if the guest does not run.
    """
    return _of_running(host, instance, host.driver.guests.get_instance_diagnostics)


def _of_running(
    host: ComputeHost, instance: objects.Instance, read: Callable[[objects.Instance], _Measured]
) -> _Measured:
    check_power(host, instance, 'get_diagnostics')
    try:
        return read(instance)
    except errors.KilonovaError:
        # If the guest has stopped since the first check, raise InstanceInvalidState rather than the driver's error.
        check_power(host, instance, 'get_diagnostics')
        raise


def check_power(
    host: ComputeHost, instance: objects.Instance, method: str, fit: Iterable[PowerState] = (PowerState.RUNNING,)
) -> None:
    """Check that the guest is in one of the power states ``fit``.

    Raises InstanceInvalidState (409) if not. ``method`` is the name of the operation for the error's text.
    """
    state = PowerState(host.driver.guests.get_info(instance))
    if state not in fit:
        raise errors.InstanceInvalidState(
            method=method, instance_uuid=instance.uuid, attr='power_state', state=POWER_WORDS[state]
        )


@query_method(Compute.external_instance_event)
def external_events(
    host: ComputeHost,
    ctxt: RequestContext,
    instances: Iterable[objects.Instance],
    events: Iterable[objects.InstanceExternalEvent],
) -> None:
    """Wake the threads that wait for these events.

    An event that no thread waits for is logged, except events of ports.
    """
    known = {instance.uuid: instance for instance in instances}
    for event in events:
        instance = known.get(event.instance_uuid)
        if event.name == 'accelerator-request-bound' and host.accelerators.tell(event.instance_uuid):
            continue
        if event.name in PORT_EVENTS:
            # Neutron sends an event for every change of a port, even if no thread waits, so the event is not logged.
            host.ports.tell(event.instance_uuid)
            continue
        if instance is not None:
            LOG.warning(
                'Received unexpected event %s (%s) for instance with vm_state %s and task_state %s: no '
                'operation waits for it',
                event.key,
                event.status,
                instance.vm_state,
                instance.task_state,
                instance_uuid=instance.uuid,
            )
