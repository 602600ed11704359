"""Real guests on a network of the real Neutron (``make test-guests``): two QEMU guests on two machines with Open
vSwitch, ovn-controller and Neutron's metadata agent each. They get their addresses by DHCP, fetch their metadata from
169.254.169.254, and ping and speak to each other (TCP), before and after one of them has moved. In their own words."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from tests.integration.real_guests import HOSTS, RealGuests, fact
from tests.integration.site import Site
from tests.integration.test_neutron import events
from tools.cloud import http, identity, neutron, process, switch
from tools.cloud.layout import DEFAULT_HOSTS


def lacking() -> str:
    """What this machine can't do; '' where it can all."""
    if os.geteuid() != 0:
        return 'machines of namespaces, libvirtd and QEMU need root'
    if not Path('/dev/net/tun').exists():
        return 'guests are plugged in by tap devices, and there is no /dev/net/tun'
    done = subprocess.run(['unshare', '--net', '--mount', '--pid', '--fork', 'true'], check=False, capture_output=True)
    return f'there are no namespaces: {done.stderr.decode().strip()}' if done.returncode else ''


pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.fixture(scope='module')
def guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGuests]:
    """A cloud of real guests with Neutron. In the end nothing is left."""
    directory = tmp_path_factory.mktemp('network')
    shutil.copytree(DEFAULT_HOSTS, directory / 'hosts')
    site = Site(directory, guests='qemu', hosts=directory / 'hosts', network=True)
    try:
        # A guest with a serial console on a port of its host can't be migrated live.
        site.configure(
            '[DEFAULT]\nshutdown_timeout = 5\ninitial_cpu_allocation_ratio = 16.0\n[serial_console]\nenabled = false\n'
        )
        site.up()
        yield RealGuests(site)
    finally:
        site.end()


@dataclass(frozen=True)
class Speaker:
    """A server whose guest has an address and a peer; ``rounds``: how often it had tried its peer when it was looked at
    last."""

    server: str
    name: str
    address: str
    peer: str
    port: str
    rounds: int = 0


Pair = tuple[Speaker, Speaker]
ADDRESSES, PEERS = {'one': '10.20.0.11', 'two': '10.20.0.12'}, {'one': 'two', 'two': 'one'}


@pytest.fixture
def pair(guests: RealGuests) -> Pair:
    """``one`` and ``two``, on different machines; they speak. What the test before left, else new ones."""
    if {row['name']: row['status'] for row in guests.site.servers().values()} != dict.fromkeys(ADDRESSES, 'ACTIVE'):
        guests.clean()
        boot(guests)
    one, two = speakers(guests)
    if guests.host(one.server) == guests.host(two.server):
        guests.migrate_live(one.server, guests.other(two.server))
        guests.ends(one.server, 'ACTIVE')
    return speak(guests, one), speak(guests, two)


def speakers(guests: RealGuests) -> Pair:
    ids = {row['name']: server for server, row in guests.site.servers().items()}
    one, two = (
        Speaker(ids[name], name, address, ids[PEERS[name]], port_of(guests, ids[name]))
        for name, address in ADDRESSES.items()
    )
    return one, two


def boot(guests: RealGuests) -> None:
    """Both; each has waited for what Neutron said of its port."""
    url, token, size = guests.site.url('neutron') + '/v2.0', guests.site.token('admin'), guests.site.log_size('neutron')
    (network,) = http.call('GET', f'{url}/networks?name={neutron.NETWORK}', token=token).data['networks']
    servers = [
        guests.site.create(
            name,
            guests.flavor('small', ram=128),
            user='admin',
            host=host,
            imageRef=guests.image('guest'),
            networks=[{'uuid': network['id'], 'fixed_ip': ADDRESSES[name]}],
            metadata={'peer': ADDRESSES[PEERS[name]]},
        )
        for name, host in zip(ADDRESSES, HOSTS, strict=True)
    ]
    for server in servers:
        guests.ends(server, 'ACTIVE')
        told = partial(events, guests.site, size, 'network-vif-plugged', port_of(guests, server))
        guests.until(lambda told=told: told() == {'200'}, f'an event about the port of {server}')  # type: ignore[misc]


def port_of(guests: RealGuests, server: str) -> str:
    """The id of its only port."""
    rows = http.call(
        'GET', f'{guests.site.url("neutron")}/v2.0/ports?device_id={server}', token=guests.site.token('admin')
    ).data['ports']
    (found,) = [row['id'] for row in rows]
    return str(found)


