"""A server's volumes as rows and as objects: what goes in comes out, and an older release never sees them."""

from __future__ import annotations

import json
import uuid

from kilonova import objects
from kilonova.objects.volume import AttachedVolume

SERVER, VOLUME, ROW = (str(uuid.uuid4()) for _ in range(3))
NEW = AttachedVolume(ROW, VOLUME, 3, multiattach=True)
CONNECTION = {'driver_volume_type': 'iscsi', 'target_lun': 1, 'auth_password': 'secret', 'attachment_id': 'a'}


BESIDES = {**CONNECTION, 'target_lun': 7}


def row(**values):
    return {
        'id': 1,
        'uuid': ROW,
        'source_type': 'volume',
        'destination_type': 'volume',
        'volume_id': VOLUME,
        'volume_size': 3,
        'attachment_id': None,
        'device_name': '/dev/vdb',
        'boot_index': None,
        'delete_on_termination': True,
        'disk_bus': None,
        'device_type': None,
        'tag': 't',
        'volume_type': None,
        'connection_info': None,
        **values,
    }


def test_a_row_tells_where_and_how_a_volume_is_attached():
    text = NEW.connection_info(SERVER, 'gpu1', CONNECTION, {'ip': '192.0.2.1'})
    volume = AttachedVolume.read(row(connection_info=text, attachment_id=str(uuid.uuid4())))
    assert (volume.host, volume.kind, volume.multiattach, volume.size, volume.tag) == ('gpu1', 'iscsi', True, 3, 't')
    assert volume.connection == {'driver_volume_type': 'iscsi', 'target_lun': 1, 'auth_password': 'secret'}
    assert volume.delete_on_termination and not volume.is_root
    # The field's form, for whoever reads the table.
    stored = json.loads(text)
    assert (stored['driver_volume_type'], stored['data'], stored['serial'], stored['instance']) == (
        'iscsi',
        {'target_lun': 1, 'auth_password': 'secret'},
        VOLUME,
        SERVER,
    )


def test_one_that_is_only_reserved_is_on_no_host():
    volume = AttachedVolume.read(row(connection_info=AttachedVolume(ROW, VOLUME, 3).connection_info(SERVER)))
    assert (volume.host, volume.kind, volume.connection, volume.multiattach) == (None, None, {}, False)
    # Columns that the API writes before anything is attached.
    assert AttachedVolume.read({'uuid': ROW, 'volume_id': VOLUME}) == AttachedVolume(ROW, VOLUME, 0)


def test_volumes_come_with_their_server_and_secrets_stay_out_of_what_is_printed():
    text = NEW.connection_info(SERVER, 'gpu1', CONNECTION)
    server = objects.Instance.from_row(None, {'uuid': SERVER}, {'volumes': [row(connection_info=text)]})
    again = objects.Instance.obj_from_primitive(server.obj_to_primitive())
    assert [volume.volume_id for volume in again.volumes] == [VOLUME]
    assert 'secret' not in repr(again) + repr(again.volumes)
    assert objects.Instance.from_row(None, {'uuid': SERVER}, {'volumes': []}).volumes == []


def test_an_older_release_gets_a_server_without_them():
    server = objects.Instance.from_row(None, {'uuid': SERVER}, {'volumes': [row()]})
    older = server.obj_to_primitive(target_version='2.8', version_manifest={'Instance': '2.8'})
    assert older['nova_object.version'] == '2.8' and 'block_devices' not in older['nova_object.data']


def test_what_hosts_it_was_attached_to_is_kept_for_a_while():
    """A host that comes back can let go of it."""
    text = None
    for number in range(5):
        text = AttachedVolume.read(row(connection_info=text)).connection_info(
            SERVER, f'gpu{number}', {**CONNECTION, 'target_lun': number}, {'host': f'gpu{number}'}
        )
    volume = AttachedVolume.read(row(connection_info=text))
    assert [volume.at(f'gpu{number}') is not None for number in range(5)] == [False, False, True, True, True]
    before, now = volume.at('gpu3'), volume.at('gpu4')
    assert now is volume and before is not None
    assert (before.host, before.connection['target_lun'], volume.connection['target_lun']) == ('gpu3', 3, 4)
    assert volume.known_at['gpu2']['connector'] == {'host': 'gpu2'}
    off = AttachedVolume.read(row(connection_info=volume.connection_info(SERVER)))
    assert off.host is None and off.at('gpu4') is not None


def test_a_volume_of_a_guest_on_its_way_is_attached_to_two_hosts():
    """Its own stays what it is; the other one's goes, and leaves what is known of that host."""
    text = NEW.connection_info(SERVER, 'gpu1', CONNECTION, {'host': 'gpu1'})
    one = AttachedVolume.read(row(connection_info=text, attachment_id='own'))
    assert one.coming('gpu2') is None and one.attachments == {'own'} and NEW.attachments == set()
    text = one.besides_at(SERVER, 'gpu2', 'other', BESIDES, {'host': 'gpu2'})
    both = AttachedVolume.read(row(connection_info=text, attachment_id='own'))
    there = both.coming('gpu2')
    assert there is not None and both.coming('gpu1') is None
    assert (there.host, there.attachment_id, there.connection['target_lun']) == ('gpu2', 'other', 7)
    assert (both.host, both.connection, both.multiattach) == ('gpu1', one.connection, True)
    assert both.attachments == {'own', 'other'} and both.known_at['gpu1'] == one.known_at['gpu1']
    # It went there, or it did not.
    went = AttachedVolume.read(
        row(
            attachment_id='other',
            connection_info=both.connection_info(SERVER, 'gpu2', there.connection, both.known_at['gpu2']['connector']),
        )
    )
    stayed = AttachedVolume.read(row(attachment_id='own', connection_info=both.besides_at(SERVER, 'gpu2')))
    assert (went.host, went.attachments, stayed.host, stayed.attachments) == ('gpu2', {'other'}, 'gpu1', {'own'})
    for volume in (went, stayed):
        assert volume.coming('gpu2') is None and volume.known_at['gpu2']['connector'] == {'host': 'gpu2'}
        at = volume.at('gpu1'), volume.at('gpu2')
        assert [found and found.connection['target_lun'] for found in at] == [1, 7]
