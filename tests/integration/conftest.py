"""The clouds that tests of real daemons share: each is started once, and taken down at the end whatever happens."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator

import pytest

from tests.fixtures import shares
from tests.integration.real_guests import RealGuests
from tests.integration.site import Site
from tools.cloud.layout import DEFAULT_HOSTS


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shares.keep_share(config, items)


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


@pytest.fixture(scope='session')
def site_with_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cloud with Neutron, Cinder and Cyborg. Whoever uses it leaves nothing in it."""
    made = Site(tmp_path_factory.mktemp('services'), network=True, volume=True, accelerators=True)
    # Guests with such ports don't migrate live.
    made.configure('[serial_console]\nenabled = false\n')
    try:
        made.up()
        yield made
    finally:
        made.end()


@pytest.fixture(scope='session')
def running_guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGuests]:
    """A cloud whose hosts gpu1 and gpu2 are machines, and its servers QEMU guests. In the end nothing is left."""
    directory = tmp_path_factory.mktemp('real')
    shutil.copytree(DEFAULT_HOSTS, directory / 'hosts')
    with (directory / 'hosts' / 'gpu1.conf').open('a') as conf:
        # A guest with a serial console on a port of its host can't be migrated live.
        conf.write('[serial_console]\nenabled = false\n')
    with (directory / 'hosts' / 'gpu2.conf').open('a') as conf:
        conf.write('[DEFAULT]\nconfig_drive_format = vfat\n')
    site = Site(directory, guests='qemu', hosts=directory / 'hosts')
    try:
        # A guest ends on its power button or never. Ten of them fit on each machine of two CPUs.
        site.configure('[DEFAULT]\nshutdown_timeout = 120\ninitial_cpu_allocation_ratio = 16.0\n')
        site.up()
        guests = RealGuests(site)
        yield guests
        site.up()
        guests.clean()
    finally:
        site.end()


@pytest.fixture
def guests(running_guests: RealGuests, request: pytest.FixtureRequest) -> Iterator[RealGuests]:
    """All daemons up; afterwards the audit finds nothing, and nothing is left but the server that tests hand on."""
    running_guests.site.up()
    yield running_guests
    running_guests.site.up()
    if request.node.stash.get(FAILED, False):
        running_guests.clean()
    else:
        running_guests.site.audit()
        running_guests.clean(handed_on=True)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fixtures may ask whether their test failed."""
    report = yield
    if call.when == 'call':
        item.stash[FAILED] = report.failed
    return report
