"""Which tests run here: all, or of each file every so many.

    KILONOVA_TEST_SHARE=2/4 pytest tests/functional     # the third, the seventh … of each file, at least one

So ``make test`` tries each file on each database server and needs not run each test on each. Beside it a fixture of
several files.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from itertools import groupby

import pytest

from tests.fixtures.cloud import Cloud
from tests.functional.carded import Carded
from tools.testrun import share_of


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    said = os.environ.get('KILONOVA_TEST_SHARE')
    if not said:
        return
    first, step = map(int, said.split('/'))
    # In the order in which files have them: pytest-randomly may have been here before.
    ordered = sorted(items, key=lambda item: (str(item.path), item.location[1] or 0, item.nodeid))
    kept = {item.nodeid for _, group in groupby(ordered, key=lambda item: item.path)
            for item in share_of(list(group), first, step)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


@pytest.fixture
def carded(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Carded:
    """Hosts with network cards that look often."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Carded(make_cloud)
