"""The dispatcher: it finds the route of a WSGI request, checks the request, and calls the handler.

``Dispatcher`` does the following for every route, in the same order as Nova. The first check that fails determines the
response:

1. The path and method exist, and the API has the requested microversion (404, 400, 406).
2. The body is JSON with a JSON content type, a route exists for path, action and microversion, and the project in the
   URL is the caller's (415, 400, 404).
3. Query and body are valid by the schemas of the route (400).
4. The server in the path exists. A server of another project is reported as missing, too (404).
5. The caller passes the policy rule of the route, for this server (403).
6. The handler looks up whatever else the path names.

Handlers get one ``Call`` and return a body, None or a ``Reply``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, urlencode
from wsgiref.types import StartResponse, WSGIEnvironment

import routes
import webob

from kilonova.api import faults, versions
from kilonova.api.schemas.base import QuerySchema, Schema
from kilonova.api.schemas.types import Json
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import WORK, ServerRef, find_server
from kilonova.context import RequestContext
from kilonova.errors import Invalid, KilonovaError, NotFound

ACCEPTED_TYPES = ('application/json', 'application/vnd.openstack.compute+json')
# Content types that HTTP clients send by default. They do not say whether the body is JSON.
UNSAID_TYPES = ('', 'text/plain')
# The maximum depth of nested lists and objects in a body.
MOST_FLOORS = 64
# The maximum offset in a list. No list has more items.
LAST = 0x7FFFFFFF


# The value of ``Route.policy`` for a route without a policy check: every caller with a valid token may use it.
ANYBODY = None
# The optional prefix of paths: the id of the caller's project.
PROJECT_PREFIX = '/{project_id:[0-9a-f-]+}'
# The path of a server.
SERVER = '/servers/{server_id}'


class Malformed(Invalid):
    """Error 400: the request is malformed."""

    msg_fmt = 'The server could not comply with the request since it is either malformed or otherwise incorrect.'


class UnsupportedType(KilonovaError):
    """Error 415: the content type of the body is not JSON."""

    msg_fmt = 'Unsupported Content-Type'
    code = 415


class NoRoute(NotFound):
    """Error 404: the path has no route at this microversion."""

    msg_fmt = faults.NOT_FOUND


@dataclass(frozen=True)
class Route:
    """One route: a method and path, their handler, and everything that is checked before it is called.

    - ``policy``: the policy rule. ANYBODY accepts every caller with a valid token.
    - ``server``: set if the path has a ``server_id``. The server is looked up before the policy check. The value is the
      purpose of the look-up, a constant of ``services.server_operations`` such as WORK.
    - ``for_services``: if true, a caller that is another service finds servers of all projects.
    - ``owner``: the path variable that contains the project of the policy target. Without ``owner``, the policy target
      has the caller's project.
    - ``action``: the only key of the body, which selects this route among the routes of its path.
    - ``asks``: further policy rules, which the handler checks.
    - ``since`` and ``until``: the microversions in which the route exists.
    """

    method: str
    path: str
    handler: Callable[[Call], Any]
    policy: str | None
    query: QuerySchema = field(default_factory=QuerySchema)
    body: Schema | None = None
    status: int = 200
    action: str | None = None
    server: str | None = None
    for_services: bool = False
    owner: str | None = None
    asks: tuple[str, ...] = ()
    since: int = versions.MIN
    until: int = versions.MAX


def server_action(
    key: str,
    handler: Callable[[Call], Any],
    policy: str,
    body: Schema,
    status: int = 202,
    asks: tuple[str, ...] = (),
    since: int = versions.MIN,
    until: int = versions.MAX,
) -> Route:
    """Return the route of an action on a server.

    ``key`` is the only key of the body. The caller must pass the rule ``policy``, and the handler checks the rules
    ``asks``. The action exists in the microversions ``since`` to ``until``.
    """
    return Route(
        'POST',
        f'{SERVER}/action',
        handler,
        policy,
        body=body,
        status=status,
        action=key,
        server=WORK,
        asks=asks,
        since=since,
        until=until,
    )


class PolicyInterface(Protocol):
    """The interface of the policy checks. ``policies.Policy`` implements it."""

    def allows(self, ctxt: RequestContext, rule: str, target: Mapping[str, Any] | None = None) -> bool:
        """Return whether the caller passes a policy rule for ``target``, the project and user of a resource."""

    def authorise(self, ctxt: RequestContext, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Raise PolicyNotAuthorized (403) if the caller does not pass a policy rule for ``target``.

        ``target`` is the project and user of a resource.
        """


@dataclass(frozen=True)
class Reply:
    """A response with headers.

    ``status`` replaces the status of the route, if it is not None. ``text`` is a body that is not JSON. Its
    Content-Type must be in ``headers``.
    """

    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    status: int | None = None
    text: str | None = None


