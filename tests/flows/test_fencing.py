"""Who may still act: owners whose lease ran out, orders that come late, keys whose acts were undone.

Each test is the story of a fault that there was; ``docs/reference/regressions.md`` lists them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.compute.keys import TaskRegistry
from kilonova.conductor.flows import moving
from kilonova.conductor.manager import ConductorManager
from kilonova.db.queries import instance_mappings, operation_leases, operations, request_specs
from kilonova.errors import ClaimConflict, HostRejected, KeyGone, KilonovaError, Unanswered
from kilonova.virt.libvirt.guests import LibvirtGuests
from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import Cloud

GPUS = {
    'gpu1': ['0000:08:00.0', '0000:09:00.0', '0000:0a:00.0'],
    'gpu2': ['0000:85:00.0', '0000:86:00.0', '0000:87:00.0'],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)


def until(what: Callable[[], Any], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, 'it did not become true'
        time.sleep(0.02)


def by(manager: ConductorManager) -> bool:
    """Whether this thread is a worker of that conductor."""
    return threading.current_thread() in manager.runner.workers.threads


def stand_still(cloud: Cloud, manager: ConductorManager) -> None:
    """The process renews nothing, and its leases run out."""
    manager.runner.leases.renew = lambda db: None
    cloud.expire(manager)
    for lease in manager.runner.leases._leases.values():
        lease.renewed -= 1000


def go_on(manager: ConductorManager) -> None:
    """The process goes on: its renewal is the first that does something."""
    del manager.runner.leases.renew
    for lease in list(manager.runner.leases._leases.values()):
        manager.runner.leases.renew(lease.db)


def forget_keys(cloud: Cloud) -> None:
    """Ten minutes later hosts know nothing of what they did."""
    for compute in cloud.computes.values():
        vars(compute.keys).update(vars(TaskRegistry()))


def keep_orders(cloud: Cloud, *methods: str) -> dict[str, Callable[[], Any]]:
    """What delivers these orders once more, by method."""
    kept = {}

    def on_message(kind, topic, host, method, args, deliver):
        if method in methods:
            kept.setdefault(method, deliver)
        return deliver()

    cloud.on_message = on_message
    return kept


def picture(cloud: Cloud, server: str) -> tuple[Any, ...]:
    return (
        cloud.status(server),
        cloud.story(server),
        cloud.owned(server),
        cloud.hostdevs(server),
        cloud.placement.allocations(),
        [disk.name for disk in sorted((cloud.directory / cloud.host_of(server) / 'instances' / server).iterdir())],
    )


def test_a_late_order_of_a_move_frees_no_device_of_the_running_guest(make_cloud):
    """A `prep_resize` that arrives after the end of its move raises KeyGone and frees no device of the running guest.

    The host has forgotten the keys of its finished calls, so only the operation's row tells that the move is over.
    """
    cloud = make_cloud(GPUS)
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    kept = keep_orders(cloud, 'prep_resize')
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    cloud.action(server, 'confirmResize')
    before = picture(cloud, server)
    assert before[0] == 'ACTIVE' and len(cloud.owned(server)) == 2
    forget_keys(cloud)
    with pytest.raises(KeyGone):
        kept['prep_resize']()
    assert picture(cloud, server) == before
    cloud.assert_clean()


def test_late_orders_of_an_operation_that_ended_change_nothing(make_cloud):
    """Rule 14: every order of a resize that was undone, its undos among them, comes again after the next resize."""
    cloud, failed = make_cloud(GPUS), []
    orders = (
        'prep_resize',
        'resize_instance',
        'finish_resize',
        'undo_finish_resize',
        'undo_resize_instance',
        'undo_prep_resize',
    )
    kept: dict[str, Callable[[], Any]] = {}

    def on_message(kind, topic, host, method, args, deliver):
        if method in orders:
            kept.setdefault(method, deliver)
        if method == 'finish_resize' and not failed:
            deliver()
            failed.append(host)
            raise KilonovaError('injected failure')
        return deliver()

    cloud.on_message = on_message
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    large = cloud.flavor(gpus=2)
    cloud.action(server, 'resize', {'flavorRef': large})
    assert cloud.status(server) == 'ACTIVE' and set(kept) == set(orders)
    cloud.on_message = None
    cloud.action(server, 'resize', {'flavorRef': large})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    before = picture(cloud, server)
    forget_keys(cloud)
    for order in kept.values():
        # There may be no room for it any more, too.
        with pytest.raises((KeyGone, HostRejected)):
            order()
    assert picture(cloud, server) == before
    cloud.assert_clean()


def test_a_late_order_takes_nothing_from_a_later_step(make_cloud):
    """Rule 14: the claim's order comes again while the guest is built at the destination, whose memory of keys is gone;
    it is refused, and gives back nothing of what it claimed at its time."""
    cloud = make_cloud(GPUS)
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1')
    kept, seen = {}, []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'prep_resize':
            kept[method] = deliver
        if method == 'finish_resize' and not seen:
            before = cloud.owned(server)
            forget_keys(cloud)
            with pytest.raises(KeyGone):
                kept['prep_resize']()
            seen.append((before, cloud.owned(server)))
        return deliver()

    cloud.on_message = on_message
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert len(seen) == 1 and len(seen[0][0]) == 3 and seen[0][0] == seen[0][1]
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    cloud.assert_clean()


def test_what_a_conductor_parked_before_it_stood_still_is_never_sent(make_cloud):
    """A conductor whose lease expired drops its parked operations and sends none of their messages.

    Conductor A parks a move behind a slow call and freezes for longer than its lease. Conductor B completes the move.
    Then A continues: it does not renew the lease and does not send the move again.
    """
    cloud = make_cloud(GPUS, conductor__flow_slots_per_host=1, conductor__lease_time=30, conductor__sweep_interval=15)
    small, large = cloud.flavor(gpus=1), cloud.flavor(gpus=1, vcpus=2)
    slow, moved = (cloud.boot(small, availability_zone='nova:gpu1') for _ in range(2))
    a, b = cloud.conductors[0], cloud.start_conductor()
    hold, at_it, sent = threading.Event(), threading.Event(), []

    def on_message(kind, topic, host, method, args, deliver):
        if topic == 'conductor' and kind == 'cast':
            a.runner.wake(cloud.cell, [args['operation']])
            return None
        if method == 'prep_resize':
            sent.append(('A' if by(a) else 'B', args['order'].instance.uuid))
            if by(a) and not at_it.is_set():
                at_it.set()
                hold.wait(60)
                raise Unanswered(who=host, reason='timed out')
        return deliver()

    cloud.on_message = on_message
    for server in (slow, moved):
        assert cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': large}}).status_int == 202
        until(at_it.is_set)
    until(a.runner.slots.parked)
    before = a.runner.leases.owner_in(cloud.cell)
    stand_still(cloud, a)
    b.runner.sweep()
    until(lambda: not cloud.rows())
    assert [cloud.status(server) for server in (slow, moved)] == ['VERIFY_RESIZE'] * 2
    seen = picture(cloud, moved)
    forget_keys(cloud)
    go_on(a)
    assert a.runner.slots.parked() == [] and a.runner.leases.owner_in(cloud.cell) != before
    hold.set()
    until(a.runner.idle)
    assert sorted(sent) == sorted([('A', slow), ('B', slow), ('B', moved)])
    assert picture(cloud, moved) == seen
    cloud.assert_clean()


@pytest.mark.parametrize('kind', ['boot', 'resize'])
def test_a_stale_owner_undoes_no_attempt_of_the_new_owner(make_cloud, kind):
    """A conductor that lost its lease during an undo does not undo the attempt of the new owner.

    The row records that an attempt is being undone before the first undo, and is compared again before each further
    undo.
    """
    cloud = make_cloud(
        {**GPUS, 'gpu3': ['0000:85:00.0', '0000:86:00.0']}, conductor__lease_time=30, conductor__sweep_interval=15
    )
    small, large = cloud.flavor(gpus=1), cloud.flavor(gpus=2)
    server = cloud.boot(small, availability_zone='nova:gpu1') if kind == 'resize' else None
    a, b = cloud.conductors[0], cloud.start_conductor()
    hold, at_it, refused, undoing = threading.Event(), threading.Event(), [], []

    def on_message(kind_, topic, host, method, args, deliver):
        if topic == 'conductor' and kind_ == 'cast':
            uuids = args.get('operations') or [args['operation']]
            a.runner.wake(cloud.databases.api() if args.get('operations') else cloud.cell, uuids, fresh=True)
            return None
        if method == 'claim_instance' and not refused:
            refused.append(1)
            raise ClaimConflict(devices='injected')
        if method == ('undo_build' if kind == 'boot' else 'undo_prep_resize') and by(a) and not at_it.is_set():
            undoing.extend(row['undoing'] for row in cloud.rows())
            answer = deliver()
            at_it.set()
            # The answer is there; the process stands still before it reads it.
            hold.wait(60)
            return answer
        return deliver()

    cloud.on_message = on_message
    if kind == 'boot':
        server = cloud.create(small)['server']['id']
    else:
        assert cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': large}}).status_int == 202
    assert at_it.wait(20) and undoing == [True]
    stand_still(cloud, a)
    b.runner.sweep()
    until(lambda: not cloud.rows())
    assert cloud.status(server) == ('ACTIVE' if kind == 'boot' else 'VERIFY_RESIZE'), cloud.story(server)
    held = cloud.placement.allocations()
    assert server in held
    go_on(a)
    hold.set()
    until(a.runner.idle)
    assert cloud.placement.allocations() == held
    cloud.assert_clean()


def test_a_build_that_its_host_undid_goes_to_the_next_host(make_cloud, monkeypatch):
    """A host that undid a build refuses the same key after its restart, and the next host gets the server.

    The build failed and was undone, and the host restarted before its answer was sent.
    """
    cloud = make_cloud(GPUS)
    spawn, failed, lost = LibvirtGuests.spawn, [], []

    def fails_once(self, *args, **kwargs):
        if not failed:
            failed.append(1)
            raise GuestFailed(act='start', uuid='x', reason='libvirtd is restarted')
        return spawn(self, *args, **kwargs)

    monkeypatch.setattr(LibvirtGuests, 'spawn', fails_once)

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'build_and_run_instance' and not lost:
            try:
                return deliver()
            except HostRejected:
                lost.append(host)
                cloud.crash_compute(host)
                cloud.start_compute(host)
                raise Unanswered(who=host, reason='timed out') from None
        return deliver()

    cloud.on_message = on_message
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    assert lost and cloud.host_of(server) != lost[0]
    cloud.assert_clean()


def test_the_only_hosts_own_reason_is_told_when_it_is_asked_again(make_cloud, monkeypatch):
    """The server's fault names the reason of the first failure if its only host is asked again after a restart."""
    cloud = make_cloud({'gpu1': GPUS['gpu1']})
    lost = []

    def fails(self, *args, **kwargs):
        raise GuestFailed(act='start', uuid='x', reason='libvirtd is restarted')

    monkeypatch.setattr(LibvirtGuests, 'spawn', fails)

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'build_and_run_instance' and not lost:
            try:
                return deliver()
            except HostRejected:
                lost.append(host)
                cloud.crash_compute(host)
                cloud.start_compute(host)
                raise Unanswered(who=host, reason='timed out') from None
        return deliver()

    cloud.on_message = on_message
    server = cloud.boot(cloud.flavor(gpus=1))
    assert 'libvirtd is restarted' in cloud.show(server)['fault']['message']
    cloud.assert_clean()


