"""The wheel for machines without a checkout contains the package and the files that operators need."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DAEMONS = ('api', 'conductor', 'scheduler', 'compute', 'novncproxy', 'serialproxy', 'spicehtml5proxy')
# Where it is below the environment's directory → the one file of the tree.
BESIDE = {
    'share/kilonova/kilonova.conf': 'etc/kilonova/kilonova.conf',
    'share/kilonova/logging.conf': 'etc/kilonova/logging.conf',
    'share/kilonova/policy.yaml.sample': 'etc/kilonova/policy.yaml.sample',
    'share/kilonova/logrotate.d/kilonova': 'etc/logrotate.d/kilonova',
    **{f'share/kilonova/systemd/kilonova-{name}.service': f'etc/systemd/kilonova-{name}.service' for name in DAEMONS},
}


@pytest.fixture(scope='module')
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, unpacked as its format says: ``data`` of its data directory is what goes below the
    environment's directory. Not by pip, which would first take away what the environment of this run has."""
    where = tmp_path_factory.mktemp('wheel')
    # In a copy: setuptools writes its files beside setup.cfg.
    source = where / 'source'
    for name in ('kilonova', 'etc'):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('setup.cfg', 'pyproject.toml', 'README.md', 'LICENSE'):
        shutil.copy(ROOT / name, source)
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'pip',
            'wheel',
            '--disable-pip-version-check',
            '--no-deps',
            '--no-index',
            '--no-build-isolation',
            '-w',
            str(where / 'dist'),
            str(source),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (where / 'dist').iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(where / 'unpacked')
    return where / 'unpacked'


@pytest.fixture
def prefix(installed: Path) -> Path:
    """What goes below the environment's directory."""
    (data,) = installed.glob('kilonova-*.data')
    assert {path.name for path in data.iterdir()} == {'data'}
    return data / 'data'


def test_it_brings_what_operators_need(prefix: Path) -> None:
    found = {str(path.relative_to(prefix)): path.read_bytes() for path in prefix.rglob('*') if path.is_file()}
    assert found == {path: (ROOT / source).read_bytes() for path, source in BESIDE.items()}


def test_it_brings_the_whole_package(installed: Path) -> None:
    """Templates of migrations are no Python."""

    def files(directory: Path) -> set[str]:
        return {
            str(path.relative_to(directory))
            for path in directory.rglob('*')
            if path.is_file() and '__pycache__' not in path.parts
        }

    assert files(installed / 'kilonova') == files(ROOT / 'kilonova')


def test_it_brings_the_programs(installed: Path) -> None:
    (path,) = installed.glob('kilonova-*.dist-info/entry_points.txt')
    entries = configparser.ConfigParser(delimiters='=')
    entries.read(path)
    units = [(ROOT / source).read_text() for source in BESIDE.values() if source.endswith('.service')]
    started = {Path(word).name for text in units for word in re.findall(r'(?m)^ExecStart=(\S+)', text)}
    assert len(started) == len(DAEMONS)
    assert started | {'kilonova-manage', 'kilonova-status', 'kilonova-policy'} == set(entries['console_scripts'])


def test_the_page_names_each_file() -> None:
    page = (ROOT / 'docs' / 'admin' / 'install.md').read_text()
    assert '/opt/kilonova/share/kilonova' in page
    named = set(re.findall(r'`([\w./{},-]+)`', page))
    named |= {name.replace(f'{{{",".join(DAEMONS)}}}', daemon) for name in named for daemon in DAEMONS}
    assert {path.removeprefix('share/kilonova/') for path in BESIDE} <= named
