"""The Placement model against the real Placement: the same requests to both, the same answers and the same state.

Requests are drawn by chance, many of them stale, malformed, too large or about what isn't there; then Kilonova's own
client does its work with both, and loses requests and answers on the way.
"""

from __future__ import annotations

import random
import uuid as uuidlib
from collections.abc import Callable
from typing import Any
from urllib import parse

import pytest

from kilonova import errors
from kilonova.clients import placement as placement_client
from kilonova.clients import session
from kilonova.clients.placement import MICROVERSION, PlacementClient
from kilonova.scheduler.placement.query import CandidateQuery, Group
from tests.fixtures.modelled import ModelledPlacement
from tests.fixtures.placement import Placement, app
from tests.simulation.placement_model import INVENTORY_DEFAULTS, ModelAdapter, NotModelled, PlacementModel, Refusal

HEADERS = {'OpenStack-API-Version': f'placement {MICROVERSION}'}
OWNER: dict[str, Any] = {'project_id': 'demo', 'user_id': 'alice'}
GPU, OTHER_GPU = 'CUSTOM_PCI_10DE_13F1', 'CUSTOM_PCI_10DE_2684'
CLASSES = ['VCPU', 'MEMORY_MB', GPU, OTHER_GPU]
TRAITS = ['CUSTOM_FAST', 'CUSTOM_GOLD', 'COMPUTE_STATUS_DISABLED', 'OWNER_NOVA']
UNKNOWN_CLASS, UNKNOWN_TRAIT = 'CUSTOM_NO_SUCH_CLASS', 'CUSTOM_NO_SUCH_TRAIT'
# Kilonova reads no other text than this one.
READ_TEXT = 'consumer generation conflict'
BAD_BODIES: list[Any] = [{}, [], {'generation': 1}, {'resource_provider_generation': '1'}]

Request = tuple[str, str, Any]


def uuids(what: str, number: int) -> list[str]:
    return [str(uuidlib.uuid5(uuidlib.NAMESPACE_OID, f'{what} {one}')) for one in range(number)]


NODES, CONSUMERS, AGGREGATES = uuids('node', 9), uuids('consumer', 6), uuids('aggregate', 3)
NOBODY = uuids('nobody', 1)[0]


def client_of(model: PlacementModel) -> PlacementClient:
    return PlacementClient(ModelAdapter(model))  # type: ignore[arg-type]


class Both:
    """The real service and the model, asked the same."""

    def __init__(self, service: Placement) -> None:
        self.service, self.model = service, PlacementModel()
        self.adapter = ModelAdapter(self.model)
        self.statuses: dict[tuple[str, str, int], int] = {}

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send it to both; their answer, which must be equal, and so must be all that they know afterwards."""
        given = {} if body is None else {'json': body}
        answers = [
            _readable(adapter.request(path, method, raise_exc=False, headers=dict(HEADERS), **given))
            for adapter in (self.service.adapter, self.adapter)
        ]
        if 'limit=' in path and answers[0][0] == answers[1][0] == 200:
            self._check_cut(path, *answers)
        else:
            assert answers[1] == answers[0], f'{method} {path} {body}'
        if method != 'GET':
            assert state_of_model(self.model) == state_of_service(), f'{method} {path} {body}'
        kind = path.partition('?')[0].split('/')
        shape = f'{kind[1]}/{kind[3]}' if len(kind) > 3 else kind[1]
        key = method, shape, answers[0][0]
        self.statuses[key] = self.statuses.get(key, 0) + 1
        return answers[0]

    def _check_cut(self, path: str, real: tuple[int, Any], ours: tuple[int, Any]) -> None:
        """Which candidates are the first ones is open: there must be as many, all of them among those of the uncut
        answer, with the trees that they name."""
        pairs = [pair for pair in parse.parse_qsl(path.partition('?')[2]) if pair[0] != 'limit']
        uncut = self.adapter.request(
            f'/allocation_candidates?{parse.urlencode(pairs)}', 'GET', raise_exc=False, headers=HEADERS
        )
        whole = _readable(uncut)[1]
        roots = {uuid: one['root_provider_uuid'] for uuid, one in whole['provider_summaries'].items()}
        assert len(real[1]['allocation_requests']) == len(ours[1]['allocation_requests']), path
        for answer in (real[1], ours[1]):
            assert all(one in whole['allocation_requests'] for one in answer['allocation_requests']), path
            named = {roots[rp] for one in answer['allocation_requests'] for rp in one['allocations']}
            assert answer['provider_summaries'] == {
                uuid: one for uuid, one in whole['provider_summaries'].items() if roots[uuid] in named
            }, path


def _readable(answer: Any) -> tuple[int, Any]:
    """(status, body), in one order, without what Kilonova doesn't read."""
    if answer.status_code >= 400:
        first = answer.json()['errors'][0]
        text = ' '.join(first['detail'].split())
        assert first['status'] == answer.status_code and first['title']
        return answer.status_code, (first['code'], text if READ_TEXT in text else None)
    return answer.status_code, _sorted(answer.json()) if answer.status_code == 200 else answer.text


def _sorted(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _sorted(body[key]) for key in sorted(body) if key != 'links'}
    if isinstance(body, list):
        return sorted(map(_sorted, body), key=repr)
    return body


# What both know


def state_of_model(model: PlacementModel) -> dict[str, Any]:
    """All that there is, as ``state_of_service`` gives it."""
    providers = model.providers.values()
    for one in providers:
        assert model.used(one.uuid) == one.used and 0 not in one.used.values()
    return {
        'providers': {one.uuid: (one.name, one.generation, one.parent, one.root) for one in providers},
        'inventories': {(one.uuid, name): given for one in providers for name, given in one.inventory.items()},
        'traits': {(one.uuid, name) for one in providers for name in one.traits},
        'aggregates': {(one.uuid, name) for one in providers for name in one.aggregates},
        'allocations': {
            (consumer, rp, name): amount
            for consumer, held in model.allocations().items()
            for rp, amounts in held.items()
            for name, amount in amounts.items()
        },
        'used': {(one.uuid, name): amount for one in providers for name, amount in one.used.items()},
        'consumers': {uuid: (one.generation, one.project_id, one.user_id) for uuid, one in model.consumers.items()},
    }


