"""VolumeClient against a volume service with the rules of the real one; ``tests/integration/test_cinder.py`` asks
that."""

from __future__ import annotations

import uuid

import pytest

from kilonova import conf as kilonova_conf
from kilonova import errors
from kilonova.clients import volume as client
from kilonova.clients.volume import AttachedTo, Attachment, Volume, VolumeClient, VolumeSnapshot
from kilonova.cmd.daemon import parts
from kilonova.context import RequestContext
from tests.fixtures.cinder import ENCRYPTION, MADE_AT, FakeCinder

PROJECT, OTHER = '1' * 32, '2' * 32
SERVER, ANOTHER = str(uuid.uuid4()), str(uuid.uuid4())
USER = RequestContext(auth_token='of-user', user_id='u', project_id=PROJECT)
CONNECTOR = {'host': 'gpu1', 'ip': '10.0.0.1', 'initiator': 'iqn.1993-08.org.debian:01:1', 'mountpoint': '/dev/vdb'}


@pytest.fixture
def cinder() -> FakeCinder:
    made = FakeCinder()
    made.users = {'of-user': PROJECT}
    return made


@pytest.fixture
def volume(cinder: FakeCinder) -> str:
    return cinder.add_volume(PROJECT, size=2, name='data')


def attached(cinder: FakeCinder, volume: str, server: str = SERVER) -> Attachment:
    made = cinder.client.create_attachment(volume, server, CONNECTOR)
    cinder.client.complete_attachment(made.id)
    return made


def status(cinder: FakeCinder, volume: str) -> str:
    return cinder.client.volume(None, volume).status


def test_a_volume_as_its_user_and_as_the_service_see_it(cinder):
    volume = cinder.add_volume(
        PROJECT,
        size=2,
        name='data',
        bootable='true',
        snapshot_id='s',
        volume_image_metadata={'hw_disk_bus': 'scsi'},
        **{'os-vol-mig-status-attr:migstat': 'starting'},
    )
    made = attached(cinder, volume)
    seen = Volume(
        id=volume,
        name='data',
        project_id=PROJECT,
        status='in-use',
        size=2,
        bootable=True,
        multiattach=False,
        encrypted=False,
        volume_type='plain',
        availability_zone='nova',
        image_metadata={'hw_disk_bus': 'scsi'},
        snapshot_id='s',
        attachments=(AttachedTo(SERVER, made.id, None, '/dev/vdb'),),
        created_at=MADE_AT,
    )
    assert cinder.client.volume(USER, volume) == seen
    known = cinder.client.volume(None, volume)
    assert (known.migrating, known.attachments) == (True, (AttachedTo(SERVER, made.id, 'gpu1', '/dev/vdb'),))


def test_how_a_volume_is_encrypted(cinder):
    assert cinder.client.encryption(cinder.add_volume(PROJECT, encrypted=True)) == ENCRYPTION
    with pytest.raises(client.VolumeNotFound):
        cinder.client.encryption(str(uuid.uuid4()))


@pytest.mark.parametrize(
    ('said', 'migrating'),
    [(None, False), ('success', False), ('error', False), ('migrating', True), ('target:x', True)],
)
def test_when_a_volume_migrates(cinder, said, migrating):
    volume = cinder.add_volume(PROJECT, **{'os-vol-mig-status-attr:migstat': said})
    assert cinder.client.volume(None, volume).migrating is migrating


@pytest.mark.parametrize('failed', [True, False])
def test_a_migration_comes_to_its_end(cinder, failed):
    volume = cinder.add_volume(PROJECT)
    old = attached(cinder, volume)
    copy = cinder.migrate(volume, size=3)
    assert cinder.client.volume(None, copy).is_target_of(volume)
    new = cinder.client.create_attachment(copy, SERVER, CONNECTOR)
    with pytest.raises(client.VolumeInvalid, match='expected target'):
        cinder.client.complete_migration(volume, cinder.add_volume(PROJECT), failed=failed)
    with pytest.raises(client.VolumeNotFound, match=f'^Volume {SERVER} could not be found.$'):
        cinder.client.complete_migration(volume, SERVER, failed=failed)
    cinder.client.delete_attachment(new.id if failed else old.id)
    cinder.client.complete_migration(volume, copy, failed=failed)
    known = cinder.client.volume(None, volume)
    assert (known.migration, known.status, known.size) == (
        ('error', 'in-use', 1) if failed else ('success', 'in-use', 3)
    )
    assert cinder.client.attachment(old.id if failed else new.id).volume_id == volume
    with pytest.raises(client.VolumeNotFound):
        cinder.client.volume(None, copy)
    cinder.client.call_available(volume)
    assert status(cinder, volume) == 'available'


