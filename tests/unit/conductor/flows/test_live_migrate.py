"""Live migration: which host is asked what, and where the server is when it was ended on its way."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import objects
from kilonova.db.queries import instances, migrations
from kilonova.errors import Cancelled, DisksUnmovable, HostRejected, Invalid, LiveMigrationAborted, Unanswered
from kilonova.rpc.interface import VersionCapError
from tests.unit.conductor.site import MIGRATION, SERVER, SMALL, Sent, Site, primitive, steps, uuid

GUEST, OFFER = {'cpu': 'guest'}, {'port': 49152}
SERVER_ON = "active/migrating on {}: flavor 1, metadata {{'role': 'db'}}"
MOVE = 'live-migration gpu1 to {}: accepted'
STEPS = [
    'check_can_live_migrate_source',
    'check_can_live_migrate_destination',
    'pre_live_migration',
    'live_migration',
    'post_live_migration_at_destination',
    'post_live_migration',
]


def begin(site: Site, vm_state: str = 'active', **args: Any) -> None:
    site.put(vm_state, 'migrating')
    site.inventory('gpu1')
    site.choose('gpu2', 'gpu3')
    site.answers.update(
        check_can_live_migrate_source=GUEST,
        check_can_live_migrate_destination=claimed(site, 'gpu2'),
        pre_live_migration={},
        undo_live_migration={'active': True},
        rollback_live_migration_at_destination={'arrived': False},
    )
    site.accept(
        'live_migrate',
        {
            'migration_uuid': MIGRATION,
            'migration_type': 'live-migration',
            'block': True,
            'over_commit': True,
            'flavor': primitive(SMALL),
            'request_spec': primitive(site.spec(gpus=(1,))),
            **args,
        },
    )


def claimed(site: Site, host: str) -> Any:
    def answer(sent: Sent) -> dict[str, Any]:
        with site.cell.write() as conn:
            migrations.update(conn, MIGRATION, {'dest_compute': host, 'dest_node': f'node{host[-1]}'})
        return OFFER

    return answer


def arrived(site: Site) -> Any:
    """The destination writes that the server is its own."""

    def answer(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.update(conn, SERVER, {'host': 'gpu2', 'node': 'node2'})

    return answer


def test_what_each_host_is_asked(site: Site) -> None:
    begin(site)
    site.answers['post_live_migration_at_destination'] = arrived(site)
    site.go()
    server, move = SERVER_ON.format('gpu1'), MOVE.format('gpu2')
    order = {'instance': server, 'migration': move, 'guest': GUEST, 'offer': OFFER}
    source, scheduler, *calls = site.calls()
    assert source == ('gpu1', STEPS[0], {'instance': server, 'key': '1.check_source/1'})
    assert scheduler[1:] == (
        'select_destinations',
        {
            'spec_obj': 'spec of flavor 1 with [None]',
            'instance_uuids': [SERVER],
            'return_objects': True,
            'return_alternates': True,
            'claim': False,
            'time_left': 60.0,
        },
    )
    assert calls == [
        (
            'gpu2',
            STEPS[1],
            {
                'key': '4.check_destination/1',
                'order': {
                    'instance': server,
                    'migration': MOVE.format(None),
                    'limits': {'memory_mb': 999},
                    'guest': GUEST,
                    'request_spec': f"spec of flavor 1 with ['{uuid('device of gpu2')}']",
                    'block': True,
                    'over_commit': True,
                },
            },
        ),
        ('gpu2', STEPS[2], {'key': '5.pre_live_migration/1', 'order': order}),
        ('gpu1', STEPS[3], {'key': '6.live_migration/1', 'order': order}),
        ('gpu2', STEPS[4], {'key': '7.post_live_migration_at_destination/1', 'instance': server, 'migration': move}),
        ('gpu1', STEPS[5], {'key': '8.clean_source/1', 'order': {**order, 'instance': SERVER_ON.format('gpu2')}}),
    ]


def test_it_is_elsewhere_and_as_before(site: Site) -> None:
    begin(site)
    site.go()
    assert site.state() == ('active', None) and site.kept() is None and site.action() == 'done'
    assert site.held() == {'server': {'gpu2': 1}} and site.releases() == []
    assert (site.migration()['status'], site.migration()['migration_type']) == ('completed', 'live-migration')
    assert site.row()['extra_migration_context'] is None
    assert site.events() == [('conductor_live_migrate_instance', 'Success', 'ctl1', None)]


@pytest.mark.parametrize('silent', STEPS)
def test_it_goes_on_where_it_stood(site: Site, silent: str) -> None:
    begin(site)
    site.answers[silent] = [Unanswered(who='x', reason='y'), site.answers.get(silent)]
    site.answers[silent] = flaky(site, silent)
    site.go()
    before = site.sent[-1]
    site.sent.clear()
    site.go()
    again = site.sent[0]
    assert (again.server, again.method, again.args['key']) == (before.server, silent, before.args['key'])
    assert [sent.method for sent in site.sent if sent.method != 'select_destinations'] == STEPS[STEPS.index(silent) :]
    order = site.sent[-1].args['order']
    assert (order.guest, order.offer) == (GUEST, OFFER)
    assert site.held() == {'server': {'gpu2': 1}} and site.migration()['status'] == 'completed'


def flaky(site: Site, method: str) -> Any:
    """What a host answers when it is asked again."""
    real, asked = site.answers[method][1], []

    def answer(sent: Sent) -> Any:
        asked.append(sent)
        if len(asked) == 1:
            raise Unanswered(who='x', reason='y')
        return real(sent) if callable(real) else real

    return answer


def test_a_dead_source_is_cleaned_later(site: Site) -> None:
    begin(site)

    def die(sent: Sent) -> None:
        site.silence('gpu1')

    site.answers['post_live_migration_at_destination'] = die
    site.go()
    ((host, args),) = site.releases()
    assert (host, args['method']) == ('gpu1', 'post_live_migration')
    assert args['kwargs']['order'] == {
        'instance': SERVER_ON.format('gpu1'),
        'migration': MOVE.format('gpu2'),
        'guest': GUEST,
        'offer': OFFER,
    }
    assert site.held() == {'server': {'gpu2': 1}} and site.state() == ('active', None)


# --- failures before the guest has gone ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('failing', 'undone'),
    [
        (STEPS[0], []),
        (STEPS[1], ['gpu2 rollback_live_migration_at_destination']),
        (STEPS[2], ['gpu2 rollback_live_migration_at_destination', 'gpu1 undo_live_migration']),
    ],
)
def test_a_failure_leaves_it_as_it_was(site: Site, failing: str, undone: list[str]) -> None:
    begin(site)
    site.answers[failing] = Invalid('no')
    site.go()
    asked = site.asked()
    assert asked[asked.index(f'{"gpu1" if failing == STEPS[0] else "gpu2"} {failing}') + 1 :] == undone
    assert site.state() == ('active', None) and site.row()['host'] == 'gpu1' and site.kept() is None
    assert site.held() == {'server': {'gpu1': 1}} and site.migration()['status'] == 'error'
    assert site.faults() == [(400, 'no', 'gpu1' if failing != STEPS[1] else 'gpu2')] and site.action() == 'Error'
    assert site.events() == [('conductor_live_migrate_instance', 'Error', 'ctl1', 'no')]


def test_what_the_undos_say(site: Site) -> None:
    """Nothing is elsewhere any more: a guest that is held goes on."""
    begin(site)
    site.answers[STEPS[2]] = Invalid('no')
    site.go()
    undo = {'instance': SERVER_ON.format('gpu1'), 'migration': MOVE.format('gpu2'), 'aborted': False}
    assert site.calls()[-2:] == [
        (
            'gpu2',
            'rollback_live_migration_at_destination',
            {'key': '4.check_destination/1', 'order': {**undo, 'resume': False, 'gone': False}},
        ),
        ('gpu1', 'undo_live_migration', {'key': '1.check_source/1', 'order': {**undo, 'resume': True, 'gone': None}}),
    ]


@pytest.mark.parametrize(
    ('refusing', 'error'),
    [
        (STEPS[1], HostRejected('full')),
        (STEPS[2], HostRejected('full')),
        (STEPS[3], DisksUnmovable(source='gpu1', dest='gpu2', reason='x')),
    ],
)
def test_the_next_host(site: Site, refusing: str, error: Exception) -> None:
    begin(site)
    answer = site.answers.get(refusing)
    refused: list[Sent] = []

    def refuse(sent: Sent) -> Any:
        refused.append(sent)
        if len(refused) == 1:
            raise error
        return claimed(site, 'gpu3')(sent) if callable(answer) else answer

    site.answers[refusing] = refuse
    site.go()
    asked = site.asked()
    again = asked.index('gpu3 check_can_live_migrate_destination')
    undone = ['gpu2 rollback_live_migration_at_destination']
    if refusing == STEPS[3]:
        undone.insert(0, 'gpu1 undo_live_migration')
    assert asked[again - len(undone) : again] == undone
    assert site.held() == {'server': {'gpu3': 1}} and site.state() == ('active', None)


def test_hosts_that_all_refuse(site: Site) -> None:
    begin(site)
    site.answers[STEPS[1]] = [HostRejected('small'), HostRejected('full')]
    site.go()
    assert site.faults() == [(500, 'No valid host was found. Hosts said: small; full', 'gpu3')]


# --- ended when the guest may have gone ------------------------------------------------------------------------------
def fails(site: Site, *, on_source: Any, arrived_: Any = None) -> None:
    """``live_migration`` fails; what the hosts say of the guest then."""
    begin(site)
    site.answers.update(
        live_migration=Invalid('no'), undo_live_migration=on_source, rollback_live_migration_at_destination=arrived_
    )


def test_a_guest_that_stayed(site: Site) -> None:
    fails(site, on_source={'active': True}, arrived_={'arrived': False})
    site.go()
    asked = site.asked()
    # No migration runs any more; only then the destination forgets it, and the guest goes on.
    assert asked[asked.index('gpu1 live_migration') + 1 :] == [
        'gpu1 undo_live_migration',
        'gpu1 undo_live_migration',
        'gpu2 rollback_live_migration_at_destination',
        'gpu1 undo_live_migration',
    ]
    assert site.held() == {'server': {'gpu1': 1}} and site.row()['host'] == 'gpu1'
    assert site.migration()['status'] == 'error' and site.state() == ('active', None)
    assert site.faults() == [(400, 'no', 'gpu1')]


def test_a_guest_that_has_gone(site: Site) -> None:
    """The server is the destination's, and what is left to do is done."""
    fails(site, on_source={'active': False}, arrived_={'arrived': True})
    site.go()
    calls = site.calls()
    looked, settled = [args['order'] for _, method, args in calls if method.startswith('rollback')]
    undo = {'migration': MOVE.format('gpu2'), 'instance': SERVER_ON.format('gpu1'), 'resume': False, 'aborted': False}
    assert (looked, settled) == ({**undo, 'gone': None}, {**undo, 'gone': True})
    assert [(host, method) for host, method, _ in calls[-3:]] == [
        ('gpu1', 'undo_live_migration'),
        ('gpu2', 'rollback_live_migration_at_destination'),
        ('gpu2', 'rollback_live_migration_at_destination'),
    ]
    row = site.row()
    assert (row['host'], row['node'], row['extra_migration_context']) == ('gpu2', 'node2', None)
    assert site.state() == ('active', None) and site.kept() is None
    assert site.migration()['status'] == 'completed' and site.held() == {'server': {'gpu2': 1}}
    ((host, args),) = site.releases()
    assert (host, args['method']) == ('gpu1', 'post_live_migration')
    assert args['kwargs']['order'] == {
        'instance': SERVER_ON.format('gpu1'),
        'migration': MOVE.format('gpu2'),
        'guest': GUEST,
        'offer': OFFER,
    }
    assert site.events() == [('conductor_live_migrate_instance', 'Error', 'ctl1', 'no')] and site.action() == 'Error'
    assert site.faults() == []


