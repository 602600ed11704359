"""The Placement client: candidates, claims, moves of an allocation, and what a compute reports of itself.

    client = PlacementClient(session.adapter(conf, 'placement'))
    found = client.allocation_candidates('resources=VCPU:1')
    client.claim(instance_uuid, **request, project_id=project_id, user_id=user_id)
    client.move_allocation(instance_uuid, migration_uuid, new=request['allocations'], project_id=…, user_id=…)

An *allocations* argument or result is ``{provider uuid: {'resources': {resource class: amount}}}``. Every method raises
``errors.Unanswered`` when Placement doesn't answer, ``errors.PlacementConflict`` at a 409 that a repetition can't mend.
Routes and rules: the Placement API reference, https://docs.openstack.org/api-ref/placement/.
"""
from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib import parse

import requests
from keystoneauth1.adapter import Adapter

from kilonova import errors
from kilonova.clients import candidates, providers, query, session

LOG = logging.getLogger(__name__)

MICROVERSION = '1.36'
CONCURRENT_UPDATE = 'placement.concurrent_update'
# A 409 for a generation that moved on is repeated with fresh ones; Placement itself already tries ten times.
WRITE_ATTEMPTS = 4
CONFLICT_PAUSE = 0.05

Allocations = dict[str, dict[str, Any]]


class PlacementInvalid(errors.Invalid):
    """Placement refuses the request itself: an unknown resource class or trait, a malformed group."""

    msg_fmt = 'Placement refuses the request: %(detail)s'


class PlacementForbidden(errors.Unavailable):
    msg_fmt = 'Placement refuses our credentials: %(detail)s'


class ProviderNotFound(errors.NotFound):
    msg_fmt = 'Resource provider %(uuid)s could not be found.'


def is_generation_conflict(error: errors.PlacementConflict) -> bool:
    """Whether a generation was stale (read again and repeat); otherwise there is no room."""
    return error.placement_code == CONCURRENT_UPDATE


def is_consumer_conflict(error: errors.PlacementConflict) -> bool:
    """Whether the consumer was not as expected: it has an allocation already, or another than the one read."""
    return is_generation_conflict(error) and 'consumer generation conflict' in error.message


def _is_leftover(error: errors.PlacementConflict) -> bool:
    """Whether the consumer may be one that Placement made for a write that it then refused for an unknown provider: a
    record without allocations, which nobody can read or delete, but which a write of its generation takes over."""
    return is_consumer_conflict(error) and 'expected 0 but got None' in error.message


def same_allocations(one: Allocations, other: Allocations) -> bool:
    """Equal amounts on equal providers, whatever else (generations) the two carry."""
    return ({rp: given['resources'] for rp, given in one.items()} ==
            {rp: given['resources'] for rp, given in other.items()})


