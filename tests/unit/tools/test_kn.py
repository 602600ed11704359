"""Tests of bin/kn, which runs kilonova-manage with the configuration files of the one-machine cloud."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tools.cloud import control, ports
from tools.cloud.layout import DEFAULT_HOSTS, ROOT, Layout, find_hosts

ECHO = '#!/bin/sh\nprintf "%s\\n" "$@"\nexit 7\n'


@pytest.fixture
def cloud(tmp_path: Path) -> Path:
    """The directory of a cloud that somebody brought up with a file of his own, and an environment whose
    kilonova-manage prints its arguments."""
    var, hosts = tmp_path / 'var', find_hosts(DEFAULT_HOSTS)
    layout = Layout.at(var)
    layout.make_directories()
    extra = tmp_path / 'more.conf'
    extra.write_text('')
    control.settings_path(layout).write_text(json.dumps({'hosts': str(DEFAULT_HOSTS), 'extra': str(extra)}))
    numbers: Iterable[tuple[int, str]] = enumerate(ports.names_for(hosts), start=20000)
    (var / 'ports.json').write_text(json.dumps({name: number for number, name in numbers}))
    (tmp_path / 'venv' / 'bin').mkdir(parents=True)
    echo = tmp_path / 'venv' / 'bin' / 'kilonova-manage'
    echo.write_text(ECHO)
    echo.chmod(0o755)
    (tmp_path / 'venv' / 'bin' / 'python').symlink_to(os.path.realpath('/proc/self/exe'))
    return tmp_path


def run(cloud: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / 'bin' / 'kn', *arguments],
        cwd='/',
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, 'KILONOVA_VENV': str(cloud / 'venv'), 'VAR': str(cloud / 'var')},
    )


def test_all_files_and_all_arguments(cloud: Path) -> None:
    done = run(cloud, 'pci', 'list', '--host', 'gpu 1', '--free')
    assert (done.returncode, done.stderr) == (7, '')
    assert done.stdout.splitlines() == [
        '--config-file',
        str(cloud / 'var' / 'etc' / 'kilonova.conf'),
        '--config-file',
        str(cloud / 'more.conf'),
        'pci',
        'list',
        '--host',
        'gpu 1',
        '--free',
    ]


def test_its_own_help(cloud: Path) -> None:
    assert run(cloud, '--help').stdout.splitlines()[-1] == '--help'


def test_without_a_cloud(cloud: Path) -> None:
    control.settings_path(Layout.at(cloud / 'var')).unlink()
    done = run(cloud, 'pci', 'list')
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr == 'error: there is no cloud here; start one with: make up\n'
