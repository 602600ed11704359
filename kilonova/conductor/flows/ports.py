"""Ports of Neutron in flows: made and bound to a host before it is asked, given back when a server ends.

    vifs = ports.bind_wanted(work, host)    # [Vif] of a new server: what its user asked for, on this host
    ports.to_host(work, host)               # of one that moves
    ports.off_host(work)                    # of one that is on none
    ports.drop(work, own)                   # made ones are deleted, those of its user are unbound

Ports that are functions of PCI devices (SR-IOV) say in their binding which one the host claimed for them. A host that
claims and starts the guest by one order has them bound in between (``bind_devices``); before that they are the
server's, and bound to no host. What ports guarantee is in ``guarantees``: their bindings say of which providers it is.

Whoever takes an operation over finds its ports by the server's uuid, which is the ``device_id`` of each. A network
service that is silent holds no unwinding and no delete up: what is left becomes a pending release. So does a port that
may be made after the request for it got no answer: in the end a server has the ports of its info cache, and no others.
"""
from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kilonova import objects, states
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.networks import Network, Subnet
from kilonova.clients.neutron.ports import FixedIp, Port, name_in_dns
from kilonova.clients.neutron.refusals import NetworkInvalid, PortBindingRefused, PortChanged, PortInUse, PortNotFound
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import beside, guarantees
from kilonova.conductor.row import Choice, Outputs
from kilonova.conductor.work import NotYet, Step, Work
from kilonova.context import get_admin_context
from kilonova.db import engine
from kilonova.db.queries import claims, info_caches, operations, pci_devices
from kilonova.errors import (
    BuildAbort,
    Cancelled,
    HostRejected,
    InstanceInvalidState,
    InstanceNotFound,
    Invalid,
    Unanswered,
)
from kilonova.objects.port_resources import ALLOCATION, PortResources, total
from kilonova.objects.vif import ACCELERATED, FUNCTIONS, REQUEST, Vif, VifAddress, VifSubnet
from kilonova.pci import ports as pci_ports

LOG = logging.getLogger(__name__)

# In the place of a network's id.
AUTO = 'auto'
# The group that each project has.
DEFAULT_GROUP = 'default'
# Seconds after which a request that got no answer has made its port, or never will: more than a server works on one.
LATE = 120.0
# How often a port is read again that others change at the same time.
TRIES = 3
# Seconds until a server is looked at again on which an operation works; how a detach begins; the argument, a port's id,
# of changes that are looked at when no operation works on the server.
BUSY, DETACH, AT_REST = 5.0, 'detach_interface.start', 'at_rest'
# Types of VIFs that no guest can have.
_UNBOUND = frozenset(('', 'binding_failed', 'unbound'))
# Types of networks that are carried inside packets of another one.
_TUNNELS = frozenset(('geneve', 'gre', 'vxlan'))


class PortBindingFailed(HostRejected):
    msg_fmt = 'Binding failed for port %(port_id)s on host %(host)s: no network agent there can bind it.'


class PortNeedsBandwidth(Invalid):
    msg_fmt = ('Network %(network_id)s gives its ports a guaranteed bandwidth or packet rate, for which no host was '
               'asked: make a port of it, and ask for that one.')


class PortNamed(Invalid):
    msg_fmt = ("Port %(port_id)s has the name '%(name)s' in DNS, and the server's hostname is '%(hostname)s': a port "
               "without a name gets the server's, or make the two one.")


@dataclass
class PortOutputs(Outputs):
    """``vifs``: the server's interfaces, as they are bound in this attempt, in the form of the info cache; None: they
    aren't yet."""

    vifs: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Wish:
    """One interface that a user asked for: a port of their own, or one of a network (AUTO: of one that is made for the
    project), with an address if they named one. ``device``: the request for the function that the port is; ``profile``:
    the device profile of the accelerator that it is; ``tag``: by which the guest is to know it."""

    network_id: str
    port_id: str | None = None
    address: str | None = None
    device: str | None = None
    tag: str | None = None
    profile: str | None = None


# --- what was asked for ----------------------------------------------------------------------------------------------
def wishes(request_spec: Mapping[str, Any]) -> list[Wish]:
    """Of a request spec as it stands in an operation's arguments, in the user's order."""
    return [Wish(one['network_id'], one.get('port_id'), one.get('address'), one.get('pci_request_id'), one.get('tag'),
                 one.get('device_profile'))
            for one in _members(request_spec, 'requested_networks')]


