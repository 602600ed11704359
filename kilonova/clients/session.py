"""Create keystoneauth1 adapters from a section of kilonova.conf, and send requests with them.

    adapter = session.adapter(conf, 'placement')
    response = session.send(adapter, 'Placement', 'GET', '/resource_providers', attempts=session.READ_ATTEMPTS)

``send`` raises Unanswered if a service does not answer. A request that is sent through the adapter itself raises the
errors of keystoneauth1. RestClient is the base class of clients that also send requests with the tokens of users.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
from keystoneauth1 import session as ks_session
from keystoneauth1.adapter import Adapter
from keystoneauth1.service_token import ServiceTokenAuthWrapper
from oslo_config import cfg
from oslo_context import context as oslo_context

from kilonova import errors
from kilonova.context import RequestContext

# The number of attempts of a request that only reads.
# A request that writes is sent only once. Its caller reads the current state before it sends the request again.
READ_ATTEMPTS = 3
RETRY_PAUSE = 0.15
# Maximum number of seconds until a service accepts a connection. Other options limit the wait for the response.
CONNECT_TIMEOUT = 5.0
# The number of idle connections that are kept open for each service. A daemon rarely uses more at the same time.
POOL_SIZE = 64
# Maximum size of a response in bytes, after decompression.
# The largest known responses need a few megabytes: 1,000 allocation candidates of hosts with many devices.
MOST = 128 << 20


class AnswerTooLong(requests.RequestException):
    """The response of a service has more than MOST bytes."""


class _Pool(requests.adapters.HTTPAdapter):
    """The connections to a service. A response may have at most MOST bytes, unless the caller reads it as a stream.

    A request fails if the service does not accept its connection within CONNECT_TIMEOUT seconds.
    """

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float | None, float | None] | None = None,
        verify: bool | str = True,
        cert: str | tuple[str, str] | None = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        if isinstance(timeout, (int, float)):
            timeout = (min(timeout, CONNECT_TIMEOUT), timeout)
        response = super().send(request, stream, timeout, verify, cert, proxies)
        if not stream:
            response.raw = _Bounded(response.raw)
        return response


class _Bounded:
    """A urllib3 response whose body may have at most MOST bytes, otherwise ``stream`` raises AnswerTooLong.

    The library ``requests`` reads all bodies by ``stream``. All other attributes are those of the urllib3 response.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, amount: int, decode_content: bool | None = None) -> Iterator[bytes]:
        """Yield the decoded body in blocks.

        Raises AnswerTooLong and closes the connection if the body has more than MOST bytes.
        """
        left = MOST
        for block in self._raw.stream(amount, decode_content=decode_content):
            left -= len(block)
            if left < 0:
                self._raw.close()
                raise AnswerTooLong(f'the response has more than {MOST >> 20} MiB')
            yield block


def bound(session: ks_session.Session) -> None:
    """Make a session use connections of the class _Pool, which limit the size of responses and the connect time."""
    for scheme in ('http://', 'https://'):
        session.session.mount(scheme, _Pool(pool_maxsize=POOL_SIZE))


class Session(requests.Session):
    """A session that reads the proxy and certificate settings of the environment only once for each service.

    Without this cache, reading the settings would double the duration of a request.
    """

    def __init__(self) -> None:
        super().__init__()
        self._settings: dict[tuple[Any, ...], dict[str, Any]] = {}

    def merge_environment_settings(self, url: str, proxies: Any, stream: Any, verify: Any, cert: Any) -> dict[str, Any]:
        """Return the settings of requests to a URL (proxies, stream, verify, cert) as a dict.

        The settings are cached for each server, unless the caller gives proxies.
        """
        if proxies:
            return super().merge_environment_settings(url, proxies, stream, verify, cert)
        key = (*urlsplit(url)[:2], stream, verify, cert)
        if key not in self._settings:
            self._settings[key] = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return dict(self._settings[key])


def adapter(conf: cfg.ConfigOpts, group: str, *, fallback: str | None = None) -> Adapter:
    """Return the keystoneauth1 adapter that section ``group`` of the configuration describes.

    ``fallback`` is the section whose account is used if ``group`` has no ``auth_type``; configuration files of Nova
    often have none in ``[glance]``. The adapter has one pool of kept-alive connections. No request is sent yet.
    The first request through the adapter fetches a token.
    """
    session = ks_loading.load_session_from_conf_options(conf, group, session=Session())
    bound(session)
    auth = ks_loading.load_auth_from_conf_options(conf, group)
    if auth is None and fallback is not None:
        auth = ks_loading.load_auth_from_conf_options(conf, fallback)
    session.auth = auth
    return ks_loading.load_adapter_from_conf_options(conf, group, session=session)


def endpoint(adapter: Adapter, who: str) -> str:
    """Return the URL of the service ``who``. Raises Unanswered if the URL can't be found out."""
    try:
        found = adapter.get_endpoint()
    except ks_exceptions.ClientException as error:
        raise errors.Unanswered(who=who, reason=str(error) or type(error).__name__) from error
    if not found:
        raise errors.Unanswered(who=who, reason='the service catalog has no endpoint of it')
    return str(found)


def send(
    adapter: Adapter,
    who: str,
    method: str,
    path: str,
    *,
    attempts: int = 1,
    headers: dict[str, str] | None = None,
    refusals: Collection[int] = (),
    **kwargs: Any,
) -> requests.Response:
    """Send a request and return its response. Responses with status 401 or 5xx count as no answer.

    A response whose status is in ``refusals`` is returned in any case. ``who`` is the name of the service in errors.
    With ``stream=True`` the caller reads the body and must limit its size.

    Raises ``errors.Unanswered`` if there is no answer in ``attempts`` attempts. No answer means: a failed connection, a
    timeout, a missing endpoint or token, a response of more than MOST bytes, 401 or 5xx. If a request has exceeded the
    section's ``timeout``, or its response was too long, it is not repeated, because the result would be the same.
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


class RestClient:
    """A client that sends requests to one service, each as a user or as the service account of the adapter.

    ``who`` names the service in errors. If ``service_token`` is True, requests as the service account also contain a
    service token. It shows the service that the caller is a service and not a user.
    """

    def __init__(self, adapter: Adapter, who: str, *, service_token: bool = True) -> None:
        auth = adapter.session.auth
        if service_token and auth is not None:
            adapter.session.auth = ServiceTokenAuthWrapper(user_auth=auth, service_auth=auth)
        self._adapter, self._who = adapter, who

    def _send(
        self,
        method: str,
        path: str,
        *,
        ctxt: RequestContext | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        **kwargs: Any,
    ) -> requests.Response:
        """Send a request by the function ``send``, and return the response. A GET is repeated if it gets no response.

        The request is sent with the user's token if ``ctxt`` has one, otherwise with the service's own account.
        """
        headers, token = dict(headers), getattr(ctxt, 'auth_token', None)
        if token:
            # Send the user's token. The URL of the service is still read from the catalog of this process's account.
            headers['X-Auth-Token'] = token
            kwargs['authenticated'] = False
        attempts = READ_ATTEMPTS if method == 'GET' else 1
        return send(self._adapter, self._who, method, path, attempts=attempts, headers=headers, **kwargs)
