from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kilonova.conductor.flows.network import port_vifs
from kilonova.conductor.work import Work
from tests.fixtures.neutron import FakeNeutron
from tests.fixtures.servers import put_vifs
from tests.unit.conductor.site import SERVER, Site


@pytest.fixture
def neutron(site: Site) -> FakeNeutron:
    """The network service of the cloud, with a network."""
    made = FakeNeutron(hosts={'gpu1'})
    made.add_network('private', 'demo', cidr='10.2.0.0/24')
    site.env._networks = made.client
    return made


@pytest.fixture
def ports(site: Site, neutron: FakeNeutron) -> list[str]:
    """The ids of three ports that are bound to the server on gpu1, sorted."""
    (network,) = neutron.networks
    fields = {'device_id': SERVER, 'device_owner': 'compute:zone0', 'binding:host_id': 'gpu1'}
    return sorted(neutron.add_port(network, 'demo', **fields) for _ in range(3))


@pytest.fixture
def begin(site: Site, ports: list[str]) -> Callable[..., Work[Any]]:
    """Put the server with its three interfaces, and accept an operation of the kind: its work."""

    def made(kind: str, args: dict[str, Any] | None = None, **values: Any) -> Work[Any]:
        site.put('active', hostname='web', **values)
        site.accept(kind, args)
        work = site.work()
        found = sorted(site.env.networks.ports(device_id=SERVER), key=lambda port: port.id)
        vifs = port_vifs.described(work, found, ports, {}, is_new=False)
        with site.cell.write() as conn:
            put_vifs(conn, SERVER, vifs)
        work.changed()
        return work

    return made
