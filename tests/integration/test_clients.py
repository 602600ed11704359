"""What people use: the ``openstack`` command and openstacksdk, against real daemons.

The command walks through everything at its default version (it negotiates one for each request), at 2.1 and at the
newest there is, and through a part at ``2.latest``, the word for that; every command is printed with its exit code.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from tests.integration.openstack_shell import Done, Shells
from tests.integration.site import Site

NEWEST = '2.104'
VERSIONS = (None, '2.1', NEWEST)
# What it means to the command: as its default, each request negotiates.
LATEST = '2.latest'
# What openstacksdk warns of is its own business.
pytestmark = pytest.mark.filterwarnings('ignore')


class Terminal:
    """One person's command line at one version of the API."""

    def __init__(self, shells: Shells, cloud: str, version: str | None) -> None:
        self._shells, self._cloud, self.version = shells, cloud, version

    def __call__(self, *arguments: str, code: int = 0) -> Done:
        """A command that must end with this exit code."""
        done = self._shells.run(self._cloud, self.version, *arguments)
        assert done.code == code, f'{arguments} ended with {done.code}:\n{done.output}{done.errors}'
        return done

    def data(self, *arguments: str) -> Any:
        """The same, and what it tells."""
        return self(*arguments, '-f', 'json').data

    def names(self, *arguments: str) -> list[str]:
        """The names in a list."""
        return self(*arguments, '-f', 'value', '-c', 'Name').output.split()

    @property
    def patience(self) -> list[str]:
        """``--wait`` looks each five seconds: twice is enough."""
        return [] if self.version else ['--wait']

    @property
    def number(self) -> int:
        """N of 2.N; the newest where requests negotiate."""
        return number_of(self.version)


def number_of(version: str | None) -> int:
    return int((NEWEST if version in (None, LATEST) else str(version)).partition('.')[2])


def tag_of(version: str | None) -> str:
    return {None: 'any', LATEST: 'latest'}.get(version) or f'v{number_of(version)}'


def public_key() -> str:
    """A new one, as ssh-keygen writes it."""
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_bytes(*form).decode() + ' someone@somewhere'


