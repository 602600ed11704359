"""The databases, clients and options that the modules of ``api.services`` use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oslo_config import cfg

from kilonova.accel.client import AcceleratorClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.volume import VolumeClient
from kilonova.rpc.notify import OFF, Notifications

# The resources that quotas limit.
QUOTAS = (
    'instances',
    'cores',
    'ram',
    'metadata_items',
    'injected_files',
    'injected_file_content_bytes',
    'injected_file_path_length',
    'key_pairs',
    'server_groups',
    'server_group_members',
)


@dataclass(frozen=True)
class ApiOptions:
    """The configuration options that the API uses. They are read once, at the start of the process.

    Times are in seconds. ``quotas`` is a dict from resource to limit, where -1 means no limit. ``answer_seconds`` is
    [DEFAULT]rpc_response_timeout, or a default value in a process that does not use oslo.messaging.
    """

    max_limit: int = 1000
    max_servers_per_request: int = 200
    compute_link_prefix: str | None = None
    glance_link_prefix: str | None = None
    skip_down_cells: bool = True
    enable_instance_password: bool = True
    default_zone: str = 'nova'
    internal_zone: str = 'internal'
    schedule_zone: str | None = None
    password_length: int = 12
    service_down_time: int = 60
    allow_resize_to_same_host: bool = False
    instance_name_template: str = 'instance-%08x'
    host: str = ''
    max_local_block_devices: int = 3
    max_disk_devices_to_attach: int = -1
    non_inheritable_image_properties: tuple[str, ...] = ()
    reclaim_instance_interval: int = 0
    recheck_quota: bool = True
    quota_driver: str = 'DbQuotaDriver'
    unified_limits_strategy: str = 'require'
    unified_limits_list: tuple[str, ...] = ()
    pcpu_as_vcpu: bool = False
    usage_audit_period: str = 'month'
    key_file: str = ''
    console_seconds: int = 600
    answer_seconds: float = 60
    quotas: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> ApiOptions:
        """Return the options of a parsed configuration."""
        return cls(
            max_limit=conf.api.max_limit,
            max_servers_per_request=conf.api.max_servers_per_request,
            compute_link_prefix=conf.api.compute_link_prefix,
            glance_link_prefix=conf.api.glance_link_prefix,
            skip_down_cells=conf.api.list_records_by_skipping_down_cells,
            enable_instance_password=conf.api.enable_instance_password,
            default_zone=conf.default_availability_zone,
            internal_zone=conf.internal_service_availability_zone,
            schedule_zone=conf.default_schedule_zone,
            password_length=conf.password_length,
            service_down_time=conf.service_down_time,
            allow_resize_to_same_host=conf.allow_resize_to_same_host,
            instance_name_template=conf.instance_name_template,
            host=conf.host,
            max_local_block_devices=conf.max_local_block_devices,
            max_disk_devices_to_attach=conf.compute.max_disk_devices_to_attach,
            non_inheritable_image_properties=tuple(conf.non_inheritable_image_properties),
            reclaim_instance_interval=conf.reclaim_instance_interval,
            quota_driver=conf.quota.driver.rpartition('.')[2],
            unified_limits_strategy=conf.quota.unified_limits_resource_strategy,
            unified_limits_list=tuple(conf.quota.unified_limits_resource_list),
            pcpu_as_vcpu=conf.workarounds.unified_limits_count_pcpu_as_vcpu,
            recheck_quota=conf.quota.recheck_quota,
            usage_audit_period=conf.instance_usage_audit_period,
            key_file=conf.secrets.key_file,
            console_seconds=conf.consoleauth.token_ttl,
            answer_seconds=getattr(conf, 'rpc_response_timeout', cls.answer_seconds),
            quotas={name: conf.quota[name] for name in QUOTAS},
        )


@dataclass(frozen=True)
class Backend:
    """The databases and clients that the API's services use, with its options.

    - ``api_db``: the API database, a ``db.engine.Database``.
    - ``cells``: the cells and their databases, a ``db.queries.cells.Cells``.
    - ``conductor``: an RPC client of the conductors.
    - ``images``: an ImageClient.
    - ``aliases``: the PCI aliases.
    - ``compute``: an RPC client of the compute hosts. If it is None, hosts are not notified.
    - ``placement``: a PlacementClient. If it is None, the resource providers of deleted services remain.
    - ``limits``: a LimitsClient if Keystone has the quota limits, otherwise None.
    - ``accelerators``: the client of the accelerator service, or None if no account for it is configured.
    - ``networks``, ``volumes``: the clients of the network and the volume service, or None if this cloud has none.
    - ``notify``: the sender of notifications to other programs.
    """

    api_db: Any
    cells: Any
    conductor: Any
    images: Any
    aliases: Any
    options: ApiOptions
    compute: Any = None
    placement: Any = None
    limits: Any = None
    accelerators: AcceleratorClient | None = None
    networks: NetworkClient | None = None
    volumes: VolumeClient | None = None
    notify: Notifications = OFF

    def all_cells(self) -> list[Any]:
        """Return the databases of all cells, including cell0 and disabled cells.

        Disabled cells keep their servers. Cell0 has the servers that never got a host.
        """
        found: list[Any] = self.cells.databases()
        return found

    def compute_cells(self) -> list[Any]:
        """Return the databases of all cells that have hosts: all except cell0."""
        cell0 = self.cells.cell0()
        return [cell for cell in self.cells.databases() if cell is not cell0]
