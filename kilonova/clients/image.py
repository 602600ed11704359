"""The client of the image service. It reads records, downloads images with their checksum verified, and creates images.

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
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any
from urllib.parse import urlencode

import requests
from keystoneauth1.adapter import Adapter
from oslo_log import log as logging

from kilonova import errors
from kilonova.clients import session
from kilonova.context import RequestContext

LOG = logging.getLogger(__name__)

WHO = 'The image service'
CHUNK = 1 << 20
# The statuses of an image whose data is being uploaded.
SENDING = ('saving', 'importing', 'uploading')
_PATCH = 'application/openstack-images-v2.1-json-patch'


class ImageRefused(errors.Forbidden):
    """The quota or policy of the image service does not allow the request."""

    msg_fmt = 'The image service refuses image %(image_id)s: %(reason)s'


class ImageClient(session.RestClient):
    """The client of the image service. A process has one, and threads may share it.

    A request is made as the user if it has a context with a token, and as the service otherwise. Each call raises
    errors.Unanswered if the image service does not answer.
    """

    def __init__(self, adapter: Adapter, retries: int = 3) -> None:
        super().__init__(adapter, WHO, service_token=False)
        self._retries = retries

    def get(self, image_id: str, ctxt: RequestContext | None = None) -> dict[str, Any]:
        """Return the image's v2 record: id, name, status, size, disk_format, min_disk, min_ram, properties and more.

        The image's properties are at the top level of the record. With a context that has a token, the request is the
        user's. Raises ImageNotFound if the image does not exist or this user can't see it.
        """
        found: dict[str, Any] = self._ask(image_id, f'/v2/images/{image_id}', ctxt).json()
        return found

    def find(self, query: Mapping[str, str], limit: int, ctxt: RequestContext | None = None) -> list[dict[str, Any]]:
        """Return at most ``limit`` records that match ``query``, in the order in which the image service returns them.

        ``query`` has the query parameters of the image service's list request. Raises Invalid if the service does not
        accept the query, for example because the image ``marker`` does not exist.
        """
        found: list[dict[str, Any]] = []
        path: str | None = f'/v2/images?{urlencode({**query, "limit": limit})}'
        while path and len(found) < limit:
            response = self._send('GET', path, ctxt=ctxt)
            if response.status_code != 200:
                raise errors.Invalid(_reason(response))
            answer = response.json()
            found += answer['images']
            # The image service may return fewer records than ``limit``, so the next page is requested.
            # The list ends at a page without records, because the link of such a page may lead to the same page again.
            path = answer.get('next') if answer['images'] else None
        return found[:limit]

    def update(self, image_id: str, changes: Sequence[Mapping[str, Any]], ctxt: RequestContext | None = None) -> None:
        """Change an image's record. ``changes`` are operations of JSON patch (op, path, value).

        Raises:
            ImageNotFound: No such image exists.
            ImageRefused: A quota or a policy does not allow the change.
            Invalid: The changes are malformed.
        """
        response = self._send(
            'PATCH', f'/v2/images/{image_id}', ctxt=ctxt, json=list(changes), headers={'Content-Type': _PATCH}
        )
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
        """Write the image's bytes to ``file`` from its start, and return the number of bytes.

        A failed download is repeated at most ``retries`` times. The image service does not know the size of an image
        that is stored at an external URL. Such an image may use half of the file system's free space.

        Raises:
            ImageUnacceptable: The data of the last attempt has a wrong checksum, or more bytes than the image record
                says.
            NoRoom: The file system has too little free space. Nothing is downloaded.
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
                LOG.warning('Download of image %s failed, trying again: %s', image_id, error)
        raise AssertionError('unreachable')

    def url(self, image_id: str, ctxt: RequestContext | None = None) -> str:
        """Return the URL of the image in the image service. Raises Unanswered if the catalog has no image service."""
        endpoint = session.endpoint(self._adapter, WHO)
        return f'{re.sub("/v2/?$", "", endpoint).rstrip("/")}/images/{image_id}'

    def create(self, record: dict[str, Any], ctxt: RequestContext | None = None) -> None:
        """Create an image without data. ``record`` is the v2 record, whose ``id`` the caller has chosen.

        Raises ImageRefused if a quota or a policy does not allow it, and ImageUnacceptable if the record is malformed.
        """
        response = self._send('POST', '/v2/images', ctxt=ctxt, json=record)
        response.close()
        if response.status_code == 201:
            return
        reason = _reason(response)
        if response.status_code in (403, 413):
            raise ImageRefused(image_id=record['id'], reason=reason)
        raise errors.ImageUnacceptable(image_id=record['id'], reason=reason)

    def upload(self, image_id: str, file: IO[bytes], check: Callable[[], None] = lambda: None) -> None:
        """Upload ``file`` as the data of an image that has no data yet. After the upload the image is active.

        ``file`` is a file with a descriptor, and is read from its start. The call may be repeated, because nothing is
        sent if the image is already active. ``check()`` is called before each piece of the file is sent. If it raises
        an error, the upload ends with this error.

        Raises:
            ImageNotFound: The image was deleted meanwhile.
            ImageRefused: A quota or a policy does not allow the upload. Repeating is useless.
            ImageUnacceptable: The service does not accept the data. Repeating is useless.
            Unanswered: An earlier upload of the image has not ended yet.
        """
        status = self.get(image_id)['status']
        if status == 'active':
            return
        if status in SENDING:
            raise errors.Unanswered(f'Image {image_id} is still {status}')
        file.seek(0)
        # The data is sent only once, because the library can't send a file again from its start.
        # If the request fails, a conductor repeats the whole upload.
        response = self._send(
            'PUT',
            f'/v2/images/{image_id}/file',
            data=_Watched(file, check),
            headers={'Content-Type': 'application/octet-stream'},
            allow_reauth=False,
        )
        self._check_sent(response, image_id)

    def activate(self, image_id: str, ctxt: RequestContext | None = None) -> None:
        """Set the status of a new image to active, although it has no data. Raises the same errors as ``upload``.

        This is called for images that only name volume snapshots.
        """
        response = self._send(
            'PUT',
            f'/v2/images/{image_id}/file',
            ctxt=ctxt,
            data=b'',
            headers={'Content-Type': 'application/octet-stream'},
        )
        self._check_sent(response, image_id)

    def _check_sent(self, response: requests.Response, image_id: str) -> None:
        response.close()
        if response.status_code == 204:
            return
        if response.status_code in (404, 410):
            raise errors.ImageNotFound(image_id=image_id)
        reason = _reason(response)
        if response.status_code == 409:
            # The image service is still receiving the data of an earlier attempt.
            raise errors.Unanswered(f'{WHO} cannot do this now: {reason}')
        if response.status_code in (403, 413):
            raise ImageRefused(image_id=image_id, reason=reason)
        raise errors.ImageUnacceptable(image_id=image_id, reason=reason)

    def delete(self, image_id: str, ctxt: RequestContext | None = None) -> None:
        """Delete an image. Nothing happens if the image is deleted already.

        Raises ImageRefused if the image may not be deleted, and Unanswered if its present state does not allow it
        (409).
        """
        response = self._send('DELETE', f'/v2/images/{image_id}', ctxt=ctxt)
        response.close()
        if response.status_code in (204, 404, 410):
            return
        if response.status_code == 409:
            raise errors.Unanswered(f'{WHO} cannot do this now: {_reason(response)}')
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
                raise errors.Unanswered(who=WHO, reason=f'the download was interrupted ({error})') from error
        if digest is not None and digest.hexdigest() != expected:
            raise errors.ImageUnacceptable(
                image_id=image_id, reason=f'its data has the checksum {algorithm} {digest.hexdigest()}, not {expected}'
            )
        return size

    def _ask(self, image_id: str, path: str, ctxt: RequestContext | None, **kwargs: Any) -> requests.Response:
        response = self._send('GET', path, ctxt=ctxt, **kwargs)
        if response.status_code in (200, 204):
            return response
        response.close()
        # The image service returns 404 also for a malformed id, and 403 for a private image that the user can't see.
        # The user gets the error ImageNotFound for each response with 403 or 404.
        if response.status_code in (403, 404):
            raise errors.ImageNotFound(image_id=image_id)
        raise errors.ImageUnacceptable(
            image_id=image_id, reason=f'the image service returned {response.status_code} {response.reason}'
        )


