"""createImage, and soft-deleted servers: what they keep, how they are restored, and when they are deleted for good."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import Any

import pytest

from kilonova.api.services import quota
from kilonova.db.queries import instances, operations
from kilonova.errors import InstanceBusy, KilonovaError, Unanswered
from kilonova.rpc.compute import Compute
from kilonova.virt import command
from tests.fixtures.cloud import IMAGE_ID, OTHER_PROJECT, PROJECT, Cloud, Crash

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:88:00.0', '0000:89:00.0']}
DAY = 86400


@pytest.fixture
def small(make_cloud, monkeypatch) -> Cloud:
    """Two hosts with two GPUs each."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(GPUS)


@pytest.fixture
def deferring(make_cloud, monkeypatch) -> Cloud:
    """The same, where deleted servers can be restored for a day."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(GPUS, reclaim_instance_interval=DAY)


def create_image(cloud: Cloud, server: str, name: str = 'snap', **more: Any) -> str:
    """The image's id; the operation is over."""
    kwargs = {key: more.pop(key) for key in ('user', 'version') if key in more}
    response = cloud.action(server, 'createImage', {'name': name, **more}, expect=202, **kwargs)
    return response.json['image_id'] if response.body else response.headers['Location'].rpartition('/')[2]


def events_of(cloud: Cloud, server: str, action: str) -> list[dict[str, Any]]:
    """The newest action of that name: its events."""
    rows = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    row = next(row for row in rows if row['action'] == action)
    return cloud.ok('GET', f'/servers/{server}/os-instance-actions/{row["request_id"]}')['instanceAction']['events']


def stories(cloud: Cloud, server: str) -> list[str]:
    rows = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    return [row['action'] for row in rows]


def guest_state(cloud: Cloud, server: str) -> int:
    host = cloud.host_of(server)
    (domain,) = (domain for domain in cloud.computes[host].host.driver.guests.describe() if domain['uuid'] == server)
    return domain['state']


def age(cloud: Cloud, server: str, seconds: float) -> None:
    """As if the server had been soft-deleted that long ago."""
    with cloud.cell.write() as conn:
        instances.update(
            conn, server, {'deleted_at': instances.utcnow() - instances.datetime.timedelta(seconds=seconds)}
        )


# --- images ----------------------------------------------------------------------------------------------------------
def test_an_image_of_a_running_server(small: Cloud) -> None:
    """Task states of the field in their order; the image is one flat qcow2 with what the disk held; servers boot of it;
    the guest runs on."""
    server = small.boot(small.flavor(gpus=1, disk=2), metadata={'of': 'server'})
    host = small.host_of(server)
    subprocess.run(
        ['qemu-io', '-c', 'write -P 0xab 1M 64k', str(small.directory / host / 'instances' / server / 'disk')],
        check=True,
        capture_output=True,
    )
    with small.cell.write() as conn:
        instances.set_system_metadata(conn, server, {'image_os_distro': 'debian', 'image_cache_in_nova': 'True'})
    seen, calls = [], []

    def on_message(kind, topic, name, method, args, deliver):
        if topic == 'compute' and method == 'snapshot_instance':
            seen.append(small.show(server)['OS-EXT-STS:task_state'])
        result = deliver()
        if method == 'save_instance':
            seen.append(small.show(server)['OS-EXT-STS:task_state'])
            calls.append(guest_state(small, server))
        return result

    small.on_message = on_message
    image_id = create_image(small, server, metadata={'mine': 'yes'})
    small.on_message = None
    assert seen == ['image_snapshot_pending', 'image_snapshot', 'image_uploading', None]
    assert calls == [1, 1, 1] and small.status(server) == 'ACTIVE'
    record = small.images.made[image_id]
    assert {
        name: record[name]
        for name in ('name', 'status', 'disk_format', 'container_format', 'min_disk', 'owner', 'visibility')
    } == {
        'name': 'snap',
        'status': 'active',
        'disk_format': 'qcow2',
        'container_format': 'bare',
        'min_disk': 2,
        'owner': PROJECT,
        'visibility': 'private',
    }
    assert {
        name: record[name] for name in ('base_image_ref', 'image_type', 'instance_uuid', 'user_id', 'os_distro', 'mine')
    } == {
        'base_image_ref': IMAGE_ID,
        'image_type': 'snapshot',
        'instance_uuid': server,
        'user_id': 'admin',
        'os_distro': 'debian',
        'mine': 'yes',
    }
    assert 'cache_in_nova' not in record and 'of' not in record
    file = small.directory / 'snap.qcow2'
    file.write_bytes(small.images.data[image_id])
    info = json.loads(
        subprocess.run(['qemu-img', 'info', '--output=json', str(file)], check=True, capture_output=True).stdout
    )
    assert (info['format'], info['virtual-size'], info.get('backing-filename')) == ('qcow2', 2 << 30, None)
    read = subprocess.run(['qemu-io', '-r', '-c', 'read -P 0xab 1M 64k', str(file)], check=True, capture_output=True)
    assert b'Pattern verification failed' not in read.stdout
    (event,) = events_of(small, server, 'createImage')
    assert (event['event'], event['result']) == ('compute_snapshot_instance', 'Success')
    again = small.boot(small.flavor(disk=2), imageRef=image_id)
    assert small.status(again) == 'ACTIVE', small.story(again)
    small.assert_clean()
    for name in (server, again):
        small.request('DELETE', f'/servers/{name}')
    small.settle()
    small.assert_empty()


