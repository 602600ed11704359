"""JSON over HTTP to the services of this cloud, on the loopback address and past any proxy.

reply = call('GET', f'{url}/v3/projects', token=token)
reply.data['projects']
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from tools.cloud.layout import CloudError

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Reply:
    """An answer; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        """The body as JSON, or None if it is empty."""
        return json.loads(self.body) if self.body else None


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def send(
    method: str, url: str, *, data: bytes | None = None, headers: Mapping[str, str] | None = None, timeout: float = 30.0
) -> Reply:
    """Send a request; any answer is a reply. Raises OSError if no server answers."""
    request = urllib.request.Request(url, data=data, method=method, headers=dict(headers or {}))
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            return Reply(answer.status, _lower(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, _lower(error.headers), error.read())


def call(
    method: str,
    url: str,
    body: object = None,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    expect: tuple[int, ...] = (200, 201, 202, 204),
) -> Reply:
    """Send JSON and get a reply whose status is one of ``expect``; CloudError otherwise."""
    sent = {'Accept': 'application/json', **(headers or {})}
    if token:
        sent['X-Auth-Token'] = token
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        sent.setdefault('Content-Type', 'application/json')
    reply = send(method, url, data=data, headers=sent)
    if reply.status not in expect:
        raise CloudError(f'{method} {url}: {reply.status} {reply.body[:500].decode(errors="replace")}')
    return reply


def answers(url: str, statuses: tuple[int, ...]) -> bool:
    """Whether somebody answers there, with one of these statuses."""
    try:
        return send('GET', url, timeout=5.0).status in statuses
    except OSError:
        return False
