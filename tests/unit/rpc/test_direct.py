"""The transport of clouds in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import concurrency
from kilonova.context import get_admin_context
from kilonova.rpc.transport import DirectTransport


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
