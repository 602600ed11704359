"""Mediated devices: found, made and started. A machine is played, as libvirt's test driver makes none."""

# ruff: noqa: N802 - libvirt's names
from __future__ import annotations

import logging
import re
from typing import Any
from xml.etree import ElementTree

import libvirt
import pytest

from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices import hostdevs, mdev
from kilonova.virt.libvirt.devices.mdev import LibvirtMdevs, MediatedDevice
from kilonova.virt.parts.host import MdevUnavailable
from tests.unit.virt.builders import MDEV, MDEV2, VGPU, VGPU_PARENT, VGPUS, mdev_node

WANTED = MediatedDevice(MDEV, VGPU_PARENT, VGPU)
PARENT = VGPUS[0]


def failure(code: int, text: str = 'no') -> libvirt.libvirtError:
    libvirt.virResetLastError()  # of an earlier test; it would be the text
    error = libvirt.libvirtError(text)
    error.err = (code, 0, text, 2, '', '', '', 0, 0)
    return error


NO_DEVICE = libvirt.VIR_ERR_NO_NODE_DEVICE
FULL = failure(libvirt.VIR_ERR_INTERNAL_ERROR, 'Unable to start mediated device: available_instances is 0')


class Node:
    """A node device."""

    def __init__(self, machine: Machine, xml: str, active: bool = True) -> None:
        self.machine, self.xml, self.active, self.defined, self.autostarts = machine, xml, active, not active, False

    def name(self) -> str:
        return ElementTree.fromstring(self.xml).findtext('name') or ''

    def XMLDesc(self, flags: int) -> str:
        return self.xml

    def isActive(self) -> int:
        self.machine.answer('isActive')
        return self.active

    def create(self) -> int:
        self.machine.answer('create')
        self.active = True
        return 0

    def destroy(self) -> int:
        self.machine.answer('destroy')
        self.active = False
        if not self.defined:
            self.machine.devices.remove(self)
        return 0

    def undefine(self) -> int:
        self.machine.answer('undefine')
        self.machine.devices.remove(self)
        return 0

    def setAutostart(self, autostart: int) -> int:
        self.machine.answer('setAutostart')
        self.autostarts = bool(autostart)
        return 0


class Machine:
    """A machine with devices, and libvirt's connection to it; ``refuses`` {method: error}; ``late``: methods that are
    done when they are refused."""

    def __init__(self, *texts: str) -> None:
        self.devices: list[Node] = []
        self.add(*texts)
        self.refuses: dict[str, Exception] = {}
        self.late: dict[str, tuple[str, bool]] = {}
        self.asked: list[str] = []

    def add(self, *texts: str, active: bool = True) -> None:
        self.devices += [Node(self, text, active) for text in texts]

    def answer(self, method: str) -> None:
        self.asked.append(method)
        if method in self.late:
            text, active = self.late[method]
            self.devices = [one for one in self.devices if one.xml != text]
            self.add(text, active=active)
        if method in self.refuses:
            raise self.refuses[method]

    def listAllDevices(self, flags: int) -> list[Node]:
        self.answer('listAllDevices')
        assert flags == libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV
        return [one for one in self.devices if one.name().startswith('mdev_')]

    def nodeDeviceLookupByName(self, name: str) -> Node:
        for one in self.devices:
            if one.name() == name:
                return one
        raise failure(NO_DEVICE)

    def nodeDeviceCreateXML(self, xml: str, flags: int) -> Node:
        self.answer('nodeDeviceCreateXML')
        self.add(self._read(xml))
        return self.devices[-1]

    def nodeDeviceDefineXML(self, xml: str, flags: int) -> Node:
        self.answer('nodeDeviceDefineXML')
        found = next(one for one in self.devices if one.xml == self._read(xml))
        found.defined = True
        return found

    @staticmethod
    def _read(xml: str) -> str:
        device = ElementTree.fromstring(xml)
        (uuid,), (kind,) = device.findall("capability[@type='mdev']/uuid"), device.findall('capability/type')
        return mdev_node(str(uuid.text), str(device.findtext('parent')), str(kind.get('id')))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(PARENT)
    monkeypatch.setattr(Connection, 'do', lambda self, act, again=True: act(made))
    return made


