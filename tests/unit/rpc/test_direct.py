"""The transport of clouds in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import concurrency, objects
from kilonova.context import RequestContext, get_admin_context
from kilonova.rpc.interface import Client, RpcInterface, call
from kilonova.rpc.transport import DirectTransport


class Keeper(RpcInterface):
    """Something that has a tag."""

    topic, version = 'keeper', '1.0'

    @call('1.0')
    def find(self, ctxt: RequestContext, tag: objects.Tag) -> Any: ...


def test_casts_sent_at_the_same_time_are_all_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that another cast hid was not waited for: a test's cloud looked settled while a host still worked."""
    goes_on, ended = threading.Event(), []
    transport = DirectTransport(on_message=lambda *args: ended.append(goes_on.wait(10)))
    spawn, inner = concurrency.spawn, []

    def beside(func: Callable, *args: Any, **kwargs: Any) -> threading.Thread:
        thread = spawn(func, *args, **kwargs)
        if not inner:
            inner.append(True)
            transport.send('cast', 'compute', None, 'gpu1', '1.0', get_admin_context(), 'second', {})
        return thread

    monkeypatch.setattr(concurrency, 'spawn', beside)
    transport.send('cast', 'compute', None, 'gpu1', '1.0', get_admin_context(), 'first', {})
    assert sorted(thread.name for thread in transport.casts) == ['cast-first', 'cast-second']
    goes_on.set()
    for thread in transport.casts:
        thread.join(10)
    assert ended == [True, True]


def test_objects_have_the_context_of_who_received_them() -> None:
    """A conductor's context has a database: an object of an answer that had it would write there itself."""
    received: list[Any] = []

    class Keeping:
        def find(self, ctxt: RequestContext, tag: objects.Tag) -> Any:
            received.append((ctxt, tag))
            return [tag]

    def prepare(topic: str, server: str, ctxt: RequestContext) -> None:
        ctxt.cell = 'database'

    transport = DirectTransport(objects.base.Serializer(), prepare=prepare)
    transport.serve('keeper', 'one', [(Keeper, Keeping())]).start()
    ctxt, sent = get_admin_context(), objects.Tag(tag='gold')
    (answered,) = Client(Keeper, transport).find(ctxt, tag=sent)
    ((keepers, given),) = received
    assert (keepers.cell, given._context, given.tag) == ('database', keepers, 'gold')
    assert answered is not given
    assert (answered._context, answered.tag, ctxt.cell) == (ctxt, 'gold', None)
