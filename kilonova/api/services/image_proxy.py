"""Images and their metadata at the image service, asked with the token of whoever asks us."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.services import images, quota
from kilonova.api.services.backend import Backend
from kilonova.errors import ImageNotFound, Invalid, NotFound


class NoSuchImage(NotFound):
    msg_fmt = 'Image not found.'


class NoSuchKey(NotFound):
    msg_fmt = 'Metadata item was not found'


def find(backend: Backend, ctxt: Any, query: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
    """One page of images; ``query`` in the words of the image service. Invalid: it doesn't understand it."""
    return [_plain(record) for record in backend.images.find(query, limit, ctxt)]


def get(backend: Backend, ctxt: Any, image_id: str) -> dict[str, Any]:
    """One image. NoSuchImage also where the user may not see it."""
    # Anything else could mean another path at the image service.
    if not uuidutils.is_uuid_like(image_id):
        raise NoSuchImage
    try:
        return _plain(backend.images.get(image_id, ctxt))
    except ImageNotFound:
        raise NoSuchImage from None


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    image = images.plain(record)
    return {**image, 'properties': {name: str(value) for name, value in image['properties'].items()}}


def delete(backend: Backend, ctxt: Any, image_id: str) -> None:
    """NoSuchImage; Forbidden: it is protected, or somebody else's."""
    get(backend, ctxt, image_id)
    backend.images.delete(image_id, ctxt)


def item(backend: Backend, ctxt: Any, image_id: str, key: str) -> dict[str, str]:
    """{key: value}; NoSuchImage, NoSuchKey."""
    found = get(backend, ctxt, image_id)['properties']
    if key not in found:
        raise NoSuchKey
    return {key: found[key]}


def set_metadata(backend: Backend, ctxt: Any, image_id: str, metadata: Mapping[str, str], *,
                 replace: bool = False) -> dict[str, str]:
    """Set these properties, with ``replace`` no others; all of them afterwards.

    NoSuchImage; Invalid: the name of something else; Forbidden: too many, or somebody else's image.
    """
    for key in metadata:
        if key in images.NO_PROPERTIES:
            raise Invalid(f"'{key}' is not metadata of an image.")
    before = get(backend, ctxt, image_id)['properties']
    after = dict(metadata) if replace else {**before, **metadata}
    quota.check_metadata(quota.limits(backend, ctxt.project_id), after)
    changes = [{'op': 'add', 'path': _path(key), 'value': value} for key, value in after.items()
               if before.get(key) != value]
    changes += [{'op': 'remove', 'path': _path(key)} for key in before if key not in after]
    _change(backend, ctxt, image_id, changes)
    return after


def delete_item(backend: Backend, ctxt: Any, image_id: str, key: str) -> None:
    """NoSuchImage, NoSuchKey; Forbidden: somebody else's image."""
    item(backend, ctxt, image_id, key)
    _change(backend, ctxt, image_id, [{'op': 'remove', 'path': _path(key)}])


def _path(key: str) -> str:
    return '/' + key.replace('~', '~0').replace('/', '~1')


def _change(backend: Backend, ctxt: Any, image_id: str, changes: list[dict[str, Any]]) -> None:
    if not changes:
        return
    try:
        backend.images.update(image_id, changes, ctxt)
    except ImageNotFound:
        raise NoSuchImage from None
