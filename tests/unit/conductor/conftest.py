from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.fixtures import placement
from tests.unit.conductor.site import Site


@pytest.fixture
def site(tmp_path: pathlib.Path, migrated: pathlib.Path) -> Iterator[Site]:
    """A conductor without hosts: its rows, and notes of what it asks."""
    service = placement.shared()
    service.reset(names=False)
    made = Site(tmp_path, migrated, service)
    yield made
    made.close()
    service.before = service.after = None
