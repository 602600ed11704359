"""select_destinations over the real Placement service and real databases."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import threading
import time
from types import SimpleNamespace
from urllib import parse

import pytest

from kilonova import errors, objects
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.models.api import Aggregate, AggregateHost, AggregateMetadata
from kilonova.db.models.cell import ComputeNode, Instance, Service
from kilonova.db.queries import aggregates, build_requests, operations
from kilonova.rpc.scheduler import Scheduler
from kilonova.scheduler import filters
from kilonova.scheduler import manager as manager_module
from kilonova.scheduler.explain.decisions import Trace
from kilonova.scheduler.filters.limits import IoOpsFilter, NumInstancesFilter
from kilonova.scheduler.hosts import cells
from kilonova.scheduler.placement import local_candidates
from kilonova.scheduler.placement.candidates import CandidateResponse
from kilonova.scheduler.placement.query import CandidateQuery
from kilonova.scheduler.plan import Candidate
from tests.unit.scheduler.builders import CELL, GPU, candidate, conf, spec, state, uuid

CTXT = RequestContext(user_id='alice', project_id='demo', overwrite=False)
A, B, C = '0000:08:00.0', '0000:88:00.0', '0000:89:00.0'
REQUEST = uuid('request 0')
S1, S2, S3 = uuid('s1'), uuid('s2'), uuid('s3')


def select(manager, request, uuids=(S1,), **how):
    return manager.select_destinations(CTXT, request, list(uuids), **how)


def hosts(found):
    return [[selection.service_host for selection in one] for one in found]


def sent(rig):
    return [(method, path.partition('?')[0]) for method, path in rig.placement.requests]


def held(rig, server):
    """{provider name: amounts} of a server in Placement."""
    return rig.placement.allocations().get(server, {})


def trait(rig, root):
    """Give a host the trait of ``BY_PLACEMENT``."""
    traits, generation = rig.placement.client.get_traits(root)
    rig.placement.client.set_traits(root, generation, traits | {'COMPUTE_NODE'})


# Extra specs of requests that are answered from our own view, and by Placement's candidates.
BY_US, BY_PLACEMENT = {}, {'trait:COMPUTE_NODE': 'required'}
both_ways = pytest.mark.parametrize('extra_specs', [BY_US, BY_PLACEMENT], ids=['by us', 'by placement'])


def test_the_endpoint_is_as_declared(rig):
    """The scheduler's endpoint has the methods and arguments of its declaration."""
    for interface, endpoint in rig.manager().endpoints():
        interface.check_server(endpoint)
    assert interface is Scheduler


@pytest.mark.parametrize('asks', [False, True], ids=['nobody waits', 'an operation waits'])
def test_a_boot_costs_two_placement_requests_at_most_and_few_statements(rig, asks):
    """Two statements; one more where an operation asks, however many there are."""
    rig.host('gpu1', (A, B))
    asking = [operation(rig, server) for server in (S1, S2)] if asks else None
    manager = rig.manager()
    for _ in range(2):
        select(manager, spec(), claim=False)
        # Rows this young are read again: a clock of milliseconds may stamp two changes alike.
        time.sleep(0.06)
    rig.placement.requests.clear()
    statements = []
    stop = engine.listen(lambda *event: statements.append(event))
    found = select(manager, spec(gpus=(1,)), (S1, S2), operations=asking)
    stop()
    # The second server's host has the traits that it had for the first.
    assert sent(rig) == [
        ('GET', f'/resource_providers/{uuid("gpu1")}/traits'),
        *(('PUT', f'/allocations/{server}') for server in (S1, S2)),
    ]
    # The second cell is one more.
    assert sorted(name for name, statement, _ in statements if statement != 'COMMIT') == [
        *['api'] * (2 if asks else 1),
        'cell1',
        'cell2',
    ]
    selection = found[0][0]
    assert (selection.service_host, selection.nodename, selection.compute_node_uuid) == ('gpu1', 'gpu1', uuid('gpu1'))
    assert selection.cell_uuid == rig.by_name['cell1'].cell.uuid
    allocation = json.loads(selection.allocation_request)
    assert selection.allocation_request_version == '1.36'
    assert set(allocation['mappings']) == {'', f'{REQUEST}-0'}
    assert held(rig, S1)['gpu1'] == {'VCPU': 8, 'MEMORY_MB': 32768, 'DISK_GB': 16}
    assert sum(amounts.get(GPU, 0) for amounts in held(rig, S1).values()) == 1


def test_what_is_told_of_a_choice():
    chosen = state('a', metadata={'availability_zone': 'east'})
    found = manager_module._selection(Candidate(chosen, candidate('a')))
    assert (found.service_host, found.nodename, found.compute_node_uuid, found.cell_uuid, found.availability_zone) == (
        'a',
        'a',
        uuid('a'),
        CELL,
        'east',
    )
    assert json.loads(found.allocation_request) == candidate('a') and found.allocation_request_version == '1.36'
    assert found.limits is None
    chosen.limits = {'vcpu': 4.0}
    found = manager_module._selection(Candidate(chosen))
    assert (found.allocation_request, found.allocation_request_version, found.limits.vcpu) == (None, None, 4.0)


def test_alternates_are_max_attempts_less_one(rig):
    """A select returns the chosen host and max_attempts - 1 alternates, or the chosen host alone if the caller
    wants no alternates."""
    for name in ('gpu1', 'gpu2', 'gpu3', 'gpu4'):
        rig.host(name)
    found = select(rig.manager(), spec())
    assert len(found[0]) == 3
    assert len(set(hosts(found)[0])) == 3
    assert len(select(rig.manager(scheduler__max_attempts=1), spec(), [S2])[0]) == 1
    assert len(select(rig.manager(), spec(), [S3], return_alternates=False)[0]) == 1


def test_the_old_form_of_the_answer(rig):
    rig.host('gpu1')
    assert select(rig.manager(), spec(), return_objects=False) == [{'host': 'gpu1', 'nodename': 'gpu1', 'limits': {}}]


def test_without_claim_placement_is_only_asked(rig):
    rig.host('gpu1', (A,))
    rig.placement.requests.clear()
    select(rig.manager(), spec(gpus=(1,)), claim=False)
    assert sent(rig) == [('GET', '/allocation_candidates')]
    assert rig.placement.allocations() == {}


@both_ways
def test_a_refusal_tells_the_amounts_of_each_kind(rig, caplog, extra_specs):
    """A refusal gives the amounts that were asked for, and the most that any host has of what is missing."""
    caplog.set_level(logging.INFO)
    trait(rig, rig.host('gpu1', (A, B, C), vcpus=3))
    trait(rig, rig.host('gpu2', (A,), vcpus=5))
    small = {'vcpus': 2, 'memory_mb': 512, 'root_gb': 1}
    with pytest.raises(errors.NoValidHost) as caught:
        select(rig.manager(), spec(extra_specs, gpus=(4,), flavor_values=small))
    assert str(caught.value) == (
        'No valid host was found. 2 hosts considered: 2 have fewer than 4 free gpu (best: 3 free).'
    )
    assert f'Requested: {GPU}: 4, DISK_GB: 1, MEMORY_MB: 512, VCPU: 2.' in caplog.text
    caplog.clear()
    with pytest.raises(errors.NoValidHost) as caught:
        select(rig.manager(), spec(extra_specs, flavor_values={**small, 'vcpus': 30}))
    assert 'Requested: DISK_GB: 1, MEMORY_MB: 512, VCPU: 30.' in caplog.text
    assert str(caught.value) == 'No valid host was found. 2 hosts considered: 2 have fewer than 30 free vCPUs.'