def profiles(request_spec: Mapping[str, Any]) -> dict[str, str]:
    """{port: device profile} of those that are accelerators."""
    return {wish.port_id: wish.profile for wish in wishes(request_spec) if wish.port_id and wish.profile}


def _groups(request_spec: Mapping[str, Any]) -> dict[str, str]:
    """{id: name} of the security groups that were asked for."""
    return {one['uuid']: one['name'] for one in _members(request_spec, 'security_groups') if one.get('uuid')}


def _members(request_spec: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = request_spec['nova_object.data'].get(name)
    return [one['nova_object.data'] for one in found['nova_object.data']['objects']] if found else []


def given(request_spec: Mapping[str, Any]) -> list[str]:
    """Ids of the ports that are their user's own."""
    return [wish.port_id for wish in wishes(request_spec) if wish.port_id]


# --- to a host -------------------------------------------------------------------------------------------------------
def bind_wanted(work: Work[Any], host: Choice, is_first: bool) -> list[Vif]:
    """The ports that a new server's user asked for, bound to the host of this attempt: those that are there already
    are bound anew, the others are made. May be repeated; ``is_first``: nothing was asked of the network service for it
    yet.

    PortBindingFailed: another host may do. PortInUse, PortNotFound, PortQuotaFull and other errors of the client: the
    server can't have them.
    """
    spec, client, uuid = work.args['request_spec'], work.env.networks, work.instance_uuid
    wanted, groups = [_on_network(work, wish) for wish in wishes(spec)], _groups(spec)
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
                    port.device_profile if port.vnic_type in ACCELERATED else None) != wish.profile:
                raise PortChanged(port_id=wish.port_id)
            # A host of an attempt before may have bound it.
            to = host.host if wish.device is None and wish.profile is None else None
            ports.append(_bind(work, port, to, host.availability_zone, name=name, profile={
                **guarantees.profile(port, host.mappings), **requests.get(wish.port_id, {})}))
        elif (there := _take(made, wish)) is not None:
            ports.append(_bind(work, _plain(there), host.host, host.availability_zone, name=name))
        else:
            ports.append(_make(work, wish, host.host, host.availability_zone, own, list(groups), name))
    # What Neutron gives to ports that ask for nothing.
    names = tuple(groups.values()) or (DEFAULT_GROUP,)
    vifs = _described(work, ports, own, {port.id: names for port in ports if port.id not in own and
                                         port.security_groups}, is_new=True)
    return [dataclasses.replace(vif, tag=wish.tag) for vif, wish in zip(vifs, wanted, strict=True)]


def _on_network(work: Work[Any], wish: Wish) -> Wish:
    """The network service makes the network of the server's project that has none; once, however often it is asked."""
    if wish.network_id != AUTO:
        return wish
    work.before_sending()
    return dataclasses.replace(wish, network_id=work.env.networks.topology(work.ctxt.project_id or ''))


def bind_one(work: Work[Any], wish: Wish, profile: Mapping[str, Any] | None = None,
             mappings: guarantees.Mappings = MappingProxyType({})) -> Vif:
    """One interface more for a server that is on a host: a port that it has and its info cache lacks, or a new one, or
    its user's own; bound there, with this ``profile`` to the device that was claimed for it, and what ``mappings`` say
    of providers. May be repeated. Errors as ``bind_wanted`` has them."""
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
        port = _bind(work, found[0], *at, name=name,
                     profile={**guarantees.profile(found[0], mappings), **(profile or {})})
    else:
        not_ours = {*cached, *beside.ports_given(work)}
        made = [port for port in client.ports(device_id=work.instance_uuid) if port.id not in not_ours]
        there = _take(made, wish)
        port = (_bind(work, _plain(there), *at, name=name) if there is not None
                else _make(work, wish, *at, own, name=name))
    groups = client.security_groups_of(port.security_groups)
    (vif,) = _described(work, [port], own, {port.id: tuple(group.name for group in groups.values())}, is_new=False)
    return dataclasses.replace(vif, tag=wish.tag)


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
            port = there[vif.id] if to is None and there[vif.id].host == host else _bind(
                work, there[vif.id], to, zone, agent_away, profile)
            after.append(dataclasses.replace(_moved(vif, port), before=before(vif)))
    _are_gone(work, (vif for vif in vifs if vif.id not in there))
    _say(work, vifs, after)