class PlacementClient:
    """One per process; threads may share it. ``on_request(method, path)`` is called before each request."""

    def __init__(self, adapter: Adapter, on_request: Callable[[str, str], None] | None = None) -> None:
        self._adapter = adapter
        self.on_request = on_request
        self._classes: set[str] = set()
        self._traits: dict[str, bool] = {}
        self._trees = providers.Trees()

    # Candidates and claims

    def allocation_candidates(self, asked: str | Sequence[tuple[str, str]]) -> dict[str, Any]:
        """``{'allocation_requests': [{'allocations', 'mappings'}], 'provider_summaries': {uuid: …}}``.

        ``asked`` is a query string or its pairs. Sends as many requests as the length of its lists asks for. Raises
        PlacementInvalid if it names a class or trait that doesn't exist, and QueryTooLong.
        """
        pairs = parse.parse_qsl(asked, keep_blank_values=True) if isinstance(asked, str) else asked
        found = query.ask(
            pairs, lambda text: self._send('GET', f'/allocation_candidates?{candidates.checked(text)}').json(),
            candidates.merge)
        limit = dict(pairs).get('limit')
        return candidates.first(found, int(limit) if limit else None)

    def claim(self, consumer: str, allocations: Allocations, mappings: dict[str, list[str]] | None = None, *,
              project_id: str, user_id: str, generation: int | None = None) -> None:
        """Give ``consumer`` these allocations. ``generation`` None: it must have none yet (else PlacementConflict).
        Unanswered: too many write at the same time, nobody knows whether there is room."""
        body: dict[str, Any] = {'allocations': _resources(allocations), 'project_id': project_id, 'user_id': user_id,
                                'consumer_generation': generation}
        if mappings:
            body['mappings'] = mappings
        for left in reversed(range(WRITE_ATTEMPTS)):
            try:
                self._send('PUT', f'/allocations/{consumer}', json=body)
                return
            except errors.PlacementConflict as error:
                if left and _is_leftover(error) and not self.get_allocations(consumer)['allocations']:
                    body['consumer_generation'] = 0
                    continue
                if not is_generation_conflict(error) or is_consumer_conflict(error):
                    raise
                _pause(left, error)

    def get_allocations(self, consumer: str) -> dict[str, Any]:
        """``{'allocations': {rp: {'resources', 'generation'}}, 'consumer_generation', 'project_id', 'user_id'}``.

        A consumer without allocations has ``{'allocations': {}}`` only.
        """
        found: dict[str, Any] = self._send('GET', f'/allocations/{consumer}').json()
        return found

    def post_allocations(self, payload: dict[str, dict[str, Any]]) -> None:
        """Write several consumers at once, all or none: ``{consumer: body as of a PUT}``."""
        self._send('POST', '/allocations', json=payload)

    def delete_allocations(self, consumer: str) -> bool:
        """Drop all that ``consumer`` has; False: it had nothing (which is fine). Unanswered: too many write now."""
        for left in reversed(range(WRITE_ATTEMPTS)):
            try:
                return self._send('DELETE', f'/allocations/{consumer}', missing_ok=True).status_code != 404
            except errors.PlacementConflict as error:
                _pause(left, error)
        return False

    def drop(self, consumer: str, check: Callable[[], None]) -> bool:
        """Drop what ``consumer`` has as it was read before ``check()``, which raises when the caller may not any more.

        Whoever writes the allocation in between gives it another generation, and it stays. False: it had nothing.
        Unanswered: too many write now.
        """
        for left in reversed(range(WRITE_ATTEMPTS)):
            held = self.get_allocations(consumer)
            if not held['allocations']:
                return False
            check()
            try:
                self._send('PUT', f'/allocations/{consumer}', json=_consumer(
                    {}, held['project_id'], held['user_id'], held['consumer_generation']))
                return True
            except errors.PlacementConflict as error:
                _pause(left, error)
        return False

    # Moves: the server's old allocation waits under the migration's uuid

    def move_allocation(self, instance_uuid: str, migration_uuid: str, *, new: Allocations, project_id: str,
                        user_id: str, mappings: dict[str, list[str]] | None = None,
                        old: dict[str, Any] | None = None, check: Callable[[], None] = lambda: None) -> Allocations:
        """Give the server ``new`` and its present allocation to the migration, in one POST; return the old one.

        ``old`` is what ``get_allocations(instance_uuid)`` said; None reads it here. May be repeated: a migration that
        already holds the old allocation keeps it, and only the server's is brought to ``new``. PlacementConflict: there
        is no room for ``new`` (nothing changed). Unanswered: too many write at the same time. ``check()`` raises when
        the caller may not write any more; it is called between reading and writing.
        """
        generation = None
        for left in reversed(range(WRITE_ATTEMPTS)):
            old = old or self.get_allocations(instance_uuid)
            check()
            payload = {instance_uuid: _consumer(new, project_id, user_id, old.get('consumer_generation'), mappings)}
            if old['allocations']:
                payload[migration_uuid] = _consumer(old['allocations'], project_id, user_id, generation)
            try:
                self.post_allocations(payload)
                return _resources(old['allocations'])
            except errors.PlacementConflict as error:
                if not is_generation_conflict(error):
                    raise
                _pause(left, error)
                if _is_leftover(error):
                    generation = 0
            held = self.get_allocations(migration_uuid)
            old = self.get_allocations(instance_uuid)
            if held['allocations']:
                if not same_allocations(old['allocations'], new):
                    check()
                    self.claim(instance_uuid, new, mappings, project_id=project_id, user_id=user_id,
                               generation=old.get('consumer_generation'))
                return _resources(held['allocations'])
        raise AssertionError('unreachable')

    def move_back(self, instance_uuid: str, migration_uuid: str, check: Callable[[], None] = lambda: None) -> bool:
        """Undo ``move_allocation``: the server gets back what the migration holds, in one POST.

        False: the migration holds nothing, so the move never was or is undone already. ``check``: as there.
        """
        for left in reversed(range(WRITE_ATTEMPTS)):
            held = self.get_allocations(migration_uuid)
            if not held['allocations']:
                return False
            now = self.get_allocations(instance_uuid)
            owner = held['project_id'], held['user_id']
            check()
            try:
                self.post_allocations({
                    migration_uuid: _consumer({}, *owner, held['consumer_generation']),
                    instance_uuid: _consumer(held['allocations'], *owner, now.get('consumer_generation'))})
                return True
            except errors.PlacementConflict as error:
                if not is_generation_conflict(error):
                    raise
                _pause(left, error)
        return False

    # Providers

    def list_providers(self, *, uuid: str | None = None, in_tree: str | None = None, name: str | None = None,
                       member_of: str | Sequence[str] = (), resources: str | None = None,
                       required: str | None = None) -> list[dict[str, Any]]:
        """Return all providers, or those asked for: uuid, name, generation, parent_provider_uuid, root_provider_uuid.

        ``resources`` ('VCPU:2'): with so much left; ``required`` ('A,!B'): with these traits; ``member_of``
        ('in:UUID,UUID'): in one of these aggregates, of each list where there are several. Sends as many requests as
        the length of its lists asks for. Raises PlacementInvalid if there is no such class or trait.
        """
        asked = {'uuid': uuid, 'in_tree': in_tree, 'name': name, 'resources': resources, 'required': required}
        pairs = [(key, value) for key, value in asked.items() if value is not None]
        pairs += [('member_of', one) for one in ([member_of] if isinstance(member_of, str) else member_of)]
        return query.ask(
            pairs, lambda text: self._send('GET', '/resource_providers' + (f'?{text}' if text else '')).json()[
                'resource_providers'], candidates.merge_providers)

    def qualifies(self, uuid: str, required: Iterable[str], forbidden: Iterable[str],
                  aggregates: Iterable[Iterable[str]] = ()) -> bool:
        """Return whether a provider has these traits and not those, and is in one of each of these sets of aggregates.

        Sends one request, or as many as the length of the sets asks for. Without aggregates its cost is the same
        whatever else there is: Placement reads all providers of a trait that it filters by, so only the provider's own
        traits are asked for.
        """
        aggregates = list(aggregates)
        if not aggregates:
            try:
                traits, _ = self.get_traits(uuid)
            except ProviderNotFound:
                return False
            return set(required) <= traits and traits.isdisjoint(forbidden)
        words = [*sorted(required), *(f'!{name}' for name in sorted(forbidden))]
        return bool(self.list_providers(uuid=uuid, required=','.join(words) or None,
                                        member_of=['in:' + ','.join(sorted(ids)) for ids in aggregates]))

    def ensure_provider(self, name: str, uuid: str, parent: str | None = None) -> dict[str, Any]:
        """The provider of this name, created under ``uuid`` where there is none (it may have another uuid).
        PlacementConflict: the uuid is another provider's."""
        body = {'name': name, 'uuid': uuid}
        if parent is not None:
            body['parent_provider_uuid'] = parent
        try:
            answer: dict[str, Any] = self._send('POST', '/resource_providers', json=body).json()
            return answer
        except errors.PlacementConflict:
            found = self.list_providers(name=name)
            if not found:
                raise
            return found[0]

    def get_inventory(self, uuid: str) -> tuple[dict[str, dict[str, Any]], int]:
        """Inventories by resource class, and the provider's generation."""
        answer = self._send('GET', f'/resource_providers/{uuid}/inventories').json()
        return answer['inventories'], answer['resource_provider_generation']

    def set_inventory(self, uuid: str, generation: int, inventory: dict[str, dict[str, Any]]) -> int:
        """Replace all inventories; return the new generation. PlacementConflict: stale, or a class is in use."""
        found: int = self._send('PUT', f'/resource_providers/{uuid}/inventories', json={
            'resource_provider_generation': generation, 'inventories': inventory,
        }).json()['resource_provider_generation']
        return found

    def get_traits(self, uuid: str) -> tuple[set[str], int]:
        """Traits, and the provider's generation."""
        answer = self._send('GET', f'/resource_providers/{uuid}/traits').json()
        return set(answer['traits']), answer['resource_provider_generation']

    def set_traits(self, uuid: str, generation: int, traits: Iterable[str]) -> int:
        """Replace all traits; return the new generation."""
        found: int = self._send('PUT', f'/resource_providers/{uuid}/traits', json={
            'resource_provider_generation': generation, 'traits': sorted(traits),
        }).json()['resource_provider_generation']
        return found

    def set_member(self, uuid: str, aggregate: str, member: bool) -> None:
        """Put a provider into an aggregate, or take it out; its other aggregates stay. ProviderNotFound."""
        path = f'/resource_providers/{uuid}/aggregates'
        for left in reversed(range(WRITE_ATTEMPTS)):
            try:
                answer = self._send('GET', path).json()
            except ProviderNotFound:
                if member:
                    raise
                return
            if member == (aggregate in answer['aggregates']):
                return
            wanted = sorted({*answer['aggregates']} ^ {aggregate})
            try:
                self._send('PUT', path, json={'aggregates': wanted, 'resource_provider_generation':
                                              answer['resource_provider_generation']})
                return
            except errors.PlacementConflict as error:
                if not left or not is_generation_conflict(error):
                    raise

    def delete_provider(self, uuid: str) -> bool:
        """False: there was none. PlacementConflict: allocations or children keep it."""
        return self._send('DELETE', f'/resource_providers/{uuid}', missing_ok=True).status_code != 404

    def delete_tree(self, root_uuid: str) -> None:
        """Delete a compute's providers, children first. PlacementConflict: one still has allocations."""
        parents = {provider['uuid']: provider['parent_provider_uuid']
                   for provider in self.list_providers(in_tree=root_uuid)}

        def depth(uuid: str) -> int:
            return 1 + depth(parents[uuid]) if uuid in parents else 0
        for uuid in sorted(parents, key=depth, reverse=True):
            self.delete_provider(uuid)
        self._trees.drop(root_uuid)

    def provider_allocations(self, uuid: str) -> dict[str, dict[str, int]]:
        """Amounts in use of a provider: ``{consumer: {resource class: amount}}``."""
        answer = self._send('GET', f'/resource_providers/{uuid}/allocations').json()
        return {consumer: given['resources'] for consumer, given in answer['allocations'].items()}

    def ensure_resource_class(self, name: str) -> None:
        """Create a CUSTOM_ class where it doesn't exist; asked once a process."""
        if name.startswith('CUSTOM_') and name not in self._classes:
            self._send('PUT', f'/resource_classes/{name}')
            self._classes.add(name)

    def ensure_traits(self, names: Iterable[str]) -> set[str]:
        """Create CUSTOM_ traits; return the names that exist, without standard ones this Placement doesn't know."""
        wanted = set(names)
        unknown = sorted(wanted - self._traits.keys())
        if unknown:
            there = query.ask([('name', 'in:' + ','.join(unknown))], lambda text: set(
                self._send('GET', f'/traits?{text}').json()['traits']), candidates.merge_names)
            for name in unknown:
                if name not in there and name.startswith('CUSTOM_'):
                    self._send('PUT', f'/traits/{name}')
                    there.add(name)
                elif name not in there:
                    LOG.warning('Placement does not know the trait %s: it is left out.', name)
                self._traits[name] = name in there
        return {name for name in wanted if self._traits[name]}

    def sync_compute(self, root_uuid: str, nodename: str, inventory: dict[str, dict[str, Any]],
                     traits: Iterable[str], devices: dict[str, dict[str, Any]] | None = None, *,
                     has_pci: bool = True, refresh: bool = False) -> dict[str, str]:
        """Bring a compute's provider tree to what it reports; return ``{provider name: uuid}`` of the tree.

        ``devices``: ``{provider name: {resource_class, traits, total, reserved, more_traits}}``, ``reserved`` None: as
        it is in Placement; ``more_traits``: so are traits that are not ours. ``has_pci``: PCI functions are among them.
        Writes only what differs; a repetition without changes costs one GET. ``refresh``: read again what moved since.
        """
        return self._trees.sync(self, root_uuid, nodename, inventory, set(traits), devices or {}, has_pci=has_pci,
                                refresh=refresh)

    def set_host_disabled(self, root_uuid: str, disabled: bool) -> None:
        """Put or drop COMPUTE_STATUS_DISABLED on a compute's root provider: what the scheduler's query forbids."""
        for left in reversed(range(WRITE_ATTEMPTS)):
            traits, generation = self.get_traits(root_uuid)
            if disabled == (providers.STATUS_DISABLED in traits):
                return
            try:
                self.set_traits(root_uuid, generation, traits ^ {providers.STATUS_DISABLED})
                self._trees.drop(root_uuid)
                return
            except errors.PlacementConflict as error:
                if not left or not is_generation_conflict(error):
                    raise

    def _send(self, method: str, path: str, *, missing_ok: bool = False, **kwargs: Any) -> requests.Response:
        if self.on_request is not None:
            self.on_request(method, path)
        attempts = session.READ_ATTEMPTS if method == 'GET' else 1
        response = session.send(self._adapter, 'Placement', method, path, attempts=attempts,
                                headers={'OpenStack-API-Version': f'placement {MICROVERSION}'}, **kwargs)
        if response.status_code < 400 or (missing_ok and response.status_code == 404):
            return response
        raise _error(response, path)


