"""Service: the heartbeat as it travels and as it is written."""

from __future__ import annotations

import datetime
import json
import uuid as uuids
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.db.engine import Database
from kilonova.db.models import cell as models
from kilonova.objects import Service
from kilonova.objects.base import Serializer

services = models.Service.__table__


def row_of(cell: Database, service_id: int) -> Any:
    with cell.read() as conn:
        return conn.execute(sa.select(services).where(services.c.id == service_id)).one()


@pytest.fixture
def service_id(insert: Callable[..., int]) -> int:
    return insert(
        'Service',
        uuid=str(uuids.uuid4()),
        host='host1',
        binary='nova-compute',
        topic='compute',
        report_count=5,
        version=73,
    )


class Wire:
    """A client of the conductor that keeps the message."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}

    def object_action(self, ctxt: RequestContext, **args: Any) -> Any:
        self.message = {'method': 'object_action', 'args': Serializer().serialize_entity(ctxt, args)}
        return {'obj_what_changed': []}, None


def test_the_heartbeat_message(ctxt: RequestContext, service_id: int) -> None:
    """The message of a heartbeat equals the one that was captured from Nova."""
    service = Service.get_by_args(ctxt, 'host1', 'nova-compute')
    ctxt.indirection = wire = Wire()
    service.report_count += 1
    service.save()
    objinst = wire.message['args'].pop('objinst')
    assert wire.message == {'method': 'object_action', 'args': {'objmethod': 'save', 'args': (), 'kwargs': {}}}
    data = objinst.pop('nova_object.data')
    assert objinst == {
        'nova_object.name': 'Service',
        'nova_object.namespace': 'nova',
        'nova_object.version': '1.22',
        'nova_object.changes': ['report_count'],
    }
    assert set(data) == {
        'id',
        'uuid',
        'host',
        'binary',
        'topic',
        'report_count',
        'disabled',
        'disabled_reason',
        'last_seen_up',
        'forced_down',
        'version',
        'created_at',
        'updated_at',
        'deleted_at',
        'deleted',
    }
    assert (data['report_count'], data['deleted'], data['host']) == (6, False, 'host1')
    assert json.loads(json.dumps(data)) == data
    assert service.obj_what_changed() == set()


def test_a_service_is_found_by_host_and_binary(ctxt: RequestContext, service_id: int) -> None:
    service = Service.get_by_args(ctxt, 'host1', 'nova-compute')
    assert (service.id, service.topic, service.version, service.deleted) == (service_id, 'compute', 73, False)
    assert service.obj_what_changed() == set()


def test_an_unknown_service_is_not_found(ctxt: RequestContext, service_id: int) -> None:
    with pytest.raises(errors.ServiceNotFound, match='nova-compute on host2'):
        Service.get_by_args(ctxt, 'host2', 'nova-compute')


def test_create_gives_id_and_uuid(ctxt: RequestContext, cell: Database) -> None:
    service = Service(ctxt, host='host1', binary='nova-scheduler', topic='scheduler', version=73)
    service.create()
    row = row_of(cell, service.id)
    assert (row.host, row.binary, row.uuid, row.report_count) == ('host1', 'nova-scheduler', service.uuid, 0)
    assert service.report_count == 0
    assert service.obj_what_changed() == set()


def test_a_heartbeat_is_one_update_by_the_databases_clock(
    ctxt: RequestContext, cell: Database, service_id: int
) -> None:
    """A change of report_count sets last_seen_up by the database's clock, in one UPDATE."""
    service = Service.get_by_args(ctxt, 'host1', 'nova-compute')
    service.report_count += 1
    service.save()
    row = row_of(cell, service_id)
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    assert row.report_count == 6
    assert abs((now - row.last_seen_up).total_seconds()) < 60
    assert service.obj_what_changed() == set()


def test_save_without_heartbeat_leaves_last_seen_up(ctxt: RequestContext, cell: Database, service_id: int) -> None:
    service = Service.get_by_args(ctxt, 'host1', 'nova-compute')
    service.disabled, service.disabled_reason = True, 'repairs'
    service.save()
    row = row_of(cell, service_id)
    assert (row.disabled, row.disabled_reason, row.last_seen_up, row.report_count) == (True, 'repairs', None, 5)


def test_a_heartbeat_of_a_service_that_is_gone_fails(ctxt: RequestContext, cell: Database, service_id: int) -> None:
    service = Service.get_by_args(ctxt, 'host1', 'nova-compute')
    with cell.write() as conn:
        conn.execute(services.delete())
    service.report_count += 1
    with pytest.raises(errors.ServiceNotFound):
        service.save()


@pytest.mark.parametrize(
    ('row', 'said', 'left'),
    [
        ((False, None), (True, 'AUTO: gone'), (True, 'AUTO: gone')),
        ((True, 'AUTO: gone'), (False, None), (False, None)),
        ((True, 'repairs'), (True, 'AUTO: gone'), (True, 'repairs')),
        ((True, None), (True, 'AUTO: gone'), (True, None)),
        ((True, 'repairs'), (False, None), (True, 'repairs')),
    ],
)
def test_a_host_that_disables_itself_gives_way_to_administrators(
    ctxt: RequestContext, cell: Database, service_id: int, row: Any, said: Any, left: Any
) -> None:
    """A host that disables or enables itself does not overwrite an administrator's change that came in between."""
    service = Service.get_by_args(ctxt, 'host1', 'nova-compute')
    service.disabled, service.disabled_reason = said
    service.obj_what_changed()
    with cell.write() as conn:
        conn.execute(services.update().values(disabled=row[0], disabled_reason=row[1]))
    service._changed_fields = {'disabled', 'disabled_reason'}
    service.save()
    found = row_of(cell, service_id)
    assert (found.disabled, found.disabled_reason) == left
