"""The [quota] options: the source of limits, and the default limits of projects. -1 means no limit."""
from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'quota'


def _limit(name: str, default: int, what: str) -> cfg.IntOpt:
    return cfg.IntOpt(name, default=default, min=-1, deprecated_opts=was(f'quota_{name}'),
                      help=f'{what} -1: no limit.')


# The names are those of Nova and of Kilonova.
DRIVERS = tuple(f'{prefix}.quota.{name}' for prefix in ('nova', 'kilonova')
                for name in ('DbQuotaDriver', 'UnifiedLimitsDriver', 'NoopQuotaDriver'))

OPTS = [
    cfg.StrOpt('driver', default='nova.quota.DbQuotaDriver', choices=DRIVERS,
               deprecated_opts=was('quota_driver'),
               help='Where limits come from. DbQuotaDriver: the API database (openstack quota set), and the options '
                    'below where it says nothing. UnifiedLimitsDriver: Keystone (openstack registered limit, openstack '
                    'limit), asked as [oslo_limit] says; besides servers it limits every resource class and every PCI '
                    'alias, such as a type of GPU. NoopQuotaDriver: nothing is limited. Read by the API.'),
    cfg.StrOpt('unified_limits_resource_strategy', default='require', choices=('require', 'ignore'),
               help='What holds for names that have no registered limit in Keystone. require: those of '
                    'unified_limits_resource_list are not allowed at all until they have one, all others are without '
                    'limit. ignore: those of the list are without limit, all others are not allowed at all.'),
    cfg.ListOpt('unified_limits_resource_list', default=['servers'],
                help='The names that unified_limits_resource_strategy speaks of: servers, class:VCPU, '
                     'class:CUSTOM_PCI_10DE_20B5, alias:a100 and the like.'),
    _limit('instances', 10, 'Servers of a project.'),
    _limit('cores', 20, 'vCPUs of all servers of a project.'),
    _limit('ram', 50 * 1024, 'MiB of memory of all servers of a project.'),
    _limit('metadata_items', 128, 'Metadata items of one server.'),
    _limit('injected_files', 5, 'Files that one create (until 2.56) may put into the config drive of its servers.'),
    _limit('injected_file_content_bytes', 10 * 1024, 'Bytes of one such file.'),
    _limit('injected_file_path_length', 255, 'Characters of the path of such a file.'),
    _limit('key_pairs', 100, 'Key pairs of a user.'),
    _limit('server_groups', 10, 'Server groups of a project.'),
    _limit('server_group_members', 10, 'Servers of one server group.'),
    cfg.BoolOpt('recheck_quota', default=True,
                help='Whether usage is counted once more after servers, resizes and key pairs were written. Requests '
                     'at the same time may each find the last room; then all of them are taken back and tried again, '
                     'each after a moment of its own. Without it a project may exceed its quotas by what arrives at '
                     'once, and a create costs one statement a database less.'),
]
