"""Resources that ports guarantee (bandwidth, packet rate): requested from Placement and kept equal to the ports.

They are requested together with the server's host, or alone if a port is attached or detached later:

    guarantees.ask(spec, ports)                           # before the scheduler is asked for a host
    guarantees.profile(port, choice.mappings)             # the part of the port's binding about the chosen providers
    guarantees.add(work, port_id, wanted, device)         # for one more port of a server on its host
    guarantees.settle(work.env, uuid, classes, check)     # makes the server's allocation equal to that of its ports

The resource classes are Neutron's own. So everything that a server holds of such a class belongs to a port, and the
port's binding says so.
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

# Maximum number of providers of one host that are tried for a port. A host has a few bridges and cards in a physical
# network.
TRIES = 16
Mappings = Mapping[str, Sequence[str]]


class NoRoomForPort(Conflict):
    """The server's host does not have the resources that a port guarantees."""

    msg_fmt = 'Host %(host)s cannot guarantee the resources that port %(port_id)s requests: %(wanted)s.'


def ask(spec: objects.RequestSpec, ports: Iterable[Port]) -> dict[str, list[str]]:
    """Add the resources that these ports want, as Neutron has them now, to the request spec.

    Returns the request groups of the ports that are functions of PCI devices, as a dict from port id to group names.
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
    """Tie PCI requests of the request spec to the request groups of their ports.

    ``groups`` is a dict from port id to group names. A device is then taken from the provider chosen for its group.
    """
    if spec.pci_requests is not None:
        spec.pci_requests = spec.pci_requests.replaced(requests=pci_ports.asking(spec.pci_requests, groups))


def profile(port: Port, mappings: Mappings) -> dict[str, Any]:
    """Return the part of the port's binding:profile that names the providers which Placement chose.

    Raises PortChanged if the port has requested other resources since Placement was asked.
    """
    wanted = PortResources.read(port.id, port.resource_request)
    try:
        return {ALLOCATION: wanted.allocation(mappings)} if wanted is not None else {}
    except LookupError:
        raise PortChanged(port_id=port.id) from None


def kept(port: Port) -> dict[str, Any]:
    """Return the part of the port's binding:profile about providers as it is now."""
    return {ALLOCATION: port.profile[ALLOCATION]} if ALLOCATION in port.profile else {}


def add(
    work: Work[Any], port_id: str, wanted: PortResources, device: objects.InstancePCIRequest | None
) -> dict[str, list[str]]:
    """Add the resources of one more port to the server's allocation, on providers of its host.

    Returns the chosen providers as a dict from group to list of providers. If the port is a device function, only
    providers with a free function for ``device`` are chosen. Repeated calls are safe. Raises NoRoomForPort if no
    provider has the resources.
    """
    row = work.instance_row()
    with engine.silence(), work.db.read() as conn:
        nodes = compute_nodes.by_host(conn, row['host'])
    node = next(node for node in nodes if node['hypervisor_hostname'] == row['node'])
    root, pools = node['uuid'], PciPools.from_pool_list(objects.PciDevicePoolList.from_column(node['pci_stats']))
    # An earlier try whose reply was lost may have left some of it.
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
            # Another server has taken the resources since.
            continue
    raise NoRoomForPort(
        host=row['host'],
        port_id=port_id,
        wanted=', '.join(
            f'{name} {amount}' for group in wanted.groups.values() for name, amount in sorted(group.items())
        ),
    )


def _question(wanted: PortResources, root: str) -> list[tuple[str, str]]:
    """Return the query to Placement for allocation candidates below the host's provider."""
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
    """Make the server's allocation of these resource classes equal to the sum of its ports.

    The port ``but`` is left out, and ``more`` is added. ``check()`` is called before each write, and raises if the
    caller may not write. Repeated calls are safe. Must not be called during a move, when the ports say something else.
    Returns False if the server has no allocation at all. Raises PlacementConflict if there are not enough resources.
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
    for left in reversed(range(WRITE_ATTEMPTS)):
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
            # The network service writes the allocation as well, when a policy is changed.
            if not left or not is_consumer_conflict(error):
                raise
    raise AssertionError


def _replaced(
    allocations: Allocations, classes: Collection[str], wanted: Mapping[str, Mapping[str, int]]
) -> Allocations:
    """Return the allocations with the amounts of these classes replaced by ``wanted``."""
    after = {
        provider: {name: amount for name, amount in given['resources'].items() if name not in classes}
        for provider, given in allocations.items()
    }
    for provider, amounts in wanted.items():
        after.setdefault(provider, {}).update(amounts)
    return {provider: {'resources': amounts} for provider, amounts in after.items() if amounts}
