"""Ports of a server that leaves its host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.conductor.flows.network import port_moves
from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import SERVER, Site


def test_all_ports_leave_the_host_though_one_was_deleted(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    """The server keeps them, and forgets the one that was deleted."""
    work = begin('shelve_offload')
    del neutron.ports[ports[0]]
    assert neutron.bound() == [f'gpu1 {SERVER}'] * 2
    port_moves.off_host(work)
    assert neutron.bound() == [] and {port['device_id'] for port in neutron.ports.values()} == {SERVER}
    assert [(vif.id, vif.type) for vif in work.vifs()] == [(port_id, 'unbound') for port_id in ports[1:]]
