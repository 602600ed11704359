"""Choose a host CPU for each dedicated vCPU, as the CPU thread policy requires.

    pin(free={2, 3, 6, 7}, siblings=[{2, 3}, {6, 7}], vcpus=[0, 1], policy='prefer')
    # Pinned(pins={0: 2, 1: 3}, reserved=frozenset(), threads=2)

The type ``Core`` is the list of one host core's free threads. Policy ``prefer`` uses all threads of a core if possible.
``require`` uses only cores with at least two free threads. ``isolate`` uses one thread of a core and leaves the core's
other threads unused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

PREFER, REQUIRE, ISOLATE = 'prefer', 'require', 'isolate'
Core = list[int]


@dataclass(frozen=True)
class Pinned:
    """The host CPUs that were chosen for a guest.

    ``pins`` is {vCPU: host CPU}. ``reserved`` are additional host CPUs for the emulator's threads. ``threads`` is the
    number of consecutive vCPUs that are pinned to threads of one core.
    """

    pins: dict[int, int]
    reserved: frozenset[int]
    threads: int = 1


def pin(
    free: Set[int], siblings: Iterable[Set[int]], vcpus: Collection[int], policy: str | None = None, reserve: int = 0
) -> Pinned | None:
    """Return a free CPU for each vCPU and ``reserve`` additional CPUs, or None if too few CPUs are free.

    ``siblings`` has, for each core of the host, the set of the core's threads. A CPU that is in none of the sets is a
    core of its own.
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
    """Return a list with one item for each core of the host that has free threads: the list of these threads.

    ``groups`` has the set of all threads of each core.
    """
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
    """Choose ``count`` CPUs from the free threads of ``cores``, with as many threads of each core as possible.

    Return the CPUs, and how many consecutive CPUs of the result are threads of one core. Return None if too few CPUs
    are usable. With ``whole``, only cores with at least two free threads are used.
    """
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
    # ``count`` CPUs cannot be taken with the same number of threads (2 or more) of each core: fill core after core.
    chosen = [cpu for core in usable for cpu in core][:count]
    return (chosen, 1) if len(chosen) == count else None


def _take(cores: list[Core], count: int, threads: int) -> list[int] | None:
    """Return ``count`` CPUs, or None if there are too few. ``count`` is a multiple of ``threads``.

    ``cores`` has the free threads of each core. In the result, ``threads`` consecutive CPUs at a time are on one core.
    Cores with the fewest free threads are used first.
    """
    chosen: list[int] = []
    for core in sorted(cores, key=len):
        chosen += core[: len(core) // threads * threads]
        if len(chosen) >= count:
            return chosen[:count]
    return None


def occupied(
    pins: Mapping[int, int], reserved: Iterable[int], siblings: Sequence[Set[int]], policy: str | None
) -> set[int]:
    """Return the host CPUs that a server occupies: no other server may be pinned to them.

    These are the CPUs in ``pins`` ({vCPU: host CPU}) and in ``reserved``. With the policy isolate, the other threads
    of the same cores, as given by ``siblings``, are included.
    """
    taken = {*pins.values(), *reserved}
    if policy == ISOLATE:
        taken.update(cpu for group in siblings if taken & group for cpu in group)
    return taken