class Walk:
    """A member and an administrator at one version; the names of their things are their own."""

    def __init__(self, site: Site, version: str | None, directory: Path) -> None:
        self.site, self.directory = site, directory
        self.shells = Shells(site.layout.bin('python'), site.layout.clouds, directory)
        self.demo, self.admin = (Terminal(self.shells, f'kilonova-{name}', version) for name in ('demo', 'admin'))
        tag = tag_of(version)
        self.small, self.large, self.key = f'small-{tag}', f'large-{tag}', f'key-{tag}'
        self.one, self.many, self.image = f'one-{tag}', f'many-{tag}', f'shot-{tag}'
        self.server = ''

    def until(self, status: str) -> None:
        self.site.await_status([self.server], status)

    def go(self) -> None:
        self.flavors()
        self.keys()
        self.create()
        self.lists()
        self.changes()
        if self.demo.version != LATEST:
            self.powers()
            self.moves()
            self.stories()

    # -- flavors and keys -----------------------------------------------------------------------------------------
    def flavors(self) -> None:
        admin, demo, hidden = self.admin, self.demo, f'hidden-{self.small}'
        admin(
            'flavor',
            'create',
            '--id',
            'auto',
            '--ram',
            '512',
            '--disk',
            '1',
            '--vcpus',
            '1',
            '--property',
            'a:b=c',
            self.small,
        )
        admin(
            'flavor',
            'create',
            '--ram',
            '1024',
            '--disk',
            '2',
            '--vcpus',
            '2',
            '--ephemeral',
            '3',
            '--swap',
            '512',
            self.large,
        )
        admin('flavor', 'create', '--ram', '64', '--disk', '1', '--vcpus', '1', '--private', hidden)
        project = admin.data('project', 'show', 'demo')['id']
        assert hidden not in demo.names('flavor', 'list')
        admin('flavor', 'set', '--project', project, hidden)
        demo('flavor', 'show', hidden)
        admin('flavor', 'unset', '--project', project, hidden)
        admin('flavor', 'set', '--property', 'hw:x=y', self.small, code=1 if admin.version == NEWEST else 0)
        admin('flavor', 'set', '--property', 'hw:cpu_policy=shared', self.small)
        admin('flavor', 'unset', '--property', 'hw:cpu_policy', '--property', 'a:b', self.small)
        if admin.number >= 55:
            admin('flavor', 'set', '--description', 'words', self.small)
        shown = demo.data('flavor', 'show', self.small)
        assert (shown['vcpus'], shown['ram'], shown['disk'], shown['os-flavor-access:is_public']) == (1, 512, 1, True)
        assert {self.small, self.large} <= set(demo.names('flavor', 'list'))
        assert hidden in admin.names('flavor', 'list', '--all')
        demo('flavor', 'list', '--min-ram', '600', '--limit', '1')
        demo('flavor', 'delete', self.small, code=1)
        admin('flavor', 'delete', hidden)
        demo('flavor', 'show', hidden, code=1)

    def all_flavors(self) -> None:
        """With the extra specs, which the command asks for one by one: nobody may take a flavor away meanwhile."""
        assert {self.small, self.large} <= set(self.admin.names('flavor', 'list', '--all', '--long'))

    def keys(self) -> None:
        demo, path, made = self.demo, self.directory / 'key.pub', f'made-{self.key}'
        path.write_text(public_key())
        demo('keypair', 'create', '--public-key', str(path), self.key)
        assert 'PRIVATE KEY' in demo('keypair', 'create', made).output
        assert {self.key, made} <= set(demo.names('keypair', 'list'))
        assert demo.data('keypair', 'show', self.key)['name'] == self.key
        assert demo('keypair', 'show', '--public-key', self.key).output.strip() == path.read_text()
        demo('keypair', 'delete', made)
        demo('keypair', 'show', made, code=1)

    # -- servers --------------------------------------------------------------------------------------------------
    def create(self) -> None:
        """One with all that can be said, two with disks of their own."""
        demo, user_data = self.demo, self.directory / 'user-data'
        user_data.write_text('#cloud-config')
        nic = ['--nic', 'none'] if demo.number >= 37 else []
        more = ['--tag', 'red', '--description', 'words'] if demo.number >= 52 else []
        if demo.number >= 90:
            more += ['--hostname', 'front']
        demo(
            'server',
            'create',
            '--image',
            'demo',
            '--flavor',
            self.small,
            '--key-name',
            self.key,
            '--property',
            'color=blue',
            '--user-data',
            str(user_data),
            '--use-config-drive',
            '--hint',
            'anything=goes',
            '--availability-zone',
            'nova',
            '--password',
            'secret',
            *nic,
            *more,
            *demo.patience,
            self.one,
        )
        self.server = demo.data('server', 'show', self.one)['id']
        self.until('ACTIVE')
        shown = demo.data('server', 'show', self.one)
        assert (shown['status'], shown['name'], shown['key_name'], shown['config_drive']) == (
            'ACTIVE',
            self.one,
            self.key,
            'True',
        )
        assert shown['properties'] == {'color': 'blue'}
        demo(
            'server',
            'create',
            '--image',
            'demo',
            '--flavor',
            self.large,
            '--ephemeral',
            'size=1,format=ext4',
            '--swap',
            '256',
            '--min',
            '2',
            '--max',
            '2',
            *nic,
            self.many,
        )
        two = [demo.data('server', 'show', f'{self.many}-{number}')['id'] for number in (1, 2)]
        self.site.await_status(two, 'ACTIVE')

    def lists(self) -> None:
        demo = self.demo
        assert {self.one, f'{self.many}-1', f'{self.many}-2'} <= set(demo.names('server', 'list'))
        assert demo.names(
            'server', 'list', '--name', f'^{self.one}$', '--status', 'ACTIVE', '--flavor', self.small, '--image', 'demo'
        ) == [self.one]
        (newest,) = demo.names('server', 'list', '--long', '--limit', '1', '--flavor', self.large)
        assert demo.names('server', 'list', '--marker', newest, '--limit', '9', '--flavor', self.large) == [
            name for name in (f'{self.many}-2', f'{self.many}-1') if name != newest
        ]
        demo('server', 'list', '--changes-since', '2026-01-01T00:00:00Z', '-c', 'ID', '-c', 'Name', '-c', 'Status')
        demo('server', 'list', '--marker', 'nosuch', code=1)
        if demo.number >= 73:
            assert self.one in demo.names('server', 'list', '--tags', 'red', '--unlocked')
            demo('server', 'list', '--changes-before', '2099-01-01T00:00:00Z')

    def changes(self) -> None:
        demo = self.demo
        demo('server', 'set', '--property', 'size=big', '--name', f'new-{self.one}', self.one)
        demo('server', 'unset', '--property', 'color', self.server)
        if demo.number >= 26:
            demo('server', 'set', '--tag', 'green', '--description', 'other words', self.server)
            demo('server', 'unset', '--tag', 'red', self.server)
            assert demo.data('server', 'show', self.server)['tags'] == ['green']
        shown = demo.data('server', 'show', self.server)
        assert (shown['name'], shown['properties']) == (f'new-{self.one}', {'size': 'big'})
        # Where it negotiates the command asks for topologies at 2.1, where there are none.
        demo('server', 'show', '--topology', self.server, code=0 if demo.version == NEWEST else 1)
        demo('server', 'delete', '--wait', f'{self.many}-1', f'{self.many}-2')
        demo('server', 'show', f'{self.many}-1', code=1)

    def powers(self) -> None:
        demo = self.demo
        demo('server', 'stop', self.server)
        self.until('SHUTOFF')
        demo('server', 'stop', self.server, code=1)
        demo('server', 'start', self.server)
        self.until('ACTIVE')
        for kind in ('--soft', '--hard'):
            demo('server', 'reboot', kind, self.server)
            self.until('ACTIVE')
        demo('server', 'lock', *(['--reason', 'because'] if demo.number >= 73 else []), self.server)
        demo('server', 'stop', self.server, code=1)
        demo('server', 'unlock', self.server)
        demo('console', 'log', 'show', self.server)

    def moves(self) -> None:
        demo, admin = self.demo, self.admin
        demo('server', 'resize', '--flavor', self.large, *demo.patience, self.server)
        self.until('VERIFY_RESIZE')
        demo('server', 'resize', 'confirm', self.server)
        self.until('ACTIVE')
        # Accepted, and refused by the host: disks don't shrink. The server is as it was.
        demo('server', 'resize', '--flavor', self.small, self.server)
        self.until('ACTIVE')
        admin('server', 'migrate', self.server)
        self.until('VERIFY_RESIZE')
        admin('server', 'migrate', 'revert', self.server)
        self.until('ACTIVE')
        admin('server', 'migration', 'list', *(['--server', self.server] if admin.number >= 23 else []))
        admin('server', 'migration', 'list', '--status', 'reverted')
        demo('server', 'image', 'create', '--name', self.image, self.server)
        self.until('ACTIVE')
        assert demo.data('image', 'show', self.image)['status'] == 'active'
        demo('image', 'delete', self.image)

    def stories(self) -> None:
        demo, admin = self.demo, self.admin
        events = demo.data('server', 'event', 'list', self.server)
        assert {'create', 'stop', 'start', 'reboot', 'resize', 'confirmResize', 'migrate', 'createImage'} <= {
            event['Action'] for event in events
        }
        request = next(event['Request ID'] for event in events if event['Action'] == 'create')
        # Before 2.51 members see no events of an action, and the command stumbles over that.
        demo('server', 'event', 'show', self.server, request, code=1 if demo.version == '2.1' else 0)
        admin('server', 'event', 'show', self.server, request)
        admin('server', 'list', '--all-projects', '--long')
        admin('server', 'list', '--all-projects', '--host', 'gpu1')
        admin('server', 'list', '--all-projects', '--deleted', '--limit', '2')
        assert admin.data('server', 'show', self.server)['OS-EXT-SRV-ATTR:host'] in ('gpu1', 'gpu2')
        admin('server', 'show', '--diagnostics', self.server)
        admin('server', 'set', '--state', 'error', '--auto-approve', self.server)
        assert demo.data('server', 'show', self.server)['status'] == 'ERROR'
        admin('server', 'set', '--state', 'active', '--auto-approve', self.server)

    # -- the cloud ------------------------------------------------------------------------------------------------
    def hosts(self) -> None:
        admin = self.admin
        assert sorted(row['Hypervisor Hostname'] for row in admin.data('hypervisor', 'list')) == ['gpu1', 'gpu2']
        admin('hypervisor', 'show', 'gpu1')
        admin('hypervisor', 'list', '--long')
        admin('hypervisor', 'stats', 'show')
        services = admin.data('compute', 'service', 'list')
        assert {row['Binary'] for row in services} >= {'nova-compute', 'nova-conductor', 'nova-scheduler'}
        admin('compute', 'service', 'set', '--disable', '--disable-reason', 'work', 'gpu2', 'nova-compute')
        admin('compute', 'service', 'list', '--service', 'nova-compute', '--host', 'gpu2', '--long')
        admin('compute', 'service', 'set', '--enable', 'gpu2', 'nova-compute')
        if admin.number >= 11:
            admin('compute', 'service', 'set', '--down', 'gpu2', 'nova-compute')
            admin('compute', 'service', 'set', '--up', 'gpu2', 'nova-compute')
        assert 'nova' in admin('availability', 'zone', 'list', '--compute', '--long').output
        admin('aggregate', 'list')

    def amounts(self) -> None:
        admin, demo = self.admin, self.demo
        project = admin.data('project', 'show', 'demo')['id']
        demo('limits', 'show', '--absolute')
        demo('limits', 'show', '--rate')
        demo('quota', 'show', '--compute')
        admin('quota', 'show', '--compute', project)
        admin('quota', 'show', '--compute', '--default', project)
        admin('quota', 'set', '--instances', '25', project)
        shown = {row['Resource']: row['Limit'] for row in admin.data('quota', 'show', '--compute', project)}
        assert shown['instances'] == 25
        admin('quota', 'list', '--compute')
        admin('quota', 'delete', '--compute', project)
        admin('usage', 'list')
        admin('usage', 'show', '--project', project)
        demo('usage', 'show')

    def end(self) -> None:
        self.demo('server', 'delete', '--wait', self.server)
        self.demo('server', 'list')
        self.demo('keypair', 'delete', self.key)
        self.admin('flavor', 'delete', self.small, self.large)
        self.demo('nosuch', 'command', code=2)


