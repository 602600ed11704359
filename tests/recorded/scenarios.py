"""Operations of each kind on a server that has GPUs, a port and a volume, for ``record`` and for the test of its files.

    ground = Ground(directory, templates)
    for name, scenario in SCENARIOS.items():
        cloud = ground.cloud_for(scenario)
        server = scenario.before(cloud)
        scenario.act(cloud, server)
        cloud.settle()

``Scenario.failing`` is the step that fails when the undos of a flow are recorded; None if the flow undoes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fixtures.cinder import FakeCinder
from tests.fixtures.cloud import IMAGE_ID, OTHER_IMAGE_ID, PROJECT, Cloud, Templates
from tests.fixtures.neutron import FakeNeutron
from tests.flows import cases
from tests.flows import test_ports_and_volumes as operations
from tests.functional.carded import Carded
from tests.functional.test_volume_snapshots import Filing

HOSTS = cases.GPUS


@dataclass(frozen=True)
class Scenario:
    """One operation: how to get a server for it, and the request."""

    kind: str
    before: Callable[[Any], str | None]
    act: Callable[[Any, str | None], object]
    good: str = 'ACTIVE'
    # How a server boots: 'image', 'boot volume', 'file' (with a volume that is a file) or 'card' (hosts have network
    # cards with virtual functions).
    form: str = 'image'
    status: Callable[[Any, str], str] = Cloud.status


def of_case(case: cases.Case) -> Scenario:
    """Return the scenario of a case of the flows' tests."""
    return Scenario(case.kind, case.before, case.act, case.good, status=case.status)


def notify(name: str, tag: Callable[[Any], str | None] = lambda cloud: None) -> Callable[[Any, str | None], object]:
    """Return a function that sends an event of the network or volume service about a server."""

    def act(cloud: Any, server: str | None) -> object:
        event = {'name': name, 'server_uuid': server, 'tag': tag(cloud)}
        return cloud.ok(
            'POST',
            '/os-server-external-events',
            {'events': [{key: value for key, value in event.items() if value is not None}]},
            version='2.93',
        )

    return act


def extend(cloud: Any, server: str | None) -> object:
    """Extend the server's volume, and tell Kilonova of it."""
    cloud.cinder.volumes[cloud.volume]['size'] += 1
    return notify('volume-extended', lambda cloud: str(cloud.volume))(cloud, server)


def rename(cloud: Any, server: str | None) -> object:
    """Give the server another name by which the network service knows it."""
    return cloud.ok('PUT', f'/servers/{server}', {'server': {'hostname': 'other'}})


def filed(cloud: Any) -> str:
    """Return the server of a site whose volume is a file."""
    return str(cloud.site.server)


def snapshotted(cloud: Any) -> str:
    """Return that server after a snapshot of its volume."""
    cloud.snapshot = cloud.site.create()
    cloud.settle()
    return filed(cloud)


def with_function(cloud: Any) -> str:
    """Return a server that has a virtual function of a network card."""
    server, cloud.function = cloud.site.with_port()
    return str(server)


def without_function(cloud: Any) -> str:
    """Return a server with an ordinary port, beside a free port for a virtual function."""
    cloud.function = cloud.site.port()
    return str(cloud.site.boot({'uuid': cloud.site.network}))


def attach_function(cloud: Any, server: str | None) -> object:
    """Attach the port of a virtual function."""
    return cloud.ok('POST', f'/servers/{server}/os-interface', {'interfaceAttachment': {'port_id': cloud.function}})


def detach_function(cloud: Any, server: str | None) -> object:
    """Detach the port of a virtual function."""
    return cloud.ok('DELETE', f'/servers/{server}/os-interface/{cloud.function}')


def boot_function(cloud: Any, server: str | None) -> object:
    """Boot a server that has a virtual function."""
    return cloud.create(cloud.site.flavor, networks=[{'port': cloud.site.port()}])['server']['id']


def with_free_function(cloud: Any) -> str:
    """Return a server to which a virtual function was attached."""
    server = without_function(cloud)
    attach_function(cloud, server)
    cloud.settle()
    return server


