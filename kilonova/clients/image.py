"""The image client: one image's record, and its bytes into a file with their checksum checked; new images.

    adapter = session.adapter(conf, 'glance', fallback='keystone_authtoken')
    images = ImageClient(adapter, retries=conf.glance.num_retries)
    record = images.get(image_id, ctxt)              # as the user: a private image of another project is not found
    with open(path, 'wb') as file:
        images.download(image_id, file)              # as the service
    images.create({'id': new_id, 'name': 'snap', 'disk_format': 'qcow2', 'container_format': 'bare'}, ctxt)
    with open(path, 'rb') as file:
        images.upload(new_id, file)                  # as the service

Routes: https://docs.openstack.org/api-ref/image/v2/.
"""
from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any
from urllib.parse import urlencode

import requests
from keystoneauth1.adapter import Adapter

from kilonova import errors
from kilonova.clients import session
from kilonova.context import RequestContext

LOG = logging.getLogger(__name__)

CHUNK = 1 << 20
# States of an image whose data is being uploaded.
SENDING = ('saving', 'importing', 'uploading')
_PATCH = 'application/openstack-images-v2.1-json-patch'


class ImageRefused(errors.Forbidden):
    """The image service's quota or policy is against it."""

    msg_fmt = 'The image service refuses image %(image_id)s: %(reason)s'


class ImageClient:
    """One per process; threads may share it."""

    def __init__(self, adapter: Adapter, retries: int = 3) -> None:
        self._adapter = adapter
        self._retries = retries

    def get(self, image_id: str, ctxt: RequestContext | None = None) -> dict[str, Any]:
        """The image's v2 record: id, name, status, size, disk_format, min_disk, min_ram, properties at top level …

        With a context that carries a token the request is the user's. ImageNotFound: none that this user may see.
        """
        found: dict[str, Any] = self._ask(image_id, f'/v2/images/{image_id}', ctxt).json()
        return found

    def find(self, query: Mapping[str, str], limit: int, ctxt: RequestContext | None = None) -> list[dict[str, Any]]:
        """At most ``limit`` records that match ``query`` (the parameters of the service's list), in its order.

        Invalid: the service doesn't understand the query, or has no such marker.
        """
        found: list[dict[str, Any]] = []
        path: str | None = f"/v2/images?{urlencode({**query, 'limit': limit})}"
        while path and len(found) < limit:
            response = self._request('GET', path, ctxt, attempts=session.READ_ATTEMPTS)
            if response.status_code != 200:
                raise errors.Invalid(_reason(response))
            answer = response.json()
            found += answer['images']
            # The service has a bound of its own.
            path = answer.get('next')
        return found[:limit]

    def update(self, image_id: str, changes: Sequence[Mapping[str, Any]], ctxt: RequestContext | None = None) -> None:
        """Change a record; ``changes`` as in JSON patch (op, path, value).

        ImageNotFound; Invalid: malformed; ImageRefused: a quota or a policy is against it.
        """
        response = self._request('PATCH', f'/v2/images/{image_id}', ctxt, json=list(changes),
                                 headers={'Content-Type': _PATCH})
        response.close()
        if response.status_code == 200:
            return
        if response.status_code in (404, 410):
            raise errors.ImageNotFound(image_id=image_id)
        reason = _reason(response)
        if response.status_code in (403, 413):
            raise ImageRefused(image_id=image_id, reason=reason)
        raise errors.Invalid(reason)

    def download(self, image_id: str, file: IO[bytes], ctxt: RequestContext | None = None) -> int:
        """Write the image's bytes to ``file`` (from its start) and return their number.

        Raises ImageUnacceptable if the data has another checksum than the image service keeps, or more bytes than the
        image has, at each try. An image whose size the service doesn't know (one at a URL of somebody else) may have
        half of the room that the file system has. Raises NoRoom, and asks for no data, if the file system is too full.
        """
        record = self.get(image_id, ctxt)
        most = _room(image_id, record.get('size'), file)
        for left in reversed(range(self._retries + 1)):
            file.seek(0)
            file.truncate()
            try:
                return self._fetch(record, file, most, ctxt)
            except (errors.ImageUnacceptable, errors.Unanswered) as error:
                if not left:
                    raise
                LOG.warning('Download of image %s starts again: %s', image_id, error)
        raise AssertionError('unreachable')

    def url(self, image_id: str, ctxt: RequestContext | None = None) -> str:
        """Where the image can be asked for. Unanswered: the catalog has no image service."""
        endpoint = session.endpoint(self._adapter, 'The image service')
        return f"{re.sub('/v2/?$', '', endpoint).rstrip('/')}/images/{image_id}"

    def create(self, record: dict[str, Any], ctxt: RequestContext | None = None) -> None:
        """A new image without data; ``record`` is the v2 record, its ``id`` chosen by the caller.

        Invalid: malformed. ImageRefused: a quota or a policy is against it.
        """
        response = self._request('POST', '/v2/images', ctxt, json=record)
        response.close()
        if response.status_code == 201:
            return
        reason = _reason(response)
        if response.status_code in (403, 413):
            raise ImageRefused(image_id=record['id'], reason=reason)
        raise errors.ImageUnacceptable(image_id=record['id'], reason=reason)

    def upload(self, image_id: str, file: IO[bytes], check: Callable[[], None] = lambda: None) -> None:
        """Send ``file`` (a real file, from its start) as the data of an image that has none; then it is active.

        May be repeated: an image that is active has its data already. ``check()`` is called all the time; what it
        raises ends the upload. ImageNotFound: deleted meanwhile. ImageUnacceptable, ImageRefused: no use to try again.
        """
        status = self.get(image_id)['status']
        if status == 'active':
            return
        if status in SENDING:
            raise errors.Unanswered(who='The image service', reason=f'image {image_id} is still {status}')
        file.seek(0)
        # Sent as often as the flow says: the data can't be rewound behind this call.
        response = self._request('PUT', f'/v2/images/{image_id}/file', None, data=_Watched(file, check),
                                 headers={'Content-Type': 'application/octet-stream'}, allow_reauth=False)
        self._check_sent(response, image_id)

    def activate(self, image_id: str, ctxt: RequestContext | None = None) -> None:
        """A new image that never gets data is active from now on: it has none. Errors: as ``upload``."""
        response = self._request('PUT', f'/v2/images/{image_id}/file', ctxt, data=b'',
                                 headers={'Content-Type': 'application/octet-stream'})
        self._check_sent(response, image_id)

    def _check_sent(self, response: requests.Response, image_id: str) -> None:
        response.close()
        if response.status_code == 204:
            return
        if response.status_code in (404, 410):
            raise errors.ImageNotFound(image_id=image_id)
        reason = _reason(response)
        if response.status_code == 409:
            # Somebody sends it: an earlier try of ours that the service hasn't given up yet.
            raise errors.Unanswered(who='The image service', reason=reason)
        if response.status_code in (403, 413):
            raise ImageRefused(image_id=image_id, reason=reason)
        raise errors.ImageUnacceptable(image_id=image_id, reason=reason)

    def delete(self, image_id: str, ctxt: RequestContext | None = None) -> None:
        """Delete an image; fine if it is gone. ImageRefused: it may not be deleted."""
        response = self._request('DELETE', f'/v2/images/{image_id}', ctxt)
        response.close()
        if response.status_code in (204, 404, 410):
            return
        if response.status_code == 409:
            raise errors.Unanswered(who='The image service', reason=_reason(response))
        raise ImageRefused(image_id=image_id, reason=_reason(response))

    def _fetch(self, record: dict[str, Any], file: IO[bytes], most: int, ctxt: RequestContext | None) -> int:
        image_id = record['id']
        algorithm, expected = _checksum(record)
        digest = hashlib.new(algorithm) if algorithm else None
        size = 0
        with self._ask(image_id, f'/v2/images/{image_id}/file', ctxt, stream=True) as response:
            if response.status_code == 204:
                raise errors.ImageUnacceptable(image_id=image_id, reason='it has no data')
            try:
                for chunk in response.iter_content(CHUNK):
                    size += len(chunk)
                    if size > most:
                        raise errors.ImageUnacceptable(image_id=image_id, reason=f'its data has more than {most} bytes')
                    if digest is not None:
                        digest.update(chunk)
                    file.write(chunk)
            except requests.exceptions.RequestException as error:
                raise errors.Unanswered(who='The image service', reason=f'the download broke off ({error})') from error
        if digest is not None and digest.hexdigest() != expected:
            raise errors.ImageUnacceptable(
                image_id=image_id, reason=f'its data has {algorithm} {digest.hexdigest()}, not {expected}')
        return size

    def _ask(self, image_id: str, path: str, ctxt: RequestContext | None, **kwargs: Any) -> requests.Response:
        response = self._request('GET', path, ctxt, attempts=session.READ_ATTEMPTS, **kwargs)
        if response.status_code in (200, 204):
            return response
        response.close()
        # A malformed id is answered 404 too; 403 hides a private image.
        if response.status_code in (403, 404):
            raise errors.ImageNotFound(image_id=image_id)
        raise errors.ImageUnacceptable(image_id=image_id,
                                       reason=f'the image service answers {response.status_code} {response.reason}')

    def _request(self, method: str, path: str, ctxt: RequestContext | None, headers: dict[str, str] | None = None,
                 **kwargs: Any) -> requests.Response:
        token = getattr(ctxt, 'auth_token', None)
        headers = dict(headers or {})
        if token:
            # The endpoint may still come from the service's own catalog; only the token is the user's.
            headers['X-Auth-Token'] = token
            kwargs['authenticated'] = False
        return session.send(self._adapter, 'The image service', method, path, headers=headers, **kwargs)


