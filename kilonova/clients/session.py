"""keystoneauth1 adapters from a section of kilonova.conf, and the one place where silence becomes Unanswered.

    adapter = session.adapter(conf, 'placement')
    response = session.send(adapter, 'Placement', 'GET', '/resource_providers', attempts=session.READ_ATTEMPTS)
"""
from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
from keystoneauth1 import session as ks_session
from keystoneauth1.adapter import Adapter
from oslo_config import cfg
from oslo_context import context as oslo_context

from kilonova import errors

LOG = logging.getLogger(__name__)

# A read may be sent again at once; a write is repeated by its operation, which looks first what stands.
READ_ATTEMPTS = 3
RETRY_PAUSE = 0.15
# Seconds that a service may take to accept a connection, where its answer may take longer.
CONNECT_TIMEOUT = 5.0
# Idle connections kept for each service; a daemon rarely has more requests under way.
POOL_SIZE = 64
# Bytes that an answer may have after it was decompressed. The largest answers of services that are well have a few
# megabytes: 1,000 allocation candidates of hosts with many devices.
MOST = 128 << 20


class AnswerTooLong(requests.RequestException):
    """A service sends more than MOST bytes."""


class _Pool(requests.adapters.HTTPAdapter):
    """The connections to a service, with a bound for the size of each answer that isn't a stream.

    A connection that isn't accepted within CONNECT_TIMEOUT is given up, as it never is accepted later.
    """

    def send(self, request: requests.PreparedRequest, stream: bool = False,
             timeout: float | tuple[float | None, float | None] | None = None, verify: bool | str = True,
             cert: str | tuple[str, str] | None = None, proxies: dict[str, str] | None = None) -> requests.Response:
        if isinstance(timeout, (int, float)):
            timeout = (min(timeout, CONNECT_TIMEOUT), timeout)
        response = super().send(request, stream, timeout, verify, cert, proxies)
        if not stream:
            response.raw = _Bounded(response.raw)
        return response


class _Bounded:
    """The body of a response as requests reads it, by ``stream``, with a bound of MOST bytes; all else is urllib3's."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, amount: int, decode_content: bool | None = None) -> Iterator[bytes]:
        """Yield the decoded body in blocks. Raises AnswerTooLong, and closes the connection, beyond MOST bytes."""
        left = MOST
        for block in self._raw.stream(amount, decode_content=decode_content):
            left -= len(block)
            if left < 0:
                self._raw.close()
                raise AnswerTooLong(f'the answer has more than {MOST >> 20} MiB')
            yield block


def bound(session: ks_session.Session) -> None:
    """Give a session the connections of this module: their bounds hold for all that is asked through it."""
    for scheme in ('http://', 'https://'):
        session.session.mount(scheme, _Pool(pool_maxsize=POOL_SIZE))


class Session(requests.Session):
    """What the environment says of proxies and certificates is read once for each service: that takes as long as all
    else of a request."""

    def __init__(self) -> None:
        super().__init__()
        self._settings: dict[tuple[Any, ...], dict[str, Any]] = {}

    def merge_environment_settings(self, url: str, proxies: Any, stream: Any, verify: Any, cert: Any) -> dict[str, Any]:
        if proxies:
            return super().merge_environment_settings(url, proxies, stream, verify, cert)
        key = (*urlsplit(url)[:2], stream, verify, cert)
        if key not in self._settings:
            self._settings[key] = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return dict(self._settings[key])


def adapter(conf: cfg.ConfigOpts, group: str, *, fallback: str | None = None) -> Adapter:
    """The adapter that section ``group`` describes, over one pool of kept-alive connections.

    ``fallback`` names the section whose credentials serve when ``group`` has no ``auth_type`` (field files often give
    ``[glance]`` none). Nothing is sent yet: the first request fetches the token.
    """
    session = ks_loading.load_session_from_conf_options(conf, group, session=Session())
    bound(session)
    auth = ks_loading.load_auth_from_conf_options(conf, group)
    if auth is None and fallback is not None:
        auth = ks_loading.load_auth_from_conf_options(conf, fallback)
    session.auth = auth
    return ks_loading.load_adapter_from_conf_options(conf, group, session=session)


def endpoint(adapter: Adapter, who: str) -> str:
    """The URL of ``who``; Unanswered when nobody knows it."""
    try:
        found = adapter.get_endpoint()
    except ks_exceptions.ClientException as error:
        raise errors.Unanswered(who=who, reason=str(error) or type(error).__name__) from error
    if not found:
        raise errors.Unanswered(who=who, reason='it has no endpoint')
    return str(found)


def send(adapter: Adapter, who: str, method: str, path: str, *, attempts: int = 1,
         headers: dict[str, str] | None = None, refusals: Collection[int] = (), **kwargs: Any) -> requests.Response:
    """Send one request and return its response, which is below 500, or one of ``refusals`` with a body.

    A failed connection, a timeout, a missing endpoint or token, an answer of more than MOST bytes, 401 and 5xx all
    mean that ``who`` doesn't answer: ``errors.Unanswered``, after ``attempts`` tries. What took the section's
    ``timeout``, and an answer that was too long, isn't asked for again: it would be the same. With ``stream=True`` the
    caller reads the body, and has a bound of its own.
    """
    headers = dict(headers or {})
    context = oslo_context.get_current()
    if context is not None and getattr(context, 'global_id', None):
        headers['X-OpenStack-Request-ID'] = context.global_id
    deadline = time.monotonic() + (adapter.session.timeout or float('inf'))
    for left in reversed(range(attempts)):
        try:
            response = adapter.request(path, method, raise_exc=False, headers=headers, **kwargs)
        except ks_exceptions.ClientException as error:
            reason = str(error) or type(error).__name__
            if isinstance(getattr(error, 'original', None), AnswerTooLong):
                reason = f'its answer to {method} {path.partition("?")[0]} has more than {MOST >> 20} MiB'
                break
            if isinstance(error, ks_exceptions.ConnectTimeout):
                break
        else:
            if (response.status_code < 500 and response.status_code != 401) or response.status_code in refusals:
                return response
            reason = f'HTTP {response.status_code} to {method} {path.partition("?")[0]}'
            response.close()
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(RETRY_PAUSE)
    raise errors.Unanswered(who=who, reason=reason)
