"""This release reads the rows and messages of the release before: ``record`` recorded them at commit 101d6ebd.

During a rolling upgrade a conductor of this release continues operations whose rows the release before wrote, and its
daemons receive messages of daemons of the release before. So the names in these rows and messages stay: kinds of
operations, steps, arguments, outputs, objects with their fields, RPC methods with their arguments, columns and errors.
If a test here fails because a name was changed, keep reading the old name. ``RECORDED`` stays until an upgrade from
that release is no longer supported.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import json
import logging
import types
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_versionedobjects import base as ovo

from kilonova import objects
from kilonova.conductor import flows
from kilonova.context import RequestContext
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import instances, operations
from kilonova.errors import REMOTE_MODULES, KilonovaError
from kilonova.objects.base import KilonovaObject, Serializer
from kilonova.objects.vif import Vif
from kilonova.objects.volume import AttachedVolume
from kilonova.rpc.interface import RpcInterface, signature_of
from kilonova.rpc.reports import Collector
from kilonova.rpc.transport import DirectTransport
from tests.recorded.recorder import INTERFACES, NAME

RECORDED = Path(__file__).parents[1] / 'recorded' / 'release_101d6ebd'
DATA, VERSION = 'nova_object.data', 'nova_object.version'
METADATA = {'api': api_models.Base.metadata, 'cell': cell_models.Base.metadata}
# Outputs that the release before declared for a kind and wrote to no row.
UNWRITTEN = {'evacuate': {'prep_resize', 'resize_instance'}}
# Columns of a server with one object each, and the field of the server that has it.
SERVERS_OBJECTS = {
    'pci_requests',
    'numa_topology',
    'migration_context',
    'keypairs',
    'trusted_certs',
    'resources',
    'vcpu_model',
    'device_metadata',
}


# --- the records -----------------------------------------------------------------------------------------------------
@functools.cache
def recorded(name: str) -> Any:
    """Return a file of records, in which objects are still replaced by their names."""
    return json.loads((RECORDED / f'{name}.json').read_text(encoding='utf-8'))


def whole(value: Any) -> Any:
    """Return a record with the objects whose names it contains."""
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if '$object' in value:
        return whole(recorded('objects')[value['$object']])
    return {key: whole(inner) for key, inner in value.items()}


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a recorded row as the database has them."""
    return {
        name: json.dumps(whole(value['$json'])) if isinstance(value, dict) else value for name, value in row.items()
    }


def label(record: dict[str, Any]) -> str:
    """Return the name of a record, for messages of failed tests."""
    return ' '.join(str(record[name]) for name in ('kind', 'at', 'topic', 'namespace', 'method') if name in record)


def step_of(record: dict[str, Any]) -> tuple[int, str]:
    """Return the position and the recorded name of the step before which the row of an operation was recorded."""
    index, _, name = record['at'].partition(' ')[0].partition('.')
    return int(index), name


OPERATIONS = recorded('operations')
DECLARED = recorded('declared')
BY_ADDRESS: dict[tuple[str, str | None], type[RpcInterface]] = {
    (interface.topic, interface.namespace): interface for interface in INTERFACES
}


def context() -> RequestContext:
    """Return the recorded context of a request."""
    return RequestContext.from_dict(recorded('contexts')[0])


