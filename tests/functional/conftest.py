"""Which tests run here: all, or a share of each file, or those of a share of the files. The seed chooses the share.

    KILONOVA_TEST_SHARE=2/4 pytest tests/functional     # a quarter of each file, at least one test
    KILONOVA_TEST_FILES=1/2 pytest tests/functional     # half of the files

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

FILES = sorted(path.name for path in Path(__file__).parent.glob('test_*.py'))
CHOSEN = shares.share_of(FILES, *shares.share('FILES'), shares.seed())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files that are left out are not even imported."""
    return True if collection_path.name in FILES and collection_path.name not in CHOSEN else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shares.keep_share(config, items)


@pytest.fixture
def carded(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Carded:
    """Hosts with network cards that look often."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Carded(make_cloud)
