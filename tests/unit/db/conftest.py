"""Databases of a test: SQLite files, copied from ones that were migrated once."""

from __future__ import annotations

import shutil

import pytest

from kilonova.db import engine


@pytest.fixture
def databases(tmp_path, migrated):
    """An API database, a main database and, at its default place, cell0's."""
    for source, name in (('api', 'api.sqlite'), ('cell', 'main.sqlite'), ('cell', 'main.sqlite_cell0')):
        shutil.copy(migrated / f'{source}.sqlite', tmp_path / name)
    found = engine.Databases(f'sqlite:///{tmp_path}/api.sqlite', f'sqlite:///{tmp_path}/main.sqlite')
    yield found
    found.dispose()


@pytest.fixture
def api(databases):
    return databases.api()


@pytest.fixture
def cell(databases):
    return databases.main()


@pytest.fixture
def statements():
    """(database, statement, executemany) of everything that runs while the test does."""
    seen = []
    stop = engine.listen(lambda *event: seen.append(event))
    yield seen
    stop()
