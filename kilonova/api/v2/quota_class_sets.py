"""Quota classes (``/os-quota-class-sets``).

Only the class 'default' has an effect. Limits of other classes are stored and shown, but never applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.fields import Field, Fields, column
from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import quota
from kilonova.api.services.quota import NETWORK
from kilonova.api.v2.quota_sets import LIMIT, RESOURCES
from kilonova.api.wsgi import Call, Route

SHOW, UPDATE = f'{PREFIX}os-quota-class-sets:show', f'{PREFIX}os-quota-class-sets:update'
RULES = (
    rule(SHOW, ADMIN, 'Show the quotas of a class.'),
    rule(UPDATE, ADMIN, 'Change the quotas of a class; "default" is the class of projects without own quotas.'),
)

BODY = Obj(Prop('quota_class_set', Obj(*RESOURCES, *(Prop(name, LIMIT, until=49) for name in NETWORK)), required=True))

_FIELDS = Fields(
    *(Field(name, column(name)) for name in ('cores', 'instances', 'ram', 'key_pairs', 'metadata_items')),
    *(Field(name, column(name), since=50) for name in ('server_groups', 'server_group_members')),
    *(Field(name, column(name), until=49) for name in NETWORK),
    Field('injected_files', column('injected_files'), until=56),
    Field('injected_file_content_bytes', column('injected_file_content_bytes'), until=56),
    Field('injected_file_path_bytes', column('injected_file_path_length'), until=56),
)


def _shown(limits: Mapping[str, int], version: int) -> dict[str, Any]:
    """Return the limits of a quota class, with only the resources that this microversion shows."""
    return _FIELDS.render(limits, None, version)


def show(call: Call) -> Any:
    """Return the limits of a quota class (``GET /os-quota-class-sets/{quota_class}``)."""
    return {'quota_class_set': {**_body(call), 'id': call.path['quota_class']}}


def update(call: Call) -> Any:
    """Set limits of a quota class (``PUT /os-quota-class-sets/{quota_class}``)."""
    values = {name: int(value) for name, value in call.body['quota_class_set'].items()}
    quota.give_class(call.backend, call.path['quota_class'], values)
    return {'quota_class_set': _body(call)}


def _body(call: Call) -> dict[str, Any]:
    return _shown(quota.class_limits(call.backend, call.path['quota_class']), call.version)


_PATH = '/os-quota-class-sets/{quota_class}'
ROUTES = (
    Route('GET', _PATH, show, SHOW),
    Route('PUT', _PATH, update, UPDATE, body=BODY),
)
