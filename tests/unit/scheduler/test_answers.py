"""Placement's answers that are kept for some seconds: what only Placement knows costs a burst one question."""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.models.cell import ComputeNode, Service
from kilonova.scheduler.placement import candidates
from kilonova.scheduler.placement.query import CandidateQuery
from tests.unit.scheduler.builders import GPU, spec, uuid

CTXT = RequestContext(user_id='alice', project_id='demo', overwrite=False)
A, B, C = '0000:08:00.0', '0000:88:00.0', '0000:89:00.0'
S1, S2, S3, S4 = (uuid(name) for name in ('s1', 's2', 's3', 's4'))
# Our own view doesn't know it.
TRAIT = 'COMPUTE_NODE'


@pytest.fixture
def asked(rig):
    """Requests to Placement since the last look at them, each as its method and whom it is about."""

    def look():
        found = [(method, path.partition('?')[0].rpartition('/')[2]) for method, path in rig.placement.requests]
        rig.placement.requests.clear()
        return found

    return look


def host(rig, name='gpu1', gpus=(A, B, C)):
    root = rig.host(name, gpus)
    allow(rig, root)
    return root


def allow(rig, root, allowed=True):
    traits, generation = rig.placement.client.get_traits(root)
    rig.placement.client.set_traits(root, generation, traits | {TRAIT} if allowed else traits - {TRAIT})


def request(**values):
    return spec({f'trait:{TRAIT}': 'required'}, gpus=(1,), **values)


def select(manager, server, wanted=None):
    (found,) = manager.select_destinations(CTXT, wanted or request(), [server])
    return found[0].service_host


def devices(rig):
    """{server: its device} in Placement."""
    return {server: next(name for name in held if '_' in name) for server, held in rig.placement.allocations().items()}


def test_a_burst_asks_once(rig, asked):
    """What was claimed since the answer isn't tried again, also when the host has reported the server."""
    host(rig)
    manager = rig.manager()
    asked()
    for server in (S1, S2, S3):
        assert select(manager, server) == 'gpu1'
        manager._snapshot.table.reservations.reported(server)
    assert asked() == [('GET', 'allocation_candidates'), ('PUT', S1), ('PUT', S2), ('PUT', S3)]
    assert len(set(devices(rig).values())) == 3


def test_answers_that_are_too_old_take_no_memory():
    """Those of large clouds are large."""
    cache = candidates.CandidateCache()

    def answer(hosts, age):
        return candidates.CandidateResponse({}, CandidateQuery(), {}, asked=time.monotonic() - age, hosts=hosts)

    old, young = answer(b'old', candidates.BELIEVED + 1), answer(b'young', 0)
    held = weakref.ref(old), weakref.ref(young)
    cache.keep(old)
    cache.keep(young)
    cache.keep(answer(b'last', 0))
    del old, young
    assert held[0]() is None and held[1]() is not None


def test_who_asks_at_the_same_time_waits_for_the_answer(rig, asked):
    """A burst comes all at once."""
    host(rig)
    manager = rig.manager()
    held_up = threading.Event()

    def hold_up(method, path):
        # The answer takes long: meanwhile the others are there.
        if path.startswith('/allocation_candidates'):
            held_up.wait(0.3)

    rig.placement.before = hold_up
    asked()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda server: select(manager, server), (S1, S2, S3))) == ['gpu1'] * 3
    assert [method for method, _ in asked()] == ['GET', 'PUT', 'PUT', 'PUT']
    assert len(set(devices(rig).values())) == 3


@pytest.mark.parametrize('silent', [False, True], ids=['refused', 'silent'])
def test_who_waits_for_an_answer_that_does_not_come_asks(rig, asked, silent):
    host(rig, gpus=(A,))
    manager = rig.manager()
    wanted = request()
    failed = []

    def fail(method, path):
        if path.startswith('/allocation_candidates') and not failed:
            failed.append(path)
            raise errors.Unanswered(who='Placement', reason='silent')

    if silent:
        rig.placement.before = fail
        with pytest.raises(errors.Unanswered):
            select(manager, S1, wanted)
    else:
        rig.placement.client.claim(
            S4,
            {
                next(row['uuid'] for row in rig.placement.client.list_providers() if row['name'] == f'gpu1_{A}'): {
                    'resources': {GPU: 1}
                }
            },
            project_id='p',
            user_id='u',
        )
        with pytest.raises(errors.NoValidHost):
            select(manager, S1, wanted)
        rig.placement.client.delete_allocations(S4)
    assert manager._answers._asking == set()
    assert select(manager, S2, wanted) == 'gpu1'


