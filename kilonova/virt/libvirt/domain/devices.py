"""Classes that write a guest's devices into its domain XML: serial ports, graphics, controllers and more.

The modules ``disk`` and ``interface`` write disks and network cards.
"""

from __future__ import annotations

from oslo_utils import strutils

from kilonova import errors
from kilonova.virt.hardware import tuning
from kilonova.virt.libvirt.devices.mdev import MediatedDevice
from kilonova.virt.libvirt.domain.disk import layout
from kilonova.virt.libvirt.domain.guest import X86, GuestSpec
from kilonova.virt.libvirt.xml.base import Domain
from kilonova.virt.libvirt.xml.devices import (
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
    WatchdogElement,
)
from kilonova.virt.parts.guests import NotOnThisHost, UnsupportedHardware

# Values of hw_video_model that QEMU supports.
_VIDEO_MODELS = frozenset({'vga', 'cirrus', 'vmvga', 'qxl', 'virtio', 'none', 'bochs'})
# Video models for guests that request none, in the order of preference. The first one that the host supports is used.
_VIDEO_DEFAULTS = ('virtio', 'vga', 'cirrus')
_MOST_PLAIN_INTERRUPTS = 255
_ICH9 = 'ich9-ehci1'


class SerialConfigurator:
    """Writes the guest's serial ports into the domain XML: hw:serial_port_count (hw_serial_port_count), default 1."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the serial ports. libvirt logs the output of the first port."""
        if guest.console_log:
            listen = guest.settings.consoles.serial
            tcp = [(listen, port) for port in guest.serial_tcp] if listen else []
            domain.devices.extend(
                Serial(None if port else guest.console_log, port, tcp[port] if port < len(tcp) else None)
                for port in range(guest.tuning.serial_ports)
            )


class GraphicsConfigurator:
    """Writes the VNC and SPICE servers for the guest's screen into the domain XML, if [vnc] or [spice] is enabled."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Add the enabled VNC and SPICE servers to the domain, and the channel of the SPICE agent if it is enabled."""
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
    """Writes the guest's tablet and keyboard into the domain XML.

    A guest with a screen gets a tablet according to hw_pointer_model, [DEFAULT]pointer_model and hw_input_bus. It also
    gets a keyboard if its board has no keyboard of its own or if the bus is virtio.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the tablet and the keyboard, if the guest has them."""
        if guest.has_tablet:
            domain.devices.append(Input('tablet', guest.input_bus))
        if (
            guest.settings.is_qemu
            and guest.settings.consoles.has_screen
            and (guest.input_bus == 'virtio' or guest.settings.arch not in X86)
        ):
            domain.devices.append(Input('keyboard', guest.input_bus))


class VideoConfigurator:
    """Writes the guest's video adapter into the domain XML.

    A guest gets a video adapter if it has a screen. hw_video_model or hw_video_ram of the image also request one.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the video adapter.

        Raises UnsupportedHardware for a model that no host supports, and NotOnThisHost for a model that this host does
        not support.
        """
        model, ram = guest.tuning.video_model, guest.tuning.video_ram
        if not (model or ram or guest.settings.consoles.has_screen) or not guest.settings.is_qemu:
            return
        known = guest.settings.video_models or _VIDEO_MODELS
        defaults = tuning.SIZED_VIDEO if ram else _VIDEO_DEFAULTS
        model = model or next((name for name in defaults if name in known), defaults[0])
        if model not in _VIDEO_MODELS:
            raise UnsupportedHardware(model=f'video {model}', virt=guest.settings.virt_type)
        if model not in known:
            raise NotOnThisHost(
                name='hw_video_model', value=model, reason=f'it must be one of {", ".join(sorted(known))}'
            )
        domain.devices.append(Video(model, ram * 1024 or None))


class AgentConfigurator:
    """Writes the channel of the QEMU guest agent into the domain XML, for images with hw_qemu_guest_agent."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the channel of the QEMU guest agent. If the agent answers, libvirt uses it to shut the guest down."""
        if guest.settings.is_qemu and strutils.bool_from_string(guest.image_property('hw_qemu_guest_agent')):
            domain.devices.append(AgentChannel())


class RngConfigurator:
    """Writes the guest's virtio random number generator into the domain XML."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the random number generator.

        Do nothing if the host has no source of random numbers or if the flavor forbids the device (hw_rng:allowed).
        """
        asked, source = guest.tuning.random, guest.settings.rng_source
        if not source or not guest.settings.is_qemu or asked is None:
            return
        domain.devices.append(Rng(source, None if asked.rate_bytes is None else (asked.rate_bytes, asked.period)))


class SoundConfigurator:
    """Writes the guest's sound card into the domain XML, if hw:sound_model or hw_sound_model requests one."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the sound card. Raises NotOnThisHost if the host's QEMU or libvirt is too old for the model."""
        model = guest.tuning.sound
        if model and guest.settings.is_qemu:
            _check_model('hw:sound_model', model, guest.settings.models.sound)
            domain.devices.append(Sound(model))


