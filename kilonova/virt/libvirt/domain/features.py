"""Features of the guest's board and hypervisor (libvirt.md §2)."""
from __future__ import annotations

from oslo_utils import strutils

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Domain
from kilonova.virt.libvirt.xml.element import Element, node

_X86 = ('x86_64', 'i686')
# What Windows wants to know of its hypervisor.
_ENLIGHTENMENTS = ('relaxed', 'vapic', 'vpindex', 'runtime', 'synic', 'reset', 'frequencies', 'tlbflush', 'ipi')


class FeaturesConfigurator:
    """acpi, apic, vmcoreinfo; for Windows hyperv; the hypervisor hidden where a driver would refuse to run in it."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        arch = guest.settings.arch
        if not guest.settings.is_qemu or arch not in (*_X86, 'aarch64'):
            return
        domain.features.append(node('acpi'))
        if arch in _X86:
            domain.features.append(node('apic'))
        domain.features.append(node('vmcoreinfo'))
        hidden = any(guest.asks(spec, 'img_hide_hypervisor_id')
                     for spec in ('hw:hide_hypervisor_id', 'hide_hypervisor_id'))
        # They are KVM's: QEMU alone refuses to start with them.
        if guest.is_windows and arch in _X86 and guest.settings.virt_type == 'kvm':
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
