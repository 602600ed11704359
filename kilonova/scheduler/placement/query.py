"""Build the query to Placement from a request.

    query = build(spec, max_results=1000, pci_in_placement=True)
    for prefilter in prefilters.ALL: prefilter(query, spec, facts)
    found = client.allocation_candidates(query.pairs())

A *group* is the resources that one parameter ``resources<suffix>`` asks for. The suffix has no further meaning (``1``,
``_GPU``, ``<request id>-0``). The unnamed group '' may be spread over the host's provider tree, and each other group is
served by one provider.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import strutils

from kilonova import errors
from kilonova.objects import RequestSpec
from kilonova.objects.image_meta import NOTHING
from kilonova.pci import request as pci_request
from kilonova.virt.hardware import amounts, constraints

LOG = logging.getLogger(__name__)

_EXTRA_SPEC = re.compile(f'(?P<what>resources|trait){amounts.SUFFIX_AND_NAME}')
# Scheduler hints that name other servers. A query with such a hint has no limit on the number of results.
# With a limit on the number of results, the few hosts that meet the hint could be missing.
_UNLIMITED_HINTS = ('group', 'same_host', 'different_host')
# If a query has more named groups (with a suffix) than this, only some are sent, and ``expand`` adds the others.
# FEW_GROUPS is low because Placement computes all combinations of a host's devices with the named groups.
FEW_GROUPS = 2


class RequestFilterFailed(errors.KilonovaError):
    """No host can meet the request, so scheduling ends. ``reason`` says why."""

    msg_fmt = 'Scheduling failed: %(reason)s'


def _none() -> list[dict[str, Any]]:
    return []


@dataclass(frozen=True)
class PrefilterFacts:
    """Settings and aggregates that prefilters need.

    ``zone_aggregates(zone)`` returns the uuids of the aggregates of an availability zone. ``aggregates()`` returns all
    aggregates as dicts with 'uuid', 'name', 'hosts' and 'metadata'.
    """

    conf: cfg.ConfigOpts
    zone_aggregates: Callable[[str], list[str]]
    aggregates: Callable[[], list[dict[str, Any]]] = _none


@dataclass
class Group:
    """Resources of one request group, and the traits and aggregates that its provider must have or must not have."""

    resources: dict[str, int] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)
    aggregates: list[list[str]] = field(default_factory=list)
    forbidden_aggregates: set[str] = field(default_factory=set)
    in_tree: str | None = None

    @property
    def empty(self) -> bool:
        """True if the group asks for no resources, traits or aggregates."""
        return self == Group()

    def key(self) -> tuple[Any, ...]:
        """Return a tuple that is equal for groups with equal resources, traits and aggregates."""
        return (
            tuple(sorted(self.resources.items())),
            tuple(sorted(self.required)),
            tuple(sorted(self.forbidden)),
            tuple(map(tuple, self.aggregates)),
            tuple(sorted(self.forbidden_aggregates)),
            self.in_tree,
        )


@dataclass
class CandidateQuery:
    """The parameters of GET /allocation_candidates.

    ``pci_groups`` has the suffixes of the request groups for PCI devices. ``left_out`` is {suffix: request group}. It
    has the first group of each kind of equal groups that ``collapsed`` removed to make the query shorter.
    """

    groups: dict[str, Group] = field(default_factory=lambda: {'': Group()})
    policy: str | None = None
    root_required: set[str] = field(default_factory=set)
    root_forbidden: set[str] = field(default_factory=set)
    same_subtree: list[list[str]] = field(default_factory=list)
    limit: int | None = None
    pci_groups: set[str] = field(default_factory=set)
    left_out: dict[str, Group] = field(default_factory=dict)

    @property
    def unnamed(self) -> Group:
        """The group without a suffix, whose resources may come from several providers of a host."""
        return self.groups['']

    def resources(self) -> dict[str, int]:
        """Return the amounts by resource class, summed over all groups."""
        total: dict[str, int] = {}
        for group in self.groups.values():
            for name, amount in group.resources.items():
                total[name] = total.get(name, 0) + amount
        return total

    def pairs(self) -> list[tuple[str, str]]:
        """Return the parameters of GET /allocation_candidates as sorted (name, value) pairs."""
        pairs: list[tuple[str, str]] = []
        for suffix, group in self.groups.items():
            pairs.extend((f'{name}{suffix}', value) for name, value in _parameters(group))
        if self.policy:
            pairs.append(('group_policy', self.policy))
        if self.root_required or self.root_forbidden:
            pairs.append(('root_required', _traits(self.root_required, self.root_forbidden)))
        pairs.extend(('same_subtree', ','.join(suffixes)) for suffixes in self.same_subtree)
        if self.limit:
            pairs.append(('limit', str(self.limit)))
        return sorted(pairs)

    def collapsed(self) -> tuple[CandidateQuery, dict[str, list[str]]]:
        """Return a shorter query, and {suffix: suffixes of equal groups} for ``expand``, which adds the missing groups.

        With at most FEW_GROUPS named groups, return this query and {}. Otherwise the new query has only the first of
        several equal groups. If this leaves too many groups, it asks for only one kind of device, and its ``left_out``
        has the first group of each other kind. A query with ``left_out`` has no limit on the number of results, because
        hosts with the other kinds of devices could then be missing.
        """
        named = [suffix for suffix, group in self.groups.items() if suffix and group.resources]
        if len(named) <= FEW_GROUPS:
            return self, {}
        bound = {suffix for suffixes in self.same_subtree for suffix in suffixes}
        alike: dict[tuple[Any, ...], list[str]] = {}
        for suffix in named:
            if suffix not in bound:
                alike.setdefault(self.groups[suffix].key(), []).append(suffix)
        kinds = list(alike.values())
        gone = {suffix for suffixes in kinds for suffix in suffixes[1:]}
        left_out = {}
        if len(named) - len(gone) > FEW_GROUPS:
            # Ask Placement only for the kind of device of which the server needs the largest number.
            # Few hosts have so many devices of one kind, so Placement's answer is short.
            devices = sorted((suffixes for suffixes in kinds if self._composable(suffixes)), key=len, reverse=True)
            left_out = {suffixes[0]: self.groups[suffixes[0]] for suffixes in devices[1:]}
        clones = {
            suffixes[0]: suffixes[1:]
            for suffixes in kinds
            if len(suffixes) > 1 or (left_out and self._composable(suffixes))
        }
        if not clones:
            return self, {}
        groups = {
            suffix: group for suffix, group in self.groups.items() if suffix not in gone and suffix not in left_out
        }
        return replace(self, groups=groups, left_out=left_out, limit=None if left_out else self.limit), clones

    def _composable(self, suffixes: list[str]) -> bool:
        """Return whether ``expand`` can add these equal groups to Placement's answer.

        It can do so only for PCI devices without conditions other than resources and traits.
        """
        group = self.groups[suffixes[0]]
        return self.pci_groups.issuperset(suffixes) and group == Group(
            resources=group.resources, required=group.required, forbidden=group.forbidden
        )


def _parameters(group: Group) -> Iterable[tuple[str, str]]:
    if group.resources:
        yield 'resources', ','.join(f'{name}:{amount}' for name, amount in sorted(group.resources.items()))
    if group.required or group.forbidden:
        yield 'required', _traits(group.required, group.forbidden)
    for aggregates in group.aggregates:
        yield 'member_of', 'in:' + ','.join(sorted(aggregates))
    if group.forbidden_aggregates:
        yield 'member_of', '!in:' + ','.join(sorted(group.forbidden_aggregates))
    if group.in_tree:
        yield 'in_tree', group.in_tree


def _traits(required: Iterable[str], forbidden: Iterable[str]) -> str:
    return ','.join([*sorted(required), *sorted(f'!{name}' for name in forbidden)])


def build(
    spec: RequestSpec,
    *,
    max_results: int,
    pci_in_placement: bool = False,
    in_tree: str | None = None,
    many_nodes: bool = False,
    pinning: bool = True,
) -> CandidateQuery:
    """Return the query for a request.

    ``in_tree`` is the uuid of the compute node if only one node may take the servers. ``many_nodes`` is True if the
    request names a host with several nodes. Then the number of candidates is not limited, because the query cannot name
    several nodes. If ``pinning`` is False, dedicated CPUs are requested as VCPU. Raises pci.request.PciInvalidAlias for
    an alias that a query to Placement cannot express.
    """
    query = CandidateQuery(limit=max_results)
    _read_extra_specs(query, spec.flavor.extra_specs)
    of_flavor = set(query.groups)
    _read_flavor(query, spec)
    if pinning:
        _read_cpu_policy(query, spec)
    _read_device_distance(query, spec)
    _read_image(query, spec)
    _read_memory(query, spec)
    _read_guest(query, spec)
    _read_groups(query, spec, pci_in_placement)
    _read_destination(query, spec)
    query.unnamed.in_tree = in_tree
    hints = _field(spec, 'scheduler_hints') or {}
    if many_nodes or any(hints.get(name) for name in _UNLIMITED_HINTS):
        query.limit = None
    for group in query.groups.values():
        group.resources = {name: amount for name, amount in group.resources.items() if amount}
    query.groups = {suffix: group for suffix, group in query.groups.items() if not suffix or not group.empty}
    _choose_policy(query, of_flavor)
    return query


def own_classes(query: CandidateQuery, extra_specs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (extra spec, resource class) for the custom resource classes that the flavor's extra specs request."""
    for key in extra_specs:
        found = _EXTRA_SPEC.fullmatch(key)
        if found is not None and found['what'] == 'resources' and found['name'].startswith('CUSTOM_'):
            group = query.groups.get(found['suffix'] or '')
            if group is not None and found['name'] in group.resources:
                yield key, found['name']