def test_what_this_user_may_not_see(cinder):
    hidden = cinder.add_volume(OTHER)
    snapshot = cinder.add_snapshot(hidden)
    with pytest.raises(client.VolumeNotFound, match=f'^Volume {hidden} could not be found.$'):
        cinder.client.volume(USER, hidden)
    with pytest.raises(client.SnapshotNotFound, match=f'^Snapshot {snapshot} could not be found.$'):
        cinder.client.snapshot(USER, snapshot)
    assert cinder.client.volume(None, hidden).project_id == OTHER
    assert cinder.client.snapshot(None, snapshot) == VolumeSnapshot(
        snapshot, '', hidden, 'available', 1, created_at=MADE_AT
    )


def test_whom_it_asks_as(cinder, volume):
    """What Cinder shows and does depends on the version, too."""
    cinder.client.volume(USER, volume)
    cinder.client.volume(None, volume)
    asked = [(one['X-Auth-Token'], one['X-Service-Token'], one['OpenStack-API-Version']) for one in cinder.headers]
    assert asked == [('of-user', 'notused', 'volume 3.44'), ('notused', 'notused', 'volume 3.44')]


@pytest.mark.parametrize(
    'url', ['http://cinder.test/v3', 'http://cinder.test/v3/', 'http://cinder.test', f'http://cinder.test/v3/{OTHER}']
)
def test_urls_name_no_project(cinder, volume, url):
    """The endpoint of a catalog often names the service's, where a user has another."""
    cinder.adapter.endpoint_override = url
    assert cinder.client.volume(USER, volume).id == volume
    assert cinder.client.volume(None, volume).id == volume
    assert cinder.asked == [('GET', f'/volumes/{volume}')] * 2


def test_volumes_are_made_for_users(cinder):
    cinder.slow = True
    cinder.images['i'] = {'os_type': 'linux'}
    snapshot = cinder.add_snapshot(cinder.add_volume(PROJECT))
    blank = cinder.client.create_volume(
        USER, size=3, name='blank', volume_type='shared', availability_zone='nova', metadata={'a': 'b'}
    )
    assert (blank.status, blank.project_id, blank.size, blank.multiattach) == ('creating', PROJECT, 3, True)
    cinder.finish(blank.id)
    assert cinder.client.volume(USER, blank.id).status == 'available'
    assert cinder.volumes[blank.id]['metadata'] == {'a': 'b'}
    of_image = cinder.client.create_volume(USER, size=1, name='root', image_id='i')
    assert (of_image.bootable, of_image.image_metadata) == (True, {'os_type': 'linux'})
    assert cinder.client.create_volume(USER, size=1, name='', snapshot_id=snapshot).snapshot_id == snapshot


def test_snapshots_are_made_for_users_and_found_by_their_image(cinder, volume):
    cinder.client.create_attachment(volume, SERVER, None)
    made = cinder.client.create_snapshot(USER, volume, name='s', metadata={client.MADE_FOR_IMAGE: 'i'})
    assert (made.status, made.volume_id, made.name) == ('creating', volume, 's')
    cinder.add_snapshot(volume)
    assert (cinder.client.snapshots_for('i'), cinder.client.snapshots_for('j')) == ([made.id], [])
    for _ in range(2):
        cinder.client.delete_snapshot(made.id)
    assert cinder.client.snapshots_for('i') == []
    with pytest.raises(client.VolumeNotFound):
        cinder.client.create_snapshot(USER, SERVER, name='s')
    cinder.limits['snapshots'] = 0
    with pytest.raises(client.VolumeQuotaFull, match='SnapshotLimitExceeded'):
        cinder.client.create_snapshot(USER, volume, name='s')


