"""A Nova, Kilonova's databases beside it, and sites as the tests of the API have them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from kilonova.cmd import options
from kilonova.db import access, engine
from tests.adopt.nova import Nova
from tests.adopt.ours import Target
from tests.unit.api.conftest import empty_databases, make_databases, make_site, site

__all__ = ('empty_databases', 'make_site', 'site')


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a command changes for its whole process is undone."""
    monkeypatch.setattr(options, 'setup_logging', lambda conf: None)
    yield
    engine.install(None)
    access.forbid(None)


@pytest.fixture(scope='session')
def templates(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_databases(tmp_path_factory.mktemp('kilonova'))


@pytest.fixture
def nova(tmp_path: pathlib.Path) -> Nova:
    return Nova(tmp_path / 'nova')


@pytest.fixture
def target(tmp_path: pathlib.Path, templates: pathlib.Path) -> Target:
    return Target(tmp_path / 'ours', templates)
