"""Ports of servers that move.

    port_moves.to_host(work, host)          # bound to the host of this attempt
    port_moves.off_host(work)               # bound to none
    port_moves.announce(work, host, …)      # of a guest that runs: bound there, too, until it has ``arrived``
"""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kilonova import objects
from kilonova.clients.neutron.ports import Port
from kilonova.clients.neutron.refusals import PortBindingRefused
from kilonova.conductor.flows import beside, guarantees, port_releases, port_vifs, ports
from kilonova.conductor.flows.network_changed import AT_REST, NetworkChanged
from kilonova.conductor.row import Choice
from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.queries import operations, pci_devices
from kilonova.errors import HostRejected
from kilonova.objects.port_resources import ALLOCATION, PortResources
from kilonova.objects.vif import Vif
from kilonova.pci import ports as pci_ports

# Types of VIFs that no guest can have.
_UNBOUND = frozenset(('', 'binding_failed', 'unbound'))


def to_host(work: Work[Any], host: Choice, requests: objects.InstancePCIRequests | None = None) -> None:
    """The ports that a server has are bound to the host of this attempt, and its info cache says so. May be repeated;
    no request for a server without any.

    ``requests``: those for which the host claimed what the ports are functions of; without, these are bound to no host.
    PortBindingFailed; PortChanged: one asks for something else than Placement was asked for. One that its owner has
    deleted, or given to somebody else, is the server's no more.
    """
    move = work.args.get('migration_uuid')

    def before(vif: Vif) -> Mapping[str, Any]:
        if move is None or move in vif.before:
            return vif.before
        # Said once: done again, the binding may be that of this host already.
        return {move: vif.profile.get(ALLOCATION)} if vif.resource_request else {}
    _to_host(work, host.host, host.availability_zone, requests,
             lambda _, port: guarantees.profile(port, host.mappings), before)


def to_source(work: Work[Any], migration: objects.Migration, zone: str | None, *, agent_away: bool = False) -> None:
    """``to_host`` of a server that is back where this move began, with the devices and providers that it had there.
    With ``agent_away`` a failed binding is left at that: it is bound by ``bound_here``. The destination may have
    written already what the server was to be."""
    requests = None
    if moves_here(work):
        server = work.instance(fresh=True)
        context = server.migration_context
        requests = (context.old_pci_requests if context is not None and context.migration_id == migration.id
                    else server.pci_requests)

    def allocation(vif: Vif, port: Port) -> dict[str, Any]:
        was = vif.before.get(migration.uuid, vif.profile.get(ALLOCATION))
        return {ALLOCATION: was} if was is not None else {}
    _to_host(work, migration.source_compute, zone, requests, allocation, lambda _: {}, agent_away)


def _to_host(work: Work[Any], host: str, zone: str | None, requests: objects.InstancePCIRequests | None,
             allocation: Callable[[Vif, Port], dict[str, Any]], before: Callable[[Vif], Mapping[str, Any]],
             agent_away: bool = False) -> None:
    """``allocation``: what the bindings say of providers in Placement; ``before``: see ``Vif``."""
    vifs, there = _with_ports(work)
    devices = _claimed(work, requests) if any(vif.is_function for vif in vifs) else {}
    after = []
    for vif in vifs:
        if vif.id in there:
            to = host if not vif.is_function or vif.id in devices else None
            profile = {**allocation(vif, there[vif.id]), **devices.get(vif.id, {})}
            # The host has had it bound to a device already, if this is done again.
            port = there[vif.id] if to is None and there[vif.id].host == host else ports.bind(
                work, there[vif.id], to, zone, agent_away, profile)
            after.append(dataclasses.replace(port_vifs.moved(vif, port), before=before(vif)))
    _are_gone(work, (vif for vif in vifs if vif.id not in there))
    port_vifs.say(work, vifs, after)


def _are_gone(work: Work[Any], vifs: Iterable[Vif]) -> None:
    """A server that moves leaves these behind, whose ports are gone. What it holds for them wherever it comes to rest
    is given back then: a host was asked for them, too."""
    for vif in vifs:
        port_releases.give_back_later(work, vif.id, PortResources.read(vif.id, vif.resource_request))
        if vif.is_function:
            beside.add(work, operations.Operation.new(
                work.ctxt, NetworkChanged.name, work.instance_uuid, {AT_REST: vif.id}, beside=True), (AT_REST,))