def _are_gone(work: Work[Any], vifs: Iterable[Vif]) -> None:
    """A server that moves leaves these behind, whose ports are gone. What it holds for them wherever it comes to rest
    is given back then: a host was asked for them, too."""
    for vif in vifs:
        _give_back_later(work, vif.id, PortResources.read(vif.id, vif.resource_request))
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
    return any(vif.is_function or vif.resource_request for vif in work.instance().vifs)


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
            raise PortBindingFailed(port_id=vif.id, host=host.host) from error
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
            left.append(_moved(vif, port) if vif.is_function or port.resource_request else vif)
            work.env.networks.delete_binding(vif.id, source)
    _say(work, vifs, left)


def renounce(work: Work[Any], host: str) -> None:
    """The guest will not be on this host after all."""
    vifs, there = _with_ports(work)
    for vif in vifs:
        if vif.id in there and there[vif.id].host != host:
            work.env.networks.delete_binding(vif.id, host)


def _with_ports(work: Work[Any]) -> tuple[list[Vif], dict[str, Port]]:
    """The server's interfaces, and its ports by id as they are now; no request for a server without any."""
    vifs = work.instance().vifs
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
        left.append(_moved(vif, port))
    _say(work, vifs, left)


def _moved(vif: Vif, port: Port) -> Vif:
    # A physical function has a MAC address of its own, which its port takes over.
    return dataclasses.replace(vif, type=port.vif_type or '', details=port.vif_details, profile=port.profile,
                               active=port.active, mac=port.mac, resource_request=port.resource_request)


def _say(work: Work[Any], before: Sequence[Vif], after: Sequence[Vif]) -> None:
    stored = [vif.stored() for vif in after]
    if list(before) != list(after):
        # Also what is unwound because somebody cancelled it.
        work.decide({}, cancelled=work.failed,
                    write=lambda conn: info_caches.write(conn, work.instance_uuid, stored))
        work.changed()


def _take(made: list[Port], wish: Wish) -> Port | None:
    """One of the ports that were made before for this wish, which is nobody else's then."""
    for port in made:
        if port.network_id == wish.network_id and (
                wish.address is None or wish.address in [one.address for one in port.fixed_ips]):
            made.remove(port)
            return port
    return None


def _make(work: Work[Any], wish: Wish, host: str, zone: str | None, own: Sequence[str],
          groups: Sequence[str] = (), name: str = '') -> Port:
    work.before_sending()
    try:
        port = work.env.networks.create_port(
            wish.network_id, project_id=work.ctxt.project_id or '', device_id=work.instance_uuid,
            device_owner=_owner(work, zone), host=host,
            fixed_ip=wish.address, security_groups=groups, name=name)
    except Unanswered:
        # It may be made nevertheless, also after the next look.
        _release(work, own, delay=LATE)
        raise
    LOG.info('Port %s of %s was made, bound to %s', port.id, work.instance_uuid, host)
    return _bound(_plain(port), host)


def _plain(port: Port) -> Port:
    """One that we made. PortNeedsBandwidth: since the API looked its network got a policy that guarantees something."""
    if port.resource_request:
        raise PortNeedsBandwidth(network_id=port.network_id)
    return port


def _bind(work: Work[Any], port: Port, host: str | None, zone: str | None, agent_away: bool = False,
          profile: Mapping[str, Any] | None = None, name: str = '') -> Port:
    """The port is the server's, on this host (None: on none yet), with our part of its ``profile``, and with this
    ``name`` in DNS where ports have such (without, it stays). PortInUse: it is another's; PortNamed. PortBindingFailed,
    unless ``agent_away``."""
    bound = _bind_port(work.env.networks, port, host, work.instance_uuid, _owner(work, zone), profile or {},
                       work.before_sending, name)
    return bound if agent_away else _bound(bound, host)


def _bind_port(client: NetworkClient, port: Port, host: str | None, uuid: str, owner: str, profile: Mapping[str, Any],
               check: Callable[[], None], name: str = '') -> Port:
    for left in reversed(range(TRIES)):
        if port.device_id not in ('', uuid):
            raise PortInUse(port_id=port.id)
        if name and port.dns_name not in (None, '', name) and not port.device_id:
            raise PortNamed(port_id=port.id, name=port.dns_name, hostname=name)
        if (port.device_id, port.host, port.device_owner) == (uuid, host, owner) and (
                not port.binding_failed and profile.items() <= port.profile.items()
                and (not name or port.dns_name in (None, name))):
            return port
        check()
        try:
            return client.bind(port, host=host, device_id=uuid, device_owner=owner, profile=profile, name=name)
        except PortChanged:
            # Somebody changed it since it was read.
            if not left:
                raise
            port = client.port(None, port.id)
    raise AssertionError