def _pause(left: int, error: errors.PlacementConflict) -> None:
    """Wait before a write is repeated, longer each time and not in step with others; ``left`` 0: Unanswered."""
    if not left:
        raise errors.Unanswered(who='Placement', reason=f'too many write at the same time: {error}') from error
    time.sleep(CONFLICT_PAUSE * 2 ** (WRITE_ATTEMPTS - 1 - left) * random.uniform(0.5, 1.5))


def _resources(allocations: Allocations) -> Allocations:
    return {rp: {'resources': given['resources']} for rp, given in allocations.items()}


def _consumer(allocations: Allocations, project_id: str, user_id: str, generation: int | None,
              mappings: dict[str, list[str]] | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {'allocations': _resources(allocations), 'project_id': project_id, 'user_id': user_id,
                            'consumer_generation': generation}
    if mappings:
        body['mappings'] = mappings
    return body


def _error(response: requests.Response, path: str) -> errors.KilonovaError:
    try:
        first = response.json()['errors'][0]
    except (ValueError, LookupError, TypeError):
        first = {}
    detail = ' '.join(str(first.get('detail') or response.text).split())
    if response.status_code == 409:
        return errors.PlacementConflict(detail=detail, placement_code=first.get('code', ''))
    if response.status_code == 403:
        return PlacementForbidden(detail=detail)
    if response.status_code == 404 and path.startswith('/resource_providers/'):
        return ProviderNotFound(uuid=path.split('/')[2])
    return PlacementInvalid(detail=detail)