class _Watched:
    """A file that is read from its start, with a call of ``check`` before each piece; its length is given."""

    def __init__(self, file: IO[bytes], check: Callable[[], None]) -> None:
        self._file, self._check = file, check
        self.len = os.fstat(file.fileno()).st_size

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._file.read(size)


def _reason(response: requests.Response) -> str:
    """The text of the service's error page (small HTML), in one line."""
    text = ' '.join(re.sub(r'<[^<>]*>', ' ', response.text).split())
    return errors.shortened(text, 200) or f'{response.status_code} {response.reason}'


def _checksum(record: dict[str, Any]) -> tuple[str | None, str | None]:
    """The strongest digest that the record has and this Python can compute."""
    algorithm, value = record.get('os_hash_algo'), record.get('os_hash_value')
    if algorithm and value and algorithm in hashlib.algorithms_available:
        return algorithm, value
    return ('md5', record['checksum']) if record.get('checksum') else (None, None)


def _room(image_id: str, size: int | None, file: IO[bytes]) -> int:
    """Return how many bytes may be written to the file. Raises NoRoom if the image has more than are free."""
    found = os.fstatvfs(file.fileno())
    free = found.f_bavail * found.f_frsize
    if size and size > free:
        raise errors.NoRoom(what=f'image {image_id}', need=size, free=free)
    return size or free // 2
