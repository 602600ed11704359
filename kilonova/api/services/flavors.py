"""Flavors: get, create and delete them, and change their extra specs, description and project access."""

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
    """Error 409: the request gives a project access to a private flavor, but the project already has access."""

    msg_fmt = 'Flavor access already exists for flavor %(flavor_id)s and project %(project_id)s combination.'


class FlavorIsPublic(Conflict):
    """Error 409: the flavor is public, so access to it can't be granted."""

    msg_fmt = 'Can not add access to a public flavor.'


class NoAccessList(NotFound):
    """Error 404: the flavor is public, so it has no access list."""

    msg_fmt = 'Access list not available for public flavors.'


def get(backend: Backend, ctxt: RequestContext, flavor_id: str) -> dict[str, Any]:
    """Return a flavor's row with its extra specs.

    Raises FlavorNotFound if the flavor does not exist, or is private and the caller has no access.
    """
    with backend.api_db.read() as conn:
        found = flavors.get(conn, flavor_id, owners.seen_by(ctxt))
    if found is None:
        raise FlavorNotFound(flavor_id=flavor_id)
    return found


def create(backend: Backend, ctxt: RequestContext, values: dict[str, Any]) -> dict[str, Any]:
    """Create a flavor and return its row.

    ``values`` are column values. If ``flavorid`` is missing, the flavor gets a new uuid as its id. Raises FlavorExists
    if another flavor has the name, and FlavorIdExists if another flavor has the id.
    """
    made = flavors.create(
        backend.api_db,
        {
            'swap': 0,
            'ephemeral_gb': 0,
            'rxtx_factor': 1.0,
            'vcpu_weight': 0,
            'disabled': False,
            'is_public': True,
            **values,
            'flavorid': values.get('flavorid') or uuidutils.generate_uuid(),
        },
    )
    backend.notify.emit(ctxt, 'flavor.create', flavor=made)
    return made


def describe(backend: Backend, ctxt: RequestContext, flavor_id: str, description: str | None) -> dict[str, Any]:
    """Change the description of a flavor, and return the flavor's row.

    Raises FlavorNotFound if the flavor does not exist.
    """
    found = flavors.describe(backend.api_db, flavor_id, description)
    if found is None:
        raise FlavorNotFound(flavor_id=flavor_id)
    _notify(backend, ctxt, flavor_id)
    return found


def delete(backend: Backend, ctxt: RequestContext, flavor_id: str) -> None:
    """Delete a flavor. Servers of this flavor keep their copies of its values.

    Raises FlavorNotFound if the flavor does not exist.
    """
    told = _with_projects(backend, flavor_id) if backend.notify.enabled else None
    if not flavors.delete(backend.api_db, flavor_id):
        raise FlavorNotFound(flavor_id=flavor_id)
    backend.notify.emit(ctxt, 'flavor.delete', flavor=told)


def _with_projects(backend: Backend, flavor_id: str) -> dict[str, Any] | None:
    with backend.api_db.read() as conn:
        found = flavors.get(conn, flavor_id, owners.ALL)
        return found and {**found, 'projects': None if found['is_public'] else flavors.access(conn, found['id'])}


def _notify(backend: Backend, ctxt: RequestContext, flavor_id: str) -> None:
    """Send the notification ``flavor.update`` after a change of extra specs, access or description."""

    def read() -> dict[str, Any] | None:
        found = _with_projects(backend, flavor_id)
        return found and {'flavor': found}

    backend.notify.later(ctxt, 'flavor.update', read)


def set_specs(backend: Backend, ctxt: RequestContext, flavor_id: str, values: dict[str, str]) -> None:
    """Set the extra specs ``values`` of a flavor, and keep its other extra specs.

    Raises FlavorNotFound if the flavor does not exist.
    """
    if not flavors.set_specs(backend.api_db, flavor_id, values):
        raise FlavorNotFound(flavor_id=flavor_id)
    _notify(backend, ctxt, flavor_id)


def get_spec(backend: Backend, ctxt: RequestContext, flavor_id: str, key: str) -> dict[str, str]:
    """Return one extra spec of a flavor, as a dict {key: value}.

    Raises FlavorNotFound if the flavor does not exist, and FlavorExtraSpecsNotFound if it does not have the extra spec.
    """
    specs = get(backend, ctxt, flavor_id)['extra_specs']
    if key not in specs:
        raise FlavorExtraSpecsNotFound(flavor_id=flavor_id, extra_specs_key=key)
    return {key: specs[key]}


def delete_spec(backend: Backend, ctxt: RequestContext, flavor_id: str, key: str) -> None:
    """Delete one extra spec of a flavor.

    Raises FlavorNotFound if the flavor does not exist, and FlavorExtraSpecsNotFound if it does not have the extra spec.
    """
    if not flavors.delete_spec(backend.api_db, get(backend, ctxt, flavor_id)['id'], key):
        raise FlavorExtraSpecsNotFound(flavor_id=flavor_id, extra_specs_key=key)
    _notify(backend, ctxt, flavor_id)


def access(backend: Backend, ctxt: RequestContext, flavor_id: str) -> list[str]:
    """Return the ids of the projects that can use a private flavor.

    Raises FlavorNotFound if the flavor does not exist, and NoAccessList if it is public.
    """
    found = get(backend, ctxt, flavor_id)
    if found['is_public']:
        raise NoAccessList
    with backend.api_db.read() as conn:
        return flavors.access(conn, found['id'])


def grant(backend: Backend, ctxt: RequestContext, flavor_id: str, project_id: str, *, refuse_public: bool) -> list[str]:
    """Give a project access to a flavor, and return the ids of all projects that have access.

    Raises:
        FlavorNotFound: The flavor does not exist.
        FlavorAccessExists: The project has access already.
        FlavorIsPublic: The flavor is public, and ``refuse_public`` is true (from microversion 2.7 on). If it is false,
            the access to a public flavor is stored, as in Nova, but has no effect.
    """
    found = get(backend, ctxt, flavor_id)
    if found['is_public'] and refuse_public:
        raise FlavorIsPublic
    projects = flavors.grant(backend.api_db, found['id'], project_id)
    if projects is None:
        raise FlavorAccessExists(flavor_id=flavor_id, project_id=project_id)
    _notify(backend, ctxt, flavor_id)
    return projects


def revoke(backend: Backend, ctxt: RequestContext, flavor_id: str, project_id: str) -> list[str]:
    """Remove a project's access to a flavor, and return the ids of the projects that still have access.

    Raises FlavorNotFound if the flavor does not exist, and FlavorAccessNotFound if the project does not have access.
    """
    projects = flavors.revoke(backend.api_db, get(backend, ctxt, flavor_id)['id'], project_id)
    if projects is None:
        raise FlavorAccessNotFound(flavor_id=flavor_id, project_id=project_id)
    _notify(backend, ctxt, flavor_id)
    return projects
