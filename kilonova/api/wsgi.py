"""From a WSGI request to a handler and back.

The ``Dispatcher`` does what each request needs, for all routes in the order of the field, and the first thing that is
wrong is the answer:

1. a path and method that are there, a version that can be had (404, 400, 406);
2. a body that is JSON and says so, the row of the table that path, action and version mean, the token's own project in
   the URL (415, 400, 404);
3. query and body as the row's schemas want them (400);
4. the server that the path names (404, also for those of other projects: the answer does not show that they exist);
5. the row's policy, which is asked about that server (403);
6. the handler, which looks for whatever else the path names.

Handlers get one ``Call`` and return a body, None, or a ``Reply``.
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
from kilonova.api.schemas.base import Query, Schema
from kilonova.api.schemas.types import Json
from kilonova.api.services.accept import WORK, Found, find_server
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.errors import Invalid, KilonovaError, NotFound

ACCEPTED_TYPES = ('application/json', 'application/vnd.openstack.compute+json')
# Types that clients send without a thought: they say nothing about the body.
UNSAID_TYPES = ('', 'text/plain')
# Lists and objects of a body in each other.
MOST_FLOORS = 64
# Positions of a list behind this one are as good as the end.
LAST = 0x7FFFFFFF


# The policy of routes that ask for no right but a token.
ANYBODY = None
# What paths may begin with: the project of the token.
PROJECT_PREFIX = '/{project_id:[0-9a-f-]+}'
# The path of a server.
SERVER = '/servers/{server_id}'


class Malformed(Invalid):
    msg_fmt = 'The server could not comply with the request since it is either malformed or otherwise incorrect.'


class UnsupportedType(KilonovaError):
    msg_fmt = 'Unsupported Content-Type'
    code = 415
    safe = True


class NoRoute(NotFound):
    msg_fmt = faults.NOT_FOUND


@dataclass(frozen=True)
class Route:
    """One row of the table.

    ``policy`` ANYBODY: whoever has a token may. ``server``: the path's ``server_id`` is a server, which is found before
    the policy is asked, and what for (see ``services.accept``); ``for_services``: other services find it too.
    ``owner``: the variable of the path that names the project whose right is asked for, instead of the caller's.
    ``action``: the one key of the body that chooses this row among those of its path. ``asks``: rules besides
    ``policy`` that the handler checks. Outside ``since`` … ``until`` the route doesn't exist.
    """

    method: str
    path: str
    handler: Callable[[Call], Any]
    policy: str | None
    query: Query = field(default_factory=Query)
    body: Schema | None = None
    status: int = 200
    action: str | None = None
    server: str | None = None
    for_services: bool = False
    owner: str | None = None
    asks: tuple[str, ...] = ()
    since: int = versions.MIN
    until: int = versions.MAX


def server_action(key: str, handler: Callable[[Call], Any], policy: str, body: Schema, status: int = 202,
                  asks: tuple[str, ...] = (), since: int = versions.MIN, until: int = versions.MAX) -> Route:
    """The row of an action on a server: ``key`` is the one of its body; ``since`` … ``until`` its microversions."""
    return Route('POST', f'{SERVER}/action', handler, policy, body=body, status=status, action=key, server=WORK,
                 asks=asks, since=since, until=until)


class Policy(Protocol):
    """Who may do what: ``policies.Policy``."""

    def allows(self, ctxt: RequestContext, rule: str, target: Mapping[str, Any] | None = None) -> bool: ...

    def authorise(self, ctxt: RequestContext, rule: str, target: Mapping[str, Any] | None = None) -> None: ...


@dataclass(frozen=True)
class Reply:
    """A body with headers; ``status`` other than the route's where one route has several. ``text``: a body that isn't
    JSON, whose Content-Type is one of the headers."""

    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    status: int | None = None
    text: str | None = None


class Links:
    """Links to resources: ``self`` with the version and project of the request's URL, ``bookmark`` without version."""

    def __init__(self, request: webob.Request, project: str | None, prefix: str | None) -> None:
        base = (prefix.rstrip('/') + request.script_name if prefix else request.application_url).rstrip('/')
        tail = f'/{project}' if project else ''
        self._base, self._root = base + tail, base.rpartition('/')[0] + tail

    def of(self, collection: str, identifier: str | int) -> list[dict[str, str]]:
        """Both links of one resource."""
        return [{'rel': 'self', 'href': self.to(collection, identifier)}, self.bookmark(collection, identifier)]

    def to(self, collection: str, identifier: str | int) -> str:
        """The URL of a resource."""
        return f'{self._base}/{collection}/{quote(str(identifier))}'

    def bookmark(self, collection: str, identifier: str | int) -> dict[str, str]:
        """The link that outlives versions."""
        return {'rel': 'bookmark', 'href': f'{self._root}/{collection}/{quote(str(identifier))}'}

    def next(self, path: str, query: Mapping[str, Iterable[str]], marker: str | int) -> list[dict[str, str]]:
        """The link to the page after ``marker``; ``path`` such as 'servers/detail'."""
        pairs = [(name, value) for name, values in query.items() if name != 'marker' for value in values]
        return [{'rel': 'next', 'href': f'{self._base}/{path}?{urlencode([*pairs, ("marker", marker)])}'}]


