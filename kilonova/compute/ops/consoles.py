"""Where the consoles of this host's guests are, for the API, and whether they still are there, for the proxies."""
from __future__ import annotations

from kilonova import errors, objects
from kilonova.compute.endpoint import answer
from kilonova.compute.host import Host
from kilonova.compute.ops.answers import check_power
from kilonova.context import RequestContext
from kilonova.objects import ConsoleOffer
from kilonova.rpc.compute import Compute
from kilonova.states import PowerState
from kilonova.virt.parts.guests import ConsoleAddress

# The protocol that shows each type of console, and where the address that users get stands in the configuration.
TYPES: dict[str, tuple[str, str, str]] = {
    'novnc': ('vnc', 'vnc', 'novncproxy_base_url'),
    'spice-html5': ('spice', 'spice', 'html5proxy_base_url'),
    'spice-direct': ('spice', 'spice', 'spice_direct_proxy_base_url'),
    'serial': ('serial', 'serial_console', 'base_url'),
}


@answer(Compute.get_vnc_console)
def vnc(host: Host, ctxt: RequestContext, instance: objects.Instance, console_type: str) -> ConsoleOffer:
    """Errors of all three: ConsoleTypeInvalid (a type of another protocol), ConsoleTypeUnavailable (guests have none
    here): 400; InstanceInvalidState (it doesn't run): 409."""
    return _offer(host, instance, 'vnc', console_type)


@answer(Compute.get_spice_console)
def spice(host: Host, ctxt: RequestContext, instance: objects.Instance, console_type: str) -> ConsoleOffer:
    return _offer(host, instance, 'spice', console_type)


@answer(Compute.get_serial_console)
def serial(host: Host, ctxt: RequestContext, instance: objects.Instance, console_type: str) -> ConsoleOffer:
    return _offer(host, instance, 'serial', console_type)


@answer(Compute.validate_console_port)
def validate(host: Host, ctxt: RequestContext, instance: objects.Instance, console_type: str, target: str) -> bool:
    """Whether ``target`` ('address:port') is where this guest's console is now. Asked by a proxy that is connected
    there: another guest may have got the port since its token was given out."""
    protocol, _, _ = TYPES.get(console_type, ('', '', ''))
    found = host.driver.guests.get_console(instance, protocol) if protocol else None
    return found is not None and target in _targets(found)


def _targets(found: ConsoleAddress) -> set[str]:
    return {f'{found.host}:{port}' for port in (found.port, found.tls_port) if port}


def _offer(host: Host, instance: objects.Instance, protocol: str, console_type: str) -> ConsoleOffer:
    shown_by, section, option = TYPES.get(console_type, ('', '', ''))
    if shown_by != protocol:
        raise errors.ConsoleTypeInvalid(console_type=console_type)
    options = host.conf[section]
    if not options.enabled:
        raise errors.ConsoleTypeUnavailable(console_type=console_type)
    check_power(host, instance, f'get_{protocol}_console', (PowerState.RUNNING, PowerState.PAUSED))
    found = host.driver.guests.get_console(instance, protocol)
    if found is None:
        # It was started before the option was set, or has stopped meanwhile.
        raise errors.ConsoleTypeUnavailable(console_type=console_type)
    return ConsoleOffer(console_type=console_type, host=found.host, port=found.port, tls_port=found.tls_port,
                        access_url_base=options[option])
