"""The conductor and the database of a cell, for tests of what computes do: the real endpoint over real rows in memory.

    cell = Cell()
    server = cell.new_instance()                        # as the API made it: a row
    ComputeManager(conf, conductor=cell, ctxt=cell.context, …)
    cell.unanswered['save_instance'] = 1                # the next one is lost on its way
    assert cell.instances[server.uuid]['vm_state'] == 'active'
    cell.close()

Messages are delivered as JSON in the caller's thread. All cells of a process take turns with one database.
"""

from __future__ import annotations

import functools
import json
import threading
import uuid as uuidlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import sqlalchemy as sa

from kilonova import errors, objects
from kilonova.conductor.manager import ConductorEndpoint
from kilonova.context import RequestContext
from kilonova.db import engine, migration
from kilonova.db.models import cell as models
from kilonova.db.queries import claims, instances, migrations, operations, resumes
from kilonova.rpc.conductor import Conductor
from kilonova.rpc.interface import Client
from kilonova.rpc.transport import DirectTransport
from tests.fixtures.servers import put_server

IMAGE = 'a0000000-0000-4000-8000-000000000001'
OPERATIONS = operations.operations
DEVICES = models.PciDevice.__table__
WAITING = sa.select(resumes.actions.c.instance_uuid, resumes.events.c.details).join_from(
    resumes.actions, resumes.events, resumes.events.c.action_id == resumes.actions.c.id
)
EMPTY = [f'DELETE FROM {table.name}' for table in reversed(migration.METADATA['cell'].sorted_tables)]


@functools.cache
def database() -> engine.Database:
    """The database of the process's cells: each statement is compiled once."""
    made = engine.Database('sqlite://', 'cell')
    migration.sync(made, 'cell')
    return made


@functools.cache
def endpoint() -> ConductorEndpoint:
    """It keeps nothing between calls."""
    databases: Any = SimpleNamespace(main=database)
    cells: Any = None
    return ConductorEndpoint(databases, cells)


class Row(Mapping[str, Any]):
    """One row, as it is at the time that it is read; one that is deleted, too."""

    def __init__(self, table: sa.Table, number: int) -> None:
        self._table, self._number = table, number

    def __getitem__(self, name: str) -> Any:
        with database().read() as conn:
            return conn.execute(sa.select(self._table.c[name]).where(self._table.c.id == self._number)).scalar_one()

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.c.keys())

    def __len__(self) -> int:
        return len(self._table.c)

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, columns: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Write columns, whatever the rules say."""
        with database().write() as conn:
            given = {**(columns or {}), **values}
            conn.execute(self._table.update().where(self._table.c.id == self._number).values(given))


class Rows(Mapping[Any, Row]):
    """The rows of a table that aren't deleted, by one of its columns."""

    def __init__(self, model: Any, by: str) -> None:
        self._table, self._by = model.__table__, model.__table__.c[by]

    def _numbers(self) -> dict[Any, int]:
        table = self._table
        with database().read() as conn:
            found = conn.execute(sa.select(self._by, table.c.id).where(table.c.deleted == 0).order_by(table.c.id))
            return dict(found.all())

    def __getitem__(self, key: Any) -> Row:
        return Row(self._table, self._numbers()[key])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._numbers())

    def __len__(self) -> int:
        return len(self._numbers())

    def __delitem__(self, key: Any) -> None:
        self[key].update(deleted=self[key]['id'])


