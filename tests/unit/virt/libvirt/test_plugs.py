"""Ports that a host connects itself: there before their guest starts, and as long as the host has the guest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.objects.vif import Vif
from kilonova.states import PowerState
from kilonova.virt.libvirt.devices.vif.openvswitch import OpenVSwitch
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.parts.guests import GuestFailed, InterfaceFailed
from kilonova.virt.parts.host import HypervisorUnavailable
from tests.unit.virt.builders import PORT, PORT2, image_meta, new_conf, new_instance, new_vif
from tests.unit.virt.conftest import LibvirtRig

HYBRID = new_vif(details={'bridge_name': 'br-int', 'ovs_hybrid_plug': True})
SOCKET = new_vif(
    id=PORT2,
    type='vhostuser',
    details={
        'bridge_name': 'br-int',
        'datapath_type': 'netdev',
        'vhostuser_ovs_plug': True,
        'vhostuser_mode': 'server',
        'vhostuser_socket': '/run/openvswitch/vhu7d2f3c11-8a',
    },
)
THIRD = new_vif(id='8d2f3c11-8a01-4a51-b2c3-0c9be2f1d4aa', details={'bridge_name': 'tbr-8d2f3c11-8'})


class Switch:
    """Stands for os-vif of a host: ``there`` is what is plugged, ``done`` what was asked of it."""

    def __init__(self, power: Callable[[], PowerState | None] = lambda: None) -> None:
        self.there: dict[str, Vif] = {}
        self.done: list[tuple[str, str]] = []
        self.is_down, self.fails, self.power = False, '', power
        self.powers: list[PowerState | None] = []

    def check(self, vif: Vif) -> None:
        if self.is_down:
            raise InterfaceFailed(port=vif.id, host='gpu1', reason='no database')

    def plug(self, vif: Vif, uuid: str) -> None:
        self.done.append(('plug', vif.id))
        self.powers.append(self.power())
        # As os-vif: a part of it is taken for the whole.
        self.there.setdefault(vif.id, vif)
        if self.fails == vif.id:
            raise InterfaceFailed(port=vif.id, host='gpu1', reason='half of it')

    def unplug(self, vif: Vif, uuid: str) -> None:
        self.check(vif)
        self.done.append(('unplug', vif.id))
        self.there.pop(vif.id, None)


@pytest.fixture
def rig(libvirt_rig: LibvirtRig) -> LibvirtRig:
    return libvirt_rig


def give(host: Any, switch: Switch | None = None) -> Switch:
    """A host's os-vif."""
    made = switch or Switch()
    host.guests._domains.plugs._switch = made
    return made


def notes(rig: LibvirtRig, host: str = 'gpu1') -> list[str]:
    return sorted(one.stem for one in rig.path.joinpath(host).glob('plugged/*'))


def server(*vifs: Vif, **values: Any) -> Any:
    return new_instance(vifs=list(vifs), device_metadata=None, **values)


def spawn(rig: LibvirtRig, *vifs: Vif, **values: Any) -> Any:
    instance = server(*vifs, **values)
    rig.here.guests.spawn(instance, image_meta())
    return instance


def test_a_host_without_such_ports_writes_nothing_and_loads_no_library(rig: LibvirtRig) -> None:
    instance = spawn(rig, new_vif())
    rig.here.power.reboot(instance, 'HARD', image_meta())
    rig.here.guests.destroy(instance)
    switch = rig.here.guests._domains.plugs._switch
    assert isinstance(switch, OpenVSwitch) and switch._library is None
    assert not rig.path.joinpath('gpu1', 'plugged').exists()


def test_they_are_there_before_the_guest_starts_and_when_it_is_off(rig: LibvirtRig) -> None:
    instance = server(HYBRID, new_vif(id=THIRD.id), SOCKET)
    switch = give(rig.here, Switch(lambda: PowerState(rig.here.guests.get_info(instance))))
    rig.here.guests.spawn(instance, image_meta())
    assert switch.there == {PORT: HYBRID, PORT2: SOCKET} and notes(rig) == [instance.uuid]
    rig.here.power.power_off(instance)
    rig.here.power.power_on(instance, image_meta())
    rig.here.power.reboot(instance, 'HARD', image_meta())
    rig.here.power.suspend(instance, lambda: None)
    rig.here.power.resume(instance, [], lambda: None)
    assert set(switch.there) == {PORT, PORT2} and set(switch.powers) == {PowerState.SHUTDOWN, PowerState.SUSPENDED}
    assert switch.done == [('plug', PORT), ('plug', PORT2)] * 4
    rig.here.guests.destroy(instance)
    assert switch.there == {} and notes(rig) == []


def test_one_that_stays_off_has_none_yet(rig: LibvirtRig) -> None:
    switch, instance = give(rig.here), server(HYBRID)
    rig.here.guests.spawn(instance, image_meta(), power_on=False)
    assert switch.done == []
    rig.here.power.power_on(instance, image_meta())
    assert set(switch.there) == {PORT}
    # And no longer what it has no more.
    instance.vifs = []
    rig.here.guests.spawn(instance, image_meta(), power_on=False)
    assert switch.there == {}