def test_nothing_in_placement_says_what_was_asked_for(rig, caplog):
    """If no host has the resources, NoValidHost says why. The log has the amounts and Nova's line that Placement has no
    allocation candidates."""
    caplog.set_level(logging.INFO)
    rig.host('gpu1', (A,))
    with pytest.raises(errors.NoValidHost) as caught:
        select(rig.manager(), spec(gpus=(2,)))
    assert str(caught.value) == (
        'No valid host was found. 1 host considered: 1 has fewer than 2 free gpu (best: 1 free).'
    )
    assert (
        f'There are not enough hosts available. Requested: {GPU}: 2, DISK_GB: 16, MEMORY_MB: 32768, VCPU: 8.'
        in caplog.text
    )
    assert 'Got no allocation candidates from the Placement API.' in caplog.text


def test_filters_that_leave_nothing(rig):
    rig.host('gpu1', service={'forced_down': True})
    with pytest.raises(errors.NoValidHost) as caught:
        select(rig.manager(), spec())
    assert str(caught.value) == 'No valid host was found. 1 host considered: 1 down.'
    assert type(caught.value) is errors.NoValidHost
    assert rig.placement.allocations() == {}


@pytest.mark.parametrize('extra_specs', [{'resources:CUSTOM_NO_SUCH': '1'}, {'trait:CUSTOM_NO_SUCH': 'required'}])
def test_what_placement_does_not_know_is_named(rig, extra_specs):
    rig.host('gpu1')
    with pytest.raises(errors.NoValidHost, match='CUSTOM_NO_SUCH'):
        select(rig.manager(), spec(extra_specs))


def test_two_servers_do_not_share_the_last_device(rig):
    """If the second server of a request finds no free device, the request is refused and the claim of the first is
    given back."""
    rig.host('gpu1', (A,))
    with pytest.raises(errors.NoValidHost):
        select(rig.manager(), spec(gpus=(1,)), [S1, S2])
    assert rig.placement.allocations() == {}


def test_several_servers_get_different_devices(rig):
    rig.host('gpu1', (A, B))
    rig.host('gpu2', (C,))
    found = select(rig.manager(), spec(gpus=(1,)), [S1, S2, S3])
    assert sorted(host for one in hosts(found) for host in one[:1]) == ['gpu1', 'gpu1', 'gpu2']
    devices = [name for server in (S1, S2, S3) for name in held(rig, server) if '_' in name]
    assert sorted(devices) == [f'gpu1_{A}', f'gpu1_{B}', f'gpu2_{C}']


def test_a_device_that_somebody_else_takes_meanwhile(rig):
    """If Placement answers a claim with 409, the next candidate is claimed."""
    rig.host('gpu1', (A, B))
    providers = {row['name']: row['uuid'] for row in rig.placement.client.list_providers()}
    manager = rig.manager()
    taken = []

    def steal(method, path):
        if method == 'PUT' and not taken:
            taken.append(path)
            rig.placement.client.claim(
                uuid('thief'), {providers[f'gpu1_{A}']: {'resources': {GPU: 1}}}, project_id='p', user_id='u'
            )

    rig.placement.before = steal
    select(manager, spec(gpus=(1,)))
    rig.placement.before = None
    assert f'gpu1_{B}' in held(rig, S1)
    assert f'gpu1_{A}' in held(rig, uuid('thief'))


def thief_of(rig, times):
    """Takes the only device before a claim, ``times`` times, and gives it back before the next question."""
    provider = next(row['uuid'] for row in rig.placement.client.list_providers() if row['name'] == f'gpu1_{A}')
    taken = []

    def steal(method, path):
        if method == 'PUT' and path.endswith(S1) and len(taken) < times:
            taken.append(path)
            rig.placement.client.claim(uuid('thief'), {provider: {'resources': {GPU: 1}}}, project_id='p', user_id='u')
        elif path.startswith('/allocation_candidates'):
            rig.placement.client.delete_allocations(uuid('thief'))

    return steal


@pytest.mark.parametrize('times', [1, 2, 4])
def test_lost_claims_are_no_refusal_while_somebody_else_may_give_up(rig, times):
    """No host lacks anything, only claims were lost: the choice is made again."""
    rig.host('gpu1', (A,))
    manager = rig.manager()
    rig.placement.before = thief_of(rig, times)
    assert hosts(select(manager, spec(gpus=(1,)))) == [['gpu1']]
    rig.placement.before = None
    assert f'gpu1_{A}' in held(rig, S1)


def test_claims_that_are_always_lost_end_in_a_refusal(rig, monkeypatch):
    rig.host('gpu1', (A,))
    manager = rig.manager()
    rig.placement.before = thief_of(rig, 1000)
    pauses = []
    monkeypatch.setattr('kilonova.scheduler.manager.random.uniform', lambda low, high: high)
    monkeypatch.setattr(
        'kilonova.scheduler.manager.time', SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append)
    )
    with pytest.raises(errors.NoValidHost, match='1 host considered: 1 claimed by other requests at the same time'):
        select(manager, spec(gpus=(1,)))
    assert [round(pause / manager_module.PAUSE, 6) for pause in pauses] == [1.5, 3.0, 4.5, 6.0]
    rig.placement.before = None
    assert held(rig, S1) == {}


def test_a_select_whose_reply_was_lost_is_answered_again(rig):
    """operations.md rule 9"""
    rig.host('gpu1', (A, B))
    first = select(rig.manager(), spec(gpus=(1,)))
    before = rig.placement.allocations()
    again = select(rig.manager(), spec(gpus=(1,)))
    assert rig.placement.allocations() == before
    assert json.loads(again[0][0].allocation_request) == json.loads(first[0][0].allocation_request)


def test_also_when_nothing_is_left_for_others(rig):
    rig.host('gpu1', (A, B))
    first = select(rig.manager(), spec(gpus=(2,)))
    again = select(rig.manager(), spec(gpus=(2,)))
    assert (
        json.loads(again[0][0].allocation_request)['allocations']
        == json.loads(first[0][0].allocation_request)['allocations']
    )
    assert set(json.loads(again[0][0].allocation_request)['mappings']) == {'', f'{REQUEST}-0', f'{REQUEST}-1'}
    assert hosts(again) == [['gpu1']]


def test_an_allocation_of_something_else_is_not_taken_for_ours(rig):
    root = rig.host('gpu1')
    rig.placement.client.claim(S1, {root: {'resources': {'VCPU': 1}}}, project_id='p', user_id='u')
    with pytest.raises(errors.NoValidHost, match=S1):
        select(rig.manager(), spec())
    assert held(rig, S1) == {'gpu1': {'VCPU': 1}}


def operation(rig, server, **values):
    """A boot's row that waits for a host; its uuid."""
    row = operations.OperationRow(
        **{'uuid': uuid(f'boot of {server}'), 'kind': 'boot', 'instance_uuid': server, **values}
    )
    with rig.databases.api().write() as connection:
        operations.insert(connection, [row])
    return row.uuid


def sizes(manager):
    """What the scheduler counts of each host as given away."""
    return [int(value) for value in manager._snapshot.table['num_instances']]


@both_ways
def test_when_the_time_is_over_nothing_is_claimed(rig, extra_specs):
    trait(rig, rig.host('gpu1'))
    manager = rig.manager()
    with pytest.raises(errors.Unanswered, match=r'^The caller no longer waits for the scheduler, because'):
        select(manager, spec(extra_specs), time_left=-1.0)
    assert rig.placement.allocations() == {}
    assert ('PUT', f'/allocations/{S1}') not in sent(rig)
    assert not any(sizes(manager))
    assert hosts(select(manager, spec(extra_specs), time_left=60.0)) == [['gpu1']]


@both_ways
def test_a_claim_that_was_written_too_late_goes_back(rig, monkeypatch, extra_specs):
    """What was claimed in time for the server before it stays: the next select takes it up."""
    trait(rig, rig.host('gpu1'))
    manager, late = rig.manager(), []
    real = time.monotonic
    monkeypatch.setattr(
        'kilonova.scheduler.placement.claims.time', SimpleNamespace(monotonic=lambda: real() + 100 * len(late))
    )

    def after(method, path):
        if (method, path) == ('PUT', f'/allocations/{S2}'):
            late.append(path)

    rig.placement.after = after
    with pytest.raises(errors.Unanswered, match=r'^The caller no longer waits for the scheduler, because'):
        select(manager, spec(extra_specs), [S1, S2], time_left=60.0)
    assert len(late) == 2
    assert set(rig.placement.allocations()) == {S1}
    assert not any(sizes(manager))


