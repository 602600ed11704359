"""The client of Placement: candidates, claims, moves of an allocation, and the providers that a compute reports.

    client = PlacementClient(session.adapter(conf, 'placement'))
    found = client.allocation_candidates('resources=VCPU:1')
    client.claim(instance_uuid, **request, project_id=project_id, user_id=user_id)
    client.move_allocation(instance_uuid, migration_uuid, new=request['allocations'], project_id=…, user_id=…)

An argument or result *allocations* is ``{provider uuid: {'resources': {resource class: amount}}}``. Each method raises
``errors.Unanswered`` if Placement does not answer. It raises ``errors.PlacementConflict`` if Placement refuses the
request with 409, and a repetition would be refused, too. Routes and rules: the Placement API reference,
https://docs.openstack.org/api-ref/placement/.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib import parse

import requests
from keystoneauth1.adapter import Adapter
from oslo_log import log as logging

from kilonova import errors
from kilonova.clients import candidates, providers, query, session

LOG = logging.getLogger(__name__)

MICROVERSION = '1.36'
CONCURRENT_UPDATE = 'placement.concurrent_update'
# The number of attempts of a write that Placement refuses with 409, because another client has changed the generation.
WRITE_ATTEMPTS = 4
CONFLICT_PAUSE = 0.05

Allocations = dict[str, dict[str, Any]]


class PlacementInvalid(errors.Invalid):
    """Placement refuses the request because of an unknown resource class or trait, or a malformed group."""

    msg_fmt = 'Placement refuses the request: %(detail)s'


class PlacementForbidden(errors.Unavailable):
    """Placement refuses the account of this service."""

    msg_fmt = 'Placement refuses the account of this service: %(detail)s'


class ProviderNotFound(errors.NotFound):
    """No such resource provider exists."""

    msg_fmt = 'Resource provider %(uuid)s could not be found.'


def is_generation_conflict(error: errors.PlacementConflict) -> bool:
    """Return whether a write was refused because the generation in the request was outdated.

    In this case, another write with the current generation may succeed. All other conflicts mean that there is too
    little capacity.
    """
    return error.placement_code == CONCURRENT_UPDATE


def is_consumer_conflict(error: errors.PlacementConflict) -> bool:
    """Return whether Placement refused a write because the consumer generation in the request is outdated.

    Another client has then changed the consumer's allocations since the caller read them.
    """
    return is_generation_conflict(error) and 'consumer generation conflict' in error.message


def _is_leftover(error: errors.PlacementConflict) -> bool:
    """Return whether Placement may have refused a write because it has a consumer record without allocations.

    Placement creates such a record when it refuses a write that names an unknown provider. Clients can't see the
    record. The caller must repeat the write with the consumer generation 0 instead of null.
    """
    return is_consumer_conflict(error) and 'expected 0 but got None' in error.message


def same_allocations(one: Allocations, other: Allocations) -> bool:
    """Return whether two allocations have equal amounts on equal providers. Generations are not compared."""
    return {rp: given['resources'] for rp, given in one.items()} == {
        rp: given['resources'] for rp, given in other.items()
    }


class PlacementClient:
    """The client of Placement. A process has one, and threads may share it.

    ``on_request(method, path)`` is called before each request.
    """

    def __init__(self, adapter: Adapter, on_request: Callable[[str, str], None] | None = None) -> None:
        self._adapter = adapter
        self.on_request = on_request
        self._classes: set[str] = set()
        self._traits: dict[str, bool] = {}
        self._trees = providers.Trees()

    # Methods for candidates and claims

    def allocation_candidates(self, asked: str | Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return allocation candidates for a query.

        The result is ``{'allocation_requests': [{'allocations', 'mappings'}], 'provider_summaries': {uuid: …}}``.
        ``asked`` is a query string or its (key, value) pairs. If a list in the query is too long for one URL, several
        requests are sent. Raises PlacementInvalid if the query names a class or trait that does not exist, and
        QueryTooLong if the query can't be divided.
        """
        pairs = parse.parse_qsl(asked, keep_blank_values=True) if isinstance(asked, str) else asked
        found = query.ask(
            pairs,
            lambda text: self._send('GET', f'/allocation_candidates?{candidates.checked(text)}').json(),
            candidates.merge,
        )
        limit = dict(pairs).get('limit')
        return candidates.first(found, int(limit) if limit else None)

    def claim(
        self,
        consumer: str,
        allocations: Allocations,
        mappings: dict[str, list[str]] | None = None,
        *,
        project_id: str,
        user_id: str,
        generation: int | None = None,
    ) -> None:
        """Write the allocations of ``consumer``. If ``generation`` is None, the consumer must have no allocations yet.

        ``mappings`` is a dict from request group to provider uuids. It is sent to Placement with the allocations,
        unless it is None.

        Raises:
            PlacementConflict: There is too little capacity, or the consumer has another generation.
            Unanswered: Each attempt was refused because other clients wrote to the same providers at the same time.
        """
        body: dict[str, Any] = {
            'allocations': _resources(allocations),
            'project_id': project_id,
            'user_id': user_id,
            'consumer_generation': generation,
        }
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
        """Return the allocations of a consumer.

        The result is ``{'allocations': {rp: {'resources', 'generation'}}, 'consumer_generation', 'project_id',
        'user_id'}``, or only ``{'allocations': {}}`` for a consumer without allocations.
        """
        found: dict[str, Any] = self._send('GET', f'/allocations/{consumer}').json()
        return found

    def post_allocations(self, payload: dict[str, dict[str, Any]]) -> None:
        """Write the allocations of several consumers, all or none.

        ``payload`` is a dict from consumer to the body of a PUT of its allocations.
        """
        self._send('POST', '/allocations', json=payload)

    def delete_allocations(self, consumer: str) -> bool:
        """Delete all allocations of ``consumer``. Return False if the consumer had no allocations.

        Raises Unanswered if too many clients write at the same time.
        """
        for left in reversed(range(WRITE_ATTEMPTS)):
            try:
                return self._send('DELETE', f'/allocations/{consumer}', missing_ok=True).status_code != 404
            except errors.PlacementConflict as error:
                _pause(left, error)
        return False

    def drop(self, consumer: str, check: Callable[[], None]) -> bool:
        """Delete all allocations of ``consumer``. Return False if it has none.

        First the allocations are read, then ``check()`` is called, then the allocations are deleted. ``check()`` raises
        an error if the caller may not write any more. If another client changes the allocations in between, Placement
        refuses the deletion, and all three are repeated. Raises Unanswered if this happens too often.
        """
        for left in reversed(range(WRITE_ATTEMPTS)):
            held = self.get_allocations(consumer)
            if not held['allocations']:
                return False
            check()
            try:
                self._send(
                    'PUT',
                    f'/allocations/{consumer}',
                    json=_consumer({}, held['project_id'], held['user_id'], held['consumer_generation']),
                )
                return True
            except errors.PlacementConflict as error:
                _pause(left, error)
        return False

    # Moves. While a server moves, the consumer of its old allocation is the migration's uuid.

    def move_allocation(
        self,
        instance_uuid: str,
        migration_uuid: str,
        *,
        new: Allocations,
        project_id: str,
        user_id: str,
        mappings: dict[str, list[str]] | None = None,
        old: dict[str, Any] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Allocations:
        """Move the server's allocation to the migration, and give the server the allocation ``new``, in one POST.

        Return the moved allocation. The call may be repeated: if the migration already has the server's old allocation,
        the migration keeps it, and only the server's allocation is replaced by ``new``. ``old`` is the result of
        ``get_allocations(instance_uuid)``. If it is None, this method calls ``get_allocations``. ``check()`` is called
        between reading and writing, and raises an error if the caller may not write any more.

        Raises:
            PlacementConflict: There is too little capacity for ``new``. Nothing was changed.
            Unanswered: Too many clients write at the same time.
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
                    self.claim(
                        instance_uuid,
                        new,
                        mappings,
                        project_id=project_id,
                        user_id=user_id,
                        generation=old.get('consumer_generation'),
                    )
                return _resources(held['allocations'])
        raise AssertionError('unreachable')

    def move_back(self, instance_uuid: str, migration_uuid: str, check: Callable[[], None] = lambda: None) -> bool:
        """Undo ``move_allocation``: return the migration's allocation to the server, in one POST.

        Return False if the migration has no allocation, because the allocation was never moved or was already moved
        back. ``check()`` is called before writing, and raises an error if the caller may not write any more.
        """
        for left in reversed(range(WRITE_ATTEMPTS)):
            held = self.get_allocations(migration_uuid)
            if not held['allocations']:
                return False
            now = self.get_allocations(instance_uuid)
            owner = held['project_id'], held['user_id']
            check()
            try:
                self.post_allocations(
                    {
                        migration_uuid: _consumer({}, *owner, held['consumer_generation']),
                        instance_uuid: _consumer(held['allocations'], *owner, now.get('consumer_generation')),
                    }
                )
                return True
            except errors.PlacementConflict as error:
                if not is_generation_conflict(error):
                    raise
                _pause(left, error)
        return False

    # Methods for resource providers

    def list_providers(
        self,
        *,
        uuid: str | None = None,
        in_tree: str | None = None,
        name: str | None = None,
        member_of: str | Sequence[str] = (),
        resources: str | None = None,
        required: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return the resource providers that match all given conditions, or all providers.

        A provider has uuid, name, generation, parent_provider_uuid and root_provider_uuid. ``resources`` ('VCPU:2') is
        the capacity that must be free. ``required`` ('A,!B') are required and forbidden traits. ``member_of``
        ('in:UUID,UUID') is a list of aggregates, and the provider must be in at least one of them. If several such
        lists are given, the provider must be in an aggregate of each list. If a list is too long for one URL, several
        requests are sent. Raises PlacementInvalid if a class or trait does not exist.
        """
        asked = {'uuid': uuid, 'in_tree': in_tree, 'name': name, 'resources': resources, 'required': required}
        pairs = [(key, value) for key, value in asked.items() if value is not None]
        pairs += [('member_of', one) for one in ([member_of] if isinstance(member_of, str) else member_of)]
        return query.ask(
            pairs,
            lambda text: self._send('GET', '/resource_providers' + (f'?{text}' if text else '')).json()[
                'resource_providers'
            ],
            candidates.merge_providers,
        )

    def qualifies(
        self, uuid: str, required: Iterable[str], forbidden: Iterable[str], aggregates: Iterable[Iterable[str]] = ()
    ) -> bool:
        """Return whether a provider has all ``required`` traits, no ``forbidden`` trait, and is in the aggregates.

        ``aggregates`` is a list of sets of aggregate uuids: the provider must be in at least one aggregate of each set.
        If the list is empty, this method only reads the provider's traits, which is cheaper than a query by traits.
        Otherwise it sends a query, in several requests if the sets are too long for one URL.
        """
        aggregates = list(aggregates)
        if not aggregates:
            try:
                traits, _ = self.get_traits(uuid)
            except ProviderNotFound:
                return False
            return set(required) <= traits and traits.isdisjoint(forbidden)
        words = [*sorted(required), *(f'!{name}' for name in sorted(forbidden))]
        return bool(
            self.list_providers(
                uuid=uuid,
                required=','.join(words) or None,
                member_of=['in:' + ','.join(sorted(ids)) for ids in aggregates],
            )
        )

    def ensure_provider(self, name: str, uuid: str, parent: str | None = None) -> dict[str, Any]:
        """Return the provider with this name. If there is none, create it with this ``uuid``.

        ``parent`` is the uuid of the new provider's parent, or None for a root provider. An existing provider may have
        another uuid. Raises PlacementConflict if a provider with another name has the uuid.
        """
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
        """Return the inventories of a provider by resource class, and the provider's generation."""
        answer = self._send('GET', f'/resource_providers/{uuid}/inventories').json()
        return answer['inventories'], answer['resource_provider_generation']

    def set_inventory(self, uuid: str, generation: int, inventory: dict[str, dict[str, Any]]) -> int:
        """Replace all inventories of a provider and return its new generation.

        Raises PlacementConflict if ``generation`` is outdated, or if a resource class that would be removed is in use.
        """
        found: int = self._send(
            'PUT',
            f'/resource_providers/{uuid}/inventories',
            json={
                'resource_provider_generation': generation,
                'inventories': inventory,
            },
        ).json()['resource_provider_generation']
        return found

    def get_traits(self, uuid: str) -> tuple[set[str], int]:
        """Return the traits of a provider and the provider's generation."""
        answer = self._send('GET', f'/resource_providers/{uuid}/traits').json()
        return set(answer['traits']), answer['resource_provider_generation']

    def set_traits(self, uuid: str, generation: int, traits: Iterable[str]) -> int:
        """Replace all traits of a provider and return its new generation."""
        found: int = self._send(
            'PUT',
            f'/resource_providers/{uuid}/traits',
            json={
                'resource_provider_generation': generation,
                'traits': sorted(traits),
            },
        ).json()['resource_provider_generation']
        return found

    def set_member(self, uuid: str, aggregate: str, member: bool) -> None:
        """Add a provider to an aggregate, or remove it if ``member`` is False. Its other aggregates are kept.

        Raises ProviderNotFound if a provider to be added does not exist.
        """
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
                self._send(
                    'PUT',
                    path,
                    json={'aggregates': wanted, 'resource_provider_generation': answer['resource_provider_generation']},
                )
                return
            except errors.PlacementConflict as error:
                if not left or not is_generation_conflict(error):
                    raise

    def delete_provider(self, uuid: str) -> bool:
        """Delete a provider. Return False if the provider did not exist.

        Raises PlacementConflict if the provider has allocations or children.
        """
        return self._send('DELETE', f'/resource_providers/{uuid}', missing_ok=True).status_code != 404

    def delete_tree(self, root_uuid: str) -> None:
        """Delete a compute's provider tree, children first. Raises PlacementConflict if a provider has allocations."""
        parents = {
            provider['uuid']: provider['parent_provider_uuid'] for provider in self.list_providers(in_tree=root_uuid)
        }

        def depth(uuid: str) -> int:
            return 1 + depth(parents[uuid]) if uuid in parents else 0

        for uuid in sorted(parents, key=depth, reverse=True):
            self.delete_provider(uuid)
        self._trees.drop(root_uuid)

    def provider_allocations(self, uuid: str) -> dict[str, dict[str, int]]:
        """Return the amounts of a provider that are in use: ``{consumer: {resource class: amount}}``."""
        answer = self._send('GET', f'/resource_providers/{uuid}/allocations').json()
        return {consumer: given['resources'] for consumer, given in answer['allocations'].items()}

    def ensure_resource_class(self, name: str) -> None:
        """Create a CUSTOM_ resource class if it does not exist. A process sends this request once for each class."""
        if name.startswith('CUSTOM_') and name not in self._classes:
            self._send('PUT', f'/resource_classes/{name}')
            self._classes.add(name)

    def ensure_traits(self, names: Iterable[str]) -> set[str]:
        """Create those CUSTOM_ traits in ``names`` that do not exist yet. Return the traits that Placement now has.

        The result is a subset of ``names``. Standard traits that this Placement does not know are left out.
        """
        wanted = set(names)
        unknown = sorted(wanted - self._traits.keys())
        if unknown:
            there = query.ask(
                [('name', 'in:' + ','.join(unknown))],
                lambda text: set(self._send('GET', f'/traits?{text}').json()['traits']),
                candidates.merge_names,
            )
            for name in unknown:
                if name not in there and name.startswith('CUSTOM_'):
                    self._send('PUT', f'/traits/{name}')
                    there.add(name)
                elif name not in there:
                    LOG.warning('Placement does not know the trait %s, so providers are reported without it', name)
                self._traits[name] = name in there
        return {name for name in wanted if self._traits[name]}

    def sync_compute(
        self,
        root_uuid: str,
        nodename: str,
        inventory: dict[str, dict[str, Any]],
        traits: Iterable[str],
        devices: dict[str, dict[str, Any]] | None = None,
        *,
        has_pci: bool = True,
        refresh: bool = False,
    ) -> dict[str, str]:
        """Change a compute's provider tree in Placement to what the compute reports.

        Return ``{provider name: uuid}`` of the tree.

        ``inventory`` and ``traits`` are those of the root provider, which has the name ``nodename``. ``devices``
        describes the child providers: ``{provider name: {resource_class, traits, total, reserved, more_traits}}``. If
        ``reserved`` is None, the value in Placement stays. If ``more_traits`` is True, other traits of it stay, too.
        ``has_pci`` is the option [pci]report_in_placement of the host.

        Only differences from the cached tree are written. If ``refresh`` is True, cached inventories and traits of
        providers whose generation has changed are first read again.
        """
        return self._trees.sync(
            self, root_uuid, nodename, inventory, set(traits), devices or {}, has_pci=has_pci, refresh=refresh
        )

    def set_host_disabled(self, root_uuid: str, disabled: bool) -> None:
        """Add the trait COMPUTE_STATUS_DISABLED to a compute's root provider if ``disabled`` is True, else remove it.

        The scheduler's query excludes providers with this trait.
        """
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
        response = session.send(
            self._adapter,
            'Placement',
            method,
            path,
            attempts=attempts,
            headers={'OpenStack-API-Version': f'placement {MICROVERSION}'},
            **kwargs,
        )
        if response.status_code < 400 or (missing_ok and response.status_code == 404):
            return response
        raise _error(response, path)


def _pause(left: int, error: errors.PlacementConflict) -> None:
    """Wait before a write is repeated, for a random time that grows with each attempt.

    ``left`` is the number of attempts that are left. Raises Unanswered if it is 0.
    """
    if not left:
        raise errors.Unanswered(f'Placement received too many concurrent writes: {error}') from error
    time.sleep(CONFLICT_PAUSE * 2 ** (WRITE_ATTEMPTS - 1 - left) * random.uniform(0.5, 1.5))


def _resources(allocations: Allocations) -> Allocations:
    return {rp: {'resources': given['resources']} for rp, given in allocations.items()}


def _consumer(
    allocations: Allocations,
    project_id: str,
    user_id: str,
    generation: int | None,
    mappings: dict[str, list[str]] | None = None,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        'allocations': _resources(allocations),
        'project_id': project_id,
        'user_id': user_id,
        'consumer_generation': generation,
    }
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
