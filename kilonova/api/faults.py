"""Error responses of the API, with Nova's fault names for the HTTP status codes.

A fault is ``{"<name>": {"code": …, "message": …}}``. The only other error response is webob's own page, for a path or
method without a route (``no_route``).
"""

from __future__ import annotations

import json
import re
from typing import Any
from wsgiref.types import WSGIApplication

import webob
import webob.exc
from oslo_log import log as logging

from kilonova.db import engine
from kilonova.errors import KilonovaError

LOG = logging.getLogger(__name__)

NAMES = {
    400: 'badRequest',
    401: 'unauthorized',
    403: 'forbidden',
    404: 'itemNotFound',
    405: 'badMethod',
    409: 'conflictingRequest',
    413: 'overLimit',
    415: 'badMediaType',
    429: 'overLimit',
    501: 'notImplemented',
    503: 'serviceUnavailable',
}
CONTENT_TYPE = 'application/json; charset=UTF-8'
NOT_FOUND = 'The resource could not be found.'
TOO_LARGE = 'Request is too large.'
# A key of the WSGI environment. If it is set, the response stays webob's own error page, and does not become a fault.
AS_IS = 'kilonova.page'


def name(code: int) -> str:
    """Return Nova's fault name for a status code, which is the key of the fault's body."""
    return NAMES.get(code, 'computeFault')


def fault(code: int, message: str, retry_after: str | None = None) -> webob.Response:
    """Return an error response in Nova's form.

    ``code`` is the HTTP status. ``retry_after`` is a number of seconds as text, which is shown only with status 413 or
    429.
    """
    body: dict[str, Any] = {'code': code, 'message': message}
    if code in (413, 429) and retry_after is not None:
        body['retryAfter'] = retry_after
    return webob.Response(
        body=json.dumps({name(code): body}).encode(), status=code, headerlist=[('Content-Type', CONTENT_TYPE)]
    )


def no_route(environ: dict[str, Any]) -> WSGIApplication:
    """Return the response to a path that no route has: webob's own page for 404, as in Nova.

    The page is plain text or HTML. All other error responses have Nova's JSON error body, such as
    {"itemNotFound": {"code": 404, …}}.
    """
    environ[AS_IS] = True
    found: WSGIApplication = webob.exc.HTTPNotFound()
    return found


def of_error(error: Exception) -> webob.Response:
    """Return the error response for an exception that a request raised.

    An unexpected exception is logged with its traceback, and the response only names its class.
    """
    if isinstance(error, KilonovaError) and (error.code < 500 or error.code in (501, 503)):
        return fault(error.code, error.message)
    if isinstance(error, webob.exc.HTTPException):
        return of_response(error)
    if engine.is_unreachable(error):
        LOG.error('Answering a request with status 503: the API database or a cell database does not answer: %s', error)
        return fault(503, 'A database of this cloud does not answer. Please try again later.')
    LOG.error('Unexpected exception in the API', exc_info=error)
    return fault(
        500,
        'Unexpected API Error. Please report it with the request id of this answer and the log of the '
        f'API service, if possible.\n{type(error)!r}',
    )


def of_response(response: webob.Response) -> webob.Response:
    """Return a text or HTML page of webob as a fault with the same status code and headers."""
    message = getattr(response, 'explanation', None) or getattr(response, 'detail', None) or _plain(response)
    if response.status_int == 413 and '%s' in message:
        # The error text of the size limiter (oslo.middleware) contains '%s', which is never filled, so it is replaced.
        message = TOO_LARGE
    made = fault(response.status_int, message, response.headers.get('Retry-After'))
    made.headers.extend(
        (key, value) for key, value in response.headers.items() if key.lower() not in ('content-type', 'content-length')
    )
    return made


def _plain(response: webob.Response) -> str:
    """Return the error message from an error page of webob, without HTML tags.

    webob's page repeats the HTTP status in its first two lines (the title and the heading). The message follows them.
    The message is used as the text of the JSON error body.
    """
    lines = [
        line
        for line in re.sub(r'<[^<>]*>', '\n', response.text if response.charset else '').splitlines()
        if line.strip()
    ]
    return ' '.join(' '.join(lines[2:] or lines).split()) or response.status
