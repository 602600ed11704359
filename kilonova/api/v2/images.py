"""Images, which until 2.35 (their metadata until 2.38) could be asked for here too.

Every request becomes one to the image service with the caller's token: what they may see and change is decided there.
"""
from __future__ import annotations

from typing import Any

from kilonova.api.services import image_proxy, listing
from kilonova.api.views import images as views
from kilonova.api.wsgi import Call
from kilonova.errors import Invalid

# Filters by name → what the image service calls them.
_FILTERS = {'name': 'name', 'type': 'image_type', 'minRam': 'min_ram', 'minDisk': 'min_disk', 'marker': 'marker'}
_PROPERTY = 'property-'


def _look(call: Call) -> views.Look:
    prefix = call.backend.options.glance_link_prefix

    def url(image_id: str) -> str:
        return f"{prefix.rstrip('/')}/images/{image_id}" if prefix else call.backend.images.url(image_id, call.ctxt)
    return views.Look(call.links, url)


# --- images ----------------------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """GET /images."""
    return _list(call, 'images', views.brief)


def detail(call: Call) -> Any:
    """GET /images/detail."""
    return _list(call, 'images/detail', views.show)


def _list(call: Call, path: str, render: Any) -> Any:
    limit, look = call.limit(), _look(call)
    found = image_proxy.find(call.backend, call.ctxt, _wanted(call), limit) if limit else []
    body: dict[str, Any] = {'images': [render(image, look) for image in found]}
    if found and len(found) == limit:
        body['images_links'] = call.links.next(path, call.query, found[-1]['id'])
    return body


def _wanted(call: Call) -> dict[str, str]:
    given = {name: call.one(name) or '' for name in call.query}
    wanted = {_FILTERS[name]: value for name, value in given.items() if name in _FILTERS}
    wanted.update((name.removeprefix(_PROPERTY), value) for name, value in given.items()
                  if name.startswith(_PROPERTY))
    if 'status' in given:
        wanted['status'] = views.WANTED.get(given['status'].upper(), given['status'].lower())
    if 'changes-since' in given:
        wanted['updated_at'] = f"gte:{listing.when(given['changes-since']):%Y-%m-%dT%H:%M:%SZ}"
    if 'server' in given:
        # Clients send the id or the server's URL.
        wanted['instance_uuid'] = given['server'].rpartition('/')[2]
    return wanted


def show(call: Call) -> Any:
    """GET /images/{image_id}."""
    return {'image': views.show(image_proxy.get(call.backend, call.ctxt, call.path['image_id']), _look(call))}


def delete(call: Call) -> None:
    """DELETE /images/{image_id}."""
    image_proxy.delete(call.backend, call.ctxt, call.path['image_id'])


# --- metadata --------------------------------------------------------------------------------------------------------
def list_metadata(call: Call) -> Any:
    """GET /images/{image_id}/metadata."""
    return {'metadata': image_proxy.get(call.backend, call.ctxt, call.path['image_id'])['properties']}


def create_metadata(call: Call) -> Any:
    """POST /images/{image_id}/metadata."""
    return {'metadata': image_proxy.set_metadata(call.backend, call.ctxt, call.path['image_id'],
                                                 call.body['metadata'])}


def update_metadata(call: Call) -> Any:
    """PUT /images/{image_id}/metadata."""
    return {'metadata': image_proxy.set_metadata(call.backend, call.ctxt, call.path['image_id'], call.body['metadata'],
                                                 replace=True)}


def show_item(call: Call) -> Any:
    """GET /images/{image_id}/metadata/{key}."""
    return {'meta': image_proxy.item(call.backend, call.ctxt, call.path['image_id'], call.path['key'])}


def update_item(call: Call) -> Any:
    """PUT /images/{image_id}/metadata/{key}."""
    meta = call.body['meta']
    if call.path['key'] not in meta:
        raise Invalid('Request body and URI mismatch')
    image_proxy.set_metadata(call.backend, call.ctxt, call.path['image_id'], meta)
    return {'meta': meta}


def delete_item(call: Call) -> None:
    """DELETE /images/{image_id}/metadata/{key}."""
    image_proxy.delete_item(call.backend, call.ctxt, call.path['image_id'], call.path['key'])
