"""Flows on real rows: a conductor's databases and Placement, and in place of the other daemons notes of what they are
asked.

    site.put('active')                                          # a server on gpu1
    site.accept('stop', {'clean_shutdown': True})
    site.go()                                                   # taken and run, as a worker does
    assert site.calls() == [('gpu1', 'stop_instance', {…})]
    assert site.state() == ('active', 'powering-off')

``site.answers[method]`` is what a host answers: a value, an error, a function of ``Sent``, or a list of these, one a
call. What a host writes itself isn't written unless such a function does.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from kilonova import objects
from kilonova.conductor import flows
from kilonova.conductor.environment import Environment
from kilonova.conductor.leases import Leases
from kilonova.conductor.work import WaitingForHostSlot, Work
from kilonova.conductor.workers import OperationSlots
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import cells as cell_queries
from kilonova.db.queries import (
    compute_nodes,
    instances,
    migrations,
    operation_leases,
    operations,
    request_specs,
    services,
)
from kilonova.pci.request import group_name
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import Client
from kilonova.rpc.notify import NOTIFICATIONS
from kilonova.rpc.scheduler import Scheduler
from tests.fixtures.placement import Placement
from tests.fixtures.servers import put_server, set_state
from tests.unit.db.rows import node
from tests.unit.scheduler.builders import flavor, spec, uuid

HOSTS = ('gpu1', 'gpu2', 'gpu3')
SERVER, MIGRATION, IMAGE = uuid('server'), uuid('migration'), uuid('image')
SMALL, LARGE = flavor(id=1, vcpus=1), flavor(id=2, vcpus=2, name='tmp2', flavorid='tmp2')
DISK = {
    'uuid': uuid('disk'),
    'source_type': 'image',
    'destination_type': 'local',
    'boot_index': 0,
    'image_id': IMAGE,
    'device_name': '/dev/vda',
}
# System metadata of a shelved server.
SHELVED = {
    'shelved_at': '2026-01-01T00:00:00',
    'shelved_image_id': IMAGE,
    'shelved_host': 'gpu1',
    'image_min_ram': '1',
    'image_os_type': 'linux',
}
# Of a request for one device.
GROUP = group_name(uuid('request 0'), 0)
SERIALIZER = objects.base.Serializer()


# Messages and steps of one test: what goes on for ever fails.
MOST = 200


class Bounded(Leases):
    """Each step is checked: so many, and no more."""

    checks = 0

    def check(self, db: engine.Database, owner: str) -> None:
        self.checks += 1
        assert self.checks < MOST, 'it goes on for ever'
        super().check(db, owner)


@dataclass
class Sent:
    """A message as its receiver gets it."""

    server: str | None
    method: str
    args: dict[str, Any]


class Site:
    """``hosts``: what was asked of them, ``asked`` of the scheduler; ``emitted``: the notifications; ``woken``
    and ``finished_works``: what the runner was asked, as (rows, urgent) and (row, seconds until its next look)."""

    def __init__(self, directory: pathlib.Path, migrated: pathlib.Path, placement: Placement) -> None:
        for source, name in (('api', 'api'), ('cell', 'cell'), ('cell', 'cell0')):
            shutil.copy(migrated / f'{source}.sqlite', directory / f'{name}.sqlite')
        urls = {name: f'sqlite:///{directory}/{name}.sqlite' for name in ('api', 'cell', 'cell0')}
        self.databases = engine.Databases(urls['api'], urls['cell'])
        cell_queries.map_cell0(self.databases, urls['cell0'])
        self.cell_uuid = cell_queries.create_cell(
            self.databases, transport_url='fake://', name='cell1', database_connection=urls['cell']
        )
        cells = cell_queries.CellDatabases(self.databases, refresh=None)
        self.api, self.cell = self.databases.api(), cells.by_uuid(self.cell_uuid)
        self.cell0 = cells.by_uuid(cell_queries.CELL0_UUID)
        self.placement, self.answers = placement, {}
        # Each host changes the server: its progress counts them.
        self.touching = False
        self.sent: list[Sent] = []
        self.emitted: list[tuple[str, dict[str, Any]]] = []
        self.woken: list[tuple[list[str], bool]] = []
        self.finished_works: list[tuple[str, float | None]] = []
        self.resumed: list[str] = []
        self.cancelled: list[str] = []
        self.images = Images()
        conf: Any = SimpleNamespace(
            service_down_time=60, shelved_offload_time=0, conductor=SimpleNamespace(host_boot_resume_timeout=3600)
        )
        notify: Any = SimpleNamespace(enabled=True, emit=self._emit)
        self.env = Environment(
            conf=conf,
            databases=self.databases,
            cells=cells,
            scheduler=Client(Scheduler, self),
            compute=Client(Compute, self),
            placement=placement.client,
            images=self.images,  # type: ignore[arg-type]
            ping=lambda: None,
            max_attempts=3,
            host='ctl1',
            notify=notify,
        )
        self.env.runner = self
        self.env.leases = Bounded('ctl1', 60, lambda owner: None)
        self.env.slots = OperationSlots(2, threading.Condition(), lambda work: self.resumed.append(work.uuid))
        self.ctxt = RequestContext(user_id='alice', project_id='demo', request_id='req-1', overwrite=False)
        for database in (self.api, self.cell):
            self.env.leases.renew(database)
        with self.cell.write() as conn:
            for number, host in enumerate(HOSTS, 1):
                services.create(
                    conn,
                    {'host': host, 'binary': 'nova-compute', 'topic': 'compute', 'last_seen_up': instances.utcnow()},
                )
                compute_nodes.get_or_create(
                    conn, {**node(host), 'uuid': uuid(host), 'hypervisor_hostname': f'node{number}'}
                )

    # -- the other daemons --------------------------------------------------------------------------------------------
    def send(
        self,
        kind: str,
        topic: str,
        namespace: str | None,
        server: str | None,
        version: str,
        ctxt: RequestContext,
        method: str,
        args: dict[str, Any],
    ) -> Any:
        """A transport."""
        assert len(self.sent) < MOST, 'it goes on for ever'
        carried = json.loads(json.dumps(SERIALIZER.serialize_entity(ctxt, args)))
        self.sent.append(Sent(server, method, SERIALIZER.deserialize_entity(ctxt, carried)))
        if self.touching and topic == 'compute':
            table = instances.instances
            with self.cell.write() as conn:
                conn.execute(table.update().values(progress=sa.func.coalesce(table.c.progress, 0) + 1))
        answer = self.answers.get(method)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        if isinstance(answer, Exception):
            raise answer
        return answer(self.sent[-1]) if callable(answer) else answer

    def calls(self) -> list[tuple[str | None, str, dict[str, Any]]]:
        """All that was asked since the last time."""
        found = [
            (sent.server, sent.method, {name: shown(value) for name, value in sent.args.items()}) for sent in self.sent
        ]
        self.sent.clear()
        return found

    def asked(self) -> list[str]:
        """The same in short: 'gpu1 stop_instance'."""
        found = [f'{sent.server or "scheduler"} {sent.method}' for sent in self.sent]
        self.sent.clear()
        return found

    def _emit(self, ctxt: RequestContext, event: str, **facts: Any) -> None:
        assert event in NOTIFICATIONS
        self.emitted.append((event, {name: shown(value) for name, value in facts.items()}))

    # -- the runner ---------------------------------------------------------------------------------------------------
    def finished(self, work: Work[Any], retry_in: float | None = None) -> None:
        """See ``environment.RunnerInterface``."""
        self.finished_works.append((work.uuid, retry_in))

    def wake(self, db: engine.Database, uuids: Iterable[str], urgent: bool = False) -> None:
        """See ``environment.RunnerInterface``."""
        self.woken.append((list(uuids), urgent))

    def was_cancelled(self, db: engine.Database, uuid: str) -> None:
        """See ``environment.RunnerInterface``."""
        self.cancelled.append(uuid)

    def holds(self, uuid: str) -> bool:
        """See ``environment.RunnerInterface``."""
        return False

    # -- hosts --------------------------------------------------------------------------------------------------------
    def silence(self, host: str, *, forced: bool = False) -> None:
        """A host counts as down: it hasn't reported for long, or an operator said so."""
        with self.cell.write() as conn:
            row = services.get(conn, host=host, binary='nova-compute')
            assert row is not None
            services.update(
                conn,
                row['id'],
                {'forced_down': True}
                if forced
                else {'last_seen_up': instances.utcnow() - instances.datetime.timedelta(seconds=1000)},
            )
        self.env.liveness.look(self.cell)

    # -- the server ---------------------------------------------------------------------------------------------------
    def instance(self, **values: Any) -> objects.Instance:
        """As the API makes it; ``values`` besides."""
        given = {
            'power_state': 1,
            'availability_zone': 'zone0',
            'vm_state': 'building',
            'task_state': 'scheduling',
            'flavor': SMALL,
            'old_flavor': None,
            'new_flavor': None,
            'metadata': {'role': 'db'},
            'system_metadata': {'image_min_ram': '1'},
            'pci_requests': None,
            'numa_topology': None,
            'migration_context': None,
            **values,
        }
        made = objects.Instance(
            self.ctxt,
            uuid=SERVER,
            user_id='alice',
            project_id='demo',
            display_name='s',
            image_ref=IMAGE,
            created_at=instances.utcnow(),
            **given,
        )
        made.set_flavor(made.flavor)
        return made

    def put(self, vm_state: str, task_state: str | None = None, **values: Any) -> None:
        """A server on gpu1, with a disk, and its stored request spec."""
        made = self.instance(vm_state=vm_state, task_state=task_state, **{'host': 'gpu1', 'node': 'node1', **values})
        rows = made.to_rows()
        with self.cell.write() as conn:
            put_server(conn, rows.values, rows.extra, rows.system_metadata, rows.metadata, ['gold'], [DISK])
            set_state(conn, SERVER, vm_state=vm_state, task_state=task_state)
        with self.api.write() as conn:
            request_specs.create(conn, [(SERVER, self.spec(made.flavor).to_json())])

    def spec(self, of: objects.Flavor = SMALL, **values: Any) -> objects.RequestSpec:
        """A request spec of the server."""
        made = spec(instance_uuid=SERVER, image={'id': IMAGE}, **values)
        made.flavor = of
        return made

    def put_moved(
        self, vm_state: str = 'resized', task_state: str | None = None, status: str = 'finished', **values: Any
    ) -> None:
        """A server that was resized from gpu1 to gpu2, where it is now."""
        self.put(
            vm_state,
            task_state,
            **{
                'host': 'gpu2',
                'node': 'node2',
                'flavor': LARGE,
                'old_flavor': SMALL,
                'new_flavor': LARGE,
                'migration_context': objects.MigrationContext(instance_uuid=SERVER, migration_id=1),
                'system_metadata': {'old_vm_state': 'active'},
                **values,
            },
        )
        with self.cell.write() as conn:
            migrations.create(
                conn,
                {
                    'uuid': MIGRATION,
                    'instance_uuid': SERVER,
                    'status': status,
                    'migration_type': 'resize',
                    'source_compute': 'gpu1',
                    'source_node': 'node1',
                    'dest_compute': 'gpu2',
                    'dest_node': 'node2',
                    'old_instance_type_id': 1,
                    'new_instance_type_id': 2,
                },
            )

    def hold_moved(self) -> None:
        """What such a server and its move have in Placement."""
        self.inventory('gpu2', 2)
        self.placement.client.claim(
            MIGRATION, {uuid('gpu1'): {'resources': {'VCPU': 1}}}, project_id='demo', user_id='alice'
        )

    def flavors(self) -> dict[str, int | None]:
        """The ids of the server's flavors, by 'cur', 'old' and 'new'."""
        stored = json.loads(self.row()['extra_flavor'])
        return {name: envelope and envelope['nova_object.data']['id'] for name, envelope in stored.items()}

    def stored_spec(self) -> int:
        """The flavor of the stored request spec."""
        with self.api.read() as conn:
            row = request_specs.get(conn, SERVER)
        assert row is not None
        found: int = objects.RequestSpec.from_json(row['spec'], self.ctxt).flavor.id
        return found

    def row(self, database: engine.Database | None = None) -> dict[str, Any]:
        """The server's row."""
        with (database or self.cell).read() as conn:
            found = instances.get(conn, SERVER, deleted=True)
        assert found is not None
        return found

    def state(self, database: engine.Database | None = None) -> tuple[str, str | None]:
        """vm and task state."""
        row = self.row(database)
        return row['vm_state'], row['task_state']

    def system_metadata(self) -> dict[str, str]:
        with self.cell.read() as conn:
            return instances.get_system_metadata(conn, SERVER)

    # -- rows ---------------------------------------------------------------------------------------------------------
    def accept(
        self, kind: str, args: dict[str, Any] | None = None, database: engine.Database | None = None, **values: Any
    ) -> str:
        """An operation row with its action."""
        database = database or self.cell
        row = replace(operations.OperationRow.new(self.ctxt, kind, SERVER), args=args or {}, **values)
        with database.write() as conn:
            operations.insert(conn, [row])
            if database is self.cell:
                instances.start_action(
                    conn, SERVER, {'action': kind, 'request_id': 'req-1', 'user_id': 'alice', 'project_id': 'demo'}
                )
        self.operation = row.uuid
        return row.uuid

    def work(self, operation: str | None = None, database: engine.Database | None = None) -> Work[Any]:
        """The row in this conductor's hands."""
        database, operation = database or self.cell, operation or self.operation
        table = operations.operations
        with database.write() as conn:
            conn.execute(table.update().where(table.c.uuid == operation).values(not_before=0))
        owner = self.env.leases.owner_in(database)
        (row,) = operation_leases.take(database, [operation], owner)
        return Work(row, database, self.env, owner, flows.FLOWS[row.kind].outputs)

    def go(self, operation: str | None = None, database: engine.Database | None = None) -> Work[Any]:
        """Take the row and run its flow."""
        work = self.work(operation, database)
        with contextlib.suppress(WaitingForHostSlot):
            flows.FLOWS[work.kind].run(work)
        return work

    def update(self, **values: Any) -> None:
        """Columns of the operation's row, as another process would write them."""
        table = operations.operations
        with self.cell.write() as conn:
            conn.execute(table.update().where(table.c.uuid == self.operation).values(**values))

    def rows(self, database: engine.Database | None = None) -> list[operations.OperationRow]:
        """All operations of the server."""
        with (database or self.cell).read() as conn:
            return operations.of_instance(conn, SERVER)

    def kept(self, database: engine.Database | None = None) -> operations.OperationRow | None:
        """The operation's row, None once it is ended."""
        with (database or self.cell).read() as conn:
            return operations.get(conn, self.operation)

    def releases(self) -> list[tuple[str | None, dict[str, Any]]]:
        """What is still to be given back: (the host that it waits for, what is done then)."""
        return [
            (row.host, shown(SERIALIZER.deserialize_entity(self.ctxt, row.args)))
            for row in self.rows()
            if row.kind == 'release'
        ]

    def action(self, database: engine.Database | None = None) -> str | None:
        """'under way', 'done' or the message of the action."""
        with (database or self.cell).read() as conn:
            row = conn.execute(sa.select(instances.actions)).mappings().one()
        return row['message'] or ('done' if row['finish_time'] else 'under way')

    def events(self, database: engine.Database | None = None) -> list[tuple[str, str, str | None, str | None]]:
        """(event, result, host, details) of the action."""
        table = instances.action_events
        with (database or self.cell).read() as conn:
            return [
                tuple(row)
                for row in conn.execute(
                    sa.select(table.c.event, table.c.result, table.c.host, table.c.details).order_by(table.c.id)
                )
            ]

    def faults(self, database: engine.Database | None = None) -> list[tuple[int, str, str | None]]:
        """(code, message, host), the oldest first."""
        table = instances.faults
        with (database or self.cell).read() as conn:
            return [
                tuple(row)
                for row in conn.execute(sa.select(table.c.code, table.c.message, table.c.host).order_by(table.c.id))
            ]

    def migration(self) -> dict[str, Any]:
        """The one that there is."""
        with self.cell.read() as conn:
            return dict(conn.execute(sa.select(cell_models.Migration.__table__)).mappings().one())

    def mapping(self) -> dict[str, Any] | None:
        """The server's mapping."""
        with self.api.read() as conn:
            row = conn.execute(sa.select(api_models.InstanceMapping.__table__)).mappings().first()
        return dict(row) if row else None

    # -- the scheduler and Placement ----------------------------------------------------------------------------------
    def selection(
        self,
        host: str,
        *,
        vcpus: int = 1,
        zone: str | None = 'zone1',
        memory_mb: int | None = 999,
        cell: str | None = None,
    ) -> objects.Selection:
        """A host that the scheduler chose, with one device."""
        limits = objects.SchedulerLimits.from_dict({'memory_mb': memory_mb}) if memory_mb else None
        return objects.Selection(
            compute_node_uuid=uuid(host),
            service_host=host,
            nodename=f'node{host[-1]}',
            cell_uuid=cell or self.cell_uuid,
            limits=limits,
            availability_zone=zone,
            allocation_request=json.dumps(
                {
                    'allocations': {uuid(host): {'resources': {'VCPU': vcpus}}},
                    'mappings': {GROUP: [uuid(f'device of {host}')]},
                }
            ),
            allocation_request_version='1.36',
        )

    def choose(self, *hosts: str, **values: Any) -> None:
        """What the scheduler answers from now on."""
        found = [self.selection(host, **values) for host in hosts]
        self.answers['select_destinations'] = lambda sent: [found for _ in sent.args['instance_uuids']]

    def in_placement(self, name: str, make: Callable[[], None]) -> None:
        """What ``make`` puts there, made once."""
        if not self.placement.restore(name):
            make()
            self.placement.keep(name)
        self.env.placement = self.placement.client
        self.placement.requests.clear()

    def inventory(self, held: str | None = 'gpu1', vcpus: int = 1) -> None:
        """The hosts are in Placement, with room for four, and the server has its allocation on one of them."""

        def make() -> None:
            for host in HOSTS:
                self.placement.host(host, vcpus=4, uuid=uuid(host))
            if held is not None:
                self.placement.client.claim(
                    SERVER, {uuid(held): {'resources': {'VCPU': vcpus}}}, project_id='demo', user_id='alice'
                )

        self.in_placement(f'{vcpus} of {held}', make)

    def held(self) -> dict[str, dict[str, int]]:
        """{consumer, 'server' or 'move': {host: VCPUs}}."""
        names = {SERVER: 'server', MIGRATION: 'move'}
        return {
            names[consumer]: {host: amounts['VCPU'] for host, amounts in held.items()}
            for consumer, held in self.placement.allocations().items()
        }

    def close(self) -> None:
        self.databases.dispose()