@pytest.fixture
def walks(site: Site, tmp_path: Path) -> Iterator[list[Walk]]:
    made: list[Walk] = []
    for version in (*VERSIONS, LATEST):
        directory = tmp_path / (version or 'default')
        directory.mkdir()
        made.append(Walk(site, version, directory))
    yield made
    for walk in made:
        walk.shells.end()


def test_the_command(site: Site, walks: list[Walk]) -> None:
    """The openstack command works at four microversions at once. What concerns hosts and the whole project is tried
    one version after the other."""
    site.at_once(Walk.go, walks)
    for walk in walks:
        if walk.demo.version != LATEST:
            walk.hosts()
            walk.amounts()
        walk.all_flavors()
    site.at_once(Walk.end, walks)
    site.assert_nothing_held()


# --- openstacksdk ----------------------------------------------------------------------------------------------------
@pytest.fixture
def connect(running_site: Site) -> Iterator[Any]:
    """``connect('demo', '2.1')``: a connection at a version, None: the library chooses for each request."""
    made = []

    def connect(name: str, version: str | None) -> Any:
        config = openstack.config.OpenStackConfig(config_files=[str(running_site.layout.clouds)])
        more: dict[str, Any] = {'compute_default_microversion': version} if version else {}
        made.append(openstack.connection.Connection(config=config.get_one(f'kilonova-{name}', **more)))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def test_the_library(site: Site, connect: Any) -> None:
    """openstacksdk does the same as the openstack command."""
    people = {version: (connect('demo', version), connect('admin', version)) for version in VERSIONS}
    servers = dict(
        zip(VERSIONS, site.at_once(lambda version: _sdk_walk(site, *people[version], version), VERSIONS), strict=True)
    )
    for version, (demo, admin) in people.items():
        _sdk_hosts(admin, demo)
        _sdk_end(demo.compute, admin.compute, servers[version])
    site.assert_nothing_held()