def test_who_may_make_images_of_what(small: Cloud) -> None:
    """Versions, states, quota, metadata, refusals of the image service: whatever is refused leaves no image."""
    server = small.boot(small.flavor(), user='bob')
    old = small.action(server, 'createImage', {'name': 'old'}, user='bob', version='2.44')
    assert old.status_int == 202 and not old.body
    assert old.headers['Location'] == f'http://image.test/images/{next(iter(small.images.made))}'
    small.images.made.clear()

    def refused(code: int, body: dict[str, Any], **kwargs: Any) -> str:
        small.action(server, 'createImage', body, expect=code, **kwargs)
        response = small.request('POST', f'/servers/{server}/action', {'createImage': body}, **kwargs)
        assert response.status_int == code and small.images.made == {}
        return next(iter(response.json.values()))['message']

    many = {f'k{number}': 'v' for number in range(129)}
    assert 'exceeds 128' in refused(403, {'name': 'x', 'metadata': many}, version='2.38')
    assert "cannot have the key 'visibility'" in refused(400, {'name': 'x', 'metadata': {'visibility': 'public'}})
    refused(400, {'name': ''})
    refused(404, {'name': 'x'}, user='eve', project=OTHER_PROJECT)

    def silent(method: str, image_id: str) -> None:
        raise Unanswered(who='The image service', reason='injected')

    small.images.before = silent
    assert small.request('POST', f'/servers/{server}/action', {'createImage': {'name': 'x'}}).status_int == 503
    # Nobody knows whether there is an image: a conductor deletes it when the service is back.
    assert [row['kind'] for row in small.rows()] == ['release']
    small.images.before = None
    small.settle()
    small.action(server, 'os-stop')
    create_image(small, server, metadata=many)
    small.images.made.clear()
    small.action(server, 'resize', {'flavorRef': small.flavor()})
    assert "Cannot 'createImage' instance" in refused(409, {'name': 'x'})
    small.assert_clean()


def test_an_image_that_fails_leaves_nothing(small: Cloud, monkeypatch) -> None:
    """The copy fails; the upload is refused; the user deletes the image meanwhile: the server is as before, its event
    says why, without a path of the host."""
    server = small.boot(small.flavor())
    real = command.watched

    def broken(check, *argv: str) -> None:
        if argv[0] == 'qemu-img':
            raise command.CommandFailed(command='qemu-img', reason="Could not open '/var/lib/x/disk': No space left")
        real(check, *argv)

    monkeypatch.setattr(command, 'watched', broken)
    create_image(small, server)
    assert small.images.made == {} and small.status(server) == 'ACTIVE'
    (event,) = events_of(small, server, 'createImage')
    assert event['result'] == 'Error' and "Could not open 'disk': No space left" in event['details']
    monkeypatch.setattr(command, 'watched', real)

    def refuse(method: str, image_id: str) -> None:
        if method == 'upload':
            raise KilonovaError('The image service refuses it: over quota')

    small.images.before = refuse
    create_image(small, server)
    assert small.images.made == {}
    assert 'over quota' in events_of(small, server, 'createImage')[0]['details']

    def vanish(method: str, image_id: str) -> None:
        if method == 'upload':
            del small.images.made[image_id]

    small.images.before = vanish
    create_image(small, server)
    assert 'could not be found' in events_of(small, server, 'createImage')[0]['details']
    small.images.before = None
    assert guest_state(small, server) == 1
    small.assert_clean()
    small.request('DELETE', f'/servers/{server}')
    small.settle()
    small.assert_empty()


