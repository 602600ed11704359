"""The WSGI application of the compute API, put together.

    app = make_app(conf, databases=databases, cells=cells, conductor=client, image_client=images)
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oslo_config import cfg
from oslo_middleware import http_proxy_to_wsgi, request_id, sizelimit

from kilonova.api import auth, faults, versions
from kilonova.api.policies import Policy
from kilonova.api.routes import ROUTES
from kilonova.api.services.backend import Backend, Options
from kilonova.api.wsgi import Dispatcher
from kilonova.pci.request import Aliases


class RequestId(request_id.RequestId):
    """The id of a request under both of its names."""

    compat_headers = ['x-compute-request-id']


class Mount:
    """Applications by the first segment of the path; '/v2.1' and '/v2.1/' themselves are documents."""

    def __init__(self, applications: dict[str, Callable], default: Callable) -> None:
        self._applications, self._default = applications, default

    def __call__(self, environ: dict[str, Any], start_response: Callable) -> Iterable[bytes]:
        _, _, rest = environ.get('PATH_INFO', '').partition('/')
        name, _, tail = rest.partition('/')
        application = self._applications.get(name)
        if application is None or not tail:
            return self._default(environ, start_response)
        environ['SCRIPT_NAME'] = f'{environ.get("SCRIPT_NAME", "")}/{name}'
        environ['PATH_INFO'] = f'/{tail}'
        return application(environ, start_response)


def make_app(conf: cfg.ConfigOpts, *, databases: Any, cells: Any, conductor: Any, image_client: Any,
             compute: Any = None, placement: Any = None, policy: Policy | None = None) -> Callable:
    """The whole pipeline, outermost first: proxy headers, request id, faults and log, size limit, versions, auth.

    ``databases``: db.engine.Databases; ``cells``: db.queries.cells.Cells; ``conductor``, ``compute``: rpc clients of
    the compute tasks and of hosts; ``placement``: a PlacementClient, for the providers of deleted services.
    """
    policy = policy or Policy(conf)
    options = Options.of(conf)
    backend = Backend(api_db=databases.api(), cells=cells, conductor=conductor, images=image_client,
                      aliases=Aliases.from_conf(conf), options=options, compute=compute, placement=placement)
    dispatchers = {name: Dispatcher(ROUTES, backend, policy, legacy=name == 'v2') for name in ('v2.1', 'v2')}

    def dispatch(environ: dict[str, Any], start_response: Callable) -> Iterable[bytes]:
        return dispatchers[environ['SCRIPT_NAME'].rpartition('/')[2]](environ, start_response)
    protected = auth.authenticated(dispatch, conf, policy)
    app: Callable = Mount(dict.fromkeys(dispatchers, protected), versions.Discovery(options.compute_link_prefix))
    app = sizelimit.RequestBodySizeLimiter(app, conf)
    app = faults.FaultWrapper(app)
    app = RequestId(app, conf)
    return http_proxy_to_wsgi.HTTPProxyToWSGI(app, conf)