# --- reading objects -------------------------------------------------------------------------------------------------
def envelopes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the outermost envelopes of versioned objects in a value."""
    if isinstance(value, list):
        for inner in value:
            yield from envelopes(inner)
    elif isinstance(value, dict):
        if NAME in value:
            yield value
        else:
            for inner in value.values():
                yield from envelopes(inner)


def losses(was: Any, read: Any, path: str = '') -> Iterator[str]:
    """Yield the parts of a recorded value that are missing or different in what was read of it."""
    if isinstance(was, dict) and NAME in was:
        if not isinstance(read, dict) or read.get(NAME) != was[NAME]:
            yield f'{path}: {was[NAME]} is read as {read!r:.80}'
            return
        yield from losses(was[DATA], read[DATA], f'{path}<{was[NAME]}>')
    elif isinstance(was, dict) and isinstance(read, dict):
        for key, value in was.items():
            if key not in read:
                yield f'{path}.{key} is not read'
            else:
                yield from losses(value, read[key], f'{path}.{key}')
    elif isinstance(was, list) and isinstance(read, (list, tuple)) and len(was) == len(read):
        for number, pair in enumerate(zip(was, read, strict=True)):
            yield from losses(*pair, f'{path}[{number}]')
    elif was != read:
        yield f'{path}: {was!r:.80} is read as {read!r:.80}'


def assert_objects_are_read(value: Any, what: str) -> None:
    """Fail if an object in a recorded value cannot be read, or loses one of its fields."""
    for envelope in envelopes(value):
        read = KilonovaObject.obj_from_primitive(envelope, context())
        assert list(losses(envelope, read.obj_to_primitive())) == [], what


# --- names -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('kind', DECLARED['flows'])
def test_a_kind_of_operations_keeps_its_steps_and_outputs(kind: str) -> None:
    """A row has the position of its step, and step keys in messages have the position and the name.

    If this fails for a step that was renamed, declare its former name (``Step.formerly``).
    """
    assert kind in flows.FLOWS
    was, flow = DECLARED['flows'][kind], flows.FLOWS[kind]
    assert [step.key_name for step in flow.steps] == was['steps']
    assert set(was['outputs']) - UNWRITTEN.get(kind, set()) <= {one.name for one in fields(flow.outputs)}


def test_each_step_of_each_kind_was_recorded() -> None:
    found = {(one['kind'], one['at'].partition(' ')[0]) for one in OPERATIONS}
    wanted = {
        (kind, f'{index}.{name}') for kind, was in DECLARED['flows'].items() for index, name in enumerate(was['steps'])
    }
    assert wanted - found == set()
    assert {kind for kind, at in found if at == 'accepted'} == set(DECLARED['flows'])


@pytest.mark.parametrize('name', DECLARED['interfaces'])
def test_an_interface_keeps_its_methods_and_arguments(name: str) -> None:
    was = DECLARED['interfaces'][name]
    interface = BY_ADDRESS[was['topic'], was['namespace']]
    for method, signature in was['methods'].items():
        assert method in interface.methods()
        assert set(signature['arguments']) <= interface.arguments(method), method


def test_each_method_was_recorded() -> None:
    found = {(one['topic'], one['namespace'], one['method']) for one in recorded('messages')}
    wanted = {
        (was['topic'], was['namespace'], method) for was in DECLARED['interfaces'].values() for method in was['methods']
    }
    assert wanted - found == set()


@pytest.mark.parametrize('name', DECLARED['objects'])
def test_an_object_keeps_its_fields_and_is_read_in_its_old_version(name: str) -> None:
    was = DECLARED['objects'][name]
    cls = KilonovaObject.obj_class_from_name(name, was['version'])
    assert set(was['fields']) <= set(cls.fields)


def test_the_databases_keep_their_columns() -> None:
    for database, tables in DECLARED['columns'].items():
        for table, columns in tables.items():
            assert table in METADATA[database].tables
            assert set(columns) <= {column.name for column in METADATA[database].tables[table].columns}, table


def test_errors_keep_their_names() -> None:
    """An error travels with the module and the name of its class, and is raised again as that class."""
    for module, names in DECLARED['errors'].items():
        assert module in REMOTE_MODULES
        found = vars(__import__(module, fromlist=['*']))
        gone = [
            name for name in names if not (isinstance(found.get(name), type) and issubclass(found[name], KilonovaError))
        ]
        assert gone == []


# --- rows of operations ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    'number',
    range(len(OPERATIONS)),
    ids=[f'{one["kind"]}-{one["at"].replace(" ", "-")}-{number}' for number, one in enumerate(OPERATIONS)],
)
def test_a_conductor_reads_the_row_of_an_operation(number: int) -> None:
    record = OPERATIONS[number]
    row = as_written(record['row'])
    assert set(row) <= {column.name for column in operations.operations.columns}
    assert flows.unreadable(row) == ''
    read = operations.OperationRow.read(row)  # type: ignore[arg-type]
    assert read.unreadable == ''
    for column in ('args', 'context', 'outputs'):
        assert_objects_are_read(getattr(read, column), f'{label(record)}: {column}')
    flow = flows.FLOWS[read.kind]
    assert list(losses(read.outputs, flow.outputs.read(read.outputs).stored())) == []
    assert list(losses(read.context, RequestContext.from_dict(read.context).to_dict())) == []
    assert read.position <= len(flow.steps)
    if record['at'] != 'accepted':
        index, name = step_of(record)
        assert flow.steps[index].key_name == name
    assert (read.error is None) == ('error' not in row)


# --- rows of servers and hosts ---------------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def database() -> Iterator[dict[str, sa.Engine]]:
    made = {name: sa.create_engine('sqlite://', poolclass=sa.pool.StaticPool) for name in METADATA}
    for name, each in made.items():
        METADATA[name].create_all(each)
    yield made
    for each in made.values():
        each.dispose()


def insert(conn: sa.Connection, metadata: sa.MetaData, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Insert recorded rows."""
    for name, rows in tables.items():
        table = metadata.tables[name]
        for row in rows:
            values = as_written(row)
            for column in table.columns:
                if isinstance(column.type, sa.DateTime) and values.get(column.name):
                    values[column.name] = datetime.datetime.fromisoformat(values[column.name])
            conn.execute(table.insert().values(values))


