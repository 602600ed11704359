"""What a conductor process is made of: whom its messages reach, and in which order it starts and stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.conductor import manager as managers
from kilonova.conductor.manager import ComputeTaskEndpoint, ConductorEndpoint, ConductorManager
from kilonova.context import get_admin_context
from kilonova.db.queries import claims, group_claims, info_caches
from kilonova.errors import BuildAbort, KeyGone
from kilonova.objects import Claim, Save
from kilonova.objects.vif import Vif
from kilonova.rpc.conductor import ComputeTask, Conductor
from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import SERVER, Site

CTXT = get_admin_context()


# --- hosts' calls ----------------------------------------------------------------------------------------------------
@pytest.fixture
def endpoint(site: Site) -> ConductorEndpoint:
    site.put('active', 'powering-off')
    site.accept('stop')
    return ConductorEndpoint(site.databases, site.env.cells)


def test_a_key(site: Site, endpoint: ConductorEndpoint) -> None:
    """Where the row stands; and of an undo, where it is being undone."""
    key = f'{site.operation}/0.stop/1'
    assert endpoint.check_key(CTXT, key, undo=False, host='gpu1') == {}
    with pytest.raises(KeyGone):
        endpoint.check_key(CTXT, key, undo=True, host='gpu1')
    site.update(undoing=True)
    assert endpoint.check_key(CTXT, key, undo=True, host='gpu1') == {}
    with pytest.raises(KeyGone):
        endpoint.check_key(CTXT, key, undo=False, host='gpu1')


def test_a_host_with_a_pending_release(
    site: Site, endpoint: ConductorEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(claims, 'check', lambda conn, *args: asked.append(args))
    endpoint.check_key(CTXT, 'k', undo=False, host='gpu1')
    assert asked == [('k', False, 'gpu1')]


def test_a_claim(site: Site, endpoint: ConductorEndpoint) -> None:
    answer = endpoint.claim_instance(
        CTXT, Claim(key=f'{site.operation}/0.stop/1', instance_uuid=SERVER, values={'host': 'gpu2', 'node': 'node2'})
    )
    assert answer['written'] and site.row()['host'] == 'gpu2'


def test_ports_are_bound_where_the_row_stands(site: Site, endpoint: ConductorEndpoint) -> None:
    """By a conductor that has an account for it. One that is gone is passed over where the server came without it."""
    profiles: dict[str, dict[str, Any]] = {'p': {'pci_slot': '0000:81:00.2'}}
    with pytest.raises(KeyGone):
        endpoint.bind_ports(CTXT, f'{site.operation}/1.stop/1', SERVER, 'gpu1', profiles)
    with pytest.raises(BuildAbort, match='has no account'):
        endpoint.bind_ports(CTXT, f'{site.operation}/0.stop/1', SERVER, 'gpu1', profiles)
    known = ConductorEndpoint(site.databases, site.env.cells, FakeNeutron(hosts={'gpu1'}).client)
    key, vif = f'{site.operation}/0.stop/1', Vif(id='p', mac='m', network_id='n', label='l', project_id='p', type='')
    with site.databases.main().write() as conn:
        info_caches.write(conn, SERVER, [])
    assert known.bind_ports(CTXT, key, SERVER, 'gpu1', profiles) == []
    with site.databases.main().write() as conn:
        info_caches.write(conn, SERVER, [vif.stored()])
    with pytest.raises(BuildAbort, match='Port id p could not be found'):
        known.bind_ports(CTXT, key, SERVER, 'gpu1', profiles)


def test_a_claim_of_a_group_is_made_behind_its_lock(
    site: Site, endpoint: ConductorEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def claim(*args: Any) -> str:
        asked.append(args)
        return 'claimed'

    monkeypatch.setattr(group_claims, 'claim', claim)
    made = Claim(key='k', instance_uuid=SERVER, group='g')
    assert endpoint.claim_instance(CTXT, made) == 'claimed'
    ((api, cells, cell, request, group),) = asked
    assert (api, cells, cell, request.key, group) == (site.api, site.env.cells, site.databases.main(), 'k', 'g')


def test_a_save(site: Site, endpoint: ConductorEndpoint) -> None:
    ctxt = get_admin_context()
    ctxt.request_id = 'req-1'
    answer = endpoint.save_instance(
        ctxt,
        Save(
            key=f'{site.operation}/0.stop/1',
            instance_uuid=SERVER,
            transition='stop.done',
            end=True,
            event={'event': 'compute_stop_instance', 'result': 'Success', 'host': 'gpu1'},
        ),
    )
    assert answer['written'] and site.state() == ('stopped', None) and site.rows() == []
    # The action is found by the request of the message.
    assert site.action() == 'done' and site.events() == [('compute_stop_instance', 'Success', 'gpu1', None)]


# --- waking ----------------------------------------------------------------------------------------------------------
def test_rows_are_woken_where_they_are() -> None:
    woken: list[Any] = []
    runner: Any = SimpleNamespace(wake=lambda *args, **kwargs: woken.append((*args, kwargs)))
    databases: Any = SimpleNamespace(api=lambda: 'api', main=lambda: 'main')
    tasks = ComputeTaskEndpoint(runner, databases)
    tasks.schedule_and_build_instances(CTXT, ['a', 'b'])
    for name in set(ComputeTask.methods()) - {'schedule_and_build_instances', 'terminate_instance'}:
        getattr(tasks, name)(CTXT, name)
    tasks.terminate_instance(CTXT, 'd')
    assert woken[0] == ('api', ['a', 'b'], {'fresh': True})
    assert {rows[0]: (db, more) for db, rows, more in woken[1:-1]} == {
        name: ('main', {'urgent': False})
        for name in (
            'migrate_server',
            'live_migrate_instance',
            'confirm_resize',
            'revert_resize',
            'rebuild_instance',
            'run_operation',
        )
    }
    assert woken[-1] == ('main', ['d'], {'urgent': True})


# --- the process -----------------------------------------------------------------------------------------------------
class Calls:
    """Notes what is called, in its order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def part(self, name: str) -> Any:
        return SimpleNamespace(
            **{
                verb: lambda *args, verb=verb: self.lines.append(' '.join(map(str, (name, verb, *args))))
                for verb in ('start', 'stop', 'wait')
            }
        )


