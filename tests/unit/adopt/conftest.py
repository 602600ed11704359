"""Sites as the tests of the API have them; commands leave the logging of the process alone."""

from __future__ import annotations

import pytest

from kilonova.cmd import options
from tests.unit.api.conftest import empty_databases, make_site, site

__all__ = ('empty_databases', 'make_site', 'site')


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, 'setup_logging', lambda conf: None)