def test_a_silent_image_service_is_waited_for(small: Cloud, monkeypatch) -> None:
    """The guest is held once however often the upload is tried; when the service is back the image gets its data."""
    server = small.boot(small.flavor())
    copies, tries, real = [], [], command.watched

    def watched(check, *argv: str) -> None:
        copies.append(argv[0])
        real(check, *argv)

    monkeypatch.setattr(command, 'watched', watched)

    def silent(method: str, image_id: str) -> None:
        if method == 'upload' and len(tries) < 3:
            tries.append(small.show(server)['OS-EXT-STS:task_state'])
            raise Unanswered(who='The image service', reason='injected')

    small.images.before = silent
    image_id = create_image(small, server)
    assert tries == ['image_uploading'] * 3 and copies == ['cp', 'qemu-img']
    assert small.images.made[image_id]['status'] == 'active' and small.status(server) == 'ACTIVE'
    small.assert_clean()


def test_delete_while_the_image_service_is_silent(small: Cloud) -> None:
    """Delete always wins: it doesn't wait for the image service; the image goes when that is back."""
    server = small.boot(small.flavor())
    away = [True]

    def silent(method: str, image_id: str) -> None:
        if away[0] and method in ('upload', 'delete'):
            if method == 'upload' and small.status(server) != 'GONE':
                small.request('DELETE', f'/servers/{server}')
            raise Unanswered(who='The image service', reason='injected')

    small.images.before = silent
    response = small.request('POST', f'/servers/{server}/action', {'createImage': {'name': 'snap'}})
    assert response.status_int == 202
    small.settle(kinds_left=('release',))
    assert small.status(server) == 'GONE' and len(small.images.made) == 1
    assert [row['kind'] for row in small.rows()] == ['release']
    away[0] = False
    small.settle()
    assert small.images.made == {}
    small.assert_empty()


# --- soft delete -----------------------------------------------------------------------------------------------------
def test_soft_delete_restore_and_reclaim(deferring: Cloud) -> None:
    """A soft-deleted server is powered off and keeps host, devices and allocation. Restore brings it back, and
    after reclaim_instance_interval it is deleted. Lists leave it out unless they filter by its status or an
    administrator asks for deleted servers."""
    cloud = deferring
    server = cloud.boot(cloud.flavor(gpus=1), user='bob')
    devices, held = cloud.owned(server), cloud.placement.allocations()
    assert cloud.request('DELETE', f'/servers/{server}', user='bob').status_int == 204
    cloud.settle()
    assert (cloud.status(server), guest_state(cloud, server)) == ('SOFT_DELETED', 4)
    assert (cloud.owned(server), cloud.placement.allocations()) == (devices, held)
    cloud.assert_clean()

    def listed(query: str = '', **kwargs: Any) -> list[str]:
        return [row['id'] for row in cloud.ok('GET', f'/servers{query}', **kwargs)['servers']]

    assert listed() == listed(user='bob') == []
    assert listed('?soft_deleted=True') == listed('?status=SOFT_DELETED', user='bob') == [server]
    # Whatever else is asked of it is refused, a second delete changes nothing.
    cloud.action(server, 'os-start', expect=409)
    assert cloud.request('DELETE', f'/servers/{server}', user='bob').status_int == 204
    assert cloud.rows() == []

    def reclaim() -> int:
        return cloud.conductors[0].expiry.run('reclaim_queued_deletes')

    age(cloud, server, DAY - 60)
    assert reclaim() == 0
    cloud.action(server, 'restore', user='bob', expect=202)
    assert (cloud.status(server), guest_state(cloud, server), cloud.hostdevs(server)) == (
        'ACTIVE',
        1,
        [name.split()[1] for name in devices],
    )
    assert [event['event'] for event in events_of(cloud, server, 'restore')] == ['compute_restore_instance']
    cloud.action(server, 'restore', user='bob', expect=409)
    cloud.assert_clean()
    cloud.request('DELETE', f'/servers/{server}', user='bob')
    cloud.settle()
    age(cloud, server, DAY + 60)
    assert reclaim() == 1
    cloud.settle()
    assert cloud.status(server) == 'GONE' and reclaim() == 0
    cloud.assert_empty()


