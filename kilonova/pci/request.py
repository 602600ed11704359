"""Requests of flavors for PCI devices: aliases, requests, and the request groups for Placement.

    aliases = Aliases.from_conf(conf)
    requests = requests_from_flavor({'pci_passthrough:alias': 'a100:2'}, aliases)
    request_groups(requests)                        # two groups, '<request id>-0' and '<request id>-1'
    on_host(requests, instance_uuid, operation, root, allocations, mappings)     # the requests for a claim

The API, the conductor, the scheduler and the compute service use this module.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import os_resource_classes
import os_traits
from oslo_config import cfg
from oslo_utils import strutils, uuidutils

from kilonova import errors
from kilonova.objects import InstancePCIRequest, InstancePCIRequests, RequestGroup
from kilonova.pci import groups
from kilonova.pci import spec as device_spec
from kilonova.pci.device import MDEV, PORT_PROVIDERS

EXTRA_SPEC = 'pci_passthrough:alias'
# The form of the value of the extra spec pci_passthrough:alias. It is shown to users if a value has another form.
VALUE_REGEX = r'[^:]+:\d+(?:\s*,\s*[^:]+:\d+)*'
# VALUE_FORM accepts the same values as VALUE_REGEX, but never needs slow backtracking for a value with many spaces.
VALUE_FORM = re.compile(r'[^:]+:\d+(?:\s*,[^:]+:\d+)*')
NUMA_POLICIES = ('required', 'preferred', 'legacy', 'socket')
DEFAULT_NUMA_POLICY = 'legacy'
# Prefix of the group names of device profiles in Placement's mappings.
ACCELERATORS = 'device_profile_'
# Maximum number of devices of one flavor. Each device is a group in the query to Placement, which must fit into a URL.
MOST_DEVICES = 256
# PORT_GROUPS is a key in the spec of a port's PCI request. Its value is comma-separated names of request groups.
# The request groups in PORT_GROUPS ask Placement for the port's QoS minimum bandwidth and packet rate.
# The port gets a device with a QoS provider (PORT_PROVIDERS) that Placement chose for a request group in PORT_GROUPS.
PORT_GROUPS = 'port_groups'
# Keys of a PCI request's spec that ``DevicePool.matches`` ignores, because they only concern Placement's providers.
PLACEMENT_KEYS = frozenset(('resource_class', 'traits', 'rp_uuids', PORT_GROUPS, PORT_PROVIDERS))

_COUNT = re.compile('[0-9]{1,9}')
_SCHEMA = {
    'type': 'object',
    'additionalProperties': False,
    'properties': {
        'name': {'type': 'string', 'minLength': 1, 'maxLength': 256},
        'capability_type': {'type': 'string', 'enum': ['pci']},
        'product_id': {'type': 'string', 'pattern': r'^([0-9a-fA-F]{4})\Z'},
        'vendor_id': {'type': 'string', 'pattern': r'^([0-9a-fA-F]{4})\Z'},
        'device_type': {'type': 'string', 'enum': ['type-PCI', 'type-PF', 'type-VF']},
        'numa_policy': {'type': 'string', 'enum': list(NUMA_POLICIES)},
        'resource_class': {'type': 'string', 'minLength': 1},
        'traits': {'type': 'string', 'minLength': 1},
        'live_migratable': {'type': ['string', 'boolean']},
        'group': {'type': 'string', 'pattern': rf'^{groups.NAME.pattern}\Z'},
    },
    'required': ['name'],
}
_VALIDATOR = jsonschema.Draft7Validator(_SCHEMA)


class PciInvalidAlias(errors.Invalid):
    """An alias, or a flavor's extra spec with aliases, is wrong."""

    msg_fmt = 'Invalid PCI alias definition: %(reason)s'


class PciRequestAliasNotDefined(errors.Invalid):
    """A flavor names an alias that is not configured."""

    msg_fmt = 'PCI alias %(alias)s is not defined'


class InvalidPCINUMAAffinity(errors.Invalid):
    """A flavor or image has a NUMA affinity policy that does not exist."""

    msg_fmt = 'Invalid PCI NUMA affinity configured: %(policy)s'


class ImagePCINUMAPolicyForbidden(errors.Forbidden):
    """The image sets another NUMA affinity policy than the flavor."""

    msg_fmt = (
        "Image property 'hw_pci_numa_affinity_policy' is not permitted to override the "
        "'hw:pci_numa_affinity_policy' flavor extra spec."
    )


@dataclass(frozen=True)
class Alias:
    """One alias. Its ``specs`` are alternatives: a device must match one of them."""

    name: str
    numa_policy: str
    specs: tuple[Mapping[str, str | None], ...]


