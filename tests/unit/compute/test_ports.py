"""How a guest waits for its ports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import errors
from kilonova.compute import ports
from kilonova.compute.ports import HostPorts

SERVER: Any = SimpleNamespace(
    uuid='u', vifs=[SimpleNamespace(id='p1', active=False), SimpleNamespace(id='p2', active=True)]
)


class Clock:
    """Time passes while somebody waits for an event, and none comes. ``asked``: the times of the queries to Neutron,
    ``checked``: those of the checks whether the operation still stands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked, self.checked = 0.0, list[float](), list[float]()
        monkeypatch.setattr(ports.time, 'monotonic', lambda: self.now)

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def clear(self) -> None:
        pass

    @contextlib.contextmanager
    def heard(self, uuid: str) -> Iterator[Any]:
        yield self

    def check(self) -> None:
        self.checked.append(self.now)

    def ports(self, device_id: str) -> list[Any]:
        self.asked.append(self.now)
        return [SimpleNamespace(id='p1', status='DOWN', active=False)]

    def run(self, timeout: float) -> None:
        client: Any = self
        made = HostPorts(client, timeout)
        made._waiting = self  # type: ignore[assignment]
        wait = made.plugged(SERVER, self.check)
        assert wait is not None
        wait()


def test_neutron_is_asked_less_and_less_often_and_a_cancel_is_seen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled operation ends within five seconds, however long the pause between two queries is."""
    clock = Clock(monkeypatch)
    with pytest.raises(errors.VirtualInterfaceCreateException, match='port p1 is DOWN, not ACTIVE after 100 s'):
        clock.run(100)
    assert clock.asked == [5, 15, 35, 75, 100]
    gaps = [after - before for before, after in zip([0.0, *clock.checked], clock.checked, strict=False)]
    assert max(gaps) == ports.LOOK and clock.now == 100


def test_a_guest_does_not_wait_for_its_ports_unless_a_timeout_is_set() -> None:
    client: Any = Silent()
    assert HostPorts(client).plugged(SERVER, lambda: None) is None


def test_a_short_timeout_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(errors.VirtualInterfaceCreateException):
        clock.run(2)
    assert clock.asked == [2]


class Silent:
    """Neutron, while it does not answer."""

    def ports(self, device_id: str) -> list[Any]:
        raise errors.Unanswered(who='Neutron', reason='away')


@pytest.mark.parametrize(
    ('client', 'why'),
    [(None, r'no account is set in \[neutron\] on this host'), (Silent(), 'away')],
)
def test_a_guest_whose_ports_can_not_be_read_is_told_why(
    monkeypatch: pytest.MonkeyPatch, client: Any, why: str
) -> None:
    """The network may be there, but nobody says so. Only the port that is not active yet is named."""
    clock = Clock(monkeypatch)
    made = HostPorts(client, 10)
    made._waiting = clock  # type: ignore[assignment]
    wait = made.plugged(SERVER, clock.check)
    assert wait is not None
    with pytest.raises(errors.VirtualInterfaceCreateException, match=f'port p1 not ACTIVE after 10 s: .*{why}'):
        wait()
