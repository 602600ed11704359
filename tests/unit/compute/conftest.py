from __future__ import annotations

from collections.abc import Iterator

import pytest

from kilonova.objects import base
from tests.unit.compute.cloud import Cloud


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    base.set_indirection(made.cell)
    yield made
    made.stop()
    base.set_indirection(None)