def state_of_service() -> dict[str, Any]:
    """The same of the real one, from its database."""
    with app().lock, app().engine.connect() as connection:

        def rows(statement: str) -> list[Any]:
            return [tuple(row) for row in connection.exec_driver_sql(statement)]

        providers = rows(
            'SELECT p.uuid, p.name, p.generation, parent.uuid, root.uuid FROM resource_providers p'
            ' JOIN resource_providers root ON root.id = p.root_provider_id'
            ' LEFT JOIN resource_providers parent ON parent.id = p.parent_provider_id'
        )
        inventories = rows(
            f'SELECT p.uuid, c.name, {", ".join(INVENTORY_DEFAULTS)} FROM inventories i'
            ' JOIN resource_providers p ON p.id = i.resource_provider_id'
            ' JOIN resource_classes c ON c.id = i.resource_class_id'
        )
        traits = rows(
            'SELECT p.uuid, t.name FROM resource_provider_traits r'
            ' JOIN resource_providers p ON p.id = r.resource_provider_id JOIN traits t ON t.id = r.trait_id'
        )
        aggregates = rows(
            'SELECT p.uuid, a.uuid FROM resource_provider_aggregates r'
            ' JOIN resource_providers p ON p.id = r.resource_provider_id'
            ' JOIN placement_aggregates a ON a.id = r.aggregate_id'
        )
        allocations = rows(
            'SELECT a.consumer_id, p.uuid, c.name, a.used FROM allocations a'
            ' JOIN resource_providers p ON p.id = a.resource_provider_id'
            ' JOIN resource_classes c ON c.id = a.resource_class_id'
        )
        consumers = rows(
            'SELECT c.uuid, c.generation, p.external_id, u.external_id FROM consumers c'
            ' JOIN projects p ON p.id = c.project_id JOIN users u ON u.id = c.user_id'
        )
    used: dict[tuple[str, str], int] = {}
    for _, rp, name, amount in allocations:
        used[rp, name] = used.get((rp, name), 0) + amount
    return {
        'providers': {uuid: tuple(row) for uuid, *row in providers},
        'inventories': {(rp, name): dict(zip(INVENTORY_DEFAULTS, row, strict=True)) for rp, name, *row in inventories},
        'traits': set(traits),
        'aggregates': set(aggregates),
        'allocations': {(consumer, rp, name): amount for consumer, rp, name, amount in allocations},
        'used': used,
        'consumers': {uuid: tuple(row) for uuid, *row in consumers},
    }


def read_all(client: PlacementClient) -> dict[str, Any]:
    """What there is, as Kilonova can read it."""
    found = {row['uuid']: row for row in client.list_providers()}
    return {
        'names': _sorted(found),
        'inventories': {uuid: client.get_inventory(uuid) for uuid in found},
        'traits': {uuid: client.get_traits(uuid) for uuid in found},
        'holders': {uuid: client.provider_allocations(uuid) for uuid in found},
        'consumers': {uuid: client.get_allocations(uuid) for uuid in CONSUMERS},
    }


# Requests by chance


