"""The guest's machine: what it starts from, its features and clock, and whose it is, for its host and itself."""
from __future__ import annotations

import datetime

from oslo_utils import strutils

from kilonova.virt.hardware import tuning
from kilonova.virt.libvirt.domain.disk import places
from kilonova.virt.libvirt.domain.guest import X86, GuestSpec
from kilonova.virt.libvirt.xml import Clock, Domain, Element, Kernel, Os, Timer, node
from kilonova.virt.parts.guests import NotOnThisHost, UnsupportedHardware

# Wherever the guest's kernel looks for a console: a screen, a serial port, a paravirtual one.
_CONSOLES = 'console=tty0 console=ttyS0 console=hvc0'
# What Windows wants to know of its hypervisor.
_ENLIGHTENMENTS = ('relaxed', 'vapic', 'vpindex', 'runtime', 'synic', 'reset', 'frequencies', 'tlbflush', 'ipi')
# cloud-init looks for this product before it searches for a config drive: the field's name, not ours.
_MANUFACTURER, _PRODUCT, _FAMILY = 'OpenStack Foundation', 'OpenStack Nova', 'Virtual Machine'
NAMESPACE = 'http://openstack.org/xmlns/libvirt/nova/1.1'


def _nova(tag: str, *children: Element | str | None, **attributes: str) -> Element:
    return node(f'nova:{tag}', *children, **attributes)


class MetadataConfigurator:
    """nova:instance, in the namespace that the field's tools look for."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        instance, flavor = guest.instance, guest.flavor
        specs = [_nova('extraSpec', str(value), name=name) for name, value in sorted(guest.extra_specs.items())]
        properties = [_nova('property', str(value), name=name)
                      for name, value in sorted((guest.image_meta.get('properties') or {}).items())]
        created = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M:%S')
        domain.metadata = _nova(
            'instance',
            _nova('package', version=guest.settings.version) if guest.settings.version else None,
            _nova('name', getattr(instance, 'display_name', None) or ''),
            _nova('creationTime', created),
            _nova('flavor',
                  _nova('memory', str(flavor.memory_mb)), _nova('disk', str(flavor.root_gb)),
                  _nova('swap', str(flavor.swap)), _nova('ephemeral', str(flavor.ephemeral_gb)),
                  _nova('vcpus', str(flavor.vcpus)), _nova('extraSpecs', *specs), name=flavor.name or ''),
            _nova('image', _nova('properties', *properties), uuid=instance.image_ref) if instance.image_ref else None,
            _nova('owner', _nova('user', uuid=instance.user_id or ''),
                  _nova('project', uuid=instance.project_id or '')),
            _nova('root', type='image', uuid=instance.image_ref) if instance.image_ref else None)
        # Declared here and not on <domain>, so that libvirt gives it back as it was.
        domain.metadata.set('xmlns:nova', NAMESPACE)


class SysinfoConfigurator:
    """Manufacturer, product, serial number and uuid."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if not guest.settings.is_qemu:
            return
        uuid = guest.instance.uuid
        number = uuid if guest.settings.serial_number == 'unique' else guest.settings.serial_number
        domain.sysinfo = {'manufacturer': _MANUFACTURER, 'product': _PRODUCT, 'uuid': uuid, 'family': _FAMILY}
        if number:
            domain.sysinfo['serial'] = number


