"""Install what a fresh machine lacks: system packages and the virtual environments.

``python3 -m tools.bootstrap`` does so; when all is there it ends at once. ``--test`` adds what only the tests need. It
assumes git, make and Python 3.11 or newer, and apt for the system packages.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.cloud.layout import ROOT, CloudError, Layout, own_environment

OLDEST = (3, 11)
UV = 'uv==0.13.9'
POLICY = Path('/usr/sbin/policy-rc.d')
REQUIREMENTS = ROOT / 'tools' / 'cloud' / 'requirements-services.txt'
CYBORG = ROOT / 'tools' / 'cloud' / 'requirements-cyborg.txt'
NEUTRON = ROOT / 'tools' / 'cloud' / 'requirements-neutron.txt'
CINDER = ROOT / 'tools' / 'cloud' / 'requirements-cinder.txt'
CONSTRAINTS = ROOT / 'constraints.txt'
# Stands in each file of requirements between what is chosen by hand and what make lock renews.
BROUGHT = '# What make lock renews: all that these require.'
ACCEPTANCE = ROOT / 'tools' / 'acceptance' / 'requirements.txt'
_ENTRY = re.compile(r'^(?P<name>[a-z0-9][a-z0-9+.-]*)\s*(?:\[(?P<profiles>[^\]]*)\])?$')


def say(text: str) -> None:
    """Print a line that names this program."""
    print(f'bootstrap: {text}', flush=True)


def parse_bindep(text: str, profiles: Iterable[str]) -> list[str]:
    """Return the packages of bindep.txt for dpkg that belong to no profile or to one of these profiles.

    An entry for another platform alone is left out.
    """
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
    """Return the packages that dpkg does not list as installed."""
    done = subprocess.run(
        ['dpkg-query', '-W', '-f', '${Package} ${db:Status-Status}\n', *names],
        capture_output=True,
        text=True,
        check=False,
    )
    installed = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(' installed')}
    return [name for name in names if name not in installed]


def as_root(argv: Sequence[str], *, text: str | None = None) -> None:
    """Run a command as root, by sudo if this process is not root."""
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
    """Keep Debian's packages from starting the machine's own RabbitMQ, MariaDB, PostgreSQL and OVN.

    invoke-rc.d asks policy-rc.d, whose exit code 101 means no. A policy that exists already stays.
    """
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
    """Install the system packages of bindep.txt that are missing."""
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
    """Return a hash of what a virtual environment is made from."""
    total = hashlib.sha256('\0'.join(parts).encode())
    for path in files:
        total.update(path.read_bytes())
    return total.hexdigest()


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is wanted.

    ``arguments`` are those of ``uv pip install``; ``files`` are the files that they depend on.
    """

    directory: Path
    what: str
    arguments: tuple[str, ...]
    files: tuple[Path, ...]

    @property
    def fingerprint(self) -> str:
        """The hash of the interpreter, the directory, the arguments and the files."""
        return fingerprint([sys.version, str(self.directory), *self.arguments], self.files)

    @property
    def is_there(self) -> bool:
        """Whether the environment was made from the same things before."""
        stamp = self.directory / '.stamp'
        return stamp.exists() and stamp.read_text() == self.fingerprint

    def make(self, uv: Path, settings: Mapping[str, str]) -> None:
        """Make the environment, or bring it up to date, with uv. ``settings`` are environment variables for uv."""
        say(f'installing {self.what} into {self.directory.name} (downloads)')
        python = self.directory / 'bin' / 'python'
        if not python.exists() or made_with_another(self.directory):
            # With pip, for those who want to add a filter or a driver of their own.
            _run(
                [str(uv), 'venv', '--quiet', '--clear', '--seed', '--python', sys.executable, str(self.directory)],
                settings,
            )
        (self.directory / '.stamp').unlink(missing_ok=True)
        # Packages without a wheel are built with the setuptools of constraints.txt, too.
        _run(
            [
                *(str(uv), 'pip', 'install', '--quiet', '--python', str(python)),
                *('--build-constraints', str(CONSTRAINTS), *self.arguments),
            ],
            settings,
        )
        (self.directory / '.stamp').write_text(self.fingerprint)
        say(f'{self.directory.name} is ready')


def ensure_uv(directory: Path) -> Path:
    """Install uv, which fills all environments, into an environment of its own; return its path.

    pip would take six times as much of the CPU.
    """
    uv, stamp = directory / 'bin' / 'uv', directory / '.stamp'
    wanted = fingerprint([sys.version, UV], [])
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f'installing {UV} into {directory.name}')
        _run([sys.executable, '-m', 'venv', '--clear', str(directory)])
        _run([str(directory / 'bin' / 'pip'), 'install', '--quiet', '--disable-pip-version-check', UV])
        stamp.write_text(wanted)
    return uv