def test_a_restart_leaves_soft_deleted_servers_alone(deferring: Cloud) -> None:
    """Their devices stay theirs, and no guest of theirs is started."""
    cloud = deferring
    server = cloud.boot(cloud.flavor(gpus=2))
    host = cloud.host_of(server)
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    cloud.crash_compute(host)
    cloud.start_compute(host)
    cloud.assert_clean()
    assert len(cloud.owned(server)) == 2
    cloud.action(server, 'restore')
    assert (cloud.status(server), len(cloud.hostdevs(server))) == ('ACTIVE', 2)
    cloud.assert_clean()


def test_a_soft_delete_beside_a_restore_is_refused(deferring: Cloud) -> None:
    """Simulated story 10735: 204, as the server was soft-deleted still, and then it was ACTIVE."""
    cloud, told = deferring, []
    server = cloud.boot(cloud.flavor())
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()

    def on_message(kind: str, topic: str, host: str, method: str, args: dict, deliver: Any) -> Any:
        if method == 'restore_instance':
            told.append(cloud.request('DELETE', f'/servers/{server}'))
        return deliver()

    cloud.on_message = on_message
    cloud.action(server, 'restore')
    assert [answer.status_int for answer in told] == [409] and 'restoring' in told[0].text
    assert cloud.status(server) == 'ACTIVE'
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert cloud.status(server) == 'SOFT_DELETED'


def test_force_delete(deferring: Cloud) -> None:
    """At once, soft-deleted or not; a server that never ran is deleted for good by a plain delete too."""
    cloud = deferring
    flavor = cloud.flavor(gpus=1)
    kept, running = cloud.boot(flavor), cloud.boot(flavor)
    cloud.request('DELETE', f'/servers/{kept}')
    cloud.settle()
    assert cloud.status(kept) == 'SOFT_DELETED'
    for server in (kept, running):
        cloud.action(server, 'forceDelete', expect=202)
        assert cloud.status(server) == 'GONE'
    lost = cloud.boot(cloud.flavor(vcpus=1000))
    assert cloud.status(lost) == 'ERROR'
    cloud.request('DELETE', f'/servers/{lost}')
    cloud.settle()
    assert cloud.status(lost) == 'GONE'
    cloud.assert_empty()


def test_a_moved_server_is_confirmed_on_the_way(deferring: Cloud) -> None:
    """VERIFY_RESIZE holds things twice: what was moved away from is given back, the rest can be restored."""
    cloud = deferring
    server = cloud.boot(cloud.flavor(gpus=1))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    assert cloud.status(server) == 'VERIFY_RESIZE'
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert cloud.status(server) == 'SOFT_DELETED'
    assert [name.split()[0] for name in cloud.owned(server)] == [cloud.host_of(server)] * 2
    cloud.assert_clean()
    cloud.action(server, 'restore')
    assert (cloud.status(server), len(cloud.hostdevs(server))) == ('ACTIVE', 2)
    cloud.action(server, 'forceDelete')
    cloud.assert_empty()


def test_soft_delete_beside_what_runs(deferring: Cloud) -> None:
    """What runs is unwound first: a server in the middle of a resize is soft-deleted as it was before. A force delete
    beside that takes all."""
    cloud = deferring
    flavor, larger = cloud.flavor(gpus=1), cloud.flavor(gpus=2)
    server = cloud.boot(flavor)
    home, codes = cloud.host_of(server), []

    def on_message(kind, topic, host, method, args, deliver):
        result = deliver()
        if method == 'finish_resize' and not codes:
            codes.append(cloud.request('DELETE', f'/servers/{server}').status_int)
        return result

    cloud.on_message = on_message
    cloud.action(server, 'resize', {'flavorRef': larger})
    cloud.on_message = None
    assert codes == [204] and cloud.status(server) == 'SOFT_DELETED'
    assert (cloud.host_of(server), len(cloud.owned(server))) == (home, 1)
    cloud.assert_clean()
    cloud.action(server, 'restore')

    def twice(kind, topic, host, method, args, deliver):
        result = deliver()
        if method == 'finish_resize' and len(codes) == 1:
            codes.append(cloud.request('DELETE', f'/servers/{server}').status_int)
            codes.append(cloud.request('POST', f'/servers/{server}/action', {'forceDelete': None}).status_int)
        return result

    cloud.on_message = twice
    cloud.request('POST', f'/servers/{server}/action', {'resize': {'flavorRef': larger}})
    cloud.settle()
    cloud.on_message = None
    assert codes == [204, 204, 202] and cloud.status(server) == 'GONE'
    cloud.assert_empty()


