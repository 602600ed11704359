"""PortResources: the resources of Placement that a Neutron port requests, such as QoS minimum bandwidth.

    wanted = PortResources.read(port.id, port.resource_request)     # None if the port requests nothing
    spec.requested_resources += wanted.request_groups()             # granular groups of the query to Placement
    allocation = wanted.allocation(choice.mappings)                 # the providers, for the port's binding:profile
    wanted.held(allocation)                                         # {provider: {resource class: amount}}

The form of a port's request depends on Neutron's extensions. With the extension ``port-resource-request-groups``, a
request has several groups with ids, and the port's binding contains {group id: provider}. Without the extension, a
request has one group without an id, and the binding contains only the provider. In this case, this module uses the
port's id as the id of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova.objects.request_spec import RequestGroup, RequestLevelParams, RequestSpec

# The key of binding:profile with the uuids of the providers from which Placement allocated the port's QoS resources.
ALLOCATION = 'allocation'
# The prefix of the resource classes that ports request.
PREFIX = 'NET_'


@dataclass(frozen=True)
class PortResources:
    """The resources that one port requests (QoS minimum bandwidth and packet rate).

    ``groups`` is {id: {resource class: amount}}. All resources of a group come from one provider, which must have the
    traits ``required`` of the group. ``same_subtree`` are the ids of groups whose providers must be in one subtree.
    ``is_flat`` is True if Neutron sent the older form: one group without an id. Its id in ``groups`` is the port's id.
    """

    groups: Mapping[str, Mapping[str, int]]
    required: Mapping[str, tuple[str, ...]]
    same_subtree: tuple[str, ...] = ()
    is_flat: bool = False

    @classmethod
    def read(cls, port_id: str, request: Mapping[str, Any] | None) -> PortResources | None:
        """Return the object for a port's ``resource_request``, or None if the port requests no resources."""
        if not request:
            return None
        is_flat = 'request_groups' not in request
        groups = [{'id': port_id, **request}] if is_flat else request['request_groups']
        groups = [group for group in groups if group.get('resources')]
        if not groups:
            return None
        return cls(
            {group['id']: dict(group['resources']) for group in groups},
            {group['id']: tuple(group.get('required') or ()) for group in groups},
            tuple(request.get('same_subtree') or ()),
            is_flat,
        )

    @property
    def classes(self) -> set[str]:
        """The requested resource classes."""
        return {name for resources in self.groups.values() for name in resources}

    def request_groups(self) -> list[RequestGroup]:
        """Return the groups as RequestGroups, the form that the scheduler uses."""
        return [
            RequestGroup(
                use_same_provider=True,
                requester_id=name,
                resources=dict(resources),
                required_traits=set(self.required[name]),
            )
            for name, resources in self.groups.items()
        ]

    def allocation(self, mappings: Mapping[str, Sequence[str]]) -> str | dict[str, str]:
        """Return the value of ``allocation`` for the port's binding:profile: the providers that Placement chose.

        The value is {group id: provider uuid}, or only a provider uuid if Neutron sent the older form with one group
        (``is_flat``). ``mappings`` is Placement's {group id: [provider uuid]}. Raises KeyError if ``mappings`` lacks a
        group of the port.
        """
        found = {name: mappings[name][0] for name in self.groups}
        return next(iter(found.values())) if self.is_flat else found

    def held(self, allocation: object) -> dict[str, dict[str, int]]:
        """Return the part of the server's allocations that is for this port: {provider: {resource class: amount}}.

        ``allocation`` comes from the port's binding:profile: {group id: provider uuid}, or one provider uuid in
        Neutron's older form. It says which provider has the amounts of each group. Return {} if it is None.
        """
        providers = dict.fromkeys(self.groups, allocation) if self.is_flat else allocation
        found: dict[str, dict[str, int]] = {}
        if not isinstance(providers, Mapping):
            return found
        for name, resources in self.groups.items():
            if isinstance(provider := providers.get(name), str):
                add(found.setdefault(provider, {}), resources)
        return found


def of_ports(allocations: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the part of a server's allocations that belongs to its ports.

    The argument and the result are dicts {provider: {resource class: amount}}.
    """
    found = {
        provider: {name: amount for name, amount in amounts.items() if name.startswith(PREFIX)}
        for provider, amounts in allocations.items()
    }
    return {provider: amounts for provider, amounts in found.items() if amounts}


def total(held: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the sum of the allocations for several ports.

    The elements of ``held`` and the result are dicts {provider: {resource class: amount}}.
    """
    found: dict[str, dict[str, int]] = {}
    for one in held:
        for provider, amounts in one.items():
            add(found.setdefault(provider, {}), amounts)
    return found


def add(total: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the amounts ``more`` to ``total``. The keys of both dicts are resource classes."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def ask(spec: RequestSpec, wanted: Iterable[PortResources]) -> None:
    """Add the resources that ports request to a request spec."""
    wanted = list(wanted)
    if not wanted:
        return
    groups = (spec.requested_resources if 'requested_resources' in spec else None) or []
    spec.requested_resources = [*groups, *(group for one in wanted for group in one.request_groups())]
    params = spec.request_level_params if 'request_level_params' in spec else RequestLevelParams()
    spec.request_level_params = params.replaced(
        same_subtree=[*params.same_subtree, *(list(one.same_subtree) for one in wanted if one.same_subtree)]
    )
