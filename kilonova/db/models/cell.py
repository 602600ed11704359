"""Tables of a cell database."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, mapped_column

from kilonova.db.clock import db_utcnow
from kilonova.db.models.base import (
    NAMING,
    TABLE_OPTIONS,
    DateTime,
    LeaseColumns,
    MediumText,
    OperationColumns,
    SoftDelete,
    Timestamps,
    index,
    shadow_of,
    unique,
    utcnow,
)


class Base(DeclarativeBase):
    """Base class of the cell database's models. Queries use the ``__table__`` of each model with SQLAlchemy Core."""

    if TYPE_CHECKING:
        __table__: ClassVar[sa.Table]

    metadata = sa.MetaData(naming_convention=NAMING)


class Operation(OperationColumns, Base):
    """An operation on a server of this cell."""

    __tablename__ = 'operations'


class Lease(LeaseColumns, Base):
    """The lease of a conductor process in this cell. It shows that the process is alive."""

    __tablename__ = 'leases'


class Watched(SoftDelete):
    """The columns created_at, updated_at, deleted_at and deleted for tables that schedulers cache in memory.

    The database's clock sets created_at and updated_at. By these times schedulers find the rows that have changed
    (``queries.changes``).
    """

    created_at = mapped_column(DateTime, default=db_utcnow(), sort_order=100)
    updated_at = mapped_column(DateTime, onupdate=db_utcnow(), sort_order=101)