class Requests:
    """Draws the next request with an eye on what the model knows, so that most of them make sense."""

    def __init__(self, seed: int, model: PlacementModel, flat: bool = False) -> None:
        self._random, self._model, self._flat = random.Random(seed), model, flat
        self._kinds: list[tuple[int, Callable[[], Request]]] = [
            (6, self._create),
            (6, self._delete),
            (12, self._inventory),
            (6, self._traits),
            (4, self._aggregates),
            (20, self._claim),
            (20, self._post),
            (4, self._drop),
            (6, self._read),
            (11, self._list),
            (22, self._candidates),
            (2, self._name),
        ]

    def draw(self) -> Request:
        weights = [weight for weight, _ in self._kinds]
        return self._random.choices(self._kinds, weights)[0][1]()

    def _may(self, chance: float) -> bool:
        return self._random.random() < chance

    def _one(self, values: Any) -> Any:
        return self._random.choice(list(values))

    def _some(self, values: Any, least: int = 0, most: int | None = None) -> list[Any]:
        values = list(values)
        number = self._random.randint(least, len(values) if most is None else min(most, len(values)))
        return self._random.sample(values, number)

    def _provider(self) -> str:
        return self._one(self._model.providers) if self._model.providers and self._may(0.95) else self._one(NODES)

    def _generation(self, uuid: str) -> int:
        known = self._model.providers.get(uuid)
        return (known.generation if known else 0) - (self._random.randint(1, 2) if self._may(0.12) else 0)

    def _create(self) -> Request:
        missing = [number for number, uuid in enumerate(NODES) if uuid not in self._model.providers]
        number = self._one(missing) if missing and self._may(0.6) else self._random.randrange(len(NODES))
        body: dict[str, Any] = {'name': f'node {number}', 'uuid': NODES[number]}
        if number > 2 and not self._flat:
            body['parent_provider_uuid'] = NODES[number - 3] if self._may(0.7) else self._one(NODES)
        elif self._may(0.3):
            body['parent_provider_uuid'] = None
        if self._may(0.15):
            body.update(
                self._one(
                    [
                        {'name': ''},
                        {'name': 3},
                        {'uuid': 'x'},
                        {'name': 'n' * 201},
                        {'uuid': NOBODY},
                        {'parent_provider_uuid': NOBODY},
                        {'more': 1},
                        {'parent_provider_uuid': 'x'},
                    ]
                )
            )
        return 'POST', '/resource_providers', body

    def _delete(self) -> Request:
        leaves = self._model.providers.keys() - {one.parent for one in self._model.providers.values()}
        uuid = self._one(sorted(leaves)) if leaves and self._may(0.7) else self._provider()
        return 'DELETE', f'/resource_providers/{uuid}', None

    def _inventory(self) -> Request:
        uuid = self._provider()
        inventories: dict[str, Any] = {}
        for name in self._some(CLASSES, 1):
            total = self._random.randint(1, 10)
            given = inventories[name] = {'total': total}
            given.update(
                {
                    key: value
                    for key, value in {
                        'reserved': self._random.randint(0, total),
                        'min_unit': self._random.randint(1, 3),
                        'max_unit': self._random.randint(1, 10),
                        'step_size': self._random.randint(1, 2),
                        'allocation_ratio': self._one([1, 1.0, 1.5, 16.0, 0.4]),
                    }.items()
                    if self._may(0.2)
                }
            )
        known = self._model.providers.get(uuid)
        if known is not None and self._may(0.3):
            # As it is, or less than is in use.
            inventories = {name: dict(given) for name, given in known.inventory.items()}
            if self._may(0.7):
                for given in inventories.values():
                    given.update(total=1, reserved=0)
        elif self._may(0.1):
            inventories = {}
        elif self._may(0.12):
            inventories[self._one(inventories)] = self._one(
                [
                    {},
                    {'total': 0},
                    {'total': 4, 'reserved': 5},
                    {'total': 1, 'more': 1},
                    {'total': '4'},
                    [],
                    {'total': 3, 'reserved': -1},
                    {'total': 2, 'min_unit': 0},
                    {'total': 2, 'step_size': 0},
                    {'total': 2, 'max_unit': 0},
                    {'total': 2**31},
                    {'total': 2, 'allocation_ratio': 1e39},
                    {'total': 2, 'allocation_ratio': '1'},
                ]
            )
        if self._may(0.05):
            inventories[UNKNOWN_CLASS] = {'total': 1}
        body = {'resource_provider_generation': self._generation(uuid), 'inventories': inventories}
        return 'PUT', f'/resource_providers/{uuid}/inventories', self._one(BAD_BODIES) if self._may(0.03) else body

    def _traits(self) -> Request:
        uuid = self._provider()
        traits = self._some([*TRAITS, UNKNOWN_TRAIT] if self._may(0.1) else TRAITS)
        if self._may(0.05):
            traits = self._one([traits * 2, ['', *traits], [3], 'CUSTOM_FAST', ['T' * 256]])
        body = {'resource_provider_generation': self._generation(uuid), 'traits': traits}
        return 'PUT', f'/resource_providers/{uuid}/traits', self._one(BAD_BODIES) if self._may(0.05) else body

    def _aggregates(self) -> Request:
        uuid = self._provider()
        aggregates = self._some(AGGREGATES)
        if self._may(0.1):
            aggregates = self._one([[*aggregates, 'x'], [AGGREGATES[0]] * 2, 'x'])
        body = {'resource_provider_generation': self._generation(uuid), 'aggregates': aggregates}
        return 'PUT', f'/resource_providers/{uuid}/aggregates', self._one(BAD_BODIES) if self._may(0.05) else body

    def _wanted(self) -> dict[str, Any]:
        """Allocations, most of them of what there is."""
        found: dict[str, Any] = {}
        stocked = [uuid for uuid, one in self._model.providers.items() if one.inventory]
        for uuid in self._some(stocked, 1, 2) if stocked else [self._provider()]:
            known = self._model.providers.get(uuid)
            names = known.inventory if known and known.inventory and self._may(0.95) else CLASSES
            found[uuid] = {
                'resources': {name: self._random.choice([1, 1, 1, 2, 2, 3, 5, 9]) for name in self._some(names, 1, 2)}
            }
        if self._may(0.03):
            found[NOBODY] = {'resources': {'VCPU': 1}}
        if self._may(0.03):
            self._one(found.values())['resources'][UNKNOWN_CLASS] = 1
        return found

    def _held(self, consumer: str) -> dict[str, Any]:
        return {rp: {'resources': amounts} for rp, amounts in self._model.allocations().get(consumer, {}).items()}

    def _changed(self, consumer: str) -> dict[str, Any]:
        """About what it has."""
        held = self._held(consumer)
        for given in held.values():
            for name in given['resources']:
                given['resources'][name] = max(1, given['resources'][name] + self._one([-1, -1, 0, 1]))
        return held

    def _body(self, consumer: str, allocations: dict[str, Any]) -> dict[str, Any]:
        known = self._model.consumers.get(consumer)
        generation: int | None = known.generation if known else None
        if self._may(0.12):
            generation = self._one([None, 0, 1, 2])
        body: dict[str, Any] = {
            'allocations': allocations,
            'consumer_generation': generation,
            'project_id': self._one(['demo', 'other']),
            'user_id': self._one(['alice', 'bob']),
        }
        if self._may(0.3):
            body['mappings'] = {'': list(allocations) or [NOBODY], 'a-0': [NOBODY]}
        if self._may(0.04):
            body.update(
                self._one(
                    [
                        {'project_id': ''},
                        {'user_id': None},
                        {'consumer_generation': 'x'},
                        {'mappings': {}},
                        {'more': 1},
                        {'mappings': {'a': []}},
                        {'mappings': {'a': ['x']}},
                        {'allocations': {'x': {'resources': {'VCPU': 1}}}},
                        {'allocations': {NOBODY: {'resources': {}}}},
                        {'allocations': {NOBODY: {'resources': {'VCPU': 0}}}},
                        {'allocations': {NOBODY: {'resources': {'vcpu': 1}}}},
                        {'allocations': []},
                        {'user_id': 'u' * 256},
                    ]
                )
            )
        return body

    def _claim(self) -> Request:
        consumer = self._one(CONSUMERS)
        if self._may(0.02):
            return 'PUT', '/allocations/nobody', self._body(consumer, self._wanted())
        wanted = {} if self._may(0.12) else self._changed(consumer) if self._may(0.3) else self._wanted()
        return 'PUT', f'/allocations/{consumer}', self._body(consumer, wanted)

    def _post(self) -> Request:
        """A move, a move back, or whatever else of several consumers."""
        if self._may(0.03):
            return 'POST', '/allocations', self._one([{}, {'x': self._body(CONSUMERS[0], {})}, []])
        one, other = self._some(CONSUMERS, 2, 2)
        held = self._held(one)
        if self._may(0.3):
            payload = {one: self._wanted(), other: held}
        elif self._may(0.3):
            payload = {one: {}, other: held}
        elif self._may(0.4):
            payload = {one: self._changed(one), other: self._one([self._changed(other), self._changed(one)])}
        else:
            payload = {uuid: self._one([self._wanted(), {}]) for uuid in self._some(CONSUMERS, 1, 3)}
        return 'POST', '/allocations', {uuid: self._body(uuid, given) for uuid, given in payload.items()}

    def _drop(self) -> Request:
        return 'DELETE', f'/allocations/{self._one(CONSUMERS)}', None

    def _read(self) -> Request:
        what = self._one(['inventories', 'traits', 'aggregates', 'allocations', None, None])
        if what is None:
            return 'GET', f'/allocations/{self._one([*CONSUMERS, "x"])}', None
        return 'GET', f'/resource_providers/{self._provider()}/{what}', None

    def _name(self) -> Request:
        if self._may(0.4):
            names = self._some([*TRAITS, UNKNOWN_TRAIT, 'CUSTOM_MORE', 'HW_CPU_X86_VMX'], 1)
            return 'GET', f'/traits?{parse.urlencode({"name": "in:" + ",".join(names)})}', None
        name = self._one(['CUSTOM_MORE', 'CUSTOM_FAST', GPU, 'VCPU', 'custom_x', 'OWNER_NOVA', 'CUSTOM_' + 'X' * 250])
        return 'PUT', f'/{self._one(["traits", "resource_classes"])}/{name}', None

    def _words(self, unknown: float = 0.03) -> str:
        names = [*TRAITS, UNKNOWN_TRAIT] if self._may(unknown) else TRAITS
        return ','.join(self._one(['', '!']) + name for name in self._some(names, 1, 2))

    def _list(self) -> Request:
        pairs: list[tuple[str, str]] = []
        if self._may(0.3):
            pairs.append(('in_tree', self._one([self._provider(), NOBODY])))
        if self._may(0.2):
            pairs.append(('name', f'node {self._random.randrange(len(NODES))}'))
        if self._may(0.2):
            pairs.append(('uuid', self._provider()))
        if self._may(0.4):
            pairs.append(('required', self._words()))
        if self._may(0.4):
            names = [*CLASSES, UNKNOWN_CLASS] if self._may(0.1) else CLASSES
            pairs.append(
                ('resources', ','.join(f'{name}:{self._random.randint(1, 4)}' for name in self._some(names, 1, 2)))
            )
        for _ in range(self._one([0, 0, 1, 2])):
            pairs.append(('member_of', self._one(['', 'in:', '!', '!in:'])))
            several = self._some([*AGGREGATES, NOBODY], 1) if pairs[-1][1].endswith('in:') else [self._one(AGGREGATES)]
            pairs[-1] = 'member_of', pairs[-1][1] + ','.join(several)
        if self._may(0.08):
            pairs = [pair for pair in pairs if pair[0] == 'name'] + [
                self._one(
                    [
                        ('uuid', 'x'),
                        ('in_tree', 'x'),
                        ('required', ''),
                        ('required', 'A,,B'),
                        ('required', '!'),
                        ('resources', 'VCPU'),
                        ('resources', 'VCPU:x'),
                        ('resources', 'VCPU:0'),
                        ('resources', ''),
                        ('member_of', 'x'),
                        ('member_of', f'{AGGREGATES[0]},{AGGREGATES[1]}'),
                        ('more', '1'),
                    ]
                )
            ]
        return 'GET', f'/resource_providers?{parse.urlencode(pairs)}' if pairs else '/resource_providers', None

    def _candidates(self) -> Request:
        """What the scheduler's CandidateQuery can say, and now and then what it can't."""
        query = CandidateQuery(groups={'': self._group()} if self._may(0.85) else {})
        for suffix in self._some(['1', '_GPU', 'd7b6-0', 'd7b6-1'], 0, 2 if self._may(0.8) else 3):
            query.groups[suffix] = self._group(named=True)
        if self._may(0.2):
            query.groups['_EMPTY'] = Group(
                required=set(self._some(TRAITS, 0, 1)),
                aggregates=[[self._one(AGGREGATES)]] if self._may(0.4) else [],
                forbidden={self._one(TRAITS)} if self._may(0.3) else set(),
                in_tree=self._provider() if self._may(0.2) else None,
            )
        named = [suffix for suffix in query.groups if suffix]
        # Placement reckons wrongly where the unnamed group and a named one ask for the same, but for this policy.
        shared = '' in query.groups and any(
            query.groups[''].resources.keys() & query.groups[suffix].resources.keys() for suffix in named
        )
        query.policy = 'none' if shared else self._one(['none', 'isolate', 'isolate'])
        if not shared and self._may(0.1):
            query.policy = None
        if named and self._may(0.4):
            query.same_subtree = [self._some(named, 1)]
        if '_EMPTY' in named and self._may(0.9):
            query.same_subtree.append(['_EMPTY', *self._some(named, 1)])
        if self._may(0.15):
            query.root_required = set(self._some(TRAITS, 0, 1))
            query.root_forbidden = set(self._some([*TRAITS, UNKNOWN_TRAIT] if self._may(0.1) else TRAITS, 0, 1))
        if self._may(0.3):
            query.limit = self._random.randint(1, 4)
        pairs = query.pairs()
        if self._may(0.05):
            more = self._one(
                [
                    ('limit', '0'),
                    ('limit', 'x'),
                    ('group_policy', 'x'),
                    ('same_subtree', 'nobody'),
                    ('more', '1'),
                    ('same_subtree', ''),
                    ('requiredX', 'OWNER_NOVA'),
                    ('resourcesX', 'VCPU:x'),
                    ('member_ofX', 'x'),
                    ('in_treeX', 'x'),
                    ('root_required', 'OWNER_NOVA,!OWNER_NOVA'),
                    ('required1', 'A,!A'),
                ]
            )
            pairs = [*(pair for pair in pairs if pair[0] != more[0] or more[0] == 'same_subtree'), more]
        return 'GET', f'/allocation_candidates?{parse.urlencode(pairs)}', None

    def _group(self, named: bool = False) -> Group:
        names = CLASSES[2:] if named and self._may(0.6) else CLASSES
        if self._may(0.02):
            names = [*names, UNKNOWN_CLASS]
        group = Group(
            resources={name: self._random.choice([1, 1, 1, 2, 3]) for name in self._some(names, 1, 1 if named else 2)}
        )
        if self._may(0.25):
            group.required = set(self._some([*TRAITS, UNKNOWN_TRAIT] if self._may(0.05) else TRAITS, 1, 2))
        if self._may(0.2):
            group.forbidden = set(self._some(TRAITS, 1, 2))
        if self._may(0.12):
            group.aggregates = [self._some([*AGGREGATES, NOBODY], 1) for _ in range(self._random.randint(1, 2))]
        if self._may(0.1):
            group.forbidden_aggregates = set(self._some([*AGGREGATES, NOBODY], 1))
        if self._may(0.1):
            group.in_tree = self._provider()
        return group


