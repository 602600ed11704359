"""Reports of hosts are written together, and hosts that counted as down are asked to make a call."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.conductor.reports import Reports
from kilonova.db.queries import services


class Hosts:
    """A client of computes."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def report_again(self, ctxt: Any, server: str) -> None:
        self.asked.append(server)


def test_who_counted_as_down_or_is_unknown_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction has ended by then: what the host reads is what was written."""
    written: list[Any] = []
    database = SimpleNamespace(write=lambda: contextlib.nullcontext('connection'))

    def report_together(*arguments: Any) -> dict[int, bool]:
        written.append(arguments)
        return {1: True, 2: False}

    monkeypatch.setattr(services, 'report_together', report_together)
    hosts = Hosts()
    Reports(SimpleNamespace(main=lambda: database), hosts, 60).write({1: 'silent', 2: 'heard', 3: 'unknown'})
    assert written == [('connection', [1, 2, 3], 60)]
    assert hosts.asked == ['silent', 'unknown']
