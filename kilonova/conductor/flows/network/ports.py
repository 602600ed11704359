"""Create Neutron ports in flows, and bind them to a host before the host uses them.

    vifs = ports.bind_wanted(work, host, is_first)    # [Vif] of a new server: the requested ports, bound to this host
    vif = ports.bind_one(work, wish)                  # one more port of a server that is on a host

If a port is a function of a PCI device (SR-IOV), its binding names the function that the host has claimed for the port.
Some RPC methods of a host claim devices and then start the guest. In these the host asks the conductor between the two
to bind the ports (``bind_devices``). Before the claim such a port belongs to the server and is bound to no host.

The ``device_id`` of each port is the server's uuid, so a conductor that takes an operation over finds all ports of the
server. If a request to create a port gets no reply, the port may be created later. Therefore an operation row is added
(a pending release), and a conductor later deletes ports that are not in the server's info cache (``port_releases``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from oslo_log import log as logging

from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.ports import Port, name_in_dns
from kilonova.clients.neutron.refusals import PortChanged, PortInUse, PortNotFound
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.network import guarantees, port_releases, port_vifs, requested_ports
from kilonova.conductor.row import ChosenHost, Outputs
from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.arguments.base import SpecArguments
from kilonova.db.queries import claims, info_caches, operations
from kilonova.errors import BuildAbort, HostRejected, Invalid, Unanswered
from kilonova.objects.vif import ACCELERATED, FUNCTIONS, REQUEST, Vif

LOG = logging.getLogger(__name__)
# Name of the security group that each project has. Neutron gives it to ports without requested security groups.
DEFAULT_GROUP = 'default'
# Seconds to wait after a request to create a port got no reply. After that time Neutron no longer creates the port.
LATE = 120.0
# Maximum number of tries to write a port or an info cache. A try fails if another process changed it since it was read.
TRIES = 3


class PortBindingFailed(HostRejected):
    """No network agent on the host can bind the port."""

    msg_fmt = 'Binding failed for port %(port_id)s on host %(host)s: no network agent of the host can bind it.'


class PortNeedsBandwidth(Invalid):
    """A created port got a QoS minimum bandwidth or packet rate from its network, for which Placement was not asked."""

    msg_fmt = (
        'Network %(network_id)s gives its ports a guaranteed bandwidth or packet rate by its QoS policy, so a server '
        'cannot request the network. Create a port in this network first, and request that port.'
    )


class PortNamed(Invalid):
    """The port has a name in DNS that differs from the server's hostname."""

    msg_fmt = (
        "Port %(port_id)s has dns_name '%(name)s', but the server's hostname is '%(hostname)s'. Clear the "
        "port's dns_name or use the same name."
    )


@dataclass
class PortOutputs(Outputs):
    """Stored results about ports.

    ``vifs`` are the server's interfaces with their bindings of this attempt, in the form in which the info cache stores
    them. It is None until the ports are bound.
    """

    vifs: list[dict[str, Any]] | None = None


def bind_wanted(work: Work[Any], host: ChosenHost, is_first: bool) -> list[Vif]:
    """Bind the requested ports of a new server to the host of this attempt, and return its interfaces.

    Ports of the user and ports that an earlier call created are bound; the other ports are created. ``is_first`` is
    True if no earlier call can have created ports, so that they need not be searched. Repeated calls are safe. Raises
    PortBindingFailed if the host can't bind a port, but another host might. Raises PortInUse, PortNotFound,
    PortQuotaFull and other errors of the network client if the server can't have the ports on any host.
    """
    spec, client, uuid = work.arguments(SpecArguments).request_spec, work.env.networks, work.instance_uuid
    wanted, groups = [_on_network(work, wish) for wish in requested_ports.wishes(spec)], requested_ports.groups(spec)
    known = {} if is_first else {port.id: port for port in client.ports(device_id=uuid)}
    own = [wish.port_id for wish in wanted if wish.port_id]
    if any(port_id not in known for port_id in own):
        known.update((port.id, port) for port in client.ports(ids=own))
    made = [port for port in known.values() if port.id not in own]
    name, ports = name_in_dns(work.instance().hostname or ''), []
    requests = {port: {REQUEST: request} for request, port in work.outputs.accelerated.items()}
    for wish in wanted:
        if wish.port_id is not None:
            if wish.port_id not in known:
                raise PortNotFound(port_id=wish.port_id)
            port = known[wish.port_id]
            if (port.vnic_type in FUNCTIONS) != (wish.device is not None) or (
                port.device_profile if port.vnic_type in ACCELERATED else None
            ) != wish.profile:
                raise PortChanged(port_id=wish.port_id)
            # A port that needs a PCI device or an accelerator is bound to its host later, after the device is claimed.
            # With ``to`` None, ``bind`` binds the port to no host, and removes the binding of an earlier attempt.
            to = host.host if wish.device is None and wish.profile is None else None
            ports.append(
                bind(
                    work,
                    port,
                    to,
                    host.availability_zone,
                    name=name,
                    profile={**guarantees.profile(port, host.mappings), **requests.get(wish.port_id, {})},
                )
            )
        elif (there := _take(made, wish)) is not None:
            ports.append(bind(work, _plain(there), host.host, host.availability_zone, name=name))
        else:
            ports.append(_make(work, wish, host.host, host.availability_zone, own, list(groups), name))
    # Names of the security groups of the created ports, for the info cache.
    # If the user requested no groups, Neutron has given the created ports the project's group DEFAULT_GROUP.
    names = tuple(groups.values()) or (DEFAULT_GROUP,)
    vifs = port_vifs.described(
        work, ports, own, {port.id: names for port in ports if port.id not in own and port.security_groups}, is_new=True
    )
    return [dataclasses.replace(vif, tag=wish.tag) for vif, wish in zip(vifs, wanted, strict=True)]


