"""Services of the cloud's daemons."""
from __future__ import annotations

from typing import Any

from oslo_utils import strutils, uuidutils

from kilonova.api.services import hosts
from kilonova.api.views import services as views
from kilonova.api.wsgi import Call
from kilonova.errors import Invalid

UUIDS_SINCE, PARTIAL_SINCE = 53, 69


def index(call: Call) -> Any:
    """GET /os-services."""
    host, binary = call.one('host'), call.one('binary')
    silent: list[Any] = []
    rows = hosts.list_services(call.backend, host, binary, silent)
    bodies = [views.show(service.row, call.version) for service in rows]
    if silent and call.version >= PARTIAL_SINCE:
        bodies += [views.unknown(name) for name in hosts.unknown_hosts(call.backend, silent, host, binary)]
    return {'services': bodies}


# --- until 2.52: a verb, a host and a binary -------------------------------------------------------------------------
def _change(call: Call, values: dict[str, Any]) -> dict[str, Any]:
    host, binary = call.body['host'], call.body['binary']
    row = hosts.change(call.backend, call.ctxt, hosts.find_binary(call.backend, host, binary), values)
    return {'host': row['host'], 'binary': row['binary']}


def enable(call: Call) -> Any:
    """PUT /os-services/enable."""
    return {'service': {**_change(call, {'disabled': False, 'disabled_reason': None}), 'status': 'enabled'}}


def disable(call: Call) -> Any:
    """PUT /os-services/disable."""
    return {'service': {**_change(call, {'disabled': True, 'disabled_reason': None}), 'status': 'disabled'}}


def disable_log_reason(call: Call) -> Any:
    """PUT /os-services/disable-log-reason."""
    reason = call.body['disabled_reason']
    return {'service': {**_change(call, {'disabled': True, 'disabled_reason': reason}), 'status': 'disabled',
                        'disabled_reason': reason}}


def force_down(call: Call) -> Any:
    """PUT /os-services/force-down."""
    forced = strutils.bool_from_string(call.body['forced_down'], strict=True)
    return {'service': {**_change(call, {'forced_down': forced}), 'forced_down': forced}}


# --- from 2.53: one PUT of what is to be -----------------------------------------------------------------------------
def update(call: Call) -> Any:
    """PUT /os-services/{service_id}."""
    values = _values(call.body)
    service = _find(call)
    if service.row['binary'] != hosts.COMPUTE:
        raise Invalid(f"Updating a {service.row['binary']} service is not supported. Only nova-compute services can be "
                      'updated.')
    row = hosts.change(call.backend, call.ctxt, service, values)
    return {'service': views.show(hosts.with_zone(call.backend, row), call.version)}


def _values(body: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    status, reason = body.get('status'), body.get('disabled_reason')
    if status is not None:
        values = {'disabled': status == 'disabled', 'disabled_reason': reason}
    if reason is not None and status != 'disabled':
        raise Invalid("Specifying disabled_reason requires that status is 'disabled'."
                      if status is None else "Specifying disabled_reason with status 'enabled' is invalid.")
    if body.get('forced_down') is not None:
        values['forced_down'] = strutils.bool_from_string(body['forced_down'], strict=True)
    if not values:
        raise Invalid('No updates were requested. Fields status or forced_down should be specified.')
    return values


def delete(call: Call) -> None:
    """DELETE /os-services/{service_id}."""
    hosts.delete_service(call.backend, call.ctxt, _find(call))


def _find(call: Call) -> hosts.InCell:
    identifier = call.path['service_id']
    if call.version >= UUIDS_SINCE:
        if not uuidutils.is_uuid_like(identifier):
            raise Invalid(f'Invalid uuid {identifier}')
        return hosts.find_service(call.backend, uuid=identifier)
    number = hosts.as_number(identifier)
    if number is None:
        raise Invalid(f"An invalid 'service_id' value was provided: '{identifier}' is not an integer.")
    return hosts.find_service(call.backend, number=number)
