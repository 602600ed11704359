"""The [scheduler] options: the query to Placement, and the number of hosts that are returned."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'scheduler'

OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        'workers',
        min=0,
        help='Number of kilonova-scheduler processes on this host. A parent process restarts those that die. '
        'Empty or 0: one process per CPU. Several processes choose hosts at the same time: raise '
        '[filter_scheduler]host_subset_size with their number.',
    ),
    cfg.IntOpt(
        'max_attempts',
        default=3,
        min=1,
        deprecated_opts=was('scheduler_max_attempts'),
        help='Maximum number of hosts that a build or move tries. The scheduler returns one host and '
        'max_attempts - 1 alternates; 1 means no second try. A host that failed because another server of '
        'the same server group was placed there first does not count.',
    ),
    cfg.IntOpt(
        'decisions_keep',
        default=10_000,
        min=0,
        help='Number of scheduler decisions that are kept in the API database. They say why each server was '
        'placed on its host, for kilonova-manage scheduler explain. Raise it if more servers than this are '
        'created in decisions_max_age. 0: decisions are not stored.',
    ),
    cfg.IntOpt(
        'decisions_max_age',
        default=7 * 24 * 3600,
        min=60,
        mutable=True,
        help='Seconds after which a decision is deleted. Both limits are applied every ten minutes.',
    ),
    cfg.IntOpt(
        'decisions_hosts',
        default=10,
        min=1,
        mutable=True,
        max=1000,
        help='Maximum number of hosts that a stored decision names in each list: hosts that a filter rejected, '
        'the best hosts that passed, hosts that refused a claim. The total numbers are always stored. Each '
        'host takes about 100 bytes in the database.',
    ),
    cfg.IntOpt(
        'max_placement_results',
        default=1000,
        min=1,
        mutable=True,
        help='Maximum number of allocation candidates that Placement returns. If it is too small in a large '
        'cloud, filters and weighers do not see all hosts. There is no maximum for requests with hints for '
        'groups, for other hosts or for one host.',
    ),
    cfg.BoolOpt(
        'query_placement_for_image_type_support',
        default=False,
        help="Ask Placement for hosts that can boot the image's disk format (their COMPUTE_IMAGE_TYPE_* traits).",
    ),
    cfg.BoolOpt(
        'image_metadata_prefilter',
        default=False,
        help='Ask Placement for hosts with the traits of the image properties hw_disk_bus, hw_cdrom_bus, '
        'hw_video_model, hw_vif_model, hw_architecture, hw_emulation_architecture and hw_viommu_model. '
        'For clouds whose hosts differ in them.',
    ),
    cfg.BoolOpt(
        'limit_tenants_to_placement_aggregate',
        default=False,
        help='Place the servers of a project on hosts of the aggregates whose metadata filter_tenant_id (or a '
        'key that begins with it) has the project as its value. Servers of other projects may be placed '
        'there as well, unless AggregateMultiTenancyIsolation is enabled.',
    ),
    cfg.BoolOpt(
        'placement_aggregate_required_for_tenants',
        default=False,
        help='With limit_tenants_to_placement_aggregate: the servers of a project without such an aggregate '
        'get no host. Off: they may be placed on all hosts.',
    ),
    cfg.BoolOpt(
        'enable_isolated_aggregate_filtering',
        default=False,
        help='Reserve hosts of an aggregate with metadata trait:<name>=required for servers whose flavor or '
        'image requires all these traits.',
    ),
]
