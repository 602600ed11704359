"""The list of API extensions (``/extensions``), which older clients read to learn what a cloud offers.

The list is the same in every cloud. An entry tells nothing about microversions, nor that the named function exists:
clients find that out by using the function itself.
"""
from __future__ import annotations

from typing import Any, NamedTuple

from kilonova.api.rules import ANY, PREFIX, rule
from kilonova.api.wsgi import Call, Route
from kilonova.errors import NotFound

READ = f'{PREFIX}extensions'
RULES = (
    rule(READ, ANY, 'List the extensions of the API, or show one.'),
)


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
    Extension('OS-EXT-IPS', 'ExtendedIps', 'Kinds of the addresses of servers.'),
    Extension('OS-EXT-IPS-MAC', 'ExtendedIpsMac', 'MAC addresses of servers.'),
    Extension('OS-EXT-SRV-ATTR', 'ExtendedServerAttributes', 'Where servers are, for administrators.'),
    Extension('OS-EXT-STS', 'ExtendedStatus', 'States of servers besides their status.'),
    Extension('OS-FLV-DISABLED', 'FlavorDisabled', 'Whether a flavor is disabled.'),
    Extension('OS-FLV-EXT-DATA', 'FlavorExtraData', 'Further disks of flavors.'),
    Extension('OS-SCH-HNT', 'SchedulerHints', 'Hints to the scheduler.'),
    Extension('OS-SRV-USG', 'ServerUsage', 'When servers were launched and terminated.'),
    Extension('os-access-ips', 'AccessIPs', 'Addresses of servers that their users write down.'),
    Extension('os-admin-actions', 'AdminActions', 'Actions of administrators on servers.'),
    Extension('os-admin-password', 'AdminPassword', "Changes the password of a server's administrator."),
    Extension('os-agents', 'Agents', 'Agents in guests, which there are no more.'),
    Extension('os-aggregates', 'Aggregates', 'Host aggregates.'),
    Extension('os-assisted-volume-snapshots', 'AssistedVolumeSnapshots', 'Snapshots for the volume service.'),
    Extension('os-attach-interfaces', 'AttachInterfaces', 'Network interfaces of servers.'),
    Extension('os-availability-zone', 'AvailabilityZone', 'Availability zones.'),
    Extension('os-baremetal-ext-status', 'BareMetalExtStatus', 'More about bare metal nodes.'),
    Extension('os-baremetal-nodes', 'BareMetalNodes', 'Bare metal nodes.'),
    Extension('os-block-device-mapping', 'BlockDeviceMapping', 'Disks of new servers.'),
    Extension('os-block-device-mapping-v2-boot', 'BlockDeviceMappingV2Boot',
              'Disks of new servers in their second form.'),
    Extension('os-cell-capacities', 'CellCapacities', 'What cells have, which nobody tells any more.'),
    Extension('os-cells', 'Cells', 'Cells as they were at first, which there are no more.'),
    Extension('os-certificates', 'Certificates', 'X.509 certificates, which there are no more.'),
    Extension('os-cloudpipe', 'Cloudpipe', 'Servers for private networks, which there are no more.'),
    Extension('os-cloudpipe-update', 'CloudpipeUpdate', 'Changes such servers, which there are no more.'),
    Extension('os-config-drive', 'ConfigDrive', 'Configuration drives of servers.'),
    Extension('os-console-auth-tokens', 'ConsoleAuthTokens', 'Tokens of consoles.'),
    Extension('os-console-output', 'ConsoleOutput', 'What servers write to their consoles.'),
    Extension('os-consoles', 'Consoles', 'Consoles of servers as they were at first.'),
    Extension('os-create-backup', 'CreateBackup', 'Backups of servers.'),
    Extension('os-create-server-ext', 'Createserverext', 'Networks and security groups of new servers.'),
    Extension('os-deferred-delete', 'DeferredDelete', 'Restores servers that are deleted softly.'),
    Extension('os-evacuate', 'Evacuate', 'Builds servers of dead hosts anew elsewhere.'),
    Extension('os-extended-evacuate-find-host', 'ExtendedEvacuateFindHost', 'Evacuates to a host of the scheduler.'),
    Extension('os-extended-floating-ips', 'ExtendedFloatingIps', 'Which fixed address a floating one belongs to.'),
    Extension('os-extended-hypervisors', 'ExtendedHypervisors', 'More about hypervisors.'),
    Extension('os-extended-networks', 'ExtendedNetworks', 'More about networks.'),
    Extension('os-extended-quotas', 'ExtendedQuotas', 'Deletes quotas and forces updates.'),
    Extension('os-extended-rescue-with-image', 'ExtendedRescueWithImage', 'Rescues servers with another image.'),
    Extension('os-extended-services', 'ExtendedServices', 'More about services.'),
    Extension('os-extended-services-delete', 'ExtendedServicesDelete', 'Deletes services.'),
    Extension('os-extended-status', 'ExtendedStatus', 'States of servers besides their status.'),
    Extension('os-extended-volumes', 'ExtendedVolumes', 'Volumes of servers.'),
    Extension('os-fixed-ips', 'FixedIPs', 'Fixed addresses, which the network service has.'),
    Extension('os-flavor-access', 'FlavorAccess', 'Who may use private flavors.'),
    Extension('os-flavor-extra-specs', 'FlavorExtraSpecs', 'Extra specs of flavors.'),
    Extension('os-flavor-manage', 'FlavorManage', 'Creates and deletes flavors.'),
    Extension('os-flavor-rxtx', 'FlavorRxtx', 'The rxtx_factor of flavors.'),
    Extension('os-flavor-swap', 'FlavorSwap', 'Swap of flavors.'),
    Extension('os-floating-ip-dns', 'FloatingIpDns', 'Names of floating addresses, which there are no more.'),
    Extension('os-floating-ip-pools', 'FloatingIpPools', 'Networks that give floating addresses.'),
    Extension('os-floating-ips', 'FloatingIps', 'Floating addresses.'),
    Extension('os-floating-ips-bulk', 'FloatingIpsBulk', 'Many floating addresses at once, which there are no more.'),
    Extension('os-fping', 'Fping', 'Whether servers answer, which nobody asks any more.'),
    Extension('os-hide-server-addresses', 'HideServerAddresses', 'Hides the addresses of servers in some states.'),
    Extension('os-hosts', 'Hosts', 'Hosts.'),
    Extension('os-hypervisor-status', 'HypervisorStatus', 'State and status of hypervisors.'),
    Extension('os-hypervisors', 'Hypervisors', 'Hypervisors.'),
    Extension('os-instance-actions', 'InstanceActions', 'What was done to servers.'),
    Extension('os-instance_usage_audit_log', 'OSInstanceUsageAuditLog', 'Runs of the usage audit.'),
    Extension('os-keypairs', 'Keypairs', 'Key pairs.'),
    Extension('os-lock-server', 'LockServer', 'Locks servers.'),
    Extension('os-migrate-server', 'MigrateServer', 'Migrates servers.'),
    Extension('os-migrations', 'Migrations', 'Moves of servers.'),
    Extension('os-multiple-create', 'MultipleCreate', 'Several servers from one request.'),
    Extension('os-networks', 'Networks', 'Networks.'),
    Extension('os-networks-associate', 'NetworkAssociationSupport',
              'Hosts and projects of networks, which there are no more.'),
    Extension('os-pause-server', 'PauseServer', 'Pauses servers.'),
    Extension('os-personality', 'Personality', 'Files that are put into new servers.'),
    Extension('os-preserve-ephemeral-rebuild', 'PreserveEphemeralOnRebuild', 'Rebuilds that keep the ephemeral disk.'),
    Extension('os-quota-class-sets', 'QuotaClasses', 'Quotas of classes.'),
    Extension('os-quota-sets', 'Quotas', 'Quotas.'),
    Extension('os-remote-consoles', 'Consoles', 'Consoles of servers.'),
    Extension('os-rescue', 'Rescue', 'Rescues servers.'),
    Extension('os-security-group-default-rules', 'SecurityGroupDefaultRules', 'Rules of new security groups.'),
    Extension('os-security-groups', 'SecurityGroups', 'Security groups.'),
    Extension('os-server-diagnostics', 'ServerDiagnostics', 'Diagnostics of servers.'),
    Extension('os-server-external-events', 'ServerExternalEvents', 'What other services tell about servers.'),
    Extension('os-server-group-quotas', 'ServerGroupQuotas', 'Quotas of server groups.'),
    Extension('os-server-groups', 'ServerGroups', 'Groups of servers.'),
    Extension('os-server-list-multi-status', 'ServerListMultiStatus', 'Lists servers of several statuses.'),
    Extension('os-server-password', 'ServerPassword', 'Passwords of servers.'),
    Extension('os-server-sort-keys', 'ServerSortKeys', 'Lists servers in a given order.'),
    Extension('os-server-start-stop', 'ServerStartStop', 'Starts and stops servers.'),
    Extension('os-services', 'Services', 'Services.'),
    Extension('os-shelve', 'Shelve', 'Shelves servers.'),
    Extension('os-simple-tenant-usage', 'SimpleTenantUsage', 'What projects used.'),
    Extension('os-suspend-server', 'SuspendServer', 'Suspends servers.'),
    Extension('os-tenant-networks', 'TenantNetworks', 'Networks of a project.'),
    Extension('os-used-limits', 'UsedLimits', 'What is used of the limits.'),
    Extension('os-used-limits-for-admin', 'UsedLimitsForAdmin', "Other projects' used limits, for administrators."),
    Extension('os-user-data', 'UserData', 'User data of servers.'),
    Extension('os-user-quotas', 'UserQuotas', 'Quotas of users.'),
    Extension('os-virtual-interfaces', 'VirtualInterfaces', 'Virtual interfaces, which there are no more.'),
    Extension('os-volume-attachment-update', 'VolumeAttachmentUpdate', 'Changes attached volumes.'),
    Extension('os-volumes', 'Volumes', 'Volumes.'),
    Extension('os-volumes_boot', 'VolumesBoot', 'Servers under the name that boots from volumes had.'),
)


def _body(row: Extension) -> dict[str, Any]:
    """Return the body of one extension.

    The members 'namespace' and 'updated' have no meaning any more. They are constant and present because clients expect
    them.
    """
    return {'alias': row.alias, 'name': row.name, 'description': row.description, 'links': [],
            'namespace': 'http://docs.openstack.org/compute/ext/fake_xml', 'updated': '2014-12-03T00:00:00Z'}


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
