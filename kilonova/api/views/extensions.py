"""Extensions as they are listed: what was once an extension of the API, as far as it is here.

An entry says nothing about versions: all of it has long been part of the API.
"""
from __future__ import annotations

from typing import Any, NamedTuple


class Extension(NamedTuple):
    """One entry of the list, shown where the table of routes has ``path`` (and below it ``action``)."""

    alias: str
    name: str
    description: str
    path: str
    action: str | None = None


_SERVER, _ACTION, _FLAVOR = '/servers/{server_id}', '/servers/{server_id}/action', '/flavors/{flavor_id}'

EXTENSIONS: tuple[Extension, ...] = (
    Extension('NMN', 'Multinic', 'Several addresses of servers in one network.', _ACTION, 'addFixedIp'),
    Extension('OS-DCF', 'DiskConfig', 'Disk configuration of servers.', _SERVER),
    Extension('OS-EXT-AZ', 'ExtendedAvailabilityZone', 'Availability zones of servers.', _SERVER),
    Extension('OS-EXT-IMG-SIZE', 'ImageSize', 'Sizes of images.', '/images/{image_id}'),
    Extension('OS-EXT-IPS', 'ExtendedIps', 'Kinds of the addresses of servers.', f'{_SERVER}/ips'),
    Extension('OS-EXT-IPS-MAC', 'ExtendedIpsMac', 'MAC addresses of servers.', f'{_SERVER}/ips'),
    Extension('OS-EXT-SRV-ATTR', 'ExtendedServerAttributes', 'Where servers are, for administrators.', _SERVER),
    Extension('OS-EXT-STS', 'ExtendedStatus', 'States of servers besides their status.', _SERVER),
    Extension('OS-FLV-DISABLED', 'FlavorDisabled', 'Whether a flavor is disabled.', _FLAVOR),
    Extension('OS-FLV-EXT-DATA', 'FlavorExtraData', 'Further disks of flavors.', _FLAVOR),
    Extension('OS-SCH-HNT', 'SchedulerHints', 'Hints to the scheduler.', '/servers'),
    Extension('OS-SRV-USG', 'ServerUsage', 'When servers were launched and terminated.', _SERVER),
    Extension('os-admin-actions', 'AdminActions', 'Actions of administrators on servers.', _ACTION, 'os-resetState'),
    Extension('os-admin-password', 'AdminPassword', "Changes the password of a server's administrator.",
              _ACTION, 'changePassword'),
    Extension('os-aggregates', 'Aggregates', 'Host aggregates.', '/os-aggregates'),
    Extension('os-assisted-volume-snapshots', 'AssistedVolumeSnapshots', 'Snapshots for the volume service.',
              '/os-assisted-volume-snapshots'),
    Extension('os-attach-interfaces', 'AttachInterfaces', 'Network interfaces of servers.', f'{_SERVER}/os-interface'),
    Extension('os-availability-zone', 'AvailabilityZone', 'Availability zones.', '/os-availability-zone'),
    Extension('os-baremetal-nodes', 'BareMetalNodes', 'Bare metal nodes.', '/os-baremetal-nodes'),
    Extension('os-config-drive', 'ConfigDrive', 'Configuration drives of servers.', '/servers'),
    Extension('os-console-auth-tokens', 'ConsoleAuthTokens', 'Tokens of consoles.',
              '/os-console-auth-tokens/{console_token}'),
    Extension('os-console-output', 'ConsoleOutput', 'What servers write to their consoles.',
              _ACTION, 'os-getConsoleOutput'),
    Extension('os-create-backup', 'CreateBackup', 'Backups of servers.', _ACTION, 'createBackup'),
    Extension('os-deferred-delete', 'DeferredDelete', 'Restores servers that are deleted softly.', _ACTION, 'restore'),
    Extension('os-evacuate', 'Evacuate', 'Builds servers of dead hosts anew elsewhere.', _ACTION, 'evacuate'),
    Extension('os-extended-evacuate-find-host', 'ExtendedEvacuateFindHost', 'Evacuates to a host of the scheduler.',
              _ACTION, 'evacuate'),
    Extension('os-extended-hypervisors', 'ExtendedHypervisors', 'More about hypervisors.',
              '/os-hypervisors/{hypervisor_id}'),
    Extension('os-extended-quotas', 'ExtendedQuotas', 'Deletes quotas and forces updates.',
              '/os-quota-sets/{tenant_id}'),
    Extension('os-extended-services', 'ExtendedServices', 'More about services.', '/os-services'),
    Extension('os-extended-services-delete', 'ExtendedServicesDelete', 'Deletes services.',
              '/os-services/{service_id}'),
    Extension('os-extended-volumes', 'ExtendedVolumes', 'Volumes of servers.', f'{_SERVER}/os-volume_attachments'),
    Extension('os-flavor-access', 'FlavorAccess', 'Who may use private flavors.', f'{_FLAVOR}/os-flavor-access'),
    Extension('os-flavor-extra-specs', 'FlavorExtraSpecs', 'Extra specs of flavors.', f'{_FLAVOR}/os-extra_specs'),
    Extension('os-flavor-manage', 'FlavorManage', 'Creates and deletes flavors.', '/flavors'),
    Extension('os-flavor-rxtx', 'FlavorRxtx', 'The rxtx_factor of flavors.', _FLAVOR),
    Extension('os-flavor-swap', 'FlavorSwap', 'Swap of flavors.', _FLAVOR),
    Extension('os-floating-ip-pools', 'FloatingIpPools', 'Networks that give floating addresses.',
              '/os-floating-ip-pools'),
    Extension('os-floating-ips', 'FloatingIps', 'Floating addresses.', '/os-floating-ips'),
    Extension('os-hosts', 'Hosts', 'Hosts.', '/os-hosts'),
    Extension('os-hypervisor-status', 'HypervisorStatus', 'State and status of hypervisors.',
              '/os-hypervisors/{hypervisor_id}'),
    Extension('os-hypervisors', 'Hypervisors', 'Hypervisors.', '/os-hypervisors'),
    Extension('os-instance-actions', 'InstanceActions', 'What was done to servers.', f'{_SERVER}/os-instance-actions'),
    Extension('os-instance_usage_audit_log', 'OSInstanceUsageAuditLog', 'Runs of the usage audit.',
              '/os-instance_usage_audit_log'),
    Extension('os-keypairs', 'Keypairs', 'Key pairs.', '/os-keypairs'),
    Extension('os-lock-server', 'LockServer', 'Locks servers.', _ACTION, 'lock'),
    Extension('os-migrate-server', 'MigrateServer', 'Migrates servers.', _ACTION, 'migrate'),
    Extension('os-migrations', 'Migrations', 'Moves of servers.', '/os-migrations'),
    Extension('os-multiple-create', 'MultipleCreate', 'Several servers from one request.', '/servers'),
    Extension('os-networks', 'Networks', 'Networks.', '/os-networks'),
    Extension('os-pause-server', 'PauseServer', 'Pauses servers.', _ACTION, 'pause'),
    Extension('os-personality', 'Personality', 'Files that are put into new servers.', '/servers'),
    Extension('os-preserve-ephemeral-rebuild', 'PreserveEphemeralOnRebuild', 'Rebuilds that keep the ephemeral disk.',
              _ACTION, 'rebuild'),
    Extension('os-quota-class-sets', 'QuotaClasses', 'Quotas of classes.', '/os-quota-class-sets/{quota_class}'),
    Extension('os-quota-sets', 'Quotas', 'Quotas.', '/os-quota-sets/{tenant_id}'),
    Extension('os-remote-consoles', 'Consoles', 'Consoles of servers.', f'{_SERVER}/remote-consoles'),
    Extension('os-rescue', 'Rescue', 'Rescues servers.', _ACTION, 'rescue'),
    Extension('os-security-groups', 'SecurityGroups', 'Security groups.', f'{_SERVER}/os-security-groups'),
    Extension('os-server-diagnostics', 'ServerDiagnostics', 'Diagnostics of servers.', f'{_SERVER}/diagnostics'),
    Extension('os-server-external-events', 'ServerExternalEvents', 'What other services tell about servers.',
              '/os-server-external-events'),
    Extension('os-server-groups', 'ServerGroups', 'Groups of servers.', '/os-server-groups'),
    Extension('os-server-list-multi-status', 'ServerListMultiStatus', 'Lists servers of several statuses.', '/servers'),
    Extension('os-server-password', 'ServerPassword', 'Passwords of servers.', f'{_SERVER}/os-server-password'),
    Extension('os-server-sort-keys', 'ServerSortKeys', 'Lists servers in a given order.', '/servers'),
    Extension('os-server-start-stop', 'ServerStartStop', 'Starts and stops servers.', _ACTION, 'os-start'),
    Extension('os-services', 'Services', 'Services.', '/os-services'),
    Extension('os-shelve', 'Shelve', 'Shelves servers.', _ACTION, 'shelve'),
    Extension('os-simple-tenant-usage', 'SimpleTenantUsage', 'What projects used.', '/os-simple-tenant-usage'),
    Extension('os-suspend-server', 'SuspendServer', 'Suspends servers.', _ACTION, 'suspend'),
    Extension('os-tenant-networks', 'TenantNetworks', 'Networks of a project.', '/os-tenant-networks'),
    Extension('os-used-limits', 'UsedLimits', 'What is used of the limits.', '/limits'),
    Extension('os-user-data', 'UserData', 'User data of servers.', '/servers'),
    Extension('os-user-quotas', 'UserQuotas', 'Quotas of users.', '/os-quota-sets/{tenant_id}'),
    Extension('os-volume-attachment-update', 'VolumeAttachmentUpdate', 'Changes attached volumes.',
              f'{_SERVER}/os-volume_attachments/{{volume_id}}'),
    Extension('os-volumes', 'Volumes', 'Volumes.', '/os-volumes'),
    Extension('os-volumes_boot', 'VolumesBoot', 'Servers under the name that boots from volumes had.',
              '/os-volumes_boot'),
)


def show(row: Extension) -> dict[str, Any]:
    """Namespace and time mean nothing any more; clients expect them."""
    return {'alias': row.alias, 'name': row.name, 'description': row.description, 'links': [],
            'namespace': 'http://docs.openstack.org/compute/ext/fake_xml', 'updated': '2014-12-03T00:00:00Z'}
