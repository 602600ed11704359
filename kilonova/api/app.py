"""The complete WSGI application of the compute API: middleware, identification of the caller, and dispatcher.

    app = make_app(conf, databases=databases, cells=cells, conductor=client, image_client=images)

The daemon kilonova-api creates it.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import webob
from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_log import log as logging
from oslo_middleware import cors, healthcheck, http_proxy_to_wsgi, request_id, sizelimit

from kilonova.accel.client import AcceleratorClient
from kilonova.api import faults, versions
from kilonova.api.policies import Policy
from kilonova.api.routes import OWN_ROUTES, ROUTES
from kilonova.api.services.backend import ApiOptions, Backend
from kilonova.api.wsgi import Dispatcher, Paths
from kilonova.clients.image import ImageClient
from kilonova.clients.limits import LimitsClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.context import RequestContext
from kilonova.db.engine import Databases
from kilonova.db.queries.cells import CellDatabases
from kilonova.pci.request import Aliases
from kilonova.rpc.interface import Client
from kilonova.rpc.notify import OFF, Notifications

REQUESTS = logging.getLogger('kilonova.api.requests')


# A URL whose last part is the secret token of a console.
_TOKEN = re.compile(r'(/os-console-auth-tokens/+)[^/]+')


class FaultAndLogMiddleware:
    """WSGI middleware that passes a request to the API or to the application for version discovery, and logs it.

    The application ``api`` gets each request whose path is below one of ``PREFIXES``. The application ``documents``
    gets all other requests, and also '/v2.1', '/v2.1/' and a GET of '/v2.1/<project>', whose response is a version
    document.

    The middleware converts every error response to Nova's JSON error body, such as {"itemNotFound": {…}}. Only a path
    that no route has gets webob's own 404 page. Each response of ``api`` has the request id also in the header
    X-Compute-Request-Id, for older clients. The log has one line for each request.
    """

    OLDER_ID = 'x-compute-request-id'
    PREFIXES = ('/v2.1', '/v2', versions.OWN_PATH)

    def __init__(self, api: WSGIApplication, documents: WSGIApplication) -> None:
        self._api, self._documents = api, documents

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        """Serve a WSGI request."""
        started = time.monotonic()
        application = self._application(environ)
        try:
            response = webob.Request(environ).get_response(application)
        except Exception as error:  # noqa: BLE001 - nothing may reach the server's own error page
            response = faults.of_error(error)
        if response.status_int >= 400 and response.content_type != 'application/json' and not environ.get(faults.AS_IS):
            response = faults.of_response(response)
        self._log(environ, response, time.monotonic() - started)
        if not environ.get(versions.DOCUMENT):
            response.headers.add(self.OLDER_ID, environ[request_id.ENV_REQUEST_ID])
        return response(environ, start_response)

    def _application(self, environ: WSGIEnvironment) -> WSGIApplication:
        """Return the application that serves the request.

        For a request to the API, move the prefix of the path to SCRIPT_NAME in ``environ``.
        """
        path = environ.get('PATH_INFO', '')
        if versions.is_document(environ['REQUEST_METHOD'], path):
            return self._documents
        for prefix in self.PREFIXES:
            if path.startswith(f'{prefix}/') and len(path) > len(prefix) + 1:
                environ['SCRIPT_NAME'] = environ.get('SCRIPT_NAME', '') + prefix
                environ['PATH_INFO'] = path.removeprefix(prefix)
                return self._api
        return self._documents

    @staticmethod
    def _log(environ: dict[str, Any], response: webob.Response, seconds: float) -> None:
        path = quote((environ.get('SCRIPT_NAME', '') + environ.get('PATH_INFO', '')).encode('latin-1', 'replace'))
        # Hide console tokens: readers of the log must not be able to open consoles.
        path = _TOKEN.sub(r'\1***', path)
        query = environ.get('QUERY_STRING')
        REQUESTS.info(
            '%s "%s %s" status: %s len: %s microversion: %s time: %.6f',
            environ.get('REMOTE_ADDR', '-'),
            environ.get('REQUEST_METHOD', '-'),
            f'{path}?{query}' if query else path,
            response.status_int,
            response.content_length or 0,
            environ.get('kilonova.microversion', '-'),
            seconds,
        )


class Healthcheck:
    """WSGI middleware that answers /healthcheck without a token.

    Requests for other paths are passed on to ``application``. The options of [healthcheck] may exclude clients: their
    requests are passed on as well.
    """

    PATH = '/healthcheck'

    def __init__(self, application: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._rest, self._check = application, healthcheck.Healthcheck(application, conf)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve a WSGI request."""
        wanted = environ.get('PATH_INFO', '').rstrip('/') == self.PATH
        return (self._check if wanted else self._rest)(environ, start_response)


# --- authentication --------------------------------------------------------------------------------------------------

# Timeout (seconds) and retries when Keystone validates a token.
# keystonemiddleware has no timeout by default. Without a timeout, API requests would hang if Keystone did not answer.
KEYSTONE_DEFAULTS = {'http_connect_timeout': 10, 'http_request_max_retries': 1}
_UNAUTHORIZED = 'The request you have made requires authentication.'