def _on_network(work: Work[Any], wish: requested_ports.RequestedPort) -> requested_ports.RequestedPort:
    """Return the requested port ``wish`` with the id of its network. If the id is AUTO, find or create the network.

    The network service creates a network of the project only if there is none, so repeated calls are safe.
    """
    if wish.network_id != requested_ports.AUTO:
        return wish
    work.before_sending()
    return dataclasses.replace(wish, network_id=work.env.networks.topology(work.ctxt.project_id or ''))


def bind_one(
    work: Work[Any],
    wish: requested_ports.RequestedPort,
    profile: Mapping[str, Any] | None = None,
    mappings: guarantees.Mappings = MappingProxyType({}),
) -> Vif:
    """Bind one more port to a server and its host, and return the interface of the port.

    ``wish`` says which port the user requested. If the user gave no port, a new port is created, or a port is used that
    an earlier call has created. The binding contains ``profile``, which names the claimed device, and the resource
    providers in ``mappings``. Repeated calls are safe. Raises the errors of ``bind_wanted``.
    """
    server, client = work.instance(fresh=True), work.env.networks
    cached, own = [vif.id for vif in server.vifs], [wish.port_id] if wish.port_id else []
    at, name = (server.host, server.availability_zone), name_in_dns(server.hostname or '')
    if wish.port_id is not None:
        found = client.ports(ids=own)
        if not found:
            raise PortNotFound(port_id=wish.port_id)
        if wish.port_id in cached:
            raise PortInUse(port_id=wish.port_id)
        if (found[0].vnic_type in FUNCTIONS) != (wish.device is not None):
            raise PortChanged(port_id=wish.port_id)
        port = bind(
            work, found[0], *at, name=name, profile={**guarantees.profile(found[0], mappings), **(profile or {})}
        )
    else:
        not_ours = {*cached, *releases.ports_given(work)}
        made = [port for port in client.ports(device_id=work.instance_uuid) if port.id not in not_ours]
        there = _take(made, wish)
        port = (
            bind(work, _plain(there), *at, name=name) if there is not None else _make(work, wish, *at, own, name=name)
        )
    groups = client.security_groups_of(port.security_groups)
    (vif,) = port_vifs.described(
        work, [port], own, {port.id: tuple(group.name for group in groups.values())}, is_new=False
    )
    return dataclasses.replace(vif, tag=wish.tag)


def _take(made: list[Port], wish: requested_ports.RequestedPort) -> Port | None:
    """Return a port from ``made`` that fits the requested port, and remove it from the list, or return None.

    ``made`` are ports that earlier calls have created for the server.
    """
    for port in made:
        if port.network_id == wish.network_id and (
            wish.address is None or wish.address in [one.address for one in port.fixed_ips]
        ):
            made.remove(port)
            return port
    return None


def _make(
    work: Work[Any],
    wish: requested_ports.RequestedPort,
    host: str,
    zone: str | None,
    own: Sequence[str],
    groups: Sequence[str] = (),
    name: str = '',
) -> Port:
    work.before_sending()
    try:
        port = work.env.networks.create_port(
            wish.network_id,
            project_id=work.ctxt.project_id or '',
            device_id=work.instance_uuid,
            device_owner=_owner(work, zone),
            host=host,
            fixed_ip=wish.address,
            security_groups=groups,
            name=name,
        )
    except Unanswered:
        # Neutron may create the port later. Add an operation row, with which a conductor deletes it after LATE seconds.
        port_releases.release(work, own, delay=LATE)
        raise
    LOG.info('Created port %s, bound to host %s', port.id, host, instance_uuid=work.instance_uuid)
    return _bound(_plain(port), host)


