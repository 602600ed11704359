"""Hosts with a network card, for tests of ports that are its functions (SR-IOV)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import libvirt

from tests.fixtures.cloud import PROJECT, SPEC, Cloud
from tests.fixtures.hosts import sriov_nic
from tests.functional.test_ports import HOSTS, Networked, broken

PHYSICAL = '0000:81:00.0'
VIRTUAL = ('0000:81:00.2', '0000:81:00.3')
NICS = ['{"vendor_id": "8086", "address": "0000:81:00.*", "physical_network": "physnet1"}', SPEC]


class Carded(Networked):
    """Each host has one network card with two virtual functions in physnet1, and a GPU."""

    def __init__(
        self,
        make_cloud: Callable[..., Cloud],
        nics: Sequence[str] = NICS,
        hosts: Sequence[str] = HOSTS,
        switchdev: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            make_cloud,
            devices={
                host: sriov_nic(
                    PHYSICAL, VIRTUAL, f'52:54:00:00:00:0{number}', serial=f'MT{number}', switchdev=switchdev
                )
                for number, host in enumerate(hosts)
            },
            specs={host: list(nics) for host in hosts},
            **options,
        )
        self.wire = self.neutron.add_network(
            'wire',
            PROJECT,
            cidr='10.5.0.0/24',
            **{'provider:network_type': 'vlan', 'provider:physical_network': 'physnet1'},
        )

    def port(self, vnic_type: str = 'direct', **fields: Any) -> str:
        """One that belongs to nobody, with a key of its owner's in its profile."""
        return self.neutron.add_port(
            self.wire, PROJECT, **{'binding:vnic_type': vnic_type, 'binding:profile': {'note': 'mine'}, **fields}
        )

    def with_port(self, vnic_type: str = 'direct', **more: Any) -> tuple[str, str]:
        """A server with one such port; both."""
        port = self.port(vnic_type)
        return self.boot({'port': port}, **more), port

    def cards(self, server: str, host: str | None = None) -> list[ElementTree.Element]:
        found: list[ElementTree.Element] = ElementTree.fromstring(self.cloud.xml(server, host)).findall(
            'devices/interface'
        )
        return found

    def defined(self, server: str) -> list[str | None]:
        """The types of the cards and devices that the guest's next start gives it: one that runs with libvirt's test
        driver gets nothing before, and gives nothing up."""
        guest = self.cloud.computes[self.cloud.host_of(server)].host.driver.guests._libvirt.find(server)
        definition = ElementTree.fromstring(guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE))
        return [one.get('type') for kind in ('interface', 'hostdev') for one in definition.findall(f'devices/{kind}')]

    def profile(self, port: str) -> dict[str, Any]:
        found: dict[str, Any] = self.neutron.ports[port]['binding:profile']
        return found

    def assert_at(self, server: str, port: str, host: str) -> None:
        """The server is there, with a function of that host's card that its port names, and that its guest has."""
        self.cloud.assert_clean()
        assert self.cloud.host_of(server) == host
        profile = self.profile(port)
        assert self.neutron.ports[port]['binding:host_id'] == host
        assert profile['pf_mac_address'] == f'52:54:00:00:00:0{HOSTS.index(host)}'
        (vif,) = self.cache(server)
        assert vif['profile'] == profile
        assert vif['type'] == ('ovs' if vif['vnic_type'] == 'remote-managed' or 'capabilities' in profile else 'hw_veb')
        (card,) = self.cards(server)
        address = card.find('source/address')
        assert address is not None
        assert f'0000:81:00.{address.get("function", "").removeprefix("0x")}' == profile['pci_slot']

    def gone(self, server: str, port: str) -> None:
        self.delete(server)
        self.assert_empty(kept=1)
        assert self.profile(port) == {'note': 'mine'}


FAILED: list[str] = []


def once(guests: Any) -> Callable[..., None]:
    """A ``spawn`` in place of that of ``guests``: the first call fails, of all that were made so."""
    spawn, FAILED[:] = guests.spawn, []

    def fail(*args: Any, **kwargs: Any) -> None:
        if not FAILED:
            FAILED.append('once')
            broken()
        spawn(*args, **kwargs)

    return fail


def live(carded: Carded, server: str) -> None:
    """A live migration, to its end."""
    carded.cloud.ok('POST', f'/servers/{server}/action', {'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
    carded.cloud.settle(kinds_left=('release',))
