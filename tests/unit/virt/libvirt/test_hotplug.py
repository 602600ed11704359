"""Devices that leave a running guest and come back; libvirt's test driver knows no such thing, so a guest is played."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova import errors
from kilonova.states import PowerState
from kilonova.virt.libvirt.devices import hotplug, hotplug_xml
from kilonova.virt.libvirt.devices.hotplug import Hotplug
from kilonova.virt.libvirt.devices.hotplug_xml import CARDS, of_port
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.power import LibvirtPower
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import MdevUnavailable
from tests.unit.virt.builders import GPU, GPU2, MDEV, device, devices, mediated, new_instance, new_vif

HOSTDEV = (
    '<hostdev mode="subsystem" type="pci" managed="yes"><source><address domain="0x{}" bus="0x{}" slot="0x{}" '
    'function="0x{}"/></source></hostdev>'
)
VGPU = (
    '<hostdev mode="subsystem" type="mdev" managed="no" model="vfio-pci"><source><address uuid="{}"/></source>'
    '</hostdev>'
)
VDPA = '<interface type="vdpa"><mac address="{}"/><source dev="/dev/vhost-vdpa-0"/></interface>'


def text(*addresses: str) -> str:
    found = [
        HOSTDEV.format(*address.replace('.', ':').split(':'))
        if '.' in address
        else (VDPA if ':' in address else VGPU).format(address)
        for address in addresses
    ]
    return f'<domain><devices>{"".join(found)}</devices></domain>'


def failure(code: int, message: str = 'no') -> libvirt.libvirtError:
    libvirt.virResetLastError()  # of an earlier test; it would be the text
    error = libvirt.libvirtError(message)
    error.err = (code, 0, message, 2, '', '', '', 0, 0)
    return error


class Domain:
    """A domain of QEMU's. ``keeps``: how often its system ignores a request for each device; ``refuses`` {method:
    error}."""

    def __init__(self, *addresses: str, keeps: int = 0) -> None:
        self.live, self.defined, self.power, self.saved = list(addresses), list(addresses), PowerState.RUNNING, False
        self.keeps = dict.fromkeys(addresses, keeps)
        self.refuses: dict[str, Exception] = {}
        self.asked: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in METHODS:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            if name in self.refuses:
                raise self.refuses[name]
            return METHODS[name](self, *args)

        return call

    def uuid(self) -> str:
        return '11111111-2222-3333-4444-555555555555'

    def xml(self, flags: int) -> str:
        is_live = self.power != PowerState.SHUTDOWN and not flags & libvirt.VIR_DOMAIN_XML_INACTIVE
        return text(*(self.live if is_live else self.defined))

    def states(self) -> list[int]:
        return [
            {
                PowerState.RUNNING: libvirt.VIR_DOMAIN_RUNNING,
                PowerState.PAUSED: libvirt.VIR_DOMAIN_PAUSED,
                PowerState.SHUTDOWN: libvirt.VIR_DOMAIN_SHUTOFF,
            }[self.power],
            0,
        ]

    def is_active(self) -> bool:
        return self.power != PowerState.SHUTDOWN

    def save(self, flags: int) -> None:
        if self.live:
            raise failure(libvirt.VIR_ERR_OPERATION_INVALID, 'domain has assigned non-USB host devices')
        self.power, self.saved = PowerState.SHUTDOWN, True

    def start(self) -> None:
        self.live, self.power, self.saved = [], PowerState.RUNNING, False

    def detach(self, device: str, flags: int) -> None:
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE
        address = self._address('take', device)
        self.keeps[address] -= 1
        if self.keeps[address] < 0:
            self.live.remove(address)

    def attach(self, device: str, flags: int) -> None:
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE
        self.live.append(self._address('give', device))

    def _address(self, what: str, device: str) -> str:
        element = ElementTree.fromstring(f'<domain><devices>{device}</devices></domain>')
        (address,) = hotplug_xml.of_host(element) or [element.find('devices/interface/mac').get('address')]
        self.asked.append((what, address))
        return address


METHODS: dict[str, Callable[..., Any]] = {
    'UUIDString': Domain.uuid,
    'name': lambda domain: 'instance-00000001',
    'connect': lambda domain: None,
    'XMLDesc': Domain.xml,
    'state': Domain.states,
    'isActive': Domain.is_active,
    'hasManagedSaveImage': lambda domain, flags: int(domain.saved),
    'managedSave': Domain.save,
    'create': Domain.start,
    'detachDeviceFlags': Domain.detach,
    'attachDeviceFlags': Domain.attach,
}


class Libvirt:
    """One domain and its connection."""

    is_test, name = False, 'gpu1'

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def do(self, act: Any, again: bool = True) -> Any:
        return act(None)

    def find(self, uuid: str) -> Guest:
        return Guest(self, self.domain)  # type: ignore[arg-type]


class Domains:
    def __init__(self, domain: Domain) -> None:
        self.domain, self.plugs = domain, SimpleNamespace(add=lambda instance, vif: None)

    def show(self, guest: Guest) -> None:
        """The XML in the server's directory is not looked at here."""

    def prepare_devices(self, pci_devices: Any) -> None:
        if 'prepare_devices' in self.domain.refuses:
            raise self.domain.refuses['prepare_devices']
        self.domain.asked += [('make', device.address) for device in pci_devices if device.dev_type == 'mdev']