SCENARIOS: dict[str, Scenario] = {
    **{name: of_case(case) for name, case in operations.OPERATIONS.items()},
    'mirror': of_case(cases.CASES['mirror']),
    'network-changed': Scenario('network_changed', cases.booted, notify('network-changed')),
    'renamed': Scenario('network_changed', cases.booted, rename),
    'extended': Scenario('volume_extended', cases.booted, extend),
    'reimage': Scenario(
        'reimage', cases.booted, cases.ask('rebuild', {'imageRef': OTHER_IMAGE_ID}), form='boot volume'
    ),
    'boot-volume': Scenario('boot', lambda cloud: None, cases.create, form='boot volume'),
    'delete-volume': Scenario('delete', cases.booted, cases.delete, 'GONE', form='boot volume'),
    'snapshot-volume': Scenario(
        'snapshot', cases.booted, cases.ask('createImage', {'name': 'snap'}), form='boot volume'
    ),
    'volume-snapshot-create': Scenario(
        'volume_snapshot_create', filed, lambda cloud, server: cloud.site.create(), form='file'
    ),
    'volume-snapshot-delete': Scenario(
        'volume_snapshot_delete',
        snapshotted,
        lambda cloud, server: cloud.site.delete_snapshot(cloud.snapshot, None, None),
        form='file',
    ),
    'boot-function': Scenario('boot', lambda cloud: None, boot_function, form='card'),
    'attach-function': Scenario('attach_interface', without_function, attach_function, form='card'),
    'detach-function': Scenario('detach_interface', with_free_function, detach_function, form='card'),
    'live-migrate-function': Scenario(
        'live_migrate',
        with_function,
        cases.ask('os-migrateLive', {'host': None, 'block_migration': 'auto'}),
        form='card',
    ),
    'migrate-function': Scenario('resize', with_function, cases.ask('migrate'), 'VERIFY_RESIZE', form='card'),
    'delete-function': Scenario('delete', with_function, cases.delete, 'GONE', form='card'),
}


def make_cloud(directory: Path, templates: Templates) -> Any:
    """Return a cloud with all services that servers use. Its flavors ``small`` and ``large`` have GPUs."""
    neutron, cinder = FakeNeutron(hosts=HOSTS), FakeCinder()
    cinder.connection = operations.CONNECTION
    cinder.images = {IMAGE_ID: {}, OTHER_IMAGE_ID: {}}
    cloud: Any = Cloud(
        directory,
        templates,
        HOSTS,
        neutron=neutron,
        cinder=cinder,
        reclaim_instance_interval=3600,
        block_device_allocate_retries_interval=0,
    )
    neutron.users[f'admin:{PROJECT}'] = cinder.users[f'admin:{PROJECT}'] = PROJECT
    cloud.cinder = cinder
    cloud.images.offered[IMAGE_ID]['hw_rescue_bus'] = 'virtio'
    cloud.network = neutron.add_network('private', PROJECT, cidr='10.2.0.0/24')
    cloud.port, cloud.more_port = (neutron.add_port(cloud.network, PROJECT) for _ in range(2))
    for port in (cloud.port, cloud.more_port):
        neutron.guarantee(port, kbits=300, packets=10)
    for host in HOSTS:
        neutron.report(cloud.placement.client, host)
    cloud.volume, cloud.more_volume = cinder.add_volume(PROJECT), cinder.add_volume(PROJECT)
    cloud.small, cloud.large = cloud.flavor(gpus=1), cloud.flavor(gpus=2)
    cloud.placed = cloud.flavor(**{'hw:numa_nodes': '1'})
    return cloud


SITES: dict[str, Callable[[Callable[..., Cloud], Path], Any]] = {
    'file': Filing,
    'card': lambda make, share: Carded(make),
}


class Ground:
    """The clouds of the scenarios, each made when it is used first."""

    def __init__(self, directory: Path, templates: Templates) -> None:
        self._directory, self._templates = directory, templates
        self._made: list[Any] = []
        self._clouds: dict[str, Any] = {}

    def cloud_for(self, scenario: Scenario) -> Any:
        """Return a cloud in which the servers of a scenario boot as it says."""
        name = scenario.form if scenario.form in SITES else 'all'
        if name not in self._clouds:
            # Placement is the same for all clouds of a process.
            self.stop()
            self._clouds[name] = (
                self._with_site(name) if name in SITES else make_cloud(self._next_directory(), self._templates)
            )
        cloud = self._clouds[name]
        if name == 'all':
            operations.asks_for(cloud, scenario.form)
        return cloud

    def empty(self, scenario: Scenario, cloud: Any) -> None:
        """Delete the servers of a cloud. A cloud that is made for few scenarios is stopped."""
        if scenario.form in SITES:
            self.stop()
        else:
            cloud.cinder.snapshots.clear()
            cases.clear(cloud)

    def _with_site(self, name: str) -> Any:
        directory = self._next_directory()

        def make(gpus: Any = None, **options: Any) -> Cloud:
            return Cloud(directory, self._templates, gpus or HOSTS, **options)

        share = directory / 'share'
        share.mkdir()
        site = SITES[name](make, share)
        cloud: Any = site.cloud
        cloud.site = site
        return cloud

    def _next_directory(self) -> Path:
        self._made.append(None)
        directory = self._directory / f'cloud{len(self._made)}'
        directory.mkdir()
        return directory

    def stop(self) -> None:
        """Stop all clouds."""
        for cloud in self._clouds.values():
            cloud.stop()
        self._clouds.clear()
