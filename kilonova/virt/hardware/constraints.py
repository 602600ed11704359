"""Requirements of a flavor and an image for NUMA cells and CPUs, as an InstanceNUMATopology without host cells.

    wanted = constraints.of(flavor, image.properties)       # None if there are no requirements
    placed = numa.fit(host, wanted)

Cells are numbered from 0. ``cpuset`` of a cell has the vCPUs that run on shared host CPUs, and ``pcpuset`` the vCPUs
that each get a dedicated host CPU. ``pagesize`` is a size in KiB, or SMALL, LARGE or ANY until the cell is assigned to
a host cell. All errors of this module mean that the request of the user or operator is wrong, so the API answers with
400.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from oslo_utils import strutils

from kilonova import errors
from kilonova.objects import InstanceNUMACell, InstanceNUMATopology, cpuset
from kilonova.objects.image_meta import NOTHING, Properties
from kilonova.virt.hardware.pinning import ISOLATE, PREFER, REQUIRE

SHARED, DEDICATED, MIXED = 'shared', 'dedicated', 'mixed'
SHARE = 'share'
# Values that stand for hw:mem_page_size 'small' (the host's smallest size), 'large' (any larger size) and 'any'.
SMALL, LARGE, ANY = -1, -2, -3
_PAGE_WORDS = {'small': SMALL, 'large': LARGE, 'any': ANY}
_PAGE_SIZE = re.compile(r'(?P<number>\d{1,15})((?P<prefix>[kKMGT])i?)?(?P<unit>b|bit|B)?')
_PREFIXES = {'k': 1, 'K': 1, 'M': 1024, 'G': 1024**2, 'T': 1024**3}
# Maximum number of NUMA cells of a guest. A larger number is considered a mistake.
MOST_CELLS = 1024


class InvalidNUMANodesNumber(errors.Invalid):
    """The number of NUMA nodes is not a positive number, or is too large."""

    msg_fmt = "The property 'numa_nodes' cannot be '%(nodes)s'. It must be a number greater than 0"


class ImageNUMATopologyIncomplete(errors.Invalid):
    """CPUs or memory are missing for some NUMA nodes."""

    msg_fmt = 'CPU and memory allocation must be provided for all NUMA nodes'


class ImageNUMATopologyForbidden(errors.Invalid):
    """The image sets a NUMA property that the flavor also sets."""

    msg_fmt = "Image property '%(name)s' is not permitted to override NUMA configuration set against the flavor"


class ImageNUMATopologyAsymmetric(errors.Invalid):
    """CPUs or memory cannot be divided evenly by the number of NUMA nodes."""

    msg_fmt = (
        'Instance CPUs and/or memory cannot be evenly distributed across instance NUMA nodes. Explicit '
        'assignment of CPUs and memory to nodes is required'
    )


class ImageNUMATopologyCPUOutOfRange(errors.Invalid):
    """A CPU number is larger than the flavor's last vCPU."""

    msg_fmt = 'CPU number %(cpunum)d is larger than max %(cpumax)d'


class ImageNUMATopologyCPUDuplicates(errors.Invalid):
    """A vCPU is assigned to two NUMA nodes."""

    msg_fmt = 'CPU number %(cpunum)d is assigned to two nodes'


class ImageNUMATopologyCPUsUnassigned(errors.Invalid):
    """A vCPU is not assigned to any NUMA node."""

    msg_fmt = 'CPU number %(cpuset)s is not assigned to any node'


class ImageNUMATopologyMemoryOutOfRange(errors.Invalid):
    """The sum of the memory of all NUMA nodes differs from the flavor's memory."""

    msg_fmt = '%(memsize)d MB of memory assigned, but expected %(memtotal)d MB'


class InvalidNUMAValue(errors.Invalid):
    """An extra spec or property about CPUs, memory or NUMA nodes has an invalid value."""

    msg_fmt = "Invalid value '%(value)s' of '%(name)s': %(reason)s"


class InvalidCPUAllocationPolicy(errors.Invalid):
    """The flavor's CPU policy is not one of the known policies."""

    msg_fmt = "CPU policy requested from 'flavor' is invalid, given: '%(requested)s', available: '%(available)s'."