def test_what_a_volume_is_refused_for(cinder):
    missing = str(uuid.uuid4())
    for fields, error, text in (
        ({'snapshot_id': missing}, client.SnapshotNotFound, f'Snapshot {missing} could not be found.'),
        ({'volume_type': 'fast'}, client.VolumeTypeNotFound, 'Volume type fast could not be found.'),
        ({'volume_type': 'None'}, client.VolumeTypeNotFound, 'Volume type None could not be found.'),
        ({'image_id': missing}, client.VolumeInvalid, 'Invalid image identifier or unable to access requested image.'),
        ({'availability_zone': 'far'}, client.VolumeInvalid, "Availability zone 'far' is invalid."),
    ):
        with pytest.raises(error) as caught:
            cinder.client.create_volume(USER, size=1, name='x', **fields)
        assert str(caught.value) == text
    cinder.limits[PROJECT] = 0
    with pytest.raises(
        client.VolumeQuotaFull,
        match=r'^VolumeLimitExceeded: Maximum number of volumes allowed \(0\) '
        "exceeded for quota 'volumes'.$",
    ):
        cinder.client.create_volume(USER, size=1, name='x')
    assert cinder.volumes == {}


def test_an_attachment_from_its_reservation_to_its_end(cinder, volume):
    reserved = cinder.client.create_attachment(volume, SERVER, None)
    assert reserved == Attachment(reserved.id, volume, SERVER, 'reserved')
    assert status(cinder, volume) == 'reserved'
    made = cinder.client.create_attachment(volume, SERVER, CONNECTOR)
    assert (made.status, made.connection['driver_volume_type']) == ('reserved', 'iscsi')
    cinder.client.delete_attachment(reserved.id)
    assert cinder.client.attachments(SERVER) == [cinder.client.attachment(made.id)]
    assert cinder.client.attachment(made.id) == Attachment(made.id, volume, SERVER, 'attaching', made.connection)
    for _ in range(2):
        cinder.client.complete_attachment(made.id)
    assert (cinder.client.attachment(made.id).status, status(cinder, volume)) == ('attached', 'in-use')
    for _ in range(2):
        cinder.client.delete_attachment(made.id)
    assert (cinder.held(), status(cinder, volume)) == ([], 'available')
    for call in (cinder.client.attachment, cinder.client.complete_attachment):
        with pytest.raises(client.AttachmentNotFound, match=made.id):
            call(made.id)


def test_passwords_are_not_in_what_is_logged(cinder, volume):
    assert 'secret' in cinder.client.create_attachment(volume, SERVER, CONNECTOR).connection.values()
    assert 'secret' not in repr(cinder.client.attachments(SERVER))


def test_one_server_has_a_volume_on_two_hosts(cinder, volume):
    """Where it is, and where it will be; another server has none."""
    old = attached(cinder, volume)
    with pytest.raises(
        client.VolumeInvalid,
        match=f'^Invalid volume: Volume {volume} status must be available or downloading to reserve, '
        'but the current status is in-use.$',
    ):
        cinder.client.create_attachment(volume, ANOTHER, None)
    new = cinder.client.create_attachment(volume, SERVER, {**CONNECTOR, 'host': 'gpu2'})
    cinder.client.delete_attachment(old.id)
    cinder.client.complete_attachment(new.id)
    assert cinder.held() == [f'{volume} {SERVER} attached gpu2']


def test_several_servers_have_one(cinder):
    """Not before the first one's is complete."""
    volume = cinder.add_volume(PROJECT, volume_type='shared')
    first = cinder.client.create_attachment(volume, SERVER, CONNECTOR)
    with pytest.raises(client.VolumeInvalid, match='the current status is attaching'):
        cinder.client.create_attachment(volume, ANOTHER, CONNECTOR)
    cinder.client.complete_attachment(first.id)
    second = attached(cinder, volume, ANOTHER)
    cinder.client.delete_attachment(first.id)
    assert (status(cinder, volume), cinder.client.attachments(SERVER)) == ('in-use', [])
    cinder.client.delete_attachment(second.id)
    assert status(cinder, volume) == 'available'


