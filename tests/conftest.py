"""Fixtures of all tests, and the choice of eventlet or native threads before anything else is imported."""

from __future__ import annotations

import gc
import os

from kilonova import concurrency

# Objects more than before, and collections of one generation before the next older is looked at.
COLLECT_AT = 20_000, 20, 50

# Unit tests run under native threads; the functional part runs under both (KILONOVA_CONCURRENCY).
concurrency.setup(os.environ.get('KILONOVA_CONCURRENCY', 'threading'))

# Only now, as it imports what the choice is about.
from tests.fixtures import compiled, signatures  # noqa: E402

compiled.share()
signatures.keep()
pytest_plugins = ['tests.fixtures.placement', 'tests.fixtures.cloud']


def pytest_collection_finish() -> None:
    """What was imported stays: the collector needn't look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AT)