def reached(said: str) -> tuple[int, int, int]:
    """How many rounds, and in how many the peer answered a ping, and by TCP."""
    found = re.findall(r'^GUEST-REACHED (\d+) ping=(\d+) tcp=(\d+)$', said, re.MULTILINE)
    rounds, pings, spoken = map(int, found[-1]) if found else (0, 0, 0)
    return rounds, pings, spoken


def speak(guests: RealGuests, guest: Speaker) -> Speaker:
    """Wait until its peer has answered twice more, by ping and by TCP; the guest as it is then."""
    begun = reached(guests.console(guest.server))

    def answered() -> tuple[int, int, int] | None:
        now = reached(guests.console(guest.server))
        # After a new boot it counts from 1 again.
        first = begun if now[0] >= begun[0] else (0, 0, 0)
        return now if now[1] >= first[1] + 2 and now[2] >= first[2] + 2 else None

    try:
        rounds, _, _ = guests.until(answered, f'{guest.name} reaches {guest.peer}')
    except AssertionError as error:
        raise AssertionError(f'{error}; it said:\n{guests.console(guest.server)[-3000:]}') from None
    return replace(guest, rounds=rounds)


def arrived(guests: RealGuests, guest: Speaker) -> None:
    """Wait until a guest that booted has heard its peer: it has its address and its own metadata."""

    def boot() -> str:
        """What it said since its last one."""
        return guests.console(guest.server).rpartition('GUEST-UP')[2]

    try:
        guests.until(lambda: 'GUEST-TOLD' in boot(), f'{guest.name} hears {guest.peer}')
    except AssertionError as error:
        raise AssertionError(f'{error}; it said:\n{guests.console(guest.server)[-3000:]}') from None
    said = boot()
    assert re.findall(r'^GUEST-ADDRESS (.*)$', said, re.MULTILINE)[0] == f'eth0 {guest.address}/16 mtu=1442'
    metadata = json.loads(fact(said, 'FETCHED'))
    assert (metadata['uuid'], metadata['hostname']) == (guest.server, f'{guest.name}.novalocal')
    assert fact(said, 'NAMED') == f'{guest.name}.novalocal'
    assert fact(said, 'TOLD') == guest.peer


# -- what hosts and Neutron have of it ---------------------------------------------------------------------------------
def plugged(guests: RealGuests, host: str) -> tuple[set[str], set[str]]:
    """Neutron's ports of the guests that are plugged in on a machine, and the taps that only it or only its Open
    vSwitch has."""
    machine = guests.machine(host)
    rows = json.loads(machine.run('ovs-vsctl', '--format=json', '--columns=name,external_ids', 'list', 'Interface'))
    found = {name: dict(ids[1]) for name, ids in rows['data'] if name.startswith('tap')}
    return {ids['iface-id'] for ids in found.values() if 'attached-mac' in ids}, found.keys() ^ taps(guests, host)


def taps(guests: RealGuests, host: str) -> set[str]:
    """Those of guests, and the one of the metadata agent where there are any."""
    rows = json.loads(guests.machine(host).run('ip', '-json', 'link'))
    return {row['ifname'] for row in rows if row['ifname'].startswith('tap')}


def bound(guests: RealGuests, port: str) -> dict[str, tuple[str, str]]:
    """{host: (status, VIF)}, as the service's account sees it."""
    site = guests.site
    token = identity.issue_token(site.url('keystone'), 'kilonova', 'service', site.cloud.secrets['kilonova'])
    rows = http.call('GET', f'{site.url("neutron")}/v2.0/ports/{port}/bindings', token=token).data['bindings']
    return {row['host']: (row['status'], row['vif_type']) for row in rows}


def active(guests: RealGuests, port: str) -> bool:
    url = f'{guests.site.url("neutron")}/v2.0/ports/{port}'
    return bool(http.call('GET', url, token=guests.site.token('admin')).data['port']['status'] == 'ACTIVE')


def check_places(guests: RealGuests, pair: Pair) -> None:
    """Each port is on the machine of its server, and nowhere else; ACTIVE in Neutron."""
    at: dict[str, tuple[set[str], set[str]]] = {host: (set(), set()) for host in HOSTS}
    for guest in pair:
        host = guests.host(guest.server)
        at[host][0].add(guest.port)
        assert bound(guests, guest.port) == {host: ('ACTIVE', 'ovs')}
        guests.until(lambda port=guest.port: active(guests, port), f'{guest.port} is ACTIVE')  # type: ignore[misc]
    guests.until(lambda: {host: plugged(guests, host) for host in HOSTS} == at, f'ports at {at}')
    guests.site.audit()