def _sdk_walk(site: Site, demo: Any, admin: Any, version: str | None) -> Any:
    number, tag = number_of(version), tag_of(version)
    small, large = _sdk_flavors(admin.compute, demo.compute, number, tag)
    server = _sdk_server(site, demo, small, number, tag)
    _sdk_actions(site, demo, admin, server, large)
    _sdk_stories(demo.compute, admin.compute, server, number)
    return tag, server, (small, large)


def _sdk_end(demo: Any, admin: Any, made: Any) -> None:
    tag, server, flavors = made
    demo.delete_server(server)
    demo.wait_for_delete(server, interval=0.2)
    demo.delete_keypair(f'sdk-key-{tag}')
    for flavor in flavors:
        admin.delete_flavor(flavor)


def _sdk_flavors(admin: Any, demo: Any, number: int, tag: str) -> tuple[Any, Any]:
    small, large = (
        admin.create_flavor(name=f'{name}-{tag}', ram=ram, vcpus=1, disk=1)
        for name, ram in (('sdk-s', 512), ('sdk-l', 1024))
    )
    admin.create_flavor_extra_specs(small, {'hw:cpu_policy': 'shared'})
    admin.update_flavor_extra_specs_property(small, 'hw:cpu_policy', 'dedicated')
    assert dict(admin.fetch_flavor_extra_specs(small).extra_specs) == {'hw:cpu_policy': 'dedicated'}
    admin.delete_flavor_extra_specs_property(small, 'hw:cpu_policy')
    if number >= 55:
        assert admin.update_flavor(small.id, description='words').description == 'words'
    assert demo.find_flavor(small.name).id == small.id and demo.get_flavor(large.id).ram == 1024
    assert {small.name, large.name} <= {flavor.name for flavor in demo.flavors()}
    hidden = admin.create_flavor(name=f'sdk-hidden-{tag}', ram=64, vcpus=1, disk=1, is_public=False)
    admin.flavor_add_tenant_access(hidden.id, 'f' * 32)
    assert [row['tenant_id'] for row in admin.get_flavor_access(hidden.id)] == ['f' * 32]
    admin.flavor_remove_tenant_access(hidden.id, 'f' * 32)
    admin.delete_flavor(hidden)
    return small, large


