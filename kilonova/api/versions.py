"""Microversions of requests, and the documents that list the API versions for clients.

Everywhere in the API a microversion 2.N is the int N.

    negotiate({'OpenStack-API-Version': 'compute 2.53'})     # 53
    negotiate({})                                            # 1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import webob

from kilonova.errors import Invalid, KilonovaError

MIN, MAX = 1, 104
HEADER, LEGACY_HEADER = 'OpenStack-API-Version', 'X-OpenStack-Nova-API-Version'
MEDIA_TYPE = 'application/vnd.openstack.compute+json;version=2.1'
# The key in the WSGI environment that marks a response as a version document.
DOCUMENT = 'kilonova.version_document'
# The prefix of Kilonova's own API, which has no microversions.
OWN_PATH = '/kilonova/v1'
# The paths of version documents: /v2.1 and /v2.1/<project id>, or the same with /v2.
# The catalog of Keystone may contain a URL with or without the project id.
# Clients send GET to the URL from the catalog to learn the supported microversions.
_DOCUMENT_PATH = re.compile(r'/(?P<version>v2|v2\.1)(/[0-9a-f-]+)?/?', re.ASCII)
_FORMAT = re.compile(r'([1-9]\d*)\.([1-9]\d*|0)', re.ASCII)


class InvalidVersion(Invalid):
    """Error 400: the requested microversion is malformed."""

    msg_fmt = 'API Version String %(version)s is of invalid format. Must be of format MajorNum.MinorNum.'


class UnsupportedVersion(KilonovaError):
    """Error 406: the API does not support the requested microversion."""

    msg_fmt = 'Version %(version)s is not supported by the API. Minimum is %(minimum)s and maximum is %(maximum)s.'
    code = 406


def text(version: int) -> str:
    """Return a microversion as text: '2.53' for 53."""
    return f'2.{version}'


def asked(headers: Mapping[str, str]) -> str | None:
    """Return the microversion that a request asks for, as it is written, or None if it asks for none."""
    for part in headers.get(HEADER, '').split(','):
        service, _, version = part.strip().partition(' ')
        if service.lower() == 'compute' and version.strip():
            return version.strip()
    return headers.get(LEGACY_HEADER, '').strip() or None


def negotiate(headers: Mapping[str, str]) -> int:
    """Return the microversion of a request: the requested one, or the lowest if it asks for none.

    Raises InvalidVersion (400) if it is malformed, and UnsupportedVersion (406) if the API does not have it.
    """
    wanted = asked(headers)
    if wanted is None:
        return MIN
    if wanted.lower() == 'latest':
        return MAX
    match = _FORMAT.fullmatch(wanted)
    if match is None:
        raise InvalidVersion(version=wanted)
    # Convert only the first eight digits of each number, because Python refuses to convert thousands of digits.
    # No supported version has a number of eight digits, so a longer number is refused in any case.
    major, minor = (int(group[:8]) for group in match.groups())
    if major != 2 or not MIN <= minor <= MAX:
        raise UnsupportedVersion(version=wanted, minimum=text(MIN), maximum=text(MAX))
    return minor


def headers(version: str) -> list[tuple[str, str]]:
    """Return the response headers about the microversion. ``version`` is text like '2.53'."""
    return [(HEADER, f'compute {version}'), (LEGACY_HEADER, version), ('Vary', f'{HEADER}, {LEGACY_HEADER}')]


_ENTRIES: tuple[dict[str, Any], ...] = (
    {
        'id': 'v2.0',
        'path': 'v2',
        'status': 'DEPRECATED',
        'version': '',
        'min_version': '',
        'updated': '2025-07-04T12:00:00Z',
    },
    {
        'id': 'v2.1',
        'path': 'v2.1',
        'status': 'CURRENT',
        'version': text(MAX),
        'min_version': text(MIN),
        'updated': '2013-07-23T11:33:21Z',
    },
)
# Kilonova's own API is not in the list of versions, because clients choose a version of the compute API from that list.
_OWN = {'id': 'v1', 'status': 'CURRENT'}
# The media type of each API version, for the responses to version-discovery requests, such as GET /v2.1.
_MEDIA_TYPES = {'v2.0': 'application/vnd.openstack.compute+json;version=2', 'v2.1': MEDIA_TYPE}


def _entry(entry: Mapping[str, Any], href: str) -> dict[str, Any]:
    shown = {name: value for name, value in entry.items() if name != 'path'}
    return {**shown, 'links': [{'rel': 'self', 'href': href}]}


def _media_types(version_id: str) -> list[dict[str, str]]:
    return [{'base': 'application/json', 'type': _MEDIA_TYPES[version_id]}]


def is_document(method: str, path: str) -> bool:
    """Return whether a request asks for the document of an API version, as GET /v2.1 and GET /v2.1/<project> do."""
    return method in ('GET', 'HEAD') and _DOCUMENT_PATH.fullmatch(path) is not None


class Discovery:
    """The WSGI application for '/', the version documents and all unknown paths. Requests need no token."""

    def __init__(self, link_prefix: str | None = None) -> None:
        self._prefix = link_prefix.rstrip('/') if link_prefix else None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        """Serve a WSGI request."""
        environ[DOCUMENT] = True
        request = webob.Request(environ)
        base = self._prefix or request.application_url.rstrip('/')
        path, document = request.path_info.strip('/'), _DOCUMENT_PATH.fullmatch(request.path_info)
        more: list[tuple[str, str]]
        if request.path_info in ('', '/'):
            body, status, more = self._versions(base), 200, []
        elif document is not None:
            body, status, more = self._document(document['version'], base)
        elif path == OWN_PATH[1:]:
            body, status, more = {'version': _entry(_OWN, f'{base}{OWN_PATH}/')}, 200, []
        else:
            body, status, more = self._choices(path, base), 300, []
        response = webob.Response(json_body=body, status=status, content_type='application/json', charset='UTF-8')
        response.headers.extend(more)
        return response(environ, start_response)

    @staticmethod
    def _versions(base: str) -> dict[str, Any]:
        return {'versions': [_entry(entry, f'{base}/{entry["path"]}/') for entry in _ENTRIES]}

    @staticmethod
    def _document(path: str, base: str) -> tuple[dict[str, Any], int, list[tuple[str, str]]]:
        entry = next(entry for entry in _ENTRIES if entry['path'] == path)
        document = _entry(entry, f'{base}/{path}/')
        document['links'].append({'rel': 'describedby', 'type': 'text/html', 'href': 'http://docs.openstack.org/'})
        document['media-types'] = _media_types(entry['id'])
        return {'version': document}, 200, headers(text(MIN)) if path == 'v2.1' else []

    @staticmethod
    def _choices(path: str, base: str) -> dict[str, Any]:
        return {
            'choices': [
                {
                    'id': entry['id'],
                    'status': entry['status'],
                    'links': [{'rel': 'self', 'href': f'{base}/{entry["path"]}/{path}'}],
                    'media-types': _media_types(entry['id']),
                }
                for entry in _ENTRIES
            ]
        }
