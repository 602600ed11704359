"""Classes that write a guest's machine into its domain XML: boot, firmware, features, clock and metadata."""

from __future__ import annotations

import datetime

from oslo_utils import strutils

from kilonova.virt.hardware import tuning
from kilonova.virt.libvirt.domain.disk import places
from kilonova.virt.libvirt.domain.guest import X86, GuestSpec
from kilonova.virt.libvirt.xml.base import Clock, Domain, Element, Kernel, Os, Timer, node
from kilonova.virt.parts.guests import NotOnThisHost, UnsupportedHardware

# Consoles on which the guest's kernel prints: a screen, a serial port, and a paravirtual console.
_CONSOLES = 'console=tty0 console=ttyS0 console=hvc0'
# Hyper-V features that QEMU emulates because Windows runs faster with them.
_ENLIGHTENMENTS = ('relaxed', 'vapic', 'vpindex', 'runtime', 'synic', 'reset', 'frequencies', 'tlbflush', 'ipi')
# cloud-init checks for this product name before it searches for a config drive, so Nova's name is used.
_MANUFACTURER, _PRODUCT, _FAMILY = 'OpenStack Foundation', 'OpenStack Nova', 'Virtual Machine'
NAMESPACE = 'http://openstack.org/xmlns/libvirt/nova/1.1'


def _nova(tag: str, *children: Element | str | None, **attributes: str) -> Element:
    return node(f'nova:{tag}', *children, **attributes)


class MetadataConfigurator:
    """Writes the domain's metadata: the element nova:instance, in the namespace that Nova's tools expect."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write name, creation time, flavor, image and owner of the server into the domain's metadata."""
        instance, flavor = guest.instance, guest.flavor
        specs = [_nova('extraSpec', str(value), name=name) for name, value in sorted(guest.extra_specs.items())]
        properties = [
            _nova('property', str(value), name=name)
            for name, value in sorted((guest.image_meta.get('properties') or {}).items())
        ]
        created = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M:%S')
        domain.metadata = _nova(
            'instance',
            _nova('package', version=guest.settings.version) if guest.settings.version else None,
            _nova('name', getattr(instance, 'display_name', None) or ''),
            _nova('creationTime', created),
            _nova(
                'flavor',
                _nova('memory', str(flavor.memory_mb)),
                _nova('disk', str(flavor.root_gb)),
                _nova('swap', str(flavor.swap)),
                _nova('ephemeral', str(flavor.ephemeral_gb)),
                _nova('vcpus', str(flavor.vcpus)),
                _nova('extraSpecs', *specs),
                name=flavor.name or '',
            ),
            _nova('image', _nova('properties', *properties), uuid=instance.image_ref) if instance.image_ref else None,
            _nova(
                'owner', _nova('user', uuid=instance.user_id or ''), _nova('project', uuid=instance.project_id or '')
            ),
            _nova('root', type='image', uuid=instance.image_ref) if instance.image_ref else None,
        )
        # libvirt returns the element unchanged only if the namespace is declared here instead of on <domain>.
        domain.metadata.set('xmlns:nova', NAMESPACE)


class SysinfoConfigurator:
    """Writes the system information for the guest's SMBIOS into the domain XML."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write manufacturer, product, serial number and uuid. Only QEMU guests have them."""
        if not guest.settings.is_qemu:
            return
        uuid = guest.instance.uuid
        number = uuid if guest.settings.serial_number == 'unique' else guest.settings.serial_number
        domain.sysinfo = {'manufacturer': _MANUFACTURER, 'product': _PRODUCT, 'uuid': uuid, 'family': _FAMILY}
        if number:
            domain.sysinfo['serial'] = number


