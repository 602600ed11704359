"""What the scheduler decided is written down, off the request's path, and read again."""

from __future__ import annotations

import datetime as dt
import threading

import pytest

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.queries import decisions as rows
from kilonova.scheduler.explain import decisions
from kilonova.scheduler.explain.reasons import RefusalReport
from kilonova.scheduler.plan import Candidate, SelectionPlan
from tests.unit.scheduler.builders import GPU, conf, spec, state, uuid

CTXT = RequestContext(user_id='alice', project_id='demo', overwrite=False, request_id='req-1')
A, B = '0000:08:00.0', '0000:88:00.0'
S1, S2 = uuid('s1'), uuid('s2')


def kept(rig, which):
    with rig.databases.api().read() as connection:
        return rows.find(connection, which)


def flush(manager):
    """The statements that it took."""
    statements = []
    stop = engine.listen(lambda *event: statements.append(event[1]))
    manager._decisions.flush()
    stop()
    return [statement for statement in statements if statement != 'COMMIT']


def test_choices_of_a_request_in_one_statement(rig):
    rig.host('gpu1', (A,))
    rig.host('gpu2', (B,))
    rig.host('off', (A, B), service={'disabled': True})
    manager = rig.manager()
    manager.select_destinations(CTXT, spec(gpus=(1,)), [S1, S2])
    assert kept(rig, S1) == []
    (statement,) = flush(manager)
    assert statement.startswith('INSERT INTO scheduler_decisions')
    assert flush(manager) == []
    (row,) = kept(rig, S1)
    assert (row['request_id'], row['instance_uuid']) == ('req-1', S1)
    assert {row['chosen'] for row in kept(rig, 'req-1')} == {'gpu1', 'gpu2'}
    body = row['body']
    assert body['chosen'] == row['chosen']
    assert body['asked']['devices'] == {'gpu': 1}
    assert body['considered'] == 3
    assert [one['host'] for step in body['filters'] for one in step['fell']] == ['off']
    fell = next(one for step in body['filters'] for one in step['fell'])
    assert fell['disabled'] is True and fell['free_ram_mb'] == 262144
    assert {one['host'] for one in body['weighed']} == {'gpu1', 'gpu2'}
    assert all(isinstance(one['weight'], float) for one in body['weighed'])


def test_a_refusal_tells_each_host_with_its_values(rig):
    rig.host('gpu1', (A,))
    rig.host('off', (A, B), service={'disabled': True})
    manager = rig.manager()
    with pytest.raises(errors.NoValidHost) as caught:
        manager.select_destinations(CTXT, spec(gpus=(2,)), [S1])
    flush(manager)
    (row,) = kept(rig, S1)
    assert row['chosen'] is None and row['body']['failure'] == str(caught.value)
    assert sorted((one['host'], one['turned_away_by'], one['why']) for one in row['body']['hosts']) == [
        ('gpu1', ['pci:gpu'], ['has fewer than 2 free gpu (has: 1 free)']),
        ('off', ['disabled'], ['disabled']),
    ]


def test_a_refused_claim_is_told(rig):
    rig.host('gpu1', (A,))
    rig.host('gpu2', (A,))
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
    manager.select_destinations(CTXT, spec(gpus=(1,)), [S1])
    rig.placement.before = None
    flush(manager)
    (row,) = kept(rig, S1)
    assert row['chosen'] == 'gpu2' and row['body']['claims_refused'] == ['gpu1']


def test_of_two_choices_for_one_request_the_second_is_told(rig):
    """The first is made from the scheduler's own data, which another scheduler's claim has overtaken."""
    rig.host('gpu1', (A, B))
    providers = {row['name']: row['uuid'] for row in rig.placement.client.list_providers()}
    manager = rig.manager()

    def steal(method, path):
        if method == 'PUT':
            rig.placement.before = None
            rig.placement.client.claim(
                uuid('thief'), {providers[f'gpu1_{A}']: {'resources': {GPU: 1}}}, project_id='p', user_id='u'
            )

    rig.placement.before = steal
    manager.select_destinations(CTXT, spec(gpus=(1,)), [S1])
    flush(manager)
    (row,) = kept(rig, S1)
    names = [step['filter'] for step in row['body']['filters']]
    assert row['chosen'] == 'gpu1' and len(names) == len(set(names)) > 0


def test_so_many_hosts_are_named(rig):
    for number in range(4):
        rig.host(f'off{number}', service={'disabled': True})
    rig.host('gpu1')
    manager = rig.manager(scheduler__decisions_hosts=2)
    manager.select_destinations(CTXT, spec(), [S1])
    flush(manager)
    (step,) = [step for step in kept(rig, S1)[0]['body']['filters'] if step['before'] != step['after']]
    assert (step['before'] - step['after'], len(step['fell'])) == (4, 2)


def test_nothing_is_noted_when_nothing_is_kept(rig):
    rig.host('gpu1')
    manager = rig.manager(scheduler__decisions_keep=0)
    manager.select_destinations(CTXT, spec(), [S1])
    assert flush(manager) == []


def test_stop_writes_what_is_left(rig):
    rig.host('gpu1')
    manager = rig.manager()
    manager.start()
    manager.select_destinations(CTXT, spec(), [S1])
    manager.stop()
    assert len(kept(rig, S1)) == 1