class Aliases:
    """All aliases by name. Raises PciRequestAliasNotDefined if an unknown name is read."""

    def __init__(self, aliases: Mapping[str, Alias]) -> None:
        self._aliases = dict(aliases)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> Aliases:
        """Return the aliases of ``[pci]alias``. ``[filter_scheduler]pci_in_placement`` decides which keys they need."""
        return cls.parse(conf.pci.alias, pci_in_placement=conf.filter_scheduler.pci_in_placement)

    @classmethod
    def parse(cls, values: Iterable[str], pci_in_placement: bool = False) -> Aliases:
        """Return the aliases from the option's texts, each one JSON object.

        Raises PciInvalidAlias, which names the wrong text and the reason.
        """
        aliases: dict[str, Alias] = {}
        for value in values:
            new = _parse_alias(value, pci_in_placement)
            old = aliases.get(new.name)
            aliases[new.name] = new if old is None else _merge(old, new, pci_in_placement)
        return cls(aliases)

    def __getitem__(self, name: str) -> Alias:
        try:
            return self._aliases[name]
        except KeyError:
            raise PciRequestAliasNotDefined(alias=name) from None

    def __iter__(self) -> Any:
        return iter(self._aliases)

    def __len__(self) -> int:
        return len(self._aliases)


def _parse_alias(text: str, pci_in_placement: bool) -> Alias:
    try:
        entry = json.loads(text)
    except ValueError:
        raise PciInvalidAlias(reason=f"'{text}' is not JSON") from None
    problem = jsonschema.exceptions.best_match(_VALIDATOR.iter_errors(entry))
    if problem is not None:
        raise PciInvalidAlias(reason=f"{problem.message} in '{text}'")
    name = entry.pop('name').strip()
    if not name:
        raise PciInvalidAlias(reason=f"the name is empty in '{text}'")
    # Drop capability_type, which Nova's schema of [pci]alias allows. Devices have no such property to compare.
    entry.pop('capability_type', None)
    beside = [key for key in ('vendor_id', 'product_id', 'device_type', 'live_migratable') if key in entry]
    if 'group' in entry and beside:
        raise PciInvalidAlias(reason=f"{beside[0]!r} cannot be combined with 'group' in '{text}'")
    if 'group' not in entry and not (pci_in_placement and 'resource_class' in entry):
        missing = [key for key in ('vendor_id', 'product_id') if key not in entry]
        if missing:
            raise PciInvalidAlias(reason=f"{missing[0]!r} is a required property in '{text}'")
    numa_policy = entry.pop('numa_policy', DEFAULT_NUMA_POLICY)
    if 'device_type' in entry:
        entry['dev_type'] = entry.pop('device_type')
    _check_names(entry)
    if 'live_migratable' in entry:
        entry['live_migratable'] = _boolean(entry['live_migratable'], name)
    return Alias(name, numa_policy, (entry,))


def _check_names(entry: Mapping[str, str]) -> None:
    try:
        device_spec.resource_class(entry.get('resource_class', ''))
        device_spec.traits(entry.get('traits', ''))
    except device_spec.PciConfigInvalidSpec as error:
        raise PciInvalidAlias(reason=error.fields['reason']) from None


def _boolean(value: object, name: str) -> str:
    try:
        return 'true' if strutils.bool_from_string(value, strict=True) else 'false'
    except ValueError as error:
        raise PciInvalidAlias(reason=f"live_migratable of alias '{name}': {error}") from None


def _merge(old: Alias, new: Alias, pci_in_placement: bool) -> Alias:
    if pci_in_placement:
        raise PciInvalidAlias(
            reason=f"multiple specifications of alias '{new.name}' are not supported with pci_in_placement"
        )
    if old.numa_policy != new.numa_policy:
        raise PciInvalidAlias(
            reason=f"NUMA policy mismatch for alias '{new.name}': its definitions differ in numa_policy"
        )
    types = {one.get('dev_type') for one in (*old.specs, *new.specs)}
    if None in types:
        raise PciInvalidAlias(reason=f"alias '{new.name}' is defined several times: each definition needs device_type")
    if len(types) > 1:
        raise PciInvalidAlias(
            reason=f"Device type mismatch for alias '{new.name}': its definitions differ in device_type"
        )
    return Alias(old.name, old.numa_policy, old.specs + new.specs)