def test_a_host_that_cannot_undo_does_not_keep_the_server_from_the_next(make_cloud, monkeypatch):
    """A build goes to the next host at once if the first host's hypervisor is away, so that build and undo both fail
    there.

    The undo of the first host becomes a pending release, which ends when the hypervisor is back.
    """
    cloud = make_cloud(GPUS)
    away, real = [], {name: getattr(LibvirtGuests, name) for name in ('spawn', 'destroy')}

    def instead(name):
        def call(self, *args, **kwargs):
            if not away:
                away.append(self._libvirt.name)
            if away[0] == self._libvirt.name and len(away) == 1:
                raise GuestFailed(act=name, uuid='x', reason='no connection to libvirtd')
            return real[name](self, *args, **kwargs)

        return call

    for name in real:
        monkeypatch.setattr(LibvirtGuests, name, instead(name))
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    cloud.settle(30, kinds_left=('release',))
    assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) != away[0], cloud.story(server)
    assert [(row['kind'], row['host']) for row in cloud.rows()] == [('release', away[0])]
    # It is back.
    away.append('back')
    cloud.settle()
    cloud.assert_clean()


def test_nothing_new_comes_to_a_host_that_has_still_to_give_back(make_cloud):
    """A pending release of a build would take along what a move of the same server brings to the host: the claim there
    is refused until it is done."""
    cloud = make_cloud(GPUS)
    dead, silent = [], [True]

    def service(host: str, down: bool) -> None:
        (found,) = cloud.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
        cloud.ok('PUT', f'/os-services/{found["id"]}', {'forced_down': down})

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'build_and_run_instance' and not dead:
            dead.append(host)
            cloud.crash_compute(host)
            service(host, True)
            raise Unanswered(who=host, reason='gone')
        if method == 'undo_build' and silent[0]:
            raise Unanswered(who=host, reason='lost')
        return deliver()

    cloud.on_message = on_message
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) != dead[0]
    cloud.start_compute(dead[0])
    service(dead[0], False)
    large = cloud.flavor(gpus=2)
    assert cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': large}}).status_int == 202
    cloud.settle(30, kinds_left=('release',))
    assert cloud.status(server) == 'ACTIVE' and 'must first clean up an earlier operation' in str(cloud.story(server))
    silent[0] = False
    cloud.settle()
    cloud.action(server, 'resize', {'flavorRef': large})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    cloud.assert_clean()


