"""A Nova to be adopted, as databases of its own: the schemas are recorded from the releases of Nova (``recorded``).

nova = Nova(tmp_path, release='34')
server = nova.server(vm_state='stopped')
nova.conf                                   # its nova.conf
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import pathlib
import sqlite3
import uuid as uuids
from collections.abc import Mapping
from typing import Any

RECORDED = pathlib.Path(__file__).parent / 'recorded'
CELL0 = '00000000-0000-0000-0000-000000000000'
PROJECT = 'f0e1d2c3b4a5968778695a4b3c2d1e0f'
# The host of the servers in cell1.
HOST = 'cell1-host'
# The seeds with which a command is killed at random statements, each up to three times.
SEEDS = range(50 if os.environ.get('KILONOVA_WHOLE') else 8)
# Text values of the columns that may not be NULL and have no default.
_TEXTS = {
    'cpu_info': '{}',
    'hypervisor_type': 'QEMU',
    'transport_url': 'none:///',
    'name': 'a name',
    'status': 'available',
}


def envelope(name: str, version: str, /, **data: Any) -> dict[str, Any]:
    """Return an object in Nova's stored form."""
    return {
        'nova_object.name': name,
        'nova_object.namespace': 'nova',
        'nova_object.version': version,
        'nova_object.data': data,
        'nova_object.changes': sorted(data),
    }


def flavor(**changed: Any) -> dict[str, Any]:
    """Return the envelope of a flavor."""
    values = {
        'id': 1,
        'name': 'small',
        'memory_mb': 512,
        'vcpus': 1,
        'root_gb': 1,
        'ephemeral_gb': 0,
        'flavorid': '1',
        'swap': 0,
        'rxtx_factor': 1.0,
        'vcpu_weight': 0,
        'disabled': False,
        'is_public': True,
        'extra_specs': {},
        'description': None,
        'created_at': '2026-01-01T00:00:00Z',
        'updated_at': None,
        'deleted_at': None,
        'deleted': False,
    }
    return envelope('Flavor', '1.2', **{**values, **changed})


def request_spec(uuid: str, **changed: Any) -> dict[str, Any]:
    """Return the envelope of a request spec, with properties of an image in the newest form of Nova 34."""
    props = envelope('ImageMetaProps', '1.44', hw_disk_bus='virtio')
    image = envelope('ImageMeta', '1.8', id=str(uuids.uuid4()), name='cirros', properties=props)
    values = {
        'image': image,
        'flavor': flavor(),
        'project_id': PROJECT,
        'user_id': 'a user',
        'availability_zone': None,
        'num_instances': 1,
        'ignore_hosts': None,
        'force_hosts': None,
        'force_nodes': None,
        'instance_uuid': uuid,
        'scheduler_hints': {},
        'is_bfv': False,
    }
    return envelope('RequestSpec', '1.15', **{**values, **changed})