def on_cell(number: int) -> objects.InstanceNUMATopology:
    return objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(id=number, cpuset=set(), pcpuset={0}, memory=512, cpu_pinning_raw={'0': number})
        ]
    )


def placed(site: Site, host: str) -> Any:
    """The destination claims a place on its cell 1."""

    def answer(sent: Sent) -> dict[str, Any]:
        with site.cell.write() as conn:
            instances.update_extra(
                conn,
                SERVER,
                {
                    'numa_topology': on_cell(0).to_json(),
                    'migration_context': objects.MigrationContext(
                        instance_uuid=SERVER,
                        migration_id=site.migration()['id'],
                        old_numa_topology=on_cell(0),
                        new_numa_topology=on_cell(1),
                    ).to_json(),
                },
            )
        return claimed(site, host)(sent)  # type: ignore[no-any-return]

    return answer


@pytest.mark.parametrize(('end', 'cell'), [('arrives', 1), ('gone', 1), ('stays', 0)])
def test_the_servers_place_is_where_its_guest_is(site: Site, end: str, cell: int) -> None:
    """Whether its destination could still say so, or is down by now."""
    begin(site)
    site.answers[STEPS[1]] = placed(site, 'gpu2')
    if end != 'arrives':

        def die(sent: Sent) -> None:
            site.silence('gpu2')
            raise Invalid('no')

        site.answers.update(
            live_migration=die if end == 'gone' else Invalid('no'),
            undo_live_migration={'active': end == 'stays', 'switched': end == 'gone'},
        )
    site.go()
    row = site.row()
    found = objects.InstanceNUMATopology.from_json(row['extra_numa_topology'])
    assert ([one.id for one in found.cells], row['host'] == 'gpu1') == ([cell], end != 'gone')
    assert site.kept() is None and row['extra_migration_context'] is None


