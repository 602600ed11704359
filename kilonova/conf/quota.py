"""The [quota] options: the source of limits, and the default limits of projects. -1 means no limit."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'quota'


def _limit(name: str, default: int, what: str) -> cfg.IntOpt:
    return cfg.IntOpt(name, default=default, min=-1, deprecated_opts=was(f'quota_{name}'), help=f'{what} -1: no limit.')


# The name of each driver is accepted with Nova's prefix and with Kilonova's.
DRIVERS = tuple(
    f'{prefix}.quota.{name}'
    for prefix in ('nova', 'kilonova')
    for name in ('DbQuotaDriver', 'UnifiedLimitsDriver', 'NoopQuotaDriver')
)

OPTS = [
    cfg.StrOpt(
        'driver',
        default='nova.quota.DbQuotaDriver',
        choices=DRIVERS,
        deprecated_opts=was('quota_driver'),
        help='Source of the limits. DbQuotaDriver: the API database (openstack quota set), or the options below '
        'if it has no value. UnifiedLimitsDriver: Keystone (openstack registered limit, openstack limit), '
        'accessed as set in [oslo_limit]; besides servers it limits every resource class and every PCI '
        'alias, such as a type of GPU. NoopQuotaDriver: no limits. Read by the API.',
    ),
    cfg.StrOpt(
        'unified_limits_resource_strategy',
        default='require',
        choices=('require', 'ignore'),
        help='How names without a registered limit in Keystone are treated. require: the names in '
        'unified_limits_resource_list have the limit 0, all others have no limit. ignore: the names in the '
        'list have no limit, all others have the limit 0.',
    ),
    cfg.ListOpt(
        'unified_limits_resource_list',
        default=['servers'],
        help='The names for unified_limits_resource_strategy: servers, class:VCPU, class:CUSTOM_PCI_10DE_20B5, '
        'alias:a100 and the like.',
    ),
    _limit('instances', 10, 'Maximum number of servers of a project.'),
    _limit('cores', 20, 'Maximum number of vCPUs of all servers of a project.'),
    _limit('ram', 50 * 1024, 'Maximum MiB of memory of all servers of a project.'),
    _limit('metadata_items', 128, 'Maximum number of metadata items of one server.'),
    _limit(
        'injected_files',
        5,
        'Maximum number of files that one create (until microversion 2.56) may inject into the '
        'config drive of its servers.',
    ),
    _limit('injected_file_content_bytes', 10 * 1024, 'Maximum bytes of one injected file.'),
    _limit('injected_file_path_length', 255, 'Maximum number of characters in the path of an injected file.'),
    _limit('key_pairs', 100, 'Maximum number of key pairs of a user.'),
    _limit('server_groups', 10, 'Maximum number of server groups of a project.'),
    _limit('server_group_members', 10, 'Maximum number of servers in one server group.'),
    cfg.BoolOpt(
        'recheck_quota',
        default=True,
        help='Whether usage is counted again after servers, resizes and key pairs are written. Concurrent '
        'requests may each find the last free quota; then all of them are undone and retried, each after '
        'a different delay. Off: concurrent requests may exceed the quota of a project, and a create '
        'needs one SQL statement per database less.',
    ),
]
