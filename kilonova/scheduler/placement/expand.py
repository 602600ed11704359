"""Compose allocation candidates for many device groups from Placement's answer for few groups.

    query, clones = full_query.collapsed()              # {'R-0': ['R-1', …, 'R-7'], 'S-0': []}, query.left_out: S-0
    found = client.allocation_candidates(query.pairs())
    requests = expand(found, query, clones, room)       # each with 'R-0' … 'R-7', 'S-0' on devices that fit together

If a query has several groups, Placement returns all combinations of the host's devices: for a host with eight devices,
five groups take 3 s, and eight groups do not finish. So only the first of several equal groups is sent, and Placement
returns each provider that can serve it. For kinds of groups that are not sent at all, the provider summaries show which
providers can serve them. This module then chooses a provider for each group, without exceeding the capacity of a
provider. Placement checks the result when the host is claimed.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova.scheduler.hosts.reservations import Request
from kilonova.scheduler.placement.query import CandidateQuery, Group
from kilonova.scheduler.placement.room import RemainingCapacity

# Maximum number of ways to choose devices of one host. If the host fits at all, filters usually accept one of them.
MAX_CHOICES = 64
# MANY_CHOICES: maximum number of ways to choose devices for all hosts of one answer together.
# LEAST_CHOICES: number of ways to choose devices that each host gets even if there are many hosts.
MANY_CHOICES, LEAST_CHOICES = 2000, 8

# A slot is the capacity of a provider for one device: (provider uuid, key that differs for each slot of the provider).
Slot = tuple[str, Hashable]
# A choice of slots has one tuple for each kind of request groups. The tuple has the slots for the groups of this kind.
Slots = tuple[tuple[Slot, ...], ...]


@dataclass(frozen=True)
class _Kind:
    """The request groups that ask for the same resources and traits.

    ``asked`` is True if Placement was asked for the first of these groups.
    """

    group: Group
    suffixes: list[str]
    asked: bool

    @property
    def resources(self) -> dict[str, int]:
        return self.group.resources


def expand(
    requests: list[Request],
    query: CandidateQuery,
    clones: dict[str, list[str]],
    room: RemainingCapacity,
    usable: Callable[[str], bool] = lambda provider: True,
    near: Callable[[str], Any] = lambda provider: 0,
) -> list[Request]:
    """Return the allocation requests of one host, completed with the groups that Placement was not asked for.

    ``requests`` are Placement's requests of this host. ``usable`` returns False for providers whose devices the host
    would refuse to give. ``near`` returns the place of a provider, for example its NUMA cell. Providers with the same
    place are preferred together.
    """
    kinds = [
        _Kind(
            query.left_out[kept] if kept in query.left_out else query.groups[kept],
            [kept, *others],
            kept not in query.left_out,
        )
        for kept, others in clones.items()
    ]
    near = functools.cache(near)
    most = MAX_CHOICES
    if query.left_out:
        most = max(LEAST_CHOICES, min(MAX_CHOICES, MANY_CHOICES // len(room.trees())))
    return [
        request
        for base, providers in _by_base(requests, kinds, room)
        for request in _expand(base, kinds, providers, query.policy == 'isolate', room, usable, near, most)
    ]


def _expand(
    base: Request,
    kinds: list[_Kind],
    providers: list[list[str]],
    isolate: bool,
    room: RemainingCapacity,
    usable: Callable[[str], bool],
    near: Callable[[str], Any],
    most: int,
) -> Iterator[Request]:
    taken = {rp for suffix, rps in base['mappings'].items() if suffix for rp in rps} if isolate else set()
    slots: list[list[Slot]] = []
    for kind, able in zip(kinds, providers, strict=True):
        # Groups with the same resources share the slots of a provider. With ``isolate``, groups never share a provider.
        what = None if isolate else tuple(sorted(kind.resources.items()))
        times = 1 if isolate else sum(len(one.suffixes) for one in kinds if one.resources == kind.resources)
        slots.append(
            [
                (provider, (what, number))
                for provider in sorted(able, key=near)
                if provider not in taken and usable(provider)
                for number in range(room.times(provider, kind.resources, base, times))
            ]
        )
    mixed = len({tuple(sorted(kind.resources.items())) for kind in kinds}) > 1 and len(
        {rp for able in providers for rp in able}
    ) < sum(map(len, providers))
    for choice in _choices(slots, [len(kind.suffixes) for kind in kinds], near, most):
        request = _compose(base, kinds, choice)
        if not mixed or room.fits(request):
            yield request


def _by_base(
    requests: list[Request], kinds: list[_Kind], room: RemainingCapacity
) -> Iterator[tuple[Request, list[list[str]]]]:
    """Combine allocation requests that differ only in devices, and yield (request without devices, providers).

    ``providers`` is a list with one entry for each item of ``kinds``: the uuids of the providers that can serve the
    equal request groups of this kind.
    """
    bases: dict[Any, tuple[Request, list[dict[str, None]]]] = {}
    for request in requests:
        base = request
        for kind in kinds:
            if kind.asked:
                base = _without(base, kind.suffixes[0], kind.resources)
        found = bases.setdefault(_frozen(base), (base, [{} for _ in kinds]))[1]
        for kind, able in zip(kinds, found, strict=True):
            if kind.asked:
                able[request['mappings'][kind.suffixes[0]][0]] = None
    for base, found in bases.values():
        # Any provider of the host will do. At least one exists, because Placement was asked for at least one device.
        beside = next(provider for able in found for provider in able)
        yield (
            base,
            [
                list(able) if kind.asked else room.providers(kind.group, beside)
                for kind, able in zip(kinds, found, strict=True)
            ],
        )


def _without(request: Request, suffix: str, resources: dict[str, int]) -> Request:
    provider = request['mappings'][suffix][0]
    allocations = {rp: {'resources': dict(given['resources'])} for rp, given in request['allocations'].items()}
    left = allocations[provider]['resources']
    for name, amount in resources.items():
        left[name] -= amount
        if not left[name]:
            del left[name]
    if not left:
        del allocations[provider]
    return {
        'allocations': allocations,
        'mappings': {name: rps for name, rps in request['mappings'].items() if name != suffix},
    }


def _frozen(base: Request) -> tuple[Any, ...]:
    return (
        tuple(sorted((rp, *sorted(given['resources'].items())) for rp, given in base['allocations'].items())),
        tuple(sorted((name, *rps) for name, rps in base['mappings'].items())),
    )


def _choices(slots: list[list[Slot]], counts: list[int], near: Callable[[str], Any], most: int) -> Iterator[Slots]:
    """Yield up to ``most`` different choices, each with ``counts[i]`` slots from ``slots[i]``.

    A slot is the capacity of a provider for one device. Choices of slots that are near each other come first.
    """
    number = math.prod(map(math.comb, map(len, slots), counts))
    if not number:
        return
    seen = set()
    for choice in itertools.chain(_neighbours(slots, counts, near), _others(slots, counts, number)):
        if choice is None:
            continue
        key = tuple(tuple(sorted(provider for provider, _ in of_kind)) for of_kind in choice)
        if key not in seen:
            seen.add(key)
            yield choice
            if len(seen) == most:
                return


def _neighbours(slots: list[list[Slot]], counts: list[int], near: Callable[[str], Any]) -> Iterator[Slots | None]:
    """Yield choices of slots that are near each other, for example on the same NUMA cell.

    A slot is the capacity of a provider for one device. Each choice starts at another slot, so that an unusable slot is
    not part of all the first choices. A choice is None if there are too few slots.
    """
    around: list[dict[Any, list[Slot]]] = []
    for of_kind in slots:
        around.append({})
        for slot in of_kind:
            around[-1].setdefault(near(slot[0]), []).append(slot)
    places = sorted({place for of_kind in around for place in of_kind})
    for turn in range(max(len(some) for of_kind in around for some in of_kind.values())):
        for index in range(len(places)):
            order = places[index:] + places[:index]
            yield _matched(
                [[slot for place in order for slot in _turned(of_kind.get(place, []), turn)] for of_kind in around],
                counts,
            )


def _turned(slots: list[Slot], turn: int) -> list[Slot]:
    start = turn % len(slots) if slots else 0
    return slots[start:] + slots[:start]


def _others(slots: list[list[Slot]], counts: list[int], number: int) -> Iterator[Slots | None]:
    """Yield possible choices of slots: all in order if their ``number`` is small, otherwise random ones.

    If all groups are equal (``slots`` has one list), the choices are in order, too. Yield None in place of a choice
    that uses a slot twice, or for which there are too few slots.
    """
    if len(slots) == 1 or number <= 16 * MAX_CHOICES:
        ways = itertools.product(*map(itertools.combinations, slots, counts))
        for choice in itertools.islice(ways, 16 * MAX_CHOICES):
            taken = [slot for of_kind in choice for slot in of_kind]
            yield choice if len(set(taken)) == len(taken) else None
        return
    # The seed is fixed, so that the same choices are made each time.
    rng = random.Random(0)
    for _ in range(4 * MAX_CHOICES):
        yield _matched([rng.sample(of_kind, len(of_kind)) for of_kind in slots], counts)


def _matched(orders: list[list[Slot]], counts: Sequence[int]) -> Slots | None:
    """Choose ``counts[i]`` slots from each list ``orders[i]``, without using a slot twice.

    A slot is the capacity of a provider for one device. The first slots of a list are preferred. Return None if there
    are too few slots.
    """
    owner: dict[Slot, int] = {}

    def give(kind: int, tried: set[Slot]) -> bool:
        for slot in orders[kind]:
            if slot not in owner:
                owner[slot] = kind
                return True
        for slot in orders[kind]:
            # All slots for this kind of groups are used. Try to move the group that uses ``slot`` to another free slot.
            if owner[slot] != kind and slot not in tried:
                tried.add(slot)
                if give(owner[slot], tried):
                    owner[slot] = kind
                    return True
        return False

    for kind, count in enumerate(counts):
        for _ in range(count):
            if not give(kind, set()):
                return None
    return tuple(tuple(slot for slot in order if owner.get(slot) == kind) for kind, order in enumerate(orders))


def _compose(base: Request, kinds: list[_Kind], choice: Slots) -> Request:
    allocations = {rp: {'resources': dict(given['resources'])} for rp, given in base['allocations'].items()}
    placed: dict[str, list[str]] = {}
    for kind, of_kind in zip(kinds, choice, strict=True):
        for suffix, (provider, _) in zip(kind.suffixes, of_kind, strict=True):
            placed[suffix] = [provider]
            given = allocations.setdefault(provider, {'resources': {}})['resources']
            for name, amount in kind.resources.items():
                given[name] = given.get(name, 0) + amount
    return {'allocations': allocations, 'mappings': base['mappings'] | placed}
