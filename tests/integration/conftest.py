"""The cloud that the tests of real daemons share: started once, taken down at the end whatever happens."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.site import Site


@pytest.fixture(scope='session')
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cloud of the shipped hosts: eight GPUs on two computes."""
    site = Site(tmp_path_factory.mktemp('cloud'))
    try:
        site.up()
        yield site
    finally:
        site.end()


@pytest.fixture
def site(running_site: Site) -> Site:
    """The cloud without any server, all daemons up; whatever a test did is undone."""
    running_site.configure('')
    running_site.up()
    running_site.clean()
    return running_site
