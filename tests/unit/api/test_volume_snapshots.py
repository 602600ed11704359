"""Snapshots of volumes that servers have, as the volume service asks for them.

tests/functional/test_volume_snapshots.py has those that are taken."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from kilonova.objects.volume import AttachedVolume
from tests.fixtures.cinder import FakeCinder
from tests.unit.api.conftest import PROJECT
from tests.unit.api.test_volumes import NOSUCH, put_volume

URL = '/os-assisted-volume-snapshots'
FILE = {'driver_volume_type': 'nfs', 'export': 'filer:/v', 'name': 'v', 'format': 'raw'}


class Snapshots:
    """A cloud with a volume service, which asks for snapshots as ``user``."""

    def __init__(self, make_site):
        self.cinder = FakeCinder()
        self.site = make_site(cinder=self.cinder)

    def server(self, volume=None, vm_state='active', connection=FILE, **columns):
        """With a volume; both ids."""
        server = self.site.server(vm_state=vm_state, **columns)
        volume = volume or self.cinder.add_volume(PROJECT, status='in-use')
        text = AttachedVolume('', volume, 1).connection_info(server, 'h1', connection, {'host': 'h1'})
        put_volume(self.site, server, volume, attachment_id=NOSUCH, connection_info=text)
        return server, volume

    def create(self, volume, snapshot=None, user='admin', **more):
        info = {
            'snapshot_id': snapshot or self.cinder.begin_snapshot(volume),
            'type': 'qcow2',
            'new_file': 'v.1',
            **more,
        }
        return self.site.request('POST', URL, {'snapshot': {'volume_id': volume, 'create_info': info}}, user=user)

    def delete(self, volume, info=None, user='admin', snapshot=None, **more):
        if snapshot is None:
            snapshot = self.cinder.add_snapshot(volume)
            self.cinder.begin_delete(snapshot)
        asked = {'volume_id': volume, 'type': 'qcow2', 'file_to_merge': 'v.1', 'merge_target_file': 'v', **more}
        text = json.dumps(asked) if info is None else info
        return self.site.request('DELETE', f'{URL}/{snapshot}?delete_info={quote(text)}', user=user)

    def begun(self):
        """How many operations."""
        return sum(call[0] == 'run_operation' for call in self.site.conductor.calls)


@pytest.fixture
def cloud(make_site):
    return Snapshots(make_site)


def fault(response):
    (found,) = response.json.values()
    assert found['code'] == response.status_int
    return found['code'], found['message']


def test_what_a_conductor_is_told(cloud):
    server, volume = cloud.server()
    snapshot = cloud.cinder.begin_snapshot(volume)
    answer = cloud.create(volume.upper(), snapshot)
    assert answer.json == {'snapshot': {'id': snapshot, 'volumeId': volume.upper()}}
    (operation,) = cloud.site.rows(server)
    assert (operation['kind'], operation['args']) == (
        'volume_snapshot_create',
        {'volume_id': volume, 'snapshot_id': snapshot, 'files': {'name': 'v', 'format': 'raw', 'new': 'v.1'}},
    )
    server, volume = cloud.server()
    answer = cloud.delete(volume, merge_target_file=None)
    assert (answer.status_int, answer.body) == (204, b'')
    (operation,) = cloud.site.rows(server)
    assert (operation['kind'], operation['args']['merge']) == ('volume_snapshot_delete', {'file': 'v.1', 'into': None})
    assert cloud.begun() == 2


def test_who_may(cloud):
    _server, volume = cloud.server()
    for ask, rule in ((cloud.create, 'create'), (cloud.delete, 'delete')):
        assert fault(ask(volume, user='bob')) == (
            403,
            f"Policy doesn't allow os_compute_api:os-assisted-volume-snapshots:{rule} to be performed.",
        )
    assert cloud.cinder.asked == []


def test_volumes_of_which_a_host_takes_no_snapshot(cloud):
    server, suspended = cloud.server(vm_state='suspended')
    (_, remote), (_, locked) = (
        cloud.server(connection={**FILE, **more}) for more in ({'driver_volume_type': 'rbd'}, {'encrypted': True})
    )
    one, shared = cloud.server()
    other, _ = cloud.server(shared)
    _, volume = cloud.server()
    # Of nobody's, of another volume, and not begun by Cinder.
    strange, there = cloud.cinder.begin_snapshot(suspended), cloud.cinder.add_snapshot(volume)
    several = f'is attached to several servers: {", ".join(sorted((one, other)))}'
    for ask, kind in ((cloud.create, 'create'), (cloud.delete, 'delete')):
        for wanted, snapshot, code, said in (
            (
                suspended,
                None,
                409,
                f"Cannot 'volume_snapshot_{kind}' instance {server} while it is in vm_state suspended",
            ),
            (NOSUCH, NOSUCH, 400, f'Invalid volume: no server has volume {NOSUCH}'),
            (remote, None, 400, "it is of kind 'rbd'; supported are unencrypted files on NFS shares"),
            (locked, None, 400, 'it is encrypted; supported are unencrypted files on NFS shares'),
            (shared, None, 400, several),
            (volume, NOSUCH, 400, f'Snapshot {NOSUCH} of volume {volume} could not be found.'),
            (volume, strange, 400, f'Snapshot {strange} of volume {volume} could not be found.'),
            (volume, there, 409, f'snapshot {there} is available, not {kind[:-1]}ing; this API should only be'),
        ):
            answer = fault(ask(wanted, snapshot=snapshot))
            assert answer[0] == code and said in answer[1], answer
    assert cloud.begun() == 0


def test_bodies_and_queries(cloud):
    _server, volume = cloud.server()
    for more in (
        {'new_file': '../v'},
        {'new_file': 'a/b'},
        {'new_file': ''},
        {'new_file': '.v'},
        {'new_file': 'x' * 256},
        {'type': 'raw'},
        {'snapshot_id': 'x'},
        {'stranger': 1},
    ):
        code, said = fault(cloud.create(volume, **more))
        assert code == 400 and next(iter(more)) in said
    for info, said in (
        ('{', 'is not JSON'),
        ('[]', "[] is not of type 'object'"),
        ('{}', "'volume_id' is a required"),
        ('[' * 2000, 'is not JSON'),
    ):
        answer = fault(cloud.delete(volume, info))
        assert answer[0] == 400 and said in answer[1], answer
    for more in ({'file_to_merge': '../v'}, {'merge_target_file': 'a/b'}, {'type': 'raw'}, {'volume_id': 'x'}):
        code, said = fault(cloud.delete(volume, **more))
        assert code == 400 and next(iter(more)) in said, said
    assert fault(cloud.delete(volume, file_to_merge=None)) == (
        400,
        'Invalid delete_info: merge_target_file is v, but file_to_merge is missing',
    )
    answer = cloud.site.request('DELETE', f'{URL}/{NOSUCH}', user='admin')
    assert fault(answer) == (400, 'Invalid delete_info: the parameter must be given exactly once, not 0 times')
    assert cloud.begun() == 0