@both_ways
def test_for_whom_no_operation_waits_nothing_stays_claimed(rig, extra_specs):
    """One that failed, one cancelled, one that got a host already, none at all; the other two get theirs."""
    trait(rig, rig.host('gpu1'))
    servers = [uuid(f'server {number}') for number in range(6)]
    asking = [
        operation(rig, servers[0], failed=True),
        operation(rig, servers[1], cancelled=True),
        operation(rig, servers[2], position=1),
        uuid('an operation that ended'),
        operation(rig, servers[4]),
        operation(rig, servers[5]),
    ]
    manager = rig.manager()
    found = select(manager, spec(extra_specs), servers, operations=asking)
    assert len(found) == 6
    assert set(rig.placement.allocations()) == set(servers[4:])
    assert sum(sizes(manager)) == 2
    with pytest.raises(errors.Cancelled):
        select(manager, spec(extra_specs), servers[:4], operations=asking[:4])
    assert set(rig.placement.allocations()) == set(servers[4:])
    assert sum(sizes(manager)) == 2


def test_another_kind_of_operation_waits_for_no_claim(rig):
    rig.host('gpu1')
    asking = [operation(rig, S1, kind='resize')]
    with pytest.raises(errors.Cancelled):
        select(rig.manager(), spec(), operations=asking)
    assert rig.placement.allocations() == {}


@both_ways
def test_silence_of_placement_gives_nothing_back(rig, extra_specs):
    trait(rig, rig.host('gpu1'))
    manager, asking = rig.manager(), [operation(rig, S1), operation(rig, S2)]

    def before(method, path):
        if (method, path) == ('PUT', f'/allocations/{S2}'):
            raise rig.placement.broken()

    rig.placement.before = before
    with pytest.raises(errors.Unanswered, match='Placement'):
        select(manager, spec(extra_specs), [S1, S2], operations=asking)
    assert ('DELETE', f'/allocations/{S1}') not in sent(rig)
    assert set(rig.placement.allocations()) == {S1}
    rig.placement.before = None
    assert hosts(select(manager, spec(extra_specs), [S1, S2], operations=asking)) == [['gpu1'], ['gpu1']]
    assert set(rig.placement.allocations()) == {S1, S2}
    # What was found counts like what was claimed, until the host counts it.
    assert sum(sizes(manager)) == 2


@both_ways
def test_silence_gives_back_what_no_operation_waits_for(rig, extra_specs):
    """It has no flow that could."""
    trait(rig, rig.host('gpu1'))

    def before(method, path):
        if (method, path) == ('PUT', f'/allocations/{S2}'):
            raise rig.placement.broken()

    rig.placement.before = before
    with pytest.raises(errors.Unanswered, match='Placement'):
        select(rig.manager(), spec(extra_specs), [S1, S2], operations=[uuid('ended'), operation(rig, S2)])
    assert rig.placement.allocations() == {}


@both_ways
def test_what_was_found_counts_where_it_is_and_is_no_alternate(rig, extra_specs):
    """The host that would be chosen now is another one."""
    for name, used in (('gpu1', 1000), ('gpu2', 2000)):
        trait(rig, rig.host(name, memory_mb_used=used))
    select(rig.manager(), spec(extra_specs), [S1])
    with rig.by_name['cell1'].write() as connection:
        connection.execute(
            ComputeNode.__table__.update()
            .where(ComputeNode.host == 'gpu1')
            .values(memory_mb_used=50000, updated_at=engine.db_utcnow())
        )
    manager = rig.manager()
    assert hosts(select(manager, spec(extra_specs), [S1])) == [['gpu1', 'gpu2']]
    table = manager._snapshot.table
    assert {name: int(table['num_instances'][table.places.of(uuid(name))]) for name in ('gpu1', 'gpu2')} == {
        'gpu1': 1,
        'gpu2': 0,
    }


def test_silence_of_a_cell_gives_nothing_back(rig, tmp_path):
    """The second server might have found its host in the cell that is silent."""
    rig.host('gpu1', (A,))
    rig.host('gpu2', (B,), cell='cell2')
    break_cell(rig, 'cell2', tmp_path)
    with pytest.raises(errors.Unanswered, match='cell2'):
        select(rig.manager(), spec(gpus=(1,)), [S1, S2])
    assert set(rig.placement.allocations()) == {S1}


@both_ways
def test_a_refusal_gives_back_whatever_was_claimed_in_all_its_tries(rig, monkeypatch, extra_specs):
    """If a host reports again before the refusal, the choice is made anew. When that is refused too, the claims of
    both tries are given back."""
    monkeypatch.setattr('kilonova.scheduler.hosts.cells.DOWN_EVERY', 3600)
    trait(rig, rig.host('gpu1', (A,)))
    trait(rig, rig.host('gpu2', (B,), service={'last_seen_up': dt.datetime(2026, 1, 1)}))
    manager = rig.manager()
    assert hosts(select(manager, spec(extra_specs), claim=False)) == [['gpu1']]
    with rig.by_name['cell1'].write() as connection:
        connection.execute(
            Service.__table__.update().values(last_seen_up=engine.db_utcnow(), updated_at=Service.updated_at)
        )
    rig.placement.requests.clear()
    with pytest.raises(errors.NoValidHost):
        select(manager, spec(extra_specs, gpus=(1,)), [S1, S2, S3])
    # Only that host could have taken it.
    assert ('PUT', f'/allocations/{S2}') in sent(rig)
    assert rig.placement.allocations() == {}


@both_ways
def test_an_allocation_of_something_else_ends_the_whole_request(rig, extra_specs):
    """If a server has an allocation that this request did not make, the request is refused. The claims of the
    earlier servers are given back, and that allocation stays."""
    root = rig.host('gpu1')
    trait(rig, root)
    rig.placement.client.claim(S2, {root: {'resources': {'VCPU': 1}}}, project_id='p', user_id='u')
    with pytest.raises(errors.NoValidHost, match=S2):
        select(rig.manager(), spec(extra_specs), [S1, S2])
    assert rig.placement.allocations() == {S2: {'gpu1': {'VCPU': 1}}}


def generation(rig, server):
    return rig.placement.client.get_allocations(server).get('consumer_generation')


@both_ways
def test_what_was_found_is_written_again_and_never_given_back(rig, extra_specs):
    """The second server finds no host: the first one's allocation is an earlier select's."""
    trait(rig, rig.host('gpu1', (A,)))
    select(rig.manager(), spec(extra_specs, gpus=(1,)), [S1])
    before = held(rig, S1)
    assert generation(rig, S1) == 1
    with pytest.raises(errors.NoValidHost):
        select(rig.manager(), spec(extra_specs, gpus=(1,)), [S1, S2])
    assert held(rig, S1) == before
    assert generation(rig, S1) > 1


def test_a_first_select_writes_once(rig):
    rig.host('gpu1', (A,))
    rig.placement.requests.clear()
    select(rig.manager(), spec(gpus=(1,)), [S1], operations=[operation(rig, S1)])
    assert [method for method, path in rig.placement.requests if path == f'/allocations/{S1}'] == ['PUT']
    assert generation(rig, S1) == 1


