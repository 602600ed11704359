"""Test which accelerators guests get for their requests in Cyborg, and a host without an account for Cyborg."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova import errors
from kilonova.accel.client import AcceleratorRequestBindingFailed
from kilonova.accel.profile import DeviceProfileError
from kilonova.accel.request import AcceleratorRequest
from kilonova.compute import accelerators as module
from kilonova.compute.accelerators import HostAccelerators
from tests.unit.compute.cell import flavor

FPGA = flavor()
FPGA.extra_specs = {'accel:device_profile': 'fpga'}


def test_the_option_that_is_missing_is_named():
    """The host can't know whether the server has devices, so it says so and does not start the guest without them."""
    accelerators = HostAccelerators(None, 0)
    assert not accelerators.available
    with pytest.raises(errors.Unanswered, match=r'no account is set in \[cyborg\] or \[keystone_authtoken\]'):
        accelerators.devices(FPGA, 'u')
    with pytest.raises(AcceleratorRequestBindingFailed, match=r'not bound after 0 s: .* no account is set'):
        accelerators.await_bound(FPGA, 'u', lambda: None)


def test_servers_without_accelerators_run_there():
    accelerators = HostAccelerators(None, 0)
    assert accelerators.devices(flavor(), 'u') == accelerators.await_bound(flavor(), 'u', lambda: None) == []


def arq(number: int, state: str = 'Bound', kind: str = 'PCI') -> AcceleratorRequest:
    info = {'domain': '0', 'bus': '21', 'device': str(number), 'function': '0'}
    return AcceleratorRequest(f'r{number}', state, 'fpga', number, 'u', 'gpu1', 'rp', kind, None, info)