class Images:
    """The image service. ``records`` by id; ``refusals``: what a delete comes to."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []
        self.refusals: list[Exception] = []
        self.queries: list[tuple[dict[str, Any], int]] = []

    def get(self, image_id: str) -> dict[str, Any]:
        from kilonova.errors import ImageNotFound

        if image_id not in self.records:
            raise ImageNotFound(image_id=image_id)
        return self.records[image_id]

    def find(self, query: dict[str, Any], limit: int) -> list[dict[str, Any]]:
        self.queries.append((query, limit))
        return list(self.records.values())

    def delete(self, image_id: str) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.deleted.append(image_id)
        self.records.pop(image_id, None)


def steps(kind: str) -> str:
    """The steps of a flow; those behind '<' go back to the one that is named there when a host refuses. Rows stand at
    a position and hosts know their work by a step's name, of the release before as well: both stay."""
    return ' '.join(step.name + (f'<{step.again_from}' if step.again_from else '') for step in flows.FLOWS[kind].steps)


def primitive(made: objects.base.KilonovaObject) -> Any:
    """As it stands in a row."""
    return json.loads(json.dumps(made.obj_to_primitive()))


def shown(value: Any) -> Any:
    """What a message says, in few words."""
    if type(value) in _SHOWN:
        return _SHOWN[type(value)](value)
    if isinstance(value, objects.base.KilonovaObject):
        return {name: shown(getattr(value, name)) for name in value.fields if name in value}
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    if isinstance(value, str) and value.count('/') == 2:
        # The key of a step, without the operation.
        return value.partition('/')[2] or value
    return value


