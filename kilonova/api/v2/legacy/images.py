"""Images (``/images``), a proxy for the image service until microversion 2.35 (their metadata: until 2.38).

Every request becomes requests to the image service with the caller's token. The image service decides what the caller
may see and change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oslo_utils import strutils, uuidutils

from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import images, quota
from kilonova.api.services.backend import Backend
from kilonova.api.wsgi import ANYBODY, Call, Route
from kilonova.context import RequestContext
from kilonova.errors import ImageNotFound, Invalid, NotFound

# There are no policy rules: the image service decides what callers may do.
RULES = ()


# --- request schemas -------------------------------------------------------------------------------------------------

# Query parameters of any name are accepted, because clients can filter by any image property.
QUERY = QuerySchema.of(
    Prop('limit', t.NUMBER_TEXT),
    Prop('marker', t.ANY_TEXT),
    Prop('changes-since', t.DATE_TEXT),
    *(Prop(name, t.ANY_TEXT) for name in ('name', 'status', 'server', 'type')),
    *(Prop(name, t.NUMBER_TEXT) for name in ('minRam', 'minDisk')),
)

METADATA_BODY = Obj(Prop('metadata', t.METADATA, required=True))
META_BODY = Obj(Prop('meta', {**t.METADATA, 'minProperties': 1, 'maxProperties': 1}, required=True))


# --- response fields -------------------------------------------------------------------------------------------------
Image = Mapping[str, Any]

_STATUS = {
    'active': 'ACTIVE',
    'queued': 'SAVING',
    'saving': 'SAVING',
    'importing': 'SAVING',
    'uploading': 'SAVING',
    'deleted': 'DELETED',
    'pending_delete': 'DELETED',
    'killed': 'ERROR',
}
_PROGRESS = {'queued': 25, 'saving': 50, 'importing': 50, 'uploading': 50, 'active': 100}
# A dict from a value of this API's filter ``status`` to the value of Glance's filter ``status``.
# In Glance, 'in:a,b' selects the images that have one of the statuses a and b.
_WANTED = {'SAVING': 'in:queued,saving,importing,uploading', 'DELETED': 'in:deleted,pending_delete', 'ERROR': 'killed'}


@dataclass(frozen=True)
class ImageLinks:
    """The two objects that build the links of images in the response to one request.

    ``links.of(collection, id)`` returns links to a resource of this API. ``url(id)`` returns the URL of an image in the
    image service.
    """

    links: Any
    url: Callable[[str], str]


def _links(image: Image, viewer: ImageLinks) -> list[dict[str, str]]:
    alternate = {'rel': 'alternate', 'type': 'application/vnd.openstack.image', 'href': viewer.url(image['id'])}
    return [*viewer.links.of('images', image['id']), alternate]


def _brief(image: Image, viewer: ImageLinks) -> dict[str, Any]:
    """Return the entry of an image in the list without details: id, name and links."""
    return {'id': image['id'], 'name': image['name'], 'links': _links(image, viewer)}


def _body(image: Image, viewer: ImageLinks) -> dict[str, Any]:
    """Return the response body of an image with all its fields."""
    properties = image['properties']
    body = {
        **_brief(image, viewer),
        'minRam': image['min_ram'],
        'minDisk': image['min_disk'],
        'metadata': properties,
        'created': image['created_at'],
        'updated': image['updated_at'],
        'status': _STATUS.get(image['status'], 'UNKNOWN'),
        'progress': _PROGRESS.get(image['status'], 0),
        'OS-EXT-IMG-SIZE:size': image['size'],
    }
    if 'auto_disk_config' in properties:
        body['OS-DCF:diskConfig'] = 'AUTO' if strutils.bool_from_string(properties['auto_disk_config']) else 'MANUAL'
    if properties.get('instance_uuid'):
        server = properties['instance_uuid']
        body['server'] = {'id': server, 'links': viewer.links.of('servers', server)}
    return body


# --- functions that the handlers call, and their errors --------------------------------------------------------------
class ImageNotVisible(NotFound):
    """Error 404: the image does not exist, or the caller may not see it."""

    msg_fmt = 'Image not found.'


class NoSuchKey(NotFound):
    """Error 404: the image has no metadata item with this key."""

    msg_fmt = 'Metadata item was not found'


def _find(backend: Backend, ctxt: RequestContext, query: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
    """Return one page of images.

    ``query`` contains parameters of the image service's API. Raises Invalid if the image service does not understand
    the query.
    """
    return [_plain(record) for record in backend.images.find(query, limit, ctxt)]


def _get(backend: Backend, ctxt: RequestContext, image_id: str) -> dict[str, Any]:
    """Return one image.

    Raises ImageNotVisible if the image does not exist or the caller may not see it.
    """
    # Accept only uuids: any other text could become another path in the URL of the image service.
    if not uuidutils.is_uuid_like(image_id):
        raise ImageNotVisible
    try:
        return _plain(backend.images.get(image_id, ctxt))
    except ImageNotFound:
        raise ImageNotVisible from None


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    image = images.plain(record)
    return {**image, 'properties': {name: str(value) for name, value in image['properties'].items()}}


def _delete(backend: Backend, ctxt: RequestContext, image_id: str) -> None:
    """Delete an image.

    Raises ImageNotVisible if the image does not exist or the caller may not see it, and Forbidden if the image is
    protected or belongs to another project.
    """
    _get(backend, ctxt, image_id)
    backend.images.delete(image_id, ctxt)


def _item(backend: Backend, ctxt: RequestContext, image_id: str, key: str) -> dict[str, str]:
    """Return one metadata item as {key: value}.

    Raises ImageNotVisible if the image does not exist or the caller may not see it, and NoSuchKey if it has no such
    item.
    """
    found = _get(backend, ctxt, image_id)['properties']
    if key not in found:
        raise NoSuchKey
    return {key: found[key]}


def _set(
    backend: Backend, ctxt: RequestContext, image_id: str, metadata: Mapping[str, str], *, replace: bool = False
) -> dict[str, str]:
    """Set properties of an image and return all its properties afterwards.

    With ``replace`` all other properties are deleted.

    Raises:
        ImageNotVisible: The image does not exist, or the caller may not see it.
        Invalid: A key is the name of a member that every image has, not of a property.
        Forbidden: The image would have more properties than the quota allows, or the image belongs to another project.
    """
    for key in metadata:
        if key in images.NO_PROPERTIES:
            raise Invalid(f"'{key}' cannot be set as metadata: every image has a member of this name.")
    before = _get(backend, ctxt, image_id)['properties']
    after = dict(metadata) if replace else {**before, **metadata}
    quota.check_metadata(quota.limits(backend, ctxt.project_id), after)
    changes = [
        {'op': 'add', 'path': _pointer(key), 'value': value} for key, value in after.items() if before.get(key) != value
    ]
    changes += [{'op': 'remove', 'path': _pointer(key)} for key in before if key not in after]
    _change(backend, ctxt, image_id, changes)
    return after


def _delete_item(backend: Backend, ctxt: RequestContext, image_id: str, key: str) -> None:
    """Delete one property of an image.

    Raises ImageNotVisible if the image does not exist or the caller may not see it, NoSuchKey if it has no such
    property, and Forbidden if it belongs to another project.
    """
    _item(backend, ctxt, image_id, key)
    _change(backend, ctxt, image_id, [{'op': 'remove', 'path': _pointer(key)}])


def _pointer(key: str) -> str:
    return '/' + key.replace('~', '~0').replace('/', '~1')


def _change(backend: Backend, ctxt: RequestContext, image_id: str, changes: list[dict[str, Any]]) -> None:
    if not changes:
        return
    try:
        backend.images.update(image_id, changes, ctxt)
    except ImageNotFound:
        raise ImageNotVisible from None


# --- handlers of requests --------------------------------------------------------------------------------------------

# The names of filters in this API, with the names of the same filters in the API of the image service.
_FILTERS = {'name': 'name', 'type': 'image_type', 'minRam': 'min_ram', 'minDisk': 'min_disk', 'marker': 'marker'}
_PROPERTY = 'property-'


def _look(call: Call) -> ImageLinks:
    prefix = call.backend.options.glance_link_prefix

    def url(image_id: str) -> str:
        return f'{prefix.rstrip("/")}/images/{image_id}' if prefix else call.backend.images.url(image_id, call.ctxt)

    return ImageLinks(call.links, url)


# --- images ----------------------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """List images (``GET /images``)."""
    return _list(call, 'images', _brief)


def detail(call: Call) -> Any:
    """List images with details (``GET /images/detail``)."""
    return _list(call, 'images/detail', _body)


def _list(call: Call, path: str, render: Callable[[Mapping[str, Any], ImageLinks], dict[str, Any]]) -> Any:
    limit, viewer = call.limit(), _look(call)
    found = _find(call.backend, call.ctxt, _wanted(call), limit) if limit else []
    body: dict[str, Any] = {'images': [render(image, viewer) for image in found]}
    if found and len(found) == limit:
        body['images_links'] = call.links.next(path, call.query, found[-1]['id'])
    return body


def _wanted(call: Call) -> dict[str, str]:
    given = {name: call.one(name) or '' for name in call.query}
    wanted = {_FILTERS[name]: value for name, value in given.items() if name in _FILTERS}
    wanted.update((name.removeprefix(_PROPERTY), value) for name, value in given.items() if name.startswith(_PROPERTY))
    if 'status' in given:
        wanted['status'] = _WANTED.get(given['status'].upper(), given['status'].lower())
    if 'changes-since' in given:
        wanted['updated_at'] = f'gte:{t.when(given["changes-since"]):%Y-%m-%dT%H:%M:%SZ}'
    if 'server' in given:
        # The filter 'server' is the server's id or its URL. Only the id is sent to the image service.
        wanted['instance_uuid'] = given['server'].rpartition('/')[2]
    return wanted


def show(call: Call) -> Any:
    """Return an image (``GET /images/{image_id}``)."""
    return {'image': _body(_get(call.backend, call.ctxt, call.path['image_id']), _look(call))}


def delete(call: Call) -> None:
    """Delete an image (``DELETE /images/{image_id}``)."""
    _delete(call.backend, call.ctxt, call.path['image_id'])


# --- metadata of an image --------------------------------------------------------------------------------------------
def list_metadata(call: Call) -> Any:
    """List the metadata of an image (``GET /images/{image_id}/metadata``)."""
    return {'metadata': _get(call.backend, call.ctxt, call.path['image_id'])['properties']}


def create_metadata(call: Call) -> Any:
    """Set metadata items of an image and keep the others (``POST /images/{image_id}/metadata``)."""
    return {'metadata': _set(call.backend, call.ctxt, call.path['image_id'], call.body['metadata'])}


def update_metadata(call: Call) -> Any:
    """Set metadata items of an image and delete all others (``PUT /images/{image_id}/metadata``)."""
    return {'metadata': _set(call.backend, call.ctxt, call.path['image_id'], call.body['metadata'], replace=True)}


def show_item(call: Call) -> Any:
    """Return one metadata item of an image (``GET /images/{image_id}/metadata/{key}``)."""
    return {'meta': _item(call.backend, call.ctxt, call.path['image_id'], call.path['key'])}


def update_item(call: Call) -> Any:
    """Set one metadata item of an image (``PUT /images/{image_id}/metadata/{key}``).

    Raises Invalid (400) if the body does not contain the key of the path.
    """
    meta = call.body['meta']
    if call.path['key'] not in meta:
        raise Invalid('Request body and URI mismatch')
    _set(call.backend, call.ctxt, call.path['image_id'], meta)
    return {'meta': meta}


def delete_item(call: Call) -> None:
    """Delete one metadata item of an image (``DELETE /images/{image_id}/metadata/{key}``)."""
    _delete_item(call.backend, call.ctxt, call.path['image_id'], call.path['key'])


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ONE = '/images/{image_id}'
_METADATA, _ITEM = f'{_ONE}/metadata', f'{_ONE}/metadata/{{key}}'
ROUTES = (
    Route('GET', '/images', index, ANYBODY, query=QUERY, until=35),
    Route('GET', '/images/detail', detail, ANYBODY, query=QUERY, until=35),
    Route('GET', _ONE, show, ANYBODY, until=35),
    Route('DELETE', _ONE, delete, ANYBODY, status=204, until=35),
    Route('GET', _METADATA, list_metadata, ANYBODY, until=38),
    Route('POST', _METADATA, create_metadata, ANYBODY, body=METADATA_BODY, until=38),
    Route('PUT', _METADATA, update_metadata, ANYBODY, body=METADATA_BODY, until=38),
    Route('GET', _ITEM, show_item, ANYBODY, until=38),
    Route('PUT', _ITEM, update_item, ANYBODY, body=META_BODY, until=38),
    Route('DELETE', _ITEM, delete_item, ANYBODY, status=204, until=38),
)
