"""``Recorder``, which notes the rows that a cloud in one process writes and the messages that its daemons send.

    recorder = Recorder()
    recorder.install(patch)             # before the cloud is made
    ...                                 # operations run
    recorder.write(directory)           # JSON files

``record`` uses it to make the files that ``test_the_release_before`` reads. It works with the tree that it is in, so a
later release is recorded in the same way.

Values are made readable: uuids are numbered in the order in which they appear in a record, times are a fixed
time, and paths of the machine are shortened. Columns that are NULL are left out. A text that is JSON is stored as
``{"$json": ...}``. Objects (envelopes of versioned objects) and request contexts are stored in ``objects.json``, and a
record names them: ``{"$object": "Instance 3"}``. An object in its place has the same keys, but may have other values.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from oslo_versionedobjects import base as ovo

from kilonova import errors
from kilonova.conductor import flows
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import operations
from kilonova.rpc import baseapi, compute, conductor, scheduler
from kilonova.rpc.interface import RpcInterface
from kilonova.rpc.transport import DirectTransport

INTERFACES: tuple[type[RpcInterface], ...] = (
    compute.Compute,
    conductor.Conductor,
    conductor.ComputeTask,
    scheduler.Scheduler,
    baseapi.BaseApi,
)
NAME = 'nova_object.name'
UUID = re.compile(r'[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}')
# Keys of a dict that are values themselves: uuids, addresses, numbers, image and volume names.
VARIABLE = re.compile(r'[0-9a-f-]{32,36}|[0-9a-f]{4}:[0-9a-f:.]+|\d+|CUSTOM_.*|/dev/.*|.*:COMPUTE|gpu\d')
# The name of a network interface on a host: the beginning of its port's uuid.
TAP = re.compile(r'\btap[0-9a-f]{8}-[0-9a-f]{2}\b')
# A sealed password.
SEALED = re.compile(r'gAAAA[\w=-]{80,}')
TIME = re.compile(r'\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?')
DIRECTORY = re.compile(r'/tmp/[^\s"\']*?/(?=gpu\d|one|instances|image)')
# Tables of which whole rows are recorded: those with JSON columns, and those that are read together with them.
CELL_TABLES = (
    'instances',
    'instance_extra',
    'instance_info_caches',
    'instance_system_metadata',
    'migrations',
    'block_device_mapping',
)
HOST_TABLES = ('services', 'compute_nodes', 'pci_devices')
API_TABLES = ('request_specs', 'build_requests', 'instance_mappings')
# How many messages of one method are kept.
MOST_FORMS = 6
# Values of up to so many characters are stored where they are.
SHORT = 100


def forms(value: object, path: str = '') -> Iterator[str]:
    """Yield the form of a value: each path of its keys, with the type of the value there."""
    if isinstance(value, dict):
        if not value:
            yield f'{path}={{}}'
        if NAME in value:
            path = f'{path}<{value[NAME]}>'
        for key, inner in value.items():
            yield from forms(inner, f'{path}.{"*" if VARIABLE.fullmatch(str(key)) else key}')
    elif isinstance(value, list):
        if not value:
            yield f'{path}=[]'
        for inner in value:
            yield from forms(inner, f'{path}[]')
    else:
        yield f'{path}={type(value).__name__}'


class Steady:
    """The values of one record, the same in each run."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}

    def _uuid(self, match: re.Match[str]) -> str:
        found = match[0]
        if found not in self._uuids:
            self._uuids[found] = f'00000000-0000-4000-8000-{len(self._uuids) + 1:012d}'
        return self._uuids[found]

    def text(self, text: str) -> str:
        if 'Traceback (most' in text:
            return 'Traceback (most recent call last): ...'
        text = DIRECTORY.sub('/var/lib/nova/', UUID.sub(self._uuid, SEALED.sub('sealed', text)))
        return TIME.sub('2026-11-26T21:00:00', TAP.sub('tap00000000-00', text))

    def of(self, value: Any, key: str = '') -> Any:
        if isinstance(value, dict):
            return {self.text(name): self.of(inner, name) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(inner, key) for inner in value]
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, float) and (value > 1e9 or key in ('time_left', 'not_before')):
            return 1000.0
        return value


