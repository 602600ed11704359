"""Creation, deletion and reading of fake guests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kilonova import errors, objects
from kilonova.objects.vif import BEHIND, Vif
from kilonova.states import POWER_WORDS, PowerState
from kilonova.virt.fakes.state import FakeDisk, FakePart, scripted
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import ConsoleAddress, DomainInfo, Plugged


class FakeGuests(FakePart):
    """Fake of ``parts.guests.Guests``."""

    def list_instance_uuids(self) -> list[str]:
        """Return the uuids of all domains."""
        return list(self.fake.domains)

    @scripted
    def describe(self) -> list[DomainInfo]:
        """Return all domains with the addresses of their devices."""
        return [
            {'uuid': domain.uuid, 'name': domain.name, 'state': int(domain.state), 'hostdevs': sorted(domain.hostdevs)}
            for domain in self.fake.domains.values()
        ]

    @scripted
    def holding(self, addresses: Collection[str]) -> list[DomainInfo]:
        """Return the domains that have any of these devices."""
        found: list[DomainInfo] = [
            {
                'uuid': domain.uuid,
                'name': domain.name,
                'state': int(domain.state),
                'hostdevs': sorted(set(addresses).intersection(domain.hostdevs)),
            }
            for domain in self.fake.domains.values()
        ]
        return [domain for domain in found if domain['hostdevs']]

    @scripted
    def get_info(self, instance: objects.Instance) -> int:
        """Return the domain's power state, or SHUTDOWN if there is no domain."""
        domain = self.fake.domains.get(instance.uuid)
        return int(domain.state if domain else PowerState.SHUTDOWN)

    @scripted
    def check(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Check that the fake host supports the CPU shares of the instance's flavor."""
        self.fake.check(instance)

    @scripted
    def spawn(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        *,
        pci_devices: Iterable[objects.PciDevice] = (),
        admin_password: str | None = None,
        files: Sequence[tuple[str, str]] = (),
        block_devices: Iterable[objects.BlockDeviceMapping] = (),
        power_on: bool = True,
        plugged: Plugged | None = None,
    ) -> None:
        """Create disk and domain, and connect the volumes."""
        self.fake.check(instance)
        self.fake.connect(instance)
        self.fake.directories[instance.uuid] = FakeDisk(instance.local_root_gb, instance.flavor.ephemeral_gb)
        self.fake.define(instance, pci_devices, power_on, plugged)

    @scripted
    def prepare_rebuild(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Check the flavor, connect the volumes, and create mediated devices."""
        self.fake.check(instance)
        self.fake.connect(instance)
        self.fake.prepare(pci_devices)

    @scripted
    def rebuild(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        *,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        preserve_ephemeral: bool = False,
        admin_password: str | None = None,
        files: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Replace the disk and the domain."""
        self.fake.connect(instance)
        self.fake.directories[instance.uuid] = FakeDisk(instance.local_root_gb, instance.flavor.ephemeral_gb)
        self.fake.define(instance, pci_devices, power_on)

    @scripted
    def attach_interface(
        self, instance: objects.Instance, image_meta: ImageMeta, vif: Vif, pci_devices: Iterable[objects.PciDevice] = ()
    ) -> None:
        """Add the port to the domain, if there is a domain.

        Raises errors.KilonovaError if the port is a PCI function that the server does not have.
        """
        domain, held = self.fake.domains.get(instance.uuid), [device.address for device in pci_devices]
        if domain is None:
            return
        if vif.id not in domain.vifs:
            if vif.is_function and vif.slot not in held:
                raise errors.KilonovaError(
                    f'Port {vif.id} uses PCI function {vif.slot}, but server {instance.uuid} has only {held}.'
                )
            domain.vifs.append(vif.id)
            if vif.is_function:
                domain.slots[vif.id] = vif.slot or ''
                domain.hostdevs += [vif.slot or ''] * (vif.vnic_type not in BEHIND)
        self.fake.note(instance, {one.id: one for one in (*instance.vifs, vif)}.values(), instance.volumes)

    @scripted
    def detach_interface(self, instance: objects.Instance, vif: Vif, check: Check) -> None:
        """Remove the port and its PCI function from the domain."""
        check()
        domain = self.fake.domains.get(instance.uuid)
        if domain is not None and vif.id in domain.vifs:
            domain.vifs.remove(vif.id)
            slot = domain.slots.pop(vif.id, None)
            domain.hostdevs = [address for address in domain.hostdevs if address != slot]
        if domain is not None:
            self.fake.note(instance, instance.vifs, instance.volumes)

    @scripted
    def destroy(self, instance: objects.Instance, destroy_disks: bool = True) -> None:
        """Delete the domain, disconnect its volumes, and delete its disks if requested."""
        self.fake.domains.pop(instance.uuid, None)
        self.fake.disconnect(instance)
        if destroy_disks:
            for suffix in ('', '_resize', '_del'):
                self.fake.directories.pop(instance.uuid + suffix, None)

    @scripted
    def set_admin_password(self, instance: objects.Instance, user: str, password: str) -> None:
        """Store user and password in ``passwords``. Raises errors.AdminPasswordNotSet if the guest does not run."""
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state != PowerState.RUNNING:
            raise errors.AdminPasswordNotSet(instance=instance.uuid, reason='it does not run')
        self.fake.passwords[instance.uuid] = (user, password)

    @scripted
    def get_console_output(self, instance: objects.Instance) -> str:
        """Return the text that a test stored in ``consoles``, or ''."""
        return self.fake.consoles.get(instance.uuid, '')

    @scripted
    def get_console(self, instance: objects.Instance, protocol: str) -> ConsoleAddress | None:
        """Return the address that a test stored in ``screens``, by default port 5900, or None if the guest is off."""
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state == PowerState.SHUTDOWN:
            return None
        return self.fake.screens.get((instance.uuid, protocol), ConsoleAddress('127.0.0.1', 5900))

    @scripted
    def get_diagnostics(self, instance: objects.Instance) -> dict[str, Any]:
        """Return fixed numbers for a running guest."""
        domain = self.fake.running(instance)
        return {
            **{f'cpu{number}_time': 17300000000 for number in range(domain.vcpus)},
            'memory': domain.memory_mb * 1024,
            'vda_errors': -1,
            'vda_read': 262144,
            'vda_read_req': 112,
            'vda_write': 5778432,
            'vda_write_req': 488,
        }

    @scripted
    def get_instance_diagnostics(self, instance: objects.Instance) -> objects.Diagnostics:
        """Return fixed diagnostics for a running guest."""
        domain = self.fake.running(instance)
        # The field ``driver`` of Diagnostics has no value for a fake driver, so 'libvirt' is returned.
        return objects.Diagnostics(
            state=POWER_WORDS[PowerState(domain.state)],
            driver='libvirt',
            hypervisor='fake',
            hypervisor_os='fake-os',
            uptime=46664,
            config_drive=False,
            memory_details=objects.MemoryDiagnostics(maximum=domain.memory_mb, used=0),
            cpu_details=[
                objects.CpuDiagnostics(id=number, time=17300000000, utilisation=15) for number in range(domain.vcpus)
            ],
            nic_details=[objects.NicDiagnostics() for _port in domain.vifs],
            disk_details=[
                objects.DiskDiagnostics(
                    read_bytes=262144, read_requests=112, write_bytes=5778432, write_requests=488, errors_count=1
                )
            ],
            num_cpus=domain.vcpus,
            num_nics=len(domain.vifs),
            num_disks=1,
        )
