"""What a fresh machine lacks: system packages and the virtual environments.

``python3 -m tools.bootstrap`` makes them; when all is there it ends at once. ``--test`` adds what only the tests
need. Assumes git, make and Python 3.11 or newer, and apt for the system packages.
"""
from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cloud.layout import ROOT, CloudError, Layout

OLDEST = (3, 11)
POLICY = Path('/usr/sbin/policy-rc.d')
REQUIREMENTS = ROOT / 'tools' / 'cloud' / 'requirements-services.txt'
CYBORG = ROOT / 'tools' / 'cloud' / 'requirements-cyborg.txt'
NEUTRON = ROOT / 'tools' / 'cloud' / 'requirements-neutron.txt'
CINDER = ROOT / 'tools' / 'cloud' / 'requirements-cinder.txt'
ACCEPTANCE = ROOT / 'tools' / 'acceptance' / 'requirements.txt'
_ENTRY = re.compile(r'^(?P<name>[a-z0-9][a-z0-9+.-]*)\s*(?:\[(?P<profiles>[^\]]*)\])?$')


def say(text: str) -> None:
    print(f'bootstrap: {text}', flush=True)


def parse_bindep(text: str, profiles: Iterable[str]) -> list[str]:
    """The packages of bindep.txt that apply: those without a profile but ``platform:…``, and those of which a
    profile is asked for. An entry for another platform than dpkg is left out."""
    wanted, found = set(profiles), []
    for line in text.splitlines():
        entry = line.partition('#')[0].strip()
        if not entry:
            continue
        match = _ENTRY.match(entry)
        if match is None:
            raise CloudError(f'bindep.txt: cannot read {line!r}')
        marks = (match['profiles'] or '').split()
        platforms = {mark.removeprefix('platform:') for mark in marks if mark.startswith('platform:')}
        named = {mark for mark in marks if not mark.startswith('platform:')}
        if (not platforms or 'dpkg' in platforms) and (not named or named & wanted):
            found.append(match['name'])
    return found


def missing_packages(names: Sequence[str]) -> list[str]:
    """Those that dpkg doesn't have installed."""
    done = subprocess.run(['dpkg-query', '-W', '-f', '${Package} ${db:Status-Status}\n', *names],
                          capture_output=True, text=True, check=False)
    installed = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(' installed')}
    return [name for name in names if name not in installed]


def as_root(argv: Sequence[str], *, text: str | None = None) -> None:
    """Run a command as root, by sudo where we aren't."""
    prefix: list[str] = []
    if os.geteuid() != 0:
        if not shutil.which('sudo'):
            raise CloudError(f'needs root (there is no sudo): {" ".join(argv)}')
        prefix = ['sudo']
    done = subprocess.run([*prefix, *argv], input=text, text=True, check=False, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise CloudError(f'{" ".join(argv)} ended with {done.returncode}')


@contextlib.contextmanager
def services_denied() -> Iterator[None]:
    """Keep Debian's packages from starting the machine's own RabbitMQ, MariaDB, PostgreSQL and OVN: invoke-rc.d
    asks policy-rc.d, and 101 means no. A policy that is there already stays."""
    if POLICY.exists():
        yield
        return
    as_root(['tee', str(POLICY)], text='#!/bin/sh\nexit 101\n')
    try:
        as_root(['chmod', '755', str(POLICY)])
        yield
    finally:
        as_root(['rm', '-f', str(POLICY)])


def install_packages(profiles: Iterable[str]) -> None:
    """Install what is missing of bindep.txt."""
    names = parse_bindep((ROOT / 'bindep.txt').read_text(), profiles)
    if not shutil.which('dpkg-query'):
        say(f'no dpkg here: these have to be there: {" ".join(names)}')
        return
    missing = missing_packages(names)
    if not missing:
        return
    say(f'installing system packages: {" ".join(missing)}')
    apt = ['env', 'DEBIAN_FRONTEND=noninteractive', 'apt-get', '-q', '-y']
    with services_denied():
        as_root([*apt, 'update'])
        as_root([*apt, 'install', '--no-install-recommends', *missing])


def fingerprint(parts: Iterable[str], files: Iterable[Path]) -> str:
    """What a virtual environment was made from."""
    total = hashlib.sha256('\0'.join(parts).encode())
    for path in files:
        total.update(path.read_bytes())
    return total.hexdigest()


def ensure_environment(directory: Path, what: str, arguments: Sequence[str], files: Sequence[Path]) -> None:
    """Make a virtual environment and install into it, unless it was made from the same things before.

    ``arguments``: of ``pip install``.
    """
    stamp = directory / '.stamp'
    wanted = fingerprint([sys.version, str(directory), *arguments], files)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f'installing {what} into {directory.name} (downloads; takes a minute or two the first time)')
    python = directory / 'bin' / 'python'
    if not python.exists() or made_with_another(directory):
        _pip([sys.executable, '-m', 'venv', '--clear', str(directory)])
    stamp.unlink(missing_ok=True)
    _pip([str(python), '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', *arguments])
    stamp.write_text(wanted)
    say(f'{directory.name} is ready')


def of_a_service(requirements: Path) -> list[str]:
    """Arguments of pip for one: its daemons import a small part of what is installed, and compile that once."""
    return ['--no-compile', '-r', str(requirements)]