def build(both: Both, seed: int, flat: bool = False) -> None:
    """Names, and three roots with a child that has a child, all with inventories and most of them with traits.
    ``flat``: all are roots."""
    rng = random.Random(seed)
    for name in (GPU, OTHER_GPU):
        both.ask('PUT', f'/resource_classes/{name}')
    for name in TRAITS[:2]:
        both.ask('PUT', f'/traits/{name}')
    for number, uuid in enumerate(NODES):
        parent = {'parent_provider_uuid': NODES[number - 3]} if number > 2 and not flat else {}
        both.ask('POST', '/resource_providers', {'name': f'node {number}', 'uuid': uuid, **parent})
        names = CLASSES[:2] if number < 3 else rng.sample(CLASSES[2:], rng.randint(1, 2))
        both.ask(
            'PUT',
            f'/resource_providers/{uuid}/inventories',
            {'resource_provider_generation': 0, 'inventories': {name: {'total': rng.randint(3, 9)} for name in names}},
        )
        both.ask(
            'PUT',
            f'/resource_providers/{uuid}/traits',
            {'resource_provider_generation': 1, 'traits': rng.sample(TRAITS, rng.randint(0, 3))},
        )


@pytest.fixture
def both(placement: Placement, monkeypatch: pytest.MonkeyPatch) -> Both:
    monkeypatch.setattr(placement_client, 'CONFLICT_PAUSE', 0)
    monkeypatch.setattr(session, 'RETRY_PAUSE', 0)
    return Both(placement)


