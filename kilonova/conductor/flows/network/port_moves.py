"""Bind the ports of a server that moves to its new host, and back to its old host after a failure.

    port_moves.to_host(work, host)          # bind the ports to the host of this attempt
    port_moves.off_host(work)               # bind the ports to no host
    port_moves.announce(work, host, …)      # bind the ports of a running guest to its destination as well

During a live migration a port has two bindings. ``arrived`` activates the binding that ``announce`` has created.
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
from kilonova.conductor.flows.network.network_changed import NetworkChanged
from kilonova.conductor.row import ChosenHost
from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.arguments.attachments import NetworkChangedArguments
from kilonova.db.arguments.base import MigrationArguments
from kilonova.db.queries import operations, pci_devices
from kilonova.errors import HostRejected
from kilonova.objects.port_resources import ALLOCATION, PortResources
from kilonova.objects.vif import Vif
from kilonova.pci import ports as pci_ports

# Values of ``binding:vif_type`` of ports that no network agent has bound, and that can't be plugged into a guest.
_UNBOUND = frozenset(('', 'binding_failed', 'unbound'))


def to_host(work: Work[Any], host: ChosenHost, requests: objects.InstancePCIRequests | None = None) -> None:
    """Bind the ports of a server to the host of this attempt, and update the info cache.

    Repeated calls are safe. Sends no request for a server without ports. A port that the user has deleted or given to
    another server is removed from the info cache.

    Args:
        work: The operation.
        host: The host of this attempt.
        requests: PCI requests of SR-IOV ports, for which the host has claimed functions (VFs or PFs). If None, such
            ports are bound to no host.

    Raises:
        PortBindingFailed: The network agent of the host can't bind a port.
        PortChanged: The resource request of a port was changed after Placement was queried.
    """
    move = work.args.migration_uuid if isinstance(work.args, MigrationArguments) else None

    def before(vif: Vif) -> Mapping[str, Any]:
        if move is None or move in vif.before:
            return vif.before
        # Return the Placement providers of the port before the move. The caller stores them in the server's info cache.
        # In the first run of this step, the port's binding still names these providers.
        # If a conductor runs this step again, the binding may already name the providers of the new host.
        # A repeated run therefore returns ``vif.before``, the value from the info cache.
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
    """Bind the ports to the source of a move again, with the server's former devices and resource providers.

    ``zone`` is the availability zone of the source. ``agent_away`` is True if the source's network agent may be down:
    a failed binding then raises no error, and ``bound_here`` binds the port later. The PCI requests of the source are
    read from the migration context, because the server's row may already have those of the destination.
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

    ``zone`` is the host's availability zone. ``requests`` are the PCI requests of ports that need devices. For each
    port, ``allocation(vif, port)`` returns {'allocation': Placement providers} or {} for its binding:profile, and
    ``before(vif)`` returns the providers before the move, which are stored in the info cache to undo the move.
    ``agent_away`` is True if a failed binding raises no error, since the host's network agent may be down.
    """
    vifs, there = _with_ports(work)
    devices = _claimed(work, requests) if any(vif.is_function for vif in vifs) else {}
    after = []
    for vif in vifs:
        if vif.id in there:
            to = host if not vif.is_function or vif.id in devices else None
            profile = {**allocation(vif, there[vif.id]), **devices.get(vif.id, {})}
            # ``to`` is None if the server has claimed no device for this SR-IOV port. ``bind`` then unbinds the port.
            # Keep the port's binding if an earlier try of this step has bound the port to ``host``.
            port = (
                there[vif.id]
                if to is None and there[vif.id].host == host
                else ports.bind(work, there[vif.id], to, zone, agent_away, profile)
            )
            after.append(dataclasses.replace(port_vifs.moved(vif, port), before=before(vif)))
    _are_gone(work, (vif for vif in vifs if vif.id not in there))
    port_vifs.save_info_cache(work, vifs, after)


def _are_gone(work: Work[Any], vifs: Iterable[Vif]) -> None:
    """Add operation rows that release the devices and resources of deleted ports (pending releases).

    ``vifs`` are the interfaces of ports that were deleted in Neutron, but for which the server holds a device or
    resources on its new host. Conductors release them when no other operation works on the server.
    """
    for vif in vifs:
        port_releases.give_back_later(work, vif.id, PortResources.read(vif.id, vif.resource_request))
        if vif.is_function:
            releases.add(
                work,
                operations.OperationRow.new(
                    work.ctxt,
                    NetworkChanged.name,
                    work.instance_uuid,
                    NetworkChangedArguments(at_rest=vif.id),
                    beside=True,
                ),
            )


def ask(work: Work[Any], spec: objects.RequestSpec) -> None:
    """Add the ports' resource requests (such as QoS minimum bandwidth) to the request spec, before hosts are chosen.

    The resource requests are read from the server's ports in Neutron. Sends no request for a server without ports.
    """
    vifs, there = _with_ports(work)
    work.outputs.port_groups = guarantees.ask(spec, (there[vif.id] for vif in vifs if vif.id in there))


def _claimed(work: Work[Any], requests: objects.InstancePCIRequests | None) -> dict[str, dict[str, Any]]:
    """Return a dict from port id to the part of the port's binding:profile that names the device claimed for the port.

    ``requests`` are the PCI requests of the ports.
    """
    with engine.silence(), work.db.read() as conn:
        rows = pci_devices.by_instance(conn, work.instance_uuid)
    return pci_ports.profiles(requests, objects.PciDeviceList.from_rows(work.ctxt, rows))


def moves_here(work: Work[Any]) -> bool:
    """Return whether a resize on the same host changes the binding of a port of the server.

    This is so if there is an SR-IOV port or a port with a resource request (such as QoS minimum bandwidth), because the
    resize may give the port another device of the host, or another resource provider.
    """
    return any(vif.is_function or vif.resource_request for vif in work.vifs())


def announce(work: Work[Any], host: ChosenHost, requests: objects.InstancePCIRequests | None) -> None:
    """Bind the ports of a running guest to the destination of its live migration as well.

    The bindings on the source stay active. ``requests`` are the PCI requests of ports for which the destination has
    claimed functions of PCI devices. Repeated calls are safe. Raises HostRejected if a port can't be bound to the
    destination, or if the guest's domain XML would need another vif_type or bridge for it.
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
    """Return those values of a binding's ``vif_details`` on which the interface in the guest's libvirt XML depends.

    Two bindings with equal results (tuples of bridge name, vhost-user socket and so on) need the same XML.
    """
    return (
        bool(details.get('ovs_hybrid_plug')),
        *map(details.get, ('bridge_name', 'datapath_type', 'macvtap_source', 'vhostuser_socket', 'vhostuser_mode')),
    )


def arrived(work: Work[Any], host: str, source: str) -> None:
    """Activate the port bindings on the destination of a live migration, and delete the bindings on the source.

    The info cache gets the new devices and resource providers of the ports. Repeated calls are safe.
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
    """Delete the port bindings on ``host``, the destination of a live migration that failed."""
    vifs, there = _with_ports(work)
    for vif in vifs:
        if vif.id in there and there[vif.id].host != host:
            work.env.networks.delete_binding(vif.id, host)


def _with_ports(work: Work[Any]) -> tuple[list[Vif], dict[str, Port]]:
    """Return the interfaces in the server's info cache, and a dict from port id to the server's port in Neutron.

    Sends no request for a server without interfaces.
    """
    vifs = work.vifs()
    return vifs, {port.id: port for port in work.env.networks.ports(device_id=work.instance_uuid)} if vifs else {}


def bound_here(work: Work[Any]) -> None:
    """Bind those ports of a server to its host that the host's network agent could not bind before.

    Flows call this before the host starts the server. Sends no request if all ports are bound.
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
    """Remove the host from the bindings of a server's ports. The server keeps its ports and their addresses."""
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