def made_with_another(directory: Path) -> bool:
    """Whether a virtual environment says that its interpreter is not this one."""
    settings = directory / 'pyvenv.cfg'
    home = re.search(r'^home = (.*)$', settings.read_text() if settings.exists() else '', re.MULTILINE)
    return home is not None and home[1] != sysconfig.get_config_var('BINDIR')


def _pip(argv: Sequence[str]) -> None:
    done = subprocess.run(list(argv), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CloudError(f'{" ".join(argv)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}')


def environments(layout: Layout, *, services: bool, tempest: bool = False, cyborg: bool = False,
                 network: bool = False, volume: bool = False) -> None:
    """The project's environment and, where asked for, that of Keystone, Glance and Placement, and those of Cyborg,
    Neutron, Cinder and Tempest, side by side. One that KILONOVA_VENV, KILONOVA_SERVICES_VENV, KILONOVA_CYBORG_VENV,
    KILONOVA_NEUTRON_VENV, KILONOVA_CINDER_VENV or KILONOVA_TEMPEST_VENV names is another's to keep."""
    jobs = []
    if not os.environ.get('KILONOVA_VENV'):
        jobs.append((layout.venv, 'Kilonova', ['-e', '.[test]'], [ROOT / 'setup.cfg', ROOT / 'pyproject.toml']))
    if services and not os.environ.get('KILONOVA_SERVICES_VENV'):
        jobs.append((layout.services_venv, 'Keystone, Glance and Placement', of_a_service(REQUIREMENTS),
                     [REQUIREMENTS]))
    if cyborg and not os.environ.get('KILONOVA_CYBORG_VENV'):
        jobs.append((layout.cyborg_venv, 'Cyborg', of_a_service(CYBORG), [CYBORG]))
    if network and not os.environ.get('KILONOVA_NEUTRON_VENV'):
        jobs.append((layout.neutron_venv, 'Neutron', of_a_service(NEUTRON), [NEUTRON]))
    if volume and not os.environ.get('KILONOVA_CINDER_VENV'):
        jobs.append((layout.cinder_venv, 'Cinder', of_a_service(CINDER), [CINDER]))
    if tempest and not os.environ.get('KILONOVA_TEMPEST_VENV'):
        jobs.append((layout.tempest_venv, 'Tempest', ['-r', str(ACCEPTANCE)], [ACCEPTANCE]))
    # More than there are cores: half of the time each waits for downloads.
    with ThreadPoolExecutor(max(len(jobs), 1)) as pool:
        for future in [pool.submit(ensure_environment, *job) for job in jobs]:
            future.result()


def foreign(environment: Path) -> str | None:
    """What is wrong with the code that an environment runs: programs such as kilonova-api are those that were installed
    into it, whatever tree make is called in."""
    done = subprocess.run([str(environment / 'bin' / 'python'), '-c', 'import kilonova; print(kilonova.__file__)'],
                          cwd='/', capture_output=True, text=True, check=False)
    if done.returncode:
        return f'{environment} has no Kilonova; install this tree into it: {environment}/bin/pip install -e {ROOT}'
    found = Path(done.stdout.strip()).resolve().parents[1]
    if found == ROOT:
        return None
    return (f'the daemons of {environment} run the code of {found}, not of this tree ({ROOT}). Leave KILONOVA_VENV '
            f'out, or install this tree into it: {environment}/bin/pip install -e {ROOT}')


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog='python3 -m tools.bootstrap', description=__doc__)
    parser.add_argument('--test', action='store_true',
                        help='also what only the tests need: MariaDB, PostgreSQL, libvirtd, QEMU, Cyborg, Neutron, '
                             'Cinder')
    parser.add_argument('--guests', action='store_true', help='also what real guests need: libvirtd, QEMU, syslinux')
    parser.add_argument('--cyborg', action='store_true', help='also Cyborg, the accelerator service')
    parser.add_argument('--network', action='store_true', help='also Neutron, the network service, and OVN')
    parser.add_argument('--volume', action='store_true', help='also Cinder, the volume service')
    parser.add_argument('--vfio', action='store_true', help='also what the nested machine of make test-vfio is made by')
    parser.add_argument('--ceph', action='store_true', help='also the Ceph of make test-ceph')
    parser.add_argument('--tempest', action='store_true', help="also Tempest, the field's acceptance suite")
    parser.add_argument('--no-services', action='store_true', help='without Keystone, Glance and Placement')
    args = parser.parse_args(argv)
    if sys.version_info < OLDEST:
        print(f'error: Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, {sys.executable} is older; '
              f'choose one with: make PYTHON=python3.12 ...', file=sys.stderr)
        return 1
    try:
        install_packages([name for name, asked in (
            ('test', args.test), ('guests', args.guests or args.vfio), ('vfio', args.vfio),
            ('network', args.network), ('ceph', args.ceph)) if asked])
        layout = Layout.at()
        environments(layout, services=not args.no_services, tempest=args.tempest,
                     cyborg=args.cyborg or args.test, network=args.network or args.test,
                     volume=args.volume or args.test)
        if os.environ.get('KILONOVA_VENV') and (wrong := foreign(layout.venv)) is not None:
            say(f'WARNING: {wrong}')
    except CloudError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