class OsConfigurator:
    """Writes the guest's machine type and the way in which the guest boots into the domain XML.

    The machine type comes from the image or from the host. The guest boots from its disk or with the image's own
    kernel, with BIOS or UEFI.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the <os> element, and the features that secure boot needs.

        Raises NotOnThisHost if the host has no such machine type or firmware. Raises UnsupportedHardware if the image
        requires secure boot and a machine type that does not support it.
        """
        self._check_machine(guest)
        firmware = self._firmware(guest)
        secure = firmware is not None and self._secure_boot(guest)
        if secure:
            # Secure boot needs system management mode (smm), which protects the keys from the guest's own kernel.
            domain.features.append(node('smm', state='on'))
        domain.os = Os(
            arch=guest.settings.arch,
            machine=guest.machine,
            boot=[]
            if any(disk.boots for disk in guest.disks) or any(given.volume.is_root for given in guest.volumes)
            else ['hd'],
            bootmenu=guest.asks('hw:boot_menu', 'hw_boot_menu'),
            smbios=guest.settings.is_qemu,
            firmware=firmware,
            secure_boot=secure,
            kernel=self._kernel(guest),
        )

    def _check_machine(self, guest: GuestSpec) -> None:
        """Raise NotOnThisHost if the host's QEMU lacks the machine type, or if the flavor has too many vCPUs for it."""
        known, machine, vcpus = guest.settings.machine_types, guest.machine, guest.flavor.vcpus
        if not known or machine is None:
            return
        if machine not in known:
            # The message lists only machine types without a version (q35), as there are many with one (pc-q35-7.2).
            raise NotOnThisHost(
                name='hw_machine_type',
                value=machine,
                reason='the QEMU of the host supports {}'.format(
                    ', '.join(sorted(name for name in known if '.' not in name)) or ', '.join(sorted(known))
                ),
            )
        most = known[machine]
        if most is not None and vcpus > most:
            raise NotOnThisHost(name='vcpus', value=vcpus, reason=f'machine type {machine} has at most {most}')

    def _firmware(self, guest: GuestSpec) -> str | None:
        """Return 'efi' for UEFI, or None for BIOS. A guest on arm always has UEFI."""
        wanted = guest.tuning.firmware or (tuning.UEFI if guest.settings.arch == 'aarch64' else None)
        if wanted != tuning.UEFI or not guest.settings.is_qemu:
            return None
        if not guest.settings.has_uefi:
            raise NotOnThisHost(name='hw_firmware_type', value=tuning.UEFI, reason='the host has no UEFI firmware')
        return 'efi'

    def _secure_boot(self, guest: GuestSpec) -> bool:
        if guest.tuning.secure_boot == tuning.DISABLED:
            return False
        can = guest.settings.has_secure_boot and 'q35' in (guest.machine or '')
        if can or guest.tuning.secure_boot != tuning.REQUIRED:
            return can
        if guest.image_property('hw_machine_type') and 'q35' not in (guest.machine or ''):
            raise UnsupportedHardware(
                model=f'secure boot on machine type {guest.machine}', virt=guest.settings.virt_type
            )
        raise NotOnThisHost(
            name='os:secure_boot',
            value=tuning.REQUIRED,
            reason=f'the host has no firmware with secure boot for machine type {guest.machine}',
        )

    def _kernel(self, guest: GuestSpec) -> Kernel | None:
        if guest.kernel is None:
            return None
        root = next((place.target for place in places(guest)), 'vda')
        said = guest.image_property('os_command_line') if guest.command_line is None else guest.command_line
        return Kernel(guest.kernel, guest.ramdisk, said or f'root=/dev/{root} {_CONSOLES}')


class FeaturesConfigurator:
    """Writes the guest's features into the domain XML: acpi, apic and vmcoreinfo, and hyperv for Windows.

    If flavor or image request it, KVM is hidden from the guest, because some drivers refuse to run in a guest.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the <features> of QEMU guests on x86 and arm."""
        arch = guest.settings.arch
        if not guest.settings.is_qemu or arch not in (*X86, 'aarch64'):
            return
        domain.features.append(node('acpi'))
        if arch in X86:
            domain.features.append(node('apic'))
        domain.features.append(node('vmcoreinfo'))
        if guest.iommu == tuning.INTEL:
            # The interrupt remapping of the guest's Intel IOMMU needs an I/O APIC in QEMU instead of the one in KVM.
            domain.features.append(node('ioapic', driver='qemu'))
        hidden = any(
            guest.asks(spec, 'img_hide_hypervisor_id') for spec in ('hw:hide_hypervisor_id', 'hide_hypervisor_id')
        )
        # KVM provides the hyperv features. Without KVM, QEMU would refuse to start with them.
        if guest.is_windows and arch in X86 and guest.settings.virt_type == 'kvm':
            domain.features.append(self._hyperv(hidden))
        if hidden:
            domain.features.append(node('kvm', node('hidden', state='on')))
        pmu = guest.extra_specs.get('hw:pmu') or guest.image_property('hw_pmu')
        if pmu is not None:
            domain.features.append(node('pmu', state='on' if strutils.bool_from_string(pmu) else 'off'))

    def _hyperv(self, hidden: bool) -> Element:
        return node(
            'hyperv',
            *(node(name, state='on') for name in _ENLIGHTENMENTS),
            node('spinlocks', state='on', retries=8191),
            # The vendor id is replaced, because NVIDIA's drivers search for the default value that KVM sets.
            node('vendor_id', state='on', value='1234567890ab') if hidden else None,
        )


class ClockConfigurator:
    """Writes the guest's clock into the domain XML: UTC, or local time for a Windows guest.

    KVM guests also get timers, which keep their clock exact.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the <clock> element and its timers."""
        clock = Clock('localtime' if guest.is_windows else 'utc')
        if guest.settings.virt_type == 'kvm':
            clock.timers += [Timer('pit', tickpolicy='delay'), Timer('rtc', tickpolicy='catchup')]
            if guest.settings.arch in X86:
                hpet = strutils.bool_from_string(guest.image_property('hw_time_hpet'))
                clock.timers.append(Timer('hpet', present='yes' if hpet else 'no'))
            if guest.is_windows:
                clock.timers.append(Timer('hypervclock', present='yes'))
        domain.clock = clock