def _field(spec: RequestSpec, name: str) -> Any:
    """Return a field of the request, or None if it is not set. Callers of older versions may leave a field unset."""
    return getattr(spec, name) if name in spec else None


def image_property(spec: RequestSpec, name: str) -> Any:
    """Return a property of the request's image, or None if it is not set."""
    image = _field(spec, 'image')
    return image.properties.get(name) if image is not None and 'properties' in image else None


def wanted(spec: RequestSpec, extra_spec: str, name: str) -> Any:
    """Return the value of the flavor's extra spec, or of the image property ``name`` if the flavor does not have it."""
    value = spec.flavor.extra_specs.get(extra_spec)
    return image_property(spec, name) if value is None else value


def wants(spec: RequestSpec, extra_spec: str, name: str) -> bool:
    """Return whether the flavor's extra spec is true.

    If the flavor does not have the extra spec, return whether the image property ``name`` is true. An invalid value
    counts as false.
    """
    return strutils.bool_from_string(wanted(spec, extra_spec, name))


def _read_extra_specs(query: CandidateQuery, extra_specs: dict[str, str]) -> None:
    """Read the extra specs ``resources:X``, ``resources<S>:X``, ``trait:T``, ``trait<S>:T`` and ``group_policy``."""
    for key, value in extra_specs.items():
        found = _EXTRA_SPEC.fullmatch(key)
        if key == 'group_policy':
            if value in ('none', 'isolate'):
                query.policy = value
            else:
                LOG.warning("Invalid group_policy '%s'. Valid values are 'none' and 'isolate'.", value)
        elif found is not None:
            _read_one(query.groups.setdefault(found['suffix'] or '', Group()), found['what'], found['name'], value)


