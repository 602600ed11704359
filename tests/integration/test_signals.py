"""The four daemons and their signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.integration.site import Site

DAEMONS = ('conductor', 'scheduler', 'api', 'compute-gpu1', 'compute-gpu2')
PATIENCE = 30.0


def await_true(question: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not question():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_sighup_takes_over_the_log_level(site: Site) -> None:
    """The level changes to and fro in the living process."""
    before, plain = site.pids(), site.flavor('signal-plain')
    for debug in (True, False):
        site.configure(f'[DEFAULT]\ndebug = {debug}\n')
        sizes = {name: site.log_size(name) for name in DAEMONS}
        for name in DAEMONS:
            os.kill(before[name], signal.SIGHUP)
        for name, size in sizes.items():
            await_true(lambda name=name, size=size: 'Caught SIGHUP' in site.log_after(name, size), f'{name}: no SIGHUP')
        time.sleep(0.5)
        sizes = {name: site.log_size(name) for name in DAEMONS}
        for host in ('gpu1', 'gpu2'):
            site.boot(1, plain, user='admin', host=host)
        told = {name: ' DEBUG ' in site.log_after(name, size) for name, size in sizes.items()}
        # The API has nothing to tell in the good case.
        assert {name: found for name, found in told.items() if name != 'api'} == dict.fromkeys(
            [name for name in DAEMONS if name != 'api'], debug
        )
    assert site.pids() == before


def test_sigusr2_writes_a_report_without_passwords(site: Site) -> None:
    """SIGUSR2 makes a daemon write a guru meditation report with threads and options, without passwords. The
    process goes on."""
    before = site.pids()
    for name, pid in before.items():
        size = site.log_size(name)
        os.kill(pid, signal.SIGUSR2)
        await_true(
            lambda name=name, size=size: (
                'Guru Meditation' in site.log_after(name, size) and 'service_down_time' in site.log_after(name, size)
            ),
            f'{name}: no report',
        )
        time.sleep(0.2)
        report = site.log_after(name, size)
        assert 'Threads' in report
        assert [account for account, password in site.cloud.secrets.items() if password in report] == []
    assert site.pids() == before
    (server,) = site.boot(1, site.flavor('signal-plain'))
    assert site.servers()[server]['status'] == 'ACTIVE'


@pytest.mark.parametrize('daemon', ['conductor', 'scheduler', 'api', 'compute-gpu1'])
def test_sigterm_ends_gracefully_in_the_middle_of_boots(site: Site, daemon: str) -> None:
    """Exit code 0 within the limit; after the next start every boot has come to its end, none of them failed."""
    gpu = site.flavor('signal-gpu', gpus=1)
    servers = site.at_once(lambda number: site.create(f'signal-{number}', gpu), range(6))
    time.sleep(0.5)
    began = time.monotonic()
    assert site.terminate(daemon, within=60) == 0
    print(f'TERMINATED {daemon} within {time.monotonic() - began:.1f} s')
    site.start(daemon)
    shown = site.settle(servers)
    assert {row['status'] for row in shown.values()} == {'ACTIVE'}, site.tell(shown)
    site.audit()
