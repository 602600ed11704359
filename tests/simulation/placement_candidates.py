"""GET /allocation_candidates of the Placement model: what is asked, and who can serve it.

    question = read_question([('resources', 'VCPU:2'), ('resources_R-0', 'CUSTOM_GPU:1'), ('limit', '10')])
    requests = list(candidates(state, question))        # [{'allocations', 'mappings'}], tree by tree

Where nobody can serve a group, names in the groups after it are not looked at: the service answers then that there is
nothing, and not that a name is unknown. So the checks below stand in its order. One thing is other than there: where
the unnamed group and a named one ask for the same class without ``group_policy=none``, the service gives candidates
with too large amounts, which ones by chance.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.placement_state import Amounts, NotModelled, Provider, Refusal, State, is_uuid

BAD_VALUE = 'placement.query.bad_value'
MISSING_VALUE = 'placement.query.missing_value'

_GROUP_KEY = re.compile('(resources|required|member_of|in_tree)([a-zA-Z0-9_-]{1,64})?')
_LIMIT = re.compile('[1-9][0-9]*')

Pairs = list[tuple[str, str]]
# A choice for one group: what is taken of whom, and the providers that the group's mapping names.
Offer = tuple[list[tuple[str, str, int]], list[str]]


@dataclass(slots=True)
class Group:
    """Resources, and what their provider must be. ``member_of``: it is in one of each; ``outside``: in none."""

    resources: Amounts = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)
    member_of: list[set[str]] = field(default_factory=list)
    outside: set[str] = field(default_factory=set)
    in_tree: str | None = None

    def suits(self, one: Provider) -> bool:
        """Whether a provider is all that the group asks for, but for resources and trees."""
        return (
            self.required <= one.traits
            and self.forbidden.isdisjoint(one.traits)
            and is_member(one, self.member_of)
            and self.outside.isdisjoint(one.aggregates)
        )


@dataclass(slots=True)
class Question:
    groups: dict[str, Group] = field(default_factory=dict)
    policy: str | None = None
    limit: int | None = None
    root_required: set[str] = field(default_factory=set)
    root_forbidden: set[str] = field(default_factory=set)
    same_subtree: list[set[str]] = field(default_factory=list)


def is_member(provider: Provider, members: list[set[str]]) -> bool:
    return not any(one.isdisjoint(provider.aggregates) for one in members)


# Reading the query


def read_group(pairs: Pairs, more: Iterable[str] = ()) -> tuple[Group, dict[str, str]]:
    """The group that these parameters, without suffix, describe; and all that come only once."""
    asked = _single(pairs, {'resources', 'required', 'in_tree', *more}, {'member_of'})
    group = Group(resources=_amounts(asked['resources']) if 'resources' in asked else {}, in_tree=asked.get('in_tree'))
    if 'in_tree' in asked and not is_uuid(asked['in_tree']):
        raise Refusal(400, f'Invalid query string parameters: in_tree {asked["in_tree"]}')
    if 'required' in asked:
        group.required, group.forbidden = _traits(asked['required'])
    for key, value in pairs:
        if key == 'member_of':
            _read_aggregates(group, value)
    return group, asked


def read_question(pairs: Pairs) -> Question:
    """Refusal: it is malformed."""
    question = Question()
    wide = _single(
        [pair for pair in pairs if not _GROUP_KEY.fullmatch(pair[0])],
        {'limit', 'group_policy', 'root_required'},
        {'same_subtree'},
    )
    if 'limit' in wide:
        if not _LIMIT.fullmatch(wide['limit']):
            raise Refusal(400, f'Invalid query string parameters: limit {wide["limit"]}')
        question.limit = int(wide['limit'])
    question.policy = wide.get('group_policy')
    if question.policy not in {None, 'none', 'isolate'}:
        raise Refusal(400, f'Invalid query string parameters: group_policy {question.policy}')
    if 'root_required' in wide:
        question.root_required, question.root_forbidden = _traits(wide['root_required'])
        if question.root_required & question.root_forbidden:
            raise Refusal(400, 'Conflicting required and forbidden traits found in root_required', BAD_VALUE)
    question.same_subtree = [{one.strip() for one in value.split(',')} for key, value in pairs if key == 'same_subtree']
    if any('' in suffixes for suffixes in question.same_subtree):
        raise Refusal(400, 'Empty string (unsuffixed group) can not be specified in `same_subtree`', BAD_VALUE)
    by_suffix: dict[str, Pairs] = {}
    for key, value in pairs:
        found = _GROUP_KEY.fullmatch(key)
        if found:
            by_suffix.setdefault(found[2] or '', []).append((found[1], value))
    question.groups = {suffix: read_group(given)[0] for suffix, given in by_suffix.items()}
    _check_groups(question)
    return question


def _check_groups(question: Question) -> None:
    bound = set().union(*question.same_subtree)
    without = {suffix for suffix, group in question.groups.items() if not group.resources}
    if len(without) == len(question.groups):
        raise Refusal(400, 'There must be at least one resources or resources[$S] parameter.', MISSING_VALUE)
    if without - bound:
        raise Refusal(
            400,
            f'Resourceless suffixed group request should be specified in `same_subtree`: {sorted(without - bound)}',
            BAD_VALUE,
        )
    if bound - question.groups.keys():
        raise Refusal(400, f'Real suffixes should be specified in `same_subtree`, not {sorted(bound)}', BAD_VALUE)
    if any(group.required & group.forbidden for group in question.groups.values()):
        raise Refusal(400, 'Conflicting required and forbidden traits found')
    if question.policy is None and sum(map(bool, question.groups)) > 1:
        raise Refusal(
            400, 'The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.'
        )


def _single(pairs: Pairs, keys: set[str], repeated: set[str]) -> dict[str, str]:
    """The parameters that may come once."""
    asked: dict[str, str] = {}
    for key, value in pairs:
        if key in repeated:
            continue
        if key not in keys:
            raise Refusal(400, f'Invalid query string parameters: {key}')
        if key in asked:
            raise NotModelled(f'{key} is there twice')
        asked[key] = value
    return asked


def _traits(value: str) -> tuple[set[str], set[str]]:
    """(required, forbidden) of 'A,!B'."""
    names = [name.strip() for name in value.split(',')]
    forbidden = {name.lstrip('!') for name in names if name.startswith('!')}
    if value.startswith('in:') or not all(names) or not all(forbidden):
        raise Refusal(400, f'Invalid query string parameters: traits {value}')
    return {name for name in names if not name.startswith('!')}, forbidden


def _read_aggregates(group: Group, value: str) -> None:
    """'uuid' or 'in:uuid,uuid': in one of them; with '!' before it: in none."""
    plain = value.removeprefix('!')
    ids = set(plain[3:].split(',')) if plain.startswith('in:') else {plain}
    if not all(is_uuid(one) for one in ids):
        raise Refusal(400, f'Invalid query string parameters: member_of {value}')
    if value.startswith('!'):
        group.outside |= ids
    else:
        group.member_of.append(ids)


def _amounts(value: str) -> Amounts:
    """'VCPU:2,MEMORY_MB:512' as a dict."""
    found = {}
    for part in value.split(','):
        name, colon, amount = part.partition(':')
        if not colon or not amount.isdecimal() or int(amount) < 1:
            raise Refusal(400, f'Badly formed resources parameter: {value}')
        found[name] = int(amount)
    return found


# Answering it


def candidates(state: State, question: Question) -> Iterator[dict[str, Any]]:
    """All ways to serve the question, without its limit. Refusal: a name in it doesn't exist."""
    roots = None
    if question.root_required or question.root_forbidden:
        state.check_traits(question.root_required | question.root_forbidden)
        wanted = Group(required=question.root_required, forbidden=question.root_forbidden)
        roots = {root for root, tree in state.trees.items() if wanted.suits(tree[root])}
        if not roots:
            return
    offers: dict[str, dict[str, list[Offer]]] = {}
    for suffix, group in question.groups.items():
        offers[suffix] = _offers(state, suffix, group, roots)
        if not offers[suffix]:
            return
    counts = Counter(name for group in question.groups.values() for name in group.resources)
    shared = any(count > 1 for count in counts.values())
    for root in next(iter(offers.values())):
        if all(root in by_root for by_root in offers.values()):
            yield from _combined(state, question, {suffix: by_root[root] for suffix, by_root in offers.items()}, shared)


