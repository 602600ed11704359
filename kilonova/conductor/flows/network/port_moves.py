"""Bindings of the ports of a server that moves.

    port_moves.to_host(work, host)          # bind the ports to the host of this attempt
    port_moves.off_host(work)               # bind the ports to no host
    port_moves.announce(work, host, …)      # bind the ports of a running guest to its destination as well

A binding of ``announce`` becomes the active one by ``arrived``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kilonova import objects
from kilonova.clients.neutron.ports import Port
from kilonova.clients.neutron.refusals import PortBindingRefused
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.network import guarantees, port_releases, port_vifs, ports
from kilonova.conductor.flows.network.network_changed import AT_REST, NetworkChanged
from kilonova.conductor.row import ChosenHost
from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.queries import operations, pci_devices
from kilonova.errors import HostRejected
from kilonova.objects.port_resources import ALLOCATION, PortResources
from kilonova.objects.vif import Vif
from kilonova.pci import ports as pci_ports

# Types of VIFs that can't be plugged into a guest.
_UNBOUND = frozenset(('', 'binding_failed', 'unbound'))


def to_host(work: Work[Any], host: ChosenHost, requests: objects.InstancePCIRequests | None = None) -> None:
    """Bind the ports of a server to the host of this attempt, and update the info cache.

    Repeated calls are safe. Sends no request for a server without ports. A port that its owner has deleted or given to
    another server is removed from the server.

    Args:
        work: The operation.
        host: The host of this attempt.
        requests: PCI requests for which the host claimed the device functions of ports; without them such ports are
            bound to no host.

    Raises:
        PortBindingFailed: The network agent of the host can't bind a port.
        PortChanged: A port requests other resources than Placement was asked for.
    """
    move = work.args.get('migration_uuid')

    def before(vif: Vif) -> Mapping[str, Any]:
        if move is None or move in vif.before:
            return vif.before
        # Stored only once: if the step is repeated, the binding may already be that of this host.
        return {move: vif.profile.get(ALLOCATION)} if vif.resource_request else {}

    _to_host(
        work,
        host.host,
        host.availability_zone,
        requests,
        lambda _, port: guarantees.profile(port, host.mappings),
        before,
    )


def to_source(work: Work[Any], migration: objects.Migration, zone: str | None, *, agent_away: bool = False) -> None:
    """Bind the ports to the source of a move, with the devices and providers that the server had there.

    With ``agent_away`` True a failed binding is accepted, and ``bound_here`` binds the port later. The destination may
    already have written new values of the server, so the old ones are read from the migration context.
    """
    requests = None
    if moves_here(work):
        server = work.instance(fresh=True)
        context = server.migration_context
        requests = (
            context.old_pci_requests
            if context is not None and context.migration_id == migration.id
            else server.pci_requests
        )

    def allocation(vif: Vif, port: Port) -> dict[str, Any]:
        was = vif.before.get(migration.uuid, vif.profile.get(ALLOCATION))
        return {ALLOCATION: was} if was is not None else {}

    _to_host(work, migration.source_compute, zone, requests, allocation, lambda _: {}, agent_away)


def _to_host(
    work: Work[Any],
    host: str,
    zone: str | None,
    requests: objects.InstancePCIRequests | None,
    allocation: Callable[[Vif, Port], dict[str, Any]],
    before: Callable[[Vif], Mapping[str, Any]],
    agent_away: bool = False,
) -> None:
    """Bind the ports to a host and update the info cache.

    ``allocation(vif, port)`` returns the part of the binding about providers in Placement. ``before(vif)`` returns the
    new value of ``Vif.before``.
    """
    vifs, there = _with_ports(work)
    devices = _claimed(work, requests) if any(vif.is_function for vif in vifs) else {}
    after = []
    for vif in vifs:
        if vif.id in there:
            to = host if not vif.is_function or vif.id in devices else None
            profile = {**allocation(vif, there[vif.id]), **devices.get(vif.id, {})}
            # If the step is repeated, the host may have bound the port to a device already.
            port = (
                there[vif.id]
                if to is None and there[vif.id].host == host
                else ports.bind(work, there[vif.id], to, zone, agent_away, profile)
            )
            after.append(dataclasses.replace(port_vifs.moved(vif, port), before=before(vif)))
    _are_gone(work, (vif for vif in vifs if vif.id not in there))
    port_vifs.save_info_cache(work, vifs, after)


def _are_gone(work: Work[Any], vifs: Iterable[Vif]) -> None:
    """Add pending releases for ports that were deleted before the server moved.

    The resources that the server holds for them on its final host are released when it is at rest, because the
    scheduler requested them, too.
    """
    for vif in vifs:
        port_releases.give_back_later(work, vif.id, PortResources.read(vif.id, vif.resource_request))
        if vif.is_function:
            releases.add(
                work,
                operations.OperationRow.new(
                    work.ctxt, NetworkChanged.name, work.instance_uuid, {AT_REST: vif.id}, beside=True
                ),
                (AT_REST,),
            )


def ask(work: Work[Any], spec: objects.RequestSpec) -> None:
    """Add the resources that the server's ports guarantee, as Neutron has them now, to the request for a host.

    Sends no request to Neutron for a server without ports.
    """
    vifs, there = _with_ports(work)
    work.outputs.port_groups = guarantees.ask(spec, (there[vif.id] for vif in vifs if vif.id in there))


def _claimed(work: Work[Any], requests: objects.InstancePCIRequests | None) -> dict[str, dict[str, Any]]:
    """Return the parts of port profiles about the devices that the server holds for these requests, by port id."""
    with engine.silence(), work.db.read() as conn:
        rows = pci_devices.by_instance(conn, work.instance_uuid)
    return pci_ports.profiles(requests, objects.PciDeviceList.from_rows(work.ctxt, rows))


def moves_here(work: Work[Any]) -> bool:
    """Return whether the server's ports change even if it moves on the same host.

    They do if a port is a device function, or has resources of a provider that may be another one after the move.
    """
    return any(vif.is_function or vif.resource_request for vif in work.vifs())


def announce(work: Work[Any], host: ChosenHost, requests: objects.InstancePCIRequests | None) -> None:
    """Bind the ports of a running guest to the destination of its live migration as well.

    The ports stay active on the source. ``requests`` are the PCI requests for which the destination claimed the device
    functions of ports. Such a device is unplugged from the guest before the migration, and a new one is plugged in
    afterwards. Repeated calls are safe. Raises HostRejected if a port can't be bound there, or if the guest would
    notice a difference.
    """
    vifs, there = _with_ports(work)
    devices = _claimed(work, requests) if any(vif.is_function for vif in vifs) else {}
    for vif in vifs:
        if vif.id not in there:
            continue
        work.before_sending()
        try:
            binding = work.env.networks.add_binding(
                there[vif.id],
                host.host,
                {**guarantees.profile(there[vif.id], host.mappings), **devices.get(vif.id, {})},
            )
        except PortBindingRefused as error:
            raise ports.PortBindingFailed(port_id=vif.id, host=host.host) from error
        if binding.vif_type != vif.type or (not vif.is_function and _plug(binding.vif_details) != _plug(vif.details)):
            raise HostRejected(
                f'Cannot live migrate: port {vif.id} would have another vif_type or bridge on host {host.host}'
            )


def _plug(details: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the parts of a binding that the guest's domain contains."""
    return (
        bool(details.get('ovs_hybrid_plug')),
        *map(details.get, ('bridge_name', 'datapath_type', 'macvtap_source', 'vhostuser_socket', 'vhostuser_mode')),
    )


