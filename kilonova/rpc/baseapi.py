"""The RPC methods that each daemon with an RPC server answers (namespace ``baseapi``), to check that it is running.

Example::

    ping(transport, 'compute', 'gpu1', ctxt)        # raises Unanswered if no daemon answers
"""

from __future__ import annotations

from typing import Any

from kilonova.context import RequestContext
from kilonova.rpc.interface import ClientTransport, RpcInterface, call


class BaseApi(RpcInterface):
    """The interface that each daemon with an RPC server serves in addition to its own interfaces."""

    topic = 'any'
    namespace = 'baseapi'
    version = '1.1'

    @call('1.0')
    def ping(self, ctxt: RequestContext, arg: Any) -> Any:
        """Return the name of the service, and ``arg`` unchanged."""

    @call('1.1')
    def get_backdoor_port(self, ctxt: RequestContext) -> Any:
        """Return the port of an eventlet backdoor, which is always None because no daemon has a backdoor."""


class BaseEndpoint:
    """The implementation of ``BaseApi``, which all daemons use. ``service`` is the name of the service."""

    def __init__(self, service: str) -> None:
        self._service = service

    def ping(self, ctxt: RequestContext, arg: Any) -> Any:
        """Return a dict with the name of the service and the received argument."""
        return {'service': self._service, 'arg': arg}

    def get_backdoor_port(self, ctxt: RequestContext) -> Any:
        """Return None, because no daemon has a backdoor."""
        return


def ping(transport: ClientTransport, topic: str, server: str | None, ctxt: RequestContext) -> None:
    """Check that the daemon of a topic on the host ``server`` answers. If ``server`` is None, any daemon may answer.

    Raises Unanswered if no daemon answers.
    """
    transport.send('call', topic, BaseApi.namespace, server, '1.0', ctxt, 'ping', {'arg': None})
