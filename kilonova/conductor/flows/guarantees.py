"""What ports guarantee (bandwidth, packet rate) in flows: asked of Placement with the server's host, and on its own
where a port comes or goes later.

    guarantees.ask(spec, ports)                           # before the scheduler is asked for a host
    guarantees.profile(port, choice.mappings)             # what the port's binding says of the providers chosen
    guarantees.add(work, port_id, wanted)                 # a port more for a server on its host: the mappings
    guarantees.settle(work.env, uuid, classes, check)     # the server holds what its ports say, and no more

The classes are Neutron's own: whatever a server holds of one, it holds for a port, and the port's binding says so.
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

# Providers of one host that are tried for a port: one has a few bridges and cards in a physical network.
TRIES = 16
Mappings = Mapping[str, Sequence[str]]


class NoRoomForPort(Conflict):
    msg_fmt = 'Host %(host)s can not guarantee what port %(port_id)s asks for: %(wanted)s.'


def ask(spec: objects.RequestSpec, ports: Iterable[Port]) -> dict[str, list[str]]:
    """The request asks for what these ports want as Neutron says it now, too. The groups of those that are functions of
    devices, by port."""
    read = {port.id: (port, wanted) for port in ports
            if (wanted := PortResources.read(port.id, port.resource_request)) is not None}
    port_resources.ask(spec, [wanted for _, wanted in read.values()])
    groups = {port_id: list(wanted.groups) for port_id, (port, wanted) in read.items() if port.vnic_type in FUNCTIONS}
    with_groups(spec, groups)
    return groups


def with_groups(spec: objects.RequestSpec, groups: Mapping[str, Sequence[str]]) -> None:
    """Devices that the request asks for are of what guarantees these groups, {port: groups}."""
    if spec.pci_requests is not None:
        spec.pci_requests = spec.pci_requests.replaced(requests=pci_ports.asking(spec.pci_requests, groups))


def profile(port: Port, mappings: Mappings) -> dict[str, Any]:
    """The part of the port's binding:profile that says what Placement chose for it. PortChanged: the port asks for
    something else since Placement was asked."""
    wanted = PortResources.read(port.id, port.resource_request)
    try:
        return {ALLOCATION: wanted.allocation(mappings)} if wanted is not None else {}
    except LookupError:
        raise PortChanged(port_id=port.id) from None


def kept(port: Port) -> dict[str, Any]:
    """The same, as it says it now."""
    return {ALLOCATION: port.profile[ALLOCATION]} if ALLOCATION in port.profile else {}


def add(work: Work[Any], port_id: str, wanted: PortResources,
        device: objects.InstancePCIRequest | None) -> dict[str, list[str]]:
    """The server holds what one port more wants, on providers of its host: {group: [provider]}; of a port that is a
    function such as have a free one for the ``device`` that it asks for. May be repeated. NoRoomForPort."""
    row = work.instance_row()
    with engine.silence(), work.db.read() as conn:
        nodes = compute_nodes.by_host(conn, row['host'])
    node = next(node for node in nodes if node['hypervisor_hostname'] == row['node'])
    root, pools = node['uuid'], PciPools.from_pool_list(objects.PciDevicePoolList.from_column(node['pci_stats']))
    # An answer that was lost may have left some of it.
    settle(work.env, work.instance_uuid, wanted.classes, work.compare_now, but=port_id)
    found = work.env.placement.allocation_candidates(_question(wanted, root))
    offers: list[dict[str, list[str]]] = [request['mappings'] for request in found['allocation_requests']]
    if device is not None:
        offers = [mappings for mappings in offers if pools.support_requests([device], mappings)]
    for mappings in offers[:TRIES]:
        try:
            if settle(work.env, work.instance_uuid, wanted.classes, work.compare_now, but=port_id,
                      more=wanted.held(wanted.allocation(mappings))):
                return mappings
        except PlacementConflict:
            # Somebody else has it since.
            continue
    raise NoRoomForPort(host=row['host'], port_id=port_id, wanted=', '.join(
        f'{name} {amount}' for group in wanted.groups.values() for name, amount in sorted(group.items())))


def _question(wanted: PortResources, root: str) -> list[tuple[str, str]]:
    """To Placement, for its candidates below the host's provider."""
    pairs = []
    for name, resources in wanted.groups.items():
        pairs += [(f'resources{name}', ','.join(f'{one}:{amount}' for one, amount in sorted(resources.items()))),
                  (f'in_tree{name}', root)]
        if wanted.required[name]:
            pairs.append((f'required{name}', ','.join(sorted(wanted.required[name]))))
    if len(wanted.groups) > 1:
        pairs.append(('group_policy', 'none'))
    if wanted.same_subtree:
        pairs.append(('same_subtree', ','.join(wanted.same_subtree)))
    return pairs


def held(work: Work[Any]) -> dict[str, dict[str, int]]:
    """What the server holds in Placement for ports: {provider: {resource class: amount}}."""
    there = work.env.placement.get_allocations(work.instance_uuid)['allocations']
    return port_resources.of_ports({provider: given['resources'] for provider, given in there.items()})


def settle(env: Environment, uuid: str, classes: Collection[str], check: Callable[[], None], *, but: str | None = None,
           more: Mapping[str, Mapping[str, int]] | None = None) -> bool:
    """The server holds of these resource classes what its ports say, without that port, and ``more``. May be repeated;
    while it moves its ports say something else. False: it holds nothing at all. PlacementConflict: there is no room.
    """
    wanted: dict[str, dict[str, int]] = {}
    read = [(port.profile.get(ALLOCATION), PortResources.read(port.id, port.resource_request))
            for port in env.networks.ports(device_id=uuid) if port.id != but]
    for held in [more or {}, *(asked.held(allocation) for allocation, asked in read if asked is not None)]:
        for provider, amounts in held.items():
            port_resources.add(wanted.setdefault(provider, {}),
                               {name: amount for name, amount in amounts.items() if name in classes})
    for left in reversed(range(WRITE_ATTEMPTS)):
        there = env.placement.get_allocations(uuid)
        if not there['allocations']:
            return False
        after = _replaced(there['allocations'], classes, wanted)
        if same_allocations(there['allocations'], after):
            return True
        check()
        try:
            env.placement.claim(uuid, after, project_id=there['project_id'], user_id=there['user_id'],
                                generation=there['consumer_generation'])
            return True
        except PlacementConflict as error:
            # The network service writes there as well, when a policy is changed.
            if not left or not is_consumer_conflict(error):
                raise
    raise AssertionError


def _replaced(allocations: Allocations, classes: Collection[str],
              wanted: Mapping[str, Mapping[str, int]]) -> Allocations:
    """Allocations with these amounts of these classes in place of others."""
    after = {provider: {name: amount for name, amount in given['resources'].items() if name not in classes}
             for provider, given in allocations.items()}
    for provider, amounts in wanted.items():
        after.setdefault(provider, {}).update(amounts)
    return {provider: {'resources': amounts} for provider, amounts in after.items() if amounts}
