from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.fixtures.placement import Placement
from tests.unit.conductor.site import Site


@pytest.fixture
def site(tmp_path: pathlib.Path, migrated: pathlib.Path, placement: Placement) -> Iterator[Site]:
    """A conductor without hosts: its rows, and notes of what it asks."""
    made = Site(tmp_path, migrated, placement)
    yield made
    made.close()