class InvalidCPUThreadAllocationPolicy(errors.Invalid):
    """The flavor's CPU thread policy is not one of the known policies."""

    msg_fmt = (
        "CPU thread policy requested from 'flavor' is invalid, given: '%(requested)s', available: '%(available)s'."
    )


class InvalidEmulatorThreadsPolicy(errors.Invalid):
    """The flavor's policy for emulator threads is not one of the known policies."""

    msg_fmt = "CPU emulator threads option requested is invalid, given: '%(requested)s', available: '%(available)s'."


class ImageCPUPinningForbidden(errors.Invalid):
    """The image's CPU policy contradicts the flavor's CPU policy."""

    msg_fmt = "Image property 'hw_cpu_policy' is not permitted to override CPU pinning policy set against the flavor"


class ImageCPUThreadPolicyForbidden(errors.Invalid):
    """The image's CPU thread policy contradicts the flavor's thread policy."""

    msg_fmt = (
        "Image property 'hw_cpu_thread_policy' is not permitted to override CPU thread pinning policy set "
        'against the flavor'
    )


class CPUThreadPolicyConfigurationInvalid(errors.Invalid):
    """A CPU thread policy is set, but no vCPU is dedicated."""

    msg_fmt = 'Cannot set cpu thread pinning policy in a non dedicated cpu pinning policy'


class RequiredMixedInstancePolicy(errors.Invalid):
    """A mask of dedicated CPUs (hw:cpu_dedicated_mask) is set, but the CPU policy is not mixed."""

    msg_fmt = "Cannot specify 'hw:cpu_dedicated_mask' without the 'mixed' policy."


class RequiredMixedOrRealtimeCPUMask(errors.Invalid):
    """The CPU policy is mixed, but hw:cpu_dedicated_mask and hw:cpu_realtime_mask are missing."""

    msg_fmt = (
        "Must specify either 'hw:cpu_dedicated_mask' or 'hw:cpu_realtime_mask' when using 'mixed' CPU policy. "
        "'hw:cpu_dedicated_mask' and 'hw:cpu_realtime_mask' can be specified at the same time, or be specified "
        'with only one of them.'
    )


class RealtimeConfigurationInvalid(errors.Invalid):
    """Realtime CPUs are requested, but the CPU policy is neither dedicated nor mixed."""

    msg_fmt = 'Cannot set realtime policy in a non dedicated cpu pinning policy'


class RealtimeMaskNotFoundOrInvalid(errors.Invalid):
    """The mask of realtime CPUs is empty, contains unknown vCPUs, or leaves no CPU for the emulator's threads."""

    msg_fmt = (
        'Use of realtime CPUs requires either one or more non-realtime CPU(s) or offloaded emulator threads, '
        "but hw:cpu_realtime_mask is '%(mask)s'."
    )


class RealtimeMaskNotDedicated(errors.Invalid):
    """A vCPU in the realtime mask (hw:cpu_realtime_mask) does not get a dedicated host CPU."""

    msg_fmt = (
        "Realtime CPUs must be dedicated CPUs: %(cpus)s of 'hw:cpu_realtime_mask' are not in 'hw:cpu_dedicated_mask'."
    )


class InvalidMixedInstanceDedicatedMask(errors.Invalid):
    """The CPU policy is mixed, but hw:cpu_dedicated_mask contains all vCPUs or none."""

    msg_fmt = "Mixed instance must have at least 1 pinned vCPU and 1 unpinned vCPU. See 'hw:cpu_dedicated_mask'."


class BadRequirementEmulatorThreadsPolicy(errors.Invalid):
    """Isolated emulator threads are requested, but no vCPU is dedicated."""

    msg_fmt = 'An isolated CPU emulator threads option requires a dedicated CPU policy option.'


class CPUResourcesConflict(errors.Invalid):
    """The flavor requests VCPU or PCPU as resources in addition to a CPU policy."""

    msg_fmt = (
        "It is not allowed to use the 'resources:VCPU' or 'resources:PCPU' in combination with 'hw:cpu_policy' "
        'or the image property hw_cpu_policy'
    )