def parse_value(value: str) -> list[tuple[str, int]]:
    """Return the alias names and counts of an extra spec: ``'a:1, b:2'`` gives [('a', 1), ('b', 2)].

    Raises PciInvalidAlias if the value has another form or asks for too many devices.
    """
    pairs = []
    for part in value.split(','):
        name, _, number = (word.strip() for word in part.partition(':'))
        if not name or _COUNT.fullmatch(number) is None:
            raise PciInvalidAlias(reason=f"'{value}' is not <alias>:<count>[,<alias>:<count>...]")
        pairs.append((name, int(number)))
    if sum(count for _, count in pairs) > MOST_DEVICES:
        raise PciInvalidAlias(reason=f"'{value}' asks for more than {MOST_DEVICES} devices")
    return pairs


def requests_from_flavor(
    extra_specs: Mapping[str, str], aliases: Aliases, affinity_policy: str | None = None
) -> list[InstancePCIRequest]:
    """Return one request, with a new id, for each alias that the flavor names. The list may be empty.

    ``affinity_policy`` (of flavor or image, see ``numa_affinity_policy``) has priority over the alias's policy. Raises
    PciInvalidAlias if the extra spec is wrong, or PciRequestAliasNotDefined if an alias is not configured.
    """
    value = extra_specs.get(EXTRA_SPEC)
    if not value:
        return []
    requests = []
    for name, count in parse_value(value):
        alias = aliases[name]
        if count == 0:
            continue
        requests.append(
            InstancePCIRequest(
                count=count,
                spec=[dict(one) for one in alias.specs],
                alias_name=name,
                is_new=False,
                request_id=uuidutils.generate_uuid(),
                requester_id=None,
                numa_policy=affinity_policy or alias.numa_policy,
            )
        )
    return requests


def numa_affinity_policy(extra_specs: Mapping[str, str], image_properties: Mapping[str, Any]) -> str | None:
    """Return the NUMA affinity policy that the flavor or image sets for all PCI devices, or None.

    Raises InvalidPCINUMAAffinity if the policy does not exist, or ImagePCINUMAPolicyForbidden if flavor and image set
    different policies.
    """
    flavor = extra_specs.get('hw:pci_numa_affinity_policy')
    image = image_properties.get('hw_pci_numa_affinity_policy')
    for policy in (flavor, image):
        if policy is not None and policy not in NUMA_POLICIES:
            raise InvalidPCINUMAAffinity(policy=policy)
    if flavor and image and flavor != image:
        raise ImagePCINUMAPolicyForbidden
    return flavor or image or None


def group_name(request_id: str, index: int) -> str:
    """Return the name of the request group in the Placement query for device number ``index`` of a PCI request."""
    return f'{request_id}-{index}'


def request_groups(requests: Iterable[InstancePCIRequest] | InstancePCIRequests) -> list[RequestGroup]:
    """Return one request group of the Placement query for each device that the flavor's PCI aliases request.

    PCI requests of Neutron ports give no group, because devices with physical_network are not reported to Placement.
    Raises PciInvalidAlias if an alias has several specs.
    """
    return [
        _group(request, index)
        for request in as_list(requests)
        if request.source == request.FLAVOR_ALIAS
        for index in range(request.count)
    ]


def _group(request: InstancePCIRequest, index: int) -> RequestGroup:
    if len(request.spec) != 1:
        raise PciInvalidAlias(
            reason=f"alias '{request.alias_name}' has several specifications, which is "
            'not supported with pci_in_placement'
        )
    wanted = request.spec[0]
    resource_class = _class_of(wanted)
    required = set(device_spec.traits(wanted.get('traits') or ''))
    forbidden: set[str] = set()
    if 'live_migratable' in wanted:
        side = required if wanted['live_migratable'] == 'true' else forbidden
        side.add(os_traits.HW_PCI_LIVE_MIGRATABLE)
    return RequestGroup(
        use_same_provider=True,
        resources={resource_class: 1},
        required_traits=required,
        forbidden_traits=forbidden,
        aggregates=[],
        forbidden_aggregates=set(),
        requester_id=group_name(request.request_id, index),
        provider_uuids=[],
        in_tree=None,
    )


def _class_of(wanted: Mapping[str, str]) -> str:
    name = wanted.get('resource_class')
    if name:
        return device_spec.resource_class(name)
    return (
        device_spec.group_class(wanted['group'])
        if 'group' in wanted
        else device_spec.default_resource_class(wanted['vendor_id'], wanted['product_id'])
    )