@both_ways
@pytest.mark.parametrize('anew', [False, True], ids=['taken up', 'claimed anew'])
def test_what_others_wrote_since_is_not_given_back(rig, extra_specs, anew):
    """Between the claim and its end somebody else takes the allocation up, which looks the same afterwards; or removes
    it and claims something else, which has the generation of a first claim."""
    root = rig.host('gpu1', (A,))
    trait(rig, root)

    def after(method, path):
        if (method, path) == ('PUT', f'/allocations/{S1}'):
            rig.placement.after = None
            client, owner = rig.placement.client, {'project_id': 'demo', 'user_id': 'alice'}
            now = client.get_allocations(S1)
            if anew:
                client.delete_allocations(S1)
                client.claim(S1, {root: {'resources': {'VCPU': 1}}}, **owner)
            else:
                client.claim(S1, now['allocations'], **owner, generation=now['consumer_generation'])

    rig.placement.after = after
    with pytest.raises(errors.Cancelled):
        select(rig.manager(), spec(extra_specs, gpus=(1,)), operations=[uuid('an operation that ended')])
    assert set(held(rig, S1)) == ({'gpu1'} if anew else {'gpu1', f'gpu1_{A}'})


def test_what_others_write_while_it_is_given_back_stays(rig):
    """Read as ours, then written by somebody, then our removal: the generation refuses it."""
    rig.host('gpu1', (A,))
    client, seen = rig.placement.client, []

    def before(method, path):
        if path != f'/allocations/{S1}':
            return
        seen.append(method)
        if seen == ['PUT', 'GET', 'PUT']:
            now = client.get_allocations(S1)
            client.claim(
                S1, now['allocations'], project_id='demo', user_id='alice', generation=now['consumer_generation']
            )

    rig.placement.before = before
    with pytest.raises(errors.NoValidHost):
        select(rig.manager(), spec(gpus=(1,)), [S1, S2])
    assert seen[:3] == ['PUT', 'GET', 'PUT']
    assert f'gpu1_{A}' in held(rig, S1)


def test_giving_back_is_tried_again_while_placement_is_silent(rig, monkeypatch):
    rig.host('gpu1')
    monkeypatch.setattr('kilonova.scheduler.placement.claims.DROP_PAUSES', (0.0, 0.0))
    puts = []

    def before(method, path):
        if method == 'PUT':
            puts.append(path)
            if len(puts) in (2, 3):
                raise rig.placement.broken()

    rig.placement.before = before
    with pytest.raises(errors.Cancelled):
        select(rig.manager(), spec(), operations=[uuid('ended')])
    assert len(puts) == 4 and rig.placement.allocations() == {}


def test_what_was_found_may_change_while_it_is_taken_up(rig):
    """Written between the look and our write: read again, and taken up as it is then."""
    rig.host('gpu1', (A, B))
    select(rig.manager(), spec(gpus=(1,)), [S1])
    client, seen = rig.placement.client, []
    providers = {row['name']: row['uuid'] for row in client.list_providers()}
    other = f'gpu1_{A}' if f'gpu1_{B}' in held(rig, S1) else f'gpu1_{B}'

    def before(method, path):
        if path != f'/allocations/{S1}':
            return
        seen.append(method)
        if seen == ['PUT', 'GET', 'PUT']:
            now = client.get_allocations(S1)
            moved = {root: given for root, given in now['allocations'].items() if root == uuid('gpu1')}
            moved[providers[other]] = {'resources': {GPU: 1}}
            client.claim(S1, moved, project_id='demo', user_id='alice', generation=now['consumer_generation'])

    rig.placement.before = before
    found = select(rig.manager(), spec(gpus=(1,)), [S1])
    assert other in held(rig, S1) and generation(rig, S1) == 3
    assert json.loads(found[0][0].allocation_request)['mappings'][f'{REQUEST}-0'] == [providers[other]]


def test_what_was_found_stands_though_its_host_offers_less_by_now(rig):
    """It can't be written again, and is that of this request: its host says whether it can still have the server."""
    root, client = rig.host('gpu1', (A,)), rig.placement.client
    select(rig.manager(), spec(gpus=(1,)), [S1])
    inventory, number = client.get_inventory(root)
    inventory['VCPU']['max_unit'] = 4
    client.set_inventory(root, number, inventory)
    found = select(rig.manager(), spec(gpus=(1,)), [S1])
    assert hosts(found) == [['gpu1']]
    assert f'gpu1_{A}' in held(rig, S1) and generation(rig, S1) == 1


def test_placement_that_does_not_answer(rig):
    rig.host('gpu1')
    manager = rig.manager()

    def refuse(method, path):
        raise rig.placement.broken()

    rig.placement.before = refuse
    with pytest.raises(errors.Unanswered):
        select(manager, spec())


def test_eight_devices_of_eight(rig):
    """Placement itself never finds them."""
    addresses = tuple(f'0000:{number:02x}:00.0' for number in range(8))
    rig.host('gpu1', addresses)
    rig.host('gpu2', addresses[:7])
    found = select(rig.manager(), spec(gpus=(8,)))
    assert hosts(found) == [['gpu1']]
    assert len(json.loads(found[0][0].allocation_request)['mappings']) == 9
    assert {name for name in held(rig, S1) if '_' in name} == {f'gpu1_{address}' for address in addresses}