def arrived(work: Work[Any], host: str, source: str) -> None:
    """Activate the bindings on the destination of a live migration, and delete those on the source.

    Device functions and the providers of guaranteed resources are different there. Repeated calls are safe.
    """
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
    port_vifs.save_info_cache(work, vifs, left)


def renounce(work: Work[Any], host: str) -> None:
    """Delete the bindings on the destination of a live migration that failed."""
    vifs, there = _with_ports(work)
    for vif in vifs:
        if vif.id in there and there[vif.id].host != host:
            work.env.networks.delete_binding(vif.id, host)


def _with_ports(work: Work[Any]) -> tuple[list[Vif], dict[str, Port]]:
    """Return the server's interfaces, and its present ports in Neutron by id.

    Sends no request for a server without interfaces.
    """
    vifs = work.vifs()
    return vifs, {port.id: port for port in work.env.networks.ports(device_id=work.instance_uuid)} if vifs else {}


def bound_here(work: Work[Any]) -> None:
    """Bind ports that no network agent could bind when the server came to its host.

    This is done before the server is started. Sends no request if there are no such ports.
    """
    server = work.instance()
    if server.host and any(vif.type in _UNBOUND for vif in server.vifs):
        _to_host(
            work,
            server.host,
            server.availability_zone,
            server.pci_requests,
            lambda _, port: guarantees.kept(port),
            lambda vif: vif.before,
        )


def off_host(work: Work[Any]) -> None:
    """Bind the ports of a server to no host.

    The server keeps its ports and their addresses.
    """
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
    port_vifs.save_info_cache(work, vifs, left)
