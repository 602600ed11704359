"""Errors as answers: one table turns codes into the field's fault names.

A fault is ``{"<name>": {"code": …, "message": …}}``; only a path or method that no route has gets webob's own page
(``no_route``).
"""
from __future__ import annotations

import json
import logging
import re
from typing import Any
from wsgiref.types import WSGIApplication

import webob
import webob.exc

from kilonova.db import engine
from kilonova.errors import KilonovaError

LOG = logging.getLogger(__name__)

NAMES = {400: 'badRequest', 401: 'unauthorized', 403: 'forbidden', 404: 'itemNotFound', 405: 'badMethod',
         409: 'conflictingRequest', 413: 'overLimit', 415: 'badMediaType', 429: 'overLimit', 501: 'notImplemented',
         503: 'serviceUnavailable'}
CONTENT_TYPE = 'application/json; charset=UTF-8'
NOT_FOUND = 'The resource could not be found.'
TOO_LARGE = 'Request is too large.'
# Set where webob's page is the answer itself.
AS_IS = 'kilonova.page'


def name(code: int) -> str:
    """The key of a fault's body."""
    return NAMES.get(code, 'computeFault')


def fault(code: int, message: str, retry_after: str | None = None) -> webob.Response:
    """An answer in the field's form."""
    body: dict[str, Any] = {'code': code, 'message': message}
    if code in (413, 429) and retry_after is not None:
        body['retryAfter'] = retry_after
    return webob.Response(body=json.dumps({name(code): body}).encode(), status=code,
                          headerlist=[('Content-Type', CONTENT_TYPE)])


def no_route(environ: dict[str, Any]) -> WSGIApplication:
    """The answer to a path that isn't there, which is no fault but webob's own page."""
    environ[AS_IS] = True
    found: WSGIApplication = webob.exc.HTTPNotFound()
    return found


def of_error(error: Exception) -> webob.Response:
    """The answer to an error; one that nobody expected is logged and says no more than its class."""
    if isinstance(error, KilonovaError) and (error.code < 500 or error.code in (501, 503)):
        return fault(error.code, error.message)
    if isinstance(error, webob.exc.HTTPException):
        return of_response(error)
    if engine.is_unreachable(error):
        LOG.error('A database does not answer: %s', error)
        return fault(503, 'A database of this cloud does not answer. Please try again later.')
    LOG.error('Unexpected exception in the API', exc_info=error)
    return fault(500, 'Unexpected API Error. Please report it with the request id of this answer and the log of the '
                      f'API service, if possible.\n{type(error)!r}')


def of_response(response: webob.Response) -> webob.Response:
    """A page of webob (text or HTML) as a fault with the same code and headers."""
    message = getattr(response, 'explanation', None) or getattr(response, 'detail', None) or _plain(response)
    if response.status_int == 413 and '%s' in message:
        # The size limit's own text has a placeholder that nobody fills.
        message = TOO_LARGE
    made = fault(response.status_int, message, response.headers.get('Retry-After'))
    made.headers.extend((key, value) for key, value in response.headers.items()
                        if key.lower() not in ('content-type', 'content-length'))
    return made


def _plain(response: webob.Response) -> str:
    """The message on webob's page: after its title line, without mark-up."""
    lines = [line for line in re.sub(r'<[^<>]*>', '\n', response.text if response.charset else '').splitlines()
             if line.strip()]
    return ' '.join(' '.join(lines[2:] or lines).split()) or response.status