class Links:
    """Builder of links to resources.

    A ``self`` link has the version and project of the request's URL. A ``bookmark`` link has no version.
    """

    def __init__(self, request: webob.Request, project: str | None, prefix: str | None) -> None:
        base = (prefix.rstrip('/') + request.script_name if prefix else request.application_url).rstrip('/')
        tail = f'/{project}' if project else ''
        self._base, self._root = base + tail, base.rpartition('/')[0] + tail

    def of(self, collection: str, identifier: str | int) -> list[dict[str, str]]:
        """Return the self link and the bookmark link of a resource."""
        return [{'rel': 'self', 'href': self.to(collection, identifier)}, self.bookmark(collection, identifier)]

    def to(self, collection: str, identifier: str | int) -> str:
        """Return the URL of a resource, with the API version."""
        return f'{self._base}/{collection}/{quote(str(identifier))}'

    def bookmark(self, collection: str, identifier: str | int) -> dict[str, str]:
        """Return the bookmark link of a resource, which has no API version and stays valid in other versions."""
        return {'rel': 'bookmark', 'href': f'{self._root}/{collection}/{quote(str(identifier))}'}

    def next(self, path: str, query: Mapping[str, Iterable[str]], marker: str | int) -> list[dict[str, str]]:
        """Return the link to the next page of a list, which starts after ``marker``.

        ``path`` is the path of the list, such as 'servers/detail', and ``query`` is the query of the request.
        """
        pairs = [(name, value) for name, values in query.items() if name != 'marker' for value in values]
        return [{'rel': 'next', 'href': f'{self._base}/{path}?{urlencode([*pairs, ("marker", marker)])}'}]


