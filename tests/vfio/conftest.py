"""The cloud on the nested machine: started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vfio.passthrough import Passthrough


@pytest.fixture(scope='session')
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Passthrough]:
    cloud = Passthrough(tmp_path_factory.mktemp('vfio'))
    try:
        cloud.up()
        yield cloud
    finally:
        cloud.end()


@pytest.fixture
def cloud(running: Passthrough) -> Iterator[Passthrough]:
    """All is up; afterwards the audit finds nothing, and when all servers are deleted nothing is held."""
    running.up()
    yield running
    running.up()
    try:
        running.site.audit()
    finally:
        # The next test finds nothing of this one, whatever it left.
        running.site.clean()
    running.site.assert_nothing_held()
    assert running.domains() == []
