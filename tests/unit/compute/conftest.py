from __future__ import annotations

from collections.abc import Iterator

import pytest

from kilonova import objects
from kilonova.compute.manager import ComputeManager
from tests.unit.compute.cloud import GPUS, Cloud


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    yield made
    made.stop()


@pytest.fixture
def manager(cloud: Cloud) -> ComputeManager:
    """A compute service with two GPUs."""
    return cloud.host('gpu1', GPUS)


@pytest.fixture
def server(cloud: Cloud, manager: ComputeManager) -> objects.Instance:
    """A server that runs there with one of them; what its boot saved is forgotten."""
    instance = cloud.boot(manager)
    cloud.cell.saves.clear()
    return instance