def opened(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a row without NULLs, with the JSON texts among them parsed, and times as texts."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if value is None:
            continue
        if isinstance(value, str) and value[:1] in '{[' and value:
            try:
                found[name] = {'$json': json.loads(value)}
                continue
            except ValueError:
                pass
        found[name] = value if isinstance(value, (str, int, float, bool)) else str(value)
    return found


class Recorder:
    """Notes of one run. Each kind of note keeps what has a form that was not seen before."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.operations: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.servers: list[dict[str, Any]] = []
        self.hosts: list[dict[str, Any]] = []
        self.messages: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self.replies: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        self.contexts: list[dict[str, Any]] = []
        self._seen: dict[object, set[str]] = {}

    def is_new(self, subject: object, value: object) -> bool:
        """Return whether a value has a part of a form that no earlier value of this subject had."""
        seen = self._seen.setdefault(subject, set())
        found = set(forms(value))
        fresh = not found <= seen
        seen |= found
        return fresh

    # -- noting ---------------------------------------------------------------------------------------------------
    def install(self, patch: Any) -> None:
        """Note each step of each flow, each accepted operation and each message from now on."""
        for kind, flow in flows.FLOWS.items():
            steps = [
                replace(
                    step,
                    do=self._noting(kind, index, 'do', step.do),
                    undo=step.undo and self._noting(kind, index, 'undo', step.undo),
                )
                for index, step in enumerate(flow.steps)
            ]
            patch.setattr(type(flow), 'steps', tuple(steps))
        insert, send = operations.insert, DirectTransport.send

        def inserted(conn: Any, rows: Any) -> None:
            rows = list(rows)
            insert(conn, rows)
            for row in rows:
                self._operation(conn, row.uuid, row.kind, 'accepted')

        def sent(
            transport: Any,
            kind: str,
            topic: str,
            namespace: str | None,
            server: str | None,
            version: str,
            ctxt: Any,
            method: str,
            args: dict[str, Any],
        ) -> Any:
            wire = json.loads(
                json.dumps(
                    [
                        ctxt.to_dict(),
                        {name: transport._entities.serialize_entity(ctxt, value) for name, value in args.items()},
                    ]
                )
            )
            self.message(kind, topic, namespace, version, method, *wire)
            answer = send(transport, kind, topic, namespace, server, version, ctxt, method, args)
            if kind != 'cast':
                wire = json.loads(json.dumps(transport._entities.serialize_entity(ctxt, answer)))
                self._reply(topic, namespace, method, args, wire)
            return answer

        patch.setattr(operations, 'insert', inserted)
        patch.setattr(DirectTransport, 'send', sent)

    def _noting(self, kind: str, index: int, what: str, real: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(real)
        def step(work: Any) -> None:
            name = flows.FLOWS[kind].steps[index].name
            with work.db.read() as conn:
                self._operation(conn, work.uuid, kind, f'{index}.{name} {what}')
                if work.db.name != 'api' and work.instance_uuid:
                    self._server(conn, work.instance_uuid)
            with work.env.api.read() as conn:
                self._api_rows(conn, work.instance_uuid)
            real(work)

        return step

    def _operation(self, conn: Any, uuid: str, kind: str, at: str) -> None:
        table = cell_models.Operation.__table__
        row = conn.execute(sa.select(table).where(table.c.uuid == uuid)).mappings().first()
        if row is None:
            return
        found = opened(dict(row))
        args = found['args']['$json']
        key = (
            kind,
            at,
            tuple(sorted(args)),
            args.get('method', ''),
            row['slot'] == 'wait',
            bool(row['cancelled']),
            bool(row['failed']),
            bool(row['undoing']),
            row['attempt'] > 1,
        )
        with self.lock:
            if key not in self.operations:
                self.operations[key] = {'kind': kind, 'at': at, 'row': found}

    def _server(self, conn: Any, uuid: str) -> None:
        found: dict[str, Any] = {}
        for name in CELL_TABLES:
            table = cell_models.Base.metadata.tables[name]
            column = table.c.uuid if name == 'instances' else table.c.instance_uuid
            rows = [
                opened(dict(row))
                for row in conn.execute(sa.select(table).where(column == uuid, table.c.deleted == 0)).mappings()
            ]
            if rows:
                found[name] = rows
        with self.lock:
            if 'instances' in found and self.is_new('server', found):
                self.servers.append(found)

    def _api_rows(self, conn: Any, uuid: str) -> None:
        found = {}
        for name in API_TABLES:
            table = api_models.Base.metadata.tables[name]
            if rows := [
                opened(dict(row))
                for row in conn.execute(sa.select(table).where(table.c.instance_uuid == uuid)).mappings()
            ]:
                found[name] = rows
        with self.lock:
            if found and self.is_new('api', found):
                self.servers.append(found)

    def hosts_of(self, database: Any) -> None:
        """Note the rows of hosts and their devices in a cell database."""
        with database.read() as conn:
            for name in HOST_TABLES:
                table = cell_models.Base.metadata.tables[name]
                for row in conn.execute(sa.select(table)).mappings():
                    found = opened(dict(row))
                    with self.lock:
                        if self.is_new(('host', name), found):
                            self.hosts.append({name: [found]})

    def message(
        self,
        kind: str,
        topic: str,
        namespace: str | None,
        version: str,
        method: str,
        context: dict[str, Any],
        args: dict[str, Any],
    ) -> None:
        """Note a message as it is sent: its context and its arguments are JSON values."""
        of = (
            args.get('objname') or (args.get('objinst') or {}).get(NAME)
            if isinstance(args.get('objinst', {}), dict)
            else ''
        )
        key = (topic, namespace, method, of or '', args.get('objmethod', ''))
        with self.lock:
            kept = self.messages.setdefault(key, [])
            if len(kept) < MOST_FORMS and self.is_new(('message', *key), args):
                kept.append(
                    {
                        'kind': kind,
                        'topic': topic,
                        'namespace': namespace,
                        'version': version,
                        'method': method,
                        'args': args,
                    }
                )
            if self.is_new('context', context):
                self.contexts.append(context)

    def _reply(self, topic: str, namespace: str | None, method: str, args: dict[str, Any], reply: Any) -> None:
        key = (topic, namespace, method, args.get('objname', ''), args.get('objmethod', ''))
        with self.lock:
            kept = self.replies.setdefault(key, [])
            if reply is not None and len(kept) < MOST_FORMS and self.is_new(('reply', *key), reply):
                kept.append({'topic': topic, 'namespace': namespace, 'method': method, 'reply': reply})

    # -- writing --------------------------------------------------------------------------------------------------
    def write(self, directory: Path) -> None:
        """Write all notes as JSON files."""
        pool = Pool()
        rows = [
            self.operations[key]
            for key in sorted(self.operations, key=lambda key: (key[0], key[1] != 'accepted', *key[1:]))
        ]
        notes = {
            'declared': declared(),
            'operations': [pool.row(Steady().of(one)) for one in rows],
            'servers': [pool.put(Steady().of(one)) for one in self.servers],
            'hosts': [pool.put(Steady().of(one)) for one in self.hosts],
            'messages': [
                pool.put(Steady().of(one)) for key in sorted(self.messages, key=str) for one in self.messages[key]
            ],
            'replies': [
                pool.put(Steady().of(one)) for key in sorted(self.replies, key=str) for one in self.replies[key]
            ],
            'contexts': [Steady().of(one) for one in self.contexts],
        }
        notes['objects'] = pool.objects
        directory.mkdir(parents=True, exist_ok=True)
        for name, value in notes.items():
            (directory / f'{name}.json').write_text(_lines(value) + '\n', encoding='utf-8')


class Pool:
    """Objects by name. An object is stored if its keys, or the type of one of its values, are new."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._names: dict[tuple[str, frozenset[str]], str] = {}
        self._types: dict[str, set[str]] = {}
        self._counts: dict[str, int] = {}

    def put(self, value: Any) -> Any:
        """Return a value with the name of an object in place of each object."""
        if isinstance(value, list):
            return [self.put(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        found = {key: self.put(inner) for key, inner in value.items()}
        name = value.get(NAME) or ('Context' if 'user_identity' in value else None)
        if name is None:
            return found
        types = set(forms(found))
        key = (name, frozenset(form.partition('=')[0] for form in types))
        seen = self._types.setdefault(name, set())
        if key not in self._names or not types <= seen:
            self._counts[name] = self._counts.get(name, 0) + 1
            self._names[key] = f'{name} {self._counts[name]}'
            self.objects[self._names[key]] = found
            seen |= types
        return {'$object': self._names[key]}

    def row(self, record: dict[str, Any]) -> Any:
        """Return the record of an operation. Arguments and outputs are stored once, too, if they are equal."""
        found = self.put(record)
        for column in ('args', 'outputs'):
            value = found['row'][column]
            if len(text := json.dumps(value['$json'])) > SHORT:
                key = (column, frozenset((text,)))
                if key not in self._names:
                    self._counts[column] = self._counts.get(column, 0) + 1
                    self._names[key] = f'{column} {self._counts[column]}'
                    self.objects[self._names[key]] = value['$json']
                value['$json'] = {'$object': self._names[key]}
        return found


def is_read(cls: Any) -> bool:
    """Return whether daemons read objects of a class. Nobody of ours reads notifications."""
    module = cls.__module__
    return module.startswith('kilonova.objects') and not module.startswith('kilonova.objects.notifications')


def declared() -> dict[str, Any]:
    """Return what this tree declares: kinds of operations, messages, objects, columns and errors."""
    interfaces = {}
    for interface in INTERFACES:
        methods = {
            name: {
                'kind': func.rpc.kind,
                'since': func.rpc.since,  # type: ignore[attr-defined]
                'arguments': sorted(interface.arguments(name)),
            }
            for name, func in interface.methods().items()
        }
        interfaces[interface.__name__] = {
            'topic': interface.topic,
            'namespace': interface.namespace,
            'version': interface.version,
            'methods': methods,
        }
    return {
        'flows': {
            kind: {
                'steps': [step.name for step in flow.steps],
                'outputs': sorted(one.name for one in fields(flow.outputs)),
            }
            for kind, flow in sorted(flows.FLOWS.items())
        },
        'interfaces': interfaces,
        'objects': {
            name: {'version': found[0].VERSION, 'fields': sorted(found[0].fields)}
            for name, found in sorted(ovo.VersionedObjectRegistry.obj_classes().items())
            if is_read(found[0])
        },
        'columns': {
            name: {
                table.name: sorted(column.name for column in table.columns)
                for table in base.metadata.sorted_tables
                if not table.name.startswith('shadow_')
            }
            for name, base in (('api', api_models.Base), ('cell', cell_models.Base))
        },
        'errors': {
            module: sorted(
                name
                for name, value in vars(__import__(module, fromlist=['*'])).items()
                if isinstance(value, type) and issubclass(value, errors.KilonovaError) and value.__module__ == module
            )
            for module in errors.REMOTE_MODULES
        },
    }


def _lines(value: Any) -> str:
    """Return JSON with one line for each element of the outermost list or dict."""
    if isinstance(value, dict):
        inner = ',\n'.join(f'{json.dumps(key)}: {json.dumps(one)}' for key, one in value.items())
        return f'{{\n{inner}\n}}'
    return '[\n' + ',\n'.join(json.dumps(one) for one in value) + '\n]'
