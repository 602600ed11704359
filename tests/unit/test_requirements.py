"""The requirements of setup.cfg: each is imported, and constraints.txt has a version of each that it allows."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# Drivers, which SQLAlchemy imports by the URL of a database.
BY_NAME = {'pymysql', 'psycopg', 'psycopg2', 'psycopg-binary', 'psycopg2-binary'}


def name_of(requirement: str) -> str:
    return re.split(r'[<>=!~\[; ]', requirement.strip(), maxsplit=1)[0].lower().replace('_', '-').replace('.', '-')


def test_each_requirement_is_imported() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    required = {name_of(line) for line in setup['options']['install_requires'].splitlines() if line.strip()} - BY_NAME
    assert 'oslo-messaging' in required
    imported = {
        module
        for path in (ROOT / 'kilonova').rglob('*.py')
        for line in re.findall(r'^\s*(?:from|import) ([\w.]+)', path.read_text(), re.MULTILINE)
        for module in [line, line.split('.')[0]]
    }
    provided: dict[str, set[str]] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for distribution in distributions:
            provided.setdefault(name_of(distribution), set()).add(module)
    assert [name for name in sorted(required) if not provided[name] & imported] == []


def test_constraints_have_an_allowed_version_of_each_requirement() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    required = [
        Requirement(line)
        for text in (setup['options']['install_requires'], *setup['options.extras_require'].values())
        for line in text.splitlines()
        if line.strip()
    ]
    locked = {
        name_of(str(line.name)): line for line in map(Requirement, (ROOT / 'constraints.txt').read_text().splitlines())
    }
    assert len(required) > 50
    wrong = []
    for requirement in required:
        found = locked.get(name_of(requirement.name))
        version = next(iter(found.specifier)).version if found is not None else None
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append((str(requirement), version))
    assert wrong == []