def test_a_lease_that_ran_out_is_another_owner_though_nobody_took_its_rows(make_cloud):
    """Rule 6: by a moment, with nobody else there. What the worker holds is dropped, nothing is sent as the old owner,
    and the new one does the work."""
    cloud = make_cloud(GPUS, conductor__lease_time=30, conductor__sweep_interval=15)
    server = cloud.boot(cloud.flavor(gpus=1))
    (conductor,) = cloud.conductors
    before, owners = conductor.runner.leases.owner_in(cloud.cell), []

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'stop_instance':
            owners.extend(row['owner'] for row in cloud.rows())
            if len(owners) == 1:
                # Its lease ends while the host is asked and doesn't answer.
                cloud.expire(conductor)
                for lease in conductor.runner.leases._leases.values():
                    lease.renewed -= 1000
                raise Unanswered(who=host, reason='injected silence')
        return deliver()

    cloud.on_message = on_message
    cloud.action(server, 'os-stop')
    assert cloud.status(server) == 'SHUTOFF'
    assert owners[0] == before and before not in owners[1:]
    with cloud.cell.read() as conn:
        assert [owner for owner, _ in operation_leases.living(conn)] == [conductor.runner.leases.owner_in(cloud.cell)]
    cloud.assert_clean()


def test_a_row_that_a_hand_over_left_in_a_cell_builds_nothing(make_cloud):
    """Rule 19: its owner put it there when it was no owner any more, and whoever was buried the server in cell0."""
    cloud = make_cloud(GPUS)
    server = cloud.create(cloud.flavor(gpus=4))['server']['id']
    cloud.settle()
    assert cloud.status(server) == 'ERROR'
    sent = []

    def on_message(kind, topic, host, method, args, deliver):
        sent.append(method)
        return deliver()

    other = cloud.boot(cloud.flavor(gpus=1))
    with cloud.cell.read() as conn:
        row = operations.instance_queries.get(conn, other)
    left = operations.OperationRow(
        uuid='left-behind',
        kind='boot',
        instance_uuid=server,
        position=3,
        context={'user_id': 'u', 'project_id': 'p'},
        outputs={'select': [{'host': row['host']}]},
    )
    with cloud.cell.write() as conn:
        operations.insert(conn, [left])
    cloud.on_message = on_message
    cloud.settle(30)
    assert 'build_and_run_instance' not in sent and cloud.status(server) == 'ERROR'
    with cloud.databases.api().read() as conn:
        assert instance_mappings.cells_of(conn, [server])[server] == cloud.cells.id_of(cloud.cell0)
    cloud.assert_clean()