class MemoryPageSizeInvalid(errors.Invalid):
    """A page size is neither a whole number of KiB nor one of the words small, large and any."""

    msg_fmt = "Invalid memory page size '%(pagesize)s'"


class MemoryPageSizeForbidden(errors.Invalid):
    """The image sets a page size that its flavor does not permit."""

    msg_fmt = "Page size %(pagesize)s forbidden against '%(against)s'"


class FlavorImageLockedMemoryConflict(errors.Invalid):
    """Flavor and image contradict each other about locked memory."""

    msg_fmt = 'locked_memory value in image (%(image)s) and flavor (%(flavor)s) conflict'


class LockMemoryForbidden(errors.Invalid):
    """Locked memory is requested without a page size."""

    msg_fmt = 'locked_memory value in image or flavor is forbidden when mem_page_size is not set'


def of(flavor: Any, properties: Properties = NOTHING) -> InstanceNUMATopology | None:
    """Return the NUMA topology that a flavor and an image require, or None if they do not require any.

    ``flavor`` has the attributes of objects.Flavor: vcpus, memory_mb, extra_specs. Raises the errors of this module if
    the requirements are invalid.
    """
    specs = flavor.extra_specs or {}
    policy = cpu_policy(specs, properties)
    thread_policy = cpu_thread_policy(specs, properties)
    dedicated = _dedicated(specs, policy, flavor.vcpus, properties)
    realtime(specs, flavor.vcpus, properties)
    emulator = emulator_threads_policy(specs)
    size = page_size(specs, properties)
    if locked_memory(specs, properties) and size is None:
        # Without a page size, memory may be overcommitted, which is impossible for locked memory.
        raise LockMemoryForbidden
    if not dedicated:
        if thread_policy is not None:
            raise CPUThreadPolicyConfigurationInvalid
        if emulator == ISOLATE:
            raise BadRequirementEmulatorThreadsPolicy
    nodes = _nodes(specs, properties)
    if nodes is None and not dedicated and size is None:
        return None
    cells = _cells(specs, properties, nodes or 1, flavor.vcpus, flavor.memory_mb)
    return InstanceNUMATopology(
        emulator_threads_policy=emulator,
        cells=[
            InstanceNUMACell(
                id=number,
                cpuset=cpus - dedicated,
                pcpuset=cpus & dedicated,
                cpuset_reserved=None,
                memory=memory,
                pagesize=size,
                cpu_topology=None,
                cpu_pinning_raw=None,
                cpu_policy=policy,
                cpu_thread_policy=thread_policy,
            )
            for number, (cpus, memory) in enumerate(cells)
        ],
    )


def cpus_asked(flavor: Any, properties: Properties = NOTHING) -> tuple[int, int]:
    """Return (number of shared CPUs, number of dedicated CPUs) that a flavor and an image require.

    The requirements for NUMA cells are not checked. Raises the errors of this module if the CPU requirements are
    invalid.
    """
    specs = flavor.extra_specs or {}
    dedicated = len(_dedicated(specs, cpu_policy(specs, properties), flavor.vcpus, properties))
    isolated = dedicated and emulator_threads_policy(specs) == ISOLATE
    return flavor.vcpus - dedicated, dedicated + int(isolated)


def dedicated_cpus(topology: InstanceNUMATopology | None) -> int:
    """Return how many dedicated host CPUs a topology needs, including a CPU for isolated emulator threads."""
    if topology is None:
        return 0
    isolated = 'emulator_threads_policy' in topology and topology.emulator_threads_policy == ISOLATE
    return sum(len(cell.pcpuset) for cell in topology.cells) + int(isolated)


def shared_cpus(flavor: Any, topology: InstanceNUMATopology | None) -> int:
    """Return how many of a server's vCPUs run on the host's shared CPUs."""
    found: int = flavor.vcpus - (sum(len(cell.pcpuset) for cell in topology.cells) if topology is not None else 0)
    return found


