"""Choose a host CPU for each dedicated vCPU, by the thread policy.

    pin(free={2, 3, 6, 7}, siblings=[{2, 3}, {6, 7}], vcpus=[0, 1], policy='prefer')
    # Pinned(pins={0: 2, 1: 3}, reserved=frozenset(), threads=2)

A *core* is the set of its free threads. ``prefer`` fills cores if possible. ``require`` uses only cores with at least
two free threads. ``isolate`` uses one thread of a core and leaves its other threads unused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

PREFER, REQUIRE, ISOLATE = 'prefer', 'require', 'isolate'
Core = list[int]


@dataclass(frozen=True)
class Pinned:
    """Host CPUs for a guest.

    ``pins`` is {vCPU: host CPU}. ``reserved`` are host CPUs only for the emulator's threads. ``threads`` is the number
    of consecutive vCPUs of the guest that are threads of one core.
    """

    pins: dict[int, int]
    reserved: frozenset[int]
    threads: int = 1


def pin(
    free: Set[int], siblings: Iterable[Set[int]], vcpus: Collection[int], policy: str | None = None, reserve: int = 0
) -> Pinned | None:
    """Return a free CPU for each vCPU and ``reserve`` additional CPUs, or None if this is impossible.

    ``siblings`` are sets of threads of one core, for all of the host's CPUs. A CPU in none of them is a core of its
    own.
    """
    wanted, groups = sorted(vcpus), [set(group) for group in siblings if len(group) > 1]
    if policy == ISOLATE:
        return _isolated(free, groups, wanted, reserve)
    cores = _cores(free, groups)
    if sum(map(len, cores)) < len(wanted) + reserve or (policy == REQUIRE and wanted and not groups):
        return None
    found = _filled(cores, len(wanted), policy == REQUIRE)
    if found is None:
        return None
    chosen, threads = found
    left = [cpu for core in sorted(cores, key=len) for cpu in core if cpu not in chosen]
    return Pinned(dict(zip(wanted, chosen, strict=True)), frozenset(left[:reserve]), threads)


def _cores(free: Set[int], groups: Iterable[Set[int]]) -> list[Core]:
    """Return the free threads of each core that has any."""
    cores = [sorted(group & free) for group in groups if group & free]
    grouped = {cpu for core in cores for cpu in core}
    return sorted(cores + [[cpu] for cpu in free - grouped])


def _isolated(free: Set[int], groups: list[set[int]], wanted: list[int], reserve: int) -> Pinned | None:
    grouped = set().union(*groups) if groups else set()
    whole = sorted([min(group) for group in groups if group <= free] + list(free - grouped))
    if len(whole) < len(wanted) + reserve:
        return None
    return Pinned(dict(zip(wanted, whole, strict=False)), frozenset(whole[len(wanted) : len(wanted) + reserve]))


def _filled(cores: list[Core], count: int, whole: bool) -> tuple[list[int], int] | None:
    """Return ``count`` CPUs and the guest's number of threads per core, which is the largest possible one, or None."""
    if not count:
        return [], 1
    usable = [core for core in cores if len(core) > 1] if whole else cores
    for threads in range(max(map(len, usable), default=1), 0, -1):
        if count % threads or (whole and threads == 1):
            continue
        chosen = _take(usable, count, threads)
        if chosen is not None:
            return chosen, threads
    if not whole:
        return None
    # The number cannot be divided: use full cores, and then one more thread.
    chosen = [cpu for core in usable for cpu in core][:count]
    return (chosen, 1) if len(chosen) == count else None


def _take(cores: list[Core], count: int, threads: int) -> list[int] | None:
    """Return CPUs in groups of ``threads`` of one core, partly used cores first, or None if there are too few."""
    chosen: list[int] = []
    for core in sorted(cores, key=len):
        chosen += core[: len(core) // threads * threads]
        if len(chosen) >= count:
            return chosen[:count]
    return None


def occupied(
    pins: Mapping[int, int], reserved: Iterable[int], siblings: Sequence[Set[int]], policy: str | None
) -> set[int]:
    """Return the host CPUs that no other server may be pinned to."""
    taken = {*pins.values(), *reserved}
    if policy == ISOLATE:
        taken.update(cpu for group in siblings if taken & group for cpu in group)
    return taken