def _sdk_server(site: Site, demo: Any, flavor: Any, number: int, tag: str) -> Any:
    compute, name = demo.compute, f'sdk-{tag}'
    key = compute.create_keypair(name=f'sdk-key-{tag}', public_key=public_key())
    assert compute.get_keypair(key.name).fingerprint == key.fingerprint
    assert key.name in [row.name for row in compute.keypairs()]
    more: dict[str, Any] = {'networks': 'none'} if number >= 37 else {}
    if number >= 52:
        more |= {'tags': ['a'], 'description': 'words'}
    server = compute.create_server(
        name=name,
        image_id=site.image,
        flavor_id=flavor.id,
        key_name=key.name,
        metadata={'a': 'b'},
        config_drive=True,
        user_data=base64.b64encode(b'#cloud-config').decode(),
        scheduler_hints={'any': 'thing'},
        **more,
    )
    server = compute.wait_for_server(server, interval=0.2, wait=60)
    assert (server.status, server.key_name, server.metadata) == ('ACTIVE', key.name, {'a': 'b'})
    assert compute.find_server(name).id == server.id
    assert [row.id for row in compute.servers(details=False, name=f'^{name}$')] == [server.id]
    assert server.id in [row.id for row in compute.servers(status='ACTIVE', limit=1, paginated=True)]
    compute.set_server_metadata(server.id, c='d')
    compute.delete_server_metadata(compute.get_server(server.id), ['a'])
    assert compute.get_server_metadata(server.id).metadata == {'c': 'd'}
    assert compute.update_server(server.id, name=f'{name}-2').name == f'{name}-2'
    if number >= 26:
        compute.add_tag_to_server(server, 'b')
        assert 'b' in compute.get_server(server.id).tags
        compute.remove_tag_from_server(server, 'b')
    if number >= 90:
        assert compute.update_server(server.id, hostname='sdk-host').hostname == 'sdk-host'
    return server


