"""The field's policy rules, their defaults and what they guard, as facts to compare the code with.

A line of the table: rule | default | operations, which may go on in another line of the same rule; ``oca:`` stands for
``os_compute_api:``.
"""

from __future__ import annotations

BASE = {
    'admin_api': 'is_admin:True',
    'admin_or_owner': 'is_admin:True or project_id:%(project_id)s',
    'context_is_admin': 'role:admin',
    'project_manager_api': 'role:manager and project_id:%(project_id)s',
    'project_manager_or_admin': 'rule:project_manager_api or rule:context_is_admin',
    'project_member_api': 'role:member and project_id:%(project_id)s',
    'project_member_or_admin': 'rule:project_member_api or rule:context_is_admin',
    'project_reader_api': 'role:reader and project_id:%(project_id)s',
    'project_reader_or_admin': 'rule:project_reader_api or rule:context_is_admin',
    'service_api': 'role:service',
    'service_or_admin': 'rule:service_api or rule:context_is_admin',
}
# The names of defaults, and the check strings that they stand for.
DEFAULTS = {
    'ADMIN': 'rule:context_is_admin',
    'MGR': 'rule:project_manager_or_admin',
    'MEMBER': 'rule:project_member_or_admin',
    'READER': 'rule:project_reader_or_admin',
    'SERVICE': 'rule:service_or_admin',
    'ANY': '@',
    'NOBODY': '!',
    'ADMIN or same user': '(rule:context_is_admin) or user_id:%(user_id)s',
}
_TABLE = """
compute:aggregates:images | ADMIN | POST /os-aggregates/{aggregate_id}/images
compute:server:topology:host:index | ADMIN | GET /servers/{server_id}/topology
compute:server:topology:index | READER | GET /servers/{server_id}/topology
compute:servers:create:requested_destination | ADMIN | POST /servers
compute:servers:resize:cross_cell | NOBODY | POST /servers/{server_id}/action (resize)
network:attach_external_network | ADMIN | POST /servers; POST /servers/{server_id}/os-interface
oca:extensions | ANY | GET /extensions; GET /extensions/{alias}
oca:ips:index | READER | GET /servers/{server_id}/ips
oca:ips:show | READER | GET /servers/{server_id}/ips/{network_label}
oca:limits | ANY | GET /limits
oca:limits:other_project | ADMIN | GET /limits
oca:os-admin-actions:inject_network_info | ADMIN | POST /servers/{server_id}/action (injectNetworkInfo)
oca:os-admin-actions:reset_state | ADMIN | POST /servers/{server_id}/action (os-resetState)
oca:os-admin-password | MEMBER | POST /servers/{server_id}/action (changePassword)
oca:os-aggregates:add_host | ADMIN | POST /os-aggregates/{aggregate_id}/action (add_host)
oca:os-aggregates:create | ADMIN | POST /os-aggregates
oca:os-aggregates:delete | ADMIN | DELETE /os-aggregates/{aggregate_id}
oca:os-aggregates:index | ADMIN | GET /os-aggregates
oca:os-aggregates:remove_host | ADMIN | POST /os-aggregates/{aggregate_id}/action (remove_host)
oca:os-aggregates:set_metadata | ADMIN | POST /os-aggregates/{aggregate_id}/action (set_metadata)
oca:os-aggregates:show | ADMIN | GET /os-aggregates/{aggregate_id}
oca:os-aggregates:update | ADMIN | PUT /os-aggregates/{aggregate_id}
oca:os-assisted-volume-snapshots:create | SERVICE | POST /os-assisted-volume-snapshots
oca:os-assisted-volume-snapshots:delete | SERVICE | DELETE /os-assisted-volume-snapshots/{snapshot_id}
oca:os-attach-interfaces:create | MEMBER | POST /servers/{server_id}/os-interface
oca:os-attach-interfaces:delete | MEMBER | DELETE /servers/{server_id}/os-interface/{port_id}
oca:os-attach-interfaces:list | READER | GET /servers/{server_id}/os-interface
oca:os-attach-interfaces:show | READER | GET /servers/{server_id}/os-interface/{port_id}
oca:os-availability-zone:detail | ADMIN | GET /os-availability-zone/detail
oca:os-availability-zone:list | ANY | GET /os-availability-zone
oca:os-baremetal-nodes:list | ADMIN | GET /os-baremetal-nodes
oca:os-baremetal-nodes:show | ADMIN | GET /os-baremetal-nodes/{node_id}
oca:os-console-auth-tokens | ADMIN | GET /os-console-auth-tokens/{console_token}
oca:os-console-output | MEMBER | POST /servers/{server_id}/action (os-getConsoleOutput)
oca:os-create-backup | MEMBER | POST /servers/{server_id}/action (createBackup)
oca:os-deferred-delete:force | MEMBER | POST /servers/{server_id}/action (forceDelete)
oca:os-deferred-delete:restore | MEMBER | POST /servers/{server_id}/action (restore)
oca:os-evacuate | ADMIN | POST /servers/{server_id}/action (evacuate)
oca:os-extended-server-attributes | ADMIN | GET /servers/{id}; GET /servers/detail
oca:os-extended-server-attributes | ADMIN | PUT /servers/{server_id}; POST /servers/{server_id}/action (rebuild)
oca:os-flavor-access | ADMIN | GET /flavors/{flavor_id}/os-flavor-access
oca:os-flavor-access:add_tenant_access | ADMIN | POST /flavors/{flavor_id}/action (addTenantAccess)
oca:os-flavor-access:remove_tenant_access | ADMIN | POST /flavors/{flavor_id}/action (removeTenantAccess)
oca:os-flavor-extra-specs:create | ADMIN | POST /flavors/{flavor_id}/os-extra_specs/
oca:os-flavor-extra-specs:delete | ADMIN | DELETE /flavors/{flavor_id}/os-extra_specs/{flavor_extra_spec_key}
oca:os-flavor-extra-specs:index | READER | GET /flavors/{flavor_id}/os-extra_specs/; POST /flavors; GET /flavors/detail
oca:os-flavor-extra-specs:index | READER | GET /flavors/{flavor_id}; PUT /flavors/{flavor_id}
oca:os-flavor-extra-specs:show | READER | GET /flavors/{flavor_id}/os-extra_specs/{flavor_extra_spec_key}
oca:os-flavor-extra-specs:update | ADMIN | PUT /flavors/{flavor_id}/os-extra_specs/{flavor_extra_spec_key}
oca:os-flavor-manage:create | ADMIN | POST /flavors
oca:os-flavor-manage:delete | ADMIN | DELETE /flavors/{flavor_id}
oca:os-flavor-manage:update | ADMIN | PUT /flavors/{flavor_id}
oca:os-floating-ip-pools | ANY | GET /os-floating-ip-pools
oca:os-floating-ips:add | MEMBER | POST /servers/{server_id}/action (addFloatingIp)
oca:os-floating-ips:create | MEMBER | POST /os-floating-ips
oca:os-floating-ips:delete | MEMBER | DELETE /os-floating-ips/{floating_ip_id}
oca:os-floating-ips:list | READER | GET /os-floating-ips
oca:os-floating-ips:remove | MEMBER | POST /servers/{server_id}/action (removeFloatingIp)
oca:os-floating-ips:show | READER | GET /os-floating-ips/{floating_ip_id}
oca:os-hosts:list | ADMIN | GET /os-hosts
oca:os-hosts:reboot | ADMIN | GET /os-hosts/{host_name}/reboot
oca:os-hosts:show | ADMIN | GET /os-hosts/{host_name}
oca:os-hosts:shutdown | ADMIN | GET /os-hosts/{host_name}/shutdown
oca:os-hosts:start | ADMIN | GET /os-hosts/{host_name}/startup
oca:os-hosts:update | ADMIN | PUT /os-hosts/{host_name}
oca:os-hypervisors:list | ADMIN | GET /os-hypervisors
oca:os-hypervisors:list-detail | ADMIN | GET /os-hypervisors/details
oca:os-hypervisors:search | ADMIN | GET /os-hypervisors/{hypervisor_hostname_pattern}/search
oca:os-hypervisors:servers | ADMIN | GET /os-hypervisors/{hypervisor_hostname_pattern}/servers
oca:os-hypervisors:show | ADMIN | GET /os-hypervisors/{hypervisor_id}
oca:os-hypervisors:statistics | ADMIN | GET /os-hypervisors/statistics
oca:os-hypervisors:uptime | ADMIN | GET /os-hypervisors/{hypervisor_id}/uptime
oca:os-instance-actions:events | ADMIN | GET /servers/{server_id}/os-instance-actions/{request_id}
oca:os-instance-actions:events:details | ADMIN | GET /servers/{server_id}/os-instance-actions/{request_id}
oca:os-instance-actions:list | READER | GET /servers/{server_id}/os-instance-actions
oca:os-instance-actions:show | READER | GET /servers/{server_id}/os-instance-actions/{request_id}
oca:os-instance-usage-audit-log:list | ADMIN | GET /os-instance_usage_audit_log
oca:os-instance-usage-audit-log:show | ADMIN | GET /os-instance_usage_audit_log/{before_timestamp}
oca:os-keypairs:create | ADMIN or same user | POST /os-keypairs
oca:os-keypairs:delete | ADMIN or same user | DELETE /os-keypairs/{keypair_name}
oca:os-keypairs:index | ADMIN or same user | GET /os-keypairs
oca:os-keypairs:show | ADMIN or same user | GET /os-keypairs/{keypair_name}
oca:os-lock-server:lock | MEMBER | POST /servers/{server_id}/action (lock)
oca:os-lock-server:unlock | MEMBER | POST /servers/{server_id}/action (unlock)
oca:os-lock-server:unlock:unlock_override | ADMIN | POST /servers/{server_id}/action (unlock)
oca:os-migrate-server:migrate | MGR | POST /servers/{server_id}/action (migrate)
oca:os-migrate-server:migrate:host | ADMIN | POST /servers/{server_id}/action (migrate)
oca:os-migrate-server:migrate_live | MGR | POST /servers/{server_id}/action (os-migrateLive)
oca:os-migrate-server:migrate_live:host | ADMIN | POST /servers/{server_id}/action (os-migrateLive)
oca:os-migrations:index | MGR | GET /os-migrations
oca:os-migrations:index:all_projects | ADMIN | GET /os-migrations
oca:os-migrations:index:host | ADMIN | GET /os-migrations
oca:os-multinic:add | MEMBER | POST /servers/{server_id}/action (addFixedIp)
oca:os-multinic:remove | MEMBER | POST /servers/{server_id}/action (removeFixedIp)
oca:os-networks:list | READER | GET /os-networks
oca:os-networks:show | READER | GET /os-networks/{network_id}
oca:os-pause-server:pause | MEMBER | POST /servers/{server_id}/action (pause)
oca:os-pause-server:unpause | MEMBER | POST /servers/{server_id}/action (unpause)
oca:os-quota-class-sets:show | ADMIN | GET /os-quota-class-sets/{quota_class}
oca:os-quota-class-sets:update | ADMIN | PUT /os-quota-class-sets/{quota_class}
oca:os-quota-sets:defaults | ANY | GET /os-quota-sets/{tenant_id}/defaults
oca:os-quota-sets:delete | ADMIN | DELETE /os-quota-sets/{tenant_id}
oca:os-quota-sets:detail | READER | GET /os-quota-sets/{tenant_id}/detail
oca:os-quota-sets:show | READER | GET /os-quota-sets/{tenant_id}
oca:os-quota-sets:update | ADMIN | PUT /os-quota-sets/{tenant_id}
oca:os-remote-consoles | MEMBER | POST /servers/{server_id}/action (os-getSerialConsole); POST /servers/{server_id}/action (os-getSPICEConsole)
oca:os-remote-consoles | MEMBER | POST /servers/{server_id}/action (os-getVNCConsole); POST /servers/{server_id}/remote-consoles
oca:os-rescue | MEMBER | POST /servers/{server_id}/action (rescue)
oca:os-security-groups:add | MEMBER | POST /servers/{server_id}/action (addSecurityGroup)
oca:os-security-groups:create | MEMBER | POST /os-security-groups
oca:os-security-groups:delete | MEMBER | DELETE /os-security-groups/{security_group_id}
oca:os-security-groups:get | READER | GET /os-security-groups
oca:os-security-groups:list | READER | GET /servers/{server_id}/os-security-groups
oca:os-security-groups:remove | MEMBER | POST /servers/{server_id}/action (removeSecurityGroup)
oca:os-security-groups:rule:create | MEMBER | POST /os-security-group-rules
oca:os-security-groups:rule:delete | MEMBER | DELETE /os-security-group-rules/{security_group_id}
oca:os-security-groups:show | READER | GET /os-security-groups/{security_group_id}
oca:os-security-groups:update | MEMBER | PUT /os-security-groups/{security_group_id}
oca:os-server-diagnostics | ADMIN | GET /servers/{server_id}/diagnostics
oca:os-server-external-events:create | SERVICE | POST /os-server-external-events
oca:os-server-groups:create | MEMBER | POST /os-server-groups
oca:os-server-groups:delete | MEMBER | DELETE /os-server-groups/{server_group_id}
oca:os-server-groups:index | READER | GET /os-server-groups
oca:os-server-groups:index:all_projects | ADMIN | GET /os-server-groups
oca:os-server-groups:show | READER | GET /os-server-groups/{server_group_id}
oca:os-server-password:clear | MEMBER | DELETE /servers/{server_id}/os-server-password
oca:os-server-password:show | READER | GET /servers/{server_id}/os-server-password
oca:os-server-shares:create | MEMBER | POST /servers/{server_id}/shares
oca:os-server-shares:delete | MEMBER | DELETE /servers/{server_id}/shares/{share_id}
oca:os-server-shares:index | READER | GET /servers/{server_id}/shares
oca:os-server-shares:show | READER | GET /servers/{server_id}/shares/{share_id}
oca:os-server-tags:delete | MEMBER | DELETE /servers/{server_id}/tags/{tag}
oca:os-server-tags:delete_all | MEMBER | DELETE /servers/{server_id}/tags
oca:os-server-tags:index | READER | GET /servers/{server_id}/tags
oca:os-server-tags:show | READER | GET /servers/{server_id}/tags/{tag}
oca:os-server-tags:update | MEMBER | PUT /servers/{server_id}/tags/{tag}
oca:os-server-tags:update_all | MEMBER | PUT /servers/{server_id}/tags
oca:os-services:delete | ADMIN | DELETE /os-services/{service_id}
oca:os-services:list | ADMIN | GET /os-services
oca:os-services:update | ADMIN | PUT /os-services/{service_id}
oca:os-shelve:shelve | MEMBER | POST /servers/{server_id}/action (shelve)
oca:os-shelve:shelve_offload | ADMIN | POST /servers/{server_id}/action (shelveOffload)
oca:os-shelve:unshelve | MEMBER | POST /servers/{server_id}/action (unshelve)
oca:os-shelve:unshelve_to_host | ADMIN | POST /servers/{server_id}/action (unshelve)
oca:os-simple-tenant-usage:list | ADMIN | GET /os-simple-tenant-usage
oca:os-simple-tenant-usage:show | READER | GET /os-simple-tenant-usage/{tenant_id}
oca:os-suspend-server:resume | MEMBER | POST /servers/{server_id}/action (resume)
oca:os-suspend-server:suspend | MEMBER | POST /servers/{server_id}/action (suspend)
oca:os-tenant-networks:list | READER | GET /os-tenant-networks
oca:os-tenant-networks:show | READER | GET /os-tenant-networks/{network_id}
oca:os-unrescue | MEMBER | POST /servers/{server_id}/action (unrescue)
oca:os-volumes-attachments:create | MEMBER | POST /servers/{server_id}/os-volume_attachments
oca:os-volumes-attachments:delete | MEMBER | DELETE /servers/{server_id}/os-volume_attachments/{volume_id}
oca:os-volumes-attachments:index | READER | GET /servers/{server_id}/os-volume_attachments
oca:os-volumes-attachments:show | READER | GET /servers/{server_id}/os-volume_attachments/{volume_id}
oca:os-volumes-attachments:swap | SERVICE | PUT /servers/{server_id}/os-volume_attachments/{volume_id}
oca:os-volumes-attachments:update | MEMBER | PUT /servers/{server_id}/os-volume_attachments/{volume_id}
oca:os-volumes:create | MEMBER | POST /os-volumes
oca:os-volumes:delete | MEMBER | DELETE /os-volumes/{volume_id}
oca:os-volumes:detail | READER | GET /os-volumes/detail
oca:os-volumes:list | READER | GET /os-volumes
oca:os-volumes:show | READER | GET /os-volumes/{volume_id}
oca:os-volumes:snapshots:create | MEMBER | POST /os-snapshots
oca:os-volumes:snapshots:delete | MEMBER | DELETE /os-snapshots/{snapshot_id}
oca:os-volumes:snapshots:detail | READER | GET /os-snapshots/detail
oca:os-volumes:snapshots:list | READER | GET /os-snapshots
oca:os-volumes:snapshots:show | READER | GET /os-snapshots/{snapshot_id}
oca:server-metadata:create | MEMBER | POST /servers/{server_id}/metadata
oca:server-metadata:delete | MEMBER | DELETE /servers/{server_id}/metadata/{key}
oca:server-metadata:index | READER | GET /servers/{server_id}/metadata
oca:server-metadata:show | READER | GET /servers/{server_id}/metadata/{key}
oca:server-metadata:update | MEMBER | PUT /servers/{server_id}/metadata/{key}
oca:server-metadata:update_all | MEMBER | PUT /servers/{server_id}/metadata
oca:servers:allow_all_filters | ADMIN | GET /servers; GET /servers/detail
oca:servers:confirm_resize | MEMBER | POST /servers/{server_id}/action (confirmResize)
oca:servers:create | MEMBER | POST /servers
oca:servers:create:attach_network | MEMBER | POST /servers
oca:servers:create:attach_volume | MEMBER | POST /servers
oca:servers:create:forced_host | ADMIN | POST /servers
oca:servers:create:trusted_certs | MEMBER | POST /servers
oca:servers:create:zero_disk_flavor | ADMIN | POST /servers
oca:servers:create_image | MEMBER | POST /servers/{server_id}/action (createImage)
oca:servers:create_image:allow_volume_backed | MEMBER | POST /servers/{server_id}/action (createImage)
oca:servers:delete | MEMBER | DELETE /servers/{server_id}
oca:servers:detail | READER | GET /servers/detail
oca:servers:detail:get_all_tenants | ADMIN | GET /servers/detail
oca:servers:index | READER | GET /servers
oca:servers:index:get_all_tenants | ADMIN | GET /servers
oca:servers:migrations:delete | MGR | DELETE /servers/{server_id}/migrations/{migration_id}
oca:servers:migrations:force_complete | MGR | POST /servers/{server_id}/migrations/{migration_id}/action (force_complete)
oca:servers:migrations:index | MGR | GET /servers/{server_id}/migrations
oca:servers:migrations:index:host | ADMIN | GET /servers/{server_id}/migrations
oca:servers:migrations:show | ADMIN | GET /servers/{server_id}/migrations/{migration_id}
oca:servers:reboot | MEMBER | POST /servers/{server_id}/action (reboot)
oca:servers:rebuild | MEMBER | POST /servers/{server_id}/action (rebuild)
oca:servers:rebuild:trusted_certs | MEMBER | POST /servers/{server_id}/action (rebuild)
oca:servers:resize | MEMBER | POST /servers/{server_id}/action (resize)
oca:servers:revert_resize | MEMBER | POST /servers/{server_id}/action (revertResize)
oca:servers:show | READER | GET /servers/{server_id}
oca:servers:show:flavor-extra-specs | READER | GET /servers/detail; GET /servers/{server_id}
oca:servers:show:flavor-extra-specs | READER | PUT /servers/{server_id}; POST /servers/{server_id}/action (rebuild)
oca:servers:show:host_status | ADMIN | GET /servers/{server_id}; GET /servers/detail
oca:servers:show:host_status | ADMIN | PUT /servers/{server_id}; POST /servers/{server_id}/action (rebuild)
oca:servers:show:host_status:unknown-only | ADMIN | GET /servers/{server_id}; GET /servers/detail
oca:servers:show:host_status:unknown-only | ADMIN | PUT /servers/{server_id}; POST /servers/{server_id}/action (rebuild)
oca:servers:start | MEMBER | POST /servers/{server_id}/action (os-start)
oca:servers:stop | MEMBER | POST /servers/{server_id}/action (os-stop)
oca:servers:trigger_crash_dump | MEMBER | POST /servers/{server_id}/action (trigger_crash_dump)
oca:servers:update | MEMBER | PUT /servers/{server_id}
"""  # noqa: E501 - lines of a table
RULES: dict[str, tuple[str, tuple[str, ...]]] = {}
for _line in _TABLE.strip().splitlines():
    _name, _default, _operations = _line.replace('oca:', 'os_compute_api:').split(' | ')
    RULES[_name] = _default, (*RULES.get(_name, ('', ()))[1], *_operations.split('; '))