def _bound(port: Port, host: str | None) -> Port:
    if port.binding_failed:
        raise PortBindingFailed(port_id=port.id, host=host)
    return port


# --- to a device -----------------------------------------------------------------------------------------------------
def bind_devices(client: NetworkClient | None, db: engine.Database, key: str, uuid: str, host: str,
                 profiles: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A host has claimed devices for ports of a server, and asks under its operation's key: they are bound to it, with
    these profiles, and the info cache says so; that. May be repeated.

    KeyGone, PortBindingFailed; BuildAbort: a port isn't the server's any more.
    """
    def check() -> None:
        with engine.silence(), db.read() as conn:
            claims.check(conn, key)
    check()
    if client is None:
        raise BuildAbort(instance_uuid=uuid, reason='[neutron] has no account at the conductor')
    there = {port.id: port for port in client.ports(device_id=uuid)}
    with engine.silence(), db.read() as conn:
        cached = {vif['id'] for vif in json.loads(operations.instance_or_404(conn, uuid)['extra_network_info'] or '[]')}
    bound = {}
    for port_id, profile in profiles.items():
        if port_id not in there:
            if port_id not in cached:
                # The server came here without it (``_are_gone``).
                continue
            raise BuildAbort(instance_uuid=uuid, reason=PortNotFound(port_id=port_id).message)
        port = there[port_id]
        bound[port_id] = _bound(_bind_port(client, port, host, uuid, port.device_owner,
                                           {**guarantees.kept(port), **profile}, check), host)
    for _ in range(TRIES):
        with engine.silence(), db.read() as conn:
            seen = operations.instance_or_404(conn, uuid)['extra_network_info']
        vifs = [_moved(vif, bound[vif.id]) if vif.id in bound else vif
                for vif in map(Vif.read, json.loads(seen or '[]'))]
        stored = [vif.stored() for vif in vifs]
        with engine.silence(), db.write() as conn:
            if info_caches.replace(conn, uuid, seen, stored):
                return stored
    raise Unanswered(who=f'server {uuid}', reason='its ports were changed meanwhile')


def _owner(work: Work[Any], zone: str | None) -> str:
    return f'compute:{zone or work.env.conf.default_availability_zone}'


# --- the info cache --------------------------------------------------------------------------------------------------
def _described(work: Work[Any], ports: Sequence[Port], own: Collection[str],
               groups: Mapping[str, tuple[str, ...]], *, is_new: bool) -> list[Vif]:
    """What the guest, its host and the API must know of these ports: three requests for all of them, at most. Ports
    that were made for a server that ``is_new`` have no floating addresses yet."""
    client = work.env.networks
    networks = client.networks(None, {port.network_id for port in ports})
    subnets = client.subnets({one.subnet_id for port in ports for one in port.fixed_ips})
    floating: dict[str, dict[str, list[str]]] = {}
    asked = [port.id for port in ports if not is_new or port.id in own]
    for one in client.floating_ips(asked) if asked else ():
        floating.setdefault(one.port_id or '', {}).setdefault(one.fixed_ip or '', []).append(one.address)
    return [_vif(port, networks.get(port.network_id), subnets, floating.get(port.id, {}), port.id in own,
                 groups.get(port.id, ())) for port in ports]


def _vif(port: Port, network: Network | None, subnets: Mapping[str, Subnet], floating: Mapping[str, list[str]],
         is_given: bool, groups: tuple[str, ...]) -> Vif:
    of_subnet: dict[str, list[FixedIp]] = {}
    for one in port.fixed_ips:
        of_subnet.setdefault(one.subnet_id, []).append(one)
    return Vif(
        id=port.id, mac=port.mac, network_id=port.network_id, label=network.name if network else port.network_id,
        project_id=port.project_id, type=port.vif_type or '', mtu=network.mtu if network else None,
        details=port.vif_details, profile=port.profile, vnic_type=port.vnic_type, active=port.active,
        resource_request=port.resource_request, preserve_on_delete=is_given,
        physical_network=network.physical_network if network else None,
        tunneled=network is not None and network.network_type in _TUNNELS, security_groups=groups,
        subnets=tuple(_subnet(subnets[subnet_id], addresses, floating) for subnet_id, addresses in of_subnet.items()
                      if subnet_id in subnets))


def _subnet(subnet: Subnet, addresses: Iterable[FixedIp], floating: Mapping[str, list[str]]) -> VifSubnet:
    return VifSubnet(
        cidr=subnet.cidr, version=subnet.ip_version, gateway=subnet.gateway_ip, dns=subnet.dns_nameservers,
        ipv6_mode=subnet.ipv6_address_mode, id=subnet.id,
        routes=tuple((route.destination, route.nexthop) for route in subnet.host_routes), dhcp=subnet.enable_dhcp,
        addresses=tuple(VifAddress(one.address, tuple(floating.get(one.address, ()))) for one in addresses))


def cached(instance: objects.Instance, vifs: Sequence[Mapping[str, Any]]) -> None:
    """The server has these interfaces, in the form of its info cache, for whoever it is sent to."""
    if vifs:
        instance.info_cache = objects.InstanceInfoCache(instance_uuid=instance.uuid, network_info=list(vifs))


# --- back ------------------------------------------------------------------------------------------------------------
def drop(work: Work[Any], own: Sequence[str], keep: Collection[str] = ()) -> None:
    """The server has no ports any more but those to ``keep``, which its info cache has; ``own``: ids of those that are
    their user's. Later, while the network service is silent or refuses."""
    beside.now_or_later(work, 'Ports', lambda: beside.give_back_ports(work, own, keep), lambda: _release(work, own))


def drop_one(work: Work[Any], vif: Vif) -> None:
    """The server has this port no more: it is deleted, or unbound where its user made it. May be repeated; later, as
    above, when the info cache lacks it."""
    client = work.env.networks

    def give_back() -> None:
        for port in client.ports(ids=[vif.id]):
            if port.device_id == work.instance_uuid:
                if vif.preserve_on_delete:
                    client.unbind(port)
                else:
                    client.delete_port(port.id)
    beside.now_or_later(work, 'Ports', give_back,
                        lambda: _release(work, [vif.id] if vif.preserve_on_delete else []))


def drop_guarantees(work: Work[Any], port_id: str, wanted: PortResources | None) -> None:
    """The server holds nothing in Placement for this port any more, which is gone or goes; later, while Placement or
    the network service are silent."""
    if wanted is None:
        return
    beside.now_or_later(
        work, 'Guarantees of ports',
        lambda: guarantees.settle(work.env, work.instance_uuid, wanted.classes, work.compare_now, but=port_id),
        lambda: _give_back_later(work, port_id, wanted))


def _give_back_later(work: Work[Any], port_id: str, wanted: PortResources | None) -> None:
    if wanted is not None:
        beside.add_release(work, {beside.RESOURCES_OF: port_id, beside.CLASSES: sorted(wanted.classes)},
                           (beside.RESOURCES_OF,))


def _release(work: Work[Any], own: Sequence[str], delay: float = 0) -> None:
    beside.add_release(work, {beside.PORTS_OF: work.instance_uuid, beside.PORTS_GIVEN: list(own)},
                       (beside.PORTS_OF, beside.PORTS_GIVEN), delay=delay)


# --- something of them was changed -----------------------------------------------------------------------------------
@dataclass
class ChangedOutputs(Outputs):
    """``gone``: ports that the server has no more, and for which it may hold something."""

    gone: list[str] = field(default_factory=list)


def refresh(work: Work[ChangedOutputs]) -> None:
    """The info cache says of the server's interfaces what Neutron says now: addresses, floating ones, groups. Those
    whose ports are gone, or another's, are gone, but those that hold something (see ``give_back``), and accelerators,
    which are the server's until it is deleted; there are no new ones: who attaches a port writes it himself.
    Unanswered: it is to wait for the end of an operation."""
    if AT_REST in work.args:
        beside.at_rest(work)
    row = work.instance_row(fresh=True)
    vifs, seen, held = work.instance().vifs, row['extra_network_info'], _held(work)
    if not vifs and not held:
        return
    client = work.env.networks
    there = {port.id: port for port in client.ports(device_id=work.instance_uuid)}
    ports = [there[vif.id] for vif in vifs if vif.id in there]
    if work.args.get('renamed'):
        _name(client, ports, name_in_dns(row['hostname'] or ''))
    groups = client.security_groups_of(one for port in ports for one in port.security_groups)
    described = {vif.id: vif for vif in _described(
        work, ports, [vif.id for vif in vifs if vif.preserve_on_delete],
        {port.id: tuple(groups[one].name for one in port.security_groups if one in groups) for port in ports},
        is_new=False)}
    left = [dataclasses.replace(described.get(vif.id, vif), tag=vif.tag, before=vif.before) for vif in vifs
            if vif.id in described or vif.id in held or vif.vnic_type in ACCELERATED]
    with engine.silence(), work.db.write() as conn:
        if info_caches.replace(conn, work.instance_uuid, seen, [vif.stored() for vif in left]):
            work.outputs.gone = [port_id for port_id in held if port_id not in there]
            return
    raise Unanswered(who=f'server {work.instance_uuid}', reason='its ports were changed meanwhile')


def _name(client: NetworkClient, ports: Iterable[Port], name: str) -> None:
    """They have this name in DNS; '': they keep what they have."""
    for port in ports:
        try:
            client.set_name(port, name)
        except PortNotFound:
            continue
        except PortChanged as error:
            raise NotYet(f'port {port.id}', 'it was changed meanwhile', BUSY) from error
        except NetworkInvalid as error:
            LOG.warning('Port %s of %s keeps its name in DNS: %s', port.id, port.device_id, error)


def _held(work: Work[Any]) -> list[str]:
    """The ports for which the server asks for devices where it is, or holds something in Placement."""
    server = work.instance()
    if not server.host:
        return []
    devices = [request.requester_id for request in pci_ports.requests_of_ports(server.pci_requests)]
    return list(dict.fromkeys([*devices, *(vif.id for vif in server.vifs if vif.held)]))


def looked_at(work: Work[Any]) -> list[operations.Operation]:
    """What is to begin when a resize is confirmed or reverted: until then a port that was deleted gave nothing back of
    what the server holds for it. Empty for servers that hold nothing for ports."""
    return [operations.Operation.new(work.ctxt, NetworkChanged.name, work.instance_uuid, {}, beside=True)
            ] if _held(work) else []


def held_again(work: Work[Any]) -> list[operations.Operation]:
    """What is to begin when a server has again in Placement what it held before a move: that may be for ports that
    were gone when it arrived, which it has no more."""
    held = guarantees.held(work)
    if not held or held == total(vif.held for vif in work.instance().vifs):
        return []
    classes = sorted({name for amounts in held.values() for name in amounts})
    return [operations.Operation.new(work.ctxt, 'release', work.instance_uuid, {
        beside.RESOURCES_OF: None, beside.CLASSES: classes}, beside=True)]


def give_back(work: Work[ChangedOutputs]) -> None:
    """The guest lets cards go whose ports are gone, and their devices and guarantees are free: a detach for each.
    Unanswered: an operation works on the server. In a state in which nothing can be detached it goes on having them."""
    while work.outputs.gone:
        _detach(work, work.outputs.gone[0])
        del work.outputs.gone[0]


def _detach(work: Work[ChangedOutputs], port_id: str) -> None:
    beside.at_rest(work)
    row, uuid = work.instance_row(fresh=True), work.instance_uuid
    there = [port for port in work.env.networks.ports(ids=[port_id]) if port.device_id == uuid]
    if there or port_id not in _held(work) or row['vm_state'] not in states.TRANSITIONS[DETACH].vm:
        return
    vif = next((vif.stored() for vif in work.instance().vifs if vif.id == port_id), None)
    ctxt = get_admin_context()
    detach = operations.Operation.new(ctxt, 'detach_interface', uuid, {'vif': vif, 'port_id': port_id})

    def check(conn: engine.Connection) -> None:
        # Whoever attaches a port has it written there at the end: it is not gone.
        if operations.instance_or_404(conn, uuid)['extra_network_info'] != row['extra_network_info']:
            raise NotYet(f'server {uuid}', 'its ports were changed meanwhile', BUSY)
    try:
        with engine.silence():
            operations.accept(work.db, instance_uuid=uuid, event=DETACH, operation=detach, write=check, action={
                'action': 'detach_interface', 'request_id': ctxt.request_id, 'user_id': None, 'project_id': None})
    except InstanceInvalidState as error:
        raise NotYet(f'server {uuid}', 'an operation works on it', BUSY) from error
    LOG.info('Port %s of %s is gone: what the server has for it is given back', port_id, uuid)
    work.env.runner.wake(work.db, [detach.uuid])


class NetworkChanged(Flow[ChangedOutputs]):
    """Neutron said so. Beside whatever works on the server."""

    name, outputs = 'network_changed', ChangedOutputs
    forward_only = True
    steps = (
        Step('refresh', refresh, saved=lambda work: bool(work.outputs.gone)),
        Step('give_back', give_back, saved=False),
    )

    def may_end(self, work: Work[ChangedOutputs], error: Exception) -> bool:
        """Also where the server is gone."""
        return isinstance(error, (Cancelled, InstanceNotFound))
