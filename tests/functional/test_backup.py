"""createBackup: images like createImage's, of which only so many of one type are kept."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.errors import KilonovaError, Unanswered
from tests.fixtures.cloud import OTHER_PROJECT, PROJECT, Cloud

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0']}


@pytest.fixture
def small(make_cloud, monkeypatch) -> Cloud:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    return make_cloud(GPUS)


def back_up(cloud: Cloud, server: str, rotation: Any, backup_type: str = 'daily', **more: Any) -> Any:
    return cloud.action(
        server,
        'createBackup',
        {'name': 'b', 'backup_type': backup_type, 'rotation': rotation, **more.pop('body', {})},
        **more,
    )


def kept(cloud: Cloud, backup_type: str = 'daily') -> list[str]:
    """Ids of the backups of that type, in the order of their making."""
    return [image_id for image_id, record in cloud.images.made.items() if record.get('backup_type') == backup_type]


def test_the_oldest_of_the_type_go(small: Cloud) -> None:
    """Of this server, of this type and of this project; images that createImage made stay."""
    server, other = small.boot(small.flavor(gpus=1)), small.boot(small.flavor())
    gpus = small.hostdevs(server)
    small.action(server, 'createImage', {'name': 'snap'})
    ids = [back_up(small, server, 2).json['image_id'] for _ in range(2)]
    back_up(small, server, 1, 'weekly')
    back_up(small, other, 1)
    # Somebody else calls images so, of his project and without rights over this one.
    foreign = {**small.images.made[ids[0]], 'id': 'foreign', 'owner': OTHER_PROJECT}
    queued = {**small.images.made[ids[0]], 'id': 'queued', 'status': 'queued'}
    small.images.made.update(foreign=foreign)
    small.images.made.update(queued=queued)
    third = back_up(small, server, '2', body={'metadata': {'a': 'b'}}).json['image_id']
    del small.images.made['queued']
    of_server = [image_id for image_id in kept(small) if small.images.made[image_id]['instance_uuid'] == server]
    assert of_server == [ids[1], 'foreign', third]
    assert len(kept(small)) == 4 and len(kept(small, 'weekly')) == 1
    record = small.images.made[third]
    assert {name: record[name] for name in ('name', 'status', 'image_type', 'backup_type', 'owner', 'a')} == {
        'name': 'b',
        'status': 'active',
        'image_type': 'backup',
        'backup_type': 'daily',
        'owner': PROJECT,
        'a': 'b',
    }
    assert 'snap' in {one['name'] for one in small.images.made.values()}
    assert (small.status(server), small.hostdevs(server)) == ('ACTIVE', gpus)
    small.images.made.pop('foreign')
    small.assert_clean()


def test_what_the_answer_names(small: Cloud) -> None:
    """From 2.45 on the id, before where it stands; with rotation 0 nothing, for nothing stays."""
    server = small.boot(small.flavor())
    answer = back_up(small, server, 1, version='2.44')
    assert answer.status_int == 202 and not answer.body
    assert answer.headers['Location'].endswith('/images/' + kept(small)[0])
    answer = back_up(small, server, 0)
    assert answer.status_int == 202 and not answer.body and 'Location' not in answer.headers
    assert kept(small) == []
    for rotation in (-1, 'x', None, 1.5):
        assert (
            'rotation'
            in small.action(
                server, 'createBackup', {'name': 'b', 'backup_type': 'daily', 'rotation': rotation}, expect=400
            ).text
        )


def test_states_and_story(small: Cloud) -> None:
    server, seen = small.boot(small.flavor()), []

    def on_message(kind, topic, host, method, args, deliver):
        if topic == 'compute' and method == 'backup_instance':
            seen.append(small.show(server)['OS-EXT-STS:task_state'])
        result = deliver()
        if method == 'save_instance':
            seen.append(small.show(server)['OS-EXT-STS:task_state'])
        return result

    small.on_message = on_message
    back_up(small, server, 1)
    small.on_message = None
    assert list(dict.fromkeys(seen)) == ['image_backup', 'image_uploading']
    ((_, message, events),) = [one for one in small.story(server) if one[0] == 'createBackup']
    assert message is None and [(event[0], event[1]) for event in events] == [('compute_backup_instance', 'Success')]
    small.action(server, 'shelve')
    refused = back_up(small, server, 1, expect=409)
    assert "Cannot 'createBackup' instance" in refused.text and 'vm_state shelved_offloaded' in refused.text


def test_a_backup_that_fails_rotates_nothing(small: Cloud) -> None:
    server = small.boot(small.flavor())
    back_up(small, server, 1)
    before = kept(small)

    def refuse(method: str, image_id: str) -> None:
        if method == 'upload':
            raise KilonovaError('the store is full')

    small.images.before = refuse
    back_up(small, server, 1)
    small.images.before = None
    assert kept(small) == before and small.status(server) == 'ACTIVE'
    assert ('createBackup', 'Error') in [(one[0], one[1][:5]) for one in small.story(server) if one[1]]
    small.assert_clean()


def test_a_rotation_is_tried_again(small: Cloud) -> None:
    """The server is at rest and takes the next order; the older backup goes when the image service answers."""
    server = small.boot(small.flavor())
    back_up(small, server, 1)

    def hang(method: str, image_id: str) -> None:
        if method in ('find', 'delete'):
            raise Unanswered(who='The image service', reason='it hangs')

    small.images.before = hang
    small.request(
        'POST', f'/servers/{server}/action', {'createBackup': {'name': 'b', 'backup_type': 'daily', 'rotation': 1}}
    )
    small.settle(kinds_left=('release',))
    assert len(kept(small)) == 2 and small.show(server)['OS-EXT-STS:task_state'] is None
    newest = kept(small)[-1]
    small.images.before = None
    small.settle()
    assert kept(small) == [newest]
    small.assert_clean()