class Cell(Client):
    """A client of the conductor, as computes have it, and what tests look at.

    An operation's row stands where its key says from the first message with this key on, and is undone from the first
    check on that says so: tests order as conductors do, who write the row before. It makes no server busy.
    ``unanswered``: {method: how many calls of it don't arrive}, ``errors``: {method: what its next call raises}; an
    object's method is ``Service.save``. ``checks``, ``claims`` and ``saves`` are those that arrived.
    """

    current: ClassVar[Cell | None] = None

    def __init__(self) -> None:
        self.instances = Rows(models.Instance, 'uuid')
        self.extras = Rows(models.InstanceExtra, 'instance_uuid')
        self.devices = Rows(models.PciDevice, 'id')
        self.nodes = Rows(models.ComputeNode, 'uuid')
        self.services = Rows(models.Service, 'host')
        self.migrations = Rows(models.Migration, 'uuid')
        self.checks: list[str] = []
        self.claims: list[dict[str, Any]] = []
        self.saves: list[dict[str, Any]] = []
        self.object_calls: list[str] = []
        self.changes: dict[str, list[str]] = {}
        self.unanswered: dict[str, int] = {}
        self.errors: dict[str, Exception] = {}
        self._closed, self._keys, self._lock = False, set[str](), threading.Lock()
        with database().write() as conn:
            connection: Any = conn.connection.driver_connection
            for statement in EMPTY:
                connection.execute(statement)
        transport = DirectTransport(objects.base.Serializer(), self._message)
        transport.register('conductor', 'ctl1', [(Conductor, endpoint())])
        super().__init__(Conductor, transport)
        Cell.current = self

    def close(self) -> None:
        """What still runs of the test's computes is answered nothing."""
        self._closed, Cell.current = True, None

    def context(self) -> RequestContext:
        """A compute's own: its objects ask this conductor."""
        made = RequestContext(is_admin=True, overwrite=False)
        made.indirection = self
        return made

    # -- messages ------------------------------------------------------------------------------------------------------
    def _message(
        self,
        kind: str,
        topic: str,
        server: str | None,
        method: str,
        args: dict[str, Any],
        deliver: Callable[[], Any],
    ) -> Any:
        name = method
        if method == 'object_action':
            name = f'{args["objinst"].obj_name()}.{args["objmethod"]}'
            self.changes[name] = sorted(args['objinst'].obj_what_changed())
        elif method == 'object_class_action_versions':
            name = f'{args["objname"]}.{args["objmethod"]}'
        if name != method:
            self.object_calls.append(name)
        if self._closed or self.unanswered.get(name):
            self.unanswered[name] = self.unanswered.get(name, 1) - 1
            raise errors.Unanswered(who='conductor', reason='silence')
        if name in self.errors:
            raise self.errors.pop(name)
        if method == 'check_key':
            self.checks.append(args['key'])
            self._stand(args['key'], args['undo'])
        elif method in ('claim_instance', 'save_instance'):
            request = args['claim' if method == 'claim_instance' else 'save'].primitive_data()
            (self.claims if method == 'claim_instance' else self.saves).append(json.loads(json.dumps(request)))
            self._stand(request.get('key'))
        return deliver()

    def _stand(self, key: str | None, undo: bool = False) -> None:
        if not key or (key in self._keys and not undo):
            return
        operation, position, _step, attempt = claims.parse(key)
        where = {'position': position, 'attempt': attempt, 'undoing': undo}
        with self._lock, database().write() as conn:
            found = conn.execute(OPERATIONS.update().where(OPERATIONS.c.uuid == operation).values(where)).rowcount
            if not found and key not in self._keys:
                conn.execute(_row(operation, '', operation, where))
            self._keys.add(key)

    def end(self, operation: str) -> None:
        """The operation is over: its row is gone."""
        with database().write() as conn:
            conn.execute(OPERATIONS.delete().where(OPERATIONS.c.uuid == operation))

    def occupy(self, uuid: str) -> None:
        """An operation of the server, until ``leave``."""
        with database().write() as conn:
            conn.execute(_row(str(uuidlib.uuid4()), uuid, operations.RUN, {}))

    def leave(self) -> None:
        """All servers' operations are over."""
        with database().write() as conn:
            conn.execute(OPERATIONS.delete().where(OPERATIONS.c.slot == operations.RUN))

    # -- rows ----------------------------------------------------------------------------------------------------------
    def instance(self, uuid: str) -> objects.Instance:
        """The server as a conductor would send it."""
        ctxt = new_context()
        ctxt.cell, ctxt.indirection = database(), None
        found: objects.Instance = objects.Instance.get_by_uuid(ctxt, uuid)
        ctxt.cell, ctxt.indirection = None, self
        return found

    def in_task(self, uuid: str, task_state: str | None, vm: str = 'active') -> objects.Instance:
        """The server in these states, as an operation on it would be sent."""
        self.instances[uuid].update(task_state=task_state, vm_state=vm)
        return self.instance(uuid)

    def new_instance(self, gpus: int = 1, of: objects.Flavor | None = None, **values: Any) -> objects.Instance:
        """A server that a host is to build."""
        uuid, made = str(uuidlib.uuid4()), of or flavor()
        columns = {
            'uuid': uuid,
            'user_id': 'u',
            'project_id': 'p',
            'image_ref': IMAGE,
            'display_name': 'vm',
            'hostname': 'vm',
            'vm_state': 'building',
            'task_state': 'scheduling',
            'power_state': 0,
            'config_drive': '',
            'memory_mb': made.memory_mb,
            'vcpus': made.vcpus,
            'root_gb': made.root_gb,
            'ephemeral_gb': 0,
            'instance_type_id': made.id,
            **values,
        }
        current = json.dumps({'cur': made.stored_primitive(), 'old': None, 'new': None})
        extra = {'flavor': current, 'pci_requests': requests(uuid, gpus).to_column()}
        with database().write() as conn:
            put_server(conn, columns, extra, {'image_os_shutdown_timeout': '7'})
        return self.instance(uuid)

    def set_system_metadata(self, uuid: str, **values: str | None) -> None:
        """None: the entry goes."""
        with database().write() as conn:
            instances.set_system_metadata(conn, uuid, values)

    def new_migration(self, uuid: str, source: Any, kind: str = 'resize', **values: Any) -> objects.Migration:
        """``source``: a manager. The destination is written by prep_resize's claim."""
        row = {
            'uuid': str(uuidlib.uuid4()),
            'instance_uuid': uuid,
            'status': 'pre-migrating',
            'migration_type': kind,
            'source_compute': source.host.name,
            'source_node': source.host.tracker.nodename,
            'old_instance_type_id': self.instances[uuid]['instance_type_id'],
            'new_instance_type_id': 2,
            **values,
        }
        with database().write() as conn:
            migrations.create(conn, row)
        return self.migration(row['uuid'])

    def migration(self, uuid: str) -> objects.Migration:
        """The move as a conductor would send it."""
        with database().read() as conn:
            row = migrations.get(conn, uuid=uuid)
        assert row is not None
        return objects.Migration.from_row(new_context(), row)

    # -- looking -------------------------------------------------------------------------------------------------------
    def held(self, uuid: str) -> dict[str, str]:
        """{address: status} of a server's devices on all hosts; addresses of several hosts differ in tests."""
        wanted = sa.select(DEVICES.c.address, DEVICES.c.status).where(DEVICES.c.instance_uuid == uuid)
        with database().read() as conn:
            return dict(conn.execute(wanted.order_by(DEVICES.c.id)).all())

    def events(self) -> list[tuple[str, str]]:
        """(event, result) of all saves that tell of one."""
        return [(save['event']['event'], save['event']['result']) for save in self.saves if save.get('event')]

    @property
    def waiting(self) -> dict[str, str]:
        """{server that waits for its start after its host went down: why}."""
        with database().read() as conn:
            return dict(conn.execute(WAITING).all())


