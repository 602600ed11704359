"""Every route of the API, in ONE table. What isn't built has no row.

A row: method, path, handler, policy; then what may be asked (``query``, ``body``), the status of success, and in which
versions it exists. Rows of actions share a path and differ by the key of their body.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.api.policies import aggregates as p_aggregates
from kilonova.api.policies import availability_zones as p_zones
from kilonova.api.policies import flavors as p_flavors
from kilonova.api.policies import hypervisors as p_hypervisors
from kilonova.api.policies import instance_actions as p_history
from kilonova.api.policies import limits as p_limits
from kilonova.api.policies import migrations as p_migrations
from kilonova.api.policies import quota_sets as p_quotas
from kilonova.api.policies import server_actions as p_actions
from kilonova.api.policies import servers as p_servers
from kilonova.api.policies import services as p_services
from kilonova.api.schemas import flavors as s_flavors
from kilonova.api.schemas import hypervisors as s_hypervisors
from kilonova.api.schemas import instance_actions as s_history
from kilonova.api.schemas import limits as s_limits
from kilonova.api.schemas import migrations as s_migrations
from kilonova.api.schemas import server_actions as s_actions
from kilonova.api.schemas import servers as s_servers
from kilonova.api.schemas import services as s_services
from kilonova.api.schemas.base import Schema
from kilonova.api.services.lookup import HISTORY, VIEW, WORK
from kilonova.api.v2 import (
    aggregates,
    availability_zones,
    flavors,
    hypervisors,
    instance_actions,
    limits,
    migrations,
    server_actions,
    servers,
    services,
)
from kilonova.api.wsgi import ANYBODY, Route

_SERVER, _FLAVOR, _SPECS = '/servers/{server_id}', '/flavors/{flavor_id}', '/flavors/{flavor_id}/os-extra_specs'
_HISTORY = f'{_SERVER}/os-instance-actions'
_HYPERVISOR, _PATTERN = '/os-hypervisors/{hypervisor_id}', '/os-hypervisors/{pattern}'


def _action(key: str, handler: Callable[..., Any], policy: str, body: Schema, status: int = 202) -> Route:
    return Route('POST', f'{_SERVER}/action', handler, policy, body=body, status=status, action=key, server=WORK)


ROUTES: tuple[Route, ...] = (
    # servers
    Route('GET', '/servers', servers.index, p_servers.INDEX, query=s_servers.INDEX),
    Route('GET', '/servers/detail', servers.detail, p_servers.DETAIL, query=s_servers.INDEX),
    Route('POST', '/servers', servers.create, p_servers.CREATE, body=s_servers.CREATE, status=202),
    Route('GET', _SERVER, servers.show, p_servers.SHOW, server=VIEW),
    Route('PUT', _SERVER, servers.update, p_servers.UPDATE, body=s_servers.UPDATE, server=VIEW),
    Route('DELETE', _SERVER, servers.delete, p_servers.DELETE, status=204, server=WORK),
    # server actions
    _action('os-start', server_actions.start, p_actions.START, s_actions.START),
    _action('os-stop', server_actions.stop, p_actions.STOP, s_actions.STOP),
    _action('reboot', server_actions.reboot, p_actions.REBOOT, s_actions.REBOOT),
    _action('resize', server_actions.resize_server, p_actions.RESIZE, s_actions.RESIZE),
    _action('confirmResize', server_actions.confirm, p_actions.CONFIRM_RESIZE, s_actions.CONFIRM_RESIZE, status=204),
    _action('revertResize', server_actions.revert, p_actions.REVERT_RESIZE, s_actions.REVERT_RESIZE),
    _action('migrate', server_actions.migrate, p_actions.MIGRATE, s_actions.MIGRATE),
    _action('os-resetState', server_actions.reset_state, p_actions.RESET_STATE, s_actions.RESET_STATE),
    # stories of servers
    Route('GET', _HISTORY, instance_actions.index, p_history.LIST, query=s_history.INDEX, server=HISTORY),
    Route('GET', f'{_HISTORY}/{{request_id}}', instance_actions.show, p_history.SHOW, server=HISTORY),
    # flavors
    Route('GET', '/flavors', flavors.index, ANYBODY, query=s_flavors.INDEX),
    Route('GET', '/flavors/detail', flavors.detail, ANYBODY, query=s_flavors.INDEX),
    Route('POST', '/flavors', flavors.create, p_flavors.CREATE, body=s_flavors.CREATE),
    Route('GET', _FLAVOR, flavors.show, ANYBODY),
    Route('PUT', _FLAVOR, flavors.update, p_flavors.UPDATE, body=s_flavors.UPDATE, since=55),
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
    # moves
    Route('GET', '/os-migrations', migrations.index, p_migrations.INDEX, query=s_migrations.INDEX),
    # aggregates and zones
    Route('GET', '/os-aggregates', aggregates.index, p_aggregates.INDEX),
    Route('GET', '/os-availability-zone', availability_zones.index, p_zones.LIST),
    Route('GET', '/os-availability-zone/detail', availability_zones.detail, p_zones.DETAIL),
    # limits and quotas
    Route('GET', '/limits', limits.show, p_limits.SHOW, query=s_limits.SHOW),
    Route('GET', '/os-quota-sets/{tenant_id}', limits.quota_set, p_quotas.SHOW, query=s_limits.QUOTA_SET,
          owner='tenant_id'),
    Route('GET', '/os-quota-sets/{tenant_id}/detail', limits.quota_detail, p_quotas.DETAIL, query=s_limits.QUOTA_SET,
          owner='tenant_id'),
    Route('GET', '/os-quota-sets/{tenant_id}/defaults', limits.quota_defaults, p_quotas.DEFAULTS),
)
