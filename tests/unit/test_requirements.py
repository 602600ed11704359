"""What setup.cfg requires is imported. Finding 3.10: two libraries were installed for nothing."""
from __future__ import annotations

import configparser
import importlib.metadata
import re
from pathlib import Path

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
    imported = {module for path in (ROOT / 'kilonova').rglob('*.py')
                for line in re.findall(r'^\s*(?:from|import) ([\w.]+)', path.read_text(), re.MULTILINE)
                for module in [line, line.split('.')[0]]}
    provided: dict[str, set[str]] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for distribution in distributions:
            provided.setdefault(name_of(distribution), set()).add(module)
    assert [name for name in sorted(required) if not provided[name] & imported] == []