# -- requests for the guest's CPUs -------------------------------------------------------------------------------------
def cpu_policy(specs: Mapping[str, str], properties: Properties = NOTHING) -> str | None:
    """Return the CPU policy: 'dedicated', 'mixed', 'shared', or None if neither flavor nor image sets one.

    If the flavor's policy is 'shared' or 'mixed', the image cannot override it. Raises InvalidCPUAllocationPolicy,
    CPUResourcesConflict or ImageCPUPinningForbidden.
    """
    flavor = _word(specs, 'hw:cpu_policy', (SHARED, DEDICATED, MIXED), InvalidCPUAllocationPolicy)
    image = properties.get('hw_cpu_policy')
    if 'resources:PCPU' in specs:
        if flavor is not None or image is not None:
            raise CPUResourcesConflict
        return DEDICATED
    if 'resources:VCPU' in specs and (flavor or image) in (DEDICATED, MIXED):
        raise CPUResourcesConflict
    if image is not None and flavor in (SHARED, MIXED) and image not in (flavor, SHARED):
        raise ImageCPUPinningForbidden
    return flavor or image


def cpu_thread_policy(specs: Mapping[str, str], properties: Properties = NOTHING) -> str | None:
    """Return the CPU thread policy: 'prefer', 'isolate', 'require', or None if neither flavor nor image sets one.

    Raises InvalidCPUThreadAllocationPolicy if the flavor has another value, and ImageCPUThreadPolicyForbidden if the
    image contradicts the flavor.
    """
    flavor = _word(specs, 'hw:cpu_thread_policy', (PREFER, ISOLATE, REQUIRE), InvalidCPUThreadAllocationPolicy)
    image = properties.get('hw_cpu_thread_policy')
    if flavor in (None, PREFER):
        return image or flavor
    if image is not None and image != flavor:
        raise ImageCPUThreadPolicyForbidden
    return flavor


def emulator_threads_policy(specs: Mapping[str, str]) -> str | None:
    """Return the policy for emulator threads: 'isolate', 'share' or None.

    Raises InvalidEmulatorThreadsPolicy if the flavor has another value.
    """
    return _word(specs, 'hw:emulator_threads_policy', (ISOLATE, SHARE), InvalidEmulatorThreadsPolicy)


def realtime(specs: Mapping[str, str], vcpus: int, properties: Properties = NOTHING) -> frozenset[int]:
    """Return the vCPUs that run with realtime priority, or an empty set if the flavor does not set hw:cpu_realtime.

    The image's hw_cpu_realtime_mask names these vCPUs, otherwise the flavor's hw:cpu_realtime_mask, otherwise all vCPUs
    are realtime. Emulator threads need a vCPU that is not realtime, unless hw:emulator_threads_policy is set. Raises
    RealtimeConfigurationInvalid, RealtimeMaskNotFoundOrInvalid or RealtimeMaskNotDedicated.
    """
    if not strutils.bool_from_string(specs.get('hw:cpu_realtime')):
        return frozenset()
    policy = cpu_policy(specs, properties)
    if policy not in (DEDICATED, MIXED):
        raise RealtimeConfigurationInvalid
    mask, everything = _realtime_mask(specs, properties), frozenset(range(min(vcpus, cpuset.MOST)))
    found = everything if mask is None else frozenset(_cpus('hw:cpu_realtime_mask', mask, everything))
    if not found or found - everything or (found == everything and emulator_threads_policy(specs) is None):
        raise RealtimeMaskNotFoundOrInvalid(mask=mask)
    if shared := found - _dedicated(specs, policy, vcpus, properties):
        raise RealtimeMaskNotDedicated(cpus=cpuset.text(shared))
    return found


def _realtime_mask(specs: Mapping[str, str], properties: Properties) -> str | None:
    found: str | None = properties.get('hw_cpu_realtime_mask') or specs.get('hw:cpu_realtime_mask')
    return found


