"""Compose allocation candidates for many device groups from Placement's answer for few groups.

    # full_query has eight equal groups, 'R-0' to 'R-7', and 'S-0', a group for another kind of device
    query, clones = full_query.collapsed()              # query asks for 'R-0'. It has 'S-0' in query.left_out
    # clones is {'R-0': ['R-1', …, 'R-7'], 'S-0': []}
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

# Maximum number of allocation requests that are composed for one host. Filters usually accept one of them.
MAX_CHOICES = 64
# MANY_CHOICES: maximum number of allocation requests that are composed for all hosts of Placement's answer together.
# LEAST_CHOICES: this many allocation requests may be composed for each host, even if there are many hosts.
MANY_CHOICES, LEAST_CHOICES = 2000, 8

# A slot is the capacity of a provider for one device: (provider uuid, key that differs for the provider's slots).
Slot = tuple[str, Hashable]
# A choice of slots: for each kind of equal request groups, a tuple with one slot for each group of this kind.
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
    """Return the allocation requests of one host, after adding the groups that were left out of the query.

    ``requests`` are the host's allocation requests in Placement's answer. ``clones`` is {suffix of a group: suffixes of
    equal groups that were left out}. ``room`` has the remaining capacity. ``usable(provider)`` returns False if the
    host would refuse to give the provider's devices. ``near(provider)`` returns the place of a provider, for example
    its NUMA cell. A server preferably gets devices of the same place.
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
        # ``times`` is the maximum number of slots of a provider: one with ``isolate``, else one for each equal group.
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

    ``kinds`` are the kinds of equal request groups. ``providers[i]`` is a list with the uuids of the providers that can
    serve the groups of ``kinds[i]``.
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
        # ``beside`` is any provider of the host with a requested device. The other devices are searched in its tree.
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

    A slot is the capacity of a provider for one device. ``slots[i]`` are the slots for the i-th kind of request groups,
    and ``counts[i]`` is the number of these groups. ``near(provider)`` returns a place such as a NUMA cell. Each choice
    starts at a different slot, because a slot may be unusable. None is yielded if there are too few slots.
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
    """Yield possible choices of slots: in order if there are few choices, otherwise random ones.

    ``slots[i]`` are the slots for the i-th kind of request groups, and ``counts[i]`` is the number of these groups.
    ``number`` is the number of possible choices. If there is only one kind, the choices are always in order. None is
    yielded in place of a choice that uses a slot twice or has too few slots.
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

    A slot is the capacity of a provider for one device. It may be in several of the lists, and slots at the beginning
    of a list are preferred. Return one tuple of slots for each list, or None if there are too few slots.
    """
    owner: dict[Slot, int] = {}

    def give(kind: int, tried: set[Slot]) -> bool:
        for slot in orders[kind]:
            if slot not in owner:
                owner[slot] = kind
                return True
        for slot in orders[kind]:
            # All slots in ``orders[kind]`` are used. Try to move the group that uses ``slot`` to another slot.
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
