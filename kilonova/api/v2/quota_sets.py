"""Quotas of projects and, with the query parameter user_id, of one of their users (``/os-quota-sets``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_utils import strutils

from kilonova.api.fields import Field, Fields, column
from kilonova.api.rules import ADMIN, ANY, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import quota
from kilonova.api.services.quota import NETWORK, UserLimits
from kilonova.api.wsgi import Call, Route

# --- policy rules ----------------------------------------------------------------------------------------------------
SHOW, DETAIL, DEFAULTS, UPDATE, DELETE = (
    f'{PREFIX}os-quota-sets:{verb}' for verb in ('show', 'detail', 'defaults', 'update', 'delete')
)
RULES = (
    rule(SHOW, READER, 'Show the quotas of a project.'),
    rule(DETAIL, READER, 'Show the quotas and the usage of a project.'),
    rule(DEFAULTS, ANY, 'Show the default quotas of a project.'),
    rule(UPDATE, ADMIN, 'Change the quotas of a project or of one of its users.'),
    rule(DELETE, ADMIN, 'Reset the quotas of a project or of one of its users to the defaults.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
LIMIT = {
    'type': ['integer', 'string'],
    'pattern': '^-?[0-9]+$',
    'minimum': -1,
    'maximum': t.MAX_INT,
    'minLength': 1,
    'maxLength': 20,
}
RESOURCES = (
    *(
        Prop(name, LIMIT)
        for name in (
            'cores',
            'instances',
            'ram',
            'key_pairs',
            'metadata_items',
            'server_groups',
            'server_group_members',
        )
    ),
    *(
        Prop(name, LIMIT, until=56)
        for name in ('injected_files', 'injected_file_content_bytes', 'injected_file_path_bytes')
    ),
)

QUERY = QuerySchema.of(Prop('user_id', t.ANY_TEXT))
BODY = Obj(
    Prop(
        'quota_set',
        Obj(*RESOURCES, *(Prop(name, LIMIT, until=35) for name in NETWORK), Prop('force', t.BOOLEAN)),
        required=True,
    )
)


# --- response fields -------------------------------------------------------------------------------------------------
_FIELDS = Fields(
    *(
        Field(name, column(name))
        for name in (
            'cores',
            'instances',
            'ram',
            'key_pairs',
            'metadata_items',
            'server_groups',
            'server_group_members',
        )
    ),
    *(Field(name, column(name), until=35) for name in NETWORK),
    Field('injected_files', column('injected_files'), until=56),
    Field('injected_file_content_bytes', column('injected_file_content_bytes'), until=56),
    Field('injected_file_path_bytes', column('injected_file_path_length'), until=56),
)


def _shown(limits: UserLimits, version: int) -> dict[str, Any]:
    """Return the limits of a project or user, with only the resources that this microversion shows."""
    return _FIELDS.render(limits, None, version)


def _detailed(limits: UserLimits, used: Mapping[str, int], version: int) -> dict[str, Any]:
    """Return a dict from resource to {limit, in_use, reserved}. ``used`` is a dict from resource to usage.

    ``reserved`` is always 0, because Kilonova has no quota reservations.
    """
    rows = {name: {'limit': limit, 'in_use': used.get(name, 0), 'reserved': 0} for name, limit in limits.items()}
    return _FIELDS.render(rows, None, version)


# --- handlers of requests --------------------------------------------------------------------------------------------
def show(call: Call) -> Any:
    """Return the limits of a project or of its user (``GET /os-quota-sets/{tenant_id}``)."""
    project_id, user_id = _whose(call)
    limits = quota.limits(call.backend, project_id, user_id)
    return {'quota_set': {**_shown(limits, call.version), 'id': project_id}}


def detail(call: Call) -> Any:
    """Return the limits and the usage of a project or of its user (``GET /os-quota-sets/{tenant_id}/detail``)."""
    project_id, user_id = _whose(call)
    limits = quota.limits(call.backend, project_id, user_id)
    used = quota.usage_and_groups(call.backend, project_id, user_id)
    body = _detailed(limits, used.own if user_id else used.shared, call.version)
    return {'quota_set': {**body, 'id': project_id}}


def defaults(call: Call) -> Any:
    """Return the default limits (``GET /os-quota-sets/{tenant_id}/defaults``).

    The default limits apply to every project for which no limits are set. They are the same for every ``tenant_id``.
    """
    limits = quota.limits(call.backend, None)
    return {'quota_set': {**_shown(limits, call.version), 'id': call.path['tenant_id']}}


def update(call: Call) -> Any:
    """Set limits of a project or of one of its users (``PUT /os-quota-sets/{tenant_id}``).

    The query parameter user_id names the user. Unless the request sets ``force``, a limit is refused (400) if it is
    lower than the current usage of this project or user. A user's limit is also refused if it is higher than the
    project's limit minus the limits of the project's other users.
    """
    project_id, user_id = _whose(call)
    body = dict(call.body['quota_set'])
    force = strutils.bool_from_string(body.pop('force', False))
    values = {name: int(value) for name, value in body.items()}
    quota.give(call.backend, project_id, user_id, values, force)
    return {'quota_set': _shown(quota.limits(call.backend, project_id, user_id), call.version)}


def delete(call: Call) -> None:
    """Delete the limits that were set for a project or for its user (``DELETE /os-quota-sets/{tenant_id}``)."""
    quota.forget(call.backend, *_whose(call))


def _whose(call: Call) -> tuple[str, str | None]:
    return call.path['tenant_id'], call.one('user_id') or None


# --- routes of the handlers ------------------------------------------------------------------------------------------
_PATH = '/os-quota-sets/{tenant_id}'
ROUTES = (
    Route('GET', _PATH, show, SHOW, query=QUERY, owner='tenant_id'),
    Route('GET', f'{_PATH}/detail', detail, DETAIL, query=QUERY, owner='tenant_id'),
    Route('GET', f'{_PATH}/defaults', defaults, DEFAULTS),
    Route('PUT', _PATH, update, UPDATE, query=QUERY, body=BODY, owner='tenant_id'),
    Route('DELETE', _PATH, delete, DELETE, query=QUERY, status=202, owner='tenant_id'),
)
