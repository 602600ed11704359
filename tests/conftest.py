"""Fixtures of all tests, and the choice of eventlet or native threads before anything else is imported."""
from __future__ import annotations

import os

from kilonova import concurrency

# Unit tests run under native threads; the functional part runs under both (KILONOVA_CONCURRENCY).
concurrency.setup(os.environ.get('KILONOVA_CONCURRENCY', 'threading'))

# Only now, as it imports what the choice is about.
from tests.fixtures import compiled  # noqa: E402

compiled.share()
pytest_plugins = ['tests.fixtures.placement', 'tests.fixtures.cloud']