def test_nobody_is_refused_by_an_answer_that_was_kept(rig, asked):
    host(rig, gpus=(A,))
    manager = rig.manager()
    select(manager, S1)
    asked()
    with pytest.raises(errors.NoValidHost):
        select(manager, S2)
    assert asked()[0] == ('GET', 'allocation_candidates')
    rig.placement.client.delete_allocations(S1)
    manager._snapshot.table.reservations.give_back(S1)
    assert select(manager, S3) == 'gpu1'


def test_a_refused_claim_ends_it(rig, asked):
    """Another scheduler took the device: one claim is in vain, not one for each device and host."""
    host(rig)
    manager, other = rig.manager(), rig.manager()
    select(manager, S1)
    for server in (S2, S3):
        select(other, server)
        other._snapshot.table.reservations.reported(server)
        manager._snapshot.table.reservations.give_back(server)
    asked()

    def give_up(method, path):
        if path.startswith('/allocation_candidates'):
            rig.placement.before = None
            rig.placement.client.delete_allocations(S3)

    rig.placement.before = give_up
    assert select(manager, S4) == 'gpu1'
    assert [one for one in asked() if one[1] != S3] == [('PUT', S4), ('GET', 'allocation_candidates'), ('PUT', S4)]


def test_after_some_seconds_placement_is_asked_again(rig, monkeypatch):
    root = host(rig)
    manager = rig.manager()
    select(manager, S1)
    allow(rig, root, False)
    assert select(manager, S2) == 'gpu1'
    now = time.monotonic()
    monkeypatch.setattr('kilonova.scheduler.placement.candidates.time.monotonic', lambda: now + candidates.BELIEVED)
    with pytest.raises(errors.NoValidHost):
        select(manager, S3)


def test_what_hosts_say_counts_at_once(rig):
    """A host that is disabled gets nothing more, whatever Placement said of it."""
    host(rig, gpus=(A, B))
    manager = rig.manager()
    select(manager, S1)
    with rig.by_name['cell1'].write() as connection:
        connection.execute(ComputeNode.__table__.update().values(deleted=1))
    with pytest.raises(errors.NoValidHost):
        select(manager, S2)


def test_a_host_that_comes_back_is_offered_at_once(rig):
    """Also as an alternate: a boot whose host dies goes there."""
    host(rig)
    host(rig, 'gpu2')
    manager = rig.manager()

    def gpu2_is_disabled(disabled):
        with rig.by_name['cell1'].write() as connection:
            connection.execute(
                Service.__table__.update()
                .where(Service.host == 'gpu2')
                .values(disabled=disabled, updated_at=engine.db_utcnow())
            )
        rig.placement.client.set_host_disabled(uuid('gpu2'), disabled)

    gpu2_is_disabled(True)
    assert select(manager, S1) == 'gpu1'
    gpu2_is_disabled(False)
    (found,) = manager.select_destinations(CTXT, request(), [S2])
    assert {one.service_host for one in found} == {'gpu1', 'gpu2'}


def test_a_host_without_room_is_asked_about(rig):
    """What was claimed there may be free again: a boot that was refused there went elsewhere."""
    host(rig, gpus=(A,))
    host(rig, 'gpu2', gpus=(A, B, C))
    manager = rig.manager()
    assert select(manager, S1) == 'gpu1'
    rig.placement.client.delete_allocations(S1)
    (found,) = manager.select_destinations(CTXT, request(), [S2])
    assert len(found) == 1
    manager._snapshot.table.reservations.reported(S1)
    (found,) = manager.select_destinations(CTXT, request(), [S3])
    assert {one.service_host for one in found} == {'gpu1', 'gpu2'}


def test_of_aggregates_nothing_is_kept(rig, asked):
    root = host(rig)
    rig.placement.client.set_member(root, rig.aggregate('gpu1', availability_zone='east'), True)
    manager = rig.manager()
    asked()
    for server in (S1, S2):
        select(manager, server, request(availability_zone='east'))
    assert asked().count(('GET', 'allocation_candidates')) == 2


def test_only_so_many_are_kept(rig, monkeypatch, asked):
    host(rig)
    manager = rig.manager()
    monkeypatch.setattr(candidates, 'MOST_ANSWERS', 1)
    small = request(flavor_values={'memory_mb': 1024})
    select(manager, S1)
    select(manager, S2, small)
    asked()
    select(manager, S3)
    assert ('GET', 'allocation_candidates') in asked()
    assert len(manager._answers._of) == 1


def test_two_who_ask_for_different_things_get_different_answers(rig):
    host(rig, 'gpu1', (A,))
    rig.host('gpu2', (B,))
    manager = rig.manager()
    assert select(manager, S1) == 'gpu1'
    forbidden = spec({f'trait:{TRAIT}': 'forbidden'}, gpus=(1,))
    assert select(manager, S2, forbidden) == 'gpu2'
