"""A compute of the release before under the control plane of this one ([upgrade_levels])."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kilonova.rpc import versions
from kilonova.rpc.compute import Compute
from tests.integration.beside import Beside
from tests.integration.site import Site
from tests.integration.test_signals import await_true
from tools.cloud import control
from tools.cloud.layout import ROOT

DECLARED = 'kilonova/rpc/compute.py'
HISTORY = versions.HISTORY[versions.SERVICE_VERSION - 1]


def git(*arguments: str) -> bytes:
    return subprocess.run(['git', *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def release_before() -> str | None:
    """The newest commit whose computes speak an older version; None where the history doesn't reach so far."""
    try:
        commits = git('log', '--format=%H', '--', DECLARED).decode().split()
    except (OSError, subprocess.CalledProcessError):
        return None
    newest = 'HEAD'
    for commit in commits:
        found = re.search(r"version = '([\d.]+)'", git('show', f'{commit}:{DECLARED}').decode())
        if found and found[1] != Compute.version:
            return newest
        # What came right before the version that is spoken now; the file itself may be much older.
        newest = f'{commit}~'
    return None


@pytest.fixture
def old_source(tmp_path: Path) -> Path:
    """The package as it was."""
    commit = release_before()
    if commit is None:
        pytest.skip('the history of this checkout does not reach back to the release before (a shallow clone)')
    source = tmp_path / 'source'
    source.mkdir()
    subprocess.run(['tar', '-x', '-C', str(source)], input=git('archive', commit, 'kilonova'), check=True)
    return source


def test_a_compute_of_the_release_before(site: Site, old_source: Path, tmp_path: Path) -> None:
    """A compute of the previous release reports, builds and deletes servers under the control plane of this
    release, and the audit finds no difference. The new compute then takes its host over."""
    gpu = site.flavor('upgrade-gpu', gpus=1)
    site.stop('compute-gpu1')
    began = time.time()
    try:
        with Beside(
            site,
            'python',
            '-P',
            '-m',
            'kilonova.cmd.compute',
            directory=tmp_path,
            files=[site.layout.compute_conf('gpu1')],
            env={'PYTHONPATH': str(old_source)},
        ) as old:
            # The new compute's last report may be written after it ended.
            old.until(lambda: control.serves(site.cloud, 'compute-gpu1') and reported(site) > began, 'a report')
            size = site.log_size('conductor')
            refresh(site)
            (server,) = site.boot(1, gpu, user='admin', host='gpu1')
            assert len(site.hostdevs('gpu1', server)) == 1
            assert (
                f'Automatically selected compute RPC version {HISTORY["compute"]} from minimum service version '
                f'{versions.SERVICE_VERSION - 1}'
            ) in site.log_after('conductor', size)
            site.act(server, 'os-stop')
            site.await_status([server], 'SHUTOFF')
            site.audit()
            site.clean()
            site.assert_nothing_held()
            assert 'Traceback' not in old.log()
            assert old.terminate() == 0
    finally:
        site.start('compute-gpu1')
        size = site.log_size('conductor')
        refresh(site)
    site.boot(1, gpu, user='admin', host='gpu1')
    assert f'from minimum service version {versions.SERVICE_VERSION}' in site.log_after('conductor', size)


def reported(site: Site) -> float:
    """When the compute of gpu1 last reported, in seconds since 1970."""
    rows = control.Compute(site.cloud).services()
    return control.reported(next(row for row in rows if row['host'] == 'gpu1'))


def refresh(site: Site) -> None:
    """What an operator does when computes were upgraded."""
    for name in ('conductor', 'api'):
        size = site.log_size(name)
        os.kill(site.pid(name), signal.SIGHUP)
        await_true(lambda name=name, size=size: 'be looked up again' in site.log_after(name, size), f'{name} SIGHUP')