@dataclass
class Call:
    """A checked request, as handlers get it. ``version`` is the N of microversion 2.N."""

    ctxt: RequestContext
    version: int
    route: Route
    path: dict[str, str]
    query: dict[str, list[str]]
    body: Any
    links: Links
    backend: Backend
    policy: PolicyInterface
    found: ServerRef | None = None
    application_url: str = ''

    def may(self, rule: str, target: Mapping[str, Any] | None = None) -> bool:
        """Return whether the caller passes a policy rule for ``target``, the project and user of a resource.

        The default is the property ``self.target``.
        """
        return self.policy.allows(self.ctxt, rule, target or self.target)

    def authorise(self, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Raise PolicyNotAuthorized (403) if the caller does not pass a policy rule for ``target``.

        ``target`` is the project and user of a resource. The default is the property ``self.target``.
        """
        self.policy.authorise(self.ctxt, rule, target or self.target)

    @property
    def server(self) -> ServerRef:
        """The server that the path names. Only calls of routes with ``server`` have it."""
        if self.found is None:
            raise TypeError(f'{self.route.path}: the handler used call.server, but the route does not set ``server``')
        return self.found

    @property
    def target(self) -> dict[str, Any]:
        """The project and user of the requested resource, as the target of policy checks.

        If the route looks a server up, they are the project and user of this server. Otherwise the user is the caller.
        The project is then the value of the path variable that ``Route.owner`` names (such as tenant_id) or, if the
        route has no ``owner``, the caller's project.
        """
        if self.found is not None:
            return self.found.target
        owner = self.path[self.route.owner] if self.route.owner else self.ctxt.project_id
        return {'project_id': owner, 'user_id': self.ctxt.user_id}

    def one(self, name: str, default: str | None = None) -> str | None:
        """Return the last value of a query parameter, or ``default`` if the query does not have it."""
        values = self.query.get(name)
        return values[-1] if values else default

    def limit(self) -> int:
        """Return the maximum number of items in the response: the parameter ``limit``, but at most [api]max_limit.

        Raises Invalid if the parameter is not an integer.
        """
        wanted = self.one('limit')
        cap = self.backend.options.max_limit
        if wanted is None:
            return cap
        if not wanted.isascii() or not wanted.isdigit():
            raise Invalid('limit param must be an integer')
        return min(int(wanted), cap)

    def offset(self) -> int:
        """Return the number of items to skip: the parameter ``offset``, which some lists have.

        Raises Invalid if the parameter is not an integer.
        """
        text = self.one('offset') or '0'
        # Check the text here, because ``int`` also accepts other texts, such as signs and digits that are not ASCII.
        if not text.isascii() or not text.isdigit():
            raise Invalid('offset param must be an integer')
        return min(int(text), LAST)


class Paths:
    """A table of routes that finds the route of a request. ``rows`` is a dict from 'METHOD path' to its routes.

    The order of the routes does not matter: a fixed segment of a path takes precedence over a variable at the same
    position.
    """

    def __init__(self, table: Iterable[Route], prefixes: tuple[str, ...] = ('', PROJECT_PREFIX)) -> None:
        self.rows: dict[str, list[Route]] = {}
        self.mapper = routes.Mapper(register=False, explicit=True)
        self.mapper.minimization = False
        for route in sorted(table, key=_segments):
            key = f'{route.method} {route.path}'
            if key not in self.rows:
                for prefix in prefixes:
                    self.mapper.connect(None, prefix + route.path, row_key=key, conditions={'method': [route.method]})
            self.rows.setdefault(key, []).append(route)
        self.mapper.create_regs([])
        self.methods = sorted({route.method for rows in self.rows.values() for route in rows})

    def match(self, path: str, method: str) -> tuple[dict[str, str], list[Route]] | None:
        """Return the variables of a path and the routes for it, or None if there is no route."""
        # First match the whole path, because '.json' may be the end of an id. Then match the path without '.json'.
        for each in (path, path.removesuffix('.json')):
            found = self.mapper.match(each, {'REQUEST_METHOD': method})
            if found:
                return found, self.rows[found.pop('row_key')]
        return None

    def allowed(self, path: str) -> list[str]:
        """Return the methods that have a route for this path. An empty list means that the path does not exist."""
        return [method for method in self.methods if self.match(path, method) is not None]


def _segments(route: Route) -> list[bool]:
    """Return the sort key of a route: for each segment of its path, True if the segment is a variable.

    '/servers/detail' gives [False, False, False], and '/servers/{server_id}' gives [False, False, True] (the first
    segment is empty). False sorts before True, so the fixed path '/servers/detail' is tried first.
    """
    return ['{' in segment for segment in route.path.split('/')]


# A function that returns the identity of the caller, or an error response if it cannot identify the caller.
Identify = Callable[[WSGIEnvironment], RequestContext | webob.Response]


class Dispatcher:
    """The WSGI application that serves API requests, after the middleware has validated the token.

    It serves /v2.1, /v2 (the 2.0 API) and /kilonova/v1 (the routes in ``own``). Only /v2.1 has microversions.
    """

    def __init__(self, paths: Paths, own: Paths, backend: Backend, policy: PolicyInterface, identify: Identify) -> None:
        self._backend, self._policy, self._identify = backend, policy, identify
        self._paths, self._own = paths, own

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        """Serve a WSGI request."""
        ctxt = self._identify(environ)
        if isinstance(ctxt, webob.Response):
            return ctxt(environ, start_response)
        request = webob.Request(environ)
        prefix = environ['SCRIPT_NAME']
        is_own, is_legacy = prefix.endswith(versions.OWN_PATH), prefix.endswith('/v2')
        paths = self._own if is_own else self._paths
        headers: list[tuple[str, str]] = []
        try:
            path = _path(request)
            found = paths.match(path, request.method)
            if found is None:
                refused = _no_own_route(environ, paths.allowed(path)) if is_own else faults.no_route(environ)
                return refused(environ, start_response)
            version = versions.MAX if is_own else _version(request, is_legacy, headers)
            response = self._answer(request, ctxt, version, is_legacy, *found)
        except Exception as error:  # noqa: BLE001 - one table turns all of them into answers
            response = faults.of_error(error)
        response.headers.extend(headers)
        return response(environ, start_response)

    def _answer(
        self,
        request: webob.Request,
        ctxt: RequestContext,
        version: int,
        relaxed: bool,
        path: dict[str, str],
        rows: list[Route],
    ) -> webob.Response:
        project = path.pop('project_id', None)
        if project is not None and project != ctxt.project_id:
            raise Invalid(
                f"Malformed request URL: URL's project_id '{project}' doesn't match Context's project_id "
                f"'{ctxt.project_id}'"
            )
        body = _body(request) if request.method in ('POST', 'PUT') else None
        route = self._choose(rows, body, version)
        call = Call(
            ctxt=ctxt,
            version=version,
            route=route,
            path=path,
            query=_query(request),
            body=body,
            links=Links(request, project, self._backend.options.compute_link_prefix),
            backend=self._backend,
            policy=self._policy,
            application_url=request.application_url,
        )
        route.query.check(call.query, version)
        if route.body is not None:
            call.body = route.body.check(body, version, relaxed=relaxed)
        if route.server:
            call.found = find_server(
                self._backend,
                ctxt,
                path['server_id'],
                purpose=route.server,
                version=version,
                for_services=route.for_services,
            )
        if route.policy is not None:
            call.authorise(route.policy)
        return _render(route.handler(call), route.status)

    @staticmethod
    def _choose(rows: list[Route], body: Json, version: int) -> Route:
        if rows[0].action is not None:
            if not isinstance(body, dict) or len(body) != 1:
                raise Invalid('Malformed request body')
            action = next(iter(body))
            rows = [row for row in rows if row.action == action]
            if not rows:
                raise Invalid(f'There is no such action: {action}')
        for row in rows:
            if row.since <= version <= row.until:
                return row
        raise NoRoute


def _no_own_route(environ: WSGIEnvironment, allowed: list[str]) -> webob.Response:
    """Return the error response to a request below /kilonova/v1 that has no route: a fault with status 405 or 404.

    ``allowed`` are the methods for which the path has routes. The status is 404 if there are none, otherwise 405.
    """
    if not allowed:
        return faults.fault(404, faults.NOT_FOUND)
    response = faults.fault(405, f'{environ["REQUEST_METHOD"][:16]} is not allowed here, only {", ".join(allowed)}')
    response.headers['Allow'] = ', '.join(allowed)
    return response


def _version(request: webob.Request, is_legacy: bool, headers: list[tuple[str, str]]) -> int:
    """Return the microversion of a request, and put the response headers about it into ``headers``.

    ``is_legacy`` is true for a request to the 2.0 API, which always has the lowest microversion.

    Raises InvalidVersion (400) if the requested microversion is malformed, and UnsupportedVersion (406) if the API does
    not have it.
    """
    version = versions.MIN
    if not is_legacy:
        # An error response repeats the requested microversion, too, even if the API refuses this microversion.
        headers[:] = versions.headers(_echo(request))
        version = versions.negotiate(request.headers)
        headers[:] = versions.headers(versions.text(version))
    request.environ['kilonova.microversion'] = versions.text(version)
    return version


def _path(request: webob.Request) -> str:
    try:
        path: str = request.path_info
    except UnicodeDecodeError:
        raise Malformed from None
    if '\x00' in path:
        raise Malformed
    return path


def _echo(request: webob.Request) -> str:
    """Return the requested microversion as text that is safe in a response header.

    Return the lowest microversion if the request asks for none, or if its text is not made of digits and dots.
    """
    wanted = versions.asked(request.headers) or versions.text(versions.MIN)
    return wanted if re.fullmatch(r'[0-9.]{1,32}', wanted) else versions.text(versions.MIN)


def _query(request: webob.Request) -> dict[str, list[str]]:
    try:
        pairs = list(request.GET.items())
    except UnicodeDecodeError:
        raise Malformed from None
    query: dict[str, list[str]] = {}
    for name, value in pairs:
        if '\x00' in name or '\x00' in value:
            raise Malformed
        query.setdefault(name, []).append(value)
    return query


def _body(request: webob.Request) -> Any:
    """Return the parsed JSON body, or None if there is no body.

    Text and numbers that the databases can't store are refused. Raises UnsupportedType (415) and Malformed (400).
    """
    # Content types are compared case-sensitively, as in Nova.
    kind = request.content_type or ''
    if kind not in ACCEPTED_TYPES and kind not in UNSAID_TYPES:
        raise UnsupportedType
    data = request.body
    if not data or kind not in ACCEPTED_TYPES:
        # As in Nova, a body is ignored if its content type is missing or text/plain.
        return None
    try:
        text = data.decode()
        body = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        _check_depth(body)
        if '\\u' in text:
            _check_text(body)
    except (ValueError, RecursionError):
        raise Malformed(_NOT_JSON) from None
    return body


_NOT_JSON = 'Malformed request body'


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _finite(text: str) -> float:
    """Convert a number of a JSON body to a float.

    Raises ValueError if the number is too large, because Python would then return infinity, which JSON does not have.
    """
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _check_depth(body: Json) -> None:
    """Raise ValueError if the lists and objects of a body are nested deeper than 64 levels (``MOST_FLOORS``).

    This process can parse deeper bodies. But parts of a body are stored and sent to other processes, whose JSON parsers
    may have a lower limit. Then the request would fail later, instead of being refused.
    """
    floor = [body]
    for _ in range(MOST_FLOORS):
        floor = [
            item
            for each in floor
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, (dict, list))
        ]
        if not floor:
            return
    raise ValueError('nested too deep')


def _check_text(value: Json) -> None:
    """Raise ValueError if a text has characters that databases can't store: lone surrogates or NUL.

    JSON escapes can produce them.
    """
    if isinstance(value, str):
        value.encode()
        if '\x00' in value:
            raise ValueError('NUL')
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            _check_text(item)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)


def _render(result: Any, status: int) -> webob.Response:
    reply = result if isinstance(result, Reply) else Reply(result)
    status = reply.status or status
    # As in Nova, responses without a body have a content type too, even with status 204.
    if reply.text is not None:
        return webob.Response(status=status, headerlist=list(reply.headers), body=reply.text.encode())
    response = webob.Response(status=status, headerlist=[*reply.headers, ('Content-Type', 'application/json')])
    if reply.body is not None:
        response.body = json.dumps(reply.body).encode()
    elif status != 204:
        response.content_length = 0
    return response
