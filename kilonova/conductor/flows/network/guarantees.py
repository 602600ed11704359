"""Resource requests of Neutron ports (QoS minimum bandwidth or packet rate), as allocations of servers in Placement.

Placement allocates the resources of the ports together with the server's host. If a port is attached or detached later,
only the resources of this port are requested or released:

    guarantees.ask(spec, ports)                           # before the scheduler is called
    guarantees.profile(port, choice.mappings)             # the part of the port's binding about the chosen providers
    guarantees.add(work, port_id, wanted, device)         # for one more port of a server on its host
    guarantees.settle(work.env, uuid, classes, check)     # allocates exactly what the server's ports request

Only Neutron defines these resource classes. Therefore all resources of such a class that a server holds belong to its
ports, and the ``binding:profile`` of a port names the resource providers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from kilonova import objects
from kilonova.clients.neutron.ports import Port
from kilonova.clients.neutron.refusals import PortChanged
from kilonova.clients.placement import WRITE_ATTEMPTS, Allocations, is_consumer_conflict, same_allocations
from kilonova.conductor.environment import Environment
from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.queries import compute_nodes
from kilonova.errors import Conflict, PlacementConflict
from kilonova.objects import port_resources
from kilonova.objects.port_resources import ALLOCATION, PortResources
from kilonova.objects.vif import FUNCTIONS
from kilonova.pci import ports as pci_ports
from kilonova.pci.pools import PciPools

# Maximum number of resource providers (bridges or cards) of a host that are tried for one port.
TRIES = 16
Mappings = Mapping[str, Sequence[str]]


class NoRoomForPort(Conflict):
    """The server's host does not have the resources of a port's QoS resource request."""

    msg_fmt = 'Host %(host)s cannot guarantee the resources that port %(port_id)s requests: %(wanted)s.'


def ask(spec: objects.RequestSpec, ports: Iterable[Port]) -> dict[str, list[str]]:
    """Add the ports' resource requests (QoS minimum bandwidth or packet rate) to the request spec for the scheduler.

    Each resource request consists of named request groups. Returns these names for the SR-IOV ports, as a dict from
    port id to names (see ``with_groups``).
    """
    read = {
        port.id: (port, wanted)
        for port in ports
        if (wanted := PortResources.read(port.id, port.resource_request)) is not None
    }
    port_resources.ask(spec, [wanted for _, wanted in read.values()])
    groups = {port_id: list(wanted.groups) for port_id, (port, wanted) in read.items() if port.vnic_type in FUNCTIONS}
    with_groups(spec, groups)
    return groups


def with_groups(spec: objects.RequestSpec, groups: Mapping[str, Sequence[str]]) -> None:
    """Add the names of each SR-IOV port's request groups to the port's PCI request in the request spec.

    ``groups`` is a dict from port id to these names. With them, the host claims a device for the port from the same
    resource provider (network card) from which Placement allocated the port's bandwidth.
    """
    if spec.pci_requests is not None:
        spec.pci_requests = spec.pci_requests.replaced(requests=pci_ports.asking(spec.pci_requests, groups))


def profile(port: Port, mappings: Mappings) -> dict[str, Any]:
    """Return the part of the port's binding:profile that names the resource providers which Placement chose.

    ``mappings`` is a dict from request group to provider uuids. Returns {} if the port has no resource request. Raises
    PortChanged if the port's resource request was changed after Placement was queried.
    """
    wanted = PortResources.read(port.id, port.resource_request)
    try:
        return {ALLOCATION: wanted.allocation(mappings)} if wanted is not None else {}
    except LookupError:
        raise PortChanged(port_id=port.id) from None


def kept(port: Port) -> dict[str, Any]:
    """Return {'allocation': …} from the port's binding:profile, to keep it when the profile is written again.

    The value names the port's resource providers. Returns {} if the profile has no such key.
    """
    return {ALLOCATION: port.profile[ALLOCATION]} if ALLOCATION in port.profile else {}


def add(
    work: Work[Any], port_id: str, wanted: PortResources, device: objects.InstancePCIRequest | None
) -> dict[str, list[str]]:
    """Add the resources of one more port to the server's allocation, on resource providers of its host.

    ``wanted`` is the port's QoS resource request. Returns the chosen providers, as a dict from request group to
    provider uuids. If ``device`` is not None, the port is a function of a PCI device, and only providers with a free
    function that fits this PCI request are chosen. Repeated calls are safe. Raises NoRoomForPort if no provider has the
    resources.
    """
    row = work.instance_row()
    with engine.silence(), work.db.read() as conn:
        nodes = compute_nodes.by_host(conn, row['host'])
    node = next(node for node in nodes if node['hypervisor_hostname'] == row['node'])
    root, pools = node['uuid'], PciPools.from_pool_list(objects.PciDevicePoolList.from_column(node['pci_stats']))
    # Remove resources of the port that an earlier try of this step may have added without getting the reply.
    settle(work.env, work.instance_uuid, wanted.classes, work.compare_now, but=port_id)
    found = work.env.placement.allocation_candidates(_question(wanted, root))
    offers: list[dict[str, list[str]]] = [request['mappings'] for request in found['allocation_requests']]
    if device is not None:
        offers = [mappings for mappings in offers if pools.support_requests([device], mappings)]
    for mappings in offers[:TRIES]:
        try:
            if settle(
                work.env,
                work.instance_uuid,
                wanted.classes,
                work.compare_now,
                but=port_id,
                more=wanted.held(wanted.allocation(mappings)),
            ):
                return mappings
        except PlacementConflict:
            # Another server has taken the resources of this candidate in the meantime. Try the next candidate.
            continue
    raise NoRoomForPort(
        host=row['host'],
        port_id=port_id,
        wanted=', '.join(
            f'{name} {amount}' for group in wanted.groups.values() for name, amount in sorted(group.items())
        ),
    )


def _question(wanted: PortResources, root: str) -> list[tuple[str, str]]:
    """Return the query to Placement for allocation candidates of a port, as a list of parameters.

    ``root`` is the uuid of the resource provider of the host's node. Only providers in its tree are considered.
    """
    pairs = []
    for name, resources in wanted.groups.items():
        pairs += [
            (f'resources{name}', ','.join(f'{one}:{amount}' for one, amount in sorted(resources.items()))),
            (f'in_tree{name}', root),
        ]
        if wanted.required[name]:
            pairs.append((f'required{name}', ','.join(sorted(wanted.required[name]))))
    if len(wanted.groups) > 1:
        pairs.append(('group_policy', 'none'))
    if wanted.same_subtree:
        pairs.append(('same_subtree', ','.join(wanted.same_subtree)))
    return pairs


def held(work: Work[Any]) -> dict[str, dict[str, int]]:
    """Return the resources that the server holds in Placement for ports, as {provider: {resource class: amount}}."""
    there = work.env.placement.get_allocations(work.instance_uuid)['allocations']
    return port_resources.of_ports({provider: given['resources'] for provider, given in there.items()})


def settle(
    env: Environment,
    uuid: str,
    classes: Collection[str],
    check: Callable[[], None],
    *,
    but: str | None = None,
    more: Mapping[str, Mapping[str, int]] | None = None,
) -> bool:
    """Change the server's allocation so that its amounts of ``classes`` are the sum of its ports' resource requests.

    The port with the id ``but`` is left out, and ``more``, {provider uuid: {resource class: amount}}, is added.
    ``check()`` is called before each write, and raises an error if the operation may not write any more. Repeated calls
    are safe. Don't call this during a move, because then the bindings of the ports may name resource providers of the
    other host of the move. Returns False if the server has no allocation. Raises PlacementConflict if a provider has
    not enough resources.
    """
    wanted: dict[str, dict[str, int]] = {}
    read = [
        (port.profile.get(ALLOCATION), PortResources.read(port.id, port.resource_request))
        for port in env.networks.ports(device_id=uuid)
        if port.id != but
    ]
    for held in [more or {}, *(asked.held(allocation) for allocation, asked in read if asked is not None)]:
        for provider, amounts in held.items():
            port_resources.add(
                wanted.setdefault(provider, {}), {name: amount for name, amount in amounts.items() if name in classes}
            )
    left = WRITE_ATTEMPTS
    while True:
        left -= 1
        there = env.placement.get_allocations(uuid)
        if not there['allocations']:
            return False
        after = _replaced(there['allocations'], classes, wanted)
        if same_allocations(there['allocations'], after):
            return True
        check()
        try:
            env.placement.claim(
                uuid,
                after,
                project_id=there['project_id'],
                user_id=there['user_id'],
                generation=there['consumer_generation'],
            )
            return True
        except PlacementConflict as error:
            # Retry only if another client, such as Neutron, has changed the server's allocation in the meantime.
            if not left or not is_consumer_conflict(error):
                raise


def _replaced(
    allocations: Allocations, classes: Collection[str], wanted: Mapping[str, Mapping[str, int]]
) -> Allocations:
    """Return a copy of the allocations in which ``wanted`` has replaced all amounts of the classes ``classes``."""
    after = {
        provider: {name: amount for name, amount in given['resources'].items() if name not in classes}
        for provider, given in allocations.items()
    }
    for provider, amounts in wanted.items():
        after.setdefault(provider, {}).update(amounts)
    return {provider: {'resources': amounts} for provider, amounts in after.items() if amounts}
