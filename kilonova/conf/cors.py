"""The [cors] options: web pages of other origins that may use the API (options of oslo.middleware)."""

from __future__ import annotations

from oslo_middleware import cors

GROUP = 'cors'

_VERSION_HEADERS = ['OpenStack-API-Version', 'X-OpenStack-Nova-API-Version']

# This changes the defaults in the option objects of the middleware, because the middleware registers these objects.
cors.set_defaults(
    allow_headers=[
        'X-Auth-Token',
        'X-Openstack-Request-Id',
        'X-Identity-Status',
        'X-Roles',
        'X-Service-Catalog',
        'X-User-Id',
        'X-Tenant-Id',
        *_VERSION_HEADERS,
    ],
    expose_headers=[
        'X-Auth-Token',
        'X-Openstack-Request-Id',
        'X-Compute-Request-Id',
        'X-Subject-Token',
        'X-Service-Token',
        *_VERSION_HEADERS,
    ],
    allow_methods=['GET', 'PUT', 'POST', 'DELETE', 'PATCH'],
)
OPTS = cors.OPTS