@pytest.mark.parametrize('seed', range(5))
def test_requests_by_chance(both: Both, seed: int) -> None:
    drawn = Requests(seed, both.model, flat=not seed)
    build(both, seed, flat=not seed)
    for _ in range(90):
        both.ask(*drawn.draw())


# Candidates, one rule after the other

# {node: (its parent, its inventories, its traits, its aggregates)}
CLOUD: dict[int, tuple[int | None, dict[str, dict[str, int]], list[str], list[str]]] = {
    0: (None, {'VCPU': {'total': 4}}, ['CUSTOM_GOLD'], [AGGREGATES[0]]),
    3: (0, {GPU: {'total': 3, 'max_unit': 2}}, ['CUSTOM_FAST'], []),
    6: (3, {OTHER_GPU: {'total': 1}}, [], []),
    5: (0, {GPU: {'total': 1}}, [], []),
    1: (None, {'VCPU': {'total': 4}}, ['OWNER_NOVA'], []),
    4: (1, {GPU: {'total': 1}}, ['CUSTOM_FAST'], [AGGREGATES[1]]),
}
# What is asked, and how many candidates there are.
RULES: list[tuple[dict[str, str], int]] = [
    ({'resources': 'VCPU:1'}, 2),
    ({'resources': f'VCPU:1,{GPU}:1'}, 3),
    ({'resources': f'VCPU:1,{GPU}:1', 'in_tree': NODES[3]}, 2),
    ({'resources': f'VCPU:1,{GPU}:1', 'in_tree': NOBODY}, 0),
    ({'resources': f'VCPU:1,{GPU}:9'}, 0),
    # The aggregates of a root count for its tree in the unnamed group, and only there.
    ({'resources': f'{GPU}:1', 'member_of': AGGREGATES[0]}, 2),
    ({'resources': f'{GPU}:1', 'member_of': f'!{AGGREGATES[0]}'}, 1),
    ({'resources': f'{GPU}:1', 'member_of': f'in:{AGGREGATES[0]},{AGGREGATES[1]}'}, 3),
    ({'resources': f'{GPU}:1', 'member_of': NOBODY}, 0),
    ({'resources_A': f'{GPU}:1', 'member_of_A': AGGREGATES[0]}, 0),
    ({'resources_A': f'{GPU}:1', 'member_of_A': AGGREGATES[1]}, 1),
    ({'resources_A': f'{GPU}:1', 'member_of_A': f'!{AGGREGATES[1]}'}, 2),
    # The unnamed group's providers have its traits together, another's one has all; none has what is forbidden.
    ({'resources': f'VCPU:1,{GPU}:1', 'required': 'OWNER_NOVA,CUSTOM_FAST'}, 1),
    ({'resources_A': f'{GPU}:1', 'required_A': 'OWNER_NOVA,CUSTOM_FAST'}, 0),
    ({'resources': f'VCPU:1,{GPU}:1', 'required': '!CUSTOM_FAST'}, 1),
    ({'resources_A': f'{GPU}:1', 'required_A': '!CUSTOM_FAST'}, 1),
    ({'resources': f'{GPU}:1', 'root_required': 'CUSTOM_GOLD'}, 2),
    ({'resources': f'{GPU}:1', 'root_required': 'CUSTOM_FAST'}, 0),
    ({'resources_A': f'{GPU}:1', 'root_required': '!CUSTOM_GOLD'}, 1),
    # What groups take of one provider has to fit together, max_unit included.
    ({'resources_A': f'{GPU}:1', 'resources_B': f'{GPU}:1', 'group_policy': 'none'}, 3),
    ({'resources_A': f'{GPU}:2', 'resources_B': f'{GPU}:1', 'group_policy': 'none'}, 1),
    ({'resources_A': f'{GPU}:1', 'resources_B': f'{GPU}:1', 'group_policy': 'isolate'}, 2),
    ({'resources': f'{GPU}:1', 'resources_A': f'{GPU}:1', 'group_policy': 'none'}, 3),
    # All providers of the groups are below one of them.
    ({'resources_A': f'{GPU}:1', 'resources_B': f'{OTHER_GPU}:1', 'group_policy': 'none'}, 2),
    ({'resources_A': f'{GPU}:1', 'resources_B': f'{OTHER_GPU}:1', 'group_policy': 'none', 'same_subtree': '_A,_B'}, 1),
    (
        {'resources_A': f'{OTHER_GPU}:1', 'required_B': 'CUSTOM_FAST', 'group_policy': 'none', 'same_subtree': '_A,_B'},
        1,
    ),
    # A group without resources finds nobody by what it forbids alone, and doesn't look at trees.
    (
        {
            'resources_A': f'{OTHER_GPU}:1',
            'required_B': '!CUSTOM_GOLD',
            'group_policy': 'none',
            'same_subtree': '_A,_B',
        },
        0,
    ),
    (
        {
            'resources_A': f'{GPU}:1',
            'member_of_B': AGGREGATES[1],
            'in_tree_B': NODES[0],
            'group_policy': 'none',
            'same_subtree': '_A,_B',
        },
        1,
    ),
    # After what nobody passes no names are looked at.
    ({'resources': 'VCPU:99', 'resources_A': f'{UNKNOWN_CLASS}:1'}, 0),
    ({'resources': 'VCPU:1', 'member_of': NOBODY, 'required': UNKNOWN_TRAIT}, 0),
]
WRONG: list[dict[str, str]] = [
    {},
    {'required': 'CUSTOM_FAST'},
    {'resources': 'VCPU:1', 'required_A': 'CUSTOM_FAST'},
    {'resources': f'{UNKNOWN_CLASS}:1'},
    {'resources': 'VCPU:1', 'required': UNKNOWN_TRAIT},
    {'resources': 'VCPU:1', 'root_required': f'!{UNKNOWN_TRAIT}'},
    {'resources_A': f'{GPU}:1', 'resources_B': f'{GPU}:1'},
    {'resources': 'VCPU:1', 'same_subtree': '_A'},
]


