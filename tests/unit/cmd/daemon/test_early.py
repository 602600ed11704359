from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kilonova.cmd.daemon import early


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize('program', ['api', 'conductor', 'scheduler', 'compute'])
def test_nothing_is_imported_before_the_choice(program):
    script = (
        f'import sys, kilonova.cmd.{program}; '
        'print([m for m in sys.modules if m.startswith(("oslo", "eventlet", "sqlalchemy", "requests"))])'
    )
    done = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '[]'


BUILD = """
import sys
from kilonova.cmd.daemon import early
early.setup([], 'kilonova-compute')
from kilonova.cmd import compute, options
compute.build(options.parse(['--config-file', sys.argv[1]], 'kilonova-compute'))
print([name for name in sys.modules if name.split('.')[0] in ('sqlalchemy', 'alembic', 'pymysql')])
"""


def test_a_compute_loads_nothing_of_databases(tmp_path):
    path = tmp_path / 'k.conf'
    path.write_text(
        '[DEFAULT]\nhost = gpu1\ntransport_url = fake:/\ncompute_driver = libvirt.LibvirtDriver\n'
        f'state_path = {tmp_path}\n[libvirt]\nconnection_uri = test:///default\n'
        '[placement]\nauth_type = none\nendpoint_override = http://127.0.0.1:1/\n'
        '[glance]\nauth_type = none\nendpoint_override = http://127.0.0.1:1/\n'
    )
    done = subprocess.run([sys.executable, '-c', BUILD, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == '[]', done.stderr


def test_files_and_directories_of_the_command_line(tmp_path):
    """Several --config-file and --config-dir are read in their order; of a directory the files *.conf by name."""
    folder = tmp_path / 'conf.d'
    folder.mkdir()
    for name in ('b.conf', 'a.conf', 'c.txt'):
        (folder / name).write_text('')
    found = early.config_files(
        ['--config-file', 'one', '--debug', f'--config-dir={folder}', '--config-file=two'], places=()
    )
    assert found == [Path('one'), Path('two'), folder / 'a.conf', folder / 'b.conf']


def test_files_of_the_usual_places(tmp_path):
    home, etc = tmp_path / 'home', tmp_path / 'etc'
    for path in (home, etc / 'kilonova.conf.d'):
        path.mkdir(parents=True)
    for path in (
        home / 'kilonova-api.conf',
        etc / 'kilonova.conf',
        etc / 'kilonova-api.conf',
        etc / 'kilonova.conf.d' / 'x.conf',
    ):
        path.write_text('')
    found = early.config_files([], 'kilonova-api', places=(home, etc))
    assert found == [etc / 'kilonova.conf', home / 'kilonova-api.conf', etc / 'kilonova.conf.d' / 'x.conf']


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('[DEFAULT]\nconcurrency_backend = threading\n', 'threading'),
        ('[DEFAULT]\nconcurrency_backend: "native"  \n[api]\nconcurrency_backend = eventlet\n', 'native'),
        ('[api]\nconcurrency_backend = eventlet\n', None),
        ('[DEFAULT]\n# concurrency_backend = eventlet\n', None),
    ],
)
def test_value_in_a_file(tmp_path, text, value):
    path = tmp_path / 'k.conf'
    path.write_text(text)
    assert early.configured([tmp_path / 'missing', path]) == value


def test_last_file_wins(tmp_path):
    for number, value in enumerate(('eventlet', 'native')):
        (tmp_path / str(number)).write_text(f'[DEFAULT]\nconcurrency_backend={value}\n')
    assert early.configured([tmp_path / '0', tmp_path / '1']) == 'native'


def test_choice_reaches_concurrency(tmp_path, monkeypatch):
    chosen = []
    monkeypatch.setattr(early.concurrency, 'setup', chosen.append)
    monkeypatch.delenv('KILONOVA_CONCURRENCY', raising=False)
    path = tmp_path / 'k.conf'
    path.write_text('[DEFAULT]\nconcurrency_backend = native\n')
    early.setup(['--config-file', str(path)])
    path.write_text('[DEFAULT]\n')
    early.setup(['--config-file', str(path)])
    monkeypatch.setenv('KILONOVA_CONCURRENCY', 'threading')
    early.setup(['--config-file', str(path)])
    assert chosen == ['threading', 'eventlet', 'threading']


def test_meaningless_choice_ends_the_program(monkeypatch):
    monkeypatch.setenv('KILONOVA_CONCURRENCY', 'fibres')
    with pytest.raises(SystemExit, match="'fibres'"):
        early.setup([])
