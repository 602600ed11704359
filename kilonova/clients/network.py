"""The client of Neutron: networks, ports made, bound, unbound and deleted, and what stands beside them.

    client = NetworkClient(adapter)                             # adapter: session.adapter(conf, 'neutron', …)
    found = client.networks(ctxt, [network_id])                 # as the user: what this user may see
    port = client.create_port(network_id, project_id=project, device_id=uuid, device_owner='compute:nova', host='gpu1')
    port.binding_failed                                         # True: no agent of that host can bind it
    client.delete_port(port.id)                                 # may be repeated

Calls with a context that carries a token are the user's; with None, and where there is no context, they are the
service's own, which needs the roles admin and service (Neutron's default policy), and shows with a service token of the
same account that it is one. Routes: https://docs.openstack.org/api-ref/network/v2/.
"""
from __future__ import annotations

from kilonova.clients.neutron.bindings import Bindings
from kilonova.clients.neutron.floating_ips import FloatingIps
from kilonova.clients.neutron.networks import Networks
from kilonova.clients.neutron.ports import Ports
from kilonova.clients.neutron.security_groups import SecurityGroups


class NetworkClient(Ports, Bindings, Networks, FloatingIps, SecurityGroups):
    """One per process; threads may share it. Each call may raise Unanswered, NetworkForbidden (of a user) or
    NetworkAccountRefused (of the service); results of several come in no order."""