def _offers(state: State, suffix: str, group: Group, roots: set[str] | None) -> dict[str, list[Offer]]:
    """What can serve one group, by the root of its tree; ``roots``: the only ones that come into question."""
    everyone = state.providers.values()
    for name in group.resources:
        state.check_class(name)
    if group.member_of and not any(is_member(one, group.member_of) for one in everyone):
        return {}
    state.check_traits(group.required | group.forbidden)
    among = everyone
    if group.in_tree is not None:
        if group.in_tree not in state.providers:
            return {}
        among = state.trees[state.providers[group.in_tree].root].values()
    able = {
        name: [one for one in among if name in one.inventory and one.fits(name, amount)]
        for name, amount in group.resources.items()
    }
    if not all(able.values()):
        return {}
    if not suffix and len(state.trees) < len(everyone):
        return _spread(state, group, able, roots)
    if able:
        found = min(able.values(), key=len)
    else:
        # As the service does: without what it asks for it finds nobody, and in_tree is not looked at.
        found = list(everyone) if group.required or group.member_of else []
    return _alone(group, found, roots)


def _alone(group: Group, found: list[Provider], roots: set[str] | None) -> dict[str, list[Offer]]:
    """Providers that serve the group each by itself."""
    offers: dict[str, list[Offer]] = {}
    for one in found:
        if (
            (roots is None or one.root in roots)
            and group.suits(one)
            and all(one.fits(name, amount) for name, amount in group.resources.items())
        ):
            taken = [(one.uuid, name, amount) for name, amount in group.resources.items()]
            offers.setdefault(one.root, []).append((taken, [one.uuid]))
    return offers


