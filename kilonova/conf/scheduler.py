"""The [scheduler] options: the query to Placement, and the number of hosts that are returned."""
from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'scheduler'

OPTS: list[cfg.Opt] = [
    cfg.IntOpt('workers', min=0,
               help='Processes of kilonova-scheduler on this host, with a parent that restarts those that die. Empty '
                    'or 0: one a CPU. Several choose at the same time: raise [filter_scheduler]host_subset_size with '
                    'them.'),
    cfg.IntOpt('max_attempts', default=3, min=1,
               deprecated_opts=was('scheduler_max_attempts'),
               help='How many hosts a build or move may try. A select names one host and max_attempts - 1 alternates; '
                    '1 means no second try. Hosts that others of its server group took first do not count.'),
    cfg.IntOpt('decisions_keep', default=10_000, min=0,
               help='Decisions of schedulers that are kept in the api database: why each server went where it went, '
                    'for kilonova-manage scheduler explain. Raise it where more servers a week are made than this. '
                    '0: none is noted.'),
    cfg.IntOpt('decisions_max_age', default=7 * 24 * 3600, min=60, mutable=True,
               help='Seconds after which a decision is dropped. Both limits are looked at every ten minutes.'),
    cfg.IntOpt('decisions_hosts', default=10, min=1, mutable=True, max=1000,
               help='How many hosts a decision names of each kind: those that a filter turned away, the best that '
                    'passed, those that refused a claim. How many there were is always told. More hosts cost room in '
                    'the database (about 100 bytes each).'),
    cfg.IntOpt('max_placement_results', default=1000, min=1, mutable=True,
               help='How many allocation candidates Placement is asked for. Too small a number in a large cloud hides '
                    'hosts from filters and weighers; hints for groups, other hosts and one host lift it.'),
    cfg.BoolOpt('query_placement_for_image_type_support', default=False,
                help="Ask Placement for hosts that can boot the image's disk format (their COMPUTE_IMAGE_TYPE_* "
                     'traits).'),
    cfg.BoolOpt('image_metadata_prefilter', default=False,
                help='Ask Placement for hosts with the traits of the image properties hw_disk_bus, hw_cdrom_bus, '
                     'hw_video_model, hw_vif_model, hw_architecture, hw_emulation_architecture and hw_viommu_model. '
                     'For clouds whose hosts differ in them.'),
    cfg.BoolOpt('limit_tenants_to_placement_aggregate', default=False,
                help='Servers of a project go to hosts of the aggregates whose metadata filter_tenant_id (or a key '
                     'that begins so) is the project. Others may go there too, unless '
                     'AggregateMultiTenancyIsolation runs.'),
    cfg.BoolOpt('placement_aggregate_required_for_tenants', default=False,
                help='With limit_tenants_to_placement_aggregate: a project without such an aggregate gets no host. '
                     'Otherwise it may use all hosts.'),
    cfg.BoolOpt('enable_isolated_aggregate_filtering', default=False,
                help='Hosts of an aggregate with metadata trait:<name>=required are left to servers whose flavor or '
                     'image requires all these traits.'),
]