SERVERS = [one for one in recorded('servers') if 'instances' in one]
REQUESTS = [one for one in recorded('servers') if 'instances' not in one]


@pytest.mark.parametrize('number', range(len(SERVERS)))
def test_a_conductor_reads_the_rows_of_a_server(
    number: int, database: dict[str, sa.Engine], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    tables, what = SERVERS[number], f'server {number}'
    ctxt, uuid = context(), tables['instances'][0]['uuid']
    with database['cell'].connect() as conn:
        insert(conn, METADATA['cell'], tables)
        row = operations.instance_or_404(conn, uuid)
        values, extra = instances.split(row)
        server = objects.Instance.from_row(
            ctxt, values, extra, system_metadata=instances.get_system_metadata(conn, uuid)
        )
        conn.rollback()
    for rows in tables.values():
        for columns in rows:
            assert_objects_are_read(
                [whole(value['$json']) for value in columns.values() if isinstance(value, dict)], what
            )
    stored = tables['instance_extra'][0]
    for name in SERVERS_OBJECTS:
        if name in stored:
            assert getattr(server, name) is not None, f'{what}: {name}'
    requests = whole(stored['pci_requests']['$json']) if 'pci_requests' in stored else []
    assert len(server.pci_requests.requests) == len(requests) if requests else True
    for was, read in zip(requests, server.pci_requests.requests if requests else (), strict=True):
        assert {name: getattr(read, name) for name in was if name != 'spec'} == {
            name: value for name, value in was.items() if name != 'spec'
        }
    assert server.flavor.flavorid == whole(stored['flavor']['$json'])['cur'][DATA]['flavorid']
    assert server.system_metadata == {
        one['key']: one['value'] if not isinstance(one['value'], dict) else json.dumps(one['value']['$json'])
        for one in tables.get('instance_system_metadata', ())
    }
    for cache in tables.get('instance_info_caches', ()):
        for vif in cache['network_info']['$json'] if 'network_info' in cache else ():
            assert list(losses(vif, Vif.read(vif).stored())) == []
    for disk in tables.get('block_device_mapping', ()):
        columns = as_written(disk)
        volume = AttachedVolume.read(columns)
        assert (volume.uuid, volume.volume_id, volume.attachment_id, volume.boot_index) == tuple(
            disk.get(name) for name in ('uuid', 'volume_id', 'attachment_id', 'boot_index')
        )
        if 'connection_info' in disk and 'volume_id' in disk:
            stored = disk['connection_info']['$json']
            assert (volume.host, dict(volume.known_at)) == (stored.get('attached_to'), stored.get('hosts') or {})
            assert list(losses(stored.get('data', {}), dict(volume.connection))) == []
    for move in tables.get('migrations', ()):
        read = objects.Migration.from_row(ctxt, dict(move))
        assert (read.uuid, read.status, read.migration_type) == (move['uuid'], move['status'], move['migration_type'])
    assert [one.getMessage() for one in caplog.records] == []


@pytest.mark.parametrize('number', range(len(REQUESTS)))
def test_the_api_reads_request_specs_and_build_requests(number: int, database: dict[str, sa.Engine]) -> None:
    tables = REQUESTS[number]
    with database['api'].connect() as conn:
        insert(conn, METADATA['api'], tables)
        conn.rollback()
    for row in tables.get('request_specs', ()):
        text = as_written(row)['spec']
        spec = objects.RequestSpec.from_json(text, context())
        assert spec is not None
        assert list(losses(json.loads(text), spec.obj_to_primitive())) == []
    for row in tables.get('build_requests', ()):
        assert_objects_are_read(
            [whole(value['$json']) for value in row.values() if isinstance(value, dict)], f'build request {number}'
        )


@pytest.mark.parametrize('number', range(len(recorded('hosts'))))
def test_daemons_read_the_rows_of_hosts_and_devices(
    number: int, database: dict[str, sa.Engine], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    ((table, rows),) = recorded('hosts')[number].items()
    cls: Any = {'services': objects.Service, 'compute_nodes': objects.ComputeNode, 'pci_devices': objects.PciDevice}[
        table
    ]
    with database['cell'].connect() as conn:
        insert(conn, METADATA['cell'], {table: rows})
        row = dict(conn.execute(sa.select(METADATA['cell'].tables[table])).mappings().one())
        conn.rollback()
    read = cls.from_row(context(), row)
    assert read.uuid == rows[0]['uuid']
    if table == 'compute_nodes':
        assert len(read.supported_hv_specs) == len(rows[0]['supported_instances']['$json'])
        assert read.stats == rows[0]['stats']['$json']
        assert_objects_are_read(
            [whole(value['$json']) for value in rows[0].values() if isinstance(value, dict)], 'node'
        )
        assert read.pci_device_pools is not None
    if table == 'pci_devices' and 'extra_info' in rows[0]:
        assert list(losses(rows[0]['extra_info']['$json'], dict(read.extra_info))) == []
    assert [one.getMessage() for one in caplog.records] == []


# --- messages --------------------------------------------------------------------------------------------------------
def kind_of(annotation: Any) -> tuple[type, ...]:
    """Return the classes of objects that an argument may have by its annotation; an empty tuple for other values."""
    found = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return tuple(one for one in found if isinstance(one, type) and issubclass(one, KilonovaObject))


@pytest.mark.parametrize('number', range(len(recorded('messages'))))
def test_a_daemon_takes_a_message(number: int) -> None:
    message = recorded('messages')[number]
    what, ctxt = label(message), context()
    interface = BY_ADDRESS[message['topic'] if message['namespace'] != 'baseapi' else 'any', message['namespace']]
    endpoint: Any = types.SimpleNamespace(**dict.fromkeys(interface.methods(), lambda *args, **kwargs: None))
    DirectTransport.handler(
        [(interface, endpoint)], message['namespace'], message['version'], message['topic'], message['method']
    )
    func = interface.methods()[message['method']]
    args = whole(message['args'])
    assert_objects_are_read(args, what)
    read = {name: Serializer().deserialize_entity(ctxt, value) for name, value in args.items()}
    signature_of(func).bind(None, ctxt, **read)
    hints = typing.get_type_hints(func)
    for name, value in read.items():
        if (wanted := kind_of(hints.get(name, str))) and value is not None:
            assert isinstance(value, wanted), f'{what}: {name}'
    if message['method'] == 'object_action':
        assert_remotable(type(read['objinst']), read)
    if message['method'] == 'object_class_action_versions':
        assert_remotable(
            KilonovaObject.obj_class_from_name(read['objname'], read['object_versions'][read['objname']]), read, ctxt
        )


def assert_remotable(cls: Any, message: dict[str, Any], *first: Any) -> None:
    """Fail if a class has no remotable method for a message about an object, or one with other arguments."""
    method = inspect.getattr_static(cls, message['objmethod'])
    method = getattr(method, '__func__', method)
    assert method.remotable
    inspect.signature(method.original_fn).bind(cls, *first, *message['args'], **message['kwargs'])


@pytest.mark.parametrize('number', range(len(recorded('replies'))))
def test_a_daemon_reads_a_reply(number: int) -> None:
    record = recorded('replies')[number]
    reply = whole(record['reply'])
    assert_objects_are_read(reply, label(record))
    Serializer().deserialize_entity(context(), reply)


def test_a_conductor_takes_the_report_of_a_host() -> None:
    taken: list[dict[int, str]] = []
    nobody: Any = None
    message: Any = types.SimpleNamespace(decode=lambda: {'id': 7, 'host': 'gpu1'})
    collector = Collector(nobody, taken.append)
    collector._take(message)
    assert collector._reports == {7: 'gpu1'}


def test_all_objects_of_the_records_are_known() -> None:
    known = ovo.VersionedObjectRegistry.obj_classes()
    assert [
        name for name in recorded('objects') if name.partition(' ')[0] not in (*known, 'Context', 'args', 'outputs')
    ] == []
