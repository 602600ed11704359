"""The guest's devices besides its disks: ports, graphics, controllers, and those of the host that it is given."""
from __future__ import annotations

from oslo_utils import strutils

from kilonova import errors
from kilonova.virt.hardware import tuning
from kilonova.virt.libvirt.devices.mdev import MediatedDevice
from kilonova.virt.libvirt.domain.disk import layout
from kilonova.virt.libvirt.domain.guest import X86, GuestSpec
from kilonova.virt.libvirt.xml import Domain
from kilonova.virt.libvirt.xml_devices import (
    AgentChannel,
    Controller,
    Graphics,
    Input,
    Iommu,
    MediatedHostDevice,
    MemoryBalloon,
    PciHostDevice,
    Rng,
    Serial,
    Sound,
    SpiceChannel,
    Video,
    Watchdog,
)
from kilonova.virt.parts.guests import NotOnThisHost, UnsupportedHardware

# Of the field's models, those that QEMU has.
_VIDEO_MODELS = frozenset({'vga', 'cirrus', 'vmvga', 'qxl', 'virtio', 'none', 'bochs'})
# What guests get that ask for none: the first that the host has.
_VIDEO_DEFAULTS = ('virtio', 'vga', 'cirrus')
_MOST_PLAIN_INTERRUPTS = 255
_ICH9 = 'ich9-ehci1'


class SerialConfigurator:
    """hw:serial_port_count, hw_serial_port_count; one where nobody says a number. libvirt logs the first."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.console_log:
            listen = guest.settings.consoles.serial
            tcp = [(listen, port) for port in guest.serial_tcp] if listen else []
            domain.devices.extend(Serial(
                None if port else guest.console_log, port, tcp[port] if port < len(tcp) else None)
                for port in range(guest.tuning.serial_ports))


class GraphicsConfigurator:
    """[vnc]enabled, [spice]enabled: servers that show the guest's screen, and the port of SPICE's agent."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        consoles = guest.settings.consoles
        if not guest.settings.is_qemu:
            return
        if consoles.vnc is not None:
            domain.devices.append(Graphics('vnc', consoles.vnc))
        if consoles.spice is not None:
            spice = consoles.spice
            if spice.agent:
                domain.devices.append(SpiceChannel())
            domain.devices.append(Graphics('spice', spice.listen, spice.secure, tuple(spice.options.items())))


class InputConfigurator:
    """A tablet where there is a screen (hw_pointer_model, [DEFAULT]pointer_model, hw_input_bus), and a keyboard where
    the board has none of its own or the bus is virtio."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.has_tablet:
            domain.devices.append(Input('tablet', guest.input_bus))
        if guest.settings.is_qemu and guest.settings.consoles.has_screen and (
                guest.input_bus == 'virtio' or guest.settings.arch not in X86):
            domain.devices.append(Input('keyboard', guest.input_bus))


class VideoConfigurator:
    """An adapter where there is a screen, or where hw_video_model or hw_video_ram ask for one.

    Raises UnsupportedHardware for a model that no host gives, NotOnThisHost for one that this host doesn't give.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        model, ram = guest.tuning.video_model, guest.tuning.video_ram
        if not (model or ram or guest.settings.consoles.has_screen) or not guest.settings.is_qemu:
            return
        known = guest.settings.video_models or _VIDEO_MODELS
        defaults = tuning.SIZED_VIDEO if ram else _VIDEO_DEFAULTS
        model = model or next((name for name in defaults if name in known), defaults[0])
        if model not in _VIDEO_MODELS:
            raise UnsupportedHardware(model=f'video {model}', virt=guest.settings.virt_type)
        if model not in known:
            raise NotOnThisHost(name='hw_video_model', value=model,
                                reason=f'it must be one of {", ".join(sorted(known))}')
        domain.devices.append(Video(model, ram * 1024 or None))


class AgentConfigurator:
    """Where the image says hw_qemu_guest_agent: libvirt asks the agent, if it answers, to shut the guest down."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.settings.is_qemu and strutils.bool_from_string(guest.image_property('hw_qemu_guest_agent')):
            domain.devices.append(AgentChannel())


class RngConfigurator:
    """A virtio device, unless the host has no source or the flavor forbids it (hw_rng:allowed)."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        asked, source = guest.tuning.random, guest.settings.rng_source
        if not source or not guest.settings.is_qemu or asked is None:
            return
        domain.devices.append(Rng(source, None if asked.rate_bytes is None else (asked.rate_bytes, asked.period)))


