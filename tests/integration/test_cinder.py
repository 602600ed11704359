"""The real Cinder in the one-machine cloud (``make up VOLUME=1``): our client of it, and servers with volumes."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from keystoneauth1 import exceptions as ks_exceptions

from kilonova import conf as kilonova_conf
from kilonova import errors
from kilonova.clients import volume as volume_client
from kilonova.clients.key_manager import FIXED
from kilonova.clients.volume import Attachment, Volume, VolumeClient
from kilonova.cmd.daemon import parts
from kilonova.context import RequestContext
from tests.integration.openstack_shell import Shells
from tests.integration.site import Site
from tests.integration.test_neutron import active, addresses, bindings, of
from tools.cloud import cinder, http, neutron, process

# What a host says of itself, as far as this back end looks.
CONNECTOR = {'host': 'gpu1', 'ip': '192.0.2.7', 'initiator': 'iqn.1993-08.org.debian:01:1', 'mountpoint': '/dev/vdb'}


@pytest.fixture
def site(site_with_services: Site) -> Site:
    return site_with_services


@pytest.fixture
def client(site: Site) -> VolumeClient:
    """As a daemon of this cloud has it."""
    conf = kilonova_conf.new()
    conf(['--config-file', str(site.layout.conf)], project='kilonova', default_config_dirs=[])
    made = parts.volumes(conf)
    assert made is not None
    return made


@pytest.fixture
def user(site: Site) -> RequestContext:
    """The demo project's."""
    rows = http.call('GET', site.url('keystone') + '/projects?name=demo', token=site.token('admin')).data['projects']
    return RequestContext(auth_token=site.token('demo'), user_id='u', project_id=rows[0]['id'])


@pytest.fixture
def make(client: VolumeClient, user: RequestContext) -> Iterator[Callable[..., Volume]]:
    """Makes volumes of the demo project, which are there when it returns, and gone after the test."""
    made = []

    def one(**fields: Any) -> Volume:
        asked = client.create_volume(user, **{'size': 1, 'name': 'data', **fields})
        made.append(asked.id)
        assert asked.status == 'creating'
        until(lambda: client.volume(user, asked.id).status != 'creating')
        return client.volume(user, asked.id)

    yield one
    for identifier in made:
        client.delete_volume(identifier)
    for identifier in made:
        until(lambda identifier=identifier: gone(client, identifier))  # type: ignore[misc]