def test_a_guest_that_is_nowhere(site: Site) -> None:
    """It stays the source's, who is down or says that it isn't there."""
    fails(site, on_source={'active': False}, arrived_={'arrived': False})
    site.go()
    assert site.row()['host'] == 'gpu1' and site.migration()['status'] == 'error'


@pytest.mark.parametrize('source', ['down', 'old', 'broken'])
def test_a_source_that_can_not_say(site: Site, source: str) -> None:
    """The destination says all there is to know. A hypervisor that is away is asked some times."""
    fails(
        site,
        on_source={
            'down': Unanswered(who='x', reason='y'),
            'broken': Invalid('libvirt is away'),
            'old': VersionCapError(version='6.13', cap='6.12'),
        }[source],
        arrived_={'arrived': True},
    )
    if source == 'down':

        def die(sent: Sent) -> None:
            site.silence('gpu1')
            raise Invalid('no')

        site.answers['live_migration'] = die
    for _ in range(3 if source == 'broken' else 0):
        site.go()
        assert site.kept() is not None and 'gpu2 rollback_live_migration_at_destination' not in site.asked()
    site.go()
    assert site.row()['host'] == 'gpu2' and site.kept() is None


def test_a_source_that_is_silent_is_waited_for(site: Site) -> None:
    fails(site, on_source=[Unanswered(who='x', reason='y'), {'active': False}], arrived_={'arrived': True})
    site.go()
    row = site.kept()
    assert row is not None and row.failed and 'gpu2 rollback_live_migration_at_destination' not in site.asked()
    site.go()
    assert site.kept() is None and site.row()['host'] == 'gpu2'