def on_host(
    requests: InstancePCIRequests | None,
    instance_uuid: str,
    operation: str,
    root: str,
    allocations: Mapping[str, Any],
    mappings: Mapping[str, Sequence[str]],
) -> InstancePCIRequests | None:
    """Return the PCI requests for a server's claim on a host, or None if the server needs no devices.

    The result has ``requests`` (of aliases and ports) with the providers that Placement allocated for them. It also has
    one new request for each resource class of the flavor (VGPU or a custom class) that Placement allocated below the
    host's root provider ``root``; its id is computed from ``operation``, the operation's uuid, so that it never varies.
    ``allocations`` is {provider uuid: {'resources': {class: amount}}}, and ``mappings`` is {group: [provider uuid]}.
    """
    kept = [request for request in as_list(requests) if request.source != request.FLAVOR_RESOURCES]
    made = with_allocation(kept, mappings, instance_uuid)
    # Make no PCI request for the providers of Cyborg's device profiles, because Cyborg assigns their devices.
    others = {
        provider for group, providers in mappings.items() if group.startswith(ACCELERATORS) for provider in providers
    }
    left = Counter(
        {
            (name, provider): amount
            for provider, given in allocations.items()
            if provider != root and provider not in others
            for name, amount in given['resources'].items()
            if name == os_resource_classes.VGPU or os_resource_classes.is_custom(name)
        }
    )
    for request in kept:
        # Subtract what Placement allocated for aliases and ports, so that no new request claims the same devices again.
        for provider in itertools.chain.from_iterable(
            mappings.get(group_name(request.request_id, index), ()) for index in range(request.count)
        ):
            left[_class_of(request.spec[0]), provider] -= 1
    for resource_class in sorted({name for name, _ in +left}):
        providers = [
            provider
            for (name, provider), amount in sorted(left.items())
            if name == resource_class
            for _ in range(amount)
        ]
        made.requests.append(
            InstancePCIRequest(
                count=len(providers),
                alias_name=None,
                is_new=False,
                requester_id=None,
                numa_policy=None,
                spec=[{'dev_type': MDEV, 'resource_class': resource_class, 'rp_uuids': ','.join(providers)}],
                request_id=str(uuid.uuid5(uuid.UUID(operation), resource_class)),
            )
        )
    return made if made.requests or requests is not None else None


def allocated_providers(request: InstancePCIRequest, mappings: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Return the uuid of the resource provider that Placement allocated for each device of a PCI request.

    ``mappings`` is {request group: [provider uuid]}. The groups of a request are named <request id>-0, -1, and so on.
    If ``mappings`` has none of them, the uuids are read from ``rp_uuids`` in the request's spec, which an earlier
    allocation stored there.
    """
    if mappings:
        found = [
            uuid for index in range(request.count) for uuid in mappings.get(group_name(request.request_id, index), ())
        ]
        if found:
            return found
    return next((one['rp_uuids'].split(',') for one in request.spec if one.get('rp_uuids')), [])


def guarantors(request: InstancePCIRequest, mappings: Mapping[str, Sequence[str]] | None) -> set[str]:
    """Return the uuids of the QoS providers that Placement chose for a port, or an empty set if the port has no QoS.

    They are Neutron's providers of minimum bandwidth and packet rate. The uuids are read from ``mappings``, {request
    group: [provider uuid]}, or, without mappings, from PORT_PROVIDERS in the request's spec.
    """
    spec = request.spec[0] if request.spec else {}
    if mappings and spec.get(PORT_GROUPS):
        return {uuid for group in (spec[PORT_GROUPS] or '').split(',') for uuid in mappings.get(group, ())}
    return set(spec[PORT_PROVIDERS].split(',')) if spec.get(PORT_PROVIDERS) else set()


def with_allocation(
    requests: Iterable[InstancePCIRequest] | InstancePCIRequests,
    mappings: Mapping[str, Sequence[str]] | None,
    instance_uuid: str | None = None,
) -> InstancePCIRequests:
    """Return copies of the requests, with the uuids of their allocated providers in ``rp_uuids`` (comma-separated).

    The host then takes exactly the devices of these providers. ``instance_uuid`` is the server's uuid in the result, by
    default the one in ``requests``.
    """
    if instance_uuid is None and isinstance(requests, InstancePCIRequests):
        instance_uuid = requests.instance_uuid if 'instance_uuid' in requests else None
    copies = []
    for request in as_list(requests):
        copy = request.obj_clone()
        providers = allocated_providers(request, mappings)
        if providers:
            copy.spec = [{**one, 'rp_uuids': ','.join(providers)} for one in request.spec]
        if chosen := guarantors(request, mappings):
            copy.spec = [{**one, PORT_PROVIDERS: ','.join(sorted(chosen))} for one in copy.spec]
        copies.append(copy)
    fields = {} if instance_uuid is None else {'instance_uuid': instance_uuid}
    return InstancePCIRequests(requests=copies, **fields)


def as_list(requests: Iterable[InstancePCIRequest] | InstancePCIRequests | None) -> list[InstancePCIRequest]:
    """Return the requests as a plain list. None gives an empty list."""
    if requests is None:
        return []
    return list(requests.requests if isinstance(requests, InstancePCIRequests) else requests)
