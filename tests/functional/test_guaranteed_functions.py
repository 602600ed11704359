"""Servers with SR-IOV ports that guarantee a bandwidth: the function is one of the card whose provider gives it,
wherever the server goes. Each host has two cards in one physical network, of two virtual functions and 1000 kbit/s
each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fixtures.cloud import SPEC, Cloud
from tests.fixtures.hosts import sriov_nic
from tests.fixtures.neutron import EGRESS
from tests.flows.cases import force_down
from tests.functional.carded import Carded
from tests.functional.test_ports import HOSTS, Networked, other

# {interface: address of the card}
CARDS = {'left0': '0000:81:00', 'right0': '0000:82:00'}
NICS = [f'{{"vendor_id": "8086", "address": "{card}.*", "physical_network": "physnet1"}}' for card in CARDS.values()]


class Site(Carded):
    def __init__(self, make_cloud: Callable[..., Cloud]) -> None:
        devices = [
            one
            for name, card in CARDS.items()
            for one in sriov_nic(f'{card}.0', [f'{card}.2', f'{card}.3'], f'52:54:00:00:00:{card[5:7]}', name=name[:-1])
        ]
        Networked.__init__(
            self, make_cloud, devices=dict.fromkeys(HOSTS, devices), specs={host: [*NICS, SPEC] for host in HOSTS}
        )
        self.wire = self.neutron.add_network(
            'wire',
            self.neutron.networks[self.network]['project_id'],
            cidr='10.5.0.0/24',
            **{'provider:physical_network': 'physnet1'},
        )
        self.names: dict[str, str] = {}
        for host in HOSTS:
            self.names |= {
                uuid: name for name, uuid in self.neutron.report(self.cloud.placement.client, host, cards=CARDS).items()
            }
            self.cloud.computes[host].node.update()
        self.cloud.settle()

    def wanting(self, kbits: int = 600, vnic_type: str = 'direct', *, is_flat: bool = False) -> str:
        port = self.port(vnic_type)
        self.neutron.guarantee(port, kbits, is_flat=is_flat)
        return port

    def at(self, server: str, port: str) -> str:
        """Where the port's function is, 'HOST CARD': Neutron, Placement, the ledger and the server agree."""
        self.cloud.assert_clean()
        profile, host = self.profile(port), self.cloud.host_of(server)
        said = profile['allocation']
        provider = said if isinstance(said, str) else next(iter(said.values()))
        agent, _, interface = self.names[provider].rpartition(':')
        assert agent == f'{host}:NIC Switch agent' and self.neutron.ports[port]['binding:host_id'] == host
        assert profile['pci_slot'].startswith(CARDS[interface])
        held = self.cloud.placement.client.get_allocations(server)['allocations']
        assert held[provider]['resources'][EGRESS] >= 600
        assert f'{host} {profile["pci_slot"]}' in self.cloud.owned(server)
        return f'{host} {interface}'


@pytest.fixture
def site(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.compute.ports.LOOK', 0.05)
    return Site(make_cloud)


def test_the_card_that_gives_the_bandwidth(site: Site) -> None:
    """Both forms and all types; what no card gives is refused, though functions are free, and of a card whose functions
    are others' nothing is taken, though its bandwidth is left."""
    made = [
        (site.boot({'port': port}), port)
        for port in (
            site.wanting(),
            site.wanting(is_flat=True),
            site.wanting(vnic_type='macvtap'),
            site.wanting(1000, 'direct-physical'),
        )
    ]
    assert sorted(site.at(*one) for one in made) == [f'{host} {card}' for host in HOSTS for card in CARDS]
    refused = site.boot({'port': site.wanting()}, status='ERROR')
    assert EGRESS in site.cloud.show(refused)['fault']['message']
    for server, _ in made:
        site.delete(server)
    force_down(site.cloud, 'gpu2', True)
    plain = site.boot(*({'port': site.port()} for _ in range(2)))
    (full,) = {
        site.profile(port['port_id'])['pci_slot'][:10]
        for port in site.cloud.ok('GET', f'/servers/{plain}/os-interface')['interfaceAttachments']
    }
    port = site.wanting()
    server = site.boot({'port': port})
    assert site.at(server, port) == f'gpu1 {next(name for name, card in CARDS.items() if card != full)}'
    # An attach looks at both, too.
    site.delete(server)
    server = site.boot({'uuid': site.network})
    site.cloud.ok('POST', f'/servers/{server}/os-interface', {'interfaceAttachment': {'port_id': port}})
    site.cloud.settle()
    # libvirt's test driver plugs nothing into a guest that runs.
    site.cloud.action(server, 'reboot', {'type': 'HARD'})
    assert CARDS[site.at(server, port).split()[1]] != full
    site.cloud.ok('DELETE', f'/servers/{server}/os-interface/{port}')
    site.cloud.settle()
    site.cloud.action(server, 'reboot', {'type': 'HARD'})
    assert not site.cloud.owned(server) and 'allocation' not in site.profile(port)
    site.cloud.assert_clean()


def test_wherever_it_goes(site: Site) -> None:
    """Of the other host's cards the one that isn't taken; a revert says what was there before, as does a failure."""
    force_down(site.cloud, 'gpu2', True)
    port = site.wanting()
    server = site.boot({'port': port})
    home = site.at(server, port)
    force_down(site.cloud, 'gpu2', False)
    force_down(site.cloud, 'gpu1', True)
    block = site.wanting()
    blocked = site.at(site.boot({'port': block}), block)
    force_down(site.cloud, 'gpu1', False)
    away = next(f'gpu2 {card}' for card in CARDS if f'gpu2 {card}' != blocked)
    cloud = site.cloud
    for action in ('migrate', 'revertResize', 'migrate', 'confirmResize', 'os-migrateLive', 'shelve', 'unshelve'):
        before = site.at(server, port) if action != 'unshelve' else None
        if action in ('os-migrateLive', 'unshelve'):
            # By another policy: its groups are others.
            site.neutron.guarantee(port, 700)
        cloud.action(server, action, {'host': None, 'block_migration': 'auto'} if action == 'os-migrateLive' else None)
        if action == 'migrate':
            assert cloud.status(server) == 'VERIFY_RESIZE' and site.at(server, port) == away, cloud.story(server)
        elif action == 'revertResize':
            assert site.at(server, port) == home, cloud.story(server)
        elif action == 'os-migrateLive':
            cloud.action(server, 'reboot', {'type': 'HARD'})
            assert before == away and cloud.host_of(server) == 'gpu1', cloud.story(server)
        elif action == 'unshelve':
            assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    source = site.lose_its_host(server)
    assert site.at(server, port).startswith(other(source)) and site.at(server, port) != blocked
    site.delete(server)
    cloud.assert_clean()
