"""Flavors, their extra specs, and who may use private ones."""
from __future__ import annotations

from typing import Any

from oslo_utils import uuidutils

from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import flavors, owners
from kilonova.errors import (
    Conflict,
    FlavorAccessNotFound,
    FlavorExtraSpecsNotFound,
    FlavorNotFound,
    NotFound,
)


class FlavorAccessExists(Conflict):
    msg_fmt = 'Flavor access already exists for flavor %(flavor_id)s and project %(project_id)s combination.'


class FlavorIsPublic(Conflict):
    msg_fmt = 'Can not add access to a public flavor.'


class NoAccessList(NotFound):
    msg_fmt = 'Access list not available for public flavors.'


def get(backend: Backend, ctxt: RequestContext, flavor_id: str) -> dict[str, Any]:
    """FlavorNotFound also for private flavors that were not granted."""
    with backend.api_db.read() as conn:
        found = flavors.get(conn, flavor_id, owners.seen_by(ctxt))
    if found is None:
        raise FlavorNotFound(flavor_id=flavor_id)
    return found


def create(backend: Backend, ctxt: RequestContext, values: dict[str, Any]) -> dict[str, Any]:
    """``values``: columns; without flavorid it gets a uuid. FlavorExists, FlavorIdExists."""
    made = flavors.create(backend.api_db, {
        'swap': 0, 'ephemeral_gb': 0, 'rxtx_factor': 1.0, 'vcpu_weight': 0, 'disabled': False, 'is_public': True,
        **values, 'flavorid': values.get('flavorid') or uuidutils.generate_uuid()})
    backend.notify.emit(ctxt, 'flavor.create', flavor=made)
    return made


def describe(backend: Backend, ctxt: RequestContext, flavor_id: str, description: str | None) -> dict[str, Any]:
    """Change the description. FlavorNotFound."""
    found = flavors.describe(backend.api_db, flavor_id, description)
    if found is None:
        raise FlavorNotFound(flavor_id=flavor_id)
    _notify(backend, ctxt, flavor_id)
    return found


def delete(backend: Backend, ctxt: RequestContext, flavor_id: str) -> None:
    """FlavorNotFound. Servers keep their copies."""
    told = _with_projects(backend, flavor_id) if backend.notify.enabled else None
    if not flavors.delete(backend.api_db, flavor_id):
        raise FlavorNotFound(flavor_id=flavor_id)
    backend.notify.emit(ctxt, 'flavor.delete', flavor=told)


def _with_projects(backend: Backend, flavor_id: str) -> dict[str, Any] | None:
    with backend.api_db.read() as conn:
        found = flavors.get(conn, flavor_id, owners.ALL)
        return found and {**found, 'projects': None if found['is_public'] else flavors.access(conn, found['id'])}


def _notify(backend: Backend, ctxt: RequestContext, flavor_id: str) -> None:
    """The flavor changed: its extra specs, who may use it, its description."""
    def read() -> dict[str, Any] | None:
        found = _with_projects(backend, flavor_id)
        return found and {'flavor': found}
    backend.notify.later(ctxt, 'flavor.update', read)


def set_specs(backend: Backend, ctxt: RequestContext, flavor_id: str, values: dict[str, str]) -> None:
    """FlavorNotFound."""
    if not flavors.set_specs(backend.api_db, flavor_id, values):
        raise FlavorNotFound(flavor_id=flavor_id)
    _notify(backend, ctxt, flavor_id)


def get_spec(backend: Backend, ctxt: RequestContext, flavor_id: str, key: str) -> dict[str, str]:
    """{key: value}; FlavorExtraSpecsNotFound."""
    specs = get(backend, ctxt, flavor_id)['extra_specs']
    if key not in specs:
        raise FlavorExtraSpecsNotFound(flavor_id=flavor_id, extra_specs_key=key)
    return {key: specs[key]}


def delete_spec(backend: Backend, ctxt: RequestContext, flavor_id: str, key: str) -> None:
    """FlavorExtraSpecsNotFound where it wasn't set."""
    if not flavors.delete_spec(backend.api_db, get(backend, ctxt, flavor_id)['id'], key):
        raise FlavorExtraSpecsNotFound(flavor_id=flavor_id, extra_specs_key=key)
    _notify(backend, ctxt, flavor_id)


def access(backend: Backend, ctxt: RequestContext, flavor_id: str) -> list[str]:
    """The projects that may use a private flavor; NoAccessList for a public one."""
    found = get(backend, ctxt, flavor_id)
    if found['is_public']:
        raise NoAccessList
    with backend.api_db.read() as conn:
        return flavors.access(conn, found['id'])


def grant(backend: Backend, ctxt: RequestContext, flavor_id: str, project_id: str, *, refuse_public: bool) -> list[str]:
    """FlavorAccessExists; from 2.7 on (``refuse_public``) FlavorIsPublic."""
    found = get(backend, ctxt, flavor_id)
    if found['is_public'] and refuse_public:
        raise FlavorIsPublic
    projects = flavors.grant(backend.api_db, found['id'], project_id)
    if projects is None:
        raise FlavorAccessExists(flavor_id=flavor_id, project_id=project_id)
    _notify(backend, ctxt, flavor_id)
    return projects


def revoke(backend: Backend, ctxt: RequestContext, flavor_id: str, project_id: str) -> list[str]:
    """FlavorAccessNotFound where the project wasn't let in."""
    projects = flavors.revoke(backend.api_db, get(backend, ctxt, flavor_id)['id'], project_id)
    if projects is None:
        raise FlavorAccessNotFound(flavor_id=flavor_id, project_id=project_id)
    _notify(backend, ctxt, flavor_id)
    return projects
