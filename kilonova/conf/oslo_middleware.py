"""The [oslo_middleware] options: the size of requests, and proxies in front of the API (options of oslo.middleware)."""

from __future__ import annotations

from oslo_middleware import http_proxy_to_wsgi, sizelimit

GROUP = 'oslo_middleware'
OPTS = [*sizelimit.OPTS, *http_proxy_to_wsgi.OPTS]