def test_attachments_of_all_servers_in_pages(cinder):
    cinder.page = 2
    made = [attached(cinder, cinder.add_volume(PROJECT)) for _ in range(5)]
    cinder.attachments[made[0].id]['instance'] = None
    assert {one.id for one in cinder.client.attachments_of_servers()} == {one.id for one in made[1:]}
    assert sum(method == 'GET' for method, _path in cinder.asked) == 4


def test_a_list_of_attachments_that_does_not_go_on_ends(cinder, monkeypatch):
    """A proxy may drop the marker from the query."""
    attached(cinder, cinder.add_volume(PROJECT))
    whole = cinder.client.attachments_of_servers
    ask = type(cinder.client)._attachments
    monkeypatch.setattr(type(cinder.client), '_attachments', lambda self, query: ask(self, []))
    with pytest.raises(errors.Unanswered, match=r'^The volume service returned the same page of attachments again'):
        whole()


def test_deleting_a_volume_may_be_repeated(cinder, volume):
    cinder.slow = True
    for _ in range(2):
        cinder.client.delete_volume(volume)
    assert cinder.statuses() == {volume: 'deleting'}
    cinder.finish(volume)
    cinder.client.delete_volume(volume)
    assert cinder.statuses() == {}


def test_one_that_goes_while_it_is_asked_for(cinder, volume):
    cinder.slow = True
    cinder.client.delete_volume(volume)

    def go(method, path):
        if method == 'DELETE':
            cinder.finish(volume)

    cinder.after = go
    cinder.client.delete_volume(volume)
    assert cinder.statuses() == {}


def test_a_volume_in_use_is_not_deleted(cinder, volume):
    attached(cinder, volume)
    with pytest.raises(client.VolumeInvalid, match='Invalid volume: Volume status must be available or error'):
        cinder.client.delete_volume(volume)


def test_a_back_end_that_fails(cinder, volume):
    """It is Cinder that answers; the reservation stays until it is deleted."""
    cinder.fails = {'connect'}
    with pytest.raises(client.VolumeBackendFailed, match='service could not carry out the request: Unable to create'):
        cinder.client.create_attachment(volume, SERVER, CONNECTOR)
    (left,) = cinder.client.attachments(SERVER)
    assert (left.status, left.connection, len(cinder.asked)) == ('reserved', {}, 2)
    cinder.client.delete_attachment(left.id)
    cinder.fails = {'disconnect'}
    made = attached(cinder, volume)
    with pytest.raises(client.VolumeBackendFailed):
        cinder.client.delete_attachment(made.id)
    assert cinder.held() == [f'{volume} {SERVER} attached gpu1']


def test_a_volume_in_error(cinder):
    volume = cinder.add_volume(PROJECT, status='error')
    with pytest.raises(client.VolumeInvalid, match='in an error state'):
        cinder.client.create_attachment(volume, SERVER, None)


@pytest.mark.parametrize(
    'call',
    [
        lambda client, missing: client.volume(USER, missing),
        lambda client, missing: client.create_attachment(missing, SERVER, CONNECTOR),
    ],
)
def test_volumes_that_there_are_not(cinder, call):
    missing = str(uuid.uuid4())
    with pytest.raises(client.VolumeNotFound, match=f'^Volume {missing} could not be found.$'):
        call(cinder.client, missing)


@pytest.mark.parametrize(
    ('answered', 'ctxt', 'error'),
    [
        (400, None, client.VolumeInvalid),
        (409, None, client.VolumeConflict),
        (413, None, client.VolumeQuotaFull),
        (403, None, client.VolumeAccountRefused),
        (403, USER, client.VolumeForbidden),
        (500, None, errors.Unanswered),
    ],
)
def test_refusals_of_other_kinds(cinder, monkeypatch, answered, ctxt, error):
    monkeypatch.setattr(cinder, '_route', lambda *_args: (answered, {'kind': {'code': 1, 'message': 'no\nway'}}))
    with pytest.raises(error, match='no way' if answered < 500 else 'HTTP 500'):
        cinder.client.volume(ctxt, str(uuid.uuid4()))


