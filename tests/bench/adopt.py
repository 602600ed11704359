"""``make bench-adopt``: time and memory of ``kilonova-manage adopt check`` and ``adopt copy``, by number of servers.

A MariaDB server of its own has the databases of a Nova 34 with synthetic servers (N=10000), each with the rows that a
server of a few months has, and Kilonova's databases beside them. Printed: the check, the first copy, a second copy
after a hundredth of the servers has changed; wall seconds, CPU seconds, the greatest memory, and the same for a tenth
of the servers.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import sys
import tempfile
import time
import uuid as uuids
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from kilonova.adopt import check, cloud, copy
from kilonova.cmd import options
from kilonova.db import engine, migration
from kilonova.db.nova.merge import Counts
from kilonova.db.queries import cells as cell_queries
from tests.adopt import on_server
from tests.adopt.nova import Nova, flavor, request_spec
from tests.integration import database_servers

# Rows of a table for each server, besides one of each table of ``_of_server``.
MANY = {'instance_system_metadata': 25, 'instance_metadata': 2, 'instance_actions': 4, 'block_device_mapping': 1}
CHUNK = 500


@dataclass(frozen=True)
class Cost:
    """What a step took; ``memory`` in MiB is the most of a process that does only this."""

    wall: float
    cpu: float
    memory: float

    def __str__(self) -> str:
        return f'{self.wall:.1f} s, {self.cpu:.1f} s of CPU, {self.memory:.0f} MiB'


def measured(act: Callable[[], str]) -> tuple[str, Cost]:
    """Do it in a process of its own, and return its text and its cost."""
    read, write = os.pipe()
    begun = time.perf_counter()
    child = os.fork()
    if child == 0:
        text = act()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        os.write(write, json.dumps([text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    text, cpu, memory = json.loads(told)
    return text, Cost(time.perf_counter() - begun, cpu, memory)


class Clouds:
    """A Nova with so many servers on a database server, and Kilonova's empty databases beside it."""

    def __init__(self, directory: pathlib.Path, server: database_servers.Server, servers: int) -> None:
        self.directory, self._server, self._count = directory, server, servers
        self._prefix = f'n{servers}'
        self.template = Nova(directory)
        on_server.move(self.template, server, f'{self._prefix}_nova', self._fill)
        self.conf = self.template.conf
        for name, schema in (('api', 'api'), ('cell0', 'cell'), ('cell1', 'cell')):
            server.create(f'{self._prefix}_{name}')
            database = engine.Database(self._url(name), name)
            migration.sync(database, schema)
            database.dispose()
        ours = self._ours()
        cell_queries.map_cell0(ours, self._url('cell0'))
        cell_queries.create_cell(ours, name='cell1', transport_url='fake://', database_connection=self._url('cell1'))
        ours.dispose()

    def _url(self, name: str) -> str:
        return self._server.url(f'{self._prefix}_{name}')

    def _ours(self) -> engine.Databases:
        return engine.Databases(self._url('api'), self._url('cell1'))

    def check(self) -> str:
        with cloud.opened([self.conf], options.new) as nova:
            report = check.run(nova, 20)
        return f'{sum(one.number for one in report.obstacles.sorted())} obstacles'

    def copy(self) -> str:
        ours = self._ours()
        with cloud.opened([self.conf], options.new) as nova:
            copied = copy.run(nova, ours, cell_queries.CellDatabases(ours))
        total = sum(copied.values(), Counts())
        return f'{total.total} rows, {total.inserted} new, {total.changed} changed'

    def change(self) -> None:
        """A hundredth of the servers stops."""
        with sa.create_engine(self._url('nova_cell1')).begin() as connection:
            connection.exec_driver_sql("UPDATE instances SET vm_state = 'stopped' WHERE id %% 100 = 0")

    def _fill(self, connection: sa.Connection, tables: sa.MetaData, name: str) -> None:
        if name == 'cell0':
            return
        dice = [str(uuids.UUID(int=number + 1)) for number in range(self._count)]
        for at in range(0, self._count, CHUNK):
            rows: dict[str, list[dict[str, Any]]] = {}
            for number in range(at, min(at + CHUNK, self._count)):
                for table, row in (
                    self._of_server(number, dice[number]) if name == 'cell1' else self._of_api(dice[number])
                ):
                    rows.setdefault(table, []).append(row)
            for table, found in rows.items():
                connection.execute(tables.tables[table].insert(), found)

    def _of_api(self, uuid: str) -> Iterator[tuple[str, dict[str, Any]]]:
        cell = self.template.cell_ids['cell1']
        yield 'instance_mappings', {'instance_uuid': uuid, 'cell_id': cell, 'project_id': 'p', 'queued_for_delete': 0}
        yield 'request_specs', {'instance_uuid': uuid, 'spec': json.dumps(request_spec(uuid))}

    def _of_server(self, number: int, uuid: str) -> Iterator[tuple[str, dict[str, Any]]]:
        yield (
            'instances',
            {
                'id': number + 1,
                'uuid': uuid,
                'display_name': f'server-{number}',
                'project_id': 'p',
                'vm_state': 'active',
                'host': 'cell1-host',
                'node': 'cell1-host',
                'compute_id': self.template.nodes['cell1'],
                'deleted': 0,
            },
        )
        own = {'instance_uuid': uuid, 'deleted': 0}
        held = {'cur': flavor(), 'old': None, 'new': None}
        yield 'instance_extra', {**own, 'flavor': json.dumps(held), 'pci_requests': '[]'}
        yield (
            'instance_info_caches',
            {**own, 'network_info': json.dumps([{'id': uuid, 'address': 'fa:16:3e:00:00:01'}])},
        )
        for key in range(MANY['instance_system_metadata']):
            yield 'instance_system_metadata', {**own, 'key': f'image_hw_{key}', 'value': 'virtio'}
        for key in range(MANY['instance_metadata']):
            yield 'instance_metadata', {**own, 'key': f'k{key}', 'value': 'v'}
        for key in range(MANY['instance_actions']):
            action = number * MANY['instance_actions'] + key + 1
            yield 'instance_actions', {**own, 'id': action, 'action': 'stop', 'request_id': f'req-{uuid}'}
            for event in range(2):
                yield 'instance_actions_events', {'action_id': action, 'event': f'compute_{event}', 'deleted': 0}
        yield 'block_device_mapping', {**own, 'uuid': uuid, 'destination_type': 'local', 'source_type': 'image'}


def main(servers: int) -> int:
    """Print the costs for a tenth of the servers, and for all."""
    with tempfile.TemporaryDirectory() as directory, database_servers.mariadb() as server:
        for count in (servers // 10, servers):
            clouds = Clouds(pathlib.Path(directory, str(count)), server, count)
            print(f'\n{count} servers', flush=True)
            for name, act, before in (
                ('check', clouds.check, None),
                ('first copy', clouds.copy, None),
                ('second copy', clouds.copy, clouds.change),
            ):
                if before is not None:
                    before()
                text, cost = measured(act)
                print(f'{name:12} {text}: {cost}', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main(int(os.environ.get('N') or 10_000)))
