"""Interfaces of servers that are there: what is asked for is checked, accepted, and an attach waited for.

    port = interfaces.attach(backend, ctxt, server, interfaces.Wanted(network_id=…), external=False)
    interfaces.detach(backend, ctxt, server, port_id)
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kilonova.api.services import accept, images, networks, refusals, resize
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.clients.neutron.ports import FixedIp, Port
from kilonova.clients.neutron.refusals import PortNotFound
from kilonova.context import RequestContext
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, operations
from kilonova.db.queries.operations import Operation
from kilonova.errors import Conflict, Invalid, Unanswered, Unavailable
from kilonova.objects import InstancePCIRequest
from kilonova.objects.vif import ACCELERATED, Vif
from kilonova.pci.request import numa_affinity_policy

ATTACH, DETACH = 'attach_interface', 'detach_interface'


class NetworkAndPort(Invalid):
    msg_fmt = 'Must not input both network_id and port_id: net_id is %(network_id)s, and port_id %(port_id)s.'


class NetworkMissing(Invalid):
    msg_fmt = 'Must input network_id when request IP address: fixed_ips names %(address)s, and there is no net_id.'


class NoNetwork(Invalid):
    msg_fmt = "No specific network was requested and none are available for project '%(project)s'."


class AttachFailed(Conflict):
    msg_fmt = 'Failed to attach the interface to server %(server)s: %(reason)s'


class AttachGoesOn(Unavailable):
    msg_fmt = ('The interface of server %(server)s is not attached after %(seconds)g s, and the request goes on: its '
               'instance action %(action)s tells how it ends, request %(request)s.')


@dataclass(frozen=True)
class Wanted:
    """A port of its user's, or a new one of a network (None: of the only one that there is), with an address if one is
    named; ``tag``: by which the guest is to know it."""

    network_id: str | None = None
    port_id: str | None = None
    address: str | None = None
    tag: str | None = None

    def check(self) -> None:
        """NetworkAndPort, NetworkMissing."""
        if self.network_id and self.port_id:
            raise NetworkAndPort(network_id=self.network_id, port_id=self.port_id)
        if self.address and self.port_id:
            raise networks.FixedIpOfPort(address=self.address, port_id=self.port_id)
        if self.address and not self.network_id:
            raise NetworkMissing(address=self.address)

    def asked(self) -> list[dict[str, Any]]:
        """As a create has it."""
        if self.port_id:
            return [{'port': self.port_id}]
        return [{'uuid': self.network_id, 'fixed_ip': self.address}] if self.network_id else []


# --- attach ----------------------------------------------------------------------------------------------------------
def attach(backend: Backend, ctxt: RequestContext, server: Found, wanted: Wanted, *, external: bool) -> Port:
    """The server has one interface more: its port, as it was attached if Neutron is silent by then. ``external``: it
    may be of an external network.

    Errors: those of ``networks.look_up`` and ``fit``, of ``accept.check``, and above.
    """
    wanted.check()
    if backend.networks is None:
        raise refusals.NoNetworkService(wanted=f'port {wanted.port_id}' if wanted.port_id
                                        else f'network {wanted.network_id}')
    accept.check(ctxt, server, f'{ATTACH}.start')
    interface = _look_up(backend, ctxt, wanted, external)
    request = _request(ctxt, server, interface)
    row = Operation.new(ctxt, ATTACH, server.uuid, {
        'wish': {'network_id': interface.network_id, 'port_id': interface.port_id, 'address': interface.address,
                 'device': request.request_id if request is not None else None, 'tag': wanted.tag},
        'request': request.obj_to_primitive() if request is not None else None,
        'resources': interface.resource_request})
    before: set[str] = set()
    accept.accept_in_turn(backend, ctxt, server, f'{ATTACH}.start', row, ATTACH,
                          write=lambda conn: before.update(vif['id'] for vif in _cached(conn, server.uuid)))
    backend.conductor.run_operation(ctxt, operation=row.uuid)
    vif = Vif.read(_attached(backend, ctxt, server, row, before))
    try:
        return backend.networks.port(ctxt, vif.id)
    except Unanswered:
        return Port(id=vif.id, network_id=vif.network_id, project_id=vif.project_id, mac=vif.mac, admin_state_up=True,
                    status='ACTIVE' if vif.active else 'DOWN', device_id=server.uuid, device_owner='',
                    fixed_ips=tuple(FixedIp(subnet.id or '', one.address) for subnet in vif.subnets
                                    for one in subnet.addresses))


def _look_up(backend: Backend, ctxt: RequestContext, wanted: Wanted, external: bool) -> networks.Interface:
    asked = networks.read(backend, ctxt, wanted.asked(), (), 1)
    try:
        found = networks.look_up(backend, ctxt, asked, external=external)
    except networks.NetworkAmbiguous as error:
        raise Invalid(error.message) from None
    if not found.interfaces:
        # None is made for an attach.
        raise NoNetwork(project=ctxt.project_id)
    networks.fit(backend, ctxt, found, 1, 1)
    (interface,) = found.interfaces
    if interface.profile:
        raise accept.PortAccelerated
    return interface


def _request(ctxt: RequestContext, server: Found, interface: networks.Interface) -> InstancePCIRequest | None:
    """What a port that is a function of a PCI device asks of the server's host, as near to the guest's NUMA cells as
    the port, flavor or image say."""
    if interface.device is None:
        return None
    instance = resize.instance_of(ctxt, server)
    properties = images.of_server(instance.system_metadata, instance.image_ref).get('properties') or {}
    policy = numa_affinity_policy(instance.flavor.extra_specs, properties)
    return interface.device.replaced(numa_policy=interface.device.numa_policy or policy)


def _attached(backend: Backend, ctxt: RequestContext, server: Found, row: Operation,
              before: set[str]) -> dict[str, Any]:
    """Wait for the end of the operation: what the info cache has that wasn't there ``before`` is its port."""
    def look(conn: Connection) -> dict[str, Any] | None:
        if operations.get(conn, row.uuid) is not None:
            return None
        reason = accept.failure(conn, server, ctxt.request_id)
        if reason is not None:
            raise AttachFailed(server=server.uuid, reason=reason)
        new = [vif for vif in _cached(conn, server.uuid) if vif['id'] not in before]
        if not new:
            raise AttachFailed(server=server.uuid, reason='its port was taken from the server at once')
        return new[0]
    vif = accept.wait(backend, server, look)
    if vif is None:
        raise AttachGoesOn(server=server.uuid, seconds=backend.options.answer_seconds, action=ATTACH,
                           request=ctxt.request_id)
    return vif


def _cached(conn: Connection, uuid: str) -> list[dict[str, Any]]:
    """The interfaces of a server, in its guest's order; none of one that is gone."""
    row = instances.get(conn, uuid)
    found: list[dict[str, Any]] = json.loads((row['extra_network_info'] if row is not None else None) or '[]')
    return found


# --- detach ----------------------------------------------------------------------------------------------------------
def detach(backend: Backend, ctxt: RequestContext, server: Found, port_id: str) -> None:
    """Begin it. PortNotFound: the server has no such interface."""
    vifs = json.loads(server.row['extra_network_info'] or '[]') if server.cell is not None else []
    vif = next((one for one in vifs if one['id'] == port_id.lower()), None)
    if vif is None:
        raise PortNotFound(port_id=port_id)
    if vif.get('vnic_type') in ACCELERATED:
        raise accept.PortAccelerated

    def check(conn: Connection) -> None:
        if not any(one['id'] == vif['id'] for one in _cached(conn, server.uuid)):
            raise PortNotFound(port_id=port_id)
    accept.run(backend, ctxt, server, DETACH, f'{DETACH}.start', {'vif': vif}, write=check)
