"""Create the first tables of the cell database.

Revision: 9e1a7c3d5b08, after nothing
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '9e1a7c3d5b08'
down_revision = None
branch_labels = None
depends_on = None

MEDIUMTEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')
DATETIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), 'mysql', 'mariadb')
OPTIONS: dict[str, Any] = {
    'mysql_engine': 'InnoDB',
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mariadb_engine': 'InnoDB',
    'mariadb_charset': 'utf8mb4',
    'mariadb_collate': 'utf8mb4_bin',
}
# Four or five names of 255 characters are longer than InnoDB's maximum key length.
PREFIXES = {'source_compute': 100, 'dest_compute': 100, 'source_node': 100, 'dest_node': 100, 'status': 100}


def upgrade() -> None:
    create_compute_nodes()
    create_instances()
    create_leases()
    create_operations()
    create_services()
    create_tags()
    create_block_device_mapping()
    create_instance_actions()
    create_instance_extra()
    create_instance_faults()
    create_instance_info_caches()
    create_instance_metadata()
    create_instance_system_metadata()
    create_migrations()
    create_pci_devices()
    create_instance_actions_events()


def _create_table(name: str, *items: sa.schema.SchemaItem) -> None:
    op.create_table(name, *items, **OPTIONS)


def _timestamps() -> tuple[sa.Column[Any], ...]:
    return sa.Column('created_at', DATETIME), sa.Column('updated_at', DATETIME)


def _soft_delete() -> tuple[sa.Column[Any], ...]:
    return *_timestamps(), sa.Column('deleted_at', DATETIME), sa.Column('deleted', sa.Integer)


def create_compute_nodes() -> None:
    _create_table(
        'compute_nodes',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('service_id', sa.Integer),
        sa.Column('host', sa.String(255)),
        sa.Column('uuid', sa.String(36)),
        sa.Column('vcpus', sa.Integer, nullable=False),
        sa.Column('memory_mb', sa.Integer, nullable=False),
        sa.Column('local_gb', sa.Integer, nullable=False),
        sa.Column('vcpus_used', sa.Integer, nullable=False),
        sa.Column('memory_mb_used', sa.Integer, nullable=False),
        sa.Column('local_gb_used', sa.Integer, nullable=False),
        sa.Column('hypervisor_type', MEDIUMTEXT, nullable=False),
        sa.Column('hypervisor_version', sa.Integer, nullable=False),
        sa.Column('hypervisor_hostname', sa.String(255)),
        sa.Column('free_ram_mb', sa.Integer),
        sa.Column('free_disk_gb', sa.Integer),
        sa.Column('current_workload', sa.Integer),
        sa.Column('running_vms', sa.Integer),
        sa.Column('cpu_info', MEDIUMTEXT, nullable=False),
        sa.Column('disk_available_least', sa.Integer),
        sa.Column('host_ip', sa.String(39)),
        sa.Column('supported_instances', sa.Text),
        sa.Column('metrics', sa.Text),
        sa.Column('pci_stats', sa.Text),
        sa.Column('extra_resources', sa.Text),
        sa.Column('stats', sa.Text),
        sa.Column('numa_topology', sa.Text),
        sa.Column('ram_allocation_ratio', sa.Float),
        sa.Column('cpu_allocation_ratio', sa.Float),
        sa.Column('disk_allocation_ratio', sa.Float),
        sa.Column('mapped', sa.Integer),
        *_soft_delete(),
        sa.UniqueConstraint(
            'host', 'hypervisor_hostname', 'deleted', name='uniq_compute_nodes0host0hypervisor_hostname0deleted'
        ),
        sa.UniqueConstraint('uuid', name='uniq_compute_nodes0uuid'),
    )


def create_instances() -> None:
    _create_table(
        'instances',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('user_id', sa.String(255)),
        sa.Column('project_id', sa.String(255)),
        sa.Column('image_ref', sa.String(255)),
        sa.Column('kernel_id', sa.String(255)),
        sa.Column('ramdisk_id', sa.String(255)),
        sa.Column('hostname', sa.String(255)),
        sa.Column('launch_index', sa.Integer),
        sa.Column('key_name', sa.String(255)),
        sa.Column('key_data', MEDIUMTEXT),
        sa.Column('power_state', sa.Integer),
        sa.Column('vm_state', sa.String(255)),
        sa.Column('task_state', sa.String(255)),
        sa.Column('memory_mb', sa.Integer),
        sa.Column('vcpus', sa.Integer),
        sa.Column('root_gb', sa.Integer),
        sa.Column('ephemeral_gb', sa.Integer),
        sa.Column('ephemeral_key_uuid', sa.String(36)),
        sa.Column('host', sa.String(255)),
        sa.Column('node', sa.String(255)),
        sa.Column('compute_id', sa.BigInteger),
        sa.Column('instance_type_id', sa.Integer),
        sa.Column('user_data', MEDIUMTEXT),
        sa.Column('reservation_id', sa.String(255)),
        sa.Column('launched_at', DATETIME),
        sa.Column('terminated_at', DATETIME),
        sa.Column('availability_zone', sa.String(255)),
        sa.Column('display_name', sa.String(255)),
        sa.Column('display_description', sa.String(255)),
        sa.Column('launched_on', MEDIUMTEXT),
        sa.Column('locked', sa.Boolean),
        sa.Column('locked_by', sa.Enum('owner', 'admin', name='instances0locked_by')),
        sa.Column('os_type', sa.String(255)),
        sa.Column('architecture', sa.String(255)),
        sa.Column('vm_mode', sa.String(255)),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.Column('root_device_name', sa.String(255)),
        sa.Column('default_ephemeral_device', sa.String(255)),
        sa.Column('default_swap_device', sa.String(255)),
        sa.Column('config_drive', sa.String(255)),
        sa.Column('access_ip_v4', sa.String(39)),
        sa.Column('access_ip_v6', sa.String(39)),
        sa.Column('auto_disk_config', sa.Boolean),
        sa.Column('progress', sa.Integer),
        sa.Column('shutdown_terminate', sa.Boolean),
        sa.Column('disable_terminate', sa.Boolean),
        sa.Column('cell_name', sa.String(255)),
        sa.Column('cleaned', sa.Integer),
        sa.Column('hidden', sa.Boolean),
        *_soft_delete(),
        sa.UniqueConstraint('uuid', name='uniq_instances0uuid'),
    )
    _index_instances()


def _index_instances() -> None:
    op.create_index('instances_compute_id_deleted_idx', 'instances', ['compute_id', 'deleted'])
    op.create_index('instances_deleted_created_at_idx', 'instances', ['deleted', 'created_at'])
    op.create_index('instances_host_deleted_cleaned_idx', 'instances', ['host', 'deleted', 'cleaned'])
    op.create_index('instances_host_node_deleted_idx', 'instances', ['host', 'node', 'deleted'])
    op.create_index('instances_project_id_deleted_created_at_idx', 'instances', ['project_id', 'deleted', 'created_at'])
    op.create_index('instances_project_id_deleted_idx', 'instances', ['project_id', 'deleted'])
    op.create_index('instances_project_id_idx', 'instances', ['project_id'])
    op.create_index('instances_reservation_id_idx', 'instances', ['reservation_id'])
    op.create_index('instances_task_state_updated_at_idx', 'instances', ['task_state', 'updated_at'])
    op.create_index('instances_terminated_at_launched_at_idx', 'instances', ['terminated_at', 'launched_at'])
    op.create_index('instances_updated_at_project_id_idx', 'instances', ['updated_at', 'project_id'])
    op.create_index('instances_uuid_deleted_idx', 'instances', ['uuid', 'deleted'])


def create_leases() -> None:
    _create_table(
        'leases',
        sa.Column('owner', sa.String(36), primary_key=True),
        sa.Column('host', sa.String(255)),
        sa.Column('expires', sa.Double, nullable=False),
    )


def create_operations() -> None:
    _create_table(
        'operations',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.Column('kind', sa.String(32), nullable=False),
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('slot', sa.String(36), nullable=False),
        sa.Column('args', MEDIUMTEXT, nullable=False),
        sa.Column('context', MEDIUMTEXT, nullable=False),
        sa.Column('request_id', sa.String(255)),
        sa.Column('position', sa.Integer, nullable=False),
        sa.Column('outputs', MEDIUMTEXT, nullable=False),
        sa.Column('attempt', sa.Integer, nullable=False),
        sa.Column('owner', sa.String(36)),
        sa.Column('not_before', sa.Double, nullable=False),
        sa.Column('error', MEDIUMTEXT),
        sa.Column('failed', sa.Boolean, nullable=False),
        sa.Column('cancelled', sa.Boolean, nullable=False),
        sa.Column('written', sa.Text, nullable=False),
        sa.Column('host', sa.String(255)),
        *_timestamps(),
        sa.UniqueConstraint('instance_uuid', 'slot', name='uniq_operations0instance_uuid0slot'),
        sa.UniqueConstraint('uuid', name='uniq_operations0uuid'),
    )
    op.create_index('operations_not_before_idx', 'operations', ['not_before'])
    op.create_index('operations_owner_idx', 'operations', ['owner'])


def create_services() -> None:
    _create_table(
        'services',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('uuid', sa.String(36)),
        sa.Column('host', sa.String(255)),
        sa.Column('binary', sa.String(255)),
        sa.Column('topic', sa.String(255)),
        sa.Column('report_count', sa.Integer, nullable=False),
        sa.Column('disabled', sa.Boolean),
        sa.Column('disabled_reason', sa.String(255)),
        sa.Column('last_seen_up', DATETIME),
        sa.Column('forced_down', sa.Boolean),
        sa.Column('version', sa.Integer),
        *_soft_delete(),
        sa.UniqueConstraint('host', 'binary', 'deleted', name='uniq_services0host0binary0deleted'),
        sa.UniqueConstraint('host', 'topic', 'deleted', name='uniq_services0host0topic0deleted'),
        sa.UniqueConstraint('uuid', name='uniq_services0uuid'),
    )


def create_tags() -> None:
    _create_table(
        'tags',
        sa.Column('resource_id', sa.String(36), primary_key=True),
        sa.Column('tag', sa.Unicode(80), primary_key=True),
        *_timestamps(),
    )
    op.create_index('tags_tag_idx', 'tags', ['tag'])


def create_block_device_mapping() -> None:
    _create_table(
        'block_device_mapping',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column(
            'instance_uuid',
            sa.String(36),
            sa.ForeignKey('instances.uuid', name='fk_block_device_mapping_instance_uuid'),
        ),
        sa.Column('uuid', sa.String(36)),
        sa.Column('source_type', sa.String(255)),
        sa.Column('destination_type', sa.String(255)),
        sa.Column('guest_format', sa.String(255)),
        sa.Column('device_type', sa.String(255)),
        sa.Column('disk_bus', sa.String(255)),
        sa.Column('boot_index', sa.Integer),
        sa.Column('device_name', sa.String(255)),
        sa.Column('delete_on_termination', sa.Boolean),
        sa.Column('snapshot_id', sa.String(36)),
        sa.Column('volume_id', sa.String(36)),
        sa.Column('volume_size', sa.Integer),
        sa.Column('volume_type', sa.String(255)),
        sa.Column('image_id', sa.String(36)),
        sa.Column('no_device', sa.Boolean),
        sa.Column('connection_info', MEDIUMTEXT),
        sa.Column('tag', sa.String(255)),
        sa.Column('attachment_id', sa.String(36)),
        sa.Column('encrypted', sa.Boolean),
        sa.Column('encryption_secret_uuid', sa.String(36)),
        sa.Column('encryption_format', sa.String(128)),
        sa.Column('encryption_options', sa.String(4096)),
        *_soft_delete(),
        sa.UniqueConstraint('uuid', name='uniq_block_device_mapping0uuid'),
    )
    op.create_index(
        'block_device_mapping_instance_uuid_device_name_idx', 'block_device_mapping', ['instance_uuid', 'device_name']
    )
    op.create_index('block_device_mapping_instance_uuid_idx', 'block_device_mapping', ['instance_uuid'])
    op.create_index(
        'block_device_mapping_instance_uuid_volume_id_idx', 'block_device_mapping', ['instance_uuid', 'volume_id']
    )
    op.create_index('block_device_mapping_snapshot_id_idx', 'block_device_mapping', ['snapshot_id'])
    op.create_index('block_device_mapping_volume_id_idx', 'block_device_mapping', ['volume_id'])


def create_instance_actions() -> None:
    _create_table(
        'instance_actions',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('action', sa.String(255)),
        sa.Column(
            'instance_uuid', sa.String(36), sa.ForeignKey('instances.uuid', name='fk_instance_actions_instance_uuid')
        ),
        sa.Column('request_id', sa.String(255)),
        sa.Column('user_id', sa.String(255)),
        sa.Column('project_id', sa.String(255)),
        sa.Column('start_time', DATETIME),
        sa.Column('finish_time', DATETIME),
        sa.Column('message', sa.String(255)),
        *_soft_delete(),
    )
    op.create_index('instance_actions_instance_uuid_idx', 'instance_actions', ['instance_uuid'])
    op.create_index(
        'instance_actions_instance_uuid_updated_at_idx', 'instance_actions', ['instance_uuid', 'updated_at']
    )
    op.create_index('instance_actions_request_id_idx', 'instance_actions', ['request_id'])


def create_instance_extra() -> None:
    _create_table(
        'instance_extra',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column(
            'instance_uuid',
            sa.String(36),
            sa.ForeignKey('instances.uuid', name='fk_instance_extra_instance_uuid'),
            nullable=False,
        ),
        sa.Column('device_metadata', sa.Text),
        sa.Column('numa_topology', sa.Text),
        sa.Column('pci_requests', sa.Text),
        sa.Column('flavor', sa.Text),
        sa.Column('vcpu_model', sa.Text),
        sa.Column('migration_context', sa.Text),
        sa.Column('keypairs', sa.Text),
        sa.Column('trusted_certs', sa.Text),
        sa.Column('resources', sa.Text),
        *_soft_delete(),
    )
    op.create_index('instance_extra_instance_uuid_idx', 'instance_extra', ['instance_uuid'])


def create_instance_faults() -> None:
    _create_table(
        'instance_faults',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column(
            'instance_uuid', sa.String(36), sa.ForeignKey('instances.uuid', name='fk_instance_faults_instance_uuid')
        ),
        sa.Column('code', sa.Integer, nullable=False),
        sa.Column('message', sa.String(255)),
        sa.Column('details', MEDIUMTEXT),
        sa.Column('host', sa.String(255)),
        *_soft_delete(),
    )
    op.create_index('instance_faults_host_idx', 'instance_faults', ['host'])
    op.create_index(
        'instance_faults_instance_uuid_deleted_created_at_idx',
        'instance_faults',
        ['instance_uuid', 'deleted', 'created_at'],
    )


def create_instance_info_caches() -> None:
    _create_table(
        'instance_info_caches',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('network_info', MEDIUMTEXT),
        sa.Column(
            'instance_uuid',
            sa.String(36),
            sa.ForeignKey('instances.uuid', name='fk_instance_info_caches_instance_uuid'),
            nullable=False,
        ),
        *_soft_delete(),
        sa.UniqueConstraint('instance_uuid', name='uniq_instance_info_caches0instance_uuid'),
    )


def create_instance_metadata() -> None:
    _create_table(
        'instance_metadata',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('key', sa.String(255)),
        sa.Column('value', sa.String(255)),
        sa.Column(
            'instance_uuid', sa.String(36), sa.ForeignKey('instances.uuid', name='fk_instance_metadata_instance_uuid')
        ),
        *_soft_delete(),
    )
    op.create_index('instance_metadata_instance_uuid_idx', 'instance_metadata', ['instance_uuid'])


def create_instance_system_metadata() -> None:
    _create_table(
        'instance_system_metadata',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('key', sa.String(255), nullable=False),
        sa.Column('value', sa.String(255)),
        sa.Column(
            'instance_uuid',
            sa.String(36),
            sa.ForeignKey('instances.uuid', name='fk_instance_system_metadata_instance_uuid'),
            nullable=False,
        ),
        *_soft_delete(),
    )
    op.create_index('instance_system_metadata_instance_uuid_idx', 'instance_system_metadata', ['instance_uuid'])


def create_migrations() -> None:
    _create_table(
        'migrations',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('source_compute', sa.String(255)),
        sa.Column('dest_compute', sa.String(255)),
        sa.Column('source_node', sa.String(255)),
        sa.Column('dest_node', sa.String(255)),
        sa.Column('dest_compute_id', sa.BigInteger),
        sa.Column('dest_host', sa.String(255)),
        sa.Column('old_instance_type_id', sa.Integer),
        sa.Column('new_instance_type_id', sa.Integer),
        sa.Column('instance_uuid', sa.String(36), sa.ForeignKey('instances.uuid', name='fk_migrations_instance_uuid')),
        sa.Column('uuid', sa.String(36)),
        sa.Column('status', sa.String(255)),
        sa.Column(
            'migration_type', sa.Enum('migration', 'resize', 'live-migration', 'evacuation', name='migration_type')
        ),
        sa.Column('hidden', sa.Boolean),
        sa.Column('memory_total', sa.BigInteger),
        sa.Column('memory_processed', sa.BigInteger),
        sa.Column('memory_remaining', sa.BigInteger),
        sa.Column('disk_total', sa.BigInteger),
        sa.Column('disk_processed', sa.BigInteger),
        sa.Column('disk_remaining', sa.BigInteger),
        sa.Column('cross_cell_move', sa.Boolean),
        sa.Column('user_id', sa.String(255)),
        sa.Column('project_id', sa.String(255)),
        *_soft_delete(),
        sa.UniqueConstraint('uuid', name='uniq_migrations0uuid'),
    )
    op.create_index(
        'migrations_by_host_nodes_and_status_idx',
        'migrations',
        ['deleted', 'source_compute', 'dest_compute', 'source_node', 'dest_node', 'status'],
        mysql_length=PREFIXES,
        mariadb_length=PREFIXES,
    )
    op.create_index(
        'migrations_dest_and_status_idx',
        'migrations',
        ['deleted', 'dest_compute', 'dest_node', 'status'],
        mysql_length=PREFIXES,
        mariadb_length=PREFIXES,
    )
    op.create_index('migrations_dest_compute_id_deleted_idx', 'migrations', ['dest_compute_id', 'deleted'])
    op.create_index('migrations_instance_uuid_and_status_idx', 'migrations', ['deleted', 'instance_uuid', 'status'])
    op.create_index(
        'migrations_source_and_status_idx',
        'migrations',
        ['deleted', 'source_compute', 'source_node', 'status'],
        mysql_length=PREFIXES,
        mariadb_length=PREFIXES,
    )
    op.create_index('migrations_updated_at_idx', 'migrations', ['updated_at'])


def create_pci_devices() -> None:
    _create_table(
        'pci_devices',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('uuid', sa.String(36)),
        sa.Column(
            'compute_node_id',
            sa.Integer,
            sa.ForeignKey('compute_nodes.id', name='fk_pci_devices_compute_node_id'),
            nullable=False,
        ),
        sa.Column('address', sa.String(12), nullable=False),
        sa.Column('vendor_id', sa.String(4), nullable=False),
        sa.Column('product_id', sa.String(4), nullable=False),
        sa.Column('dev_type', sa.String(8), nullable=False),
        sa.Column('dev_id', sa.String(255)),
        sa.Column('label', sa.String(255), nullable=False),
        sa.Column('status', sa.String(36), nullable=False),
        sa.Column('request_id', sa.String(36)),
        sa.Column('extra_info', sa.Text),
        sa.Column('instance_uuid', sa.String(36)),
        sa.Column('numa_node', sa.Integer),
        sa.Column('parent_addr', sa.String(12)),
        *_soft_delete(),
        sa.UniqueConstraint(
            'compute_node_id', 'address', 'deleted', name='uniq_pci_devices0compute_node_id0address0deleted'
        ),
    )
    op.create_index('pci_devices_compute_node_id_deleted_idx', 'pci_devices', ['compute_node_id', 'deleted'])
    op.create_index(
        'pci_devices_compute_node_id_parent_addr_deleted_idx',
        'pci_devices',
        ['compute_node_id', 'parent_addr', 'deleted'],
    )
    op.create_index('pci_devices_instance_uuid_deleted_idx', 'pci_devices', ['instance_uuid', 'deleted'])


def create_instance_actions_events() -> None:
    _create_table(
        'instance_actions_events',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('event', sa.String(255)),
        sa.Column(
            'action_id', sa.Integer, sa.ForeignKey('instance_actions.id', name='fk_instance_actions_events_action_id')
        ),
        sa.Column('start_time', DATETIME),
        sa.Column('finish_time', DATETIME),
        sa.Column('result', sa.String(255)),
        sa.Column('traceback', sa.Text),
        sa.Column('host', sa.String(255)),
        sa.Column('details', sa.Text),
        *_soft_delete(),
    )
    op.create_index('instance_actions_events_action_id_idx', 'instance_actions_events', ['action_id'])