def test_what_the_server_has_no_more_or_in_another_way_goes_at_the_next_start(rig: LibvirtRig) -> None:
    switch, instance = give(rig.here), spawn(rig, HYBRID, SOCKET, THIRD)
    moved = new_vif(id=THIRD.id, details={'bridge_name': 'br-int', 'ovs_hybrid_plug': True})
    instance.vifs = [HYBRID, moved]
    switch.done.clear()
    rig.here.power.reboot(instance, 'HARD', image_meta())
    assert switch.there == {PORT: HYBRID, THIRD.id: moved}
    assert switch.done == [('unplug', PORT2), ('unplug', THIRD.id), ('plug', PORT), ('plug', THIRD.id)]
    # Its rules are Open vSwitch's own now.
    instance.vifs = [new_vif()]
    rig.here.power.reboot(instance, 'HARD', image_meta())
    assert switch.there == {} and notes(rig) == []


def test_they_go_where_the_guest_goes(rig: LibvirtRig) -> None:
    """And come back with it."""
    here, there = give(rig.here), give(rig.there)
    instance = spawn(rig, HYBRID)
    info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), instance.flavor)
    assert (here.there, there.there) == ({}, {})
    rig.there.moves.finish_migration(instance, image_meta(), [], True, info)
    assert (set(here.there), set(there.there)) == (set(), {PORT})
    rig.there.moves.cleanup_move_dest(instance, False)
    rig.here.moves.finish_revert_migration(instance, image_meta(), [], True)
    assert (set(here.there), set(there.there)) == ({PORT}, set())
    assert (notes(rig), notes(rig, 'gpu2')) == ([instance.uuid], [])


def test_both_hosts_have_them_while_a_guest_moves_live(rig: LibvirtRig) -> None:
    here, there = give(rig.here), give(rig.there)
    instance = spawn(rig, HYBRID, SOCKET)
    guest = rig.here.live_migrations.describe(instance)
    offer: Any = {
        **rig.there.live_migrations.offer(instance, guest, None, False),
        'place': rig.there.live_migrations.place(instance, image_meta()),
    }
    for undone in (True, False):
        rig.there.live_migrations.prepare(instance, guest, offer)
        assert set(there.there) == set(here.there) == {PORT, PORT2}
        if undone:
            rig.there.moves.cleanup_move_dest(instance, False)
            assert (set(here.there), there.there) == ({PORT, PORT2}, {})
    rig.here.live_migrations.migrate(instance, offer, lambda numbers: None)
    rig.there.live_migrations.receive(instance)
    rig.here.live_migrations.leave(instance, offer)
    assert (here.there, set(there.there)) == ({}, {PORT, PORT2})


def test_attached_and_detached(rig: LibvirtRig) -> None:
    switch, instance = give(rig.here), spawn(rig, HYBRID)
    rig.here.guests.attach_interface(instance, image_meta(), THIRD)
    assert set(switch.there) == {PORT, THIRD.id}
    rig.here.guests.detach_interface(instance, HYBRID, lambda: None)
    assert set(switch.there) == {THIRD.id}
    rig.here.guests.detach_interface(instance, THIRD, lambda: None)
    assert switch.there == {} and notes(rig) == []
    # One that is off gets it when it starts.
    rig.here.power.power_off(instance)
    rig.here.guests.attach_interface(instance, image_meta(), THIRD)
    assert switch.there == {}


def test_a_guest_whose_memory_nobody_can_map_gets_no_socket(rig: LibvirtRig) -> None:
    switch, instance = give(rig.here), spawn(rig)
    with pytest.raises(GuestFailed, match='its memory is not shared with the virtual switch'):
        rig.here.guests.attach_interface(instance, image_meta(), SOCKET)
    assert switch.done == []
    instance.vifs = [SOCKET]
    rig.here.power.reboot(instance, 'HARD', image_meta())
    rig.here.guests.attach_interface(instance, image_meta(), SOCKET)


def test_a_host_that_fails_has_nothing_of_it(rig: LibvirtRig) -> None:
    """Another is tried. Where its database is away nothing is begun."""
    switch, instance = give(rig.here), server(SOCKET, HYBRID)
    switch.is_down = True
    with pytest.raises(InterfaceFailed, match=f'Port {PORT2} could not be plugged into host gpu1: no database'):
        rig.here.guests.spawn(instance, image_meta())
    assert switch.done == [] and notes(rig) == []
    switch.is_down, switch.fails = False, PORT
    with pytest.raises(InterfaceFailed, match='half of it'):
        rig.here.guests.spawn(instance, image_meta())
    assert set(switch.there) == {PORT2}
    rig.here.guests.destroy(instance)
    assert switch.there == {} and notes(rig) == [] and rig.here.guests.describe() == []


