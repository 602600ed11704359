"""The directories and files of the one-machine cloud.

layout = Layout.at(Path('var'))
layout.log('compute-gpu1')      # var/log/compute-gpu1.log
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_HOSTS = ROOT / 'etc' / 'kilonova' / 'dev' / 'hosts'
SECRET_NAMES = (
    'rabbitmq',
    'admin',
    'demo',
    'kilonova',
    'glance',
    'placement',
    'cyborg',
    'neutron',
    'cinder',
    'metadata',
)


class CloudError(Exception):
    """Something that the reader of the terminal has to know; shown without a traceback."""


@dataclass(frozen=True)
class Layout:
    """The directories; every path is absolute."""

    var: Path
    venv: Path
    services_venv: Path
    tempest_venv: Path
    cyborg_venv: Path
    neutron_venv: Path
    cinder_venv: Path

    @classmethod
    def at(cls, var: Path | None = None) -> Layout:
        """Return the layout under ``var``, by default ``var/`` of this tree.

        The environment variables KILONOVA_VENV, KILONOVA_SERVICES_VENV, KILONOVA_TEMPEST_VENV, KILONOVA_CYBORG_VENV,
        KILONOVA_NEUTRON_VENV and KILONOVA_CINDER_VENV may name the virtual environments.
        """
        return cls(
            var=Path(os.path.abspath(var or ROOT / 'var')),
            venv=environment_dir('KILONOVA_VENV', '.venv'),
            services_venv=environment_dir('KILONOVA_SERVICES_VENV', '.venv-services'),
            tempest_venv=environment_dir('KILONOVA_TEMPEST_VENV', '.venv-tempest'),
            cyborg_venv=environment_dir('KILONOVA_CYBORG_VENV', '.venv-cyborg'),
            neutron_venv=environment_dir('KILONOVA_NEUTRON_VENV', '.venv-neutron'),
            cinder_venv=environment_dir('KILONOVA_CINDER_VENV', '.venv-cinder'),
        )

    @property
    def etc(self) -> Path:
        """The directory of configuration files."""
        return self.var / 'etc'

    @property
    def conf(self) -> Path:
        """The file that all four daemons and kilonova-manage read."""
        return self.etc / 'kilonova.conf'

    @property
    def keys(self) -> Path:
        """The keys that seal passwords and files of new servers."""
        return self.etc / 'secrets.keys'

    @property
    def clouds(self) -> Path:
        """The clouds.yaml that the openstack command reads."""
        return self.var / 'clouds.yaml'

    def log(self, service: str) -> Path:
        """Return the path of a service's log."""
        return self.var / 'log' / f'{service}.log'

    def pid(self, service: str) -> Path:
        """Return the path of a service's pid file."""
        return self.var / 'run' / f'{service}.pid'

    def data(self, service: str) -> Path:
        """Return the directory in which a service keeps what must survive its restart."""
        return self.var / 'data' / service

    def compute_conf(self, host: str) -> Path:
        """Return the path of the configuration of a host's compute."""
        return self.etc / f'compute-{host}.conf'

    def host(self, host: str) -> Path:
        """Return the directory of a host."""
        return self.var / 'hosts' / host

    def instances(self, host: str) -> Path:
        """Return the directory in which a host has the disks of its servers."""
        return self.host(host) / 'instances'

    @property
    def machines(self) -> Path:
        """The directory from which the machines of real guests' hosts are made."""
        return self.var / 'machines'

    def bin(self, script: str) -> str:
        """Return the path of a script of the project's virtual environment."""
        return str(self.venv / 'bin' / script)

    def services_bin(self, script: str) -> str:
        """Return the path of a script of the virtual environment of Keystone, Glance and Placement."""
        return str(self.services_venv / 'bin' / script)

    def cyborg_bin(self, script: str) -> str:
        """Return the path of a script of Cyborg's virtual environment."""
        return str(self.cyborg_venv / 'bin' / script)

    def neutron_bin(self, script: str) -> str:
        """Return the path of a script of Neutron's virtual environment."""
        return str(self.neutron_venv / 'bin' / script)

    def cinder_bin(self, script: str) -> str:
        """Return the path of a script of Cinder's virtual environment."""
        return str(self.cinder_venv / 'bin' / script)

    def make_directories(self) -> None:
        """Make the directories of the layout. Only their owner can enter the one with the databases."""
        for path in (
            self.etc,
            self.var / 'log',
            self.var / 'run',
            self.var / 'hosts',
            self.var / 'data',
            self.var / 'lock',
            self.var / 'tmp',
        ):
            path.mkdir(parents=True, exist_ok=True)
        # The databases of Keystone, Glance and Placement are open to whoever gets there.
        (self.var / 'data').chmod(0o700)

    def shown(self, path: Path) -> str:
        """Return ``path`` as a person in the root of the tree would type it."""
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def environment_dir(variable: str, default: str) -> Path:
    """Return a virtual environment's directory: the one that the environment variable names, else the tree's own."""
    return Path(os.path.abspath(os.environ.get(variable) or own_environment(default)))


def own_environment(name: str) -> Path:
    """Return the directory of this tree's virtual environment of that name.

    ``make PYTHON=…`` sets KILONOVA_VENV_SUFFIX, such as ``-3.13``, if that interpreter is of another version than the
    one that make chooses by itself.
    """
    return ROOT / f'{name}{os.environ.get("KILONOVA_VENV_SUFFIX", "")}'


def write_private(path: Path, text: str) -> None:
    """Write a file that may hold secrets: mode 0600 from its first byte, and never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f'.{path.name}.new')
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 'w') as file:
        file.write(text)
    aside.replace(path)


def load_secrets(layout: Layout) -> dict[str, str]:
    """Return the cloud's passwords by account, made at random once and kept in ``var/secrets.json`` (0600)."""
    path = layout.var / 'secrets.json'
    kept: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    missing = [name for name in SECRET_NAMES if name not in kept]
    if missing:
        kept |= {name: secrets.token_hex(16) for name in missing}
        write_private(path, json.dumps(kept, indent=1) + '\n')
    return kept


def find_hosts(directory: Path) -> dict[str, Path]:
    """Return a dict from host names to node files, for each ``NAME.xml`` in ``directory``, sorted by name."""
    if not directory.is_dir():
        raise CloudError(f'there is no directory of host descriptions {directory}')
    found = {path.stem: path.resolve() for path in sorted(directory.glob('*.xml'))}
    if not found:
        raise CloudError(f'{directory} holds no host description (NAME.xml)')
    return found
