"""Placement in memory, where a whole cloud runs under virtual time: the service's answers, a request in microseconds.

    model = PlacementModel()
    client = PlacementClient(ModelAdapter(model))
    client.sync_compute(root, 'gpu1', inventory, traits, devices)
    model.before = lambda method, path: …        # the request is received and not yet looked at; model.after: it is
    assert model.allocations() == {consumer: {provider: {'VCPU': 2}}}      # done, and its answer is on its way
    kept = model.snapshot()
    …
    model.restore(kept)

It knows what Kilonova asks of Placement, at the microversion that Kilonova names; all else raises ``NotModelled``, an
AssertionError that no code of Kilonova catches. ``test_placement_model`` holds it against the real service.

Each request is one act: others may run only in the hooks, which may switch to another greenlet, raise ``broken()`` (the
connection fails) or raise a ``Refusal`` (the service answers so: ``Refusal(503, …)``). Where the real service leaves an
order open, names come sorted and providers in the order in which they were made. Left out of the answers: links, times
and the request's id, which Kilonova doesn't read.
"""

from __future__ import annotations

import itertools
import json as jsonlib
import pickle
import re
import uuid as uuidlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib import parse

from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import session as ks_session

from kilonova.clients.placement import CONCURRENT_UPDATE, MICROVERSION
from tests.simulation.placement_candidates import Group, Pairs, candidates, is_member, read_group, read_question
from tests.simulation.placement_state import (
    STANDARD_CLASSES,
    STANDARD_TRAITS,
    Allocations,
    Amounts,
    Consumer,
    NotModelled,
    Provider,
    Refusal,
    State,
    is_unit,
    is_uuid,
)

INVENTORY_IN_USE = 'placement.inventory.inuse'
PROVIDER_IN_USE = 'placement.resource_provider.inuse'
PROVIDER_HAS_CHILDREN = 'placement.resource_provider.cannot_delete_parent'
DUPLICATE_NAME = 'placement.duplicate_name'

SHARING = 'MISC_SHARES_VIA_AGGREGATE'
MAX_INT = 2147483647
MAX_RATIO = 3.40282e38
INVENTORY_DEFAULTS = {
    'total': 0,
    'reserved': 0,
    'min_unit': 1,
    'max_unit': MAX_INT,
    'step_size': 1,
    'allocation_ratio': 1.0,
}
LEAST = {'total': 1, 'reserved': 0, 'min_unit': 1, 'max_unit': 1, 'step_size': 1}

_UUID_KEY = re.compile('[0-9a-fA-F-]{36}')
_NAME = re.compile('[A-Z0-9_]+')
_CUSTOM = re.compile('CUSTOM_[A-Z0-9_]+')
_SUFFIX = re.compile('[a-zA-Z0-9_-]{1,64}')

Hook = Callable[[str, str], None]
# What a request changes of allocations: (consumer, provider, resource class, amount).
Change = tuple[str, Provider, str, int]


class Answer:
    """What Kilonova reads of a requests.Response."""

    __slots__ = ('_body', 'status_code')

    def __init__(self, status_code: int, body: dict[str, Any] | None) -> None:
        self.status_code, self._body = status_code, body

    def json(self) -> dict[str, Any]:
        if self._body is None:
            raise ValueError('the answer has no body')
        return self._body

    @property
    def text(self) -> str:
        return '' if self._body is None else jsonlib.dumps(self._body)

    def close(self) -> None:
        """There is no connection."""


class ModelAdapter:
    """Stands where a PlacementClient has its keystoneauth1 Adapter; without a time-out, as hooks make time pass."""

    def __init__(self, model: PlacementModel) -> None:
        self._model = model
        self.session = ks_session.Session()

    def request(
        self, path: str, method: str, *, raise_exc: bool, headers: dict[str, str] | None = None, json: Any = None
    ) -> Answer:
        model = self._model
        model.requests.append((method, path))
        if raise_exc:
            raise NotModelled(f'{method} {path} with raise_exc')
        try:
            if model.before is not None:
                model.before(method, path)
            answer = model.answer(method, path, headers or {}, json)
            if model.after is not None:
                model.after(method, path)
        except Refusal as refusal:
            answer = Answer(refusal.status, refusal.body())
        return answer