def _dedicated(specs: Mapping[str, str], policy: str | None, vcpus: int, properties: Properties) -> set[int]:
    """Return the vCPUs that get dedicated host CPUs.

    With the CPU policy dedicated, these are all vCPUs. With the policy mixed, these are the vCPUs in
    hw:cpu_dedicated_mask or, if it is not set, in the realtime mask. With any other policy, the result is empty.
    """
    name, mask = 'hw:cpu_dedicated_mask', specs.get('hw:cpu_dedicated_mask')
    if mask is not None and policy != MIXED:
        raise RequiredMixedInstancePolicy
    if mask is None and policy == MIXED:
        name = 'hw:cpu_realtime_mask'
        mask = _realtime_mask(specs, properties) if strutils.bool_from_string(specs.get('hw:cpu_realtime')) else None
        if mask is None:
            raise RequiredMixedOrRealtimeCPUMask
    if policy not in (DEDICATED, MIXED):
        return set()
    if vcpus > cpuset.MOST:
        raise InvalidNUMAValue(name='vcpus', value=vcpus, reason=f'a guest can have at most {cpuset.MOST} CPUs')
    everything = set(range(vcpus))
    if mask is None:
        return everything
    found = _cpus(name, mask, everything)
    if not found & everything or found >= everything:
        raise InvalidMixedInstanceDedicatedMask
    if found - everything:
        raise ImageNUMATopologyCPUOutOfRange(cpunum=max(found), cpumax=vcpus - 1)
    return found


def _cpus(name: str, value: str, among: Set[int] = frozenset()) -> set[int]:
    try:
        return cpuset.parse(value, among)
    except ValueError as error:
        raise InvalidNUMAValue(name=name, value=value, reason=error) from None


def _word(specs: Mapping[str, str], name: str, words: tuple[str, ...], error: type[errors.Invalid]) -> str | None:
    value = specs.get(name)
    if value is not None and value not in words:
        raise error(requested=value, available=', '.join(words))
    return value


# -- requests for the guest's memory -----------------------------------------------------------------------------------
def page_size(specs: Mapping[str, str], properties: Properties = NOTHING) -> int | None:
    """Return the requested page size: a number of KiB, SMALL, LARGE or ANY, or None if none is requested.

    The image's hw_mem_page_size has priority, but is accepted only if the flavor's hw:mem_page_size is large or any.
    Raises MemoryPageSizeForbidden if the image sets a page size and the flavor does not permit it.
    """
    flavor, image = specs.get('hw:mem_page_size'), properties.get('hw_mem_page_size')
    of_flavor = None if flavor is None else parse_page_size(flavor)
    of_image = None if image is None else parse_page_size(image)
    if of_image is None:
        return of_flavor
    if of_flavor not in (LARGE, ANY):
        raise MemoryPageSizeForbidden(pagesize=image, against=flavor)
    return of_image


def parse_page_size(text: str) -> int:
    """Return a page size in KiB, for example 2048 for '2048' or '2MB', or LARGE for 'large'.

    Raises MemoryPageSizeInvalid for any other text.
    """
    word = text.strip()
    if word in _PAGE_WORDS:
        return _PAGE_WORDS[word]
    found = _PAGE_SIZE.fullmatch(word)
    if found is None:
        raise MemoryPageSizeInvalid(pagesize=text)
    # Convert the number to bytes. A number without a unit is in KiB.
    number = int(found['number']) * (_PREFIXES[found['prefix']] * 1024 if found['prefix'] else 1)
    if not (found['prefix'] or found['unit']):
        number *= 1024
    if found['unit'] in ('b', 'bit'):
        number //= 8
    if number < 1024 or number % 1024:
        raise MemoryPageSizeInvalid(pagesize=text)
    return number // 1024


def locked_memory(specs: Mapping[str, str], properties: Properties = NOTHING) -> bool:
    """Return whether the guest's memory must be locked, so that the host cannot swap it out.

    Raises FlavorImageLockedMemoryConflict if flavor and image contradict each other.
    """
    flavor, image = specs.get('hw:locked_memory'), properties.get('hw_locked_memory')
    wanted = None if flavor is None else strutils.bool_from_string(flavor)
    if wanted is not None and image is not None and wanted != image:
        raise FlavorImageLockedMemoryConflict(image=image, flavor=flavor)
    return bool(wanted or image)


