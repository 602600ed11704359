"""Security groups of existing servers: add, remove and list the groups of their ports in the network service.

    security_groups.add(backend, ctxt, server, 'web')           # to each port that can have groups
    security_groups.remove(backend, ctxt, server, group_id)
    groups, others = security_groups.listed(backend, ctxt, uuid)

The handlers of the server actions addSecurityGroup and removeSecurityGroup and of ``/servers/{id}/os-security-groups``
call this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from kilonova.api.services import server_operations, unsupported
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.ports import Port
from kilonova.clients.neutron.refusals import PortChanged, PortNotFound, SecurityGroupNotApplicable
from kilonova.clients.neutron.security_groups import SecurityGroupRules
from kilonova.context import RequestContext
from kilonova.errors import InstanceNotReady, Invalid, NotFound

# The maximum number of attempts to write a port that other clients change at the same time.
ATTEMPTS = 3


class NoPorts(Invalid):
    """Error 400: the server has no ports, so it can't have security groups."""

    msg_fmt = 'Server %(server)s has no ports, so it cannot have security groups.'


class GroupNotOfServer(NotFound):
    """Error 404: none of the server's ports has the security group."""

    msg_fmt = 'Security group %(name)s is not associated with server %(server)s: none of its ports has it.'


def add(backend: Backend, ctxt: RequestContext, server: ServerRef, name: str) -> None:
    """Add a security group, given by its name or id, to all ports of a server that can have groups.

    If the network service returns an error, some ports may already have the group. It is safe to call the function
    again.

    Raises:
        NoNetworkService: This cloud has no network service (error 400).
        NoPorts: The server has no ports (error 400).
        SecurityGroupNotApplicable: No port of the server can have groups (error 400).
        SecurityGroupNotFound: The group does not exist, or the user can't see it (error 404).
        SecurityGroupNotUnique: Several groups have this name (error 409).
        PortChanged: Other clients kept changing a port (error 409).
        InstanceNotReady: The server is in no cell yet (error 409).
    """
    networks, group, ports = _find(backend, ctxt, server, name)
    ports = [port for port in ports if port.takes_groups]
    if not ports:
        raise SecurityGroupNotApplicable
    _change_all(backend, networks, ctxt, server, ports, group, wanted=True)


def remove(backend: Backend, ctxt: RequestContext, server: ServerRef, name: str) -> None:
    """Remove a security group, given by its name or id, from all ports of a server.

    Raises GroupNotOfServer (404) if no port has the group. Also raises the errors of ``add``, except
    SecurityGroupNotApplicable.
    """
    networks, group, ports = _find(backend, ctxt, server, name)
    ports = [port for port in ports if group.id in port.security_groups]
    if not ports:
        raise GroupNotOfServer(name=name, server=server.uuid)
    _change_all(backend, networks, ctxt, server, ports, group, wanted=False)


def listed(
    backend: Backend, ctxt: RequestContext, uuid: str
) -> tuple[Sequence[SecurityGroupRules], dict[str, SecurityGroupRules]]:
    """Return two values: the security groups of a server's ports, and a dict from id to security group.

    The dict has the groups of the ports, and also the remote groups of their rules, whose names the API shows. ``uuid``
    is the server's uuid. All groups are read with the user's token. Without a network service both values are empty.
    """
    networks = backend.networks
    if networks is None:
        return (), {}
    ids = dict.fromkeys(group for port in networks.ports(device_id=uuid, ctxt=ctxt) for group in port.security_groups)
    known = networks.security_groups_of(ids, ctxt)
    groups = [known[one] for one in ids if one in known]
    others = {rule.remote_group for group in groups for rule in group.rules if rule.remote_group} - set(known)
    return groups, known | networks.security_groups_of(sorted(others), ctxt)


def _find(
    backend: Backend, ctxt: RequestContext, server: ServerRef, name: str
) -> tuple[NetworkClient, SecurityGroupRules, list[Port]]:
    if backend.networks is None:
        raise unsupported.NoNetworkService(wanted=f'security group {name}')
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    (group,) = backend.networks.security_groups(ctxt, [name])
    ports = backend.networks.ports(device_id=server.uuid, ctxt=ctxt)
    if not ports:
        raise NoPorts(server=server.uuid)
    return backend.networks, group, ports


def _change_all(
    backend: Backend,
    networks: NetworkClient,
    ctxt: RequestContext,
    server: ServerRef,
    ports: Sequence[Port],
    group: SecurityGroupRules,
    *,
    wanted: bool,
) -> None:
    """Add a group to these ports, or remove it if ``wanted`` is false, in Neutron and in the server's info cache."""
    for port in ports:
        _change(networks, ctxt, port, group.id, wanted=wanted)
    changed = {port.id for port in ports}
    server_operations.ports_changed(
        backend, ctxt, server, lambda vif: vif.with_group(group.name, wanted=wanted) if vif.id in changed else vif
    )


def _change(networks: NetworkClient, ctxt: RequestContext, port: Port, group: str, *, wanted: bool) -> None:
    """Add a security group to a port if ``wanted`` is true, or remove it from the port if ``wanted`` is false.

    The port's other groups stay. If another client changes the port at the same time (its revision number differs), the
    port is read again and the write is repeated. Raises PortChanged if this happens three times (``ATTEMPTS``). Do
    nothing if the port no longer exists.
    """
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
