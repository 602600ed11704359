"""Send requests that only the server's host can answer. The API request waits for the reply to the RPC call."""

from __future__ import annotations

from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import ServerRef, check_ready
from kilonova.context import RequestContext
from kilonova.db.queries import instances, services
from kilonova.errors import Conflict, Unavailable
from kilonova.objects import Instance
from kilonova.rpc.interface import VersionCapError


class ServerHostDown(Conflict):
    """Error 409: the compute service of the server's host is down, so it could not reply to an RPC call."""

    msg_fmt = 'Service is unavailable at this time.'


class HostTooOld(Conflict):
    """Error 409: the compute service of the server's host does not support this RPC method yet."""

    msg_fmt = 'The compute service of the server is too old for this request.'


def ask(backend: Backend, ctxt: RequestContext, server: ServerRef, method: str, **kwargs: Any) -> Any:
    """Call an RPC method of the server's host and return its result.

    ``server`` must have all columns (``find_server`` with the purpose WORK).

    Raises:
        InstanceNotReady: The server has no host yet (error 409).
        ServerHostDown: The host's compute service is down (error 409).
        HostTooOld: The host's compute service does not support the method (error 409).
        Unavailable: This process has no RPC client for hosts.
    """
    check_ready(server)
    host = server.row['host']
    with server.cell.read() as conn:
        up = services.host_is_up(conn, host, 'nova-compute', backend.options.service_down_time)
    if not up:
        raise ServerHostDown
    if backend.compute is None:
        raise Unavailable
    try:
        return getattr(backend.compute, method)(ctxt, server=host, instance=instance(ctxt, server.row), **kwargs)
    except VersionCapError as error:
        raise HostTooOld from error


def instance(ctxt: RequestContext, row: dict[str, Any]) -> Instance:
    """Return the server as an Instance for an RPC message. ``row`` is the result of ``instances.get``."""
    return Instance.from_row(ctxt, *instances.split(row))
