"""Questions that only a server's host can answer: asked by one call, answered in the request."""
from __future__ import annotations

from typing import Any

from kilonova.api.services.accept import Found, check_ready
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import instances, services
from kilonova.errors import Conflict, Unavailable
from kilonova.objects import Instance
from kilonova.rpc.interface import VersionCapError


class HostDown(Conflict):
    """The host's service is down: nobody would answer."""

    msg_fmt = 'Service is unavailable at this time.'


class HostTooOld(Conflict):
    """The host's service doesn't know the question yet."""

    msg_fmt = 'The compute service of the server is too old for this request.'


def ask(backend: Backend, ctxt: RequestContext, server: Found, method: str, **kwargs: Any) -> Any:
    """The host's answer about ``server`` (found for WORK). InstanceNotReady, HostDown, HostTooOld: all 409."""
    check_ready(server)
    host = server.row['host']
    with server.cell.read() as conn:
        up = services.host_is_up(conn, host, 'nova-compute', backend.options.service_down_time)
    if not up:
        raise HostDown
    if backend.compute is None:
        raise Unavailable
    try:
        return getattr(backend.compute, method)(ctxt, server=host, instance=instance(ctxt, server.row), **kwargs)
    except VersionCapError as error:
        raise HostTooOld from error


def instance(ctxt: RequestContext, row: dict[str, Any]) -> Instance:
    """The object that travels, from a row of ``instances.get``."""
    return Instance.from_row(ctxt, *instances.split(row))