@pytest.mark.parametrize('look', ['sync', 'boot'])
def test_soft_delete_on_a_host_that_is_down(deferring: Cloud, look: str) -> None:
    """The user needn't wait for the host; when it is back it turns the guest off: at its start, or at the next look."""
    cloud = deferring
    server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    compute = cloud.computes[host]
    (service,) = cloud.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
    cloud.ok('PUT', f'/os-services/{service["id"]}', {'forced_down': True})
    cloud.transport.unregister('compute', host)
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert cloud.status(server) == 'SOFT_DELETED'
    cloud.transport.register('compute', host, [(Compute, compute.endpoint)])
    cloud.ok('PUT', f'/os-services/{service["id"]}', {'forced_down': False})
    assert guest_state(cloud, server) == 1
    getattr(compute.guests, look)()
    assert guest_state(cloud, server) == 4
    cloud.assert_clean()


def test_a_restored_server_counts_again(make_cloud) -> None:
    """Soft-deleted servers are in nobody's quota; restore asks it."""
    cloud = make_cloud({'gpu1': []}, reclaim_instance_interval=DAY, quota__instances=1)
    flavor = cloud.flavor()
    first = cloud.boot(flavor, user='bob')
    cloud.request('DELETE', f'/servers/{first}', user='bob')
    cloud.settle()
    second = cloud.boot(flavor, user='bob')
    assert cloud.status(second) == 'ACTIVE'
    refused = cloud.action(first, 'restore', user='bob', expect=403)
    assert 'Quota exceeded for instances' in refused.json['forbidden']['message']
    cloud.action(second, 'forceDelete', user='bob')
    cloud.action(first, 'restore', user='bob', expect=202)
    assert cloud.status(first) == 'ACTIVE'


def soft_deleted(cloud: Cloud, count: int) -> list[str]:
    """Servers of bob's that wait for their deletion, one core each; one of them fits into his quota."""
    flavor = cloud.flavor(gpus=1)
    servers = [cloud.boot(flavor, user='bob') for _ in range(count)]
    for server in servers:
        cloud.request('DELETE', f'/servers/{server}', user='bob')
    cloud.settle()
    assert [cloud.status(server) for server in servers] == ['SOFT_DELETED'] * count
    cloud.ok('PUT', f'/os-quota-sets/{PROJECT}', {'quota_set': {'instances': 1}})
    return servers