class _Watched:
    """A file that is uploaded in pieces. ``check()`` is called before each piece. If it raises, the upload ends.

    ``len`` is the size of the file in bytes.
    """

    def __init__(self, file: IO[bytes], check: Callable[[], None]) -> None:
        self._file, self._check = file, check
        self.len = os.fstat(file.fileno()).st_size

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._file.read(size)


def _reason(response: requests.Response) -> str:
    """Return the text of the service's error page (a short HTML page) in one line."""
    text = ' '.join(re.sub(r'<[^<>]*>', ' ', response.text).split())
    return errors.shortened(text, 200) or f'{response.status_code} {response.reason}'


def _checksum(record: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return algorithm and value of the strongest checksum of the record that this Python can compute.

    Return (None, None) if the record has no such checksum.
    """
    algorithm, value = record.get('os_hash_algo'), record.get('os_hash_value')
    if algorithm and value and algorithm in hashlib.algorithms_available:
        return algorithm, value
    return ('md5', record['checksum']) if record.get('checksum') else (None, None)


def _room(image_id: str, size: int | None, file: IO[bytes]) -> int:
    """Return how many bytes of the image may be written to ``file``.

    The result is ``size``, the number of bytes of the image. If ``size`` is None or 0, it is half of the free space of
    the file system, so that a large image does not fill it. Raises NoRoom if ``size`` is more than the free space.
    """
    found = os.fstatvfs(file.fileno())
    free = found.f_bavail * found.f_frsize
    if size and size > free:
        raise errors.NoRoom(what=f'image {image_id}', need=size, free=free)
    return size or free // 2
