"""What clients of old versions ask this API for and other services have: who is asked, with whose token, and what is
shown of it.

``tests/api`` has the answers of each route, and who may ask for them.
"""
from __future__ import annotations

import pytest

from tests.fixtures.cinder import MADE_AT, FakeCinder
from tests.unit.api.conftest import OTHER, PROJECT

NOSUCH = '11111111-2222-4333-8444-555555555555'
SERVER = '11111111-2222-4333-8444-666666666666'
USERS = {f'bob:{PROJECT}': PROJECT, f'eve:{OTHER}': OTHER, f'admin:{PROJECT}': None}


@pytest.fixture
def cinder():
    made = FakeCinder()
    made.users = USERS
    return made


@pytest.fixture
def site(make_site, cinder):
    return make_site(cinder=cinder)


def ask(site, method, path, body=None, **more):
    """The body of an answer, or (code, message) of a fault."""
    response = site.request(method, path, body, **{'user': 'bob', 'version': '2.35', **more})
    if response.status_int >= 400:
        (fault,) = response.json.values()
        return fault['code'], fault['message']
    return response.json if response.body else response.status_int


def broken(fake):
    """A service that can't be reached any more."""
    def fail(method, path):
        raise fake.broken()
    fake.before = fail


# --- volumes and snapshots -------------------------------------------------------------------------------------------
def test_a_volume_from_its_create_to_its_delete(site, cinder):
    """As its user, in Cinder's own words, and shown in those of old clients."""
    snapshot = cinder.add_snapshot(cinder.add_volume(PROJECT))
    asked = {'size': '3', 'display_name': 'data', 'display_description': 'of a run', 'metadata': {'team': 'a'},
             'volume_type': 'shared', 'availability_zone': 'nova', 'snapshot_id': snapshot}
    made = ask(site, 'POST', '/os-volumes', {'volume': asked})['volume']
    volume = cinder.volumes[made['id']]
    assert (volume['size'], volume['description'], volume['snapshot_id']) == (3, 'of a run', snapshot)
    assert cinder.headers[-1]['X-Auth-Token'] == f'bob:{PROJECT}'
    assert made == {
        'id': volume['id'], 'status': 'creating', 'size': 3, 'displayName': 'data', 'metadata': {'team': 'a'},
        'displayDescription': 'of a run', 'createdAt': MADE_AT, 'availabilityZone': 'nova', 'volumeType': 'shared',
        'snapshotId': snapshot, 'attachments': [{}]}
    path = f"/os-volumes/{made['id']}"
    assert ask(site, 'GET', path)['volume'] == made | {'status': 'available'}
    assert ask(site, 'DELETE', path) == 202 and volume['id'] not in cinder.volumes
    gone = f"Volume {volume['id']} could not be found."
    assert ask(site, 'DELETE', path) == ask(site, 'GET', path) == (404, gone)


def test_a_volume_says_which_server_has_it(site, cinder):
    volume = cinder.add_volume(PROJECT)
    made = cinder.client.create_attachment(volume, SERVER, {'host': 'gpu1', 'mountpoint': '/dev/vdb'})
    cinder.client.complete_attachment(made.id)
    path = f'/os-volumes/{volume}'
    assert ask(site, 'GET', path)['volume']['attachments'] == [
        {'id': volume, 'volumeId': volume, 'serverId': SERVER, 'device': '/dev/vdb'}]
    code, message = ask(site, 'DELETE', path)
    assert code == 400 and 'must not be migrating, attached' in message and volume in cinder.volumes


def test_a_snapshot_from_its_create_to_its_delete(site, cinder):
    volume = cinder.add_volume(PROJECT, status='in-use', size=2)
    asked = {'volume_id': volume, 'display_name': 'before', 'display_description': 'the run'}
    code, message = ask(site, 'POST', '/os-snapshots', {'snapshot': asked})
    assert code == 400 and 'status must be available' in message
    made = ask(site, 'POST', '/os-snapshots', {'snapshot': {**asked, 'force': 'True'}})['snapshot']
    assert made == {'id': next(iter(cinder.snapshots)), 'volumeId': volume, 'status': 'creating', 'size': 2,
                    'displayName': 'before', 'displayDescription': 'the run', 'createdAt': MADE_AT}
    path = f"/os-snapshots/{made['id']}"
    assert ask(site, 'GET', path)['snapshot'] == made | {'status': 'available'}
    assert ask(site, 'GET', path, user='eve', project=OTHER)[0] == 404
    assert ask(site, 'DELETE', path) == 202 and cinder.snapshots == {}
    assert ask(site, 'DELETE', path) == (404, f"Snapshot {made['id']} could not be found.")


