"""Daemons of several processes: one socket, restarts, signals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.integration.beside import Beside, free_port
from tests.integration.site import Site


def test_workers_of_the_api_share_a_socket(site: Site, tmp_path: Path) -> None:
    """Two workers of the API share one socket. When one is killed it is replaced, and meanwhile the other answers
    every request. This daemon runs on native threads, that of the next test on green threads."""
    port, health = free_port(), free_port()
    settings = (
        f'[DEFAULT]\nhost = ctl2\nosapi_compute_listen_port = {port}\nosapi_compute_workers = 2\n'
        f'[health]\napi_port = {health}\n'
    )
    with Beside(
        site, 'kilonova-api', directory=tmp_path, settings=settings, env={'KILONOVA_CONCURRENCY': 'threading'}
    ) as api:
        api.await_log('Listening on 127.0.0.1', times=2)
        before = api.workers()
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        token = {'X-Auth-Token': site.token('demo')}
        codes = site.at_once(lambda number: api.get(port, '/v2.1/servers', token).status, range(40), threads=8)
        assert set(codes) == {200}
        api.await_log('Listening on 127.0.0.1', times=3)
        assert f'(pid {before[0]}) ended with -9; starting it again in 1 s' in api.log()
        after = api.workers()
        assert len(after) == 2 and before[1] in after and before[0] not in after
        report = api.get(health, '/health')
        assert (report.status, report.data['unreachable']) == (200, [])
        os.kill(api.process.pid, signal.SIGHUP)
        # The parent and both workers.
        api.await_log('Caught SIGHUP', times=3)
        os.kill(api.process.pid, signal.SIGUSR2)
        api.until(lambda: api.log().count('Guru Meditation') >= 2, 'a report of each worker')
        assert api.get(port, '/v2.1/servers', token).status == 200
        assert api.terminate() == 0


def test_a_conductor_of_two_workers_loses_one_in_the_middle_of_boots(site: Site, tmp_path: Path) -> None:
    """The other one takes over what it had; every boot ends well."""
    gpu, plain = site.flavor('workers-gpu', gpus=1), site.flavor('workers-plain')
    settings = (
        '[DEFAULT]\nhost = ctl2\n[conductor]\nworkers = 2\nlease_time = 5\nsweep_interval = 2\n'
        f'[health]\nconductor_port = {free_port()}\n'
    )
    with Beside(
        site, 'kilonova-conductor', directory=tmp_path, settings=settings, env={'KILONOVA_CONCURRENCY': 'eventlet'}
    ) as conductor:
        conductor.await_log('Starting conductor node', times=2)
        site.stop('conductor')
        try:
            servers = site.at_once(
                lambda number: site.create(f'workers-{number}', gpu if number % 2 else plain), range(8)
            )
            os.kill(conductor.workers()[0], signal.SIGKILL)
            shown = site.settle(servers)
            assert {row['status'] for row in shown.values()} == {'ACTIVE'}, site.tell(shown)
            conductor.await_log('Starting conductor node', times=3)
            assert conductor.terminate() == 0
        finally:
            site.start('conductor')
    site.audit()
    for row in site.call('GET', '/os-services?host=ctl2', user='admin')['services']:
        site.call('DELETE', f'/os-services/{row["id"]}', user='admin')
