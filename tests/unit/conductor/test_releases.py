"""Pending releases: rows that may wait for their host for long, whatever was upgraded meanwhile."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kilonova.conductor.flows import beside
from kilonova.rpc.interface import VersionCapError


def test_what_a_message_does_not_take_any_more_is_left_out() -> None:
    """A row that an older release wrote for a dead host is still done when that host is back."""
    asked: list[tuple[str, str, dict[str, Any]]] = []
    work: Any = SimpleNamespace(
        ctxt=None, ask=lambda host, method, **kwargs: asked.append((host, method, kwargs)),
        args={'host': 'gpu1', 'method': 'terminate_instance', 'kwargs': {'instance': 'i', 'bdms': []}})
    beside.release(work)
    assert asked == [('gpu1', 'terminate_instance', {'instance': 'i'})]


def test_a_host_of_the_release_before_has_nothing_of_a_new_message_to_give_back() -> None:
    """Asking it again, or later, would not end before it is upgraded, and then there is nothing either."""
    def ask(host: str, method: str, **kwargs: Any) -> None:
        raise VersionCapError(version='6.13', cap='6.12')
    # Whatever else it does needs more of the work than this one has.
    beside.ask_to_undo(SimpleNamespace(ask=ask, instance_uuid='i'), 'gpu1', 'undo_build')  # type: ignore[arg-type]
