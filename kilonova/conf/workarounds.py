"""The [workarounds] options, which switch off a check or avoid a defect."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'workarounds'

OPTS = [
    cfg.BoolOpt(
        'disable_compute_service_check_for_ffu',
        default=False,
        help='Start even if the database contains compute services that are older than the previous release. '
        'For upgrades over several releases, while no compute runs.',
    ),
    cfg.BoolOpt(
        'disable_group_policy_check_upcall',
        default=False,
        help='Do not check the policy of a server group again when a host is claimed. Concurrent requests may '
        'then violate affinity and anti-affinity. For cells whose conductors cannot reach the API '
        'database. Read by computes.',
    ),
    cfg.BoolOpt(
        'unified_limits_count_pcpu_as_vcpu',
        default=False,
        help='With [quota]driver = nova.quota.UnifiedLimitsDriver: count dedicated CPUs (class:PCPU) as '
        'class:VCPU, as long as no limit for class:PCPU is registered. Read by the API.',
    ),
    cfg.BoolOpt(
        'disable_fallback_pcpu_query',
        default=False,
        help='Request only PCPU from Placement if a flavor requires dedicated CPUs. Off: Placement is also '
        'queried for VCPU of hosts without any PCPU, for computes that do not report PCPU yet. Read by '
        'the scheduler.',
    ),
]
