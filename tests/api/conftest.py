"""One world for all tests of a file: each test puts back what it changed."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from kilonova.db import engine
from tests.api import counts
from tests.api.world import World
from tests.unit.api.conftest import make_databases


@pytest.fixture(scope='session')
def templates(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_databases(tmp_path_factory.mktemp('databases'))


@pytest.fixture(scope='module')
def built(tmp_path_factory: pytest.TempPathFactory, templates: pathlib.Path) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp('world'), templates)
    yield made
    made.close()
    engine.install(None)


@pytest.fixture
def world(built: World) -> Iterator[World]:
    engine.install(built.databases)
    yield built
    built.restore()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in counts.lines():
        terminalreporter.write_line(line)