def _row(operation: str, server: str, slot: str, where: dict[str, Any]) -> sa.Insert:
    return OPERATIONS.insert().values(
        uuid=operation, instance_uuid=server, slot=slot, kind='test', args='{}', context='{}', **where
    )


def new_context() -> RequestContext:
    """A user's, as a host's endpoint gets it: the objects of its message ask the test's conductor."""
    made = RequestContext(user_id='u', project_id='p', roles=['member', 'reader'], overwrite=False)
    made.indirection = Cell.current
    return made


def flavor(number: int = 1, vcpus: int = 8, memory_mb: int = 32768, root_gb: int = 16) -> objects.Flavor:
    made = objects.Flavor(
        id=number,
        name=f'tmp{number}',
        flavorid=f'tmp{number}',
        vcpus=vcpus,
        memory_mb=memory_mb,
        root_gb=root_gb,
        ephemeral_gb=0,
        swap=0,
        rxtx_factor=1.0,
        disabled=False,
        is_public=True,
        extra_specs={},
    )
    made.obj_reset_changes()
    return made


def requests(uuid: str, count: int, rp_uuids: str | None = None) -> objects.InstancePCIRequests:
    spec = {'vendor_id': '10de', 'product_id': '13f1'}
    if rp_uuids:
        spec['rp_uuids'] = rp_uuids
    wanted = (
        []
        if not count
        else [
            objects.InstancePCIRequest(
                count=count,
                spec=[spec],
                alias_name='gpu',
                is_new=False,
                request_id=str(uuidlib.uuid4()),
                requester_id=None,
                numa_policy='legacy',
            )
        ]
    )
    return objects.InstancePCIRequests(instance_uuid=uuid, requests=wanted)