@pytest.mark.parametrize('forced', [False, True])
def test_a_destination_that_is_down_may_run_the_guest(site: Site, forced: bool) -> None:
    fails(site, on_source={'active': False}, arrived_=Unanswered(who='x', reason='y'))

    def die(sent: Sent) -> None:
        site.silence('gpu2', forced=forced)
        raise Invalid('no')

    site.answers['live_migration'] = die
    site.go()
    if forced:
        # It is off for sure there: the server stays the source's.
        assert site.kept() is None and site.row()['host'] == 'gpu1'
    else:
        row = site.kept()
        assert row is not None and row.failed and row.outputs.get('gone') is None and site.releases() == []


def test_what_was_found_is_kept(site: Site) -> None:
    """Whoever takes the row over doesn't ask again whether it has gone."""
    fails(site, on_source={'active': False}, arrived_=[{'arrived': True}, Unanswered(who='x', reason='y'), None])
    site.go()
    row = site.kept()
    assert row is not None and row.outputs['gone'] is True
    site.sent.clear()
    site.go()
    assert site.asked() == ['gpu2 rollback_live_migration_at_destination']
    assert site.row()['host'] == 'gpu2' and site.kept() is None


def test_an_end_that_can_not_be_found_is_looked_for_again(site: Site) -> None:
    fails(site, on_source=[ZeroDivisionError(), {'active': True}], arrived_={'arrived': False})
    site.go()
    row = site.kept()
    assert row is not None and row.failed and row.owner is None
    site.answers['undo_live_migration'] = {'active': True}
    site.go()
    assert site.kept() is None and site.row()['host'] == 'gpu1'