@pytest.fixture
def mediated(machine: Machine) -> LibvirtMdevs:
    return LibvirtMdevs(Connection('qemu:///system', 'gpu1'))


# -- found -------------------------------------------------------------------------------------------------------------
def test_found_by_capability_or_name() -> None:
    """Those of parents that are no PCI functions (mtty) are nobody's, and so are those of unknown ones."""
    found = hostdevs.discover(
        [
            mdev_node(MDEV2, old=True),
            PARENT,
            mdev_node(MDEV.upper()),
            mdev_node(MDEV.replace('4b', '5b'), 'mtty_mtty'),
            mdev_node(MDEV.replace('4b', '6b'), 'pci_0000_99_00_0'),
            mdev_node(MDEV, old=True).replace('mdev_4b', 'mdev_odd'),
        ]
    )
    assert found[1:] == [
        {
            'dev_id': f'mdev_{uuid.replace("-", "_")}{rest}',
            'address': uuid.lower(),
            'dev_type': 'mdev',
            'mdev_type': VGPU,
            'parent_addr': VGPU_PARENT,
            'vendor_id': '10de',
            'product_id': '13f2',
            'numa_node': 1,
            'label': 'label_10de_13f2',
            'capabilities': {},
        }
        for uuid, rest in ((MDEV.upper(), '_0000_84_00_0'), (MDEV2, ''))
    ]


def test_one_of_two_definitions_of_one_uuid(caplog: pytest.LogCaptureFixture) -> None:
    function = {
        'dev_id': 'pci_0000_84_00_0',
        'address': VGPU_PARENT,
        'vendor_id': '',
        'product_id': '',
        'numa_node': None,
        'label': '',
    }
    (found,) = mdev.discover([mdev_node(MDEV), mdev_node(MDEV, old=True, type_='nvidia-36')], [function])
    assert found['mdev_type'] == 'nvidia-36' and 'has the same uuid' in caplog.text


# -- made --------------------------------------------------------------------------------------------------------------
def test_a_missing_one_is_made_to_stay(machine: Machine, mediated: LibvirtMdevs) -> None:
    machine.add(mdev_node(MDEV2))
    mediated.ensure([WANTED])
    made = machine.devices[-1]
    assert (made.xml, made.active, made.defined, made.autostarts) == (mdev_node(MDEV), True, True, True)
    # Once it is there it is only looked at.
    machine.asked.clear()
    mediated.ensure([WANTED])
    assert machine.asked == ['listAllDevices', 'isActive']


@pytest.mark.parametrize('old', [False, True])
def test_one_that_is_only_defined_is_started(machine: Machine, mediated: LibvirtMdevs, old: bool) -> None:
    machine.add(mdev_node(MDEV, old=old), active=False)
    mediated.ensure([WANTED])
    assert machine.devices[-1].active and 'nodeDeviceCreateXML' not in machine.asked