@pytest.mark.parametrize(
    'body',
    [
        b'<html>',
        None,
        b'["no"]',
        {'no': 'no'},
        {'a': 1, 'b': 2},
        {'itemNotFound': {'message': 'The resource could not be found.'}},
    ],
)
@pytest.mark.parametrize('call', ['attachment', 'delete_attachment', 'delete_volume'])
def test_a_404_that_does_not_name_it_says_nothing(cinder, monkeypatch, call, body):
    """A proxy's, or an older Cinder's: what was asked for may be there."""
    monkeypatch.setattr(cinder, '_route', lambda *_args: (404, body))
    with pytest.raises(errors.Unanswered, match='The volume service does not answer: HTTP 404: '):
        getattr(cinder.client, call)(str(uuid.uuid4()))


def test_a_500_of_a_proxy_is_no_answer(cinder, monkeypatch, volume):
    monkeypatch.setattr(cinder, '_route', lambda *_args: (500, b'<html>'))
    with pytest.raises(errors.Unanswered, match='The volume service does not answer: HTTP 500: <html>'):
        cinder.client.create_attachment(volume, SERVER, CONNECTOR)


def test_an_answer_that_is_lost(cinder, volume):
    """The attachment is there: it is found by its server."""

    def broken(method, path):
        raise cinder.broken()

    cinder.after = broken
    with pytest.raises(errors.Unanswered):
        cinder.client.create_attachment(volume, SERVER, CONNECTOR)
    cinder.after = None
    (found,) = cinder.client.attachments(SERVER)
    assert (found.volume_id, found.connection['attachment_id']) == (volume, found.id)


@pytest.mark.parametrize('identifier', ['', '.', '..', '../snapshots', 'x', 'x?y', str(uuid.uuid4()) + '/action'])
def test_an_id_leads_to_no_other_resource(cinder, identifier):
    with pytest.raises(client.VolumeNotFound):
        cinder.client.volume(USER, identifier)
    with pytest.raises(client.SnapshotNotFound):
        cinder.client.snapshot(USER, identifier)
    cinder.client.delete_volume(identifier)
    cinder.client.delete_snapshot(identifier)
    cinder.client.delete_attachment(identifier)
    assert cinder.asked == []


def test_no_account_at_all():
    from keystoneauth1 import adapter as ks_adapter
    from keystoneauth1 import session as ks_session

    nobody = VolumeClient(ks_adapter.Adapter(ks_session.Session(), service_type='block-storage'))
    with pytest.raises(errors.Unanswered):
        nobody.volume(USER, str(uuid.uuid4()))


def test_a_cloud_without_a_volume_service():
    conf = kilonova_conf.new()
    conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
    assert parts.volumes(conf) is None
    conf.set_override('auth_type', 'none', 'cinder')
    conf.set_override('endpoint_override', 'http://cinder.test/v3', 'cinder')
    assert isinstance(parts.volumes(conf), VolumeClient)


def test_a_volume_that_gets_an_image(cinder, volume):
    """By the version that knows it; reserved for one server before and afterwards."""
    cinder.images['i'] = {}
    cinder.client.create_attachment(volume, SERVER, None)
    cinder.slow = True
    cinder.client.reimage_volume(volume, 'i')
    assert cinder.headers[-1]['OpenStack-API-Version'] == 'volume 3.68'
    assert cinder.client.volume(None, volume).is_written
    with pytest.raises(client.VolumeInvalid, match='current status is downloading'):
        cinder.client.reimage_volume(volume, 'i')
    cinder.finish_image(volume)
    assert status(cinder, volume) == 'reserved' and not cinder.client.volume(None, volume).is_written
    cinder.client.create_attachment(volume, SERVER, None)
    with pytest.raises(client.VolumeConflict, match='more than one'):
        cinder.client.reimage_volume(volume, 'i')


def test_a_volume_that_can_not_get_an_image(cinder, volume):
    cinder.client.create_attachment(volume, SERVER, None)
    with pytest.raises(errors.ImageNotFound):
        cinder.client.reimage_volume(volume, str(uuid.uuid4()))
    for ask in (lambda missing: cinder.client.reimage_volume(missing, 'i'), cinder.client.call_reserved):
        with pytest.raises(client.VolumeNotFound):
            ask(str(uuid.uuid4()))
    cinder.volumes[volume]['status'] = 'error'
    cinder.client.call_reserved(volume)
    assert status(cinder, volume) == 'reserved'
