"""The client of Neutron. It reads networks, and creates, binds, unbinds and deletes ports, and more.

    client = NetworkClient(adapter)                             # adapter: session.adapter(conf, 'neutron', …)
    found = client.networks(ctxt, [network_id])                 # as the user: only networks that this user can see
    port = client.create_port(network_id, project_id=project, device_id=uuid, device_owner='compute:nova', host='gpu1')
    port.binding_failed                                         # True: no agent of that host can bind it
    client.delete_port(port.id)                                 # may be repeated

Calls with a context that has a token are made as the user. Calls with None, and calls without a context, are made as
the service, whose account needs the roles admin and service (Neutron's default policy). These calls have a service
token of the same account, which shows that the caller is a service. Routes:
https://docs.openstack.org/api-ref/network/v2/.
"""

from __future__ import annotations

from kilonova.clients.neutron.bindings import Bindings
from kilonova.clients.neutron.floating_ips import FloatingIps
from kilonova.clients.neutron.networks import Networks
from kilonova.clients.neutron.ports import PortCalls
from kilonova.clients.neutron.security_groups import SecurityGroups


class NetworkClient(PortCalls, Bindings, Networks, FloatingIps, SecurityGroups):
    """The client of Neutron. A process has one, and threads may share it.

    Each call may raise Unanswered. A request as a user may raise NetworkForbidden. A request as the service may
    raise NetworkAccountRefused. Lists of results have no defined order.
    """