class Nova:
    """Databases of Nova in files of ``directory``: api, cell0 and ``cells``, each with one host ``NAME-host``."""

    def __init__(self, directory: pathlib.Path, release: str = '34', cells: tuple[str, ...] = ('cell1',)) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self._numbers = itertools.count(100)
        for name in ('api', 'cell0', *cells):
            schema = 'api' if name == 'api' else 'cell'
            text = gzip.decompress((RECORDED / f'schema-{release}' / f'{schema}.sql.gz').read_bytes()).decode()
            connection = sqlite3.connect(self.path(name))
            connection.executescript(text)
            connection.close()
        self.conf = directory / 'nova.conf'
        self.conf.write_text(
            f'[api_database]\nconnection = {self.url("api")}\n[database]\nconnection = {self.url("cell0")}\n'
        )
        self.cell_ids: dict[str, int] = {}
        for name in ('cell0', *cells):
            self.cell_ids[name] = self.add(
                'api',
                'cell_mappings',
                uuid=CELL0 if name == 'cell0' else str(uuids.uuid4()),
                name=name,
                transport_url='none:///',
                database_connection=self.url(name),
                disabled=0,
            )
        self.nodes = {name: self.host(f'{name}-host', name) for name in cells}

    def path(self, name: str) -> pathlib.Path:
        """Return the file of a database."""
        return self.directory / f'{name}.db'

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f'sqlite:///{self.path(name)}'

    def sums(self) -> dict[str, str]:
        """Return {file of the directory: checksum}."""
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(self.directory.glob('*.db*'))
        }

    def run(self, name: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in a database, and return its rows."""
        connection = sqlite3.connect(self.path(name))
        try:
            with connection:
                return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def add(self, name: str, table: str, /, **values: Any) -> int:
        """Insert a row; what may not be NULL and has no value here gets one. Return its id."""
        columns = self.run(name, f'PRAGMA table_info({table})')
        known = {column[1] for column in columns}
        row = {key: json.dumps(value) if isinstance(value, (dict, list)) else value for key, value in values.items()}
        row = {key: value for key, value in row.items() if key in known}
        if 'deleted' in known:
            row.setdefault('deleted', 0)
        for _, column, kind, required, _, _ in columns:
            if required and column not in row and column != 'id':
                row[column] = _TEXTS.get(column, '') if 'CHAR' in kind or 'TEXT' in kind else 0
                if kind == 'DATETIME':
                    row[column] = '2026-01-01 00:00:00.000000'
        if 'id' in known:
            row.setdefault('id', next(self._numbers))
        names = ', '.join(f'"{key}"' for key in row)
        self.run(name, f'INSERT INTO {table} ({names}) VALUES ({", ".join("?" * len(row))})', *row.values())
        return int(row.get('id', 0))

    def host(self, host: str, cell: str = 'cell1', *, node: str | None = None, version: int = 74) -> int:
        """Add a host with its compute service, node and mapping; return the node's id."""
        self.add('api', 'host_mappings', cell_id=self.cell_ids[cell], host=host)
        self.add(
            cell,
            'services',
            uuid=str(uuids.uuid4()),
            host=host,
            binary='nova-compute',
            topic='compute',
            version=version,
        )
        return self.add(cell, 'compute_nodes', uuid=str(uuids.uuid4()), host=host, hypervisor_hostname=node or host)

    def server(self, cell: str = 'cell1', *, uuid: str | None = None, **changed: Any) -> str:
        """Add a server with its extra, mapping and request spec; return its uuid.

        ``changed`` are columns of instances, of instance_extra (by ``extra_…``) and of instance_mappings (by
        ``mapping_…``); ``spec`` is the request spec, or None for none.
        """
        uuid = uuid or str(uuids.uuid4())
        extra = {key[6:]: changed.pop(key) for key in list(changed) if key.startswith('extra_')}
        mapping = {key[8:]: changed.pop(key) for key in list(changed) if key.startswith('mapping_')}
        spec = changed.pop('spec', request_spec(uuid))
        values = {
            'uuid': uuid,
            'display_name': 'web',
            'project_id': PROJECT,
            'user_id': 'a user',
            'vm_state': 'active',
            'power_state': 1,
            'host': f'{cell}-host' if cell != 'cell0' else None,
            'node': f'{cell}-host' if cell != 'cell0' else None,
            'compute_id': self.nodes.get(cell),
            'created_at': '2026-01-02 03:04:05',
        }
        self.add(cell, 'instances', **{**values, **changed})
        whole = {'flavor': {'cur': flavor(), 'old': None, 'new': None}, 'pci_requests': [], **extra}
        self.add(cell, 'instance_extra', instance_uuid=uuid, **whole)
        self.add(cell, 'instance_info_caches', instance_uuid=uuid, network_info='[]')
        row = {'cell_id': self.cell_ids[cell], 'project_id': PROJECT, 'user_id': 'a user', 'queued_for_delete': 0}
        self.add('api', 'instance_mappings', instance_uuid=uuid, **{**row, **mapping})
        if spec is not None:
            self.add('api', 'request_specs', instance_uuid=uuid, spec=spec)
        return uuid

    def rows(self, name: str, table: str) -> list[Mapping[str, Any]]:
        """Return all rows of a table as dicts, ordered by their first column."""
        connection = sqlite3.connect(self.path(name))
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(f'SELECT * FROM {table} ORDER BY 1')]
        finally:
            connection.close()


