"""The WSGI application of the compute API, put together.

    app = make_app(conf, databases=databases, cells=cells, conductor=client, image_client=images)
"""
from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import webob
from oslo_config import cfg
from oslo_middleware import cors, healthcheck, http_proxy_to_wsgi, request_id, sizelimit

from kilonova.api import auth, faults, versions
from kilonova.api.policies import Policy
from kilonova.api.routes import ROUTES
from kilonova.api.services.backend import Backend, Options
from kilonova.api.wsgi import Dispatcher, Paths
from kilonova.clients.image import ImageClient
from kilonova.clients.limits import LimitsClient
from kilonova.clients.placement import PlacementClient
from kilonova.db.engine import Databases
from kilonova.db.queries.cells import Cells
from kilonova.pci.request import Aliases
from kilonova.rpc.interface import Client
from kilonova.rpc.notify import OFF, Notifications

REQUESTS = logging.getLogger('kilonova.api.requests')


class OlderRequestId:
    """The request's id under its older name, too. As in the field documents about versions carry the newer one only."""

    HEADER = 'x-compute-request-id'

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            told = [] if environ.get(versions.DOCUMENT) else [(self.HEADER, environ[request_id.ENV_REQUEST_ID])]
            return start_response(status, [*headers, *told], *more)
        return self._application(environ, start)


# The token of a console is the last part of its address.
_TOKEN = re.compile(r'(/os-console-auth-tokens/+)[^/]+')


class FaultWrapper:
    """Whatever comes out of the applications inside, webob's own pages and unexpected exceptions included, leaves as a
    fault; and each request is a line of the log."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        started = time.monotonic()
        request = webob.Request(environ)
        try:
            response = request.get_response(self._application)
        except Exception as error:  # noqa: BLE001 - nothing may reach the server's own error page
            response = faults.of_error(error)
        if response.status_int >= 400 and response.content_type != 'application/json' and not environ.get(faults.AS_IS):
            response = faults.of_response(response)
        self._log(environ, response, time.monotonic() - started)
        return response(environ, start_response)

    @staticmethod
    def _log(environ: dict[str, Any], response: webob.Response, seconds: float) -> None:
        path = quote((environ.get('SCRIPT_NAME', '') + environ.get('PATH_INFO', '')).encode('latin-1', 'replace'))
        # Whoever reads logs must not open consoles.
        path = _TOKEN.sub(r'\1***', path)
        query = environ.get('QUERY_STRING')
        REQUESTS.info('%s "%s %s" status: %s len: %s microversion: %s time: %.6f', environ.get('REMOTE_ADDR', '-'),
                      environ.get('REQUEST_METHOD', '-'), f'{path}?{query}' if query else path, response.status_int,
                      response.content_length or 0, environ.get('kilonova.microversion', '-'), seconds)


class Mount:
    """Applications by the first segment of the path; '/v2.1' and '/v2.1/' themselves are documents."""

    def __init__(self, applications: dict[str, WSGIApplication], default: WSGIApplication) -> None:
        self._applications, self._default = applications, default

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        _, _, rest = environ.get('PATH_INFO', '').partition('/')
        name, _, tail = rest.partition('/')
        application = self._applications.get(name)
        if application is None or not tail:
            return self._default(environ, start_response)
        environ['SCRIPT_NAME'] = f'{environ.get("SCRIPT_NAME", "")}/{name}'
        environ['PATH_INFO'] = f'/{tail}'
        return application(environ, start_response)


class Healthcheck:
    """/healthcheck beside everything else, without a token; what [healthcheck] hides it from gets the rest's answer."""

    PATH = '/healthcheck'

    def __init__(self, application: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._rest, self._check = application, healthcheck.Healthcheck(application, conf)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        wanted = environ.get('PATH_INFO', '').rstrip('/') == self.PATH
        return (self._check if wanted else self._rest)(environ, start_response)


@functools.cache
def _paths() -> Paths:
    """Made once: compiling the patterns of all routes takes longer than all else here."""
    return Paths(ROUTES)


def make_app(conf: cfg.ConfigOpts, *, databases: Databases, cells: Cells, conductor: Client, image_client: ImageClient,
             compute: Client | None = None, placement: PlacementClient | None = None,
             limits: LimitsClient | None = None, policy: Policy | None = None,
             notify: Notifications = OFF) -> WSGIApplication:
    """The whole pipeline, outermost first: CORS, proxy headers, health check, request id, faults and log, size limit,
    versions, auth.

    ``databases``: db.engine.Databases; ``cells``: db.queries.cells.Cells; ``conductor``, ``compute``: rpc clients of
    the compute tasks and of hosts; ``placement``: a PlacementClient, for the providers of deleted services; ``limits``:
    a LimitsClient where [quota]driver is UnifiedLimitsDriver; ``notify``: who is told what happens.
    """
    policy = policy or Policy(conf)
    options = Options.of(conf)
    backend = Backend(api_db=databases.api(), cells=cells, conductor=conductor, images=image_client,
                      aliases=Aliases.from_conf(conf), options=options, compute=compute, placement=placement,
                      limits=limits, notify=notify)
    dispatchers = {name: Dispatcher(_paths(), backend, policy, legacy=name == 'v2') for name in ('v2.1', 'v2')}

    def dispatch(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        found: Iterable[bytes] = dispatchers[environ['SCRIPT_NAME'].rpartition('/')[2]](environ, start_response)
        return found
    protected = auth.authenticated(dispatch, conf, policy)
    app: WSGIApplication = Mount(dict.fromkeys(dispatchers, protected), versions.Discovery(options.compute_link_prefix))
    app = sizelimit.RequestBodySizeLimiter(app, conf)
    app = FaultWrapper(app)
    app = request_id.RequestId(OlderRequestId(app), conf)
    app = Healthcheck(app, conf)
    app = http_proxy_to_wsgi.HTTPProxyToWSGI(app, conf)
    return cors.CORS(app, conf)
