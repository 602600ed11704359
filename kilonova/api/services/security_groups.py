"""Security groups of servers that are there: those of their ports, in the network service.

    security_groups.add(backend, ctxt, server, 'web')           # to each port that can have groups
    security_groups.remove(backend, ctxt, server, group_id)
    groups, others = security_groups.listed(backend, ctxt, uuid)
"""
from __future__ import annotations

import contextlib
from collections.abc import Sequence

from kilonova.api.services import accept, refusals
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.ports import Port
from kilonova.clients.neutron.refusals import PortChanged, PortNotFound, SecurityGroupNotApplicable
from kilonova.clients.neutron.security_groups import SecurityGroup
from kilonova.context import RequestContext
from kilonova.errors import InstanceNotReady, Invalid, NotFound

# How often a port is read and written again when somebody changes it at the same moment.
ATTEMPTS = 3


class NoPorts(Invalid):
    msg_fmt = 'Server %(server)s has no ports: it can have no security groups.'


class NotOfServer(NotFound):
    msg_fmt = 'Security group %(name)s is not associated with server %(server)s: none of its ports has it.'


def add(backend: Backend, ctxt: RequestContext, server: Found, name: str) -> None:
    """The server's ports have one group more, named by its name or id; ports that can have none stay as they are.

    NoNetworkService, NoPorts, SecurityGroupNotApplicable (400), SecurityGroupNotFound (404), SecurityGroupNotUnique,
    PortChanged, InstanceNotReady (409); after one of Neutron's errors some ports may have it: add may be repeated.
    """
    networks, group, ports = _find(backend, ctxt, server, name)
    ports = [port for port in ports if port.takes_groups]
    if not ports:
        raise SecurityGroupNotApplicable
    _change_all(backend, networks, ctxt, server, ports, group, wanted=True)


def remove(backend: Backend, ctxt: RequestContext, server: Found, name: str) -> None:
    """Its ports have one group less. NotOfServer (404); otherwise as ``add``."""
    networks, group, ports = _find(backend, ctxt, server, name)
    ports = [port for port in ports if group.id in port.security_groups]
    if not ports:
        raise NotOfServer(name=name, server=server.uuid)
    _change_all(backend, networks, ctxt, server, ports, group, wanted=False)


def listed(backend: Backend, ctxt: RequestContext, uuid: str) -> tuple[Sequence[SecurityGroup],
                                                                      dict[str, SecurityGroup]]:
    """A server's groups as its user sees them, and all that these or their rules name, by id."""
    networks = backend.networks
    if networks is None:
        return (), {}
    ids = dict.fromkeys(group for port in networks.ports(device_id=uuid, ctxt=ctxt) for group in port.security_groups)
    known = networks.security_groups_of(ids, ctxt)
    groups = [known[one] for one in ids if one in known]
    others = {rule.remote_group for group in groups for rule in group.rules if rule.remote_group} - set(known)
    return groups, known | networks.security_groups_of(sorted(others), ctxt)


def _find(backend: Backend, ctxt: RequestContext, server: Found,
          name: str) -> tuple[NetworkClient, SecurityGroup, list[Port]]:
    if backend.networks is None:
        raise refusals.NoNetworkService(wanted=f'security group {name}')
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    (group,) = backend.networks.security_groups(ctxt, [name])
    ports = backend.networks.ports(device_id=server.uuid, ctxt=ctxt)
    if not ports:
        raise NoPorts(server=server.uuid)
    return backend.networks, group, ports


def _change_all(backend: Backend, networks: NetworkClient, ctxt: RequestContext, server: Found, ports: Sequence[Port],
                group: SecurityGroup, *, wanted: bool) -> None:
    """Give these ports of a server a group, or take it from them, and show the server so."""
    for port in ports:
        _change(networks, ctxt, port, group.id, wanted=wanted)
    changed = {port.id for port in ports}
    accept.ports_changed(backend, ctxt, server, lambda vif: (
        vif.with_group(group.name, wanted=wanted) if vif.id in changed else vif))


def _change(networks: NetworkClient, ctxt: RequestContext, port: Port, group: str, *, wanted: bool) -> None:
    """What others change of the port at the same moment stays; one that is gone doesn't matter."""
    left = ATTEMPTS
    with contextlib.suppress(PortNotFound):
        while (group in port.security_groups) != wanted:
            others = [one for one in port.security_groups if one != group]
            left -= 1
            try:
                networks.set_security_groups(ctxt, port, [*others, group] if wanted else others)
                break
            except PortChanged:
                if not left:
                    raise
                port = networks.port(ctxt, port.id)