def test_rules_of_candidates(both: Both) -> None:
    for name in (GPU, OTHER_GPU):
        both.ask('PUT', f'/resource_classes/{name}')
    for name in TRAITS[:2]:
        both.ask('PUT', f'/traits/{name}')
    for number, (parent, inventories, traits, aggregates) in CLOUD.items():
        both.ask(
            'POST',
            '/resource_providers',
            {
                'name': f'node {number}',
                'uuid': NODES[number],
                'parent_provider_uuid': None if parent is None else NODES[parent],
            },
        )
        for what, given in (('inventories', inventories), ('traits', traits), ('aggregates', aggregates)):
            both.ask(
                'PUT',
                f'/resource_providers/{NODES[number]}/{what}',
                {'resource_provider_generation': both.model.providers[NODES[number]].generation, what: given},
            )
    found = [
        (asked, len(both.ask('GET', f'/allocation_candidates?{parse.urlencode(asked)}')[1]['allocation_requests']))
        for asked, _ in RULES
    ]
    assert found == RULES
    for asked in WRONG:
        assert both.ask('GET', f'/allocation_candidates?{parse.urlencode(asked)}')[0] == 400


# Kilonova's own work


class Work:
    """Kilonova's client at both, doing the same, with the same mishaps."""

    def __init__(self, both: Both, seed: int) -> None:
        self._both, self._random = both, random.Random(seed)
        self._restart()
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (1, self._restart),
            (8, self._sync),
            (10, self._claim),
            (8, self._move),
            (6, self._move_back),
            (5, self._drop),
            (3, self._member),
            (2, self._disable),
            (1, self._leave),
            (4, self._ask),
        ]

    def step(self) -> None:
        self._random.choices(self._kinds, [weight for weight, _ in self._kinds])[0][1]()

    def do(self, method: str, *args: Any, mishap: bool = False, **kwargs: Any) -> Any:
        """Call a method of both clients; what came of it, which must be the same, as must be what was sent for it."""
        mishap_at, kind = self._random.randint(1, 4), self._random.choice(['before', 'after', 'meanwhile'])
        both, outcomes = self._both, []
        for client, side, broken in (
            (self._clients[0], both.service, both.service.broken),
            (self._clients[1], both.model, both.model.broken),
        ):
            side.requests.clear()
            if mishap:
                self._arrange(side, kind, mishap_at, client._adapter, args, broken)
            try:
                outcomes.append(_sorted(getattr(client, method)(*args, **kwargs)))
            except errors.KilonovaError as error:
                outcomes.append((type(error), getattr(error, 'placement_code', None), READ_TEXT in error.message))
            finally:
                side.before = side.after = None
        words = f'{method} {args} {kwargs} {kind if mishap else ""}'
        assert outcomes[1] == outcomes[0], words
        # The order of a list of providers is open, so that of the reads that follow it is.
        assert sorted(both.model.requests) == sorted(both.service.requests), words
        assert state_of_model(both.model) == state_of_service(), words
        return outcomes[0]

    @staticmethod
    def _arrange(
        side: Placement | PlacementModel, kind: str, at: int, adapter: Any, args: tuple, broken: Callable[[], Exception]
    ) -> None:
        """The ``at``-th write is lost, or its answer, or just before it somebody else changes what it is about."""
        left = [at]

        def hook(method: str, path: str) -> None:
            left[0] -= method != 'GET'
            if method == 'GET' or left[0]:
                return
            if kind != 'meanwhile':
                raise broken()
            side.before = None
            if path.startswith('/resource_providers/') and method == 'PUT':
                uuid = path.split('/')[2]
                found = adapter.request(
                    f'/resource_providers/{uuid}/inventories', 'GET', raise_exc=False, headers=HEADERS
                ).json()
                adapter.request(
                    f'/resource_providers/{uuid}/inventories', 'PUT', raise_exc=False, headers=HEADERS, json=found
                )
            elif 'allocations' in path:
                adapter.request(f'/allocations/{args[0]}', 'DELETE', raise_exc=False, headers=HEADERS)

        if kind == 'after':
            side.after = hook
        else:
            side.before = hook

    def _may(self, chance: float) -> bool:
        return self._random.random() < chance

    def _restart(self) -> None:
        """A process that remembers nothing."""
        self._clients = PlacementClient(self._both.service.adapter), client_of(self._both.model)

    def _sync(self) -> None:
        """A host reports itself; devices come and go."""
        node = self._random.randrange(3)
        vcpus = self._random.choice([4, 8])
        inventory = {
            'VCPU': {'total': vcpus, 'max_unit': vcpus, 'allocation_ratio': 2.0},
            'MEMORY_MB': {'total': 4096, 'max_unit': 4096, 'reserved': 512},
        }
        if self._may(0.3):
            inventory['CUSTOM_BAREMETAL'] = {'total': 1}
        view = {
            f'host{node}_{address}': {
                'resource_class': self._random.choice([GPU, GPU, OTHER_GPU]),
                'total': self._random.choice([1, 1, 2]),
                'traits': {'COMPUTE_MANAGED_PCI_DEVICE', *self._random.sample(TRAITS, 1)},
                'reserved': self._random.choice([None, None, 0, 1]),
            }
            for address in ('08', '88', 'c1')
            if self._may(0.8)
        }
        traits = {'COMPUTE_NODE', 'HW_CPU_X86_VMX', *self._random.sample([*TRAITS, UNKNOWN_TRAIT], 2)}
        self.do(
            'sync_compute',
            NODES[node],
            f'host{node}',
            inventory,
            traits,
            view,
            refresh=self._may(0.5),
            mishap=self._may(0.3),
        )

    def _wanted(self) -> dict[str, Any]:
        """What the scheduler would choose; sometimes more than there is."""
        found = self.do(
            'allocation_candidates',
            [
                ('resources', f'VCPU:{self._random.randint(1, 3)}'),
                ('resources_R-0', f'{GPU}:1'),
                ('root_required', '!COMPUTE_STATUS_DISABLED'),
            ],
        )
        if isinstance(found, dict) and found['allocation_requests'] and self._may(0.8):
            return self._random.choice(found['allocation_requests'])
        rp = self._random.choice([*self._both.model.providers, NOBODY])
        return {'allocations': {rp: {'resources': {'VCPU': self._random.choice([1, 20])}}}, 'mappings': {'': [rp]}}

    def _claim(self) -> None:
        self.do('claim', self._random.choice(CONSUMERS[:3]), **self._wanted(), **OWNER, mishap=self._may(0.3))

    def _move(self) -> None:
        wanted = self._wanted()
        self.do(
            'move_allocation',
            *self._pair(),
            new=wanted['allocations'],
            mappings=wanted['mappings'],
            **OWNER,
            mishap=self._may(0.4),
        )

    def _move_back(self) -> None:
        self.do('move_back', *self._pair(), mishap=self._may(0.4))

    def _pair(self) -> tuple[str, str]:
        number = self._random.randrange(3)
        return CONSUMERS[number], CONSUMERS[number + 3]

    def _drop(self) -> None:
        consumer = self._random.choice(CONSUMERS)
        if self._may(0.5):
            self.do('delete_allocations', consumer, mishap=self._may(0.2))
        else:
            self.do('drop', consumer, lambda: None, mishap=self._may(0.4))

    def _member(self) -> None:
        self.do(
            'set_member',
            self._random.choice(NODES[:3]),
            self._random.choice(AGGREGATES),
            self._may(0.7),
            mishap=self._may(0.3),
        )

    def _disable(self) -> None:
        self.do('set_host_disabled', self._random.choice(NODES[:3]), self._may(0.5), mishap=self._may(0.3))

    def _leave(self) -> None:
        self.do('delete_tree', self._random.choice(NODES[:3]))

    def _ask(self) -> None:
        node, words = self._random.choice(NODES[:3]), self._random.sample(TRAITS, 2)
        self.do('qualifies', node, words[:1], words[1:])
        self.do('qualifies', node, words[:1], words[1:], [AGGREGATES[:2], AGGREGATES[1:]])
        self.do('list_providers', resources=f'{GPU}:1', required=f'{words[0]},!{words[1]}')
        self.do('list_providers', in_tree=node)
        self.do('provider_allocations', node)