def test_stop_ends_a_writer_that_waits_for_decisions(rig, monkeypatch):
    monkeypatch.setattr(decisions, 'FLUSH_EVERY', 60.0)
    monkeypatch.setattr(decisions, 'STOP_TIMEOUT', 5.0)
    before = set(threading.enumerate())
    manager = rig.manager()
    manager.start()
    (writer,) = [thread for thread in set(threading.enumerate()) - before if thread.name == 'decisions']
    manager.stop()
    assert not writer.is_alive()


def test_a_silent_database_costs_no_decision(rig, monkeypatch, caplog):
    rig.host('gpu1')
    manager = rig.manager()
    manager.select_destinations(CTXT, spec(), [S1])
    with monkeypatch.context() as patch:
        patch.setattr(rows, 'add', lambda *_: 1 / 0)
        flush(manager)
        flush(manager)
    assert caplog.text.count('cannot be written') == 1
    assert kept(rig, S1) == []
    flush(manager)
    assert len(kept(rig, S1)) == 1


def test_decisions_are_written_while_the_scheduler_runs(rig, monkeypatch):
    monkeypatch.setattr(decisions, 'FLUSH_EVERY', 0.0)
    manager, written = rig.manager(), threading.Event()
    monkeypatch.setattr(manager._decisions, 'flush', written.set)
    manager.start()
    assert written.wait(30)
    manager.stop()


def test_many_decisions_wake_the_writer(rig, monkeypatch):
    monkeypatch.setattr(decisions, 'FLUSH_AT', 2)
    kept = decisions.Decisions(conf(), rig.databases)
    for woken in (False, True):
        kept.record(CTXT, spec(), [S1], decisions.Trace(5), failure=errors.NoValidHost(reason='full'))
        assert kept._wake.is_set() is woken
    # It writes once, and waits again.
    monkeypatch.setattr(kept, 'flush', kept._stopping.set)
    kept._loop()
    assert not kept._wake.is_set()


def test_no_more_decisions_than_the_bound_wait_for_a_database(rig, monkeypatch):
    """The oldest are lost, also those that a write gave up."""
    monkeypatch.setattr(decisions, 'MOST', 3)
    kept = decisions.Decisions(conf(), rig.databases)

    def record(*names):
        for name in names:
            kept.record(CTXT, spec(), [uuid(name)], decisions.Trace(5), failure=errors.NoValidHost(reason='full'))

    def waiting():
        return [row['instance_uuid'] for row, _ in kept._waiting]

    def broken(taken):
        record(*broken.more)
        raise OSError

    record('1', '2', '3', '4')
    assert waiting() == [uuid('2'), uuid('3'), uuid('4')]
    monkeypatch.setattr(kept, '_write', broken)
    broken.more = ('5', '6')
    kept.flush()
    assert waiting() == [uuid('4'), uuid('5'), uuid('6')]
    broken.more = ('7', '8', '9')
    kept.flush()
    assert waiting() == [uuid('7'), uuid('8'), uuid('9')]


def test_what_is_told_of_one_server_of_a_request(monkeypatch):
    clock = iter((100.0, 102.5))
    monkeypatch.setattr(decisions.time, 'perf_counter', lambda: next(clock))
    trace = decisions.Trace(1)
    trace.start(7)
    trace.start(8)
    for name in ('a', 'b'):
        trace.refuse(name)
    trace.end()

    def choice(name):
        return Candidate(state(name))

    plan = SelectionPlan([choice('a'), choice('b')], [[choice('c'), choice('d')], []])
    request = spec(
        gpus=(2, 1),
        availability_zone='east',
        scheduler_hints={'group': ['g']},
        flavor_values={'vcpus': 3, 'memory_mb': 64, 'root_gb': 5, 'ephemeral_gb': 2},
    )
    told = decisions.story(request, trace, 5, plan=plan)
    assert told == {
        'asked': {
            'flavor': 'tmp1',
            'vcpus': 3,
            'memory_mb': 64,
            'disk_gb': 7,
            'devices': {'gpu': 1},
            'availability_zone': 'east',
            'hints': {'group': ['g']},
        },
        'considered': 7,
        'filters': [],
        'weighed': {},
        'claims_refused': ['a'],
        'seconds': 2.5,
        'chosen': 'a',
        'alternates': ['c', 'd'],
    }
    told = decisions.story(request, trace, 5, plan=plan, index=1)
    assert (told['chosen'], told['alternates']) == ('b', [])
    trace.restart()
    trace.report = RefusalReport({0: 'x', 1: 'y'}, 1, [])
    told = decisions.story(request, trace, 1, failure=errors.NoValidHost(reason='full'))
    assert (told['chosen'], told['failure'], told['considered']) == (None, 'No valid host was found. full', 2)
    assert [one['host'] for one in told['hosts']] == ['x'] and 'alternates' not in told


def test_old_and_surplus_ones_are_dropped(rig, monkeypatch):
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    made = [
        {
            'request_id': 'req-1',
            'instance_uuid': uuid(f's{number}'),
            'chosen': None,
            'body': {'number': number},
            'created_at': now - dt.timedelta(days=number),
        }
        for number in (9, 3, 2, 1)
    ]
    with rig.databases.api().write() as connection:
        rows.add(connection, made)
    manager = rig.manager(scheduler__decisions_keep=2)
    monkeypatch.setattr(decisions, 'PRUNE_EVERY', -1.0)
    assert len(flush(manager)) == 2
    assert [row['body']['number'] for row in kept(rig, 'req-1')] == [2, 1]
    assert len(flush(rig.manager())) == 2
    assert [row['body']['number'] for row in kept(rig, 'req-1')] == [2, 1]
