"""Compose candidates for many equal device groups out of Placement's answer for one of them.

    query, clones = full_query.collapsed()              # {'R-0': ['R-1', …, 'R-7']}
    found = client.allocation_candidates(query.pairs())
    requests = expand(found, query, clones)             # each with 'R-0' … 'R-7' on devices that fit together

Placement answers k equal groups with all ordered choices (lab.md §7: five of eight devices take it 3 s, eight of eight
never end). Asked for one, it names each provider that may serve any of them: what is left is to choose k, each no more
often than it has room. The claim checks the result like any other.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kilonova.scheduler.query import Query
from kilonova.scheduler.room import Request, Room

# Choices composed for one host and one set of groups: enough for filters to find one they like.
MAX_CHOICES = 64


def expand(requests: list[Request], query: Query, clones: dict[str, list[str]], room: Room,
           usable: Callable[[str], bool] = lambda provider: True,
           near: Callable[[str], Any] = lambda provider: 0) -> list[Request]:
    """The requests, all of one host, with the left out groups filled in.

    ``usable`` may rule out providers that the host itself wouldn't give; those of which ``near`` says the same are
    neighbours.
    """
    for kept, others in clones.items():
        requests = list(_expand_one(requests, query, [kept, *others], room, usable, near))
    return requests


def _expand_one(requests: list[Request], query: Query, groups: list[str], room: Room,
                usable: Callable[[str], bool], near: Callable[[str], Any]) -> Iterator[Request]:
    resources = query.groups[groups[0]].resources
    isolate = query.policy == 'isolate'
    for base, providers in _by_base(requests, groups[0], resources):
        taken = {rp for suffix, rps in base['mappings'].items() if suffix for rp in rps} if isolate else set()
        slots = []
        for provider in sorted(providers, key=near):
            if provider not in taken and usable(provider):
                times = 1 if isolate else len(groups)
                slots.extend([provider] * room.times(provider, resources, base, times))
        for choice in _choices(slots, len(groups)):
            yield _compose(base, dict(zip(groups, choice, strict=True)), resources)


def _by_base(requests: list[Request], kept: str,
             resources: dict[str, int]) -> Iterator[tuple[Request, list[str]]]:
    """Requests that differ only in the provider of the group ``kept``: what they share, and those providers."""
    bases: dict[Any, tuple[Request, list[str]]] = {}
    for request in requests:
        provider = request['mappings'][kept][0]
        base = _without(request, kept, provider, resources)
        bases.setdefault(_frozen(base), (base, []))[1].append(provider)
    yield from bases.values()


def _without(request: Request, suffix: str, provider: str, resources: dict[str, int]) -> Request:
    allocations = {rp: {'resources': dict(given['resources'])} for rp, given in request['allocations'].items()}
    left = allocations[provider]['resources']
    for name, amount in resources.items():
        left[name] -= amount
        if not left[name]:
            del left[name]
    if not left:
        del allocations[provider]
    return {'allocations': allocations,
            'mappings': {name: rps for name, rps in request['mappings'].items() if name != suffix}}


def _frozen(base: Request) -> tuple:
    return (tuple(sorted((rp, *sorted(given['resources'].items())) for rp, given in base['allocations'].items())),
            tuple(sorted((name, *rps) for name, rps in base['mappings'].items())))


def _choices(slots: list[str], count: int) -> Iterator[tuple[str, ...]]:
    """Up to MAX_CHOICES different ways to take ``count`` slots: neighbours first, then the others in order.

    Neighbours starting at each slot, so that a slot that turns out bad is not in all of the first choices.
    """
    if len(slots) < count:
        return
    around = (tuple((slots[start:] + slots[:start])[:count]) for start in range(len(slots)))
    seen = set()
    for choice in itertools.islice(itertools.chain(around, itertools.combinations(slots, count)), 4 * MAX_CHOICES):
        key = tuple(sorted(choice))
        if key not in seen:
            seen.add(key)
            yield choice
            if len(seen) == MAX_CHOICES:
                return


def _compose(base: Request, placed: dict[str, str], resources: dict[str, int]) -> Request:
    allocations = {rp: {'resources': dict(given['resources'])} for rp, given in base['allocations'].items()}
    for provider in placed.values():
        given = allocations.setdefault(provider, {'resources': {}})['resources']
        for name, amount in resources.items():
            given[name] = given.get(name, 0) + amount
    return {'allocations': allocations,
            'mappings': base['mappings'] | {suffix: [provider] for suffix, provider in placed.items()}}