# -- the tests ---------------------------------------------------------------------------------------------------------
def test_two_guests_on_two_machines(guests: RealGuests) -> None:
    """New ones. All that they need is there: up again restarts nothing."""
    guests.clean()
    boot(guests)
    pair = speakers(guests)
    names = process.recorded(guests.site.layout)
    before = {name: guests.site.pid(name) for name in names}
    guests.site.up()
    assert {name: guests.site.pid(name) for name in names} == before
    for guest in pair:
        arrived(guests, guest)
        speak(guests, guest)
    assert {guests.host(guest.server) for guest in pair} == set(HOSTS)
    check_places(guests, pair)


def test_after_a_resize(guests: RealGuests, pair: Pair) -> None:
    """And its confirmation: the port is on the other machine, and the guest boots with its address there."""
    one, _ = pair
    destination = guests.other(one.server)
    guests.act(one.server, 'VERIFY_RESIZE', 'resize', {'flavorRef': guests.flavor('larger', ram=160)})
    guests.act(one.server, 'ACTIVE', 'confirmResize')
    assert guests.host(one.server) == destination
    arrived(guests, one)
    for guest in pair:
        speak(guests, guest)
    check_places(guests, pair)


def test_after_a_live_migration(guests: RealGuests, pair: Pair) -> None:
    """The guest runs on with its address, and counts on; so does its peer, which hears it from the other machine."""
    one, two = pair
    for destination in (guests.other(one.server), guests.host(one.server)):
        before = speak(guests, one)
        guests.migrate_live(one.server, destination)
        guests.ends(one.server, 'ACTIVE')
        assert guests.host(one.server) == destination
        after = speak(guests, one)
        said = guests.console(one.server)
        assert after.rounds > before.rounds and 'GUEST-UP' not in said
        counted = [int(number) for number in re.findall(r'^GUEST-REACHED (\d+) ', said, re.MULTILINE)]
        assert counted == list(range(counted[0], counted[-1] + 1))
        # It is itself that its peer hears.
        assert speak(guests, two).rounds > two.rounds
        check_places(guests, pair)


def test_after_an_evacuation(guests: RealGuests, pair: Pair) -> None:
    """Its machine is off: it begins anew on the other one, with its port; when the machine is back, nothing of it is
    there, and a guest can go there again."""
    one, _ = pair
    lost, safe = guests.host(one.server), guests.other(one.server)
    with guests.lost(lost):
        guests.act(one.server, 'ACTIVE', 'evacuate', {})
        assert guests.host(one.server) == safe
        arrived(guests, one)
        for guest in pair:
            speak(guests, guest)
    guests.nothing_in_flight()
    check_places(guests, pair)
    guests.migrate_live(one.server, lost)
    guests.ends(one.server, 'ACTIVE')
    for guest in pair:
        speak(guests, guest)
    check_places(guests, pair)


def test_after_a_switch_has_failed(guests: RealGuests, pair: Pair) -> None:
    """It is there again by itself, and guests that run have their ports."""
    for host in HOSTS:
        guests.machine(host).run('pkill', '-ABRT', '-x', 'ovs-vswitchd')
    for guest in pair:
        speak(guests, guest)
    check_places(guests, pair)


def test_deleted_they_leave_nothing(guests: RealGuests, pair: Pair) -> None:
    """Neither devices and ports on the machines nor anything in Neutron and OVN."""
    guests.clean()
    for host in HOSTS:
        guests.until(lambda host=host: not taps(guests, host), f'no taps on {host}')  # type: ignore[misc]
        left = guests.machine(host).run('ovs-vsctl', 'list-ports', switch.GUESTS).split()
        # The tunnel's.
        assert [name for name in left if not name.startswith('ovn-')] == []
        assert guests.machine(host).run('ip', 'netns') == ''
    rows = http.call('GET', guests.site.url('neutron') + '/v2.0/ports', token=guests.site.token('admin')).data['ports']
    assert {port['device_owner'] for port in rows} == {'network:distributed'}
    known = neutron._southbound(guests.site.layout, 'Port_Binding', 'logical_port')
    assert not {guest.port for guest in pair} & {*known}