def ask(work: Work[Any], spec: objects.RequestSpec) -> None:
    """The request for a host of a server that moves asks for what its ports guarantee, as Neutron says it now; no
    request to it for a server without ports."""
    vifs, there = _with_ports(work)
    work.outputs.port_groups = guarantees.ask(spec, (there[vif.id] for vif in vifs if vif.id in there))


def _claimed(work: Work[Any], requests: objects.InstancePCIRequests | None) -> dict[str, dict[str, Any]]:
    """What the profiles of ports say of the devices that the server holds for these requests."""
    with engine.silence(), work.db.read() as conn:
        rows = pci_devices.by_instance(conn, work.instance_uuid)
    return pci_ports.profiles(requests, objects.PciDeviceList.from_rows(work.ctxt, rows))


def moves_here(work: Work[Any]) -> bool:
    """Whether something of the server's ports changes when it moves on its host: it gets other devices, or has what
    they guarantee of another provider."""
    return any(vif.is_function or vif.resource_request for vif in work.vifs())


def announce(work: Work[Any], host: Choice, requests: objects.InstancePCIRequests | None) -> None:
    """A running guest with ports will be on this host: they are bound there, too, and active where it is. May be
    repeated. ``requests``: those for which the host claimed what the ports are functions of; such a card leaves the
    guest before it goes, and comes anew. HostRejected: they can't be, or the guest would see a difference."""
    vifs, there = _with_ports(work)
    devices = _claimed(work, requests) if any(vif.is_function for vif in vifs) else {}
    for vif in vifs:
        if vif.id not in there:
            continue
        work.before_sending()
        try:
            binding = work.env.networks.add_binding(there[vif.id], host.host, {
                **guarantees.profile(there[vif.id], host.mappings), **devices.get(vif.id, {})})
        except PortBindingRefused as error:
            raise ports.PortBindingFailed(port_id=vif.id, host=host.host) from error
        if binding.vif_type != vif.type or (
                not vif.is_function and _plug(binding.vif_details) != _plug(vif.details)):
            raise HostRejected(f'Port {vif.id} is plugged in another way on host {host.host}: a running guest can not '
                               f'be moved there.')


def _plug(details: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a binding stands in the guest's domain."""
    return (bool(details.get('ovs_hybrid_plug')), *map(details.get, (
        'bridge_name', 'datapath_type', 'macvtap_source', 'vhostuser_socket', 'vhostuser_mode')))


def arrived(work: Work[Any], host: str, source: str) -> None:
    """The guest is on this host, where its ports were announced: they are, too, and no more on its source. Those that
    are functions are others there, and what they guarantee is of other providers. May be repeated."""
    vifs, there = _with_ports(work)
    left = []
    _are_gone(work, (vif for vif in vifs if vif.id not in there))
    for vif in vifs:
        if vif.id in there:
            port = there[vif.id]
            if port.host != host:
                work.before_sending()
                work.env.networks.activate_binding(vif.id, host)
                if vif.is_function or port.resource_request:
                    port = work.env.networks.port(None, vif.id)
            left.append(port_vifs.moved(vif, port) if vif.is_function or port.resource_request else vif)
            work.env.networks.delete_binding(vif.id, source)
    port_vifs.say(work, vifs, left)


def renounce(work: Work[Any], host: str) -> None:
    """The guest will not be on this host after all."""
    vifs, there = _with_ports(work)
    for vif in vifs:
        if vif.id in there and there[vif.id].host != host:
            work.env.networks.delete_binding(vif.id, host)


def _with_ports(work: Work[Any]) -> tuple[list[Vif], dict[str, Port]]:
    """The server's interfaces, and its ports by id as they are now; no request for a server without any."""
    vifs = work.vifs()
    return vifs, {port.id: port for port in work.env.networks.ports(device_id=work.instance_uuid)} if vifs else {}


def bound_here(work: Work[Any]) -> None:
    """Before a server is started where it is: ports that no agent could bind when they came here are bound now. No
    request where there are none of these."""
    server = work.instance()
    if server.host and any(vif.type in _UNBOUND for vif in server.vifs):
        _to_host(work, server.host, server.availability_zone, server.pci_requests,
                 lambda _, port: guarantees.kept(port), lambda vif: vif.before)


def off_host(work: Work[Any]) -> None:
    """The ports that a server has are bound to no host: it keeps them, and their addresses."""
    vifs, there = _with_ports(work)
    left = []
    for vif in vifs:
        if vif.id not in there:
            continue
        port = there[vif.id]
        if port.host is not None:
            work.before_sending()
            port = work.env.networks.release_host(port)
        left.append(port_vifs.moved(vif, port))
    port_vifs.say(work, vifs, left)
