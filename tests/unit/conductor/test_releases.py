"""Pending releases: rows that may wait for their host for long, whatever was upgraded meanwhile."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kilonova.conductor.flows import beside


def test_what_a_message_does_not_take_any_more_is_left_out() -> None:
    """A row that an older release wrote for a dead host is still done when that host is back."""
    asked: list[tuple[str, str, dict[str, Any]]] = []
    work: Any = SimpleNamespace(
        ctxt=None, ask=lambda host, method, **kwargs: asked.append((host, method, kwargs)),
        args={'host': 'gpu1', 'method': 'terminate_instance', 'kwargs': {'instance': 'i', 'bdms': []}})
    beside.release(work)
    assert asked == [('gpu1', 'terminate_instance', {'instance': 'i'})]