@dataclass
class Call:
    """One request, as handlers see it. ``version`` is N of 2.N."""

    ctxt: RequestContext
    version: int
    route: Route
    path: dict[str, str]
    query: dict[str, list[str]]
    body: Any
    links: Links
    backend: Backend
    policy: Policy
    found: Found | None = None
    application_url: str = ''

    def may(self, rule: str, target: Mapping[str, Any] | None = None) -> bool:
        """Whether the caller passes a rule; the target is the server if the path names one."""
        return self.policy.allows(self.ctxt, rule, target or self.target)

    def authorise(self, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """The same, or 403."""
        self.policy.authorise(self.ctxt, rule, target or self.target)

    @property
    def server(self) -> Found:
        """The server that the path names, on routes that have ``server``."""
        if self.found is None:
            raise TypeError(f'{self.route.path} names no server')
        return self.found

    @property
    def target(self) -> dict[str, Any]:
        """Whose resource this is about: the server's project and user, else the caller's."""
        if self.found is not None:
            return self.found.target
        owner = self.path[self.route.owner] if self.route.owner else self.ctxt.project_id
        return {'project_id': owner, 'user_id': self.ctxt.user_id}

    def one(self, name: str, default: str | None = None) -> str | None:
        """The (last) value of a query parameter."""
        values = self.query.get(name)
        return values[-1] if values else default

    def limit(self) -> int:
        """How many items the answer may have: ``limit``, but no more than [api]max_limit."""
        wanted = self.one('limit')
        cap = self.backend.options.max_limit
        if wanted is None:
            return cap
        if not wanted.isascii() or not wanted.isdigit():
            raise Invalid('limit param must be an integer')
        return min(int(wanted), cap)

    def offset(self) -> int:
        """How many items the answer leaves out first, in lists that have ``offset``."""
        text = self.one('offset') or '0'
        # The pattern of the schema lets a line's end through.
        if not text.isascii() or not text.isdigit():
            raise Invalid('offset param must be an integer')
        return min(int(text), LAST)


class Paths:
    """A table of routes as requests are matched with it: ``rows`` of each 'METHOD path'.

    The order of the table says nothing: a path that names a segment goes before one that takes any there.
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
        """What a path says and the rows that it may mean."""
        # A suffix that names the format is no part of the path, unless it can be the end of an id.
        for each in (path, path.removesuffix('.json')):
            found = self.mapper.match(each, {'REQUEST_METHOD': method})
            if found:
                return found, self.rows[found.pop('row_key')]
        return None

    def allowed(self, path: str) -> list[str]:
        """The methods that a path has; none: there is no such path."""
        return [method for method in self.methods if self.match(path, method) is not None]


def _segments(route: Route) -> list[bool]:
    """The sort key of a path: for each segment whether it takes anything."""
    return ['{' in segment for segment in route.path.split('/')]


# Who asks; or the answer to a request that doesn't say.
Identify = Callable[[WSGIEnvironment], RequestContext | webob.Response]


class Dispatcher:
    """The WSGI application behind the check of tokens: /v2.1, /v2 (the 2.0 API) and /kilonova/v1 (``own``), of which
    only the first has microversions."""

    def __init__(self, paths: Paths, own: Paths, backend: Backend, policy: Policy, identify: Identify) -> None:
        self._backend, self._policy, self._identify = backend, policy, identify
        self._paths, self._own = paths, own

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
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

    def _answer(self, request: webob.Request, ctxt: RequestContext, version: int, relaxed: bool,
                path: dict[str, str], rows: list[Route]) -> webob.Response:
        project = path.pop('project_id', None)
        if project is not None and project != ctxt.project_id:
            raise Invalid(f"Malformed request URL: URL's project_id '{project}' doesn't match Context's project_id "
                          f"'{ctxt.project_id}'")
        body = _body(request) if request.method in ('POST', 'PUT') else None
        route = self._choose(rows, body, version)
        call = Call(ctxt=ctxt, version=version, route=route, path=path, query=_query(request), body=body,
                    links=Links(request, project, self._backend.options.compute_link_prefix), backend=self._backend,
                    policy=self._policy, application_url=request.application_url)
        route.query.check(call.query, version)
        if route.body is not None:
            call.body = route.body.check(body, version, relaxed=relaxed)
        if route.server:
            call.found = find_server(self._backend, ctxt, path['server_id'], purpose=route.server, version=version,
                                     for_services=route.for_services)
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
    """What isn't below /kilonova/v1 is a fault: 404, or 405 where other methods are ``allowed``."""
    if not allowed:
        return faults.fault(404, faults.NOT_FOUND)
    response = faults.fault(405, f"{environ['REQUEST_METHOD'][:16]} is not allowed here, only {', '.join(allowed)}")
    response.headers['Allow'] = ', '.join(allowed)
    return response


def _version(request: webob.Request, is_legacy: bool, headers: list[tuple[str, str]]) -> int:
    """The microversion; ``headers`` get what the answer says about it."""
    version = versions.MIN
    if not is_legacy:
        # What is asked for is echoed even when it is refused.
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
    """The version asked for, as far as a header may repeat it."""
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
    """The JSON of a request, checked for what no column and no number of ours can hold."""
    # Letter by letter, as in the field.
    kind = request.content_type or ''
    if kind not in ACCEPTED_TYPES and kind not in UNSAID_TYPES:
        raise UnsupportedType
    data = request.body
    if not data or kind not in ACCEPTED_TYPES:
        # As the field has it: a body of an unsaid type is no body.
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
    """Too large a number would become the infinity that JSON has no word for."""
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _check_depth(body: Json) -> None:
    """What is nested deeper than any request of ours needs could be read here, and not by whoever gets it next."""
    floor = [body]
    for _ in range(MOST_FLOORS):
        floor = [item for each in floor if isinstance(each, (dict, list))
                 for item in (each.values() if isinstance(each, dict) else each) if isinstance(item, (dict, list))]
        if not floor:
            return
    raise ValueError('nested too deep')


def _check_text(value: Json) -> None:
    """Escapes may make text that no database takes: lone surrogates (an encoding error) and NUL."""
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
    # As in the field answers without a body, 204 included, name a type, too.
    if reply.text is not None:
        return webob.Response(status=status, headerlist=list(reply.headers), body=reply.text.encode())
    response = webob.Response(status=status, headerlist=[*reply.headers, ('Content-Type', 'application/json')])
    if reply.body is not None:
        response.body = json.dumps(reply.body).encode()
    elif status != 204:
        response.content_length = 0
    return response
