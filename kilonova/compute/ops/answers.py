"""What a host answers beside operations: what really is here, a guest's console, what the hypervisor measures of it,
and events that other services tell. Nothing is changed, so nobody is waited for."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.endpoint import answer
from kilonova.compute.host import Host
from kilonova.compute.operation import Reply
from kilonova.context import RequestContext
from kilonova.rpc.compute import Compute
from kilonova.states import POWER_WORDS, PowerState

LOG = logging.getLogger(__name__)

# What Neutron says of the ports of servers.
PORT_EVENTS = frozenset(('network-vif-plugged', 'network-vif-unplugged'))
# Control characters that text may hold; a guest writes others to colour a terminal, and JSON readers choke on them.
_KEPT = frozenset('\t\n\r')

_Measured = TypeVar('_Measured')


@answer(Compute.describe_host)
def describe(host: Host, ctxt: RequestContext) -> Reply:
    """Domains with their devices, the servers' directories, and which devices that servers hold are not here any
    more: for the audit and for administrators."""
    driver, held = host.driver, host.tracker.host_devices.held()
    return {'missing_devices': driver.devices.missing_devices(held), 'host': host.name, 'node': host.tracker.nodename,
            'instances_path': host.conf.instances_path, 'domains': driver.guests.describe(),
            'directories': driver.disks.list_directories()}


@answer(Compute.get_host_uptime)
def uptime(host: Host, ctxt: RequestContext) -> str | None:
    """What uptime(1) says here; None: the driver can't tell."""
    return host.driver.host.uptime()


@answer(Compute.get_console_output)
def console_output(host: Host, ctxt: RequestContext, instance: objects.Instance, tail_length: int | None) -> str:
    """The last ``tail_length`` lines of what a guest wrote to its serial console (None: all that the driver keeps).
    ConsoleNotAvailable (404) where there is none to read."""
    text = ''.join(char for char in host.driver.guests.get_console_output(instance) if char >= ' ' or char in _KEPT)
    if tail_length is None:
        return text
    return '\n'.join(text.split('\n')[-tail_length:]) if tail_length else ''


@answer(Compute.get_diagnostics)
def diagnostics(host: Host, ctxt: RequestContext, instance: objects.Instance) -> Reply:
    """In the driver's own names. InstanceInvalidState (409) for a guest that doesn't run."""
    return _of_running(host, instance, host.driver.guests.get_diagnostics)


@answer(Compute.get_instance_diagnostics)
def instance_diagnostics(host: Host, ctxt: RequestContext, instance: objects.Instance) -> objects.Diagnostics:
    """The same keys of every driver. InstanceInvalidState (409) for a guest that doesn't run."""
    return _of_running(host, instance, host.driver.guests.get_instance_diagnostics)


def _of_running(host: Host, instance: objects.Instance, read: Callable[[objects.Instance], _Measured]) -> _Measured:
    check_power(host, instance, 'get_diagnostics')
    try:
        return read(instance)
    except errors.KilonovaError:
        # It may have gone meanwhile: that is no failure.
        check_power(host, instance, 'get_diagnostics')
        raise


def check_power(host: Host, instance: objects.Instance, method: str,
                fit: Iterable[PowerState] = (PowerState.RUNNING,)) -> None:
    """InstanceInvalidState (409, ``method`` names what was asked) unless the guest is in one of the states."""
    state = PowerState(host.driver.guests.get_info(instance))
    if state not in fit:
        raise errors.InstanceInvalidState(method=method, instance_uuid=instance.uuid, attr='power_state',
                                          state=POWER_WORDS[state])


@answer(Compute.external_instance_event)
def external_events(host: Host, ctxt: RequestContext, instances: Iterable[objects.Instance],
                    events: Iterable[objects.InstanceExternalEvent]) -> None:
    """Whoever waits for one looks now. Of others is only said that they came."""
    known = {instance.uuid: instance for instance in instances}
    for event in events:
        instance = known.get(event.instance_uuid)
        if event.name == 'accelerator-request-bound' and host.accelerators.tell(event.instance_uuid):
            continue
        if event.name in PORT_EVENTS:
            # Neutron tells all that happens to a port; a guest that runs already needs nothing of it.
            host.ports.tell(event.instance_uuid)
            continue
        if instance is not None:
            LOG.warning('Received unexpected event %s (%s) for instance with vm_state %s and task_state %s: nobody '
                        'waits for it', event.key, event.status, instance.vm_state, instance.task_state,
                        instance_uuid=instance.uuid)
