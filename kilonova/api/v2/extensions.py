"""The list of API extensions (``/extensions``), which older clients read to learn what a cloud offers.

The list exists only for compatibility with old clients, and is the same in every cloud. An entry does not mean that
this cloud supports the extension: a request to an extension that is not supported gets an error. The entries also say
nothing about microversions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kilonova.api.rules import ANY, PREFIX, rule
from kilonova.api.wsgi import Call, Route
from kilonova.errors import NotFound

READ = f'{PREFIX}extensions'
RULES = (rule(READ, ANY, 'List the extensions of the API, or show one.'),)


class Extension(NamedTuple):
    """One entry of the list of extensions."""

    alias: str
    name: str
    description: str


EXTENSIONS: tuple[Extension, ...] = (
    Extension('NMN', 'Multinic', 'Several addresses of servers in one network.'),
    Extension('OS-DCF', 'DiskConfig', 'Disk configuration of servers.'),
    Extension('OS-EXT-AZ', 'ExtendedAvailabilityZone', 'Availability zones of servers.'),
    Extension('OS-EXT-IMG-SIZE', 'ImageSize', 'Sizes of images.'),
    Extension('OS-EXT-IPS', 'ExtendedIps', 'Types (fixed or floating) of the addresses of servers.'),
    Extension('OS-EXT-IPS-MAC', 'ExtendedIpsMac', 'MAC addresses of servers.'),
    Extension(
        'OS-EXT-SRV-ATTR', 'ExtendedServerAttributes', 'Hosts and internal names of servers, for administrators.'
    ),
    Extension('OS-EXT-STS', 'ExtendedStatus', 'VM state, task state and power state of servers.'),
    Extension('OS-FLV-DISABLED', 'FlavorDisabled', 'Whether a flavor is disabled.'),
    Extension('OS-FLV-EXT-DATA', 'FlavorExtraData', 'Ephemeral disks of flavors.'),
    Extension('OS-SCH-HNT', 'SchedulerHints', 'Hints to the scheduler.'),
    Extension('OS-SRV-USG', 'ServerUsage', 'When servers were launched and terminated.'),
    Extension('os-access-ips', 'AccessIPs', 'Access addresses that users store with their servers.'),
    Extension('os-admin-actions', 'AdminActions', 'Server actions for administrators.'),
    Extension('os-admin-password', 'AdminPassword', "Changes the password of a server's administrator."),
    Extension('os-agents', 'Agents', 'Agents in guests (removed).'),
    Extension('os-aggregates', 'Aggregates', 'Host aggregates.'),
    Extension('os-assisted-volume-snapshots', 'AssistedVolumeSnapshots', 'Snapshots for the volume service.'),
    Extension('os-attach-interfaces', 'AttachInterfaces', 'Network interfaces of servers.'),
    Extension('os-availability-zone', 'AvailabilityZone', 'Availability zones.'),
    Extension('os-baremetal-ext-status', 'BareMetalExtStatus', 'Additional information about bare metal nodes.'),
    Extension('os-baremetal-nodes', 'BareMetalNodes', 'Bare metal nodes.'),
    Extension('os-block-device-mapping', 'BlockDeviceMapping', 'Disks of new servers.'),
    Extension(
        'os-block-device-mapping-v2-boot',
        'BlockDeviceMappingV2Boot',
        'Disks of new servers (block device mapping, version 2).',
    ),
    Extension('os-cell-capacities', 'CellCapacities', 'Capacities of cells (removed).'),
    Extension('os-cells', 'Cells', 'Cells, version 1 (removed).'),
    Extension('os-certificates', 'Certificates', 'X.509 certificates (removed).'),
    Extension('os-cloudpipe', 'Cloudpipe', 'VPN servers of projects (removed).'),
    Extension('os-cloudpipe-update', 'CloudpipeUpdate', 'Changes of VPN servers of projects (removed).'),
    Extension('os-config-drive', 'ConfigDrive', 'Configuration drives of servers.'),
    Extension('os-console-auth-tokens', 'ConsoleAuthTokens', 'Tokens of consoles.'),
    Extension('os-console-output', 'ConsoleOutput', 'Console output of servers.'),
    Extension('os-consoles', 'Consoles', 'Consoles of servers, first API (removed).'),
    Extension('os-create-backup', 'CreateBackup', 'Backups of servers.'),
    Extension('os-create-server-ext', 'Createserverext', 'Networks and security groups of new servers.'),
    Extension('os-deferred-delete', 'DeferredDelete', 'Restores soft-deleted servers.'),
    Extension('os-evacuate', 'Evacuate', 'Rebuilds servers of failed hosts on other hosts.'),
    Extension(
        'os-extended-evacuate-find-host', 'ExtendedEvacuateFindHost', 'Evacuates to a host that the scheduler selects.'
    ),
    Extension('os-extended-floating-ips', 'ExtendedFloatingIps', 'Fixed addresses of floating IPs.'),
    Extension('os-extended-hypervisors', 'ExtendedHypervisors', 'Additional information about hypervisors.'),
    Extension('os-extended-networks', 'ExtendedNetworks', 'Additional information about networks.'),
    Extension('os-extended-quotas', 'ExtendedQuotas', 'Deletes quotas and forces updates.'),
    Extension('os-extended-rescue-with-image', 'ExtendedRescueWithImage', 'Rescues servers with another image.'),
    Extension('os-extended-services', 'ExtendedServices', 'Additional information about services.'),
    Extension('os-extended-services-delete', 'ExtendedServicesDelete', 'Deletes services.'),
    Extension('os-extended-status', 'ExtendedStatus', 'VM state, task state and power state of servers.'),
    Extension('os-extended-volumes', 'ExtendedVolumes', 'Volumes of servers.'),
    Extension('os-fixed-ips', 'FixedIPs', 'Fixed addresses (removed).'),
    Extension('os-flavor-access', 'FlavorAccess', 'Who may use private flavors.'),
    Extension('os-flavor-extra-specs', 'FlavorExtraSpecs', 'Extra specs of flavors.'),
    Extension('os-flavor-manage', 'FlavorManage', 'Creates and deletes flavors.'),
    Extension('os-flavor-rxtx', 'FlavorRxtx', 'The rxtx_factor of flavors.'),
    Extension('os-flavor-swap', 'FlavorSwap', 'Swap of flavors.'),
    Extension('os-floating-ip-dns', 'FloatingIpDns', 'DNS names of floating IPs (removed).'),
    Extension('os-floating-ip-pools', 'FloatingIpPools', 'External networks that provide floating IPs.'),
    Extension('os-floating-ips', 'FloatingIps', 'Floating IPs.'),
    Extension('os-floating-ips-bulk', 'FloatingIpsBulk', 'Creation of many floating IPs at once (removed).'),
    Extension('os-fping', 'Fping', 'Ping of servers (removed).'),
    Extension('os-hide-server-addresses', 'HideServerAddresses', 'Hides the addresses of servers in some states.'),
    Extension('os-hosts', 'Hosts', 'Hosts.'),
    Extension('os-hypervisor-status', 'HypervisorStatus', 'State and status of hypervisors.'),
    Extension('os-hypervisors', 'Hypervisors', 'Hypervisors.'),
    Extension('os-instance-actions', 'InstanceActions', 'Actions that were performed on servers.'),
    Extension('os-instance_usage_audit_log', 'OSInstanceUsageAuditLog', 'Runs of the usage audit.'),
    Extension('os-keypairs', 'Keypairs', 'Key pairs.'),
    Extension('os-lock-server', 'LockServer', 'Locks servers.'),
    Extension('os-migrate-server', 'MigrateServer', 'Migrates servers.'),
    Extension('os-migrations', 'Migrations', 'Migrations of servers.'),
    Extension('os-multiple-create', 'MultipleCreate', 'Several servers from one request.'),
    Extension('os-networks', 'Networks', 'Networks.'),
    Extension(
        'os-networks-associate',
        'NetworkAssociationSupport',
        'Association of networks with hosts and projects (removed).',
    ),
    Extension('os-pause-server', 'PauseServer', 'Pauses servers.'),
    Extension('os-personality', 'Personality', 'Files that are injected into new servers.'),
    Extension('os-preserve-ephemeral-rebuild', 'PreserveEphemeralOnRebuild', 'Rebuilds that keep the ephemeral disk.'),
    Extension('os-quota-class-sets', 'QuotaClasses', 'Quotas of classes.'),
    Extension('os-quota-sets', 'Quotas', 'Quotas.'),
    Extension('os-remote-consoles', 'Consoles', 'Consoles of servers.'),
    Extension('os-rescue', 'Rescue', 'Rescues servers.'),
    Extension(
        'os-security-group-default-rules',
        'SecurityGroupDefaultRules',
        'Default rules of new security groups (removed).',
    ),
    Extension('os-security-groups', 'SecurityGroups', 'Security groups.'),
    Extension('os-server-diagnostics', 'ServerDiagnostics', 'Diagnostics of servers.'),
    Extension('os-server-external-events', 'ServerExternalEvents', 'Events of servers that other services report.'),
    Extension('os-server-group-quotas', 'ServerGroupQuotas', 'Quotas of server groups.'),
    Extension('os-server-groups', 'ServerGroups', 'Groups of servers.'),
    Extension('os-server-list-multi-status', 'ServerListMultiStatus', 'Lists servers of several statuses.'),
    Extension('os-server-password', 'ServerPassword', 'Passwords of servers.'),
    Extension('os-server-sort-keys', 'ServerSortKeys', 'Lists servers in a given order.'),
    Extension('os-server-start-stop', 'ServerStartStop', 'Starts and stops servers.'),
    Extension('os-services', 'Services', 'Services.'),
    Extension('os-shelve', 'Shelve', 'Shelves servers.'),
    Extension('os-simple-tenant-usage', 'SimpleTenantUsage', 'Usage of projects.'),
    Extension('os-suspend-server', 'SuspendServer', 'Suspends servers.'),
    Extension('os-tenant-networks', 'TenantNetworks', 'Networks of a project.'),
    Extension('os-used-limits', 'UsedLimits', 'Usage of the limits.'),
    Extension(
        'os-used-limits-for-admin', 'UsedLimitsForAdmin', 'Usage of the limits of other projects, for administrators.'
    ),
    Extension('os-user-data', 'UserData', 'User data of servers.'),
    Extension('os-user-quotas', 'UserQuotas', 'Quotas of users.'),
    Extension('os-virtual-interfaces', 'VirtualInterfaces', 'Virtual interfaces (removed).'),
    Extension('os-volume-attachment-update', 'VolumeAttachmentUpdate', 'Changes attached volumes.'),
    Extension('os-volumes', 'Volumes', 'Volumes.'),
    Extension('os-volumes_boot', 'VolumesBoot', 'Servers that boot from volumes, at the former URL.'),
)


def _body(row: Extension) -> dict[str, Any]:
    """Return the response body of one extension.

    The members 'namespace' and 'updated' have no meaning any more. The response has them with constant values, because
    clients expect them.
    """
    return {
        'alias': row.alias,
        'name': row.name,
        'description': row.description,
        'links': [],
        'namespace': 'http://docs.openstack.org/compute/ext/fake_xml',
        'updated': '2014-12-03T00:00:00Z',
    }


def index(call: Call) -> Any:
    """List the extensions (``GET /extensions``)."""
    return {'extensions': [_body(row) for row in EXTENSIONS]}


def show(call: Call) -> Any:
    """Return one extension (``GET /extensions/{alias}``)."""
    found = next((row for row in EXTENSIONS if row.alias == call.path['alias']), None)
    if found is None:
        raise NotFound('The resource could not be found.')
    return {'extension': _body(found)}


ROUTES = (
    Route('GET', '/extensions', index, READ),
    Route('GET', '/extensions/{alias}', show, READ),
)
