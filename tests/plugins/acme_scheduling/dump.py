"""DumpFilter: writes down what a filter can see, and lets every host pass."""
from nova.i18n import _LI
from nova.scheduler import filters
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

HOST = ('host', 'nodename', 'uuid', 'cell_uuid', 'total_usable_ram_mb', 'total_usable_disk_gb', 'disk_mb_used',
        'free_ram_mb', 'free_disk_mb', 'vcpus_total', 'vcpus_used', 'pci_stats', 'numa_topology', 'num_instances',
        'num_io_ops', 'failed_builds', 'host_ip', 'hypervisor_type', 'hypervisor_version', 'hypervisor_hostname',
        'cpu_info', 'supported_instances', 'limits', 'metrics', 'aggregates', 'instances', 'ram_allocation_ratio',
        'cpu_allocation_ratio', 'disk_allocation_ratio', 'updated', 'stats', 'service', 'allocation_candidates')
REQUEST = ('memory_mb', 'vcpus', 'root_gb', 'ephemeral_gb', 'swap', 'flavor', 'image', 'project_id', 'user_id',
           'instance_uuid', 'num_instances', 'scheduler_hints', 'availability_zone', 'pci_requests', 'numa_topology',
           'requested_destination', 'instance_group', 'limits', 'retry', 'ignore_hosts', 'force_hosts', 'force_nodes',
           'is_bfv')


class DumpFilter(filters.BaseHostFilter):
    """One line a field."""

    run_filter_once_per_request = True

    def host_passes(self, host_state, spec_obj):
        LOG.info(_LI('host_state: %s'), host_state)
        for name in HOST:
            LOG.info(_LI('host_state.%(name)s: %(value)s'), {'name': name, 'value': getattr(host_state, name)})
        for name in REQUEST:
            LOG.info(_LI('spec_obj.%(name)s: %(value)s'), {'name': name, 'value': getattr(spec_obj, name)})
        return True