@pytest.mark.parametrize('method', ['nodeDeviceDefineXML', 'setAutostart'])
def test_one_that_does_not_stay_is_a_warning(
    machine: Machine, mediated: LibvirtMdevs, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    machine.refuses[method] = failure(libvirt.VIR_ERR_INTERNAL_ERROR, 'mdevctl: read-only file system')
    mediated.ensure([WANTED])
    assert machine.devices[-1].active
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert MDEV in warning and 'read-only file system' in warning


def test_one_that_can_not_be_made(machine: Machine, mediated: LibvirtMdevs) -> None:
    machine.refuses['nodeDeviceCreateXML'] = FULL
    with pytest.raises(
        MdevUnavailable,
        match=re.escape(
            f'mdev-capable resource is not available: mediated device {MDEV} of type {VGPU} on card {VGPU_PARENT} '
            'cannot be used: Unable to start mediated device: available_instances is 0'
        ),
    ):
        mediated.ensure([WANTED])


def test_one_that_can_not_be_started(machine: Machine, mediated: LibvirtMdevs) -> None:
    machine.add(mdev_node(MDEV), active=False)
    machine.refuses['create'] = FULL
    with pytest.raises(MdevUnavailable, match='available_instances is 0'):
        mediated.ensure([WANTED])


@pytest.mark.parametrize(('method', 'active'), [('nodeDeviceCreateXML', None), ('create', False)])
def test_a_call_that_is_made_again_after_it_was_done(
    machine: Machine, mediated: LibvirtMdevs, method: str, active: bool | None
) -> None:
    """The connection was lost before the answer, and the second call is refused."""
    if active is not None:
        machine.add(mdev_node(MDEV), active=active)
    machine.late[method] = mdev_node(MDEV), True
    machine.refuses[method] = failure(libvirt.VIR_ERR_OPERATION_INVALID, 'already exists')
    mediated.ensure([WANTED])
    assert machine.devices[-1].active and machine.asked.count(method) == 1


def test_one_that_was_defined_meanwhile_does_not_run(machine: Machine, mediated: LibvirtMdevs) -> None:
    machine.late['nodeDeviceCreateXML'] = mdev_node(MDEV), False
    machine.refuses['nodeDeviceCreateXML'] = FULL
    with pytest.raises(MdevUnavailable, match='available_instances is 0'):
        mediated.ensure([WANTED])


@pytest.mark.parametrize('there', [mdev_node(MDEV, type_='nvidia-36'), mdev_node(MDEV, 'pci_0000_99_00_0')])
def test_another_of_its_uuid(machine: Machine, mediated: LibvirtMdevs, there: str) -> None:
    machine.add(there, active=False)
    parsed = ElementTree.fromstring(there)
    with pytest.raises(
        MdevUnavailable,
        match=f'of type {VGPU} on card {VGPU_PARENT} cannot be used: .* is of type '
        f'{parsed.find("capability/type").get("id")} on {parsed.findtext("parent")}',
    ):  # type: ignore[union-attr]
        mediated.ensure([WANTED])
    assert not machine.devices[-1].active


# -- after a boot of the host ------------------------------------------------------------------------------------------
def test_defined_ones_are_started_with_the_host(
    machine: Machine, mediated: LibvirtMdevs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    machine.add(mdev_node(MDEV))
    mediated.start_inactive()
    assert caplog.text == ''
    machine.add(mdev_node(MDEV2), active=False)
    name = machine.devices[-1].name()
    mediated.start_inactive()
    assert machine.devices[-1].active
    assert f"Found inactive mdevs: ['{name}']" in caplog.text and f'Starting inactive mdev: {name}' in caplog.text


def test_one_that_does_not_start_with_the_host_is_a_warning(
    machine: Machine, mediated: LibvirtMdevs, caplog: pytest.LogCaptureFixture
) -> None:
    machine.refuses['create'] = FULL
    machine.add(mdev_node(MDEV), mdev_node(MDEV2), active=False)
    mediated.start_inactive()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [machine.devices[-2].name() in warnings[0], machine.devices[-1].name() in warnings[1]] == [True, True]


def test_a_libvirt_that_knows_none(machine: Machine, mediated: LibvirtMdevs) -> None:
    machine.refuses['listAllDevices'] = failure(libvirt.VIR_ERR_NO_SUPPORT)
    mediated.start_inactive()
    assert mediated.uuids() == set()


def test_a_host_starts_them(libvirt_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(LibvirtMdevs, 'start_inactive', lambda self: started.append(1))
    libvirt_rig.driver('gpu3')
    assert started == [1]


# -- removed -----------------------------------------------------------------------------------------------------------
def test_only_what_is_named_is_removed(machine: Machine, mediated: LibvirtMdevs) -> None:
    """Whether it is active and defined, only active, or only defined."""
    third, fourth = MDEV.replace('4b', '5b'), MDEV.replace('4b', '6b')
    machine.add(mdev_node(MDEV), mdev_node(MDEV2), mdev_node(fourth))
    machine.devices[1].defined = True
    machine.add(mdev_node(third), active=False)
    mediated.remove([MDEV, MDEV2, third])
    assert [one.xml for one in machine.devices] == [PARENT, mdev_node(fourth)]


def test_one_that_a_guest_has_stays_and_the_others_go(
    machine: Machine, mediated: LibvirtMdevs, caplog: pytest.LogCaptureFixture
) -> None:
    machine.add(mdev_node(MDEV))
    machine.add(mdev_node(MDEV2), active=False)
    machine.refuses['destroy'] = failure(libvirt.VIR_ERR_OPERATION_INVALID, 'is in use by domain')
    mediated.remove([MDEV, MDEV2])
    assert [one.active for one in machine.devices] == [True, True] and 'in use by domain' in caplog.text
