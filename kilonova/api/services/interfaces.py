"""Interfaces of existing servers: check and accept attach and detach requests, and wait for the end of an attach.

    port = interfaces.attach(backend, ctxt, server, interfaces.WantedInterface(network_id=…), external=False)
    interfaces.detach(backend, ctxt, server, port_id)

Conductors and compute services execute the accepted requests. The handlers of ``/servers/{id}/os-interface`` call this
module.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kilonova.api.services import images, networks, resize, server_operations, unsupported
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.clients.neutron.ports import FixedIp, Port
from kilonova.clients.neutron.refusals import PortNotFound
from kilonova.context import RequestContext
from kilonova.db.arguments.attachments import AttachInterfaceArguments, DetachInterfaceArguments
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, operations
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Conflict, Invalid, Unanswered, Unavailable
from kilonova.objects import InstancePCIRequest
from kilonova.objects.vif import ACCELERATED, Vif
from kilonova.pci.request import numa_affinity_policy

ATTACH, DETACH = 'attach_interface', 'detach_interface'


class NetworkAndPort(Invalid):
    """Error 400: the request names both a network and a port. Only one of them is allowed."""

    msg_fmt = 'Must not input both network_id and port_id: net_id is %(network_id)s, and port_id %(port_id)s.'


class NetworkMissing(Invalid):
    """Error 400: the request names a fixed address, but no network."""

    msg_fmt = 'Must input network_id when request IP address: fixed_ips names %(address)s, and there is no net_id.'


class NoNetwork(Invalid):
    """Error 400: the request names no network, and the project has none."""

    msg_fmt = "No specific network was requested and none are available for project '%(project)s'."


class InterfaceAttachFailed(Conflict):
    """Error 409: the interface could not be attached."""

    msg_fmt = 'Failed to attach the interface to server %(server)s: %(reason)s'


class InterfaceAttachContinues(Unavailable):
    """Error 503: the interface is not attached within the response timeout, and the operation continues."""

    msg_fmt = (
        'The interface of server %(server)s was not attached within %(seconds)g s. The request continues; its '
        'result will be in the instance action %(action)s of request %(request)s.'
    )


@dataclass(frozen=True)
class WantedInterface:
    """A requested interface: an existing port of the user, or a new port in a network.

    If ``network_id`` and ``port_id`` are None, the project must be able to use exactly one network, which gets the new
    port. ``address`` is the requested fixed address of a new port. ``tag`` is the device tag by which the guest finds
    the interface.
    """

    network_id: str | None = None
    port_id: str | None = None
    address: str | None = None
    tag: str | None = None

    def check(self) -> None:
        """Check that the members fit together.

        Raises:
            NetworkAndPort: A network and a port are named.
            FixedIpOfPort: A fixed address and a port are named.
            NetworkMissing: A fixed address is named without a network.
        """
        if self.network_id and self.port_id:
            raise NetworkAndPort(network_id=self.network_id, port_id=self.port_id)
        if self.address and self.port_id:
            raise networks.FixedIpOfPort(address=self.address, port_id=self.port_id)
        if self.address and not self.network_id:
            raise NetworkMissing(address=self.address)

    def asked(self) -> list[dict[str, Any]]:
        """Return the requested interface in the form that ``networks`` has in the body of a create request."""
        if self.port_id:
            return [{'port': self.port_id}]
        return [{'uuid': self.network_id, 'fixed_ip': self.address}] if self.network_id else []


# --- attach an interface ---------------------------------------------------------------------------------------------
def attach(
    backend: Backend, ctxt: RequestContext, server: ServerRef, wanted: WantedInterface, *, external: bool
) -> Port:
    """Attach an interface to a server, wait for the end of the operation, and return the interface's port.

    If the network service does not answer after the attach, the returned port is built from the server's info cache.
    ``external`` says whether the port may be in an external network.

    Raises:
        NoNetworkService: This cloud has no network service.
        NoNetwork: No network is named, and the project has none.
        InterfaceAttachFailed: The attach failed, or the port was detached again at once.
        InterfaceAttachContinues: The attach is not complete within the RPC response timeout.

    Also raises the errors of ``WantedInterface.check``, ``networks.look_up``, ``networks.fit``,
    ``server_operations.check`` and ``server_operations.accept_in_turn``.
    """
    wanted.check()
    if backend.networks is None:
        raise unsupported.NoNetworkService(
            wanted=f'port {wanted.port_id}' if wanted.port_id else f'network {wanted.network_id}'
        )
    server_operations.check(ctxt, server, f'{ATTACH}.start')
    interface = _look_up(backend, ctxt, wanted, external)
    request = _request(ctxt, server, interface)
    row = OperationRow.new(
        ctxt,
        ATTACH,
        server.uuid,
        AttachInterfaceArguments(
            wish={
                'network_id': interface.network_id,
                'port_id': interface.port_id,
                'address': interface.address,
                'device': request.request_id if request is not None else None,
                'tag': wanted.tag,
            },
            request=request.obj_to_primitive() if request is not None else None,
            resources=interface.resource_request,
        ),
    )
    before: set[str] = set()
    server_operations.accept_in_turn(
        backend,
        ctxt,
        server,
        f'{ATTACH}.start',
        row,
        ATTACH,
        write=lambda conn: before.update(vif['id'] for vif in _cached(conn, server.uuid)),
    )
    backend.conductor.run_operation(ctxt, operation=row.uuid)
    vif = Vif.read(_attached(backend, ctxt, server, row, before))
    try:
        return backend.networks.port(ctxt, vif.id)
    except Unanswered:
        return Port(
            id=vif.id,
            network_id=vif.network_id,
            project_id=vif.project_id,
            mac=vif.mac,
            admin_state_up=True,
            status='ACTIVE' if vif.active else 'DOWN',
            device_id=server.uuid,
            device_owner='',
            fixed_ips=tuple(
                FixedIp(subnet.id or '', one.address) for subnet in vif.subnets for one in subnet.addresses
            ),
        )


def _look_up(
    backend: Backend, ctxt: RequestContext, wanted: WantedInterface, external: bool
) -> networks.RequestedInterface:
    asked = networks.read(backend, ctxt, wanted.asked(), (), 1)
    try:
        found = networks.look_up(backend, ctxt, asked, external=external)
    except networks.NetworkAmbiguous as error:
        raise Invalid(error.message) from None
    if not found.interfaces:
        # The project has no network.
        # Unlike the creation of a server, an attach does not ask Neutron for a new network (auto-allocated topology).
        raise NoNetwork(project=ctxt.project_id)
    networks.fit(backend, ctxt, found, 1, 1)
    (interface,) = found.interfaces
    if interface.profile:
        raise server_operations.PortAccelerated
    return interface


def _request(
    ctxt: RequestContext, server: ServerRef, interface: networks.RequestedInterface
) -> InstancePCIRequest | None:
    """Return the PCI request of the interface's SR-IOV port, or None if the port is no SR-IOV port.

    The request has the port's NUMA affinity policy (the port attribute numa_affinity_policy). If the port has none, the
    request has the policy of the server's flavor or image.
    """
    if interface.device is None:
        return None
    instance = resize.instance_of(ctxt, server)
    properties = images.of_server(instance.system_metadata, instance.image_ref).get('properties') or {}
    policy = numa_affinity_policy(instance.flavor.extra_specs, properties)
    return interface.device.replaced(numa_policy=interface.device.numa_policy or policy)


def _attached(
    backend: Backend, ctxt: RequestContext, server: ServerRef, row: OperationRow, before: set[str]
) -> dict[str, Any]:
    """Wait for the end of the operation, and return the entry of the new interface in the info cache.

    The new interface is the one whose id is not in ``before``. Raises InterfaceAttachFailed if the operation failed or
    the port was detached again, and InterfaceAttachContinues if the operation has not ended in time.
    """

    def look(conn: Connection) -> dict[str, Any] | None:
        if operations.get(conn, row.uuid) is not None:
            return None
        reason = server_operations.failure(conn, server, ctxt.request_id)
        if reason is not None:
            raise InterfaceAttachFailed(server=server.uuid, reason=reason)
        new = [vif for vif in _cached(conn, server.uuid) if vif['id'] not in before]
        if not new:
            raise InterfaceAttachFailed(server=server.uuid, reason='its port was detached again at once')
        return new[0]

    vif = server_operations.wait(backend, server, look)
    if vif is None:
        raise InterfaceAttachContinues(
            server=server.uuid, seconds=backend.options.answer_seconds, action=ATTACH, request=ctxt.request_id
        )
    return vif


def _cached(conn: Connection, uuid: str) -> list[dict[str, Any]]:
    """Return the server's info cache: its interfaces in the order of the guest, or [] if the server is deleted."""
    row = instances.get(conn, uuid)
    found: list[dict[str, Any]] = json.loads((row['extra_network_info'] if row is not None else None) or '[]')
    return found


# --- detach an interface ---------------------------------------------------------------------------------------------
def detach(backend: Backend, ctxt: RequestContext, server: ServerRef, port_id: str) -> None:
    """Accept the detach of an interface from a server, and wake a conductor.

    Raises PortNotFound if the server does not have the port, PortAccelerated if the port has a vnic_type of Cyborg, and
    the errors of ``server_operations.run``.
    """
    vifs = json.loads(server.row['extra_network_info'] or '[]') if server.cell is not None else []
    vif = next((one for one in vifs if one['id'] == port_id.lower()), None)
    if vif is None:
        raise PortNotFound(port_id=port_id)
    if vif.get('vnic_type') in ACCELERATED:
        raise server_operations.PortAccelerated

    def check(conn: Connection) -> None:
        if not any(one['id'] == vif['id'] for one in _cached(conn, server.uuid)):
            raise PortNotFound(port_id=port_id)

    server_operations.run(
        backend, ctxt, server, DETACH, f'{DETACH}.start', DetachInterfaceArguments(vif=vif), write=check
    )