class PlacementModel:
    """The service. ``requests``: (method, path) of all that it received, since the test emptied the list."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.before: Hook | None = None
        self.after: Hook | None = None
        self._state = State()

    # For the simulator

    @staticmethod
    def broken() -> ks_exceptions.ConnectFailure:
        """What ``before`` and ``after`` raise to lose a request or its answer."""
        return ks_exceptions.ConnectFailure('connection reset')

    def snapshot(self) -> bytes:
        """All that the service knows; the hooks and the list of requests aren't part of it."""
        return pickle.dumps(self._state, pickle.HIGHEST_PROTOCOL)

    def restore(self, kept: bytes) -> None:
        """Back to a snapshot, which may be of another model."""
        self._state = pickle.loads(kept)

    @property
    def providers(self) -> dict[str, Provider]:
        """By uuid; to look at, not to write to."""
        return self._state.providers

    @property
    def consumers(self) -> dict[str, Consumer]:
        """By uuid, with those that have no allocation; to look at, not to write to."""
        return self._state.consumers

    def allocations(self) -> dict[str, Allocations]:
        """All there are: {consumer: {provider uuid: {resource class: amount}}}."""
        return {
            uuid: {rp: dict(amounts) for rp, amounts in consumer.allocations.items()}
            for uuid, consumer in self._state.consumers.items()
            if consumer.allocations
        }

    def used(self, provider: str) -> Amounts:
        """{resource class: amount in use} of a provider."""
        return dict(self._state.providers[provider].used)

    # Requests

    def answer(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> Answer:
        """One request, from its receipt to its answer."""
        place, _, query = path.partition('?')
        _, first, *rest = place.split('/')
        shape = '/'.join([first, *('*' for _ in rest[:1]), *rest[1:]])
        handler = _ROUTES.get((method, shape))
        if handler is None:
            raise NotModelled(f'{method} {path}')
        if headers.get('OpenStack-API-Version') != f'placement {MICROVERSION}' and shape:
            raise NotModelled(f'{method} {path} at another microversion: {headers}')
        if (body is None) is (method in {'POST', 'PUT'} and shape not in _WITHOUT_BODY):
            raise NotModelled(f'{method} {path} with body {body}')
        pairs = parse.parse_qsl(query, keep_blank_values=True)
        if pairs and (method, shape) not in _WITH_QUERY:
            raise NotModelled(f'{method} {path}')
        try:
            return Answer(*handler(self, parse.unquote(rest[0]) if rest else '', pairs, body))
        except Refusal as refusal:
            return Answer(refusal.status, refusal.body())
        except NotModelled as error:
            raise NotModelled(f'{method} {path} {"" if body is None else body}: {error}') from None

    def _root(self, name: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        return 200, {'versions': [{'id': 'v1.0', 'min_version': '1.0', 'max_version': '1.39', 'status': 'CURRENT'}]}

    # Providers

    def _provider(self, uuid: str) -> Provider:
        found = self._state.providers.get(uuid)
        if found is None:
            raise Refusal(404, f'No resource provider with uuid {uuid} found')
        return found

    def _list_providers(self, name: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        group, asked = read_group(pairs, {'name', 'uuid'})
        if 'uuid' in asked and not is_uuid(asked['uuid']):
            raise Refusal(400, f'Invalid query string parameters: {asked["uuid"]} is not a uuid')
        return 200, {
            'resource_providers': [
                one.row()
                for one in self._filtered(group)
                if asked.get('name') in {None, '', one.name} and asked.get('uuid') in {None, one.uuid}
            ]
        }

    def _filtered(self, group: Group) -> list[Provider]:
        state = self._state
        everyone = found = state.providers.values()
        if group.in_tree is not None:
            if group.in_tree not in state.providers:
                return []
            found = state.trees[state.providers[group.in_tree].root].values()
        # A filter that nobody passes ends it, before the names in those after it are looked at.
        if group.required:
            state.check_traits(group.required)
            if not any(group.required <= one.traits for one in everyone):
                return []
        state.check_traits(group.forbidden)
        if group.member_of and not any(is_member(one, group.member_of) for one in everyone):
            return []
        for name in group.resources:
            state.check_class(name)
        return [
            one
            for one in found
            if group.suits(one) and all(one.fits(name, amount) for name, amount in group.resources.items())
        ]

    def _create_provider(self, name: str, pairs: Pairs, body: Any) -> tuple[int, dict[str, Any]]:
        _check_keys(body, {'name'}, {'uuid', 'parent_provider_uuid'})
        if not isinstance(body['name'], str) or not 0 < len(body['name']) <= 200:
            raise Refusal(400, 'the name of a provider has 1 to 200 characters')
        parent = body.get('parent_provider_uuid')
        for given in (body.get('uuid', ''), parent or ''):
            if given and not is_uuid(given):
                raise Refusal(400, f'{given} is not a uuid')
        if body.get('uuid', 'none') in {'', None} or parent == '':
            raise Refusal(400, 'an empty uuid')
        state, uuid = self._state, body.get('uuid') or str(uuidlib.uuid4())
        if parent == uuid:
            raise Refusal(400, 'parent provider UUID cannot be same as UUID')
        if parent is not None and parent not in state.providers:
            raise Refusal(400, 'parent provider UUID does not exist.')
        if uuid in state.providers or body['name'] in state.uuids:
            raise Refusal(409, f'Conflicting resource provider {body["name"]} {uuid} already exists.', DUPLICATE_NAME)
        root = uuid if parent is None else state.providers[parent].root
        made = state.providers[uuid] = Provider(uuid, body['name'], parent, root)
        state.uuids[made.name] = uuid
        state.trees.setdefault(root, {})[uuid] = made
        return 200, made.row()

    def _delete_provider(self, uuid: str, pairs: Pairs, body: None) -> tuple[int, None]:
        state, gone = self._state, self._provider(uuid)
        tree = state.trees[gone.root]
        if any(one.parent == uuid for one in tree.values()):
            raise Refusal(
                409,
                f'Unable to delete parent resource provider {uuid}: It has child resource providers.',
                PROVIDER_HAS_CHILDREN,
            )
        if gone.holders:
            raise Refusal(
                409, f'Unable to delete resource provider {uuid}: Resource provider has allocations.', PROVIDER_IN_USE
            )
        del state.providers[uuid], state.uuids[gone.name], tree[uuid]
        if not tree:
            del state.trees[gone.root]
        return 204, None

    # What a provider has

    def _get_inventories(self, uuid: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        found = self._provider(uuid)
        return 200, {
            'resource_provider_generation': found.generation,
            'inventories': {name: dict(given) for name, given in found.inventory.items()},
        }

    def _put_inventories(self, uuid: str, pairs: Pairs, body: Any) -> tuple[int, dict[str, Any]]:
        found = self._provider(uuid)
        _check_keys(body, {'resource_provider_generation', 'inventories'})
        _integer(body['resource_provider_generation'])
        wanted = _inventories(body['inventories'])
        _check_generation(found, body)
        for name, given in wanted.items():
            if given['reserved'] > given['total']:
                raise Refusal(400, f"Invalid inventory for '{name}': The reserved value is greater than total.")
        for name in wanted:
            self._state.check_class(name)
        busy = sorted(found.used.keys() & (found.inventory.keys() - wanted.keys()))
        if busy:
            raise Refusal(
                409,
                f"update conflict: Inventory for '{', '.join(busy)}' on resource provider '{uuid}' in use.",
                INVENTORY_IN_USE,
            )
        found.inventory = wanted
        found.generation += 1
        return self._get_inventories(uuid, pairs, None)

    def _get_traits(self, uuid: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        found = self._provider(uuid)
        return 200, {'resource_provider_generation': found.generation, 'traits': sorted(found.traits)}

    def _put_traits(self, uuid: str, pairs: Pairs, body: Any) -> tuple[int, dict[str, Any]]:
        _check_keys(body, {'resource_provider_generation', 'traits'})
        traits = _strings(body['traits'])
        if SHARING in traits:
            raise NotModelled('providers that share with others')
        if not all(0 < len(name) <= 255 for name in traits):
            raise Refusal(400, 'the name of a trait has 1 to 255 characters')
        _integer(body['resource_provider_generation'])
        found = self._provider(uuid)
        _check_generation(found, body)
        self._state.check_traits(traits)
        if set(traits) != found.traits:
            found.traits = set(traits)
            found.generation += 1
        return self._get_traits(uuid, pairs, None)

    def _get_aggregates(self, uuid: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        found = self._provider(uuid)
        return 200, {'resource_provider_generation': found.generation, 'aggregates': sorted(found.aggregates)}

    def _put_aggregates(self, uuid: str, pairs: Pairs, body: Any) -> tuple[int, dict[str, Any]]:
        found = self._provider(uuid)
        _check_keys(body, {'resource_provider_generation', 'aggregates'})
        wanted = _strings(body['aggregates'])
        if not all(is_uuid(one) for one in wanted) or len(set(wanted)) < len(wanted):
            raise Refusal(400, 'aggregates are different uuids')
        _integer(body['resource_provider_generation'])
        _check_generation(found, body)
        found.aggregates = set(wanted)
        found.generation += 1
        return self._get_aggregates(uuid, pairs, None)

    def _get_holders(self, uuid: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        found = self._provider(uuid)
        return 200, {
            'resource_provider_generation': found.generation,
            'allocations': {
                consumer: {
                    'resources': dict(amounts),
                    'consumer_generation': self._state.consumers[consumer].generation,
                }
                for consumer, amounts in found.holders.items()
            },
        }

    # Names

    def _list_traits(self, name: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        if [key for key, _ in pairs] != ['name'] or not pairs[0][1].startswith('in:'):
            raise NotModelled('only name=in:… is understood')
        names = set(pairs[0][1][3:].split(','))
        return 200, {'traits': sorted(names & STANDARD_TRAITS | names & self._state.custom_traits)}

    def _put_trait(self, name: str, pairs: Pairs, body: None) -> tuple[int, None]:
        return self._put_name(name, self._state.custom_traits, STANDARD_TRAITS)

    def _put_class(self, name: str, pairs: Pairs, body: None) -> tuple[int, None]:
        return self._put_name(name, self._state.custom_classes, STANDARD_CLASSES)

    @staticmethod
    def _put_name(name: str, names: set[str], standard: frozenset[str]) -> tuple[int, None]:
        if not _CUSTOM.fullmatch(name) or len(name) > 255:
            raise Refusal(400, f'{name} must start with CUSTOM_ and have at most 255 characters of A-Z, 0-9 and _')
        if name in names or name in standard:
            return 204, None
        names.add(name)
        return 201, None

    # Allocations

    def _get_allocations(self, uuid: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        state, consumer = self._state, self._state.consumers.get(uuid)
        if consumer is None or not consumer.allocations:
            return 200, {'allocations': {}}
        return 200, {
            'allocations': {
                rp: {'resources': dict(amounts), 'generation': state.providers[rp].generation}
                for rp, amounts in consumer.allocations.items()
            },
            'project_id': consumer.project_id,
            'user_id': consumer.user_id,
            'consumer_generation': consumer.generation,
        }

    def _put_allocations(self, uuid: str, pairs: Pairs, body: Any) -> tuple[int, None]:
        if not is_uuid(uuid):
            raise Refusal(400, f'Malformed consumer_uuid: {uuid}')
        _check_allocations(body)
        return self._write({uuid: body})

    def _post_allocations(self, name: str, pairs: Pairs, body: Any) -> tuple[int, None]:
        if not isinstance(body, dict) or not body:
            raise Refusal(400, 'JSON does not validate: no consumers')
        for uuid, one in body.items():
            if not _UUID_KEY.fullmatch(uuid):
                raise Refusal(400, f'JSON does not validate: {uuid} is not a uuid')
            if not is_uuid(uuid):
                raise NotModelled(f'consumer {uuid}')
            _check_allocations(one)
        return self._write(body)

    def _delete_allocations(self, uuid: str, pairs: Pairs, body: None) -> tuple[int, None]:
        consumer = self._state.consumers.get(uuid)
        if consumer is None or not consumer.allocations:
            raise Refusal(404, f"No allocations for consumer '{uuid}'")
        self._take_away(uuid)
        del self._state.consumers[uuid]
        return 204, None

    def _write(self, wanted: dict[str, dict[str, Any]]) -> tuple[int, None]:
        """Give each of these consumers what its body says, all or none."""
        consumers = self._state.consumers
        made = self._ensure_consumers(wanted)
        for one in wanted.values():
            # The records just made stay behind.
            for rp in one['allocations']:
                if rp not in self._state.providers:
                    raise Refusal(400, f"Allocation for resource provider '{rp}' that does not exist.")
        try:
            changes = [
                (uuid, self._state.providers[rp], name, amount)
                for uuid, one in wanted.items()
                for rp, name, amount in self._changes(uuid, one['allocations'])
            ]
            for _, _, name, _ in changes:
                self._state.check_class(name)
            self._check_room(changes)
        except Refusal:
            for uuid in made:
                del consumers[uuid]
            raise
        for uuid, one in wanted.items():
            consumers[uuid].project_id, consumers[uuid].user_id = one['project_id'], one['user_id']
        touched = {uuid for uuid, *_ in changes}
        for uuid in touched:
            self._take_away(uuid)
            consumers[uuid].generation += 1
        for rp in {provider.uuid for _, provider, _, _ in changes}:
            self._state.providers[rp].generation += 1
        for uuid, provider, name, amount in changes:
            if amount:
                amounts = consumers[uuid].allocations.setdefault(provider.uuid, {})
                amounts[name] = amount
                provider.holders[uuid] = amounts
                provider.used[name] = provider.used.get(name, 0) + amount
        for uuid in touched:
            if not consumers[uuid].allocations:
                del consumers[uuid]
        return 204, None

    def _ensure_consumers(self, wanted: dict[str, dict[str, Any]]) -> list[str]:
        """Check the generations and make records of the consumers that have none; return those."""
        consumers = self._state.consumers
        made: list[str] = []
        for uuid, one in wanted.items():
            known, given = consumers.get(uuid), one['consumer_generation']
            expected = None if known is None else known.generation
            if given != expected:
                for other in made:
                    del consumers[other]
                raise Refusal(
                    409,
                    'consumer generation conflict - expected '
                    f'{"null" if expected is None else expected} but got {given}',
                    CONCURRENT_UPDATE,
                )
            if known is None:
                consumers[uuid] = Consumer(one['project_id'], one['user_id'])
                made.append(uuid)
        return made

    def _changes(self, uuid: str, wanted: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
        """(provider, class, amount); 0 of all that the consumer has when it is to have nothing."""
        if wanted:
            for rp, given in wanted.items():
                for name, amount in given['resources'].items():
                    yield rp, name, amount
        else:
            for rp, amounts in self._state.consumers[uuid].allocations.items():
                for name in amounts:
                    yield rp, name, 0

    def _check_room(self, changes: list[Change]) -> None:
        """Refusal, unless each provider has room for what it shall give, or is left no fuller than it was."""
        freed: Counter[tuple[str, str]] = Counter()
        for uuid in {uuid for uuid, *_ in changes}:
            for rp, amounts in self._state.consumers[uuid].allocations.items():
                for name, amount in amounts.items():
                    freed[rp, name] += amount
        given: Counter[tuple[str, str]] = Counter()
        for _, provider, name, amount in changes:
            if not amount:
                continue
            place = provider.uuid, name
            given[place] += amount
            if name not in provider.inventory:
                raise _no_room(f"Inventory for '{name}' on resource provider '{provider.uuid}' invalid.")
            words = f"Unable to create allocation for '{name}' on resource provider '{provider.uuid}'."
            if not is_unit(provider.inventory[name], amount):
                raise _no_room(f'{words} The requested amount would violate inventory constraints.')
            before = provider.used.get(name)
            after = (before or 0) - freed[place] + given[place]
            if after > provider.capacity(name) and (before is None or after > before):
                raise _no_room(f'{words} The requested amount would exceed the capacity.')

    def _take_away(self, uuid: str) -> None:
        consumer = self._state.consumers[uuid]
        for rp, amounts in consumer.allocations.items():
            provider = self._state.providers[rp]
            del provider.holders[uuid]
            for name, amount in amounts.items():
                provider.used[name] -= amount
                if not provider.used[name]:
                    del provider.used[name]
        consumer.allocations = {}

    # Candidates

    def _candidates(self, name: str, pairs: Pairs, body: None) -> tuple[int, dict[str, Any]]:
        question = read_question(pairs)
        found = list(itertools.islice(candidates(self._state, question), question.limit))
        roots = dict.fromkeys(self._state.providers[rp].root for one in found for rp in one['allocations'])
        return 200, {
            'allocation_requests': found,
            'provider_summaries': {
                uuid: provider.summary() for root in roots for uuid, provider in self._state.trees[root].items()
            },
        }


def _no_room(text: str) -> Refusal:
    return Refusal(409, f'Unable to allocate inventory: {text}')


# Bodies


def _check_keys(body: Any, needed: set[str], optional: Iterable[str] = ()) -> None:
    if not isinstance(body, dict) or not needed <= body.keys() <= needed.union(optional):
        raise Refusal(400, f'JSON does not validate: {body}')


def _integer(value: Any, least: int | None = None, most: int | None = None) -> None:
    if isinstance(value, float):
        raise NotModelled(f'{value} as an integer')
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or (least is not None and value < least)
        or (most is not None and value > most)
    ):
        raise Refusal(400, f'JSON does not validate: {value!r} is no integer, or too small or large')


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Refusal(400, f'JSON does not validate: {value!r} is not a list of strings')
    return value


def _check_generation(provider: Provider, body: dict[str, Any]) -> None:
    if body['resource_provider_generation'] != provider.generation:
        raise Refusal(409, 'resource provider generation conflict', CONCURRENT_UPDATE)


def _inventories(given: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(given, dict):
        raise Refusal(400, f'JSON does not validate: {given!r}')
    for name, fields in given.items():
        if not _NAME.fullmatch(name):
            raise NotModelled(f'resource class {name!r}')
        _check_keys(fields, {'total'}, INVENTORY_DEFAULTS)
        for key, least in LEAST.items():
            if key in fields:
                _integer(fields[key], least, MAX_INT)
        ratio = fields.get('allocation_ratio', 1.0)
        if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or ratio > MAX_RATIO:
            raise Refusal(400, f'JSON does not validate: allocation_ratio {ratio!r}')
        if ratio < 0:
            raise NotModelled(f'allocation_ratio {ratio}')
    return {name: {**INVENTORY_DEFAULTS, **fields} for name, fields in given.items()}


def _check_allocations(body: Any) -> None:
    _check_keys(body, {'allocations', 'project_id', 'user_id', 'consumer_generation'}, {'mappings'})
    for key in ('project_id', 'user_id'):
        if not isinstance(body[key], str) or not 0 < len(body[key]) <= 255:
            raise Refusal(400, f'JSON does not validate: {key} {body[key]!r}')
    if body['consumer_generation'] is not None:
        _integer(body['consumer_generation'])
    if not isinstance(body['allocations'], dict):
        raise Refusal(400, f'JSON does not validate: {body["allocations"]!r}')
    for rp, given in body['allocations'].items():
        _check_keys(given, {'resources'}, {'generation'})
        resources = given['resources']
        if not _UUID_KEY.fullmatch(rp) or not isinstance(resources, dict) or not resources:
            raise Refusal(400, f'JSON does not validate: {rp}: {resources!r}')
        for name, amount in resources.items():
            _integer(amount, 1)
            if not _NAME.fullmatch(name):
                raise Refusal(400, f'JSON does not validate: {name!r}')
    if 'mappings' in body:
        _check_mappings(body['mappings'])


def _check_mappings(mappings: Any) -> None:
    if not isinstance(mappings, dict) or not mappings:
        raise Refusal(400, f'JSON does not validate: mappings {mappings!r}')
    for suffix, rps in mappings.items():
        if _SUFFIX.search(suffix) and (not _strings(rps) or not all(is_uuid(rp) for rp in rps)):
            raise Refusal(400, f'JSON does not validate: {rps!r}')


_ROUTES: dict[tuple[str, str], Callable[..., tuple[int, dict[str, Any] | None]]] = {
    ('GET', ''): PlacementModel._root,
    ('GET', 'resource_providers'): PlacementModel._list_providers,
    ('POST', 'resource_providers'): PlacementModel._create_provider,
    ('DELETE', 'resource_providers/*'): PlacementModel._delete_provider,
    ('GET', 'resource_providers/*/inventories'): PlacementModel._get_inventories,
    ('PUT', 'resource_providers/*/inventories'): PlacementModel._put_inventories,
    ('GET', 'resource_providers/*/traits'): PlacementModel._get_traits,
    ('PUT', 'resource_providers/*/traits'): PlacementModel._put_traits,
    ('GET', 'resource_providers/*/aggregates'): PlacementModel._get_aggregates,
    ('PUT', 'resource_providers/*/aggregates'): PlacementModel._put_aggregates,
    ('GET', 'resource_providers/*/allocations'): PlacementModel._get_holders,
    ('GET', 'traits'): PlacementModel._list_traits,
    ('PUT', 'traits/*'): PlacementModel._put_trait,
    ('PUT', 'resource_classes/*'): PlacementModel._put_class,
    ('GET', 'allocations/*'): PlacementModel._get_allocations,
    ('PUT', 'allocations/*'): PlacementModel._put_allocations,
    ('DELETE', 'allocations/*'): PlacementModel._delete_allocations,
    ('POST', 'allocations'): PlacementModel._post_allocations,
    ('GET', 'allocation_candidates'): PlacementModel._candidates,
}
_WITH_QUERY = {('GET', 'resource_providers'), ('GET', 'traits'), ('GET', 'allocation_candidates')}
_WITHOUT_BODY = {'traits/*', 'resource_classes/*'}