def test_many_selects_at_once_share_nothing(rig):
    """Twelve servers, four devices: four get one, nobody two."""
    rig.host('gpu1', (A, B))
    rig.host('gpu2', (A, B))
    manager = rig.manager()
    outcome = {}

    def boot(server):
        try:
            outcome[server] = hosts(select(manager, spec(gpus=(1,)), [server]))[0][0]
        except errors.NoValidHost as error:
            outcome[server] = str(error)

    threads = [threading.Thread(target=boot, args=(uuid(f'racer {number}'),)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = sorted(server for server, host in outcome.items() if host in ('gpu1', 'gpu2'))
    assert len(won) == 4
    assert sorted(rig.placement.allocations()) == won
    assert all(host.startswith('No valid host was found.') for server, host in outcome.items() if server not in won)


@both_ways
@pytest.mark.parametrize('size', [1, 3])
def test_a_subset_of_the_best_hosts_is_drawn_from(rig, extra_specs, size):
    """With host_subset_size the host is drawn from the best ones, whether the candidates are read from our rows or
    from Placement."""
    for name, used in (('best', 0), ('good', 20000), ('fair', 40000), ('worst', 60000)):
        trait(rig, rig.host(name, memory_mb_used=used))
    manager = rig.manager(filter_scheduler__host_subset_size=size)
    small = {'vcpus': 1, 'memory_mb': 64, 'root_gb': 1}
    drawn = {
        hosts(select(manager, spec(extra_specs, flavor_values=small), [uuid(f'drawn {number}')]))[0][0]
        for number in range(12 * size)
    }
    assert drawn == set(('best', 'good', 'fair')[:size])


def test_equal_servers_are_spread_before_any_host_reports(rig):
    """What was just decided counts for the next request, though the hosts' rows stay as they were. Two schedulers don't
    see each other's choices, and are even all the same."""
    names = [f'gpu{number}' for number in range(1, 6)]
    for name in names:
        rig.host(name)
    managers = [rig.manager(), rig.manager()]
    small = {'vcpus': 1, 'memory_mb': 64, 'root_gb': 1}
    chosen = [
        hosts(select(managers[number % 2], spec(flavor_values=small), [uuid(f'equal {number}')]))[0][0]
        for number in range(20)
    ]
    assert {name: chosen.count(name) for name in names} == dict.fromkeys(names, 4)


@pytest.mark.parametrize('mapped', [False, True])
@pytest.mark.parametrize('extra_specs', [{}, {'trait:COMPUTE_NODE': 'required'}])
def test_devices_that_placement_does_not_count_are_given_away_once(rig, mapped, extra_specs):
    """Our own view and Placement's candidates (a trait) alike."""
    for name in ('gpu1', 'gpu2', 'gpu3'):
        root = rig.host(name, (A,), mapped=mapped)
        traits, generation = rig.placement.client.get_traits(root)
        rig.placement.client.set_traits(root, generation, traits | {'COMPUTE_NODE'})
    manager = rig.manager(filter_scheduler__pci_in_placement=False)
    servers = [uuid(f'server {number}') for number in range(5)]
    rig.asked_for(*servers)
    found = [hosts(select(manager, spec(extra_specs, gpus=(1,)), [server]))[0][0] for server in servers[:3]]
    assert sorted(found) == ['gpu1', 'gpu2', 'gpu3']
    for server in servers[3:]:
        with pytest.raises(errors.NoValidHost) as caught:
            select(manager, spec(extra_specs, gpus=(1,)), [server])
        assert str(caught.value) == (
            'No valid host was found. 3 hosts considered: 3 have fewer than 1 free gpu (best: 0 free).'
        )
    manager._snapshot.table.reservations.give_back(servers[0])
    assert hosts(select(manager, spec(extra_specs, gpus=(1,)), [servers[4]]))[0][0] == found[0]


def kinds_of_devices(*counts):
    """A request of so many devices of each product 0001, 0002, …; with a trait, so that Placement is asked."""
    request = spec({'trait:COMPUTE_NODE': 'required'}, gpus=counts)
    for number, one in enumerate(request.pci_requests.requests, 1):
        one.spec = [{'vendor_id': '10de', 'product_id': f'{number:04}'}]
    return request


def host_of_kinds(rig, name, *counts):
    """A host with so many devices of each."""
    products = {f'{kind}.{number}': f'{kind:04}' for kind, count in enumerate(counts, 1) for number in range(count)}
    root = rig.host(name, tuple(products), products=products)
    traits, generation = rig.placement.client.get_traits(root)
    rig.placement.client.set_traits(root, generation, traits | {'COMPUTE_NODE'})


@pytest.mark.parametrize('counts', [(2, 2, 2, 2), (1,) * 8, (3, 1, 1), (1, 1, 2)])
def test_many_kinds_of_devices_are_asked_as_one(rig, counts):
    """Placement works all combinations out: eight kinds of eight devices are sixteen million a host."""
    host_of_kinds(rig, 'few', *counts[:-1], counts[-1] - 1)
    host_of_kinds(rig, 'enough', *counts)
    host_of_kinds(rig, 'many', *(8 for _ in counts))
    manager = rig.manager()
    rig.placement.requests.clear()
    found = [hosts(select(manager, kinds_of_devices(*counts), [server]))[0] for server in (S1, S2)]
    assert sorted(found[0]) == ['enough', 'many']
    questions = [path for _, path in rig.placement.requests if path.startswith('/allocation_candidates')]
    assert [path.count('&resources') for path in questions] == [2, 2]
    for server, (host, *_) in zip((S1, S2), found, strict=True):
        given = {name: amounts for name, amounts in held(rig, server).items() if name != host}
        assert sorted(name.split('_')[1].split('.')[0] for name in given) == sorted(
            str(kind) for kind, count in enumerate(counts, 1) for _ in range(count)
        )
        assert all(sum(amounts.values()) == 1 for amounts in given.values())


def test_the_last_devices_of_many_kinds_are_given_once(rig):
    host_of_kinds(rig, 'gpu1', 2, 2, 2)
    manager = rig.manager()
    for server in (S1, S2):
        select(manager, kinds_of_devices(1, 1, 1), [server])
    with pytest.raises(errors.NoValidHost, match='fewer than 1 free'):
        select(manager, kinds_of_devices(1, 1, 1), [S3])
    assert S3 not in rig.placement.allocations()


def test_hosts_of_all_kinds_far_down_the_list(rig):
    """What Placement is asked for, the first so many hosts have."""
    for number in range(5):
        host_of_kinds(rig, f'gpu{number}', 1, 0, 1)
    host_of_kinds(rig, 'gpu5', 1, 1, 1)
    manager = rig.manager(scheduler__max_placement_results=1)
    assert hosts(select(manager, kinds_of_devices(1, 1, 1), [S1])) == [['gpu5']]


# Hosts by name


def test_a_forced_host_is_asked_in_its_tree(rig):
    rig.host('gpu1')
    rig.host('gpu2')
    manager = rig.manager()
    rig.placement.requests.clear()
    assert hosts(select(manager, spec(force_hosts=['GPU2']))) == [['gpu2']]
    assert f'in_tree={uuid("gpu2")}' in rig.placement.requests[0][1]


def questions(rig):
    return [
        dict(parse.parse_qsl(parse.urlsplit(path).query))
        for _, path in rig.placement.requests
        if path.startswith('/allocation_candidates')
    ]


def test_how_much_of_placements_answer_is_asked_for(rig):
    """One node by its tree; of several hosts by name, which may be far down the list, all."""
    for name in ('gpu1', 'gpu2'):
        rig.host(name)
    manager = rig.manager(scheduler__max_placement_results=7)
    rig.placement.requests.clear()
    here = objects.Destination(host='gpu1', node='gpu1')
    for request in (
        spec(BY_PLACEMENT),
        spec(force_hosts=['gpu1', 'gpu2']),
        spec(force_nodes=['gpu2']),
        spec(requested_destination=here),
        spec(requested_destination=here, force_hosts=['gpu2']),
        spec(requested_destination=objects.Destination(host='gpu2', node=None)),
        spec(requested_destination=objects.Destination(host='gpu1', node='gpu2')),
        spec(force_hosts=['x']),
        spec(requested_destination=objects.Destination(node='gpu2')),
        spec(requested_destination=objects.Destination(host='gpu2')),
        spec(requested_destination=objects.Destination(allow_cross_cell_move=True)),
        spec(requested_destination=objects.Destination(cell=objects.CellMapping(uuid=rig.by_name['cell1'].cell.uuid))),
    ):
        with contextlib.suppress(errors.NoValidHost):
            select(manager, request, claim=False)
    assert [(one.get('limit'), one.get('in_tree')) for one in questions(rig)] == [
        ('7', None),
        (None, None),
        ('7', uuid('gpu2')),
        ('7', uuid('gpu1')),
        ('7', uuid('gpu2')),
        ('7', uuid('gpu2')),
        ('7', None),
        ('7', None),
        ('7', uuid('gpu2')),
        ('7', uuid('gpu2')),
        ('7', None),
        (None, None),
    ]


@pytest.mark.parametrize('full', [{'vcpus_used': 255}, {'memory_mb_used': 262000}, {'local_gb_used': 999}])
def test_a_host_that_is_full_by_its_row_is_not_asked_about(rig, full):
    """Placement doesn't know yet what the row says."""
    rig.host('gpu1', **full)
    rig.host('gpu2', memory_mb_used=1000)
    manager = rig.manager(filter_scheduler__ram_weight_multiplier=-1.0 if 'memory_mb_used' in full else 1.0)
    rig.placement.requests.clear()
    assert hosts(select(manager, spec(), return_alternates=False)) == [['gpu2']]
    assert sent(rig) == [('GET', f'/resource_providers/{uuid("gpu2")}/traits'), ('PUT', f'/allocations/{S1}')]


def test_hosts_that_report_no_dedicated_cpus_come_after_the_others():
    """Those that Placement offered already, and those that pin, aren't taken from the second answer."""

    def request(root):
        return {'allocations': {root: {'resources': {'VCPU': 1}}}, 'mappings': {'': [root]}}

    def summary(root, *classes):
        return {'root_provider_uuid': root, 'resources': {name: {'capacity': 9, 'used': 0} for name in classes}}

    answer = CandidateResponse(
        {'allocation_requests': [request('known')], 'provider_summaries': {'known': summary('known', 'A')}},
        CandidateQuery(),
        {},
        0.0,
    )
    more = {
        'allocation_requests': [request(root) for root in ('known', 'pins', 'plain')],
        'provider_summaries': {
            'known': summary('known', 'VCPU'),
            'pins': summary('pins', 'VCPU', 'PCPU'),
            'plain': summary('plain', 'VCPU'),
        },
    }
    asked = SimpleNamespace(_placement=SimpleNamespace(allocation_candidates=lambda pairs: more))
    manager_module._Request._add_fallback(asked, answer, CandidateQuery())
    assert answer.found['allocation_requests'] == [request('known'), request('plain')]
    assert answer.late == {'plain'} and answer.summaries.keys() == {'known', 'pins', 'plain'}
    assert answer.summaries['known'] == summary('known', 'A')


def test_a_requested_destination(rig):
    rig.host('gpu1')
    rig.host('gpu2')
    request = spec(requested_destination=objects.Destination(host='gpu2', node=None))
    assert hosts(select(rig.manager(), request)) == [['gpu2']]


def test_a_host_that_there_is_not(rig, caplog):
    caplog.set_level(logging.INFO)
    rig.host('gpu1')
    with pytest.raises(errors.NoValidHost):
        select(rig.manager(), spec(force_hosts=['no-such']))
    assert "not matching 'force_hosts' value of 'no-such'" in caplog.text


def test_hints_of_other_servers_read_the_hosts_servers_once(rig):
    rig.host('gpu1')
    rig.host('gpu2')
    other = rig.server('other', 'gpu1')
    assert hosts(select(rig.manager(), spec(scheduler_hints={'different_host': [other]})))[0] == ['gpu2']
    assert hosts(select(rig.manager(), spec(scheduler_hints={'same_host': [other]}), [S2]))[0] == ['gpu1']


def test_a_zone_is_asked_for_by_its_aggregates(rig):
    root = rig.host('gpu1')
    rig.host('gpu2')
    aggregate = rig.aggregate('gpu1', availability_zone='east')
    manager = rig.manager()
    rig.placement.requests.clear()
    # Nobody told Placement which host is in the aggregate.
    with pytest.raises(errors.NoValidHost):
        select(manager, spec(availability_zone='east'))
    assert f'member_of=in:{aggregate}' in rig.placement.requests[0][1]
    assert {one[0].availability_zone for one in select(manager, spec(force_nodes=['gpu1']), [S2])} == {'east'}
    assert root == uuid('gpu1')


def test_our_own_view_asks_placement_about_hosts_of_the_zone_alone(rig):
    """Of those that are enabled, too: gpu1 and gpu3 would be better."""
    for number, name in enumerate(('gpu1', 'gpu2', 'gpu3'), 1):
        rig.host(name, memory_mb_used=1000 * number, service={'disabled': name == 'gpu1'})
    rig.host('gpu0')
    aggregate = rig.aggregate('gpu2', availability_zone='east')
    rig.placement.client.set_member(uuid('gpu2'), aggregate, True)
    manager = rig.manager()
    manager.filters.clear()
    rig.placement.requests.clear()
    assert hosts(select(manager, spec(availability_zone='east'), [S1, S2], return_alternates=False)) == [['gpu2']] * 2
    asked = [path for method, path in rig.placement.requests if method == 'GET']
    assert asked and all(uuid('gpu2') in path for path in asked)
    rig.placement.requests.clear()
    assert hosts(select(manager, spec(), [S3], return_alternates=False)) == [['gpu0']]


def test_an_unknown_zone(rig):
    rig.host('gpu1')
    with pytest.raises(errors.NoValidHost, match='mars'):
        select(rig.manager(), spec(availability_zone='mars'))


@pytest.mark.parametrize('node', ['gpu2', None])
def test_a_rebuild_asks_no_placement(rig, node):
    """A select for a rebuild returns the server's host without an allocation request, sends nothing to Placement,
    and sends its notifications."""
    rig.host('gpu1')
    rig.host('gpu2')
    manager, told = rig.manager(), []
    manager.notify = SimpleNamespace(emit=lambda ctxt, event, request_spec: told.append((event, request_spec)))
    rig.placement.requests.clear()
    request = spec(
        scheduler_hints={'_nova_check_type': ['rebuild']},
        requested_destination=objects.Destination(host='gpu2', node=node),
    )
    found = select(manager, request)
    assert hosts(found) == [['gpu2']]
    assert found[0][0].allocation_request is None
    assert rig.placement.requests == []
    assert told == [(f'scheduler.select_destinations.{when}', request) for when in ('start', 'end')]


def test_a_rebuild_on_a_host_that_is_gone_is_refused(rig):
    rig.host('gpu1')
    request = spec(
        scheduler_hints={'_nova_check_type': ['rebuild']},
        requested_destination=objects.Destination(host='gpu2', node='gpu2'),
    )
    with pytest.raises(errors.NoValidHost, match='There are not enough hosts available'):
        select(rig.manager(), request)


# Cells, services, nodes


def test_two_cells_in_one_request(rig):
    """The servers of one request may get hosts of two cells. Each has alternates of its own cell only."""
    rig.host('gpu1')
    rig.host('gpu2', cell='cell2')
    found = select(rig.manager(), spec(flavor_values={'vcpus': 40}), [S1, S2])
    assert {(one[0].service_host, one[0].cell_uuid) for one in found} == {
        ('gpu1', rig.by_name['cell1'].cell.uuid),
        ('gpu2', rig.by_name['cell2'].cell.uuid),
    }
    assert [len(one) for one in found] == [1, 1]


class Down:
    """A cell whose database can't be reached."""

    def __init__(self, database, path):
        self.name, self.cell = database.name, database.cell
        self._database = engine.Database(f'sqlite:///{path}/no/such/directory/x.sqlite', 'down')

    def read(self):
        return self._database.read()


def break_cell(rig, name, path):
    broken = [Down(database, path) if database.name == name else database for database in rig.cells.enabled()]
    rig.cells.enabled = lambda: broken


def test_a_cell_that_is_down_costs_its_hosts(rig, tmp_path, caplog):
    """While the database of a cell does not answer, hosts of the other cells are chosen, and the log names the cell."""
    rig.host('gpu1')
    rig.host('gpu2', cell='cell2')
    break_cell(rig, 'cell2', tmp_path)
    assert hosts(select(rig.manager(), spec())) == [['gpu1']]
    assert 'Cell cell2 does not answer' in caplog.text


def test_silence_of_all_cells_is_no_refusal(rig, tmp_path):
    for name in ('cell1', 'cell2'):
        break_cell(rig, name, tmp_path)
    with pytest.raises(errors.Unanswered, match='cells cell1, cell2 do not respond'):
        select(rig.manager(), spec())


def test_silence_of_all_cells_is_known_after_the_hosts_are_read(rig, tmp_path):
    """Also of hosts that were read before: nothing is counted or chosen from what was true once."""
    rig.host('gpu1')
    rig.host('gpu2', cell='cell2')
    manager = rig.manager()
    assert seen(manager) == ['gpu1', 'gpu2']
    break_cell(rig, 'cell2', tmp_path)
    assert seen(manager) == ['gpu1']
    break_cell(rig, 'cell1', tmp_path)
    with pytest.raises(errors.Unanswered, match='cells cell1, cell2 do not respond'):
        seen(manager)


class Never(filters.BaseHostFilter):
    RUN_ON_REBUILD = True

    def host_passes(self, host_state, spec_obj):
        return False


@pytest.mark.parametrize('known', [False, True])
@pytest.mark.parametrize(('host', 'refused'), [('gpu1', True), ('gpu2', False)])
def test_a_rebuild_waits_for_the_cell_of_its_host_and_for_no_other(rig, tmp_path, known, host, refused):
    """The host of a silent cell is not gone. A host that a filter rejects in a cell that answers is refused at once."""
    rig.host('gpu1')
    rig.host('gpu2', cell='cell2')
    manager = rig.manager()
    request = spec(
        scheduler_hints={'_nova_check_type': ['rebuild']},
        requested_destination=objects.Destination(host=host, node=host),
    )
    if known:
        assert hosts(select(manager, request)) == [[host]]
    break_cell(rig, 'cell2', tmp_path)
    if refused:
        manager._filters = [Never()]
    with pytest.raises(
        errors.NoValidHost if refused else errors.Unanswered, match='not enough' if refused else 'cell2'
    ):
        select(manager, request)


def test_an_allocation_in_a_cell_that_is_silent_is_waited_for(rig, tmp_path):
    """An earlier select claimed there; another host would do, but the server has its place."""
    rig.host('gpu1')
    rig.host('gpu2', cell='cell2', memory_mb_used=1000)
    assert hosts(select(rig.manager(), spec(), return_alternates=False)) == [['gpu1']]
    break_cell(rig, 'cell1', tmp_path)
    before = rig.placement.allocations()
    with pytest.raises(errors.Unanswered, match='cell1'):
        select(rig.manager(), spec())
    assert rig.placement.allocations() == before


def test_silence_of_the_only_hosts_is_no_refusal(rig, tmp_path):
    """operations.md rule 16"""
    rig.host('gpu2', cell='cell2')
    break_cell(rig, 'cell2', tmp_path)
    with pytest.raises(errors.Unanswered, match='cell2'):
        select(rig.manager(), spec())
    assert rig.placement.allocations() == {}


def test_a_node_without_service_is_left_out(rig, caplog):
    """A compute node without a service record is left out, and the log says so."""
    rig.host('gpu1', service={})
    with pytest.raises(errors.NoValidHost):
        select(rig.manager(), spec())
    assert 'No compute service record found for host gpu1' in caplog.text


def test_aggregates_are_read_again_when_one_changed(rig):
    """A request sees the aggregates as they are when it arrives."""
    rig.host('gpu1')
    rig.host('gpu2')
    manager = rig.manager()

    def zones():
        found = select(manager, spec(), claim=False)
        return {one.service_host: one.availability_zone for one in found[0]}

    def write(act, *args):
        with rig.databases.api().write() as connection:
            return act(connection, *args)

    assert zones() == {'gpu1': None, 'gpu2': None}
    made = write(aggregates.create, 'one', {'availability_zone': 'east'})['id']
    assert zones() == {'gpu1': None, 'gpu2': None}
    write(aggregates.add_host, made, 'gpu1')
    assert zones() == {'gpu1': 'east', 'gpu2': None}
    write(aggregates.set_metadata, made, {'availability_zone': 'west'})
    assert zones() == {'gpu1': 'west', 'gpu2': None}
    write(aggregates.add_host, made, 'gpu2')
    write(aggregates.remove_host, 'gpu1', made)
    assert zones() == {'gpu1': None, 'gpu2': 'west'}
    write(aggregates.destroy, made)
    assert zones() == {'gpu1': None, 'gpu2': None}


def test_aggregates_that_were_written_a_moment_ago_are_read_again(rig):
    """Two writes within a moment may have one stamp; of those before nothing is asked."""
    rig.host('gpu1')
    rig.aggregate('gpu1', rack='1')
    long_ago, manager = dt.datetime(2026, 1, 1), rig.manager()

    def write(young, rack):
        with rig.databases.api().write() as connection:
            for model in (Aggregate, AggregateHost, AggregateMetadata):
                now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
                connection.execute(
                    model.__table__.update().values(
                        created_at=long_ago, updated_at=now if young and model is Aggregate else long_ago
                    )
                )
            connection.execute(
                AggregateMetadata.__table__.update().values(value=rack, updated_at=AggregateMetadata.updated_at)
            )

    def rack():
        manager._snapshot.aggregates.refresh()
        return manager._snapshot.aggregates.rows[0]['metadata']['rack']

    write(True, '1')
    assert rack() == '1'
    with rig.databases.api().write() as connection:
        connection.execute(
            AggregateMetadata.__table__.update().values(value='2', updated_at=AggregateMetadata.updated_at)
        )
    assert rack() == '2'
    write(False, '3')
    assert rack() == '3'
    with rig.databases.api().write() as connection:
        connection.execute(
            AggregateMetadata.__table__.update().values(value='4', updated_at=AggregateMetadata.updated_at)
        )
    assert rack() == '3'


def test_a_node_that_went_is_told_once(rig, caplog):
    """A compute node that was deleted is no longer chosen, and the log says so once."""
    caplog.set_level(logging.INFO)
    rig.host('gpu1')
    manager = rig.manager()
    select(manager, spec(), claim=False)
    with rig.by_name['cell1'].write() as connection:
        connection.execute(ComputeNode.__table__.update().values(deleted=1))
    for _ in range(2):
        with pytest.raises(errors.NoValidHost):
            select(manager, spec())
    assert caplog.text.count('Removing dead compute node gpu1:gpu1 from scheduler') == 1


def seen(manager):
    """The hosts that get servers, as they were read now."""
    snapshot = manager._snapshot
    snapshot.refresh()
    usable = snapshot.table.usable(snapshot.cells.uuids())
    return sorted(row['host'] for place, row in snapshot.table.nodes() if usable[place])


def written(rig, cell='cell1', host='gpu1', **values):
    with rig.by_name[cell].write() as connection:
        connection.execute(
            ComputeNode.__table__.update()
            .where(ComputeNode.host == host)
            .values(updated_at=engine.db_utcnow(), **values)
        )


def test_hosts_of_a_cell_come_and_go_with_it(rig):
    rig.host('gpu1')
    rig.host('gpu2', cell='cell2')
    manager, enabled = rig.manager(), rig.cells.enabled()
    assert seen(manager) == ['gpu1', 'gpu2']
    rig.cells.enabled = lambda: [one for one in enabled if one.name == 'cell1']
    assert seen(manager) == ['gpu1']
    assert [row['host'] for _, row in manager._snapshot.table.nodes()] == ['gpu1']
    rig.cells.enabled = lambda: enabled
    assert seen(manager) == ['gpu1', 'gpu2']


def test_what_was_missed_is_read_with_all_again(rig, monkeypatch):
    for name in ('gpu1', 'gpu2'):
        rig.host(name)
    manager = rig.manager()
    assert seen(manager) == ['gpu1', 'gpu2']
    with rig.by_name['cell1'].write() as connection:
        connection.execute(ComputeNode.__table__.delete().where(ComputeNode.host == 'gpu1'))
    # Without a stamp nobody sees it.
    assert seen(manager) == ['gpu1', 'gpu2']
    monkeypatch.setattr(cells, 'RELOAD_EVERY', -1.0)
    assert seen(manager) == ['gpu2']


def test_two_writes_of_one_moment_are_both_read(rig, monkeypatch):
    """A stamp of this moment may be given once more."""
    monkeypatch.setattr(cells, 'UNSETTLED', 3600.0)
    rig.host('gpu1')
    manager = rig.manager()
    written(rig, memory_mb_used=1)
    place = 0
    for used in (1, 2, 3):
        with rig.by_name['cell1'].write() as connection:
            connection.execute(
                ComputeNode.__table__.update().values(memory_mb_used=used, updated_at=ComputeNode.updated_at)
            )
        assert seen(manager) == ['gpu1']
        assert manager._snapshot.table.row(place)['memory_mb_used'] == used


def test_a_host_without_a_mapping_is_told_once(rig, caplog):
    for name in ('gpu1', 'gpu2'):
        rig.host(name)
    written(rig, mapped=0)
    manager = rig.manager()
    for used in (1, 2):
        assert seen(manager) == ['gpu2']
        written(rig, mapped=0, vcpus_used=used)
    assert caplog.text.count('No host-to-cell mapping found for host gpu1') == 1
    written(rig, mapped=1)
    assert seen(manager) == ['gpu1', 'gpu2']
    written(rig, mapped=0)
    assert seen(manager) == ['gpu2']
    assert caplog.text.count('No host-to-cell mapping found for host gpu1') == 2


def test_a_host_whose_row_makes_no_sense_is_left_out(rig, caplog):
    for name in ('gpu1', 'gpu2', 'gpu3'):
        rig.host(name)
    manager = rig.manager()
    assert seen(manager) == ['gpu1', 'gpu2', 'gpu3']
    written(rig, host='gpu2', stats='{no json')
    assert seen(manager) == ['gpu1', 'gpu3']
    assert 'The record of compute node gpu2:gpu2 cannot be read, so the node gets no servers' in caplog.text
    written(rig, host='gpu2', stats='{}')
    assert seen(manager) == ['gpu1', 'gpu2', 'gpu3']


def test_a_disabled_host_is_no_candidate(rig):
    """A host that is disabled in Placement is not chosen, and the refusal counts it as disabled."""
    root = rig.host('gpu1')
    rig.placement.client.set_host_disabled(root, True)
    with pytest.raises(errors.NoValidHost, match='1 host considered: 1 disabled'):
        select(rig.manager(), spec())


def test_traits_of_a_host_are_believed_for_some_seconds(rig, monkeypatch):
    """A yes; a no is asked again at once."""
    root = rig.host('gpu1')
    manager = rig.manager()
    rig.placement.client.set_host_disabled(root, True)
    with pytest.raises(errors.NoValidHost):
        select(manager, spec())
    rig.placement.client.set_host_disabled(root, False)
    assert hosts(select(manager, spec()))[0] == ['gpu1']
    rig.placement.client.set_host_disabled(root, True)
    assert hosts(select(manager, spec(), [S2]))[0] == ['gpu1']
    now = time.monotonic()
    monkeypatch.setattr(
        'kilonova.scheduler.placement.local_candidates.time.monotonic', lambda: now + local_candidates.BELIEVED
    )
    with pytest.raises(errors.NoValidHost, match='1 disabled'):
        select(manager, spec(), [uuid('third')])


def test_no_more_hosts_are_believed_than_the_bound(rig, monkeypatch):
    """Those whose time is over go."""
    monkeypatch.setattr(local_candidates, 'MOST_BELIEVED', 3)
    monkeypatch.setattr(local_candidates, 'BELIEVED', -1.0)
    roots = [rig.host(f'gpu{number}') for number in range(8)]
    qualified = local_candidates.TraitCache(rig.placement.client)
    for root in roots:
        assert qualified.has(root, CandidateQuery())
    assert len(qualified._until) <= 3


def test_a_host_that_is_heard_again_is_asked_about_before_a_refusal(rig, monkeypatch):
    """Who is down is read from time to time; a refusal that rests on it reads it once more."""
    monkeypatch.setattr('kilonova.scheduler.hosts.cells.DOWN_EVERY', 3600)
    rig.host('gpu1', service={'last_seen_up': dt.datetime(2026, 1, 1)})
    manager = rig.manager()
    with pytest.raises(errors.NoValidHost, match='1 down'):
        select(manager, spec())
    with rig.by_name['cell1'].write() as connection:
        connection.execute(
            Service.__table__.update().values(last_seen_up=engine.db_utcnow(), updated_at=Service.updated_at)
        )
    assert hosts(select(manager, spec()))[0] == ['gpu1']


@pytest.mark.parametrize('ended', ['cell1', 'cell2'])
def test_a_server_that_ended_in_one_of_two_cells_is_enough(rig, monkeypatch, ended):
    monkeypatch.setattr('kilonova.scheduler.hosts.cells.DOWN_EVERY', 3600)
    other = {'cell1': 'cell2', 'cell2': 'cell1'}[ended]
    rig.host('gpu1', cell=ended)
    rig.host('gpu2', cell=other, service={'last_seen_up': dt.datetime(2026, 1, 1)})
    manager = rig.manager()
    assert hosts(select(manager, spec(), return_alternates=False)) == [['gpu1']]
    snapshot, read = manager._snapshot, []
    monkeypatch.setattr(snapshot, 'refresh', lambda: read.append(1))
    # Nobody asked for it: no cell has it, and none will.
    assert snapshot.outdated() and read == [1]
    assert not snapshot.outdated() and read == [1]


@pytest.mark.parametrize('silent', ['cell1', 'cell2'])
def test_before_a_refusal_the_cells_that_answer_are_asked(rig, monkeypatch, silent, caplog):
    monkeypatch.setattr('kilonova.scheduler.hosts.cells.DOWN_EVERY', 3600)
    for number in (1, 2):
        rig.host(
            f'gpu{number}',
            cell=f'cell{number}',
            service=dict.fromkeys(('last_seen_up', 'created_at', 'updated_at'), dt.datetime(2026, 1, 1)),
        )
    manager, real = rig.manager(), cells.reading
    with pytest.raises(errors.NoValidHost, match='2 down'):
        select(manager, spec())
    for cell in rig.by_name.values():
        with cell.write() as connection:
            connection.execute(
                Service.__table__.update().values(last_seen_up=engine.db_utcnow(), updated_at=Service.updated_at)
            )

    def reading(database):
        if database.name == silent:
            raise errors.Unanswered(who='the database', reason='it is gone')
        return real(database)

    monkeypatch.setattr('kilonova.scheduler.hosts.snapshot.reading', reading)
    assert hosts(select(manager, spec())) == [['gpu2' if silent == 'cell1' else 'gpu1']]
    assert f'Cell {silent} does not answer' in caplog.text


@pytest.mark.parametrize('how', [{'vm_state': 'error'}, {'deleted': 1}, None], ids=['failed', 'deleted', 'on the way'])
def test_a_boot_that_failed_is_forgotten_before_a_refusal(rig, how):
    """What was sent to a host counts there until the host counts it; one that failed, or was deleted before a cell had
    it, never will be."""
    rig.host('gpu1')
    manager, limit = rig.manager(), NumInstancesFilter()
    limit.conf = conf(filter_scheduler__max_instances_per_host=1)
    manager.filters.append(limit)
    rig.asked_for(S1)
    select(manager, spec())
    with pytest.raises(errors.NoValidHost, match='1 has the maximum number of servers'):
        select(manager, spec(), [S2])
    if how is not None:
        with rig.by_name['cell1'].write() as connection:
            connection.execute(Instance.__table__.insert(), {'uuid': S1, **how})
    with rig.databases.api().write() as connection:
        assert build_requests.destroy(connection, S1)
    rig.placement.client.delete_allocations(S1)
    assert hosts(select(manager, spec(), [S2])) == [['gpu1']]


def test_work_that_a_host_tells_of_is_not_counted_twice(rig):
    """A server that was sent counts until its host counts it, and with it what the host does besides."""
    rig.host('gpu1')
    manager, one = rig.manager(), IoOpsFilter()
    one.conf = conf(filter_scheduler__max_io_ops_per_host=3)
    manager.filters.append(one)

    def told(servers, under_way):
        """The host takes these servers, and says that so many are under way: one transaction, as a claim is."""
        with rig.by_name['cell1'].write() as connection:
            for server in servers:
                connection.execute(Instance.__table__.insert(), {'uuid': server, 'host': 'gpu1', 'node': 'gpu1'})
            connection.execute(
                ComputeNode.__table__.update().values(
                    stats=json.dumps({'io_workload': str(under_way)}),
                    current_workload=under_way,
                    running_vms=len(servers),
                    updated_at=engine.db_utcnow(),
                )
            )

    servers = [uuid(f'server {number}') for number in range(6)]
    rig.asked_for(*servers)
    select(manager, spec(), servers[:1])
    # It builds, and another server's image is made.
    told(servers[:1], 2)
    select(manager, spec(), servers[1:2])
    with pytest.raises(errors.NoValidHost):
        select(manager, spec(), servers[2:3])
    told(servers[1:2], 3)
    with pytest.raises(errors.NoValidHost):
        select(manager, spec(), servers[2:3])
    told((), 1)
    for server in servers[3:5]:
        select(manager, spec(), [server])
    with pytest.raises(errors.NoValidHost):
        select(manager, spec(), servers[5:])
    manager.stop()


def test_a_trial_has_as_many_alternates_as_a_choice(rig):
    for number in range(6):
        rig.host(f'gpu{number}')
    manager = rig.manager(scheduler__max_attempts=3)
    plan = manager.try_out(spec(), [S1], Trace(5))
    assert [len(one) for one in plan.alternates] == [2]
    assert [len(one) for one in select(manager, spec())] == [3]
    manager.stop()


def test_a_scheduler_that_stopped_leaves_no_thread(rig):
    before = set(threading.enumerate())
    rig.host('gpu1')
    manager = rig.manager()
    select(manager, spec())
    assert set(threading.enumerate()) > before
    manager.stop()
    assert set(threading.enumerate()) <= before
