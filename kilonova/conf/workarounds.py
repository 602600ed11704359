"""The [workarounds] options, which switch off a check or avoid a defect."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'workarounds'

OPTS = [
    cfg.BoolOpt('disable_compute_service_check_for_ffu', default=False,
                help='Start although the database holds compute services that are older than the release before this '
                     'one. For upgrades over several releases, while no compute runs.'),
    cfg.BoolOpt('disable_group_policy_check_upcall', default=False,
                help='Do not look at the policy of a server group once more when a host is claimed. Requests at the '
                     'same time may then break affinity and anti-affinity. For conductors of cells that may not reach '
                     'the API database. Read by computes.'),
    cfg.BoolOpt('unified_limits_count_pcpu_as_vcpu', default=False,
                help='With [quota]driver = nova.quota.UnifiedLimitsDriver: dedicated CPUs (class:PCPU) are counted as '
                     'class:VCPU, as long as no limit for class:PCPU is registered. Read by the API.'),
    cfg.BoolOpt('disable_fallback_pcpu_query', default=False,
                help='Ask Placement only for PCPU when a flavor wants dedicated CPUs. Otherwise hosts without any PCPU '
                     'are asked for VCPU besides, for computes that do not report PCPU yet. Read by the scheduler.'),
]
