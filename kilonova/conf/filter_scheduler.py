"""The [filter_scheduler] options: the filters and weighers that choose among the hosts that Placement returns."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'filter_scheduler'

_MULTIPLIER = (
    'Weight of %s among the hosts that passed the filters: the values of the hosts are scaled to 0..1 and '
    'multiplied by this. A host aggregate may override it with metadata of the same key.'
)

OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        'available_filters',
        default=['kilonova.scheduler.filters.all_filters'],
        deprecated_opts=was('scheduler_available_filters'),
        help='Where filters may come from: all_filters (every installed entry point of '
        'kilonova.scheduler.filters), and dotted paths of further classes, or of functions that '
        'return classes. nova.scheduler.filters.all_filters is accepted as well.',
    ),
    cfg.ListOpt(
        'enabled_filters',
        default=[
            'ComputeFilter',
            'ComputeCapabilitiesFilter',
            'ImagePropertiesFilter',
            'ServerGroupAntiAffinityFilter',
            'ServerGroupAffinityFilter',
            'PciPassthroughFilter',
            'NUMATopologyFilter',
        ],
        deprecated_opts=was('scheduler_default_filters'),
        help='Class names of the filters that run, in this order. Put cheap and selective filters first. If a '
        'name belongs to no available filter, the scheduler does not start.',
    ),
    cfg.ListOpt(
        'weight_classes',
        default=['kilonova.scheduler.weighers.all_weighers'],
        deprecated_opts=was('scheduler_weight_classes'),
        help='Weighers that run: all_weighers (every installed entry point of kilonova.scheduler.weighers), '
        'entry point names, or dotted paths of classes. nova.scheduler.weights.all_weighers is accepted '
        'as well.',
    ),
    cfg.IntOpt(
        'host_subset_size',
        default=1,
        min=1,
        mutable=True,
        deprecated_opts=was('scheduler_host_subset_size'),
        help='The host is chosen at random among this number of best hosts. A value above 1 makes it less '
        'likely that several schedulers choose the same host at the same time.',
    ),
    cfg.BoolOpt(
        'shuffle_best_same_weighed_hosts',
        default=False,
        mutable=True,
        help='Whether hosts that share the best weight are tried in random order.',
    ),
    cfg.IntOpt(
        'max_io_ops_per_host',
        default=8,
        min=0,
        mutable=True,
        deprecated_opts=was('max_io_ops_per_host'),
        help='IoOpsFilter and AggregateIoOpsFilter (with which metadata of an aggregate may override it): a '
        'host with this number of running builds, resizes, snapshots and migrations is left out. A build, '
        'or a move to the host, counts from its claim on the host to its end there. A move from the host, '
        'or a snapshot, counts while the disk is copied. The scheduler learns the number with each claim, '
        'each end of a build and each release of resources. It learns of the end of a copy with the next '
        'of these, or with the periodic update of the host (update_resources_interval).',
    ),
    cfg.IntOpt(
        'max_instances_per_host',
        default=50,
        min=1,
        mutable=True,
        deprecated_opts=was('max_instances_per_host'),
        help='NumInstancesFilter and AggregateNumInstancesFilter (with which metadata of an aggregate may '
        'override it): a host with this number of servers is left out.',
    ),
    cfg.ListOpt(
        'isolated_images',
        default=[],
        deprecated_opts=was('isolated_images'),
        help='IsolatedHostsFilter: ids of images whose servers may run only on isolated_hosts.',
    ),
    cfg.ListOpt(
        'isolated_hosts',
        default=[],
        deprecated_opts=was('isolated_hosts'),
        help='IsolatedHostsFilter: the hosts for isolated_images.',
    ),
    cfg.BoolOpt(
        'restrict_isolated_hosts_to_isolated_images',
        default=True,
        deprecated_opts=was('restrict_isolated_hosts_to_isolated_images'),
        help='IsolatedHostsFilter: whether servers of other images are kept off isolated_hosts.',
    ),
    cfg.StrOpt(
        'aggregate_image_properties_isolation_namespace',
        deprecated_opts=was('aggregate_image_properties_isolation_namespace'),
        help='AggregateImagePropertiesIsolation: compare only metadata whose key begins with this word and the '
        'separator with image properties. Unset: compare all metadata that has the name of an image '
        'property.',
    ),
    cfg.StrOpt(
        'aggregate_image_properties_isolation_separator',
        default='.',
        deprecated_opts=was('aggregate_image_properties_isolation_separator'),
        help='Separator between aggregate_image_properties_isolation_namespace and the rest of a key.',
    ),
    cfg.StrOpt(
        'image_properties_default_architecture',
        default=None,
        help='ImagePropertiesFilter: the architecture of images that do not name one. Unset: such images may '
        'boot on any host.',
    ),
    cfg.BoolOpt(
        'pci_in_placement',
        default=False,
        help='The scheduler requests the PCI devices of a flavor from Placement. Read by the scheduler, and by '
        'the API and computes, whose aliases may then consist of a resource class only. Set it once every '
        'compute has [pci]report_in_placement.',
    ),
    cfg.FloatOpt(
        'ram_weight_multiplier',
        default=1.0,
        mutable=True,
        deprecated_opts=was('ram_weight_multiplier'),
        help=_MULTIPLIER % 'free memory',
    ),
    cfg.FloatOpt('cpu_weight_multiplier', default=1.0, mutable=True, help=_MULTIPLIER % 'free VCPUs'),
    cfg.FloatOpt(
        'disk_weight_multiplier',
        default=1.0,
        mutable=True,
        deprecated_opts=was('disk_weight_multiplier'),
        help=_MULTIPLIER % 'free disk',
    ),
    cfg.FloatOpt(
        'hypervisor_version_weight_multiplier', default=1.0, mutable=True, help=_MULTIPLIER % 'a newer hypervisor'
    ),
    cfg.FloatOpt(
        'num_instances_weight_multiplier', default=0.0, mutable=True, help=_MULTIPLIER % 'the number of servers'
    ),
    cfg.FloatOpt(
        'io_ops_weight_multiplier',
        default=-1.0,
        mutable=True,
        deprecated_opts=was('io_ops_weight_multiplier'),
        help=_MULTIPLIER % 'running builds, resizes, snapshots and migrations',
    ),
    cfg.FloatOpt(
        'pci_weight_multiplier',
        default=1.0,
        mutable=True,
        min=0.0,
        help=_MULTIPLIER % 'few free PCI devices (keeps servers that need none off hosts with free devices)',
    ),
    cfg.FloatOpt(
        'soft_affinity_weight_multiplier',
        default=1.0,
        mutable=True,
        deprecated_opts=was('soft_affinity_weight_multiplier'),
        help=_MULTIPLIER % 'servers of the same server group, if its policy is soft-affinity,',
    ),
    cfg.FloatOpt(
        'soft_anti_affinity_weight_multiplier',
        default=1.0,
        mutable=True,
        deprecated_opts=was('soft_anti_affinity_weight_multiplier'),
        help=_MULTIPLIER % 'few servers of the same server group, if its policy is soft-anti-affinity,',
    ),
    cfg.FloatOpt(
        'build_failure_weight_multiplier', default=1000000.0, mutable=True, help=_MULTIPLIER % 'few failed builds'
    ),
    cfg.FloatOpt(
        'cross_cell_move_weight_multiplier',
        default=1000000.0,
        mutable=True,
        help=_MULTIPLIER % 'staying in its cell, for a move that may leave it,',
    ),
    cfg.FloatOpt(
        'image_props_weight_multiplier',
        default=0.0,
        mutable=True,
        help=_MULTIPLIER % 'servers whose images have the same properties (one SQL statement per request)',
    ),
    cfg.ListOpt(
        'image_props_weight_setting',
        default=[],
        help='ImagePropertiesWeigher: the image properties that are compared, and the ratio of each, as '
        'name=ratio. Empty: all properties with the ratio 1.',
    ),
]
