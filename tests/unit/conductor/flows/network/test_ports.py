"""A port that a user attaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kilonova.clients.neutron.refusals import PortInUse
from kilonova.conductor.flows.network import ports as flow_ports
from kilonova.conductor.flows.network.requested_ports import RequestedPort
from tests.fixtures.neutron import FakeNeutron


def test_a_port_that_the_server_has_already_is_not_attached_again(
    neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    """The guest would get a second interface with the same MAC address."""
    work = begin('attach_interface')
    neutron.asked.clear()
    with pytest.raises(PortInUse, match=ports[1]):
        flow_ports.bind_one(work, RequestedPort('n', ports[1]))
    assert {method for method, _ in neutron.asked} == {'GET'}
