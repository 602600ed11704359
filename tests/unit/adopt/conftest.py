"""Sites as the tests of the API have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kilonova.cmd import options
from kilonova.db import access, engine
from tests.unit.api.conftest import empty_databases, make_site, site

__all__ = ('empty_databases', 'make_site', 'site')


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a command changes for its whole process is undone."""
    monkeypatch.setattr(options, 'setup_logging', lambda conf: None)
    yield
    engine.install(None)
    access.forbid(None)
