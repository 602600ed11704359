"""What a port of Neutron asks of Placement: a guaranteed bandwidth, a guaranteed packet rate.

    wanted = PortResources.read(port.id, port.resource_request)     # None: nothing
    spec.requested_resources += wanted.request_groups()             # granular groups of the scheduler's question
    allocation = wanted.allocation(choice.mappings)                 # what the port's binding:profile says of the answer
    wanted.held(allocation)                                         # {provider: {resource class: amount}}

Neutron has two forms, by its extensions: groups with ids (``port-resource-request-groups``), whose binding says
{group id: provider}, and before that one group without an id, which is called as its port, and whose binding says the
provider alone.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova.objects.request_spec import RequestGroup, RequestLevelParams, RequestSpec

# The key of binding:profile.
ALLOCATION = 'allocation'
# How the names of the resource classes of ports begin.
PREFIX = 'NET_'


@dataclass(frozen=True)
class PortResources:
    """``groups``: {id: {resource class: amount}}, each of one provider, which must have the traits ``required`` of it;
    ``same_subtree``: those whose providers are below one of them; ``is_flat``: the form without ids."""

    groups: Mapping[str, Mapping[str, int]]
    required: Mapping[str, tuple[str, ...]]
    same_subtree: tuple[str, ...] = ()
    is_flat: bool = False

    @classmethod
    def read(cls, port_id: str, request: Mapping[str, Any] | None) -> PortResources | None:
        """From a port's ``resource_request``; None: it asks for nothing."""
        if not request:
            return None
        is_flat = 'request_groups' not in request
        groups = [{'id': port_id, **request}] if is_flat else request['request_groups']
        groups = [group for group in groups if group.get('resources')]
        if not groups:
            return None
        return cls({group['id']: dict(group['resources']) for group in groups},
                   {group['id']: tuple(group.get('required') or ()) for group in groups},
                   tuple(request.get('same_subtree') or ()), is_flat)

    @property
    def classes(self) -> set[str]:
        """Resource classes of which it wants something."""
        return {name for resources in self.groups.values() for name in resources}

    def request_groups(self) -> list[RequestGroup]:
        """As the scheduler has them."""
        return [RequestGroup(use_same_provider=True, requester_id=name, resources=dict(resources),
                             required_traits=set(self.required[name])) for name, resources in self.groups.items()]

    def allocation(self, mappings: Mapping[str, Sequence[str]]) -> str | dict[str, str]:
        """What the binding says of the providers that Placement chose, {group: [provider]}. KeyError: of a group that
        it wasn't asked for."""
        found = {name: mappings[name][0] for name in self.groups}
        return next(iter(found.values())) if self.is_flat else found

    def held(self, allocation: object) -> dict[str, dict[str, int]]:
        """What the server has for the port in Placement, as its binding says it; of a binding that says nothing,
        nothing."""
        providers = dict.fromkeys(self.groups, allocation) if self.is_flat else allocation
        found: dict[str, dict[str, int]] = {}
        if not isinstance(providers, Mapping):
            return found
        for name, resources in self.groups.items():
            if isinstance(provider := providers.get(name), str):
                add(found.setdefault(provider, {}), resources)
        return found


def of_ports(allocations: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """What of {provider: {resource class: amount}} somebody holds for ports."""
    found = {provider: {name: amount for name, amount in amounts.items() if name.startswith(PREFIX)}
             for provider, amounts in allocations.items()}
    return {provider: amounts for provider, amounts in found.items() if amounts}


def total(held: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """The sum of what ports hold, of each as ``held`` has it."""
    found: dict[str, dict[str, int]] = {}
    for one in held:
        for provider, amounts in one.items():
            add(found.setdefault(provider, {}), amounts)
    return found


def add(total: dict[str, int], more: Mapping[str, int]) -> None:
    """Amounts of resource classes to others."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def ask(spec: RequestSpec, wanted: Iterable[PortResources]) -> None:
    """A request for a server asks for what these ports want, too."""
    wanted = list(wanted)
    if not wanted:
        return
    groups = (spec.requested_resources if 'requested_resources' in spec else None) or []
    spec.requested_resources = [*groups, *(group for one in wanted for group in one.request_groups())]
    params = spec.request_level_params if 'request_level_params' in spec else RequestLevelParams()
    spec.request_level_params = params.replaced(same_subtree=[
        *params.same_subtree, *(list(one.same_subtree) for one in wanted if one.same_subtree)])