def _spread(
    state: State, group: Group, able: dict[str, list[Provider]], roots: set[str] | None
) -> dict[str, list[Offer]]:
    """Providers of one tree that serve the group together; each of them is in its root's aggregates, too."""
    by_root: dict[str, dict[str, list[Provider]]] = {}
    for name, found in able.items():
        for one in found:
            top = state.providers[one.root]
            if (
                (roots is None or one.root in roots)
                and group.forbidden.isdisjoint(one.traits)
                and (is_member(one, group.member_of) or is_member(top, group.member_of))
                and group.outside.isdisjoint(one.aggregates)
                and group.outside.isdisjoint(top.aggregates)
            ):
                by_root.setdefault(one.root, {}).setdefault(name, []).append(one)
    offers: dict[str, list[Offer]] = {}
    for root, by_name in by_root.items():
        if len(by_name) < len(group.resources):
            continue
        for chosen in itertools.product(*(by_name[name] for name in group.resources)):
            if group.required and not group.required <= set().union(*(one.traits for one in chosen)):
                continue
            taken = [(one.uuid, *given) for one, given in zip(chosen, group.resources.items(), strict=True)]
            offers.setdefault(root, []).append((taken, list(dict.fromkeys(one.uuid for one in chosen))))
    return offers


def _combined(
    state: State, question: Question, offers: dict[str, list[Offer]], shared: bool
) -> Iterator[dict[str, Any]]:
    """One offer a group, of one tree, in all ways that go together; ``shared``: groups ask for the same class."""
    named = sum(map(bool, offers))
    for chosen in itertools.product(*offers.values()):
        mappings = {suffix: list(offer[1]) for suffix, offer in zip(offers, chosen, strict=True)}
        if question.policy == 'isolate' and len({rps[0] for suffix, rps in mappings.items() if suffix}) < named:
            continue
        if question.same_subtree and not all(
            _is_subtree(state, {rp for suffix in suffixes for rp in mappings[suffix]})
            for suffixes in question.same_subtree
        ):
            continue
        allocations: dict[str, Any] = {}
        for taken, _ in chosen:
            for rp, name, amount in taken:
                resources = allocations.setdefault(rp, {'resources': {}})['resources']
                resources[name] = resources.get(name, 0) + amount
        if not shared or _has_room(state, allocations):
            yield {'allocations': allocations, 'mappings': mappings}


def _has_room(state: State, allocations: dict[str, Any]) -> bool:
    """Whether the sums fit; min_unit and step_size are the business of each group."""
    return all(
        amount <= provider.inventory[name]['max_unit']
        and provider.used.get(name, 0) + amount <= provider.capacity(name)
        for provider, given in ((state.providers[rp], given) for rp, given in allocations.items())
        for name, amount in given['resources'].items()
    )


def _is_subtree(state: State, rps: set[str]) -> bool:
    """Whether all of them are below one of them."""
    return bool(rps.intersection(*(_line(state, rp) for rp in rps)))


def _line(state: State, rp: str | None) -> Iterator[str]:
    while rp is not None:
        yield rp
        rp = state.providers[rp].parent
