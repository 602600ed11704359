"""[filter_scheduler]: which filters and weighers choose among Placement's candidates, and their settings."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'filter_scheduler'

_MULTIPLIER = ('Weight of %s among the hosts that passed: each weigher scales its values to 0..1, times this. '
               'A host aggregate may override it with metadata of the same key.')

OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt('available_filters', default=['kilonova.scheduler.filters.all_filters'],
                    help='Where filters may come from: all_filters (every installed entry point of '
                         'kilonova.scheduler.filters), and dotted paths of further classes, or of functions that '
                         'return classes. nova.scheduler.filters.all_filters is understood too.'),
    cfg.ListOpt('enabled_filters',
                default=['ComputeFilter', 'ComputeCapabilitiesFilter', 'ImagePropertiesFilter',
                         'ServerGroupAntiAffinityFilter', 'ServerGroupAffinityFilter', 'PciPassthroughFilter'],
                help='Class names of the filters that run, in this order; cheap and selective ones first. A name '
                     'that no available filter has stops the start.'),
    cfg.ListOpt('weight_classes', default=['kilonova.scheduler.weighers.all_weighers'],
                help='Weighers that run: all_weighers (every installed entry point of kilonova.scheduler.weighers), '
                     'entry point names, or dotted paths of classes. nova.scheduler.weights.all_weighers is '
                     'understood too.'),
    cfg.IntOpt('host_subset_size', default=1, min=1,
               help='A host is drawn at random from this many best ones. More than 1 keeps several schedulers from '
                    'choosing the same host at once.'),
    cfg.BoolOpt('shuffle_best_same_weighed_hosts', default=False,
                help='Whether hosts of the same best weight are tried in random order.'),
    cfg.IntOpt('max_io_ops_per_host', default=8, min=0,
               help='IoOpsFilter: hosts with this many builds, resizes, snapshots and migrations under way are left '
                    'out.'),
    cfg.IntOpt('max_instances_per_host', default=50, min=1,
               help='NumInstancesFilter: hosts with this many servers are left out.'),
    cfg.StrOpt('image_properties_default_architecture', default=None,
               help='ImagePropertiesFilter: the architecture of images that name none. Unset: any host will do.'),
    cfg.BoolOpt('pci_in_placement', default=False,
                help='The scheduler asks Placement for the PCI devices of a flavor. Read by the scheduler, and by API '
                     'and computes, whose aliases may then name a resource class alone. Set it once every compute has '
                     '[pci]report_in_placement.'),
    cfg.FloatOpt('ram_weight_multiplier', default=1.0, help=_MULTIPLIER % 'free memory'),
    cfg.FloatOpt('cpu_weight_multiplier', default=1.0, help=_MULTIPLIER % 'free VCPUs'),
    cfg.FloatOpt('disk_weight_multiplier', default=1.0, help=_MULTIPLIER % 'free disk'),
    cfg.FloatOpt('hypervisor_version_weight_multiplier', default=1.0, help=_MULTIPLIER % 'a newer hypervisor'),
    cfg.FloatOpt('num_instances_weight_multiplier', default=0.0, help=_MULTIPLIER % 'the number of servers'),
    cfg.FloatOpt('io_ops_weight_multiplier', default=-1.0, help=_MULTIPLIER % 'work under way'),
    cfg.FloatOpt('pci_weight_multiplier', default=1.0, min=0.0,
                 help=_MULTIPLIER % 'few free PCI devices (servers that need none keep away from hosts with some)'),
    cfg.FloatOpt('build_failure_weight_multiplier', default=1000000.0, help=_MULTIPLIER % 'few failed builds'),
]