def identity_of_keystone(policy: Policy, environ: WSGIEnvironment) -> RequestContext | webob.Response:
    """Return the caller's identity as keystonemiddleware found it, or an error response if it found none.

    keystonemiddleware has validated the token, and stored the identity in headers. ``policy`` decides whether the
    caller is an administrator.
    """
    if not environ.get('HTTP_X_USER_ID'):
        return faults.fault(401, _UNAUTHORIZED)
    try:
        catalog = json.loads(environ.get('HTTP_X_SERVICE_CATALOG') or '[]')
    except ValueError:
        return faults.fault(500, 'Invalid service catalog json.')
    ctxt: RequestContext = RequestContext.from_environ(
        environ, remote_address=environ.get('REMOTE_ADDR'), service_catalog=catalog
    )
    # Ask the policy whether the user is an administrator: an operator may require something else than the role admin.
    ctxt.is_admin = policy.allows(ctxt, 'context_is_admin')
    return ctxt


def identity_of_token(environ: WSGIEnvironment) -> RequestContext | webob.Response:
    """Return the identity from the token ``user:project``, or an error response if the request has no token.

    The API uses this function with auth_strategy noauth2: tokens are not validated. The user ``admin`` is an
    administrator.
    """
    token = environ.get('HTTP_X_AUTH_TOKEN')
    if not token:
        return faults.fault(401, _UNAUTHORIZED)
    user, _, project = token.partition(':')
    roles = ['member', 'reader']
    if user == 'admin':
        roles = ['admin', 'manager', *roles]
    return RequestContext(
        user_id=user,
        project_id=project or user,
        user_name=user,
        project_name=project or user,
        roles=roles,
        is_admin=user == 'admin',
        auth_token=token,
        remote_address=environ.get('REMOTE_ADDR'),
        request_id=environ.get(request_id.ENV_REQUEST_ID),
        global_request_id=environ.get(request_id.GLOBAL_REQ_ID),
    )


def validated(application: WSGIApplication, conf: cfg.ConfigOpts) -> WSGIApplication:
    """Wrap the application in keystonemiddleware, which validates tokens."""
    for group, options in auth_token.list_opts():
        conf.register_opts(options, group=group)
    for name, value in KEYSTONE_DEFAULTS.items():
        conf.set_default(name, value, group='keystone_authtoken')
    found: WSGIApplication = auth_token.AuthProtocol(application, {'oslo_config_config': conf})
    return found


@functools.cache
def _paths() -> Paths:
    """Return the compiled table of the API's routes.

    The table is cached, because compiling the path patterns takes longer than the rest of ``make_app``.
    """
    return Paths(ROUTES)


@functools.cache
def _own_paths() -> Paths:
    return Paths(OWN_ROUTES, prefixes=('',))


def make_app(
    conf: cfg.ConfigOpts,
    *,
    databases: Databases,
    cells: CellDatabases,
    conductor: Client,
    image_client: ImageClient,
    compute: Client | None = None,
    placement: PlacementClient | None = None,
    limits: LimitsClient | None = None,
    accelerators: AcceleratorClient | None = None,
    networks: NetworkClient | None = None,
    volumes: VolumeClient | None = None,
    policy: Policy | None = None,
    notify: Notifications = OFF,
) -> WSGIApplication:
    """Return the complete WSGI application.

    A request passes these layers in this order: CORS, proxy headers, health check, request id,
    ``FaultAndLogMiddleware``, size limit, token validation, dispatcher.

    Args:
        conf: The parsed configuration.
        databases: The databases, ``db.engine.Databases``.
        cells: The cells, ``db.queries.cells.Cells``.
        conductor: An RPC client of the conductors.
        image_client: The client of the image service.
        compute: An RPC client of the compute hosts, or None.
        placement: A client that deletes the resource providers of deleted services, or None.
        limits: The client of Keystone's limits if [quota]driver is UnifiedLimitsDriver, otherwise None.
        accelerators: The client of [cyborg], or None.
        networks: The client of [neutron], or None.
        volumes: The client of [cinder], or None.
        policy: The policy rules. By default they are read from the files that ``conf`` names.
        notify: The sender of notifications.
    """
    policy = policy or Policy(conf)
    options = ApiOptions.of(conf)
    backend = Backend(
        api_db=databases.api(),
        cells=cells,
        conductor=conductor,
        images=image_client,
        aliases=Aliases.from_conf(conf),
        options=options,
        compute=compute,
        placement=placement,
        limits=limits,
        accelerators=accelerators,
        networks=networks,
        volumes=volumes,
        notify=notify,
    )
    noauth = conf.api.auth_strategy == 'noauth2'
    identify = identity_of_token if noauth else functools.partial(identity_of_keystone, policy)
    api: WSGIApplication = Dispatcher(_paths(), _own_paths(), backend, policy, identify)
    if not noauth:
        api = validated(api, conf)
    documents = sizelimit.RequestBodySizeLimiter(versions.Discovery(options.compute_link_prefix), conf)
    app: WSGIApplication = FaultAndLogMiddleware(sizelimit.RequestBodySizeLimiter(api, conf), documents)
    app = request_id.RequestId(app, conf)
    app = Healthcheck(app, conf)
    app = http_proxy_to_wsgi.HTTPProxyToWSGI(app, conf)
    return cors.CORS(app, conf)
