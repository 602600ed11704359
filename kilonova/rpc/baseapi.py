"""What every daemon with an RPC server answers (namespace ``baseapi``): that it is there.

    ping(transport, 'compute', 'gpu1', ctxt)        # raises Unanswered when nobody does
"""
from __future__ import annotations

from typing import Any

from kilonova.context import RequestContext
from kilonova.rpc.interface import Interface, Transport, call


class BaseApi(Interface):
    """Every daemon with an RPC server serves it, beside its own interfaces."""

    topic = 'any'
    namespace = 'baseapi'
    version = '1.1'

    @call('1.0')
    def ping(self, ctxt: RequestContext, arg: Any) -> Any: ...

    @call('1.1')
    def get_backdoor_port(self, ctxt: RequestContext) -> Any: ...


class Base:
    """The server's side, the same for all."""

    def __init__(self, service: str) -> None:
        self._service = service

    def ping(self, ctxt: RequestContext, arg: Any) -> Any:
        """Who answers, and what was sent."""
        return {'service': self._service, 'arg': arg}

    def get_backdoor_port(self, ctxt: RequestContext) -> Any:
        """None: there is no backdoor."""
        return


def ping(transport: Transport, topic: str, server: str | None, ctxt: RequestContext) -> None:
    """Ask a daemon (``server`` None: any of the topic) whether it is there; Unanswered when none is."""
    transport.send('call', topic, BaseApi.namespace, server, '1.0', ctxt, 'ping', {'arg': None})