@pytest.fixture
def called() -> Calls:
    return Calls()


@pytest.fixture
def made(site: Site, called: Calls, monkeypatch: pytest.MonkeyPatch) -> ConductorManager:
    def serve(topic: str, host: str, endpoints: Any) -> Any:
        called.lines.append(f'serve {topic} {host} {[one.__name__ for one, _ in endpoints]}')
        assert [one for _, one in endpoints] == [manager.endpoint, manager.tasks]
        return called.part('server')

    conf: Any = SimpleNamespace(
        host='ctl1',
        service_down_time=60,
        report_interval=1,
        periodic_enable=True,
        reclaim_instance_interval=0,
        resize_confirm_window=0,
        rescue_timeout=0,
        shelved_offload_time=0,
        shelved_poll_interval=0,
        instance_build_timeout=0,
        heal_instance_info_cache_interval=-1,
        devices=SimpleNamespace(history_days=365),
        scheduler=SimpleNamespace(max_attempts=4),
        conductor=SimpleNamespace(flow_slots=8, flow_slots_per_host=3, lease_time=12, sweep_interval=5),
    )
    transport: Any = SimpleNamespace(serve=serve)
    collectors: list[Any] = []

    def collector(*args: Any) -> Any:
        collectors.append(args)
        return called.part('collector')

    monkeypatch.setattr(managers, 'Collector', collector)
    env: Any = site.env
    manager = ConductorManager(
        conf,
        transport=transport,
        databases=site.databases,
        cells=env.cells,
        scheduler=env.scheduler,
        compute=env.compute,
        placement=env.placement,
        images=env.images,
        broker='broker',
    )  # type: ignore[arg-type]
    assert collectors == [('broker', manager.reports.write, 1)]
    manager.runner, manager.expiry = called.part('runner'), called.part('expiry')
    return manager


def test_the_order_of_start_and_stop(made: ConductorManager, called: Calls) -> None:
    """It serves when it can work; hosts that work for it claim and save here until the end."""
    made.start()
    assert called.lines == [
        'runner start',
        f'serve conductor ctl1 {[Conductor.__name__, ComputeTask.__name__]}',
        'server start',
        'collector start',
        'expiry start',
    ]
    called.lines.clear()
    made.stop(7.0)
    assert called.lines == ['expiry stop', 'runner stop 7.0', 'collector stop', 'server stop', 'server wait']


def test_one_that_did_not_start_stops(made: ConductorManager, called: Calls) -> None:
    made._collector = None
    made.stop()
    assert called.lines == ['expiry stop', 'runner stop 30.0']


def test_without_a_broker_nothing_is_collected(site: Site) -> None:
    conf = SimpleNamespace(
        host='ctl1',
        service_down_time=60,
        report_interval=1,
        periodic_enable=True,
        reclaim_instance_interval=0,
        resize_confirm_window=0,
        rescue_timeout=0,
        shelved_offload_time=0,
        shelved_poll_interval=0,
        instance_build_timeout=0,
        heal_instance_info_cache_interval=-1,
        devices=SimpleNamespace(history_days=365),
        scheduler=SimpleNamespace(max_attempts=4),
        conductor=SimpleNamespace(flow_slots=8, flow_slots_per_host=3, lease_time=12, sweep_interval=5),
    )
    sent: list[Any] = []
    transport: Any = SimpleNamespace(send=lambda *args: sent.append(args))
    env: Any = site.env
    manager = ConductorManager(
        conf,
        transport=transport,
        databases=site.databases,
        cells=env.cells,  # type: ignore[arg-type]
        scheduler=env.scheduler,
        compute=env.compute,
        placement=env.placement,
        images=env.images,
    )
    assert manager._collector is None
    # It asks itself over the queue.
    manager.env.ping()
    ((kind, topic, namespace, server, _, _, method, args),) = sent
    assert (kind, topic, namespace, server, method) == ('call', 'conductor', 'baseapi', 'ctl1', 'ping')
    assert (manager.env.host, manager.env.max_attempts, manager.env.runner) == ('ctl1', 4, manager.runner)
    runner = manager.runner
    assert (
        runner.workers._count,
        runner.slots._a_host,
        runner.sweep_interval,
        runner._renew_interval,
        runner.leases.host,
        runner.leases._seconds,
    ) == (8, 3, 5, 2, 'ctl1', 12)
    assert manager.env.liveness.period == 10 and args is not None