class IommuConfigurator:
    """Writes the guest's IOMMU into the domain XML, if hw:viommu_model or hw_viommu_model requests one.

    The value ``auto`` selects the usual IOMMU of the guest's machine type.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the IOMMU.

        Raises UnsupportedHardware if the image requests a machine type that does not support an IOMMU. Raises
        NotOnThisHost if the image requests no machine type and the default machine type of this host does not support
        it.
        """
        model = guest.iommu
        if not model or not guest.settings.is_qemu:
            return
        _check_model('hw:viommu_model', model, guest.settings.models.iommu)
        if not guest.is_pcie:
            if guest.image_property('hw_machine_type'):
                raise UnsupportedHardware(
                    model=f'IOMMU {model} on machine type {guest.machine}', virt=guest.settings.virt_type
                )
            raise NotOnThisHost(
                name='hw:viommu_model',
                value=model,
                reason=(
                    f'machine type {guest.machine} does not support an IOMMU; a PCI Express machine type (q35) is '
                    'needed'
                ),
            )
        domain.devices.append(Iommu(model, self._intel(guest) if model == tuning.INTEL else {}))

    def _intel(self, guest: GuestSpec) -> dict[str, str]:
        """Return the attributes of this guest's Intel IOMMU.

        With caching_mode, QEMU sees each mapping that the guest makes in its IOMMU, and makes the same mapping in the
        host's IOMMU for passed-through devices. A guest with more than 255 vCPUs needs extended interrupts (eim).
        """
        many = {'eim': 'on'} if guest.flavor.vcpus > _MOST_PLAIN_INTERRUPTS else {}
        return {'intremap': 'on', 'caching_mode': 'on', **many, 'iotlb': 'on', 'aw_bits': '48'}


def _check_model(name: str, model: str, known: frozenset[str]) -> None:
    """Raise NotOnThisHost if the host's device models are known and ``model`` is not one of them.

    ``name`` is the extra spec or image property that requests the model.
    """
    if known and model not in known:
        raise NotOnThisHost(name=name, value=model, reason=f'it must be one of {", ".join(sorted(known))}')


class ControllerConfigurator:
    """Writes the guest's USB and PCI Express controllers into the domain XML.

    A guest has a USB bus only if one of its devices (disk, tablet, sound card) needs the bus, or if flavor or image set
    a USB model. A PCI Express guest has [libvirt]num_pcie_ports free ports for devices that are plugged in later.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the USB and PCI Express controllers.

        Raises NotOnThisHost if this host does not support the USB model.
        """
        settings = guest.settings
        model = guest.tuning.usb
        if model and settings.is_qemu:
            _check_model('hw:usb_model', model, settings.models.usb)
            domain.devices.append(Controller('usb', model=model, index=0))
            if model == _ICH9:
                # An ICH9 USB controller needs three companion controllers for slow USB devices.
                domain.devices.extend(
                    Controller('usb', model=f'ich9-uhci{number}', index=0, start=2 * (number - 1))
                    for number in (1, 2, 3)
                )
        elif settings.is_qemu and settings.arch in X86:
            used = (
                layout(guest).has('usb')
                or guest.tuning.sound == 'usb'
                or (guest.has_tablet and guest.input_bus == 'usb')
            )
            domain.devices.append(Controller('usb', model=None if used else 'none', index=0))
        if guest.is_pcie and settings.pcie_ports:
            domain.devices.append(Controller('pci', model='pcie-root'))
            domain.devices.extend(Controller('pci', model='pcie-root-port') for _port in range(settings.pcie_ports))


class HostdevConfigurator:
    """Writes the devices of the host that a guest gets into the domain XML.

    There is one <hostdev> for each PCI function and each mediated device.

    libvirt adds the driver, the alias and the address in the guest to each <hostdev>.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the host's devices that the guest gets.

        Raises PciDeviceUnsupportedHypervisor if the hypervisor is not QEMU.
        """
        if guest.hostdevs and not guest.settings.is_qemu:
            raise errors.PciDeviceUnsupportedHypervisor(type=guest.settings.virt_type)
        for device in guest.hostdevs:
            if isinstance(device, MediatedDevice):
                domain.devices.append(MediatedHostDevice(device.uuid))
                continue
            domain.devices.append(PciHostDevice(device.address, device.managed))


class WatchdogConfigurator:
    """Writes the guest's watchdog device into the domain XML: an Intel 6300ESB.

    The model is the same for all machine types (pc, q35, arm), because each of them has PCI and can have this device.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the watchdog if flavor or image request one."""
        if guest.tuning.watchdog and guest.settings.is_qemu:
            domain.devices.append(WatchdogElement('i6300esb', guest.tuning.watchdog))


class BalloonConfigurator:
    """Writes the virtio memory balloon, which reports memory statistics, into the domain XML."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the memory balloon. It is switched off if [libvirt]mem_stats_period_seconds is 0."""
        if guest.settings.is_qemu:
            period = guest.settings.memory_stats_period
            domain.devices.append(MemoryBalloon(period if period > 0 else None))
