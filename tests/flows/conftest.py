"""One cloud for many cases of a flow: ``ground`` is empty before and after each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite('tests.flows.cases', 'tests.flows.cells')

from tests.fixtures import shares  # noqa: E402
from tests.fixtures.cloud import Cloud, Templates  # noqa: E402
from tests.flows.cases import GPUS, clear  # noqa: E402
from tests.flows.cells import Shared  # noqa: E402


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shares.keep_share(config, items)


def make_cloud(directories: pytest.TempPathFactory, templates: Templates, gpus: dict[str, list[str]]) -> Any:
    """It has flavors: ``small``, ``large``, and ``placed``, whose servers have a place on the NUMA cells."""
    cloud: Any = Cloud(directories.mktemp('flows'), templates, gpus, reclaim_instance_interval=3600)
    cloud.small, cloud.large = cloud.flavor(gpus=1), cloud.flavor(gpus=2)
    cloud.placed = cloud.flavor(**{'hw:numa_nodes': '1'})
    return cloud


@pytest.fixture(scope='module')
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cloud_templates: Templates
) -> Iterator[Shared]:
    """A module may say which hosts there are: ``GPUS``."""
    holder = Shared(lambda: make_cloud(tmp_path_factory, cloud_templates, getattr(request.module, 'GPUS', GPUS)))
    yield holder
    holder.stop()


@pytest.fixture
def ground(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """An empty cloud; afterwards it is empty again."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.conductor.flows.boot.SELECT_DEADLINE', 2.0)
    cloud = shared.get()
    shared.cloud = None
    yield cloud
    cloud.meanwhile = cloud.on_message = cloud.placement.before = cloud.placement.after = None
    clear(cloud)
    if len(cloud.conductors) == 1 and set(cloud.computes) == set(cloud.gpus):
        shared.cloud = cloud
