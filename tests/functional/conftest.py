"""Which tests run here: all, or of each file every so many.

    KILONOVA_TEST_SHARE=2/4 pytest tests/functional     # the third, the seventh … of each file, at least one
    KILONOVA_TEST_FILES=1/2 pytest tests/functional     # of the second, the fourth … file

So ``make test`` tries each file on a database server and needs not run each test on each. Beside it a fixture of
several files.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from tests.fixtures.cloud import Cloud
from tests.functional.carded import Carded
from tools.testrun import share_of

FILES = sorted(Path(__file__).parent.glob('test_*.py'))


def _share(what: str) -> tuple[int, int]:
    first, step = map(int, (os.environ.get(f'KILONOVA_TEST_{what}') or '0/1').split('/'))
    return first, step


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files that are left out are not even imported."""
    return True if collection_path in FILES and collection_path not in share_of(FILES, *_share('FILES')) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, step = _share('SHARE')
    if step == 1:
        return
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