class OsConfigurator:
    """hvm on the image's or host's machine type, from its disk or from the image's own kernel; BIOS or UEFI."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        self._check_machine(guest)
        firmware = self._firmware(guest)
        secure = firmware is not None and self._secure_boot(guest)
        if secure:
            # What guards the keys from the guest's own kernel.
            domain.features.append(node('smm', state='on'))
        domain.os = Os(arch=guest.settings.arch, machine=guest.machine,
                       boot=[] if any(disk.boots for disk in guest.disks) or any(
                           given.volume.is_root for given in guest.volumes) else ['hd'],
                       bootmenu=guest.asks('hw:boot_menu', 'hw_boot_menu'), smbios=guest.settings.is_qemu,
                       firmware=firmware, secure_boot=secure, kernel=self._kernel(guest))

    def _check_machine(self, guest: GuestSpec) -> None:
        """Raise NotOnThisHost if the host's QEMU has no such machine type, or not with that many vCPUs."""
        known, machine, vcpus = guest.settings.machine_types, guest.machine, guest.flavor.vcpus
        if not known or machine is None:
            return
        if machine not in known:
            # Those with a version are many, and each QEMU has others.
            raise NotOnThisHost(name='hw_machine_type', value=machine, reason='its QEMU has {}'.format(
                ', '.join(sorted(name for name in known if '.' not in name)) or ', '.join(sorted(known))))
        most = known[machine]
        if most is not None and vcpus > most:
            raise NotOnThisHost(name='vcpus', value=vcpus, reason=f'machine type {machine} has at most {most}')

    def _firmware(self, guest: GuestSpec) -> str | None:
        """'efi' where the image asks for UEFI; arm's board has nothing else."""
        wanted = guest.tuning.firmware or (tuning.UEFI if guest.settings.arch == 'aarch64' else None)
        if wanted != tuning.UEFI or not guest.settings.is_qemu:
            return None
        if not guest.settings.has_uefi:
            raise NotOnThisHost(name='hw_firmware_type', value=tuning.UEFI, reason='it has no firmware of UEFI')
        return 'efi'

    def _secure_boot(self, guest: GuestSpec) -> bool:
        if guest.tuning.secure_boot == tuning.DISABLED:
            return False
        can = guest.settings.has_secure_boot and 'q35' in (guest.machine or '')
        if can or guest.tuning.secure_boot != tuning.REQUIRED:
            return can
        if guest.image_property('hw_machine_type') and 'q35' not in (guest.machine or ''):
            raise UnsupportedHardware(model=f'secure boot on machine type {guest.machine}',
                                      virt=guest.settings.virt_type)
        raise NotOnThisHost(name='os:secure_boot', value=tuning.REQUIRED, reason=(
            f'it has no firmware with secure boot for its machine type {guest.machine}'))

    def _kernel(self, guest: GuestSpec) -> Kernel | None:
        if guest.kernel is None:
            return None
        root = next((place.target for place in places(guest)), 'vda')
        said = guest.image_property('os_command_line') if guest.command_line is None else guest.command_line
        return Kernel(guest.kernel, guest.ramdisk, said or f'root=/dev/{root} {_CONSOLES}')


class FeaturesConfigurator:
    """acpi, apic, vmcoreinfo; for Windows hyperv; the hypervisor hidden where a driver would refuse to run in it."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        arch = guest.settings.arch
        if not guest.settings.is_qemu or arch not in (*X86, 'aarch64'):
            return
        domain.features.append(node('acpi'))
        if arch in X86:
            domain.features.append(node('apic'))
        domain.features.append(node('vmcoreinfo'))
        if guest.iommu == tuning.INTEL:
            # It remaps interrupts, so QEMU has to deliver them, not the host's kernel.
            domain.features.append(node('ioapic', driver='qemu'))
        hidden = any(guest.asks(spec, 'img_hide_hypervisor_id')
                     for spec in ('hw:hide_hypervisor_id', 'hide_hypervisor_id'))
        # They are KVM's: QEMU alone refuses to start with them.
        if guest.is_windows and arch in X86 and guest.settings.virt_type == 'kvm':
            domain.features.append(self._hyperv(hidden))
        if hidden:
            domain.features.append(node('kvm', node('hidden', state='on')))
        pmu = guest.extra_specs.get('hw:pmu') or guest.image_property('hw_pmu')
        if pmu is not None:
            domain.features.append(node('pmu', state='on' if strutils.bool_from_string(pmu) else 'off'))

    def _hyperv(self, hidden: bool) -> Element:
        return node('hyperv', *(node(name, state='on') for name in _ENLIGHTENMENTS),
                    node('spinlocks', state='on', retries=8191),
                    # NVIDIA's drivers look for the name that KVM gives here by default.
                    node('vendor_id', state='on', value='1234567890ab') if hidden else None)


class ClockConfigurator:
    """UTC (Windows: local time); the timers that keep a kvm guest's time right."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        clock = Clock('localtime' if guest.is_windows else 'utc')
        if guest.settings.virt_type == 'kvm':
            clock.timers += [Timer('pit', tickpolicy='delay'), Timer('rtc', tickpolicy='catchup')]
            if guest.settings.arch in X86:
                hpet = strutils.bool_from_string(guest.image_property('hw_time_hpet'))
                clock.timers.append(Timer('hpet', present='yes' if hpet else 'no'))
            if guest.is_windows:
                clock.timers.append(Timer('hypervclock', present='yes'))
        domain.clock = clock