def _read_one(group: Group, what: str, name: str, value: str) -> None:
    if what == 'resources':
        amount = amounts.number(name, value)
        if amount is not None:
            group.resources[name] = amount
    elif value == 'required':
        group.required.add(name)
    elif value == 'forbidden':
        group.forbidden.add(name)
    else:
        LOG.warning("Only (required, forbidden) are supported as trait values. Received '%s' for %s", value, name)


def _read_flavor(query: CandidateQuery, spec: RequestSpec) -> None:
    """Add VCPU, MEMORY_MB and DISK_GB of the flavor, except resource classes that an extra spec requests."""
    amounts.add_sizes(
        {suffix: group.resources for suffix, group in query.groups.items()},
        spec.flavor,
        from_volume=bool(_field(spec, 'is_bfv')),
    )


def _read_cpu_policy(query: CandidateQuery, spec: RequestSpec) -> None:
    """Request PCPU in place of VCPU for dedicated CPUs, and require the traits of the CPU thread policy.

    Only hosts that pin CPUs have PCPU.
    """
    extra_specs, wanted = spec.flavor.extra_specs, _numa(spec)
    amounts.pin(
        query.unnamed.resources, constraints.shared_cpus(spec.flavor, wanted), constraints.dedicated_cpus(wanted)
    )
    thread_policy = extra_specs.get('hw:cpu_thread_policy') or image_property(spec, 'hw_cpu_thread_policy')
    if thread_policy == 'isolate':
        query.unnamed.forbidden.add('HW_CPU_HYPERTHREADING')
    elif thread_policy == 'require':
        query.unnamed.required.add('HW_CPU_HYPERTHREADING')


