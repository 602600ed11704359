"""The [healthcheck] options: the API's /healthcheck for load balancers (options of oslo.middleware)."""

from __future__ import annotations

from oslo_middleware.healthcheck import opts

GROUP = 'healthcheck'
OPTS = [*opts.HEALTHCHECK_OPTS, *opts.DISABLE_BY_FILE_OPTS, *opts.DISABLE_BY_FILES_OPTS, *opts.ENABLE_BY_FILES_OPTS]