def test_what_was_begun_when_the_service_died_is_begun_anew(rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or goes with the server, whether or not there was ever a guest."""
    for end in ('reboot', 'destroy'):
        switch, instance = give(rig.here), server(HYBRID)

        def die(vif: Vif, uuid: str, switch: Switch = switch) -> None:
            switch.there[vif.id] = new_vif(label='half of it')
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(switch, 'plug', die)
            with pytest.raises(KeyboardInterrupt):
                rig.here.guests.spawn(instance, image_meta())
        if end == 'destroy':
            rig.here.guests._domains.remove(instance.uuid)
            rig.here.guests.destroy(instance)
            assert switch.there == {}
        else:
            rig.here.power.reboot(instance, 'HARD', image_meta())
            assert switch.there == {PORT: HYBRID}
            rig.here.guests.destroy(instance)
    assert notes(rig) == []


def test_a_delete_does_not_wait_for_open_vswitch(rig: LibvirtRig, caplog: pytest.LogCaptureFixture) -> None:
    """The next start of the service unplugs what stayed; that of servers that are here stays, be it as a domain without
    files or the other way."""
    switch, gone, kept = give(rig.here), spawn(rig, HYBRID), spawn(rig, THIRD, id=2)
    bare = spawn(rig, SOCKET, id=3)
    rig.here.disks.remove_directories(bare.uuid)
    rig.here.guests._domains.remove(kept.uuid)
    switch.is_down = True
    with caplog.at_level(logging.ERROR):
        rig.here.guests.destroy(gone)
    assert (
        f'Could not unplug port {PORT} from this host; the next start of this service tries it again: no database'
        in caplog.text
    )
    assert rig.here.disks.list_directories() == [kept.uuid]
    rig.here.host.init_host()
    assert set(switch.there) == {PORT, PORT2, THIRD.id}
    switch.is_down = False
    rig.here.host.init_host()
    assert set(switch.there) == {PORT2, THIRD.id} and notes(rig) == sorted((kept.uuid, bare.uuid))


def function(slot: str, **values: Any) -> Vif:
    """A function whose representor Open vSwitch has."""
    return new_vif(
        vnic_type='direct',
        details={'bridge_name': 'br-int'},
        profile={'capabilities': ['switchdev'], 'pci_slot': slot},
        **values,
    )


def test_a_representor_is_whose_its_function_is(rig: LibvirtRig, tmp_path: Any) -> None:
    """What could not be unplugged is left alone when the function is another server's."""
    switch, plugs = give(rig.here), rig.here.guests._domains.plugs
    first, second = server(), server(id=2)
    mine, theirs = function('0000:81:00.2'), function('0000:81:00.2', id=PORT2)
    plugs.renew(first, [mine])
    switch.is_down = True
    plugs.remove(first.uuid)
    switch.is_down = False
    plugs.renew(second, [theirs])
    plugs.remove(first.uuid)
    assert switch.done == [('plug', PORT), ('plug', PORT2)] and notes(rig) == ['0000:81:00.2', second.uuid]
    # A server that moves on its host gets another function, and gives this one up, whether or not it runs.
    plugs.retain(second.uuid, [theirs])
    plugs.retain(second.uuid, [function('0000:81:00.3', id=PORT2)])
    assert switch.done[2:] == [('unplug', PORT2)] and notes(rig) == []


def test_nothing_stays_where_the_hypervisor_is_away(rig: LibvirtRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An undo of a guest that was never made here: its ports of the switch and its TCP ports for consoles are free."""
    switch, instance = give(rig.here), server(HYBRID)
    rig.here.guests._domains.plugs.renew(instance, instance.vifs)
    serial_ports = rig.here.guests._domains._serial_ports
    serial_ports.take(instance.uuid, 1)

    def away(uuid: str) -> Guest | None:
        raise HypervisorUnavailable(host='gpu1', reason='gone')

    monkeypatch.setattr(rig.here.guests._libvirt, 'find', away)
    rig.here.guests.destroy(instance)
    assert switch.there == {} and notes(rig) == [] and instance.uuid not in serial_ports._load()


def test_a_note_that_nobody_can_read_keeps_no_server(rig: LibvirtRig, caplog: pytest.LogCaptureFixture) -> None:
    give(rig.here)
    instance = spawn(rig, HYBRID)
    rig.path.joinpath('gpu1', 'plugged', f'{instance.uuid}.json').write_text('')
    rig.here.guests.destroy(instance)
    assert f'{instance.uuid}.json; the ports' in caplog.text and rig.here.guests.describe() == []


@pytest.mark.parametrize(
    ('database', 'said'),
    [
        ('unix:/nowhere/db.sock', 'No such file'),
        ('tcp:127.0.0.1:1', 'refused'),
        ('tcp:[::1]:1', ''),
        ('tcp:here', 'int'),
    ],
)
def test_a_database_that_is_away(tmp_path: Any, database: str, said: str) -> None:
    switch = OpenVSwitch(new_conf(tmp_path, os_vif_ovs={'ovsdb_connection': database}))
    with pytest.raises(InterfaceFailed, match=f'cannot connect to the .* database at .*{database[-3:]}: .*{said}'):
        switch.check(HYBRID)
    assert switch._library is None
