"""The image client: one image's record, and its bytes into a file with their checksum checked.

    adapter = session.adapter(conf, 'glance', fallback='keystone_authtoken')
    images = ImageClient(adapter, retries=conf.glance.num_retries)
    record = images.get(image_id, ctxt)              # as the user: somebody else's private image is not found
    with open(path, 'wb') as file:
        images.download(image_id, file)              # as the service

Routes: https://docs.openstack.org/api-ref/image/v2/.
"""
from __future__ import annotations

import hashlib
import logging
from typing import IO, Any

import requests
from keystoneauth1.adapter import Adapter

from kilonova import errors
from kilonova.clients import session

LOG = logging.getLogger(__name__)

CHUNK = 1 << 20


class ImageClient:
    """One per process; threads may share it."""

    def __init__(self, adapter: Adapter, retries: int = 3) -> None:
        self._adapter = adapter
        self._retries = retries

    def get(self, image_id: str, ctxt: Any = None) -> dict[str, Any]:
        """The image's v2 record: id, name, status, size, disk_format, min_disk, min_ram, properties at top level …

        With a context that carries a token the request is the user's. ImageNotFound: no such image for who asks.
        """
        return self._ask(image_id, f'/v2/images/{image_id}', ctxt).json()

    def download(self, image_id: str, file: IO[bytes], ctxt: Any = None) -> int:
        """Write the image's bytes to ``file`` (from its start) and return their number.

        ImageUnacceptable: the checksum that the image service keeps is another one, at each try.
        """
        record = self.get(image_id, ctxt)
        for left in reversed(range(self._retries + 1)):
            file.seek(0)
            file.truncate()
            try:
                return self._fetch(record, file, ctxt)
            except (errors.ImageUnacceptable, errors.Unanswered) as error:
                if not left:
                    raise
                LOG.warning('Download of image %s starts again: %s', image_id, error)
        raise AssertionError('unreachable')

    def _fetch(self, record: dict[str, Any], file: IO[bytes], ctxt: Any) -> int:
        image_id = record['id']
        algorithm, expected = _checksum(record)
        digest = hashlib.new(algorithm) if algorithm else None
        size = 0
        with self._ask(image_id, f'/v2/images/{image_id}/file', ctxt, stream=True) as response:
            if response.status_code == 204:
                raise errors.ImageUnacceptable(image_id=image_id, reason='it has no data')
            try:
                for chunk in response.iter_content(CHUNK):
                    if digest is not None:
                        digest.update(chunk)
                    file.write(chunk)
                    size += len(chunk)
            except requests.exceptions.RequestException as error:
                raise errors.Unanswered(who='The image service', reason=f'the download broke off ({error})') from error
        if digest is not None and digest.hexdigest() != expected:
            raise errors.ImageUnacceptable(
                image_id=image_id, reason=f'its data has {algorithm} {digest.hexdigest()}, not {expected}')
        return size

    def _ask(self, image_id: str, path: str, ctxt: Any, **kwargs: Any) -> requests.Response:
        token = getattr(ctxt, 'auth_token', None)
        if token:
            # The endpoint may still come from the service's own catalog; only the token is the user's.
            response = self._send(path, headers={'X-Auth-Token': token}, authenticated=False, **kwargs)
        else:
            response = self._send(path, **kwargs)
        if response.status_code in (200, 204):
            return response
        response.close()
        # A malformed id is answered 404 too; 403 hides a private image.
        if response.status_code in (403, 404):
            raise errors.ImageNotFound(image_id=image_id)
        raise errors.ImageUnacceptable(image_id=image_id,
                                       reason=f'the image service answers {response.status_code} {response.reason}')

    def _send(self, path: str, **kwargs: Any) -> requests.Response:
        return session.send(self._adapter, 'The image service', 'GET', path, attempts=session.READ_ATTEMPTS, **kwargs)


def _checksum(record: dict[str, Any]) -> tuple[str | None, str | None]:
    """The strongest digest that the record has and this Python can compute."""
    algorithm, value = record.get('os_hash_algo'), record.get('os_hash_value')
    if algorithm and value and algorithm in hashlib.algorithms_available:
        return algorithm, value
    return ('md5', record['checksum']) if record.get('checksum') else (None, None)