def _sdk_actions(site: Site, demo: Any, admin: Any, server: Any, large: Any) -> None:
    compute = demo.compute
    for act, status in (
        (lambda: compute.stop_server(server), 'SHUTOFF'),
        (lambda: compute.start_server(server), 'ACTIVE'),
        (lambda: compute.reboot_server(server, 'SOFT'), 'ACTIVE'),
        (lambda: compute.reboot_server(server, 'HARD'), 'ACTIVE'),
        (lambda: compute.resize_server(server, large), 'VERIFY_RESIZE'),
        (lambda: compute.revert_server_resize(server), 'ACTIVE'),
        (lambda: compute.resize_server(server, large), 'VERIFY_RESIZE'),
        (lambda: compute.confirm_server_resize(server), 'ACTIVE'),
        (lambda: admin.compute.migrate_server(server), 'VERIFY_RESIZE'),
        (lambda: compute.confirm_server_resize(server), 'ACTIVE'),
    ):
        act()
        site.await_status([server.id], status)
    compute.lock_server(server)
    with pytest.raises(openstack.exceptions.ConflictException, match='is locked'):
        compute.stop_server(server)
    compute.unlock_server(server)
    with pytest.raises(openstack.exceptions.ConflictException, match="Cannot 'start' instance"):
        compute.start_server(server)
    image = compute.create_server_image(server, f'shot of {server.name}')
    site.await_status([server.id], 'ACTIVE')
    assert demo.image.get_image(image.id).status == 'active'
    demo.image.delete_image(image.id)
    assert 'output' in compute.get_server_console_output(server)
    admin.compute.reset_server_state(server, 'error')
    assert compute.get_server(server.id).status == 'ERROR'
    admin.compute.reset_server_state(server, 'active')


def _sdk_stories(demo: Any, admin: Any, server: Any, number: int) -> None:
    actions = list(demo.server_actions(server))
    assert {'create', 'stop', 'resize', 'confirmResize', 'migrate'} <= {action.action for action in actions}
    assert demo.get_server_action(actions[-1].request_id, server).action == 'create'
    assert {'resize', 'migration'} <= {
        move.migration_type for move in admin.migrations(instance_uuid=server.id)
    } or number < 23
    if number >= 23:
        assert list(admin.server_migrations(server)) == []
    assert admin.get_server_diagnostics(server)
    assert server.id in [row.id for row in admin.servers(all_projects=True)]
    with pytest.raises(openstack.exceptions.ForbiddenException):
        list(demo.servers(all_projects=True))


def _sdk_hosts(admin: Any, demo: Any) -> None:
    compute = admin.compute
    found = {row.name: row for row in compute.hypervisors(details=True)}
    assert set(found) == {'gpu1', 'gpu2'}
    assert compute.get_hypervisor(found['gpu1'].id).name == 'gpu1'
    (service,) = compute.services(host='gpu2', binary='nova-compute')
    compute.disable_service(service, host='gpu2', binary='nova-compute', disabled_reason='work')
    assert next(compute.services(host='gpu2', binary='nova-compute')).status == 'disabled'
    compute.enable_service(service, host='gpu2', binary='nova-compute')
    project = demo.current_project_id
    assert compute.get_quota_set(project).instances >= 1
    compute.update_quota_set(project, instances=33)
    assert demo.compute.get_quota_set(project, usage=True).instances == 33
    compute.revert_quota_set(project)
    assert compute.get_quota_set_defaults(project).instances >= 1
    assert demo.compute.get_limits().absolute.instances_used >= 1
    assert compute.get_usage(project) is not None and list(compute.usages()) is not None
    assert 'nova' in [zone.name for zone in demo.compute.availability_zones()]
    list(compute.aggregates())
