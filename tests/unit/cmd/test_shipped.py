"""What is shipped beside the package: unit files, programs, the log sample; and a daemon run by hand."""

from __future__ import annotations

import configparser
import importlib.metadata
import logging
import logging.config
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kilonova.db import engine, migration

ROOT = Path(__file__).parents[3]
UNITS = ROOT / 'etc' / 'systemd'
DAEMONS = ('api', 'conductor', 'scheduler', 'compute')
PROXIES = ('novncproxy', 'serialproxy', 'spicehtml5proxy')


def unit(daemon: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / f'kilonova-{daemon}.service')
    return parser['Service']


@pytest.mark.parametrize('daemon', DAEMONS + PROXIES)
def test_unit_files(daemon):
    """Each unit file has a user, a restart after failures and a reload by SIGHUP. Workers are ended by their parent."""
    service = unit(daemon)
    assert (service['User'], service['Restart'], service['KillMode']) == ('kilonova', 'on-failure', 'mixed')
    assert service['ExecReload'] == '/bin/kill -HUP $MAINPID'
    program = service['ExecStart'].split()
    assert Path(program[0]).name == f'kilonova-{daemon}'
    assert program[1:3] == ['--config-file', '/etc/kilonova/kilonova.conf']
    assert int(service['TimeoutStopSec']) > 160 + 5
    assert {path.name for path in UNITS.iterdir()} == {f'kilonova-{name}.service' for name in DAEMONS + PROXIES}


@pytest.mark.parametrize('daemon', DAEMONS + PROXIES)
def test_systemd_takes_the_unit_files(daemon, tmp_path):
    """systemd-analyze reports nothing about the unit files if their programs and users exist."""
    if not shutil.which('systemd-analyze'):
        pytest.skip('systemd-analyze is not installed')
    text = (UNITS / f'kilonova-{daemon}.service').read_text()
    text = re.sub(r'(?m)^(User|Group|SupplementaryGroups)=.*\n', '', text)
    text = re.sub(r'/opt/kilonova/bin/\S+', '/bin/true', text)
    path = tmp_path / f'kilonova-{daemon}.service'
    path.write_text(text)
    done = subprocess.run(
        ['systemd-analyze', 'verify', '--man=no', str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    told = [line for line in done.stderr.splitlines() if 'kilonova' in line]
    assert (done.returncode, told) == (0, [])


@pytest.mark.parametrize('program', [f'kilonova-{name}' for name in (*DAEMONS, 'manage', 'status')])
def test_programs_are_entry_points(program):
    """Each program is an entry point that loads a function main."""
    (entry,) = importlib.metadata.entry_points(group='console_scripts', name=program)
    assert entry.load().__name__ == 'main'


def test_the_log_sample_is_one(monkeypatch, tmp_path):
    """logging.conf.sample works as [DEFAULT]log_config_append."""
    monkeypatch.chdir(tmp_path)
    before, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        logging.config.fileConfig(ROOT / 'etc' / 'kilonova' / 'logging.conf', disable_existing_loggers=False)
        assert logging.getLogger('kilonova').level == logging.INFO
        assert not logging.getLogger('kilonova').propagate
    finally:
        for name in (
            'kilonova',
            'kilonova.api.requests',
            'eventlet.wsgi.server',
            'oslo_messaging',
            'sqlalchemy.engine',
        ):
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).setLevel(logging.NOTSET)
            logging.getLogger(name).propagate = True
        logging.getLogger().handlers[:] = before
        logging.getLogger().setLevel(level)


@pytest.mark.parametrize('backend', ['eventlet', 'threading'])
def test_a_daemon_by_hand(write_conf, tmp_path, backend):
    """A daemon that is started by hand reads several --config-file as one configuration and stays in the
    foreground. It logs version, process and request to stderr, or to --log-file. SIGTERM ends it."""
    first = write_conf(sections='[scheduler]\nworkers = 9')
    second = tmp_path / 'second.conf'
    second.write_text(f'[scheduler]\nworkers = 1\n[DEFAULT]\nconcurrency_backend = {backend}\nreport_interval = 60\n')
    for name, schema in (('api', 'api'), ('main', 'cell')):
        database = engine.Database(f'sqlite:///{tmp_path}/{name}.db', name)
        migration.sync(database, schema)
        database.dispose()
    argv = [sys.executable, '-m', 'kilonova.cmd.scheduler', '--config-file', first, '--config-file', str(second)]
    if backend == 'threading':
        argv += ['--log-file', str(tmp_path / 'scheduler.log')]
    # A pipe would be enough to read the log, if nothing of the daemon's could fill it: a file can't be full.
    with (tmp_path / 'stderr').open('w') as stderr:
        daemon = subprocess.Popen(argv, stderr=stderr, stdout=stderr, cwd=tmp_path)
        log = tmp_path / ('scheduler.log' if backend == 'threading' else 'stderr')
        try:
            while 'Weighers: ' not in (log.read_text() if log.exists() else ''):
                with pytest.raises(subprocess.TimeoutExpired):
                    daemon.wait(0.1)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()
            daemon.wait()
    assert re.search(
        r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \d+ INFO kilonova\.cmd\.daemon\.program \[-\] '
        r'Starting scheduler node \(version \d+\.\d+\S*\)',
        log.read_text(),
    )
    assert 'Caught SIGTERM, ending' in log.read_text()