class Volumes:
    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def unlock(self, instance: Any) -> None:
        self.domain.asked.append(('unlock', ''))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes a second."""
    ticks = itertools.count()
    monkeypatch.setattr(hotplug.time, 'monotonic', lambda: next(ticks))
    monkeypatch.setattr(hotplug.time, 'sleep', lambda seconds: None)


def power(domain: Domain) -> LibvirtPower:
    return LibvirtPower(Libvirt(domain), Domains(domain), Volumes(domain), Hotplug(3, 5), 1)  # type: ignore[arg-type]


INSTANCE = new_instance()


def fine() -> None:
    """Nobody cancels."""


def test_devices_leave_before_the_memory_is_saved_and_come_back_after_it() -> None:
    domain = Domain(GPU, GPU2, keeps=1)
    power(domain).suspend(INSTANCE, fine)
    assert (domain.power, domain.saved, domain.live, domain.defined) == (PowerState.SHUTDOWN, True, [], [GPU, GPU2])
    # Both are asked for before either is waited for, and again when the guest took no notice.
    assert domain.asked == [('take', GPU), ('take', GPU2)] * 2
    power(domain).resume(INSTANCE, devices(GPU, GPU2), fine)
    assert (domain.power, domain.saved, domain.live) == (PowerState.RUNNING, False, [GPU, GPU2])


def test_a_card_that_is_vdpa_sleeps_outside_its_guest() -> None:
    """It is known by its MAC address; what is behind a macvtap device stays in the guest."""
    vdpa, macvtap = (
        new_vif(vnic_type=kind, mac=f'fa:16:3e:00:00:0{slot[-1]}', profile={'pci_slot': slot})
        for kind, slot in (('vdpa', '0000:81:00.2'), ('macvtap', '0000:81:00.3'))
    )
    domain, instance = Domain(GPU, vdpa.mac), new_instance(vifs=[vdpa, macvtap])
    power(domain).suspend(instance, fine)
    assert domain.asked == [('take', GPU), ('take', vdpa.mac)] and domain.saved
    power(domain).resume(instance, devices(GPU, '0000:81:00.2', '0000:81:00.3'), fine)
    assert domain.asked[3:] == [('give', GPU), ('give', vdpa.mac)] and domain.live == [GPU, vdpa.mac]


def test_mediated_devices_are_made_before_they_come_back() -> None:
    domain = Domain(MDEV, GPU)
    power(domain).suspend(INSTANCE, fine)
    assert (domain.live, domain.saved) == ([], True)
    domain.refuses['prepare_devices'] = MdevUnavailable(uuid=MDEV, type='t', parent='p', reason='none is free')
    with pytest.raises(MdevUnavailable):
        power(domain).resume(INSTANCE, [mediated(MDEV), device(GPU)], fine)
    assert domain.saved
    del domain.refuses['prepare_devices']
    domain.asked.clear()
    power(domain).resume(INSTANCE, [mediated(MDEV), device(GPU)], fine)
    assert domain.asked == [('make', MDEV), ('unlock', ''), ('give', MDEV), ('give', GPU)]


def test_a_guest_that_keeps_a_device_goes_on_with_all_of_them() -> None:
    domain = Domain(GPU, GPU2)
    domain.keeps[GPU2] = 99
    with pytest.raises(GuestFailed, match=f'does not release {GPU2}'):
        power(domain).suspend(INSTANCE, fine)
    assert (domain.power, domain.saved, sorted(domain.live)) == (PowerState.RUNNING, False, [GPU, GPU2])
    assert domain.asked.count(('take', GPU2)) == 3


@pytest.mark.parametrize('error', [failure(libvirt.VIR_ERR_OPERATION_FAILED, 'No space left on device')])
def test_memory_that_can_not_be_saved_leaves_the_guest_as_it_was(error: Exception) -> None:
    domain = Domain(GPU)
    domain.refuses['managedSave'] = error
    with pytest.raises(GuestFailed, match='No space left'):
        power(domain).suspend(INSTANCE, fine)
    assert (domain.power, domain.live) == (PowerState.RUNNING, [GPU])


def test_a_cancelled_suspend_leaves_the_guest_as_it_was() -> None:
    domain = Domain(GPU, GPU2)
    domain.keeps[GPU2] = 99

    def cancelled() -> None:
        raise errors.Cancelled(key='s/1.do/1')

    with pytest.raises(errors.Cancelled):
        power(domain).suspend(INSTANCE, cancelled)
    assert (domain.power, sorted(domain.live)) == (PowerState.RUNNING, [GPU, GPU2])


def test_a_device_that_can_not_come_back_leaves_the_guest_suspended() -> None:
    domain = Domain(GPU, GPU2)
    power(domain).suspend(INSTANCE, fine)
    domain.refuses['attachDeviceFlags'] = failure(libvirt.VIR_ERR_INTERNAL_ERROR, 'is in use by driver QEMU')
    with pytest.raises(GuestFailed, match='is in use'):
        power(domain).resume(INSTANCE, devices(GPU, GPU2), fine)
    assert (domain.power, domain.saved, domain.live) == (PowerState.SHUTDOWN, True, [])
    del domain.refuses['attachDeviceFlags']
    with pytest.raises(GuestFailed, match='is not in its domain definition'):
        power(domain).resume(INSTANCE, devices(GPU, '0000:01:00.0'), fine)
    assert (domain.power, domain.saved, domain.live) == (PowerState.SHUTDOWN, True, [])
    power(domain).resume(INSTANCE, devices(GPU, GPU2), fine)
    assert domain.live == [GPU, GPU2]


def test_a_resume_that_ended_between_its_devices_goes_on() -> None:
    """The process died there."""
    domain = Domain(GPU, GPU2)
    domain.live = [GPU]
    power(domain).resume(INSTANCE, devices(GPU, GPU2), fine)
    assert domain.asked == [('give', GPU2)]


def test_a_suspend_that_ended_before_its_answer_is_done() -> None:
    domain = Domain()
    domain.refuses['managedSave'] = failure(libvirt.VIR_ERR_OPERATION_INVALID, 'domain is not running')
    domain.power, domain.saved = PowerState.SHUTDOWN, True
    power(domain).suspend(INSTANCE, fine)
    domain.saved = False
    with pytest.raises(GuestFailed, match='does not run'):
        power(domain).suspend(INSTANCE, fine)


def test_a_device_that_has_gone_meanwhile_is_no_failure() -> None:
    domain = Domain(GPU)
    domain.refuses['detachDeviceFlags'] = failure(libvirt.VIR_ERR_DEVICE_MISSING)
    taking = Hotplug(3, 5)
    with pytest.raises(GuestFailed, match='does not release'):
        taking.take(Libvirt(domain).find(''), fine)
    domain.refuses['detachDeviceFlags'] = failure(libvirt.VIR_ERR_INTERNAL_ERROR, 'monitor closed')
    with pytest.raises(GuestFailed, match='monitor closed'):
        taking.take(Libvirt(domain).find(''), fine)


UNPLUG = "internal error: unable to execute QEMU command 'device_del': "


@pytest.mark.parametrize(
    'said',
    [
        'Device hostdev0 is already in the process of unplug',
        'Hot-unplug failed: guest is busy (power indicator blinking)',
    ],
)
def test_a_guest_that_can_not_be_asked_now_is_asked_again(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """LP 1882521, OpenNebula 8021: QEMU refuses a request for a device that is on its way out, and any at a slot that
    has just changed. The guest lets it go while the second attempt waits."""
    monkeypatch.setattr(hotplug, '_BUSY', 0.001)
    domain = Domain(GPU)
    domain.refuses['detachDeviceFlags'] = failure(libvirt.VIR_ERR_INTERNAL_ERROR, UNPLUG + said)
    monkeypatch.setattr(hotplug, '_LOOK', 0.002)
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 4:
            domain.live.clear()

    Hotplug(8, 0.001).take(Libvirt(domain).find(''), look)
    assert len(looks) == 4


def test_a_guest_that_can_never_be_asked_keeps_its_device() -> None:
    """The attempts have an end."""
    domain = Domain(GPU)
    domain.refuses['detachDeviceFlags'] = failure(libvirt.VIR_ERR_INTERNAL_ERROR, UNPLUG + 'guest is busy')
    with pytest.raises(GuestFailed, match=f'does not release {GPU}'):
        Hotplug(3, 0.001).take(Libvirt(domain).find(''), fine)


# --- network cards ---------------------------------------------------------------------------------------------------
CARD = '<interface type="bridge"><mac address="{1}"/><target dev="{0}"/></interface>'


class Carded:
    """A running domain of QEMU's with these network cards, by their devices. ``keeps``: how often its system ignores a
    request."""

    def __init__(self, *cards: str, keeps: int = 0) -> None:
        self.live, self.keeps, self.asked = list(cards), keeps, 0

    def name(self) -> str:
        return 'instance-00000001'

    def UUIDString(self) -> str:  # noqa: N802 - libvirt's name
        return '11111111-2222-3333-4444-555555555555'

    def connect(self) -> None:
        return None

    def XMLDesc(self, flags: int) -> str:  # noqa: N802 - libvirt's name
        found = ''.join(CARD.format(card, 'fa:16:3e:00:00:01') for card in self.live)
        return f'<domain><devices>{found}</devices></domain>'

    def detachDeviceFlags(self, card: str, flags: int) -> None:  # noqa: N802 - libvirt's name
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE
        self.asked += 1
        if self.asked > self.keeps:
            (gone,) = [device for device in self.live if f'dev="{device}"' in card]
            self.live.remove(gone)

    def attachDeviceFlags(self, card: str, flags: int) -> None:  # noqa: N802 - libvirt's name
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE
        if 'full' in self.live:
            raise failure(libvirt.VIR_ERR_INTERNAL_ERROR, 'No more available PCI slots')
        self.live.append('tap2')


def test_a_card_comes_once_and_goes_when_its_guest_lets_it() -> None:
    domain, plug = Carded('tap1', keeps=2), Hotplug(3, 5)
    guest = Libvirt(domain).find('')  # type: ignore[arg-type]
    for _again in range(2):
        plug.plug(guest, CARDS, CARD.format('tap2', 'fa:16:3e:00:00:02'), 'tap2')
        assert domain.live == ['tap1', 'tap2']
    for _again in range(2):
        plug.unplug(guest, CARDS, 'tap1', fine)
        assert domain.live == ['tap2'] and domain.asked == 3


def test_a_guest_that_keeps_its_card() -> None:
    domain = Carded('tap1', keeps=99)
    guest = Libvirt(domain).find('')  # type: ignore[arg-type]
    with pytest.raises(GuestFailed, match='does not release tap1'):
        Hotplug(3, 5).unplug(guest, CARDS, 'tap1', fine)
    assert domain.live == ['tap1'] and domain.asked == 3


def test_a_guest_without_room_for_a_card() -> None:
    domain = Carded('full')
    with pytest.raises(GuestFailed, match='No more available PCI slots'):
        Hotplug(3, 5).plug(Libvirt(domain).find(''), CARDS, CARD.format('tap2', 'x'), 'tap2')  # type: ignore[arg-type]
    assert domain.live == ['full']


def test_cards_in_a_definition() -> None:
    """A new one stands behind the others; what is there, or gone, changes nothing."""
    one, two = CARD.format('tap1', 'a'), CARD.format('tap2', 'b')
    definition = f'<domain><devices><disk />{one}<serial /></devices></domain>'
    both = CARDS.put(definition, two)
    devices_of = [each.tag for each in ElementTree.fromstring(both).iterfind('devices/*')]
    assert devices_of == ['disk', 'interface', 'interface', 'serial']
    assert CARDS.put(both, two) is both and CARDS.without(definition, 'tap2') is definition
    assert list(CARDS.found(both, 'tap2')) == ['tap2'] and CARDS.found(definition, 'tap2') == {}
    left = CARDS.without(both, 'tap1')
    assert CARDS.found(left, 'tap1') == {} and list(CARDS.found(left, 'tap2')) == ['tap2']
    assert CARDS.found(CARDS.put('<domain/>', one), 'tap1')


# As libvirt shows them of a guest that runs.
FUNCTION = (
    "<interface type='hostdev' managed='yes'><mac address='{mac}'/><driver name='vfio'/><source><address "
    "type='pci' domain='0x0000' bus='0x81' slot='0x00' function='0x{number}'/></source><vlan><tag id='101'/>"
    "</vlan><alias name='hostdev0'/></interface>"
)
MACVTAP = (
    "<interface type='direct'><mac address='{mac}'/><source dev='nic{number}' mode='passthrough'/><target "
    "dev='macvtap0'/><model type='virtio'/></interface>"
)
VHOST = (
    "<interface type='vdpa'><mac address='{mac}'/><source dev='/dev/vhost-vdpa-{number}'/><model type='virtio'/>"
    '</interface>'
)


@pytest.mark.parametrize(
    ('vnic_type', 'bound', 'element', 'name'),
    [
        ('direct', 'hw_veb', FUNCTION, '0000:81:00.2'),
        ('macvtap', 'hw_veb', MACVTAP, 'fa:16:3e:00:00:02'),
        ('vdpa', 'ovs', VHOST, 'fa:16:3e:00:00:02'),
        ('direct-physical', 'hostdev_physical', HOSTDEV.format('0000', '81', '00', '{number}'), '0000:81:00.2'),
        ('direct', 'ib_hostdev', HOSTDEV.format('0000', '81', '00', '{number}'), '0000:81:00.2'),
    ],
)
def test_a_function_is_found_among_others(vnic_type: str, bound: str, element: str, name: str) -> None:
    """By what the port says, not by a device that libvirt names."""
    vif = new_vif(vnic_type=vnic_type, type=bound, mac='fa:16:3e:00:00:02', profile={'pci_slot': '0000:81:00.2'})
    kind, found = of_port(vif)
    assert found == name
    mine, other = (element.format(mac=f'fa:16:3e:00:00:0{number}', number=number) for number in (2, 3))
    definition = kind.put(kind.put(f'<domain><devices>{CARD.format("tap1", "a")}</devices></domain>', other), mine)
    assert list(kind.found(definition, name)) == [name] and definition.count('function=') in (0, 2)
    left = kind.without(definition, name)
    assert kind.found(left, name) == {} and CARDS.found(left, 'tap1') and kind.put(left, other) == left
