"""Addresses of this host's guest consoles for the API, and their validation for the console proxies."""

from __future__ import annotations

from kilonova import errors, objects
from kilonova.compute.endpoint import query_method
from kilonova.compute.host import ComputeHost
from kilonova.compute.ops.answers import check_power
from kilonova.context import RequestContext
from kilonova.objects import ConsoleOffer
from kilonova.rpc.compute import Compute
from kilonova.states import PowerState
from kilonova.virt.parts.guests import ConsoleAddress

# For each console type: its protocol, and the section and option of the address that users get.
TYPES: dict[str, tuple[str, str, str]] = {
    'novnc': ('vnc', 'vnc', 'novncproxy_base_url'),
    'spice-html5': ('spice', 'spice', 'html5proxy_base_url'),
    'spice-direct': ('spice', 'spice', 'spice_direct_proxy_base_url'),
    'serial': ('serial', 'serial_console', 'base_url'),
}


@query_method(Compute.get_vnc_console)
def vnc(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance, console_type: str) -> ConsoleOffer:
    """Return the address of the guest's VNC console.

    Raises:
        ConsoleTypeInvalid: The console type belongs to another protocol (400).
        ConsoleTypeUnavailable: Guests of this host, or this guest, have no such console (400).
        InstanceInvalidState: The guest neither runs nor is paused (409).
    """
    return _offer(host, instance, 'vnc', console_type)


@query_method(Compute.get_spice_console)
def spice(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance, console_type: str) -> ConsoleOffer:
    """Return the address of the guest's SPICE console. Raises the same errors as ``vnc``."""
    return _offer(host, instance, 'spice', console_type)


@query_method(Compute.get_serial_console)
def serial(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance, console_type: str) -> ConsoleOffer:
    """Return the address of the guest's serial console. Raises the same errors as ``vnc``."""
    return _offer(host, instance, 'serial', console_type)


@query_method(Compute.validate_console_port)
def validate(
    host: ComputeHost, ctxt: RequestContext, instance: objects.Instance, console_type: str, target: str
) -> bool:
    """Return whether ``target`` ('address:port') is the current address of this guest's console.

    A console proxy calls this after it has connected, because another guest may have got the port since the token was
    issued.
    """
    protocol, _, _ = TYPES.get(console_type, ('', '', ''))
    found = host.driver.guests.get_console(instance, protocol) if protocol else None
    return found is not None and target in _targets(found)


def _targets(found: ConsoleAddress) -> set[str]:
    return {f'{found.host}:{port}' for port in (found.port, found.tls_port) if port}


def _offer(host: ComputeHost, instance: objects.Instance, protocol: str, console_type: str) -> ConsoleOffer:
    shown_by, section, option = TYPES.get(console_type, ('', '', ''))
    if shown_by != protocol:
        raise errors.ConsoleTypeInvalid(console_type=console_type)
    options = host.conf[section]
    if not options.enabled:
        raise errors.ConsoleTypeUnavailable(console_type=console_type)
    check_power(host, instance, f'get_{protocol}_console', (PowerState.RUNNING, PowerState.PAUSED))
    found = host.driver.guests.get_console(instance, protocol)
    if found is None:
        # The guest has no console: it was started before the option was set, or it has stopped meanwhile.
        raise errors.ConsoleTypeUnavailable(console_type=console_type)
    return ConsoleOffer(
        console_type=console_type,
        host=found.host,
        port=found.port,
        tls_port=found.tls_port,
        access_url_base=options[option],
    )