def test_a_late_owner_does_not_write_an_older_request_spec(make_cloud, monkeypatch):
    """Rule 20: A is about to save the spec of a resize and stands still; B ends it, the user reverts; A goes on."""
    cloud = make_cloud(GPUS, conductor__lease_time=30, conductor__sweep_interval=15)
    small, large = cloud.flavor('small', gpus=1), cloud.flavor('large', gpus=2)
    server = cloud.boot(small, availability_zone='nova:gpu1')
    a, b = cloud.conductors[0], cloud.start_conductor()
    hold, at_it, real = threading.Event(), threading.Event(), moving._save

    def before(api, seen, text):
        if by(a) and not at_it.is_set():
            at_it.set()
            hold.wait(60)
        return real(api, seen, text)

    monkeypatch.setattr(moving, '_save', before)

    def on_message(kind, topic, host, method, args, deliver):
        if topic == 'conductor' and kind == 'cast':
            (b if at_it.is_set() else a).runner.wake(cloud.cell, [args['operation']])
            return None
        return deliver()

    cloud.on_message = on_message
    assert cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': large}}).status_int == 202
    assert at_it.wait(20)
    stand_still(cloud, a)
    b.runner.sweep()
    until(lambda: not cloud.rows())
    assert cloud.request('POST', f'/servers/{server}/action', {'revertResize': None}).status_int == 202
    until(lambda: not cloud.rows())
    assert cloud.status(server) == 'ACTIVE'
    go_on(a)
    hold.set()
    until(a.runner.idle)
    with cloud.databases.api().read() as conn:
        assert '"small"' in request_specs.get(conn, server)['spec']
    cloud.assert_clean()


@pytest.mark.parametrize('kind', ['boot', 'resize'])
def test_a_claim_whose_answer_was_lost_is_given_back_though_its_operation_was_cancelled(make_cloud, kind):
    """Rule 13: the claim is written, its answer is lost, and before the host asks again the server is deleted."""
    cloud, lost = make_cloud(GPUS), []
    server = cloud.boot(cloud.flavor(gpus=1), availability_zone='nova:gpu1') if kind == 'resize' else None

    def on_message(kind_, topic, host, method, args, deliver):
        if method == 'claim_instance' and not lost:
            deliver()
            lost.append(args['claim'].instance_uuid)
            assert cloud.request('DELETE', f'/servers/{lost[0]}').status_int == 204
            raise Unanswered(who='conductor', reason='the answer is lost')
        return deliver()

    cloud.on_message = on_message
    if kind == 'boot':
        server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    else:
        flavor = cloud.flavor(gpus=2)
        assert cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': flavor}}).status_int == 202
    until(lambda: lost)
    cloud.settle()
    assert cloud.status(server) == 'GONE'
    cloud.assert_empty()