def _instance(one: objects.Instance) -> str:
    more = [f'flavor {one.flavor.id}']
    if 'progress' in one and one.progress:
        more.append(f'progress {one.progress}')
    if 'metadata' in one and one.metadata:
        more.append(f'metadata {one.metadata}')
    return f'{one.vm_state}/{one.task_state} on {one.host if "host" in one else None}: {", ".join(more)}'


def _spec(one: objects.RequestSpec) -> str:
    return f'spec of flavor {one.flavor.id}{_devices(one)}'


def _devices(one: Any) -> str:
    if 'pci_requests' not in one or one.pci_requests is None:
        return ''
    return f' with {[spec.get("rp_uuids") for request in one.pci_requests.requests for spec in request.spec]}'


_SHOWN: dict[type, Callable[[Any], Any]] = {
    objects.Instance: _instance,
    objects.RequestSpec: _spec,
    objects.Migration: lambda one: f'{one.migration_type} {one.source_compute} to {one.dest_compute}: {one.status}',
    objects.Flavor: lambda one: f'flavor {one.id}',
    objects.SchedulerLimits: lambda one: one.to_dict(),
    objects.BlockDeviceMapping: lambda one: f'{one.device_name} of {one.instance_uuid}',
    objects.TagList: lambda one: [tag.tag for tag in one.objects],
}
