"""What the audit says of attachments in Cinder and rows of volumes."""

from __future__ import annotations

from types import SimpleNamespace

from kilonova.clients.volume import Attachment
from kilonova.conductor.audit.volumes import VolumeAudit


def test_an_attachment_without_a_row_is_reported_though_an_operation_works_on_another_server():
    attachments = [
        Attachment(id=f'of {server}', volume_id='v', server_id=server, status='attached', connection={})
        for server in ('busy', 'wrong')
    ]
    audit = VolumeAudit(SimpleNamespace(attachments_of_servers=lambda: attachments))
    assert audit.read() is None
    audit.compare({'busy': {'host': 'gpu1'}, 'wrong': {'host': 'gpu1'}}, {}, {'busy'})
    assert audit.disagreements() == [
        'volumes: attachment of wrong of volume v belongs to server wrong, which has no row for it'
    ]