def test_restores_that_race_for_the_last_of_a_quota(deferring: Cloud) -> None:
    """No more than the limit comes back; the others are soft-deleted as before, and can be restored later."""
    cloud, codes = deferring, {}
    servers = soft_deleted(cloud, 3)
    start = threading.Barrier(len(servers))

    def one(server: str) -> None:
        start.wait()
        codes[server] = cloud.request('POST', f'/servers/{server}/action', {'restore': None}, user='bob').status_int

    threads = [threading.Thread(target=one, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cloud.settle()
    back = [server for server in servers if codes[server] == 202]
    assert set(codes.values()) <= {202, 403} and len(back) <= 1
    assert [cloud.status(server) for server in servers] == [
        'ACTIVE' if server in back else 'SOFT_DELETED' for server in servers
    ]
    restored = [server for server in servers if 'restore' in stories(cloud, server)]
    assert restored == back
    cloud.assert_clean()
    for server in back:
        cloud.action(server, 'forceDelete')
    late = next(server for server in servers if server not in back)
    cloud.action(late, 'restore', user='bob', expect=202)
    assert cloud.status(late) == 'ACTIVE'
    cloud.assert_clean()


def test_a_restore_too_many_that_a_conductor_took_is_unwound(deferring: Cloud, monkeypatch) -> None:
    """The second count comes when the row has a holder: it ends as if the host had refused, soft-deleted."""
    cloud = deferring
    first, second = soft_deleted(cloud, 2)
    inner, accepting, taken = quota.recheck, operations.accept, []

    def accept(cell_db: Any, **kwargs: Any) -> Any:
        if kwargs['instance_uuid'] == second and not taken:
            taken.append(True)
            assert cloud.request('POST', f'/servers/{first}/action', {'restore': None}, user='bob').status_int == 202
        return accepting(cell_db, **kwargs)

    def recheck(*args: Any, **kwargs: Any) -> Any:
        if taken:
            with cloud.cell.write() as conn:
                table = operations.operations
                # A holder that died: the next sweep takes the row over.
                conn.execute(table.update().where(table.c.instance_uuid == second).values(owner='gone', not_before=1))
        return inner(*args, **kwargs)

    monkeypatch.setattr(operations, 'accept', accept)
    monkeypatch.setattr(quota, 'recheck', recheck)
    response = cloud.request('POST', f'/servers/{second}/action', {'restore': None}, user='bob')
    assert response.status_int == 403 and 'Quota exceeded for instances' in response.text
    cloud.settle()
    assert (cloud.status(first), cloud.status(second), guest_state(cloud, second)) == ('ACTIVE', 'SOFT_DELETED', 4)
    assert cloud.rows() == []
    cloud.assert_clean()


def test_only_the_owner_restores(deferring: Cloud) -> None:
    cloud = deferring
    server = cloud.boot(cloud.flavor(), user='bob')
    cloud.request('DELETE', f'/servers/{server}', user='bob')
    cloud.settle()
    for action in ('restore', 'forceDelete'):
        cloud.action(server, action, user='eve', project=OTHER_PROJECT, expect=404)
    assert cloud.status(server) == 'SOFT_DELETED'


# --- an image that nobody goes on with -------------------------------------------------------------------------------
@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('place', ['create', 'accept'])
def test_the_api_process_dies_between_the_image_and_its_operation(
    small: Cloud, monkeypatch: Any, place: str, when: str
) -> None:
    """If the API process dies while it accepts createImage, the image is completed or deleted."""
    server = small.boot(small.flavor())
    small.images.made.clear()
    owner: Any = small.images if place == 'create' else operations
    real, front = getattr(owner, place), threading.current_thread()

    def die(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not front:
            return real(*args, **kwargs)
        if when == 'after':
            real(*args, **kwargs)
        raise Crash

    monkeypatch.setattr(owner, place, die)
    with pytest.raises(Crash):
        small.request('POST', f'/servers/{server}/action', {'createImage': {'name': 'snap'}})
    monkeypatch.setattr(owner, place, real)
    with small.cell.write() as conn:
        conn.exec_driver_sql('UPDATE operations SET not_before = 0')
    small.settle()
    assert [record['status'] for record in small.images.made.values()] == ['active'] * (
        (place, when) == ('accept', 'after')
    )
    assert small.status(server) == 'ACTIVE'
    small.assert_clean()


def test_an_image_whose_operation_is_refused_goes_at_once(small: Cloud, monkeypatch: Any) -> None:
    """Or later, where the image service is silent by then."""
    server = small.boot(small.flavor())
    small.images.made.clear()

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise InstanceBusy(method='snapshot', instance_uuid=server, attr='task_state', state='another operation')

    real = operations.accept
    for silent in (False, True):

        def before(method: str, image_id: str, silent: bool = silent) -> None:
            if method == 'delete' and silent:
                raise Unanswered(who='The image service', reason='injected')

        small.images.before = before
        monkeypatch.setattr(operations, 'accept', refuse)
        assert small.request('POST', f'/servers/{server}/action', {'createImage': {'name': 's'}}).status_int == 409
        monkeypatch.setattr(operations, 'accept', real)
        assert (len(small.images.made), [row['kind'] for row in small.rows()]) == (
            (1, ['release']) if silent else (0, [])
        )
    small.images.before = None
    small.settle()
    assert small.images.made == {}
    small.assert_clean()
