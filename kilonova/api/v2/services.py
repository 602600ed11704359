"""The services of the cloud's daemons (``/os-services``): list, enable, disable, force down and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_utils import strutils, uuidutils

from kilonova.api.fields import Field, Fields, column, micro
from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import host_removal, hosts
from kilonova.api.v2 import gone
from kilonova.api.wsgi import Call, Route
from kilonova.errors import Invalid

# --- policy rules ----------------------------------------------------------------------------------------------------
LIST, UPDATE, DELETE = (f'{PREFIX}os-services:{verb}' for verb in ('list', 'update', 'delete'))
RULES = (
    rule(LIST, ADMIN, 'List services.'),
    rule(UPDATE, ADMIN, 'Enable, disable or force down a service.'),
    rule(DELETE, ADMIN, 'Delete a service.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
_REASON = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'format': 'text'}
_BINARY = {'type': 'string', 'minLength': 1, 'maxLength': 255}
_OF_HOST = (Prop('host', t.HOST, required=True), Prop('binary', _BINARY, required=True))

QUERY = QuerySchema.of(Prop('host', t.ANY_TEXT), Prop('binary', t.ANY_TEXT))
ENABLE_BODY = Obj(*_OF_HOST)
ANY_VERB_BODY = Obj(*_OF_HOST, Prop('disabled_reason', _REASON), Prop('forced_down', t.BOOLEAN, since=11))
DISABLE_BODY = Obj(*_OF_HOST)
DISABLE_LOG_REASON_BODY = Obj(*_OF_HOST, Prop('disabled_reason', _REASON, required=True))
FORCE_DOWN_BODY = Obj(*_OF_HOST, Prop('forced_down', t.BOOLEAN, required=True))
UPDATE_BODY = Obj(
    Prop('status', t.one_of('enabled', 'disabled')), Prop('disabled_reason', _REASON), Prop('forced_down', t.BOOLEAN)
)


# --- response fields -------------------------------------------------------------------------------------------------
Row = Mapping[str, Any]


def _seen(row: Row, viewer: object) -> str | None:
    seen = row['last_seen_up'] or row['updated_at'] or row['created_at']
    return micro(seen)


FIELDS = Fields(
    Field('id', column('id'), until=52),
    Field('id', column('uuid'), since=53),
    Field('binary', column('binary')),
    Field('host', column('host')),
    Field('zone', column('zone')),
    Field('status', lambda row, viewer: 'disabled' if row['disabled'] else 'enabled'),
    Field('state', lambda row, viewer: 'up' if row['up'] else 'down'),
    Field('updated_at', _seen),
    Field('disabled_reason', column('disabled_reason')),
    Field('forced_down', lambda row, viewer: bool(row['forced_down']), since=11),
)


def _body(row: Row, version: int) -> dict[str, Any]:
    """Return the response body of a service.

    ``row`` is the service's row with two additional members: ``zone`` (its availability zone) and ``up``.
    """
    return FIELDS.render(row, None, version)


def _unknown(host: str) -> dict[str, Any]:
    """Return the list entry for the compute service of a host whose cell does not answer (microversion 2.69 on)."""
    return {'binary': 'nova-compute', 'host': host, 'status': 'UNKNOWN'}


# --- handlers of requests --------------------------------------------------------------------------------------------
UUIDS_SINCE, PARTIAL_SINCE = 53, 69


def index(call: Call) -> Any:
    """List services (``GET /os-services``)."""
    host, binary = call.one('host'), call.one('binary')
    silent: list[Any] = []
    rows = hosts.list_services(call.backend, host, binary, silent)
    bodies = [_body(service.row, call.version) for service in rows]
    if silent and call.version >= PARTIAL_SINCE:
        bodies += [_unknown(name) for name in hosts.unknown_hosts(call.backend, silent, host, binary)]
    return {'services': bodies}


# --- requests that change a service, up to microversion 2.52 ---------------------------------------------------------
def _change(call: Call, values: dict[str, Any]) -> dict[str, Any]:
    """Write ``values`` to the row of a service. The request's body names the service: {"host": …, "binary": …}.

    Serves PUT requests to /os-services/enable, /disable, /disable-log-reason and /force-down. Return the host and the
    binary of the service.
    """
    host, binary = call.body['host'], call.body['binary']
    row = hosts.change(call.backend, call.ctxt, hosts.find_binary(call.backend, host, binary), values)
    return {'host': row['host'], 'binary': row['binary']}


def enable(call: Call) -> Any:
    """Enable a service (``PUT /os-services/enable``)."""
    return {'service': {**_change(call, {'disabled': False, 'disabled_reason': None}), 'status': 'enabled'}}


def disable(call: Call) -> Any:
    """Disable a service (``PUT /os-services/disable``)."""
    return {'service': {**_change(call, {'disabled': True, 'disabled_reason': None}), 'status': 'disabled'}}


def disable_log_reason(call: Call) -> Any:
    """Disable a service and store the reason (``PUT /os-services/disable-log-reason``)."""
    reason = call.body['disabled_reason']
    return {
        'service': {
            **_change(call, {'disabled': True, 'disabled_reason': reason}),
            'status': 'disabled',
            'disabled_reason': reason,
        }
    }


def force_down(call: Call) -> Any:
    """Set or clear ``forced_down`` of a service (``PUT /os-services/force-down``)."""
    forced = strutils.bool_from_string(call.body['forced_down'], strict=True)
    return {'service': {**_change(call, {'forced_down': forced}), 'forced_down': forced}}


# --- the request that changes a service, since microversion 2.53: a PUT with the new values --------------------------
def update(call: Call) -> Any:
    """Enable, disable or force down a compute service (``PUT /os-services/{service_id}``).

    Raises Invalid (400) for a service that is not nova-compute.
    """
    values = _values(call.body)
    service = _find(call)
    if service.row['binary'] != hosts.COMPUTE:
        raise Invalid(
            f'Updating a {service.row["binary"]} service is not supported. Only nova-compute services can be updated.'
        )
    row = hosts.change(call.backend, call.ctxt, service, values)
    return {'service': _body(hosts.with_zone(call.backend, row), call.version)}


def _values(body: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    status, reason = body.get('status'), body.get('disabled_reason')
    if status is not None:
        values = {'disabled': status == 'disabled', 'disabled_reason': reason}
    if reason is not None and status != 'disabled':
        raise Invalid(
            "Specifying disabled_reason requires that status is 'disabled'."
            if status is None
            else "Specifying disabled_reason with status 'enabled' is invalid."
        )
    if body.get('forced_down') is not None:
        values['forced_down'] = strutils.bool_from_string(body['forced_down'], strict=True)
    if not values:
        raise Invalid('No updates were requested. Fields status or forced_down should be specified.')
    return values


def delete(call: Call) -> None:
    """Delete a service (``DELETE /os-services/{service_id}``)."""
    host_removal.delete_service(call.backend, call.ctxt, _find(call))


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


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = '/os-services', '/os-services/{service_id}'
ROUTES = (
    Route('GET', _ALL, index, LIST, query=QUERY),
    Route('PUT', f'{_ALL}/enable', enable, UPDATE, body=ENABLE_BODY, until=52),
    Route('PUT', f'{_ALL}/disable', disable, UPDATE, body=DISABLE_BODY, until=52),
    Route('PUT', f'{_ALL}/disable-log-reason', disable_log_reason, UPDATE, body=DISABLE_LOG_REASON_BODY, until=52),
    Route('PUT', f'{_ALL}/force-down', force_down, UPDATE, body=FORCE_DOWN_BODY, since=11, until=52),
    Route('PUT', f'{_ALL}/force-down', gone.unknown_action, UPDATE, body=ANY_VERB_BODY, status=404, until=10),
    Route('PUT', _ONE, gone.unknown_action, UPDATE, body=ANY_VERB_BODY, status=404, until=52),
    Route('PUT', _ONE, update, UPDATE, body=UPDATE_BODY, since=53),
    Route('DELETE', _ONE, delete, DELETE, status=204),
)