def wants_dedicated_cpus(spec: RequestSpec) -> bool:
    """Return whether the request needs dedicated CPUs, which only hosts that pin CPUs have."""
    return constraints.dedicated_cpus(_numa(spec)) > 0


def _numa(spec: RequestSpec) -> Any:
    """Return the request's NUMA topology.

    If the request was stored without one, compute it from its flavor and image.
    """
    found = _field(spec, 'numa_topology')
    if found is not None:
        return found
    image = _field(spec, 'image')
    properties = image.properties if image is not None and 'properties' in image else NOTHING
    with contextlib.suppress(errors.Invalid):
        # The API refuses invalid extra specs, but older requests may have them. Ignore them.
        return constraints.of(spec.flavor, properties)
    return None


def _read_device_distance(query: CandidateQuery, spec: RequestSpec) -> None:
    """Require hosts whose driver reports which NUMA cells share a socket, if the PCI NUMA policy is "socket"."""
    policy = spec.flavor.extra_specs.get('hw:pci_numa_affinity_policy') or image_property(
        spec, 'hw_pci_numa_affinity_policy'
    )
    if policy == 'socket':
        query.unnamed.required.add('COMPUTE_SOCKET_PCI_NUMA_AFFINITY')


def _read_image(query: CandidateQuery, spec: RequestSpec) -> None:
    query.unnamed.required.update(image_property(spec, 'traits_required') or ())


def _choose_policy(query: CandidateQuery, of_flavor: Iterable[str]) -> None:
    """Set the query's group policy to "none" if it has several groups with a suffix and no policy.

    Placement refuses such a query without a policy. ``of_flavor`` are the suffixes of the groups that the flavor
    defines. As in Nova, a flavor that defines several groups must set the policy: then only a warning is logged.
    """
    named = {suffix for suffix, group in query.groups.items() if suffix and group.resources}
    if query.policy or len(named) < 2:
        return
    if len(named.intersection(of_flavor)) < 2:
        query.policy = 'none'
    else:
        LOG.warning(
            'There is more than one numbered request group in the allocation candidate query but the flavor '
            'did not specify any group policy. Placement will refuse it. Set the extra spec group_policy to '
            'none (the groups may share a provider) or isolate'
        )


_ENCRYPTION = {
    'amd-sev': 'HW_CPU_X86_AMD_SEV',
    'amd-sev-es': 'HW_CPU_X86_AMD_SEV_ES',
    'amd-sev-snp': 'HW_CPU_X86_AMD_SEV_SNP',
}
_TPM_MODELS = {'tpm-tis': 'COMPUTE_SECURITY_TPM_TIS', 'tpm-crb': 'COMPUTE_SECURITY_TPM_CRB'}
_TPM_VERSIONS = {'1.2': 'COMPUTE_SECURITY_TPM_1_2', '2.0': 'COMPUTE_SECURITY_TPM_2_0'}
_ADDRESS_SPACES = {'passthrough': 'COMPUTE_ADDRESS_SPACE_PASSTHROUGH', 'emulate': 'COMPUTE_ADDRESS_SPACE_EMULATED'}