# What pip calls a setting, and the variable by which uv is told it, with what several of them are joined by.
_SETTINGS = {
    'index-url': ('UV_DEFAULT_INDEX', ' '),
    'extra-index-url': ('UV_INDEX', ' '),
    'find-links': ('UV_FIND_LINKS', ','),
    'no-index': ('UV_NO_INDEX', ' '),
    'constraint': ('UV_CONSTRAINT', ' '),
    'trusted-host': ('UV_INSECURE_HOST', ' '),
    'cert': ('SSL_CERT_FILE', ' '),
    'client-cert': ('SSL_CLIENT_CERT', ' '),
    'timeout': ('UV_HTTP_TIMEOUT', ' '),
    'default-timeout': ('UV_HTTP_TIMEOUT', ' '),
    'proxy': ('ALL_PROXY', ' '),
}


def settings_of_pip(listed: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that tell uv what ``pip config list`` printed: users of a private registry told pip.

    A variable that the environment has already is left out.
    """
    found: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        place, _, said = line.partition('.')
        name, _, value = said.partition('=')
        if name in _SETTINGS and place in _PLACES:
            variable, separator = _SETTINGS[name]
            text = separator.join(str(ast.literal_eval(value)).split())
            found[variable] = max(found.get(variable, (-1, '')), (_PLACES.index(place), text))
    # As pip does unasked: of several indexes the newest package, and the machine's own certificates.
    told = {'UV_INDEX_STRATEGY': 'unsafe-best-match', 'UV_SYSTEM_CERTS': 'true'}
    told |= {variable: text for variable, (_, text) in found.items()}
    return {variable: text for variable, text in told.items() if variable not in environ}


# Where pip's settings stand, the strongest last.
_PLACES = ('global', 'install', ':env:')


def made_with_another(directory: Path) -> bool:
    """Return whether a virtual environment names another interpreter than the one that runs."""
    settings = directory / 'pyvenv.cfg'
    home = re.search(r'^home = (.*)$', settings.read_text() if settings.exists() else '', re.MULTILINE)
    return home is not None and home[1] != sysconfig.get_config_var('BINDIR')


def _run(argv: Sequence[str], more: Mapping[str, str] = {}) -> str:
    """Run a command to its end and return its output. ``more`` are environment variables in addition."""
    done = subprocess.run(list(argv), cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CloudError(f'{" ".join(argv)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}')
    return done.stdout


def environments(
    layout: Layout,
    *,
    services: bool,
    tempest: bool = False,
    cyborg: bool = False,
    network: bool = False,
    volume: bool = False,
) -> None:
    """Make the project's virtual environment, and those of services that are asked for, at the same time.

    ``services`` are Keystone, Glance and Placement. An environment that KILONOVA_VENV, KILONOVA_SERVICES_VENV,
    KILONOVA_CYBORG_VENV, KILONOVA_NEUTRON_VENV, KILONOVA_CINDER_VENV or KILONOVA_TEMPEST_VENV names is left as it is.
    """
    wanted = []
    if not os.environ.get('KILONOVA_VENV'):
        # Its daemons start together, and would each compile the same.
        wanted.append(
            Environment(
                layout.venv,
                'Kilonova',
                ('--compile-bytecode', '-c', str(CONSTRAINTS), '-e', '.[test]'),
                (ROOT / 'setup.cfg', ROOT / 'pyproject.toml', CONSTRAINTS),
            )
        )
    for asked, variable, directory, what, requirements in (
        (services, 'SERVICES', layout.services_venv, 'Keystone, Glance and Placement', REQUIREMENTS),
        (cyborg, 'CYBORG', layout.cyborg_venv, 'Cyborg', CYBORG),
        (network, 'NEUTRON', layout.neutron_venv, 'Neutron', NEUTRON),
        (volume, 'CINDER', layout.cinder_venv, 'Cinder', CINDER),
        (tempest, 'TEMPEST', layout.tempest_venv, 'Tempest', ACCEPTANCE),
    ):
        if asked and not os.environ.get(f'KILONOVA_{variable}_VENV'):
            wanted.append(Environment(directory, what, ('-r', str(requirements)), (requirements,)))
    missing = [environment for environment in wanted if not environment.is_there]
    if not missing:
        return
    uv = ensure_uv(own_environment('.venv-uv'))
    settings = settings_of_pip(_run([str(uv.parent / 'pip'), 'config', 'list']), os.environ)
    with ThreadPoolExecutor(len(missing)) as pool:
        for future in [pool.submit(environment.make, uv, settings) for environment in missing]:
            future.result()


def lock(only: Sequence[str] = ()) -> None:
    """Renew the versions in constraints.txt and in the requirements of the services and of Tempest.

    All libraries get the newest version that is allowed, on each supported Python; with ``only``, those alone, and a
    library that is required for the first time. The services themselves keep the version that stands in their file.
    """
    uv = ensure_uv(own_environment('.venv-uv'))
    settings = settings_of_pip(_run([str(uv.parent / 'pip'), 'config', 'list']), os.environ)
    upgraded = [f'--upgrade-package={name}' for name in only] or ['--upgrade']
    oldest = '.'.join(map(str, OLDEST))
    form = ['--universal', '--python-version', oldest, '--no-header', '--no-annotate', '--no-emit-index-url']
    compiled = [str(uv), 'pip', 'compile', '--quiet', *upgraded, *form]
    _run([*compiled, '--extra', 'test', '--output-file', str(CONSTRAINTS), str(ROOT / 'setup.cfg')], settings)
    say(f'{CONSTRAINTS.name} is renewed')
    for path in (REQUIREMENTS, CYBORG, NEUTRON, CINDER, ACCEPTANCE):
        head, _ = split_requirements(path.read_text())
        # What two services need is of one version.
        same = ['--constraint', str(REQUIREMENTS)] if path in (CYBORG, NEUTRON, CINDER) else []
        with tempfile.TemporaryDirectory() as directory:
            chosen, found = Path(directory) / 'chosen.in', Path(directory) / 'found.txt'
            chosen.write_text(head)
            found.write_text(path.read_text())
            _run([*compiled, *same, '--output-file', str(found), str(chosen)], settings)
            path.write_text(join_requirements(head, found.read_text()))
        say(f'{path.relative_to(ROOT)} is renewed')


def split_requirements(text: str) -> tuple[str, str]:
    """Return the two parts of a file of requirements: what is chosen by hand, and what that requires itself."""
    head, mark, rest = text.partition(BROUGHT)
    if not mark:
        raise CloudError(f'the requirements have no line {BROUGHT!r}')
    return head, rest


def join_requirements(head: str, found: str) -> str:
    """Return a file of requirements from what is chosen by hand and all versions that were found for it."""
    chosen = {line.partition('==')[0] for line in head.splitlines()}
    rest = [
        line for line in found.splitlines() if line and line[0] not in '# ' and line.partition('==')[0] not in chosen
    ]
    return '\n'.join([f'{head}{BROUGHT}', *rest, ''])


def foreign(environment: Path) -> str | None:
    """Return what is wrong with the code that an environment runs, or None.

    Programs such as kilonova-api are those that were installed into it, whatever tree make is called in.
    """
    done = subprocess.run(
        [str(environment / 'bin' / 'python'), '-c', 'import kilonova; print(kilonova.__file__)'],
        cwd='/',
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return f'{environment} has no Kilonova; install this tree into it: {environment}/bin/pip install -e {ROOT}'
    found = Path(done.stdout.strip()).resolve().parents[1]
    if found == ROOT:
        return None
    return (
        f'the daemons of {environment} run the code of {found}, not of this tree ({ROOT}). Leave KILONOVA_VENV '
        f'out, or install this tree into it: {environment}/bin/pip install -e {ROOT}'
    )


def main(argv: list[str]) -> int:
    """Install what the arguments ask for; return the exit code."""
    parser = argparse.ArgumentParser(prog='python3 -m tools.bootstrap', description=__doc__)
    parser.add_argument(
        '--test',
        action='store_true',
        help='also what only the tests need: MariaDB, PostgreSQL, libvirtd, QEMU, Cyborg, Neutron, Cinder, Tempest',
    )
    parser.add_argument(
        '--check',
        action='store_true',
        help='only what make check needs: system packages of the tests, .venv',
    )
    parser.add_argument('--guests', action='store_true', help='also what real guests need: libvirtd, QEMU, syslinux')
    parser.add_argument('--cyborg', action='store_true', help='also Cyborg, the accelerator service')
    parser.add_argument('--network', action='store_true', help='also Neutron, the network service, and OVN')
    parser.add_argument('--volume', action='store_true', help='also Cinder, the volume service')
    parser.add_argument('--vfio', action='store_true', help='also what the nested machine of make test-vfio is made by')
    parser.add_argument('--ceph', action='store_true', help='also the Ceph of make test-ceph')
    parser.add_argument('--tempest', action='store_true', help="also Tempest, the field's acceptance suite")
    parser.add_argument('--no-services', action='store_true', help='without Keystone, Glance and Placement')
    parser.add_argument('--lock', action='store_true', help='only renew the versions of all libraries')
    parser.add_argument('--only', action='append', default=[], metavar='NAME', help='with --lock: of this one alone')
    args = parser.parse_args(argv)
    if sys.version_info < OLDEST:
        print(
            f'error: Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, {sys.executable} is older; '
            f'choose one with: make PYTHON=python3.12 ...',
            file=sys.stderr,
        )
        return 1
    try:
        if args.lock:
            lock(args.only)
            return 0
        install_packages(
            [
                name
                for name, asked in (
                    ('test', args.test or args.check),
                    ('guests', args.guests or args.vfio),
                    ('vfio', args.vfio),
                    ('network', args.network),
                    ('ceph', args.ceph),
                )
                if asked
            ]
        )
        layout = Layout.at()
        environments(
            layout,
            services=not (args.no_services or args.check),
            tempest=args.tempest or args.test,
            cyborg=args.cyborg or args.test,
            network=args.network or args.test,
            volume=args.volume or args.test,
        )
        if os.environ.get('KILONOVA_VENV') and (wrong := foreign(layout.venv)) is not None:
            say(f'WARNING: {wrong}')
    except CloudError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