@pytest.mark.parametrize('seed', range(3))
def test_kilonovas_work(both: Both, seed: int) -> None:
    work = Work(both, seed)
    for _ in range(25):
        work.step()
    assert read_all(client_of(both.model)) == read_all(PlacementClient(both.service.adapter))


# What the simulator does with it


@pytest.fixture
def model() -> PlacementModel:
    """A host with one server."""
    model = PlacementModel()
    client = client_of(model)
    client.sync_compute(NODES[0], 'host', {'VCPU': {'total': 4}}, set())
    client.claim(CONSUMERS[0], {NODES[0]: {'resources': {'VCPU': 1}}}, **OWNER)
    model.requests.clear()
    return model


def test_hooks_stand_before_and_after_what_is_done(model: PlacementModel) -> None:
    seen: list[tuple[str, str, str, dict[str, int]]] = []
    model.before = lambda method, path: seen.append(('before', method, path, model.used(NODES[0])))
    model.after = lambda method, path: seen.append(('after', method, path, model.used(NODES[0])))
    client_of(model).delete_allocations(CONSUMERS[0])
    sent = 'DELETE', f'/allocations/{CONSUMERS[0]}'
    assert seen == [('before', *sent, {'VCPU': 1}), ('after', *sent, {})]
    assert model.requests == [sent]