def _trait(traits: dict[str, str], what: str, value: str) -> str:
    if value not in traits:
        raise RequestFilterFailed(reason=f"{what} cannot be '{value}', only {', '.join(sorted(traits))}")
    return traits[value]


def _read_memory(query: CandidateQuery, spec: RequestSpec) -> None:
    """Request the resources and traits for encrypted and persistent memory."""
    unnamed = query.unnamed
    encrypted = wants(spec, 'hw:mem_encryption', 'hw_mem_encryption')
    if encrypted:
        model = wanted(spec, 'hw:mem_encryption_model', 'hw_mem_encryption_model') or 'amd-sev'
        unnamed.required.add(_trait(_ENCRYPTION, 'hw:mem_encryption_model', model))
    amounts.add_memory(unnamed.resources, spec.flavor.extra_specs, encrypted)


def tpm(spec: RequestSpec) -> tuple[str, str] | None:
    """Return (model, version) of the guest's emulated TPM, or None if the request sets no TPM version."""
    version = wanted(spec, 'hw:tpm_version', 'hw_tpm_version')
    return (wanted(spec, 'hw:tpm_model', 'hw_tpm_model') or 'tpm-tis', version) if version else None


def _read_guest(query: CandidateQuery, spec: RequestSpec) -> None:
    """Require the traits for the guest's TPM, secure boot, address space and firmware."""
    required, chosen = query.unnamed.required, tpm(spec)
    if chosen is not None:
        required.add(_trait(_TPM_MODELS, 'hw:tpm_model', chosen[0]))
        required.add(_trait(_TPM_VERSIONS, 'hw:tpm_version', chosen[1]))
    if wanted(spec, 'os:secure_boot', 'os_secure_boot') == 'required':
        required.add('COMPUTE_SECURITY_UEFI_SECURE_BOOT')
    space = wanted(spec, 'hw:maxphysaddr_mode', 'hw_maxphysaddr_mode')
    if space:
        required.add(_trait(_ADDRESS_SPACES, 'hw:maxphysaddr_mode', space))
    if image_property(spec, 'hw_firmware_stateless'):
        required.add('COMPUTE_SECURITY_STATELESS_FIRMWARE')


def _read_groups(query: CandidateQuery, spec: RequestSpec, pci_in_placement: bool) -> None:
    """Add the request groups of ports, device profiles and PCI devices."""
    wanted = {group.requester_id: group for group in _field(spec, 'requested_resources') or ()}
    if pci_in_placement:
        for group in pci_request.request_groups(_field(spec, 'pci_requests') or []):
            wanted.setdefault(group.requester_id, group)
            query.pci_groups.add(group.requester_id)
    for suffix, group in wanted.items():
        query.groups[suffix] = Group(
            resources=dict(group.resources),
            required=set(group.required_traits),
            forbidden=set(group.forbidden_traits),
            aggregates=[list(ids) for ids in group.aggregates],
            forbidden_aggregates=set(group.forbidden_aggregates),
            in_tree=group.in_tree,
        )
    if 'request_level_params' in spec:
        query.root_required |= set(spec.root_required)
        query.root_forbidden |= set(spec.root_forbidden)
        query.same_subtree.extend(list(suffixes) for suffixes in spec.same_subtree)


def _read_destination(query: CandidateQuery, spec: RequestSpec) -> None:
    destination = _field(spec, 'requested_destination')
    if destination is None:
        return
    for aggregates in (destination.aggregates if 'aggregates' in destination else None) or ():
        query.unnamed.aggregates.append(aggregates.split(','))
    query.unnamed.forbidden_aggregates.update(
        (destination.forbidden_aggregates if 'forbidden_aggregates' in destination else None) or ()
    )
