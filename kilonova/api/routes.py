"""Every route of the API, in ONE table: ``make routes`` prints it. What isn't built has no row.

A row: method, path, handler, policy; then what may be asked (``query``, ``body``), the status of success, and in which
versions it exists. Rows of actions share a path and differ by the key of their body.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kilonova.api import versions
from kilonova.api.policies import aggregates as p_aggregates
from kilonova.api.policies import flavors as p_flavors
from kilonova.api.policies import hypervisors as p_hypervisors
from kilonova.api.policies import instance_actions as p_history
from kilonova.api.policies import keypairs as p_keypairs
from kilonova.api.policies import migrations as p_migrations
from kilonova.api.policies import os_hosts as p_os_hosts
from kilonova.api.policies import server_actions as p_actions
from kilonova.api.policies import server_groups as p_groups
from kilonova.api.policies import server_metadata as p_metadata
from kilonova.api.policies import server_tags as p_tags
from kilonova.api.policies import servers as p_servers
from kilonova.api.policies import services as p_services
from kilonova.api.policies import simple_tenant_usage as p_usage
from kilonova.api.schemas import aggregates as s_aggregates
from kilonova.api.schemas import flavors as s_flavors
from kilonova.api.schemas import hypervisors as s_hypervisors
from kilonova.api.schemas import images as s_images
from kilonova.api.schemas import instance_actions as s_history
from kilonova.api.schemas import keypairs as s_keypairs
from kilonova.api.schemas import migrations as s_migrations
from kilonova.api.schemas import os_hosts as s_os_hosts
from kilonova.api.schemas import server_actions as s_actions
from kilonova.api.schemas import server_groups as s_groups
from kilonova.api.schemas import server_metadata as s_metadata
from kilonova.api.schemas import server_tags as s_tags
from kilonova.api.schemas import servers as s_servers
from kilonova.api.schemas import services as s_services
from kilonova.api.schemas import simple_tenant_usage as s_usage
from kilonova.api.schemas.base import Schema
from kilonova.api.services.lookup import HISTORY, PARTIAL, VIEW, WORK
from kilonova.api.v2 import (
    aggregates,
    availability_zones,
    console_output,
    create_image,
    deferred_delete,
    extensions,
    flavors,
    gone,
    hypervisors,
    images,
    instance_actions,
    instance_usage_audit_log,
    ips,
    keypairs,
    limits,
    lock_server,
    migrations,
    os_hosts,
    quota_class_sets,
    quota_sets,
    server_actions,
    server_diagnostics,
    server_external_events,
    server_groups,
    server_metadata,
    server_migrations,
    server_password,
    server_tags,
    server_topology,
    servers,
    services,
    simple_tenant_usage,
)
from kilonova.api.wsgi import ANYBODY, Route

_SERVER, _FLAVOR, _SPECS = '/servers/{server_id}', '/flavors/{flavor_id}', '/flavors/{flavor_id}/os-extra_specs'
_HISTORY = f'{_SERVER}/os-instance-actions'
_QUOTAS, _KEYPAIR = '/os-quota-sets/{tenant_id}', '/os-keypairs/{keypair_name}'
_METADATA, _TAGS, _PASSWORD = f'{_SERVER}/metadata', f'{_SERVER}/tags', f'{_SERVER}/os-server-password'
_IMAGE_METADATA = '/images/{image_id}/metadata'
_AGGREGATE, _GROUP = '/os-aggregates/{aggregate_id}', '/os-server-groups/{server_group_id}'
_HYPERVISOR, _PATTERN = '/os-hypervisors/{hypervisor_id}', '/os-hypervisors/{hypervisor_hostname_pattern}'


# What of a server not everybody sees.
_SEEN = (p_servers.HOST_STATUS, p_servers.HOST_STATUS_UNKNOWN, p_servers.FLAVOR_EXTRA_SPECS,
         p_servers.EXTENDED_ATTRIBUTES)


def _action(key: str, handler: Callable[..., Any], policy: str, body: Schema, status: int = 202,
            asks: tuple[str, ...] = ()) -> Route:
    return Route('POST', f'{_SERVER}/action', handler, policy, body=body, status=status, action=key, server=WORK,
                 asks=asks)


# In the order of the sample of policies.
NOUNS = (availability_zones, limits, quota_sets, extensions, create_image, deferred_delete, ips, server_topology,
         server_diagnostics, server_password, console_output, server_migrations, lock_server, server_external_events,
         quota_class_sets, instance_usage_audit_log)
_ROWS: tuple[Route, ...] = (
    *(row for noun in NOUNS for row in noun.ROUTES),
    # servers
    Route('GET', _SERVER, servers.show, p_servers.SHOW, server=PARTIAL, asks=_SEEN),
    Route('GET', '/servers', servers.index, p_servers.INDEX, query=s_servers.INDEX,
          asks=(p_servers.INDEX_ALL, p_servers.ALL_FILTERS)),
    Route('GET', '/servers/detail', servers.detail, p_servers.DETAIL, query=s_servers.INDEX,
          asks=(p_servers.DETAIL_ALL, p_servers.ALL_FILTERS, *_SEEN)),
    Route('POST', '/servers', servers.create, p_servers.CREATE, body=s_servers.CREATE, status=202,
          asks=(p_servers.FORCED_HOST, p_servers.REQUESTED_DESTINATION, p_servers.ATTACH_VOLUME,
                p_servers.ATTACH_NETWORK, p_servers.TRUSTED_CERTS, p_servers.ZERO_DISK)),
    Route('PUT', _SERVER, servers.update, p_servers.UPDATE, body=s_servers.UPDATE, server=VIEW, asks=_SEEN),
    Route('DELETE', _SERVER, servers.delete, p_servers.DELETE, status=204, server=WORK),
    # server actions
    _action('os-start', server_actions.start, p_actions.START, s_actions.START),
    _action('os-stop', server_actions.stop, p_actions.STOP, s_actions.STOP),
    _action('reboot', server_actions.reboot, p_actions.REBOOT, s_actions.REBOOT),
    _action('resize', server_actions.resize_server, p_actions.RESIZE, s_actions.RESIZE),
    _action('confirmResize', server_actions.confirm, p_actions.CONFIRM_RESIZE, s_actions.CONFIRM_RESIZE, status=204),
    _action('revertResize', server_actions.revert, p_actions.REVERT_RESIZE, s_actions.REVERT_RESIZE),
    _action('migrate', server_actions.migrate, p_actions.MIGRATE, s_actions.MIGRATE,
            asks=(p_actions.MIGRATE_HOST,)),
    _action('os-resetState', server_actions.reset_state, p_actions.RESET_STATE, s_actions.RESET_STATE),
    # parts of servers
    Route('GET', _METADATA, server_metadata.index, p_metadata.INDEX, server=VIEW),
    Route('POST', _METADATA, server_metadata.create, p_metadata.CREATE, body=s_metadata.CREATE, server=VIEW),
    Route('PUT', _METADATA, server_metadata.update_all, p_metadata.UPDATE_ALL, body=s_metadata.UPDATE_ALL, server=VIEW),
    Route('GET', f'{_METADATA}/{{key}}', server_metadata.show, p_metadata.SHOW, server=VIEW),
    Route('PUT', f'{_METADATA}/{{key}}', server_metadata.update, p_metadata.UPDATE, body=s_metadata.UPDATE,
          server=VIEW),
    Route('DELETE', f'{_METADATA}/{{key}}', server_metadata.delete, p_metadata.DELETE, status=204, server=VIEW),
    Route('GET', _TAGS, server_tags.index, p_tags.INDEX, server=VIEW, since=26),
    Route('PUT', _TAGS, server_tags.update_all, p_tags.UPDATE_ALL, body=s_tags.UPDATE_ALL, server=VIEW, since=26),
    Route('DELETE', _TAGS, server_tags.delete_all, p_tags.DELETE_ALL, status=204, server=VIEW, since=26),
    Route('GET', f'{_TAGS}/{{tag}}', server_tags.show, p_tags.SHOW, status=204, server=VIEW, since=26),
    Route('PUT', f'{_TAGS}/{{tag}}', server_tags.update, p_tags.UPDATE, body=s_tags.UPDATE, status=204, server=VIEW,
          since=26),
    Route('DELETE', f'{_TAGS}/{{tag}}', server_tags.delete, p_tags.DELETE, status=204, server=VIEW, since=26),
    # stories of servers
    Route('GET', _HISTORY, instance_actions.index, p_history.LIST, query=s_history.INDEX, server=HISTORY,
          asks=(p_history.EVENTS,)),
    Route('GET', f'{_HISTORY}/{{request_id}}', instance_actions.show, p_history.SHOW, server=HISTORY,
          asks=(p_history.EVENTS, p_history.DETAILS)),
    # flavors
    Route('GET', '/flavors', flavors.index, ANYBODY, query=s_flavors.INDEX),
    Route('GET', '/flavors/detail', flavors.detail, ANYBODY, query=s_flavors.INDEX, asks=(p_flavors.SPECS_INDEX,)),
    Route('GET', _FLAVOR, flavors.show, ANYBODY, asks=(p_flavors.SPECS_INDEX,)),
    Route('POST', '/flavors', flavors.create, p_flavors.CREATE, body=s_flavors.CREATE,
          asks=(p_flavors.SPECS_INDEX,)),
    Route('PUT', _FLAVOR, flavors.update, p_flavors.UPDATE, body=s_flavors.UPDATE, since=55,
          asks=(p_flavors.SPECS_INDEX,)),
    Route('DELETE', _FLAVOR, flavors.delete, p_flavors.DELETE, status=202),
    Route('GET', _SPECS, flavors.list_specs, p_flavors.SPECS_INDEX),
    Route('POST', _SPECS, flavors.create_specs, p_flavors.SPECS_CREATE, body=s_flavors.SPECS_CREATE),
    Route('GET', f'{_SPECS}/{{key}}', flavors.show_spec, p_flavors.SPECS_SHOW),
    Route('PUT', f'{_SPECS}/{{key}}', flavors.update_spec, p_flavors.SPECS_UPDATE, body=s_flavors.SPECS_UPDATE),
    Route('DELETE', f'{_SPECS}/{{key}}', flavors.delete_spec, p_flavors.SPECS_DELETE),
    Route('GET', f'{_FLAVOR}/os-flavor-access', flavors.list_access, p_flavors.ACCESS),
    Route('POST', f'{_FLAVOR}/action', flavors.add_access, p_flavors.ADD_ACCESS, body=s_flavors.ADD_ACCESS,
          action='addTenantAccess'),
    Route('POST', f'{_FLAVOR}/action', flavors.remove_access, p_flavors.REMOVE_ACCESS, body=s_flavors.REMOVE_ACCESS,
          action='removeTenantAccess'),
    # services
    Route('GET', '/os-services', services.index, p_services.LIST, query=s_services.INDEX),
    Route('PUT', '/os-services/enable', services.enable, p_services.UPDATE, body=s_services.ENABLE, until=52),
    Route('PUT', '/os-services/disable', services.disable, p_services.UPDATE, body=s_services.DISABLE, until=52),
    Route('PUT', '/os-services/disable-log-reason', services.disable_log_reason, p_services.UPDATE,
          body=s_services.DISABLE_LOG_REASON, until=52),
    Route('PUT', '/os-services/force-down', services.force_down, p_services.UPDATE, body=s_services.FORCE_DOWN,
          since=11, until=52),
    Route('PUT', '/os-services/force-down', gone.unknown_action, p_services.UPDATE, body=s_services.ANY_VERB,
          status=404, until=10),
    Route('PUT', '/os-services/{service_id}', gone.unknown_action, p_services.UPDATE, body=s_services.ANY_VERB,
          status=404, until=52),
    Route('PUT', '/os-services/{service_id}', services.update, p_services.UPDATE, body=s_services.UPDATE, since=53),
    Route('DELETE', '/os-services/{service_id}', services.delete, p_services.DELETE, status=204),
    # hypervisors
    Route('GET', '/os-hypervisors', hypervisors.index, p_hypervisors.LIST, query=s_hypervisors.INDEX),
    Route('GET', '/os-hypervisors/detail', hypervisors.detail, p_hypervisors.DETAIL, query=s_hypervisors.INDEX),
    Route('GET', '/os-hypervisors/statistics', hypervisors.statistics, p_hypervisors.STATISTICS,
          query=s_hypervisors.NONE, until=87),
    Route('GET', _HYPERVISOR, hypervisors.show, p_hypervisors.SHOW, query=s_hypervisors.SHOW),
    Route('GET', f'{_HYPERVISOR}/uptime', hypervisors.uptime, p_hypervisors.UPTIME, query=s_hypervisors.NONE,
          until=87),
    Route('GET', f'{_PATTERN}/search', hypervisors.search, p_hypervisors.SEARCH, query=s_hypervisors.NONE, until=52),
    Route('GET', f'{_PATTERN}/servers', hypervisors.servers, p_hypervisors.SERVERS, query=s_hypervisors.NONE,
          until=52),
    # hosts, as they were known before
    Route('GET', '/os-hosts', os_hosts.index, p_os_hosts.LIST, query=s_os_hosts.INDEX, until=42),
    Route('GET', '/os-hosts/{host_name}', os_hosts.show, p_os_hosts.SHOW, until=42),
    Route('PUT', '/os-hosts/{host_name}', os_hosts.update, p_os_hosts.UPDATE, body=s_os_hosts.UPDATE, until=42),
    Route('GET', '/os-hosts/{host_name}/startup', os_hosts.power, p_os_hosts.START, status=501, until=42),
    Route('GET', '/os-hosts/{host_name}/shutdown', os_hosts.power, p_os_hosts.SHUTDOWN, status=501, until=42),
    Route('GET', '/os-hosts/{host_name}/reboot', os_hosts.power, p_os_hosts.REBOOT, status=501, until=42),
    # moves
    Route('GET', '/os-migrations', migrations.index, p_migrations.INDEX, query=s_migrations.INDEX,
          asks=(p_migrations.ALL_PROJECTS, p_migrations.HOST)),
    # aggregates and zones
    Route('GET', '/os-aggregates', aggregates.index, p_aggregates.INDEX),
    Route('POST', '/os-aggregates', aggregates.create, p_aggregates.CREATE, body=s_aggregates.CREATE),
    Route('GET', _AGGREGATE, aggregates.show, p_aggregates.SHOW),
    Route('PUT', _AGGREGATE, aggregates.update, p_aggregates.UPDATE, body=s_aggregates.UPDATE),
    Route('DELETE', _AGGREGATE, aggregates.delete, p_aggregates.DELETE),
    Route('POST', f'{_AGGREGATE}/action', aggregates.add_host, p_aggregates.ADD_HOST, body=s_aggregates.ADD_HOST,
          action='add_host'),
    Route('POST', f'{_AGGREGATE}/action', aggregates.remove_host, p_aggregates.REMOVE_HOST,
          body=s_aggregates.REMOVE_HOST, action='remove_host'),
    Route('POST', f'{_AGGREGATE}/action', aggregates.set_metadata, p_aggregates.SET_METADATA,
          body=s_aggregates.SET_METADATA, action='set_metadata'),
    # server groups
    Route('GET', '/os-server-groups', server_groups.index, p_groups.INDEX, query=s_groups.INDEX,
          asks=(p_groups.ALL_PROJECTS,)),
    Route('POST', '/os-server-groups', server_groups.create, p_groups.CREATE, body=s_groups.CREATE),
    Route('GET', _GROUP, server_groups.show, p_groups.SHOW),
    Route('DELETE', _GROUP, server_groups.delete, p_groups.DELETE, status=204),
    # usage
    Route('GET', '/os-simple-tenant-usage', simple_tenant_usage.index, p_usage.LIST, query=s_usage.INDEX),
    Route('GET', '/os-simple-tenant-usage/{tenant_id}', simple_tenant_usage.show, p_usage.SHOW, query=s_usage.SHOW,
          owner='tenant_id'),
    # key pairs
    Route('GET', '/os-keypairs', keypairs.index, p_keypairs.INDEX, query=s_keypairs.INDEX),
    Route('POST', '/os-keypairs', keypairs.create, p_keypairs.CREATE, body=s_keypairs.CREATE, until=1),
    Route('POST', '/os-keypairs', keypairs.create, p_keypairs.CREATE, body=s_keypairs.CREATE, status=201, since=2),
    Route('GET', _KEYPAIR, keypairs.show, p_keypairs.SHOW, query=s_keypairs.ONE),
    Route('DELETE', _KEYPAIR, keypairs.delete, p_keypairs.DELETE, query=s_keypairs.ONE, status=202, until=1),
    Route('DELETE', _KEYPAIR, keypairs.delete, p_keypairs.DELETE, query=s_keypairs.ONE, status=204, since=2),
    # images, as far as they were asked for here
    Route('GET', '/images', images.index, ANYBODY, query=s_images.INDEX, until=35),
    Route('GET', '/images/detail', images.detail, ANYBODY, query=s_images.INDEX, until=35),
    Route('GET', '/images/{image_id}', images.show, ANYBODY, until=35),
    Route('DELETE', '/images/{image_id}', images.delete, ANYBODY, status=204, until=35),
    Route('GET', _IMAGE_METADATA, images.list_metadata, ANYBODY, until=38),
    Route('POST', _IMAGE_METADATA, images.create_metadata, ANYBODY, body=s_images.METADATA, until=38),
    Route('PUT', _IMAGE_METADATA, images.update_metadata, ANYBODY, body=s_images.METADATA, until=38),
    Route('GET', f'{_IMAGE_METADATA}/{{key}}', images.show_item, ANYBODY, until=38),
    Route('PUT', f'{_IMAGE_METADATA}/{{key}}', images.update_item, ANYBODY, body=s_images.META, until=38),
    Route('DELETE', f'{_IMAGE_METADATA}/{{key}}', images.delete_item, ANYBODY, status=204, until=38),
    # gone for good
    *(Route(method, path, gone.answer, ANYBODY, query=gone.ANY, status=410) for method, path in gone.PATHS),
    *(Route('POST', path, gone.answer, ANYBODY, query=gone.ANY, status=410, action=key) for path, key in gone.ACTIONS),
    # taken out by a version
    *(Route(method, path, gone.absent, ANYBODY, query=gone.ANY, status=404, since=since)
      for method, path, since in gone.REMOVED),
)
# Until 2.102 servers had a second name, from when booting from volumes was an extension.
_SECOND = tuple(replace(route, path=route.path.replace('/servers', '/os-volumes_boot', 1), until=min(route.until, 102))
                for route in _ROWS if route.since <= 102
                and route.path in ('/servers', '/servers/detail', _SERVER, f'{_SERVER}/action'))
ROUTES = _ROWS + _SECOND


def operations(rule: str) -> list[tuple[str, str]]:
    """Which requests a rule is asked for, each as ('POST', '/servers/{server_id}/action (os-start)'): first those that
    it is the policy of. Second names of paths aren't told."""
    own = [route for route in _ROWS if route.policy == rule]
    found = [*own, *(route for route in _ROWS if rule in route.asks)]
    return list(dict.fromkeys((route.method, f'{route.path} ({route.action})' if route.action else route.path)
                              for route in found))


HEADER = ('method', 'path below /v2.1', 'action', 'success', 'versions', 'rule', 'handler')


def rows() -> list[tuple[str, ...]]:
    """The table as it is printed and as the documentation has it, sorted by path: ``HEADER`` names the columns."""
    return [(route.method, route.path, route.action or '', str(route.status), _window(route),
             route.policy or 'any token', _name(route.handler))
            for route in sorted(ROUTES, key=lambda route: (route.path, route.action or '', route.method, route.since))]


def _window(route: Route) -> str:
    """'2.26 to 2.104'."""
    return f'{versions.text(route.since)} to {versions.text(route.until)}'


def _name(handler: Callable[..., Any]) -> str:
    """'lock_server.lock'."""
    return f'{handler.__module__.removeprefix("kilonova.api.v2.")}.{handler.__name__}'


def text() -> str:
    """The table in columns."""
    table = [HEADER, *rows()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in table)
