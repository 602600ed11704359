"""DumpFilter: writes down what a filter can see, and lets every host pass."""

from nova.i18n import _LI
from nova.scheduler import filters
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

HOST = (
    'host',
    'nodename',
    'uuid',
    'cell_uuid',
    'total_usable_ram_mb',
    'total_usable_disk_gb',
    'disk_mb_used',
    'free_ram_mb',
    'free_disk_mb',
    'vcpus_total',
    'vcpus_used',
    'pci_stats',
    'numa_topology',
    'num_instances',
    'num_io_ops',
    'failed_builds',
    'host_ip',
    'hypervisor_type',
    'hypervisor_version',
    'hypervisor_hostname',
    'cpu_info',
    'supported_instances',
    'limits',
    'metrics',
    'aggregates',
    'instances',
    'ram_allocation_ratio',
    'cpu_allocation_ratio',
    'disk_allocation_ratio',
    'updated',
    'stats',
    'service',
    'allocation_candidates',
)
# What a request has besides its fields.
REQUEST = ('memory_mb', 'vcpus', 'root_gb', 'ephemeral_gb', 'swap', 'root_required', 'root_forbidden', 'same_subtree')


class DumpFilter(filters.BaseHostFilter):
    """One line a field."""

    run_filter_once_per_request = True

    def host_passes(self, host_state, spec_obj):
        LOG.info(_LI('host_state: %s'), host_state)
        for what, obj, names in (
            ('host_state', host_state, HOST),
            ('spec_obj', spec_obj, [*spec_obj.fields, *REQUEST]),
            ('flavor', spec_obj.flavor, spec_obj.flavor.fields),
        ):
            for name in names:
                LOG.info(_LI('%(what)s.%(name)s: %(value)s'), {'what': what, 'name': name, 'value': getattr(obj, name)})
        return True
