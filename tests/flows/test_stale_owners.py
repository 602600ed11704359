"""An owner stands still for longer than its lease, another one ends its operation, and it goes on: nothing changes.

It stands still right before each message, each request to Placement and each transaction of the flow in turn, and sends
what it was about to send when hosts know nothing of the operation any more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kilonova.db import engine
from tests.fixtures.cloud import Cloud
from tests.flows.cases import CASES, Case, Subjects, check, everything
from tests.flows.test_fencing import by, forget_keys, go_on, stand_still, until


class Standstill:
    """The first conductor stands still before the act ``number`` of its worker, until the second has ended all."""

    def __init__(self, cloud: Cloud, number: int) -> None:
        self._cloud, self._number = cloud, number
        self._first, self._second = cloud.conductors
        self._standing = False
        # Workers whose message is being answered, which happens in the same thread here.
        self._asking: set[int] = set()
        self.seen: list[str] = []
        self.after: dict[str, Any] = {}
        cloud.on_message = self._on_message
        cloud.placement.before = lambda method, path: self.at(f'{method} {path}')

    def _on_message(
        self, kind: str, topic: str, host: str | None, method: str, args: dict[str, Any], deliver: Callable[[], Any]
    ) -> Any:
        worker = threading.get_ident()
        if kind == 'cast' or worker in self._asking:
            return deliver()
        self.at(method)
        self._asking.add(worker)
        try:
            return deliver()
        finally:
            self._asking.discard(worker)

    def _is_over(self) -> bool:
        self._second.runner.sweep()
        return not self._cloud.rows()

    def at(self, what: str) -> None:
        """An act is about to happen."""
        if not by(self._first) or threading.get_ident() in self._asking or self._standing:
            return
        self.seen.append(what)
        if len(self.seen) - 1 == self._number:
            self._standing = True
            self._stand()
            self._standing = False

    def _stand(self) -> None:
        stand_still(self._cloud, self._first)
        until(self._is_over)
        until(self._second.runner.idle)
        forget_keys(self._cloud)
        self.after = everything(self._cloud)
        go_on(self._first)


@contextlib.contextmanager
def first_alone(cloud: Cloud) -> Iterator[None]:
    """What wakes all conductors wakes the first one."""
    second = cloud.conductors.pop()
    try:
        yield
    finally:
        cloud.conductors.append(second)


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {name: (before[name], value) for name, value in now.items() if value != before[name]}


@pytest.fixture
def two(ground: Cloud) -> Iterator[Cloud]:
    """The second conductor takes only what it is told to."""
    ground.start_conductor(sweeps=False)
    yield ground
    ground.on_message = ground.placement.before = None
    first = ground.conductors.pop(0)
    first.stop(5)


# Where each act is one of its own kind; of the others each second is enough.
EACH = ('boot', 'resize', 'delete')


@pytest.mark.parametrize('name', CASES)
def test_a_living_owner_whose_lease_ended(two, monkeypatch, name):
    case, number, happened = CASES[name], 0, True
    subjects = Subjects(two, case)
    while happened:
        happened = _stands_still(two, monkeypatch, case, subjects.next(), number)
        subjects.end()
        number += case.stride if name in EACH or case.variant else 2
    assert number > 2, f'{name} does only {number} things'


def _stands_still(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, case: Case, server: str | None, number: int) -> bool:
    still, write = Standstill(cloud, number), engine.Database.write

    @contextlib.contextmanager
    def writes(database: engine.Database) -> Iterator[Any]:
        still.at(f'writes to {database.name}')
        with write(database) as conn:
            yield conn

    with monkeypatch.context() as patch:
        patch.setattr(engine.Database, 'write', writes)
        with first_alone(cloud):
            server = case.act(cloud, server)
            cloud.settle()
    cloud.on_message = cloud.placement.before = None
    if still.after:
        changed = differences(still.after, everything(cloud))
        assert not changed, f'{still.seen[number]} came late and changed {changed}'
    check(cloud, case, server, case.good)
    return bool(still.after)
