"""Which tests run here: all, or of each file every so many.

    KILONOVA_TEST_SHARE=2/4 pytest tests/functional     # the third, the seventh … of each file, at least one
    KILONOVA_TEST_FILES=1/2 pytest tests/functional     # of the second, the fourth … file

So ``make test`` tries each file on a database server and needs not run each test on each. Beside it a fixture of
several files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures import shares
from tests.fixtures.cloud import Cloud
from tests.functional.carded import Carded
from tools.testrun import share_of

FILES = sorted(Path(__file__).parent.glob('test_*.py'))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files that are left out are not even imported."""
    return True if collection_path in FILES and collection_path not in share_of(FILES, *shares.share('FILES')) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shares.keep_share(config, items)


@pytest.fixture
def carded(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Carded:
    """Hosts with network cards that look often."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Carded(make_cloud)