@pytest.mark.parametrize('trouble', [PlacementModel.broken(), Refusal(503, 'busy')])
@pytest.mark.parametrize('done', [False, True])
def test_a_request_or_its_answer_is_lost(model: PlacementModel, trouble: Exception, done: bool) -> None:
    def lose(method: str, path: str) -> None:
        raise trouble

    if done:
        model.after = lose
    else:
        model.before = lose
    with pytest.raises(errors.Unanswered):
        client_of(model).delete_allocations(CONSUMERS[0])
    assert (model.allocations() == {}) is done


def test_others_run_between_receipt_and_act(model: PlacementModel) -> None:
    """Two claim the last of something, the second while the first is under way."""
    client = client_of(model)
    wanted = {NODES[0]: {'resources': {'VCPU': 3}}}

    def other(method: str, path: str) -> None:
        model.before = None
        client.claim(CONSUMERS[2], wanted, **OWNER)

    model.before = other
    with pytest.raises(errors.PlacementConflict):
        client.claim(CONSUMERS[1], wanted, **OWNER)
    assert model.allocations().keys() == {CONSUMERS[0], CONSUMERS[2]} and model.used(NODES[0]) == {'VCPU': 4}


def test_snapshot(model: PlacementModel) -> None:
    before, kept = state_of_model(model), model.snapshot()
    client = client_of(model)
    client.set_host_disabled(NODES[0], True)
    client.delete_allocations(CONSUMERS[0])
    client.delete_tree(NODES[0])
    assert model.providers == {}
    for one in (model, PlacementModel()):
        one.restore(kept)
        assert state_of_model(one) == before
        client_of(one).claim(CONSUMERS[1], {NODES[0]: {'resources': {'VCPU': 3}}}, **OWNER)
        assert one.used(NODES[0]) == {'VCPU': 4}


@pytest.mark.parametrize(
    ('method', 'path', 'body', 'headers'),
    [
        ('GET', '/usages?project_id=demo', None, HEADERS),
        ('POST', '/reshaper', {}, HEADERS),
        ('PUT', f'/resource_providers/{NODES[0]}', {'name': 'x'}, HEADERS),
        ('PUT', f'/resource_providers/{NODES[0]}/inventories/VCPU', {}, HEADERS),
        ('PUT', f'/resource_providers/{NODES[0]}/traits', None, HEADERS),
        (
            'PUT',
            f'/resource_providers/{NODES[0]}/traits',
            {'resource_provider_generation': 2, 'traits': ['MISC_SHARES_VIA_AGGREGATE']},
            HEADERS,
        ),
        ('GET', f'/allocations/{CONSUMERS[0]}?more=1', None, HEADERS),
        ('GET', f'/allocations/{CONSUMERS[0]}', None, {'OpenStack-API-Version': 'placement 1.38'}),
        ('GET', f'/allocations/{CONSUMERS[0]}', None, {}),
        ('GET', '/traits', None, HEADERS),
        ('GET', f'/resource_providers?in_tree={NODES[0].upper()}', None, HEADERS),
        ('GET', '/allocation_candidates?resources=VCPU:1&resources=VCPU:2', None, HEADERS),
    ],
)
def test_what_kilonova_never_sends_is_refused_loudly(
    model: PlacementModel, method: str, path: str, body: Any, headers: dict[str, str]
) -> None:
    with pytest.raises(NotModelled, match=method):
        ModelAdapter(model).request(path, method, raise_exc=False, headers=headers, json=body)


def test_the_versions_that_it_offers(both: Both) -> None:
    both.ask('GET', '/')


def test_what_clouds_have_of_both(placement: Placement) -> None:
    """Their fixture gives the same with the model in it: what is held, what audits read, what was kept and asked."""
    found = []
    for one in (placement, ModelledPlacement()):

        def report(client: PlacementClient) -> None:
            client.sync_compute(
                NODES[0],
                'gpu1',
                {'VCPU': {'total': 4}},
                {'COMPUTE_NODE'},
                {'gpu1_a': {'resource_class': GPU, 'total': 1, 'traits': {'OWNER_NOVA'}}},
                has_pci=True,
            )

        report(one.client)
        one.client.sync_compute(NODES[1], 'gpu2', {'VCPU': {'total': 4}}, set())
        one.keep('two hosts')
        (card,) = (row['uuid'] for row in one.client.list_providers(in_tree=NODES[0]) if row['name'] == 'gpu1_a')
        one.client.claim(CONSUMERS[0], {NODES[0]: {'resources': {'VCPU': 2}}, card: {'resources': {GPU: 1}}}, **OWNER)
        held = one.allocations()
        read = [one.reader.provider_allocations(uuid) for uuid in (NODES[0], card)]
        trees = [sorted(row['name'] for row in one.reader.list_providers(in_tree=uuid)) for uuid in NODES[:3]]
        assert one.restore('two hosts') and not one.restore('three hosts')
        one.requests.clear()
        report(one.client)
        asked = list(one.requests)
        found.append((held, read, trees, one.allocations(), asked))
        one.reset()
        assert (one.client.list_providers(), one.requests) == ([], [('GET', '/resource_providers')])
    assert found[0] == found[1]
    assert found[0][:4] == (
        {CONSUMERS[0]: {'gpu1': {'VCPU': 2}, 'gpu1_a': {GPU: 1}}},
        [{CONSUMERS[0]: {'VCPU': 2}}, {CONSUMERS[0]: {GPU: 1}}],
        [['gpu1', 'gpu1_a'], ['gpu2'], []],
        {},
    )