def _plain(port: Port) -> Port:
    """Return the created port. Raises PortNeedsBandwidth if it got a resource request from its network's QoS policy.

    The API refuses networks with a QoS minimum bandwidth or packet rate. So the network got the policy after the API
    had checked the network.
    """
    if port.resource_request:
        raise PortNeedsBandwidth(network_id=port.network_id)
    return port


def bind(
    work: Work[Any],
    port: Port,
    host: str | None,
    zone: str | None,
    agent_away: bool = False,
    profile: Mapping[str, Any] | None = None,
    name: str = '',
) -> Port:
    """Bind a port to the server and to a host, and return the port. If ``host`` is None, bind the port to no host.

    ``zone`` is the availability zone of the host. ``profile`` is Kilonova's part of the binding profile. ``name`` is
    the DNS name of the port, if ports have DNS names. An empty ``name`` leaves the DNS name unchanged.

    Raises:
        PortInUse: The port belongs to another server.
        PortNamed: The port has another DNS name.
        PortBindingFailed: No network agent can bind the port, and ``agent_away`` is False.
    """
    bound = _bind_port(
        work.env.networks, port, host, work.instance_uuid, _owner(work, zone), profile or {}, work.before_sending, name
    )
    return bound if agent_away else _bound(bound, host)


def _bind_port(
    client: NetworkClient,
    port: Port,
    host: str | None,
    uuid: str,
    owner: str,
    profile: Mapping[str, Any],
    check: Callable[[], None],
    name: str = '',
) -> Port:
    left = TRIES
    while True:
        left -= 1
        if port.device_id not in ('', uuid):
            raise PortInUse(port_id=port.id)
        if name and port.dns_name not in (None, '', name) and not port.device_id:
            raise PortNamed(port_id=port.id, name=port.dns_name, hostname=name)
        if (port.device_id, port.host, port.device_owner) == (uuid, host, owner) and (
            not port.binding_failed
            and profile.items() <= port.profile.items()
            and (not name or port.dns_name in (None, name))
        ):
            return port
        check()
        try:
            return client.bind(port, host=host, device_id=uuid, device_owner=owner, profile=profile, name=name)
        except PortChanged:
            # Another client has changed the port since it was read. Read the port again and retry, up to TRIES times.
            if not left:
                raise
            port = client.port(None, port.id)


def _bound(port: Port, host: str | None) -> Port:
    if port.binding_failed:
        raise PortBindingFailed(port_id=port.id, host=host)
    return port


def bind_devices(
    client: NetworkClient | None,
    db: engine.Database,
    key: str,
    uuid: str,
    host: str,
    profiles: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Bind ports of a server to the devices that a host has claimed for them, and return the server's interfaces.

    Hosts call this by RPC; ``key`` is the step key of the operation for which the host works. ``profiles`` is a dict
    from port id to the part of the binding profile that names the device. The bindings are also written to the info
    cache. Repeated calls are safe. Raises KeyGone if the operation is not at the step any more, PortBindingFailed if no
    network agent can bind a port, and BuildAbort if a port does not belong to the server any more.
    """

    def check() -> None:
        with engine.silence(), db.read() as conn:
            claims.check(conn, key)

    check()
    if client is None:
        raise BuildAbort(instance_uuid=uuid, reason='the conductor has no account in [neutron]')
    there = {port.id: port for port in client.ports(device_id=uuid)}
    with engine.silence(), db.read() as conn:
        cached = {vif['id'] for vif in json.loads(operations.instance_or_404(conn, uuid)['extra_network_info'] or '[]')}
    bound = {}
    for port_id, profile in profiles.items():
        if port_id not in there:
            if port_id not in cached:
                # Skip a port that is neither in Neutron nor in the server's info cache.
                # The port was deleted before the server moved to this host, but its PCI request still exists.
                continue
            raise BuildAbort(instance_uuid=uuid, reason=PortNotFound(port_id=port_id).message)
        port = there[port_id]
        bound[port_id] = _bound(
            _bind_port(client, port, host, uuid, port.device_owner, {**guarantees.kept(port), **profile}, check), host
        )
    for _ in range(TRIES):
        with engine.silence(), db.read() as conn:
            seen = operations.instance_or_404(conn, uuid)['extra_network_info']
        vifs = [
            port_vifs.moved(vif, bound[vif.id]) if vif.id in bound else vif
            for vif in map(Vif.read, json.loads(seen or '[]'))
        ]
        stored = [vif.stored() for vif in vifs]
        with engine.silence(), db.write() as conn:
            if info_caches.replace(conn, uuid, seen, stored):
                return stored
    raise Unanswered(f'The ports of server {uuid} were changed meanwhile; this will be retried')


def _owner(work: Work[Any], zone: str | None) -> str:
    return f'compute:{zone or work.env.conf.default_availability_zone}'