class Service(Watched, Base):
    """A daemon (``binary``) on a host.

    The service is up while ``last_seen_up``, the time of its last heartbeat by the database's clock, is recent.
    """

    __tablename__ = 'services'
    __table_args__ = (
        unique('services', 'host', 'topic', 'deleted'),
        unique('services', 'host', 'binary', 'deleted'),
        unique('services', 'uuid'),
        index('services', 'updated_at'),
        index('services', 'created_at'),
        index('services', 'deleted_at'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    uuid = mapped_column(sa.String(36))
    host = mapped_column(sa.String(255))
    binary = mapped_column(sa.String(255))
    topic = mapped_column(sa.String(255))
    report_count = mapped_column(sa.Integer, nullable=False, default=0)
    disabled = mapped_column(sa.Boolean, default=False)
    disabled_reason = mapped_column(sa.String(255))
    last_seen_up = mapped_column(DateTime)
    forced_down = mapped_column(sa.Boolean, default=False)
    version = mapped_column(sa.Integer, default=0)


class ComputeNode(Watched, Base):
    """A hypervisor. ``mapped`` is 0 until its host is mapped to a cell. The scheduler chooses only mapped nodes."""

    __tablename__ = 'compute_nodes'
    __table_args__ = (
        unique('compute_nodes', 'uuid'),
        unique('compute_nodes', 'host', 'hypervisor_hostname', 'deleted'),
        index('compute_nodes', 'updated_at'),
        index('compute_nodes', 'created_at'),
        index('compute_nodes', 'deleted_at'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    service_id = mapped_column(sa.Integer)
    host = mapped_column(sa.String(255))
    uuid = mapped_column(sa.String(36))
    vcpus = mapped_column(sa.Integer, nullable=False)
    memory_mb = mapped_column(sa.Integer, nullable=False)
    local_gb = mapped_column(sa.Integer, nullable=False)
    vcpus_used = mapped_column(sa.Integer, nullable=False)
    memory_mb_used = mapped_column(sa.Integer, nullable=False)
    local_gb_used = mapped_column(sa.Integer, nullable=False)
    hypervisor_type = mapped_column(MediumText, nullable=False)
    hypervisor_version = mapped_column(sa.Integer, nullable=False)
    hypervisor_hostname = mapped_column(sa.String(255))
    free_ram_mb = mapped_column(sa.Integer)
    free_disk_gb = mapped_column(sa.Integer)
    current_workload = mapped_column(sa.Integer)
    running_vms = mapped_column(sa.Integer)
    cpu_info = mapped_column(MediumText, nullable=False)
    disk_available_least = mapped_column(sa.Integer)
    host_ip = mapped_column(sa.String(39))
    supported_instances = mapped_column(sa.Text)
    metrics = mapped_column(sa.Text)
    pci_stats = mapped_column(MediumText)
    extra_resources = mapped_column(sa.Text)
    stats = mapped_column(sa.Text, default='{}')
    # The number of the last usage report of the host. A report with a smaller number arrived late and is ignored.
    usage_serial = mapped_column(sa.BigInteger, nullable=False, default=0, server_default='0')
    numa_topology = mapped_column(MediumText)
    ram_allocation_ratio = mapped_column(sa.Float)
    cpu_allocation_ratio = mapped_column(sa.Float)
    disk_allocation_ratio = mapped_column(sa.Float)
    mapped = mapped_column(sa.Integer, default=0)


class PciDevice(SoftDelete, Base):
    """A PCI device of a compute node.

    ``instance_uuid`` is no foreign key, because a deleted server may still have the device: a conductor frees it later,
    with an operation that is called a pending release.
    """

    __tablename__ = 'pci_devices'
    __table_args__ = (
        index('pci_devices', 'compute_node_id', 'deleted'),
        index('pci_devices', 'instance_uuid', 'deleted'),
        index('pci_devices', 'compute_node_id', 'parent_addr', 'deleted'),
        index('pci_devices', 'uuid'),
        unique('pci_devices', 'compute_node_id', 'address', 'deleted'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    uuid = mapped_column(sa.String(36))
    compute_node_id = mapped_column(sa.Integer, sa.ForeignKey('compute_nodes.id'), nullable=False)
    # The address of a PCI function, or the UUID of a mediated device.
    address = mapped_column(sa.String(36), nullable=False)
    vendor_id = mapped_column(sa.String(4), nullable=False)
    product_id = mapped_column(sa.String(4), nullable=False)
    dev_type = mapped_column(sa.String(8), nullable=False)
    dev_id = mapped_column(sa.String(255))
    label = mapped_column(sa.String(255), nullable=False)
    status = mapped_column(sa.String(36), nullable=False)
    request_id = mapped_column(sa.String(36))
    extra_info = mapped_column(sa.Text)
    instance_uuid = mapped_column(sa.String(36))
    numa_node = mapped_column(sa.Integer)
    parent_addr = mapped_column(sa.String(12))
    # The time when the device was assigned to its server (``instance_uuid``).
    # The time is NULL if no server holds the device, or if the device was assigned before Kilonova had this column.
    held_since = mapped_column(DateTime)


class DeviceHistory(Base):
    """A period in which a server held a device. The period ended at ``ended_at``.

    ``began_at`` is NULL if the device was assigned before Kilonova recorded such times. The other columns are copies of
    the device's columns at the end of the period.
    """

    __tablename__ = 'device_history'
    __table_args__ = (
        index('device_history', 'device_uuid'),
        index('device_history', 'instance_uuid'),
        index('device_history', 'ended_at'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    device_uuid = mapped_column(sa.String(36), nullable=False)
    compute_node_id = mapped_column(sa.Integer, nullable=False)
    address = mapped_column(sa.String(36), nullable=False)
    dev_type = mapped_column(sa.String(8), nullable=False)
    vendor_id = mapped_column(sa.String(4), nullable=False)
    product_id = mapped_column(sa.String(4), nullable=False)
    instance_uuid = mapped_column(sa.String(36), nullable=False)
    project_id = mapped_column(sa.String(255))
    began_at = mapped_column(DateTime)
    ended_at = mapped_column(DateTime, nullable=False)


class Instance(SoftDelete, Base):
    """A server. Its states are written only by the compare-and-swap of ``queries.instances``."""

    __tablename__ = 'instances'
    __table_args__ = (
        index('instances', 'project_id'),
        index('instances', 'project_id', 'deleted'),
        # This index is for the default sort order of a project's server list.
        index('instances', 'project_id', 'deleted', 'created_at'),
        index('instances', 'reservation_id'),
        index('instances', 'terminated_at', 'launched_at'),
        index('instances', 'uuid', 'deleted'),
        index('instances', 'task_state', 'updated_at'),
        index('instances', 'host', 'node', 'deleted'),
        index('instances', 'host', 'deleted', 'cleaned'),
        index('instances', 'deleted', 'created_at'),
        index('instances', 'updated_at', 'project_id'),
        index('instances', 'compute_id', 'deleted'),
        unique('instances', 'uuid'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    user_id = mapped_column(sa.String(255))
    project_id = mapped_column(sa.String(255))
    image_ref = mapped_column(sa.String(255))
    kernel_id = mapped_column(sa.String(255))
    ramdisk_id = mapped_column(sa.String(255))
    hostname = mapped_column(sa.String(255))
    launch_index = mapped_column(sa.Integer)
    key_name = mapped_column(sa.String(255))
    key_data = mapped_column(MediumText)
    power_state = mapped_column(sa.Integer)
    vm_state = mapped_column(sa.String(255))
    task_state = mapped_column(sa.String(255))
    memory_mb = mapped_column(sa.Integer)
    vcpus = mapped_column(sa.Integer)
    root_gb = mapped_column(sa.Integer)
    ephemeral_gb = mapped_column(sa.Integer)
    ephemeral_key_uuid = mapped_column(sa.String(36))
    host = mapped_column(sa.String(255))
    node = mapped_column(sa.String(255))
    compute_id = mapped_column(sa.BigInteger)
    instance_type_id = mapped_column(sa.Integer)
    user_data = mapped_column(MediumText)
    reservation_id = mapped_column(sa.String(255))
    launched_at = mapped_column(DateTime)
    terminated_at = mapped_column(DateTime)
    availability_zone = mapped_column(sa.String(255))
    display_name = mapped_column(sa.String(255))
    display_description = mapped_column(sa.String(255))
    launched_on = mapped_column(MediumText)
    locked = mapped_column(sa.Boolean)
    locked_by = mapped_column(sa.Enum('owner', 'admin', name='instances0locked_by'))
    os_type = mapped_column(sa.String(255))
    architecture = mapped_column(sa.String(255))
    vm_mode = mapped_column(sa.String(255))
    uuid = mapped_column(sa.String(36), nullable=False)
    root_device_name = mapped_column(sa.String(255))
    default_ephemeral_device = mapped_column(sa.String(255))
    default_swap_device = mapped_column(sa.String(255))
    config_drive = mapped_column(sa.String(255))
    access_ip_v4 = mapped_column(sa.String(39))
    access_ip_v6 = mapped_column(sa.String(39))
    auto_disk_config = mapped_column(sa.Boolean)
    progress = mapped_column(sa.Integer)
    shutdown_terminate = mapped_column(sa.Boolean, default=False)
    disable_terminate = mapped_column(sa.Boolean, default=False)
    cell_name = mapped_column(sa.String(255))
    cleaned = mapped_column(sa.Integer, default=0)
    hidden = mapped_column(sa.Boolean, default=False)


class InstanceInfoCache(SoftDelete, Base):
    """The network interfaces of a server as JSON, as they were last read from the network service."""

    __tablename__ = 'instance_info_caches'
    __table_args__ = (unique('instance_info_caches', 'instance_uuid'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    network_info = mapped_column(MediumText)
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'), nullable=False)


class InstanceExtra(SoftDelete, Base):
    """JSON columns of a server.

    ``flavor`` is a dict {cur, old, new}, and ``pci_requests`` is a plain list. Each other column is one serialised
    object. The texts grow with extra specs, vCPUs and devices, and may be longer than MySQL's TEXT (65,535 bytes).
    """

    __tablename__ = 'instance_extra'
    __table_args__ = (index('instance_extra', 'instance_uuid'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'), nullable=False)
    device_metadata = mapped_column(MediumText)
    numa_topology = mapped_column(MediumText)
    pci_requests = mapped_column(MediumText)
    flavor = mapped_column(MediumText)
    vcpu_model = mapped_column(MediumText)
    migration_context = mapped_column(MediumText)
    keypairs = mapped_column(MediumText)
    trusted_certs = mapped_column(MediumText)
    resources = mapped_column(MediumText)


class InstanceMetadata(SoftDelete, Base):
    """One metadata pair (key and value) of a server, which its user set."""

    __tablename__ = 'instance_metadata'
    __table_args__ = (index('instance_metadata', 'instance_uuid'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    key = mapped_column(sa.String(255))
    value = mapped_column(sa.String(255))
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'))


class InstanceSystemMetadata(SoftDelete, Base):
    """One pair (key and value) of a server's system metadata, which only Kilonova sets."""

    __tablename__ = 'instance_system_metadata'
    __table_args__ = (index('instance_system_metadata', 'instance_uuid'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    key = mapped_column(sa.String(255), nullable=False)
    value = mapped_column(sa.String(255))
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'), nullable=False)


class InstanceFault(SoftDelete, Base):
    """A record of a failure of a server."""

    __tablename__ = 'instance_faults'
    __table_args__ = (
        index('instance_faults', 'host'),
        index('instance_faults', 'instance_uuid', 'deleted', 'created_at'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'))
    code = mapped_column(sa.Integer, nullable=False)
    message = mapped_column(sa.String(255))
    details = mapped_column(MediumText)
    host = mapped_column(sa.String(255))


class InstanceAction(SoftDelete, Base):
    """An action on a server, such as a reboot. It is written when the request is accepted."""

    __tablename__ = 'instance_actions'
    __table_args__ = (
        index('instance_actions', 'instance_uuid'),
        index('instance_actions', 'request_id'),
        index('instance_actions', 'instance_uuid', 'updated_at'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    action = mapped_column(sa.String(255))
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'))
    request_id = mapped_column(sa.String(255))
    user_id = mapped_column(sa.String(255))
    project_id = mapped_column(sa.String(255))
    start_time = mapped_column(DateTime, default=utcnow)
    finish_time = mapped_column(DateTime)
    message = mapped_column(sa.String(255))


class InstanceActionEvent(SoftDelete, Base):
    """An event of a server's action: one part of the work, with its result."""

    __tablename__ = 'instance_actions_events'
    # MySQL creates an index for each foreign key by itself. Other databases need this index.
    __table_args__ = (index('instance_actions_events', 'action_id'), TABLE_OPTIONS)

    id = mapped_column(sa.Integer, primary_key=True)
    event = mapped_column(sa.String(255))
    action_id = mapped_column(sa.Integer, sa.ForeignKey('instance_actions.id'))
    start_time = mapped_column(DateTime, default=utcnow)
    finish_time = mapped_column(DateTime)
    result = mapped_column(sa.String(255))
    traceback = mapped_column(sa.Text)
    host = mapped_column(sa.String(255))
    details = mapped_column(sa.Text)


class Migration(SoftDelete, Base):
    """A move of a server: cold migration, live migration, resize or evacuation."""

    __tablename__ = 'migrations'
    __table_args__ = (
        index('migrations', 'deleted', 'instance_uuid', 'status', name='migrations_instance_uuid_and_status_idx'),
        # InnoDB's maximum key length is too small for five names of 255 characters, so only prefixes are indexed.
        index(
            'migrations',
            'deleted',
            'source_compute',
            'dest_compute',
            'source_node',
            'dest_node',
            'status',
            name='migrations_by_host_nodes_and_status_idx',
            prefixes={'source_compute': 100, 'dest_compute': 100, 'source_node': 100, 'dest_node': 100, 'status': 100},
        ),
        index(
            'migrations',
            'deleted',
            'source_compute',
            'source_node',
            'status',
            name='migrations_source_and_status_idx',
            prefixes={'source_compute': 100, 'source_node': 100, 'status': 100},
        ),
        index(
            'migrations',
            'deleted',
            'dest_compute',
            'dest_node',
            'status',
            name='migrations_dest_and_status_idx',
            prefixes={'dest_compute': 100, 'dest_node': 100, 'status': 100},
        ),
        unique('migrations', 'uuid'),
        index('migrations', 'updated_at'),
        index('migrations', 'dest_compute_id', 'deleted'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    source_compute = mapped_column(sa.String(255))
    dest_compute = mapped_column(sa.String(255))
    source_node = mapped_column(sa.String(255))
    dest_node = mapped_column(sa.String(255))
    dest_compute_id = mapped_column(sa.BigInteger)
    dest_host = mapped_column(sa.String(255))
    old_instance_type_id = mapped_column(sa.Integer)
    new_instance_type_id = mapped_column(sa.Integer)
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'))
    uuid = mapped_column(sa.String(36))
    status = mapped_column(sa.String(255))
    migration_type = mapped_column(
        sa.Enum('migration', 'resize', 'live-migration', 'evacuation', name='migration_type')
    )
    hidden = mapped_column(sa.Boolean, default=False)
    memory_total = mapped_column(sa.BigInteger)
    memory_processed = mapped_column(sa.BigInteger)
    memory_remaining = mapped_column(sa.BigInteger)
    disk_total = mapped_column(sa.BigInteger)
    disk_processed = mapped_column(sa.BigInteger)
    disk_remaining = mapped_column(sa.BigInteger)
    cross_cell_move = mapped_column(sa.Boolean, default=False)
    user_id = mapped_column(sa.String(255))
    project_id = mapped_column(sa.String(255))


class BlockDeviceMapping(SoftDelete, Base):
    """A disk of a server, such as a volume."""

    __tablename__ = 'block_device_mapping'
    __table_args__ = (
        index('block_device_mapping', 'snapshot_id'),
        index('block_device_mapping', 'volume_id'),
        index('block_device_mapping', 'instance_uuid', 'device_name'),
        index('block_device_mapping', 'instance_uuid', 'volume_id'),
        index('block_device_mapping', 'instance_uuid'),
        unique('block_device_mapping', 'uuid'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'))
    uuid = mapped_column(sa.String(36))
    source_type = mapped_column(sa.String(255))
    destination_type = mapped_column(sa.String(255))
    guest_format = mapped_column(sa.String(255))
    device_type = mapped_column(sa.String(255))
    disk_bus = mapped_column(sa.String(255))
    boot_index = mapped_column(sa.Integer)
    device_name = mapped_column(sa.String(255))
    delete_on_termination = mapped_column(sa.Boolean, default=False)
    snapshot_id = mapped_column(sa.String(36))
    volume_id = mapped_column(sa.String(36))
    volume_size = mapped_column(sa.Integer)
    volume_type = mapped_column(sa.String(255))
    image_id = mapped_column(sa.String(36))
    no_device = mapped_column(sa.Boolean)
    connection_info = mapped_column(MediumText)
    tag = mapped_column(sa.String(255))
    attachment_id = mapped_column(sa.String(36))
    encrypted = mapped_column(sa.Boolean, default=False)
    encryption_secret_uuid = mapped_column(sa.String(36))
    encryption_format = mapped_column(sa.String(128))
    encryption_options = mapped_column(sa.String(4096))


class Tag(Timestamps, Base):
    """A tag of a server."""

    __tablename__ = 'tags'
    __table_args__ = (index('tags', 'tag'), TABLE_OPTIONS)

    resource_id = mapped_column(sa.String(36), primary_key=True)
    tag = mapped_column(sa.Unicode(80), primary_key=True)


class ConsoleAuthToken(Timestamps, Base):
    """A token that opens a console of a server once, until ``expires`` (epoch seconds by the database's clock).

    Attributes:
        token_hash: SHA-256 of the token that the user received. The token itself is not stored.
        host: Address at which the console listens, together with ``port``.
        compute_host: The server's host when the token was created. The token becomes invalid if the server leaves this
            host or is deleted.
    """

    __tablename__ = 'console_auth_tokens'
    __table_args__ = (
        unique('console_auth_tokens', 'token_hash'),
        index('console_auth_tokens', 'instance_uuid'),
        index('console_auth_tokens', 'expires'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    token_hash = mapped_column(sa.String(255), nullable=False)
    console_type = mapped_column(sa.String(255), nullable=False)
    compute_host = mapped_column(sa.String(255), nullable=False)
    host = mapped_column(sa.String(255), nullable=False)
    port = mapped_column(sa.Integer, nullable=False)
    tls_port = mapped_column(sa.Integer)
    internal_access_path = mapped_column(sa.String(255))
    instance_uuid = mapped_column(sa.String(36), nullable=False)
    access_url_base = mapped_column(sa.String(255))
    expires = mapped_column(sa.Integer, nullable=False)


class TaskLog(SoftDelete, Base):
    """One run of a host's periodic task for one period. Only the usage audit uses this table."""

    __tablename__ = 'task_log'
    __table_args__ = (
        unique('task_log', 'task_name', 'host', 'period_beginning', 'period_ending'),
        index('task_log', 'period_beginning'),
        index('task_log', 'host'),
        index('task_log', 'period_ending'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    task_name = mapped_column(sa.String(255), nullable=False)
    state = mapped_column(sa.String(255), nullable=False)
    host = mapped_column(sa.String(255), nullable=False)
    period_beginning = mapped_column(DateTime, nullable=False, default=utcnow)
    period_ending = mapped_column(DateTime, nullable=False, default=utcnow)
    message = mapped_column(sa.String(255), nullable=False)
    task_items = mapped_column(sa.Integer, default=0)
    errors = mapped_column(sa.Integer, default=0)


class VolumeUsage(SoftDelete, Base):
    """The amounts of data that a server's guest read from a volume and wrote to it.

    The ``curr_*`` columns count since the last known start of the guest. The ``tot_*`` columns count everything before
    that start, also the traffic of servers that had the volume earlier. If another server gets the volume and
    reports its counters, the counters of this row are added to that server's row, and this row is deleted. If this does
    not happen before the server is archived, the row is archived together with the server.
    """

    __tablename__ = 'volume_usage_cache'
    __table_args__ = (
        unique('volume_usage_cache', 'volume_id', 'instance_uuid'),
        index('volume_usage_cache', 'instance_uuid'),
        TABLE_OPTIONS,
    )

    id = mapped_column(sa.Integer, primary_key=True)
    volume_id = mapped_column(sa.String(36), nullable=False)
    instance_uuid = mapped_column(sa.String(36), sa.ForeignKey('instances.uuid'))
    # These columns have the same length as the columns of instances from which the values are copied.
    project_id = mapped_column(sa.String(255))
    user_id = mapped_column(sa.String(255))
    availability_zone = mapped_column(sa.String(255))
    tot_last_refreshed = mapped_column(DateTime)
    tot_reads = mapped_column(sa.BigInteger, default=0)
    tot_read_bytes = mapped_column(sa.BigInteger, default=0)
    tot_writes = mapped_column(sa.BigInteger, default=0)
    tot_write_bytes = mapped_column(sa.BigInteger, default=0)
    curr_last_refreshed = mapped_column(DateTime)
    curr_reads = mapped_column(sa.BigInteger, default=0)
    curr_read_bytes = mapped_column(sa.BigInteger, default=0)
    curr_writes = mapped_column(sa.BigInteger, default=0)
    curr_write_bytes = mapped_column(sa.BigInteger, default=0)


# {name of a table: its shadow table}. Archiving moves deleted rows to the shadow table.
SHADOWS: dict[str, sa.Table] = {
    table.name: shadow_of(table) for table in tuple(Base.metadata.sorted_tables) if 'deleted' in table.columns
}