def fill(nova: Nova) -> dict[str, str]:
    """Add one of everything, and return the uuids of servers by what they are."""
    found = {
        'plain': nova.server(),
        'failed': nova.server('cell0', vm_state='error', compute_id=None),
        'deleted': nova.server(deleted=7, vm_state='deleted', spec=None),
    }
    plain = found['plain']
    number = nova.add('api', 'flavors', name='small', flavorid='1', memory_mb=512, vcpus=1, root_gb=1)
    nova.add('api', 'flavor_extra_specs', flavor_id=number, key='pci_passthrough:alias', value='h100:2')
    nova.add('api', 'flavor_projects', flavor_id=number, project_id='p')
    number = nova.add('api', 'aggregates', uuid=str(uuids.uuid4()), name='zone')
    nova.add('api', 'aggregate_hosts', host=HOST, aggregate_id=number)
    nova.add('api', 'aggregate_metadata', aggregate_id=number, key='availability_zone', value='fast')
    number = nova.add('api', 'instance_groups', uuid=str(uuids.uuid4()), name='apart', user_id='u', project_id='p')
    nova.add('api', 'instance_group_policy', group_id=number, policy='anti-affinity')
    nova.add('api', 'instance_group_member', group_id=number, instance_uuid=plain)
    nova.add('api', 'key_pairs', name='Key', user_id='u', type='ssh', public_key='ssh-ed25519 AAAA')
    nova.add('api', 'quotas', project_id='p', resource='cores', hard_limit=8)
    nova.add('api', 'project_user_quotas', project_id='p', user_id='u', resource='cores', hard_limit=4)
    nova.add('api', 'quota_classes', class_name='default', resource='cores', hard_limit=20)
    nova.add('cell1', 'services', uuid='c', host='ctl', binary='nova-conductor', topic='conductor', version=74)
    nova.add(
        'cell1',
        'pci_devices',
        uuid=str(uuids.uuid4()),
        compute_node_id=nova.nodes['cell1'],
        address='0000:08:00.0',
        status='allocated',
        instance_uuid=plain,
        extra_info={'rp_uuid': 'a'},
    )
    nova.add('cell1', 'instance_metadata', instance_uuid=plain, key='k', value='v')
    nova.add('cell1', 'instance_system_metadata', instance_uuid=plain, key='image_hw_disk_bus', value='virtio')
    nova.add('cell1', 'instance_faults', instance_uuid=plain, code=500, message='ü', details='…')
    action = nova.add('cell1', 'instance_actions', instance_uuid=plain, action='create', request_id='req-1')
    nova.add('cell1', 'instance_actions_events', action_id=action, event='compute__do_build_and_run_instance')
    nova.add('cell1', 'migrations', uuid=str(uuids.uuid4()), instance_uuid=plain, status='confirmed')
    for tag in ('b', 'a', 'B'):
        nova.add('cell1', 'tags', resource_id=plain, tag=tag)
    nova.add('cell1', 'task_log', task_name='audit', state='DONE', host=HOST, message='m')
    nova.add('cell1', 'volume_usage_cache', volume_id='v1', instance_uuid=plain, tot_reads=1)
    nova.add('cell1', 'block_device_mapping', uuid='d1', instance_uuid=plain, destination_type='local')
    return found


def recorded(directory: pathlib.Path, name: str = 'nova-34') -> pathlib.Path:
    """Put the recorded databases of a real Nova into a directory, and return its nova.conf."""
    directory.mkdir()
    for path in sorted((RECORDED / name).glob('*.sql.gz')):
        connection = sqlite3.connect(directory / f'{path.name.partition(".")[0]}.db')
        connection.executescript(gzip.decompress(path.read_bytes()).decode())
        if path.name.startswith('api'):
            connection.execute(
                'UPDATE cell_mappings SET database_connection = ? || name || ?', (f'sqlite:///{directory}/', '.db')
            )
            connection.commit()
        connection.close()
    conf = directory / 'nova.conf'
    conf.write_text(
        f'[api_database]\nconnection = sqlite:///{directory}/api.db\n[database]\nconnection = sqlite:///{directory}/cell0.db\n'
    )
    return conf
