"""Bodies of images, as they were when this API still had them (until 2.35)."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oslo_utils import strutils

Image = Mapping[str, Any]

_STATUS = {'active': 'ACTIVE', 'queued': 'SAVING', 'saving': 'SAVING', 'importing': 'SAVING', 'uploading': 'SAVING',
           'deleted': 'DELETED', 'pending_delete': 'DELETED', 'killed': 'ERROR'}
_PROGRESS = {'queued': 25, 'saving': 50, 'importing': 50, 'uploading': 50, 'active': 100}
# What the image service calls the states that this API knows.
WANTED = {'SAVING': 'in:queued,saving,importing,uploading', 'DELETED': 'in:deleted,pending_delete', 'ERROR': 'killed'}


@dataclass(frozen=True)
class Look:
    """``links``: wsgi.Links; ``url``: where an image is at the image service, by its id."""

    links: Any
    url: Callable[[str], str]


def _links(image: Image, look: Look) -> list[dict[str, str]]:
    alternate = {'rel': 'alternate', 'type': 'application/vnd.openstack.image', 'href': look.url(image['id'])}
    return [*look.links.of('images', image['id']), alternate]


def brief(image: Image, look: Look) -> dict[str, Any]:
    """An entry of the plain list."""
    return {'id': image['id'], 'name': image['name'], 'links': _links(image, look)}


def show(image: Image, look: Look) -> dict[str, Any]:
    """The whole body of an image."""
    properties = image['properties']
    body = {**brief(image, look), 'minRam': image['min_ram'], 'minDisk': image['min_disk'],
            'metadata': properties, 'created': image['created_at'], 'updated': image['updated_at'],
            'status': _STATUS.get(image['status'], 'UNKNOWN'), 'progress': _PROGRESS.get(image['status'], 0),
            'OS-EXT-IMG-SIZE:size': image['size']}
    if 'auto_disk_config' in properties:
        body['OS-DCF:diskConfig'] = 'AUTO' if strutils.bool_from_string(properties['auto_disk_config']) else 'MANUAL'
    if properties.get('instance_uuid'):
        server = properties['instance_uuid']
        body['server'] = {'id': server, 'links': look.links.of('servers', server)}
    return body