class SoundConfigurator:
    """hw:sound_model, hw_sound_model. Raises NotOnThisHost if the host's QEMU or libvirt is too old for it."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        model = guest.tuning.sound
        if model and guest.settings.is_qemu:
            _check_model('hw:sound_model', model, guest.settings.models.sound)
            domain.devices.append(Sound(model))


class IommuConfigurator:
    """hw:viommu_model, hw_viommu_model; what auto is depends on the board.

    Raises NotOnThisHost if boards of this host have none of that model, UnsupportedHardware if the image's board has
    none on any host.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        model = guest.iommu
        if not model or not guest.settings.is_qemu:
            return
        _check_model('hw:viommu_model', model, guest.settings.models.iommu)
        if not guest.is_pcie:
            if guest.image_property('hw_machine_type'):
                raise UnsupportedHardware(model=f'IOMMU {model} on machine type {guest.machine}',
                                          virt=guest.settings.virt_type)
            raise NotOnThisHost(name='hw:viommu_model', value=model, reason=(
                f'its machine type {guest.machine} has none, one of PCI Express (q35) is needed'))
        domain.devices.append(Iommu(model, self._intel(guest) if model == tuning.INTEL else {}))

    def _intel(self, guest: GuestSpec) -> dict[str, str]:
        """What devices of the host need behind it: they are told what the guest maps (caching_mode), at addresses of 48
        bits. More than 255 vCPUs need extended interrupts."""
        many = {'eim': 'on'} if guest.flavor.vcpus > _MOST_PLAIN_INTERRUPTS else {}
        return {'intremap': 'on', 'caching_mode': 'on', **many, 'iotlb': 'on', 'aw_bits': '48'}


def _check_model(name: str, model: str, known: frozenset[str]) -> None:
    """Raise NotOnThisHost for a host that is known to have others."""
    if known and model not in known:
        raise NotOnThisHost(name=name, value=model, reason=f'it must be one of {", ".join(sorted(known))}')


class ControllerConfigurator:
    """No USB bus unless a disk, tablet or sound card is on it, or flavor or image name one (hw:usb_model,
    hw_usb_model); [libvirt]num_pcie_ports free ports for devices plugged in later."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        settings = guest.settings
        model = guest.tuning.usb
        if model and settings.is_qemu:
            _check_model('hw:usb_model', model, settings.models.usb)
            domain.devices.append(Controller('usb', model=model, index=0))
            if model == _ICH9:
                # Its slow devices are theirs, and without the first a guest finds none of them.
                domain.devices.extend(Controller('usb', model=f'ich9-uhci{number}', index=0, start=2 * (number - 1))
                                      for number in (1, 2, 3))
        elif settings.is_qemu and settings.arch in X86:
            used = (layout(guest).has('usb') or guest.tuning.sound == 'usb'
                    or (guest.has_tablet and guest.input_bus == 'usb'))
            domain.devices.append(Controller('usb', model=None if used else 'none', index=0))
        if guest.is_pcie and settings.pcie_ports:
            domain.devices.append(Controller('pci', model='pcie-root'))
            domain.devices.extend(Controller('pci', model='pcie-root-port') for _port in range(settings.pcie_ports))


class HostdevConfigurator:
    """One <hostdev> a PCI function or mediated device: no driver, alias or guest address, libvirt adds those.

    Raises PciDeviceUnsupportedHypervisor for guests that can't have any.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.hostdevs and not guest.settings.is_qemu:
            raise errors.PciDeviceUnsupportedHypervisor(type=guest.settings.virt_type)
        for device in guest.hostdevs:
            if isinstance(device, MediatedDevice):
                domain.devices.append(MediatedHostDevice(device.uuid))
                continue
            domain.devices.append(PciHostDevice(device.address, device.managed))


class WatchdogConfigurator:
    """Intel's 6300ESB, a PCI device that guests of both PC boards and of arm's have drivers for."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.tuning.watchdog and guest.settings.is_qemu:
            domain.devices.append(Watchdog('i6300esb', guest.tuning.watchdog))


class BalloonConfigurator:
    """virtio with statistics; none where [libvirt]mem_stats_period_seconds is 0."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.settings.is_qemu:
            period = guest.settings.memory_stats_period
            domain.devices.append(MemoryBalloon(period if period > 0 else None))