def until(done: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def gone(client: VolumeClient, volume: str) -> bool:
    try:
        client.volume(None, volume)
    except volume_client.VolumeNotFound:
        return True
    return False


def attached(client: VolumeClient, volume: Volume, server: str, host: str = 'gpu1') -> Attachment:
    made = client.create_attachment(volume.id, server, {**CONNECTOR, 'host': host})
    client.complete_attachment(made.id)
    return made


def status(client: VolumeClient, volume: Volume) -> str:
    return client.volume(None, volume.id).status


def new_server() -> str:
    return str(uuid.uuid4())


def test_its_process_is_of_the_cloud(site: Site) -> None:
    """Up again doesn't restart it."""
    before = site.pid('cinder')
    site.up()
    assert site.pid('cinder') == before
    assert 'cinder' in process.recorded(site.layout)


def test_volumes_as_a_user_and_as_the_service_see_them(
    client: VolumeClient, site: Site, user: RequestContext, make: Callable[..., Volume]
) -> None:
    """From an image, and from a snapshot of that."""
    volume = make(name='root', image_id=site.image, metadata={'server': 'x'})
    assert (
        volume.status,
        volume.size,
        volume.bootable,
        volume.multiattach,
        volume.encrypted,
        volume.volume_type,
        volume.project_id,
    ) == ('available', 1, True, False, False, cinder.DEFAULT_TYPE, user.project_id)
    assert volume.image_metadata['image_id'] == site.image
    assert client.volume(None, volume.id) == volume
    made = http.call(
        'POST',
        site.url('cinder') + '/snapshots',
        {'snapshot': {'volume_id': volume.id, 'name': 's'}},
        token=user.auth_token,
    ).data['snapshot']['id']
    until(lambda: client.snapshot(user, made).status == 'available')
    snapshot = client.snapshot(None, made)
    assert (snapshot.name, snapshot.volume_id, snapshot.status, snapshot.size) == ('s', volume.id, 'available', 1)
    copy = make(size=2, snapshot_id=made)
    assert (copy.snapshot_id, copy.size, copy.volume_type, copy.bootable) == (made, 2, cinder.DEFAULT_TYPE, True)
    with pytest.raises(volume_client.VolumeInvalid, match='have snapshots'):
        client.delete_volume(volume.id)
    http.call('DELETE', f'{site.url("cinder")}/snapshots/{made}', token=user.auth_token)
    until(lambda: missing(lambda: client.snapshot(None, made)))


def test_how_a_snapshot_is_that_a_host_takes(client: VolumeClient, site: Site, make: Callable[..., Volume]) -> None:
    """Cinder takes it while it waits for that, and refuses it later."""
    volume, token = make(), site.token('admin')
    made = http.call(
        'POST', site.url('cinder') + '/snapshots', {'snapshot': {'volume_id': volume.id}}, token=site.token('demo')
    ).data['snapshot']['id']
    url = f'{site.url("cinder")}/snapshots/{made}'
    until(lambda: client.snapshot(None, made).status == 'available')
    for begun, failed in (('creating', 'error'), ('deleting', 'error_deleting')):
        with pytest.raises(volume_client.VolumeInvalid, match='not allowed'):
            client.tell_snapshot(made, begun, '90%')
        http.call('POST', f'{url}/action', {'os-reset_status': {'status': begun}}, token=token)
        client.tell_snapshot(made, begun, '90%')
        shown = http.call('GET', url, token=token).data['snapshot']
        assert (shown['status'], shown['os-extended-snapshot-attributes:progress']) == (begun, '90%')
        client.tell_snapshot(made, failed)
        assert client.snapshot(None, made).status == failed
    with pytest.raises(volume_client.VolumeInvalid, match='must be available or error'):
        client.delete_snapshot(made)
    http.call('POST', f'{url}/action', {'os-reset_status': {'status': 'available'}}, token=token)
    client.delete_snapshot(made)
    until(lambda: missing(lambda: client.snapshot(None, made)))
    with pytest.raises(volume_client.SnapshotNotFound, match=made):
        client.tell_snapshot(made, 'error')


def missing(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except errors.NotFound:
        return True
    return False


def test_what_users_do_not_see_and_cannot_have(
    client: VolumeClient, site: Site, user: RequestContext, make: Callable[..., Volume]
) -> None:
    """In the words on which our errors rest."""
    other = http.call('POST', site.url('cinder') + '/volumes', {'volume': {'size': 1}}, token=site.token('admin')).data[
        'volume'
    ]['id']
    until(lambda: client.volume(None, other).status == 'available')
    nothing = str(uuid.uuid4())
    for volume in (other, nothing):
        with pytest.raises(volume_client.VolumeNotFound, match=f'^Volume {volume} could not be found.$'):
            client.volume(user, volume)
    client.delete_volume(other)
    until(lambda: gone(client, other))
    client.delete_volume(other)
    with pytest.raises(volume_client.SnapshotNotFound, match=nothing):
        client.snapshot(user, nothing)
    for fields, error, text in (
        ({'snapshot_id': nothing}, volume_client.SnapshotNotFound, f'Snapshot {nothing} could not be found.'),
        ({'volume_type': 'nosuch'}, volume_client.VolumeTypeNotFound, 'Volume type nosuch could not be found.'),
        (
            {'image_id': nothing},
            volume_client.VolumeInvalid,
            'Invalid image identifier or unable to access requested image.',
        ),
        ({'availability_zone': 'far'}, volume_client.VolumeInvalid, "Availability zone 'far' is invalid."),
        (
            {'size': 0},
            volume_client.VolumeInvalid,
            'Invalid input for field/attribute size. Value: 0. 0 is less than the minimum of 1',
        ),
    ):
        with pytest.raises(error) as caught:
            make(**fields)
        assert str(caught.value) == text


def test_the_quota_of_volumes(
    client: VolumeClient, site: Site, user: RequestContext, make: Callable[..., Volume]
) -> None:
    url, token = f'{site.url("cinder")}/os-quota-sets/{user.project_id}', site.token('admin')
    used = http.call('GET', f'{url}?usage=true', token=token).data['quota_set']['volumes']['in_use']
    http.call('PUT', url, {'quota_set': {'volumes': used + 1}}, token=token)
    try:
        make()
        with pytest.raises(
            volume_client.VolumeQuotaFull,
            match=r'^VolumeLimitExceeded: Maximum number of volumes '
            r"allowed \(\d+\) exceeded for quota 'volumes'.$",
        ):
            make()
    finally:
        http.call('DELETE', url, token=token)


def test_an_attachment_from_its_reservation_to_its_end(
    client: VolumeClient, user: RequestContext, make: Callable[..., Volume]
) -> None:
    volume, server = make(volume_type='iscsi'), new_server()
    reserved = client.create_attachment(volume.id, server, None)
    assert reserved == Attachment(reserved.id, volume.id, server, 'reserved')
    assert (status(client, volume), client.attachment(reserved.id)) == ('reserved', reserved)
    made = client.create_attachment(volume.id, server, CONNECTOR)
    client.delete_attachment(reserved.id)
    assert (made.status, status(client, volume)) == ('reserved', 'attaching')
    assert client.attachments(server) == [Attachment(made.id, volume.id, server, 'attaching', made.connection)]
    assert (made.connection['driver_volume_type'], made.connection['auth_password']) == ('iscsi', 'secret')
    for _ in range(2):
        client.complete_attachment(made.id)
    assert (client.attachment(made.id).status, status(client, volume)) == ('attached', 'in-use')
    assert client.volume(user, volume.id).attachments == ((server, made.id, None, '/dev/vdb'),)
    assert client.volume(None, volume.id).attachments == ((server, made.id, 'gpu1', '/dev/vdb'),)
    with pytest.raises(volume_client.VolumeInvalid, match='Volume status must be available or error'):
        client.delete_volume(volume.id)
    for _ in range(2):
        client.delete_attachment(made.id)
    assert (client.attachments(server), status(client, volume)) == ([], 'available')
    for call in (client.attachment, client.complete_attachment):
        with pytest.raises(volume_client.AttachmentNotFound, match=made.id):
            call(made.id)


def test_one_server_has_a_volume_on_two_hosts(client: VolumeClient, make: Callable[..., Volume]) -> None:
    volume, server = make(), new_server()
    old = attached(client, volume, server)
    with pytest.raises(
        volume_client.VolumeInvalid,
        match=f'^Invalid volume: Volume {volume.id} status must be available or downloading to '
        'reserve, but the current status is in-use.$',
    ):
        client.create_attachment(volume.id, new_server(), None)
    new = client.create_attachment(volume.id, server, {**CONNECTOR, 'host': 'gpu2'})
    client.delete_attachment(old.id)
    client.complete_attachment(new.id)
    assert client.volume(None, volume.id).attachments == ((server, new.id, 'gpu2', '/dev/vdb'),)
    client.delete_attachment(new.id)


def test_several_servers_have_one(client: VolumeClient, make: Callable[..., Volume]) -> None:
    """Not before the first one's is complete. They are listed in pages, as long as Cinder has more."""
    volume, servers = make(volume_type='shared'), [new_server(), new_server()]
    assert volume.multiattach
    first = client.create_attachment(volume.id, servers[0], CONNECTOR)
    with pytest.raises(volume_client.VolumeInvalid, match='the current status is attaching'):
        client.create_attachment(volume.id, servers[1], CONNECTOR)
    client.complete_attachment(first.id)
    second = attached(client, volume, servers[1], 'gpu2')
    assert {first.id, second.id} <= {one.id for one in client.attachments_of_servers()}
    client.delete_attachment(first.id)
    assert (status(client, volume), client.attachments(servers[0])) == ('in-use', [])
    client.delete_attachment(second.id)
    assert status(client, volume) == 'available'


def test_a_back_end_that_fails(client: VolumeClient, site: Site, make: Callable[..., Volume]) -> None:
    """It is Cinder that answers; what it began stays until it is deleted."""
    server = new_server()
    volume = make(metadata={'fail': 'connect'})
    with pytest.raises(volume_client.VolumeBackendFailed, match='fails to connect'):
        client.create_attachment(volume.id, server, CONNECTOR)
    (left,) = client.attachments(server)
    assert left == Attachment(left.id, volume.id, server, 'reserved')
    client.delete_attachment(left.id)
    assert status(client, volume) == 'available'
    volume = make(metadata={'fail': 'disconnect'})
    made = attached(client, volume, server)
    with pytest.raises(volume_client.VolumeBackendFailed):
        client.delete_attachment(made.id)
    assert client.attachment(made.id).status == 'attached'
    http.call(
        'POST',
        f'{site.url("cinder")}/volumes/{volume.id}/metadata',
        {'metadata': {'fail': 'no more'}},
        token=site.token('demo'),
    )
    client.delete_attachment(made.id)
    volume = make(metadata={'fail': 'create'})
    assert volume.status == 'error'
    with pytest.raises(volume_client.VolumeInvalid, match='in an error state'):
        client.create_attachment(volume.id, server, None)


def test_an_answer_that_is_lost(
    client: VolumeClient, make: Callable[..., Volume], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would have said is found by the server."""
    volume, server = make(), new_server()
    request = client._adapter.request

    def lost(*arguments: Any, **more: Any) -> None:
        request(*arguments, **more)
        raise ks_exceptions.ConnectFailure('lost')

    monkeypatch.setattr(client._adapter, 'request', lost)
    with pytest.raises(errors.Unanswered):
        client.create_attachment(volume.id, server, CONNECTOR)
    monkeypatch.undo()
    (found,) = client.attachments(server)
    assert (found.volume_id, found.status, found.connection['attachment_id']) == (volume.id, 'attaching', found.id)
    monkeypatch.setattr(client._adapter, 'request', lost)
    with pytest.raises(errors.Unanswered):
        client.delete_attachment(found.id)
    monkeypatch.undo()
    client.delete_attachment(found.id)
    assert status(client, volume) == 'available'


# --- servers ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def flavor(site: Site, make: Callable[..., Volume]) -> Iterator[str]:
    """Its servers are gone after the test, before their volumes are."""
    yield site.flavor('plain')
    site.clean()


def boot(site: Site, flavor: str, *devices: dict[str, Any]) -> str:
    """A server with these disks besides its root disk."""
    (server,) = boot_several(site, 1, flavor, *devices)
    return server


def boot_several(site: Site, count: int, flavor: str, *devices: dict[str, Any]) -> list[str]:
    root = {'source_type': 'image', 'destination_type': 'local', 'uuid': site.image, 'boot_index': 0}
    return site.boot(count, flavor, block_device_mapping_v2=[root, *devices])


def there(volume: Volume, **more: Any) -> dict[str, Any]:
    return {'source_type': 'volume', 'destination_type': 'volume', 'uuid': volume.id, **more}


def held(client: VolumeClient, server: str) -> dict[str, tuple[str, str | None]]:
    """{volume: (status, host)} of all that Cinder has for a server."""
    found = {}
    for one in client.attachments(server):
        places = {place.attachment_id: place.host for place in client.volume(None, one.volume_id).attachments}
        assert one.volume_id not in found, 'two attachments of one volume'
        found[one.volume_id] = (one.status, places.get(one.id))
    return found


def disks(site: Site, host: str, server: str) -> str:
    return (site.layout.instances(host) / server / 'libvirt.xml').read_text()


def deleted(site: Site, server: str) -> bool:
    return site.send('GET', f'/servers/{server}').status == 404


def test_a_member_attaches_volumes_with_the_openstack_command(site: Site, client: VolumeClient, flavor: str) -> None:
    """Made, attached, listed, detached and deleted, and Cinder says the same as servers do."""
    shells = Shells(site.layout.bin('python'), site.layout.clouds, site.extra.parent)

    def command(*arguments: str, version: str = '2.101', data: bool = True) -> Any:
        done = shells.run('kilonova-demo', version, *arguments, *(('-f', 'json') if data else ()))
        assert done.code == 0, done.errors
        return done.data if data else None

    try:
        volumes = [command('volume', 'create', '--size', '1', name)['id'] for name in ('one', 'two')]
        until(lambda: {client.volume(None, volume).status for volume in volumes} == {'available'})
        server = command(
            'server',
            'create',
            '--flavor',
            flavor,
            '--image',
            'demo',
            '--no-network',
            '--block-device',
            f'uuid={volumes[0]},source_type=volume,tag=data',
            '--wait',
            'one',
        )['id']
        host = site.at(server)
        command('server', 'add', 'volume', server, 'two', data=False)
        until(lambda: held(client, server) == dict.fromkeys(volumes, ('attached', host)))
        site.settle([server])
        listed = command('server', 'volume', 'list', server)
        assert [one['Volume ID'] for one in listed] == volumes and listed[0]['Tag'] == 'data'
        assert [one['Device'] for one in listed] == ['/dev/vdb', '/dev/vdc']
        assert {one['id'] for one in command('server', 'show', server)['volumes_attached']} == set(volumes)
        shown = command('volume', 'show', 'two')
        assert (shown['status'], shown['attachments'][0]['server_id']) == ('in-use', server)
        assert volumes[0] in disks(site, host, server)
        site.audit()
        command('server', 'remove', 'volume', server, 'two', data=False)
        until(lambda: client.volume(None, volumes[1]).status == 'available')
        site.settle([server])
        assert [one['Volume ID'] for one in command('server', 'volume', 'list', server)] == volumes[:1]
        site.audit()
        command('server', 'delete', '--wait', server, data=False)
        until(lambda: client.volume(None, volumes[0]).status == 'available')
        command('volume', 'set', '--bootable', 'two', data=False)
        server = command('server', 'create', '--flavor', flavor, '--volume', 'two', '--no-network', '--wait', 'two')[
            'id'
        ]
        shown = command('server', 'show', server)
        assert (shown['image'], [one['id'] for one in shown['volumes_attached']]) == (
            'N/A (booted from volume)',
            volumes[1:],
        )
        # Its image is a snapshot of the volume; a server that is made from it has a volume of that.
        image = command('server', 'image', 'create', '--name', 'of two', '--wait', server)['id']
        other = command('server', 'create', '--flavor', flavor, '--image', 'of two', '--no-network', '--wait', 'three')[
            'id'
        ]
        ((made, at),) = held(client, other).items()
        assert made not in volumes and at == ('attached', site.at(other))
        site.audit()
        command('server', 'delete', '--wait', server, other, data=False)
        until(lambda: {client.volume(None, volume).status for volume in (made, volumes[1])} == {'available'})
        volumes.append(made)
        (snapshot,) = command('volume', 'snapshot', 'list')
        assert snapshot['Name'] == 'snapshot for of two' and client.snapshots_for(image) == [snapshot['ID']]
        assert client.snapshots_for(server) == []
        command('volume', 'snapshot', 'delete', snapshot['ID'], data=False)
        command('image', 'delete', 'of two', data=False)
        until(lambda: command('volume', 'snapshot', 'list') == [])
        command('volume', 'delete', *volumes, data=False)
        until(lambda: all(gone(client, volume) for volume in volumes))
    finally:
        shells.end()


def test_volumes_and_a_port_go_where_their_server_goes(
    site: Site, client: VolumeClient, make: Callable[..., Volume], flavor: str
) -> None:
    """One attachment each, to the server's host; the new one, which it boots from, is deleted with the server, a user's
    own stays. That is encrypted: Cinder tells how, and each host has the key that it shares with Cinder. The port has
    one active binding, on the server's host; MAC and addresses stay."""
    large, own = site.flavor('large', ram=1024), make(volume_type='encrypted')
    conf = kilonova_conf.new()
    conf(['--config-file', str(site.layout.conf)], project='kilonova', default_config_dirs=[])
    network = parts.networks(conf)
    assert network is not None
    (private,) = [
        one.id for one in network.available_networks(None, str(own.project_id)) if one.name == neutron.NETWORK
    ]
    assert client.encryption(own.id) == {**cinder.ENCRYPTED['encrypted'], 'encryption_key_id': FIXED}
    size = site.log_size('cinder')
    (server,) = site.boot(
        1,
        flavor,
        imageRef='',
        networks=[{'uuid': private}],
        block_device_mapping_v2=[
            there(own),
            {
                'source_type': 'image',
                'destination_type': 'volume',
                'uuid': site.image,
                'volume_size': 2,
                'boot_index': 0,
                'delete_on_termination': True,
            },
        ],
    )
    asked = re.findall(
        r'INFO cinder.api.openstack.wsgi .* (GET|POST|DELETE) http://[^/]+/v3/attachments',
        site.log_after('cinder', size),
    )
    # Two for each; a boot that waited for the new one looks what it has.
    assert asked[-4:] == ['POST'] * 4 and asked[:-4] in ([], ['GET'])
    (new,) = held(client, server).keys() - {own.id}
    assert client.encryption(new).get('encryption_key_id') is None
    assert (client.volume(None, new).size, client.volume(None, new).project_id) == (2, own.project_id)

    shown, port = addresses(site, server), of(network, server)

    def is_at(host: str | None, state: str = 'attached') -> None:
        assert site.servers()[server]['OS-EXT-SRV-ATTR:host'] == host
        assert held(client, server) == dict.fromkeys((own.id, new), (state, host))
        assert addresses(site, server) == shown and of(network, server).id == port.id
        if host is None:
            assert bindings(site, port) == {'': ('ACTIVE', 'unbound')}
        else:
            text = disks(site, host, server)
            assert f"<secret type='passphrase' uuid='{own.id}'/>" in text and new in text and port.mac in text
            until(lambda: active(network, port))
            assert bindings(site, port) == {host: ('ACTIVE', 'ovs')}
        site.audit()

    def acted(name: str, argument: object = None, state: str = 'ACTIVE') -> None:
        site.act(server, name, argument)
        site.await_status([server], state)

    is_at(site.at(server))
    for end, wanted in (('confirmResize', large), ('revertResize', flavor)):
        source = site.at(server)
        acted('resize', {'flavorRef': wanted}, 'VERIFY_RESIZE')
        is_at(other(source))
        acted(end)
        is_at(other(source) if end == 'confirmResize' else source)
    for _there_and_back in range(2):
        source = site.at(server)
        acted('os-migrateLive', {'host': None, 'block_migration': 'auto'})
        is_at(other(source))
    acted('reboot', {'type': 'HARD'})
    is_at(site.at(server))
    acted('shelve', None, 'SHELVED_OFFLOADED')
    is_at(None, 'reserved')
    acted('unshelve')
    source = site.at(server)
    is_at(source)
    site.lose(source)
    acted('evacuate', {})
    site.find(source)
    is_at(other(source))
    site.call('DELETE', f'/servers/{server}')
    until(lambda: deleted(site, server) and gone(client, new) and network.ports(ids=[port.id]) == [])
    assert (client.attachments(server), status(client, own)) == ([], 'available')
    until(lambda: 'in flight' not in site.audit())
    site.assert_nothing_held()


def test_a_volume_in_use_is_retyped(site: Site, client: VolumeClient, make: Callable[..., Volume], flavor: str) -> None:
    """Cinder makes another one, and asks for a swap: refused while the server is off, and then done. One is left."""
    volume = make()
    server = boot(site, flavor, there(volume))
    host = site.at(server)

    def retype() -> str | None:
        """What Cinder says of the migration."""
        http.call(
            'POST',
            f'{site.url("cinder")}/volumes/{volume.id}/action',
            {'os-retype': {'new_type': 'fast', 'migration_policy': 'on-demand'}},
            token=site.token('demo'),
        )
        until(
            lambda: client.volume(None, volume.id).status != 'retyping' and not client.volume(None, volume.id).migrating
        )
        site.settle([server])
        assert held(client, server) == {volume.id: ('attached', host)} and status(client, volume) == 'in-use'
        until(
            lambda: (
                [
                    one['id']
                    for one in http.call('GET', f'{site.url("cinder")}/volumes', token=site.token('demo')).data[
                        'volumes'
                    ]
                ]
                == [volume.id]
            )
        )
        site.audit()
        return client.volume(None, volume.id).migration

    site.act(server, 'os-stop')
    site.await_status([server], 'SHUTOFF')
    assert retype() == 'error' and f"volumes/volume-{volume.id}'" in disks(site, host, server)
    site.act(server, 'os-start')
    site.await_status([server], 'ACTIVE')
    assert retype() == 'success'
    assert client.volume(None, volume.id).volume_type == 'fast'
    # libvirt's test driver lets no guest that runs go along.
    site.act(server, 'reboot', {'type': 'HARD'})
    site.await_status([server], 'ACTIVE')
    (name,) = re.findall(r'name=.fast/volume-([\w-]+)', disks(site, host, server))
    assert name != volume.id and held(client, server) == {volume.id: ('attached', host)}


def other(host: str) -> str:
    return {'gpu1': 'gpu2', 'gpu2': 'gpu1'}[host]


def test_a_delete_while_cinder_is_away(
    site: Site, client: VolumeClient, make: Callable[..., Volume], flavor: str
) -> None:
    """The server is gone at once, its attachment when Cinder is back; meanwhile nobody gets a volume."""
    volume = make()
    server, without = boot(site, flavor, there(volume)), boot(site, flavor)
    site.stop('cinder')
    try:
        site.call('DELETE', f'/servers/{server}')
        until(lambda: deleted(site, server), within=20.0)
        refused = site.send(
            'POST', f'/servers/{without}/os-volume_attachments', {'volumeAttachment': {'volumeId': volume.id}}
        )
        assert refused.status == 503 and b'The volume service does not answer' in refused.body
    finally:
        site.start('cinder')
    until(lambda: client.attachments(server) == [])
    assert status(client, volume) == 'available'
    site.audit()


def test_an_attach_that_fails_leaves_nothing(
    site: Site, client: VolumeClient, make: Callable[..., Volume], flavor: str
) -> None:
    volume, server = make(metadata={'fail': 'connect'}), boot(site, flavor)
    refused = site.send(
        'POST', f'/servers/{server}/os-volume_attachments', {'volumeAttachment': {'volumeId': volume.id}}
    )
    assert refused.status == 409 and b'fails to connect' in refused.body
    site.settle([server])
    assert (client.attachments(server), status(client, volume)) == ([], 'available')
    assert site.call('GET', f'/servers/{server}/os-volume_attachments')['volumeAttachments'] == []


def test_a_volume_of_two_servers(site: Site, client: VolumeClient, make: Callable[..., Volume], flavor: str) -> None:
    volume = make(volume_type='shared')
    servers = [boot(site, flavor, there(volume)), boot(site, flavor)]
    site.call('POST', f'/servers/{servers[1]}/os-volume_attachments', {'volumeAttachment': {'volumeId': volume.id}})
    site.settle(servers)
    assert [held(client, server)[volume.id] for server in servers] == [
        ('attached', site.at(server)) for server in servers
    ]
    assert '<shareable/>' in disks(site, site.at(servers[0]), servers[0])
    site.call('DELETE', f'/servers/{servers[0]}')
    until(lambda: client.attachments(servers[0]) == [])
    assert status(client, volume) == 'in-use'
    single = make()
    site.call('POST', f'/servers/{servers[1]}/os-volume_attachments', {'volumeAttachment': {'volumeId': single.id}})
    site.settle(servers[1:])
    taken = site.ask_create(
        'other',
        flavor,
        block_device_mapping_v2=[
            {'source_type': 'image', 'destination_type': 'local', 'uuid': site.image, 'boot_index': 0},
            there(single),
        ],
    )
    assert taken.status == 400


def test_servers_that_get_one_volume_at_once(
    site: Site, client: VolumeClient, make: Callable[..., Volume], flavor: str
) -> None:
    volume = make(volume_type='shared')
    servers = boot_several(site, 4, flavor, there(volume))
    assert [held(client, server)[volume.id] for server in servers] == [
        ('attached', site.at(server)) for server in servers
    ]


def test_volumes_and_snapshots_for_old_clients(site: Site) -> None:
    """By the compute API until 2.35, each request as the user."""

    def ask(method: str, path: str, body: object = None) -> Any:
        return site.call(method, path, body, version='2.35')

    asked = {'size': 1, 'display_name': 'old', 'display_description': 'way', 'metadata': {'team': 'a'}}
    made = ask('POST', '/os-volumes', {'volume': asked})['volume']
    path = f'/os-volumes/{made["id"]}'
    until(lambda: ask('GET', path)['volume']['status'] == 'available')
    shown = ask('GET', path)['volume']
    assert shown['metadata'] == {'team': 'a'} and shown['attachments'] == [{}] and shown['displayName'] == 'old'
    assert all(shown in ask('GET', f'/os-volumes{tail}')['volumes'] for tail in ('?limit=1', '/detail'))
    taken = {'volume_id': made['id'], 'display_name': 'before'}
    snapshot = ask('POST', '/os-snapshots', {'snapshot': taken})['snapshot']['id']
    until(lambda: ask('GET', f'/os-snapshots/{snapshot}')['snapshot']['status'] == 'available')
    assert ask('GET', '/os-snapshots?limit=1')['snapshots'] == [ask('GET', f'/os-snapshots/{snapshot}')['snapshot']]
    refused = site.send('DELETE', path, version='2.35')
    assert refused.status == 400 and b'have snapshots' in refused.body
    ask('DELETE', f'/os-snapshots/{snapshot}')
    until(lambda: site.send('GET', f'/os-snapshots/{snapshot}', version='2.35').status == 404)
    ask('DELETE', path)
    until(lambda: site.send('GET', path, version='2.35').status == 404)


def test_a_volume_that_grows(site: Site, client: VolumeClient, make: Callable[..., Volume], flavor: str) -> None:
    """Cinder tells the compute API, and the server's row has the new size."""
    volume = make()
    server = boot(site, flavor, there(volume))
    reply = http.send(
        'POST',
        f'{site.url("cinder")}/volumes/{volume.id}/action',
        data=b'{"os-extend": {"new_size": 3}}',
        headers={
            'X-Auth-Token': site.token('demo'),
            'Content-Type': 'application/json',
            'OpenStack-API-Version': 'volume 3.42',
        },
    )
    assert reply.status == 202
    until(lambda: (found := client.volume(None, volume.id)).size == 3 and found.status == 'in-use')
    until(
        lambda: (
            site._row(
                'SELECT volume_size FROM block_device_mapping WHERE deleted = 0 AND volume_id IS NOT NULL '
                'AND instance_uuid = ?',
                server,
            )
            == {'volume_size': 3}
        )
    )
    site.settle([server])


def test_a_root_volume_gets_another_image(
    site: Site, client: VolumeClient, make: Callable[..., Volume], flavor: str
) -> None:
    """While it is reserved for its server. One that couldn't be written is in error in Cinder, and is written by
    another rebuild."""
    volume = make(image_id=site.image, metadata={'fail': 'reimage'})
    (server,) = site.boot(1, flavor, imageRef='', block_device_mapping_v2=[there(volume, boot_index=0)])
    host = site.at(server)

    def rebuilt() -> dict[str, Any]:
        site.call('POST', f'/servers/{server}/action', {'rebuild': {'imageRef': site.image}}, version='2.93')
        site.settle([server])
        found: dict[str, Any] = site.send('GET', f'/servers/{server}').data['server']
        return found

    shown = rebuilt()
    assert shown['status'] == 'ERROR' and 'its status is error' in shown['fault']['message'], shown
    assert held(client, server) == {volume.id: ('reserved', None)} and status(client, volume) == 'error'
    reply = http.send(
        'DELETE',
        f'{site.url("cinder")}/volumes/{volume.id}/metadata/fail',
        headers={'X-Auth-Token': site.token('demo')},
    )
    assert reply.status == 200
    shown = rebuilt()
    assert shown['status'] == 'ACTIVE', shown
    assert held(client, server) == {volume.id: ('attached', host)} and status(client, volume) == 'in-use'
    assert f'<serial>{volume.id}</serial>' in disks(site, host, server)