# -- requests for the guest's NUMA cells -------------------------------------------------------------------------------
def _nodes(specs: Mapping[str, str], properties: Properties) -> int | None:
    flavor, image = specs.get('hw:numa_nodes'), properties.get('hw_numa_nodes')
    if flavor is not None and image is not None:
        raise ImageNUMATopologyForbidden(name='hw_numa_nodes')
    value = image if flavor is None else flavor
    if value is None:
        return None
    text = str(value).strip()
    if not text.isdecimal() or len(text) > len(str(MOST_CELLS)) or not 0 < int(text) <= MOST_CELLS:
        raise InvalidNUMANodesNumber(nodes=value)
    return int(text)


def _cells(
    specs: Mapping[str, str], properties: Properties, nodes: int, vcpus: int, memory_mb: int
) -> list[tuple[set[int], int]]:
    """Return (vCPUs, MiB of memory) of each of the guest's ``nodes`` NUMA cells.

    The flavor's hw:numa_cpus.N and hw:numa_mem.N or the image's hw_numa_cpus.N and hw_numa_mem.N set these. If none of
    them is set, the cells get equal parts of ``vcpus`` and ``memory_mb``.
    """
    cpus = _per_cell(specs, properties, 'numa_cpus', _cpus)
    memory = _per_cell(specs, properties, 'numa_mem', _mib)
    if vcpus > cpuset.MOST:
        raise InvalidNUMAValue(name='vcpus', value=vcpus, reason=f'a guest can have at most {cpuset.MOST} CPUs')
    if not cpus and not memory:
        if vcpus % nodes or memory_mb % nodes:
            raise ImageNUMATopologyAsymmetric
        share = vcpus // nodes
        return [(set(range(first, first + share)), memory_mb // nodes) for first in range(0, vcpus, share)]
    if (
        cpus.keys() != set(range(nodes))
        or memory.keys() != cpus.keys()
        or not all(cpus.values())
        or min(memory.values()) < 1
    ):
        raise ImageNUMATopologyIncomplete
    _check_cells(cpus, memory, vcpus, memory_mb)
    return [(cpus[number], memory[number]) for number in range(nodes)]


def _per_cell(specs: Mapping[str, str], properties: Properties, name: str, parse: Any) -> dict[int, Any]:
    """Return {cell number: value} from the flavor's extra specs hw:<name>.N, or if there are none, from the image.

    ``parse(key, value)`` converts the text of an extra spec to its value, and raises an error if the text is invalid.
    """
    found: dict[int, Any] = {}
    cpus = 0
    for key, value in specs.items():
        matching = re.fullmatch(rf'hw:{name}\.(\d{{1,9}})', key)
        if matching is None:
            continue
        cell = found[int(matching[1])] = parse(key, value)
        # Limit the cells and the sum of their CPUs. Without a limit, a request could use up the memory of this process.
        cpus += len(cell) if isinstance(cell, set) else 0
        if len(found) > MOST_CELLS or cpus > 2 * cpuset.MOST:
            raise InvalidNUMAValue(name=key, value=value, reason='the flavor has too many NUMA cells or vCPUs in them')
    image = properties.get(f'hw_{name}')
    if found and image:
        raise ImageNUMATopologyForbidden(name=f'hw_{name}')
    return found or dict(enumerate(image or ()))


def _mib(name: str, value: str) -> int:
    if not value.strip().isdecimal() or not int(value):
        raise InvalidNUMAValue(name=name, value=value, reason='it must be a number of MiB greater than 0')
    return int(value)


def _check_cells(cpus: Mapping[int, set[int]], memory: Mapping[int, int], vcpus: int, memory_mb: int) -> None:
    seen: set[int] = set()
    for of_cell in cpus.values():
        if max(of_cell) >= vcpus:
            raise ImageNUMATopologyCPUOutOfRange(cpunum=max(of_cell), cpumax=vcpus - 1)
        if seen & of_cell:
            raise ImageNUMATopologyCPUDuplicates(cpunum=min(seen & of_cell))
        seen |= of_cell
    if len(seen) != vcpus:
        raise ImageNUMATopologyCPUsUnassigned(cpuset=cpuset.text(set(range(vcpus)) - seen))
    if sum(memory.values()) != memory_mb:
        raise ImageNUMATopologyMemoryOutOfRange(memsize=sum(memory.values()), memtotal=memory_mb)