class Cyborg:
    """Replace the client, the clock and the events. Time passes while a build waits for an event, and no event comes.

    ``requests`` are what Cyborg has; None while a binding is pending. ``wanted`` are the amounts of the profile's
    groups, or the error of a query. ``asked`` has the queries.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[AcceleratorRequest] | None = []
        self.wanted: list[int] | Exception = [1]
        self.silent, self.now = False, 0.0
        self.asked: list[tuple[str, float]] = []
        monkeypatch.setattr(module.time, 'monotonic', lambda: self.now)
        monkeypatch.setattr(module, 'Waiting', lambda: self)

    def profile(self, name: str) -> Any:
        self.asked.append((f'profile {name}', self.now))
        if isinstance(self.wanted, Exception):
            raise self.wanted
        groups = [SimpleNamespace(resources={'FPGA': amount}) for amount in self.wanted]
        return SimpleNamespace(request_groups=lambda: groups)

    def of_instance(self, holder: str) -> list[AcceleratorRequest]:
        self.asked.append((f'requests of {holder}', self.now))
        assert self.requests is not None
        return self.requests

    def resolved(self, holder: str) -> list[AcceleratorRequest] | None:
        self.asked.append((f'requests of {holder}', self.now))
        if self.silent:
            raise errors.Unanswered(who='Cyborg', reason='away')
        return self.requests

    # The events.
    def tell(self, about: str) -> bool:
        return False

    @contextlib.contextmanager
    def heard(self, about: str) -> Iterator[Any]:
        assert about == 'u'
        yield self

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def clear(self) -> None:
        """Do nothing, because no event comes."""


@pytest.fixture
def cyborg(monkeypatch: pytest.MonkeyPatch) -> Cyborg:
    return Cyborg(monkeypatch)


def host(cyborg: Cyborg, timeout: float = 12) -> HostAccelerators:
    client: Any = cyborg
    return HostAccelerators(client, timeout)


# What a fault says of the number of requests.
HAS = 'but the number of its accelerator requests in Cyborg is'
GOOD = ['0000:21:01.0', '0000:21:02.0']
PORTS = ('p1', 'p2')


@pytest.mark.parametrize(
    ('found', 'wanted', 'ports', 'said'),
    [
        ([arq(1)], [1], (), GOOD[:1]),
        ([arq(2), arq(1)], [1, 1], (), GOOD),
        ([arq(2), arq(1)], [2], (), GOOD),
        ([arq(1), arq(2)], [1], ('p1',), GOOD),
        ([arq(1), arq(2)], None, PORTS, GOOD),
        ([arq(1), arq(2, kind='TEST_PCI')], [2], (), GOOD[:1]),
        ([], [1], (), 'it has no accelerator requests'),
        ([arq(1, 'BindFailed'), arq(2), arq(3, 'Initial')], [3], (), 'r1 is BindFailed, r3 is Initial'),
        (
            [arq(1)],
            [1, 2],
            (),
            f'its device profile fpga asks for 3 accelerators, {HAS} 1',
        ),
        (
            [arq(1), arq(2)],
            [1],
            (),
            f'its device profile fpga asks for 1 accelerators, {HAS} 2',
        ),
        (
            [arq(1)],
            [1],
            PORTS,
            f'its device profile fpga and its 2 ports ask for 3 accelerators, {HAS} 1',
        ),
        (
            [arq(1)],
            None,
            PORTS,
            f'its 2 ports ask for 2 accelerators, {HAS} 1',
        ),
    ],
)
def test_a_guest_gets_as_many_accelerators_as_its_profile_and_its_ports_ask_for(
    cyborg: Cyborg, found: list[AcceleratorRequest], wanted: list[int] | None, ports: tuple[str, ...], said: Any
) -> None:
    cyborg.requests, cyborg.wanted = found, wanted or []
    server = flavor() if wanted is None else FPGA
    about: dict[str, Any] = {'has_ports': bool(ports), 'ports': ports}
    for get in (
        lambda: host(cyborg).devices(server, 'u', **about),
        lambda: module.attached(host(cyborg).await_bound(server, 'u', lambda: None, **about), 'u'),
    ):
        if isinstance(said, list):
            assert [device.address for device in get()] == said
        else:
            with pytest.raises(AcceleratorRequestBindingFailed) as caught:
                get()
            assert str(caught.value) == f'Failed to bind accelerator requests for instance u: {said}'


def test_the_number_is_not_checked_if_the_profile_no_longer_exists(
    cyborg: Cyborg, caplog: pytest.LogCaptureFixture
) -> None:
    cyborg.requests, cyborg.wanted = [arq(1), arq(2)], DeviceProfileError(name='fpga', msg='gone')
    with caplog.at_level(logging.WARNING):
        assert [device.address for device in host(cyborg).devices(FPGA, 'u')] == GOOD
    assert 'cannot check whether u should have 2 accelerator requests' in caplog.text


@pytest.mark.parametrize('wanted', [[1], DeviceProfileError(name='fpga', msg='gone')])
def test_a_profile_is_asked_for_once_a_minute(cyborg: Cyborg, wanted: Any) -> None:
    cyborg.requests, cyborg.wanted = [arq(1)], wanted
    made = host(cyborg)
    for cyborg.now in (0.0, 59.9, 60.0, 119.0, 120.0):
        made.devices(FPGA, 'u')
    assert [when for what, when in cyborg.asked if what == 'profile fpga'] == [0.0, 60.0, 120.0]


@pytest.mark.parametrize(('silent', 'why'), [(False, ''), (True, ': Cyborg .*away')])
def test_a_build_waits_for_a_binding_until_its_time_is_up(cyborg: Cyborg, silent: bool, why: str) -> None:
    cyborg.requests, cyborg.silent = None, silent
    checked: list[float] = []
    with pytest.raises(
        AcceleratorRequestBindingFailed, match=f'instance u: the requests are not bound after 12 s{why}'
    ):
        host(cyborg).await_bound(FPGA, 'u', lambda: checked.append(cyborg.now))
    assert checked == [0.0, 5.0, 10.0, 12.0]
    assert cyborg.asked == [('requests of u', when) for when in checked]


def test_a_cancelled_build_no_longer_waits(cyborg: Cyborg) -> None:
    cyborg.requests = None

    def check() -> None:
        if cyborg.now:
            raise errors.Cancelled('by the user')

    with pytest.raises(errors.Cancelled):
        host(cyborg).await_bound(FPGA, 'u', check)
    assert cyborg.now == 5.0


def test_a_binding_that_is_complete_at_the_second_look_is_enough(cyborg: Cyborg) -> None:
    cyborg.requests, found = None, [arq(1)]

    def check() -> None:
        cyborg.requests = found if cyborg.now else None

    assert host(cyborg).await_bound(FPGA, 'u', check) == found and cyborg.now == 5.0
