"""keystoneauth1 adapters from a section of kilonova.conf, and the one place where silence becomes Unanswered.

    adapter = session.adapter(conf, 'placement')
    response = session.send(adapter, 'Placement', 'GET', '/resource_providers', attempts=session.READ_ATTEMPTS)
"""
from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading as ks_loading
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


class _Pool(requests.adapters.HTTPAdapter):
    """Connections that are given up sooner than answers: one that isn't accepted at once never is."""

    def send(self, request: requests.PreparedRequest, stream: bool = False,
             timeout: float | tuple[float | None, float | None] | None = None, verify: bool | str = True,
             cert: str | tuple[str, str] | None = None, proxies: dict[str, str] | None = None) -> requests.Response:
        if isinstance(timeout, (int, float)):
            timeout = (min(timeout, CONNECT_TIMEOUT), timeout)
        return super().send(request, stream, timeout, verify, cert, proxies)


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
    pool = Session()
    for scheme in ('http://', 'https://'):
        pool.mount(scheme, _Pool(pool_maxsize=POOL_SIZE))
    session = ks_loading.load_session_from_conf_options(conf, group, session=pool)
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

    A failed connection, a timeout, a missing endpoint or token, 401 and 5xx all mean that ``who`` doesn't answer:
    ``errors.Unanswered``, after ``attempts`` tries. What took the section's ``timeout`` isn't tried again: who hangs
    once would hang again.
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