@pytest.mark.parametrize('noun', ['volume', 'snapshot'])
@pytest.mark.parametrize('tail', ['', '/detail'])
def test_a_page_of_ones_own(site, cinder, noun, tail):
    """The newest first; Cinder is asked for no more than is shown."""
    made = [cinder.add_volume(PROJECT) for _ in range(3)]
    theirs = cinder.add_volume(OTHER)
    if noun == 'snapshot':
        made = [cinder.add_snapshot(one) for one in made]
        cinder.add_snapshot(theirs)

    def listed(query=''):
        return [one['id'] for one in ask(site, 'GET', f'/os-{noun}s{tail}{query}')[f'{noun}s']]
    assert listed() == made[::-1]
    assert cinder.asked[-1][1] == f'/{noun}s/detail?limit=1000&offset=0'
    assert listed('?limit=1&offset=1') == [made[1]] and cinder.asked[-1][1].endswith('limit=1&offset=1')
    del cinder.asked[:]
    assert listed('?limit=0') == [] == cinder.asked
    assert ask(site, 'GET', f'/os-{noun}s{tail}?limit=-1')[0] == 400


@pytest.mark.parametrize(('path', 'body', 'code', 'says'), [
    ('/os-volumes', {'volume': {'size': '#$%'}}, 400, 'size'),
    ('/os-volumes', {'volume': {'size': 0}}, 400, 'less than the minimum of 1'),
    ('/os-volumes', {'volume': {'display_name': 'x'}}, 400, "'size' is a required property"),
    ('/os-volumes', {'volume': {'size': 1, 'imageRef': NOSUCH}}, 400, 'imageRef'),
    ('/os-volumes', {'volume': {'size': 1, 'snapshot_id': NOSUCH}}, 404, f'Snapshot {NOSUCH} could not be found.'),
    ('/os-volumes', {'volume': {'size': 1, 'volume_type': 'gold'}}, 404, 'Volume type gold could not be found.'),
    ('/os-volumes', {'volume': {'size': 1, 'availability_zone': 'x'}}, 400, "Availability zone 'x' is invalid."),
    ('/os-snapshots', {'snapshot': {'volume_id': '../volumes'}}, 400, 'volume_id'),
    ('/os-snapshots', {'snapshot': {'volume_id': NOSUCH}}, 404, f'Volume {NOSUCH} could not be found.')])
def test_volumes_and_snapshots_that_are_refused(site, cinder, path, body, code, says):
    found, message = ask(site, 'POST', path, body)
    assert found == code and says in message and cinder.volumes == {}


def test_a_full_quota_of_volumes(site, cinder):
    """In Cinder's words."""
    cinder.limits.update({PROJECT: 0, 'snapshots': 0})
    code, message = ask(site, 'POST', '/os-volumes', {'volume': {'size': 1}})
    assert code == 403 and 'Maximum number of volumes allowed (0) exceeded' in message
    code, message = ask(site, 'POST', '/os-snapshots', {'snapshot': {'volume_id': cinder.add_volume(PROJECT)}})
    assert code == 403 and 'Maximum number of snapshots allowed exceeded' in message


def test_a_volume_service_that_does_not_answer(site, cinder):
    broken(cinder)
    code, message = ask(site, 'POST', '/os-volumes', {'volume': {'size': 1}})
    assert code == 503 and message.startswith('The volume service does not answer')


# --- clouds without them ---------------------------------------------------------------------------------------------
PATHS = ['/os-volumes', '/os-volumes/detail', f'/os-volumes/{NOSUCH}', '/os-snapshots', '/os-snapshots/detail',
         f'/os-snapshots/{NOSUCH}']


@pytest.mark.parametrize('path', PATHS)
def test_clouds_without_the_service_have_no_such_path(make_site, path):
    site = make_site()
    assert ask(site, 'GET', path) == ask(site, 'GET', path, version='2.36') == (404, 'The resource could not be found.')