def test_what_fails_after_the_guest_has_gone(site: Site) -> None:
    begin(site)
    site.answers['post_live_migration_at_destination'] = Invalid('no')
    site.go()
    assert site.row()['host'] == 'gpu2' and site.migration()['status'] == 'completed'
    assert 'gpu1 undo_live_migration' not in site.asked()


# --- aborted by a user -----------------------------------------------------------------------------------------------
def aborted(site: Site) -> None:
    error = LiveMigrationAborted()
    site.update(
        cancelled=True,
        error=(
            f'{{"class": "LiveMigrationAborted", "message": "{error}", "code": 500, "details": "x", '
            '"request_id": "req-2"}'
        ),
    )
    with site.cell.write() as conn:
        instances.start_action(
            conn, SERVER, {'action': 'abort', 'request_id': 'req-2', 'user_id': 'u', 'project_id': 'p'}
        )


@pytest.mark.parametrize('when', [STEPS[0], STEPS[2], STEPS[3]])
def test_an_abort_is_no_fault(site: Site, when: str) -> None:
    begin(site)
    real = site.answers.get(when)

    def abort(sent: Sent) -> Any:
        aborted(site)
        if callable(real):
            return real(sent)
        if when == STEPS[3]:
            raise Cancelled(key='x')
        return real

    site.answers[when] = abort
    site.go()
    assert site.state() == ('active', None) and site.row()['host'] == 'gpu1' and site.faults() == []
    assert site.migration()['status'] == 'cancelled' and site.held() == {'server': {'gpu1': 1}}
    with site.cell.read() as conn:
        found = [
            tuple(row)
            for row in conn.execute(
                instances.sa.select(
                    instances.actions.c.action,
                    instances.actions.c.message,
                    instances.actions.c.finish_time.is_not(None),
                )
            )
        ]
    assert found == [('live_migrate', 'Error', True), ('abort', None, True)]
    assert site.events() == [
        ('conductor_live_migrate_instance', 'Error', 'ctl1', 'The live migration was aborted.'),
        ('compute_live_migration_abort', 'Success', 'gpu1', None),
    ]
    # The first order to the source says it, the others don't.
    said = [sent.args['order'].aborted for sent in site.sent if sent.method == 'undo_live_migration']
    assert said == ([True] if when == STEPS[0] else [True, True, False])
    assert [sent.args['order'].resume for sent in site.sent if sent.method == 'undo_live_migration'] == (
        [True] if when == STEPS[0] else [False, False, True]
    )


def test_steps() -> None:
    assert steps('live_migrate') == (
        'create_migration check_source select claim_and_move<claim_and_move check_destination<claim_and_move '
        'pre_live_migration<claim_and_move live_migration<claim_and_move post_live_migration_at_destination '
        'clean_source drop_allocation mark_migrated'
    )
