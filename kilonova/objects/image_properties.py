"""The image properties that Kilonova knows, with their types.

To add a property, add a line to ``PROPERTIES`` and raise ``ImageMetaProps.VERSION``.
"""

from __future__ import annotations

from typing import Any

from kilonova.objects import fields
from kilonova.objects.fields import enum

_text, _number, _flag = fields.StringField, fields.IntegerField, fields.FlexibleBooleanField

DiskBus = enum('DiskBus', ('fdc', 'ide', 'lxc', 'sata', 'scsi', 'uml', 'usb', 'virtio', 'vmware', 'xen'))
EncryptionFormat = fields.BlockDeviceEncryptionFormatTypeField
RescueDevice = enum('RescueDevice', ('disk', 'floppy', 'cdrom'))
SCSIModel = enum(
    'SCSIModel',
    (
        'auto',
        'buslogic',
        'ibmvscsi',
        'lsilogic',
        'lsisas1068',
        'lsisas1078',
        'ncr53c90',
        'virtio-scsi',
        'vmpvscsi',
        'pvscsi',
    ),
    {'lsilogicsas': 'lsisas1068', 'paravirtual': 'vmpvscsi'},
)
SoundModel = enum('SoundModel', ('ac97', 'es1370', 'ich6', 'ich9', 'pcspk', 'sb16', 'usb', 'virtio'))
VIFModel = enum(
    'VIFModel',
    (
        'e1000',
        'e1000e',
        'igb',
        'lan9118',
        'ne2k_pci',
        'netfront',
        'pcnet',
        'rtl8139',
        'spapr-vlan',
        'sriov',
        'virtio',
        'virtualpcnet32',
        'virtuale1000',
        'virtuale1000e',
        'virtualsriovethernetcard',
        'virtualvmxnet',
        'virtualvmxnet3',
        'vmxnet',
        'vmxnet3',
    ),
)
VideoModel = enum('VideoModel', ('vga', 'cirrus', 'vmvga', 'xen', 'qxl', 'virtio', 'gop', 'none', 'bochs'))

PROPERTIES: dict[str, Any] = {
    # Hardware of the guest
    'hw_architecture': fields.ArchitectureField(),
    'hw_auto_disk_config': _flag(),
    'hw_boot_menu': _flag(),
    'hw_cdrom_bus': DiskBus(),
    'hw_cpu_cores': _number(),
    'hw_cpu_max_cores': _number(),
    'hw_cpu_max_sockets': _number(),
    'hw_cpu_max_threads': _number(),
    'hw_cpu_policy': fields.CPUAllocationPolicyField(),
    'hw_cpu_realtime_mask': _text(),
    'hw_cpu_sockets': _number(),
    'hw_cpu_thread_policy': fields.CPUThreadAllocationPolicyField(),
    'hw_cpu_threads': _number(),
    'hw_device_id': _number(),
    'hw_disk_bus': DiskBus(),
    'hw_disk_type': _text(),
    'hw_emulation_architecture': fields.ArchitectureField(),
    'hw_ephemeral_encryption': _flag(),
    'hw_ephemeral_encryption_format': EncryptionFormat(),
    'hw_ephemeral_encryption_secret_uuid': fields.UUIDField(),
    'hw_firmware_stateless': _flag(),
    'hw_firmware_type': enum('FirmwareType', ('uefi', 'bios'))(),
    'hw_floppy_bus': DiskBus(),
    'hw_input_bus': enum('InputBus', ('usb', 'virtio'))(),
    'hw_ipxe_boot': _flag(),
    'hw_locked_memory': _flag(),
    'hw_machine_type': _text(),
    'hw_maxphysaddr_bits': _number(),
    'hw_maxphysaddr_mode': enum('MaxphysaddrMode', ('passthrough', 'emulate'))(),
    'hw_mem_encryption': _flag(),
    'hw_mem_encryption_model': enum('MemEncryptionModel', ('amd-sev', 'amd-sev-es', 'amd-sev-snp'))(),
    'hw_mem_page_size': _text(),
    'hw_numa_cpus': fields.ListOfSetsOfIntegersField(),
    'hw_numa_mem': fields.ListOfIntegersField(),
    'hw_numa_nodes': _number(),
    'hw_pci_numa_affinity_policy': fields.PCINUMAAffinityPolicyField(),
    'hw_pmu': _flag(),
    'hw_pointer_model': enum('PointerModel', ('ps2mouse', 'usbtablet'))(),
    'hw_qemu_guest_agent': _flag(),
    'hw_redirected_usb_ports': _number(),
    'hw_rescue_bus': DiskBus(),
    'hw_rescue_device': RescueDevice(),
    'hw_rng_model': enum('RNGModel', ('virtio',))(),
    'hw_scsi_model': SCSIModel(),
    'hw_serial_port_count': _number(),
    'hw_sound_model': SoundModel(),
    'hw_time_hpet': _flag(),
    'hw_tpm_model': enum('TPMModel', ('tpm-tis', 'tpm-crb'))(),
    'hw_tpm_version': enum('TPMVersion', ('1.2', '2.0'))(),
    'hw_usb_model': enum('USBModel', ('qemu-xhci', 'nec-xhci'))(),
    'hw_vif_model': VIFModel(),
    'hw_vif_multiqueue_enabled': _flag(),
    'hw_video_model': VideoModel(),
    'hw_video_ram': _number(),
    'hw_viommu_model': enum('VIOMMUModel', ('intel', 'smmuv3', 'virtio', 'auto'))(),
    'hw_virtio_packed_ring': _flag(),
    'hw_vm_mode': fields.VMModeField(),
    'hw_watchdog_action': enum('WatchdogAction', ('none', 'pause', 'poweroff', 'reset', 'disabled'))(),
    # The following properties describe the image itself.
    'img_bdm_v2': _flag(),
    'img_bittorrent': _flag(),
    'img_block_device_mapping': fields.ListOfDictOfNullableStringsField(),
    'img_cache_in_nova': _flag(),
    'img_compression_level': _number(),
    'img_config_drive': enum('ConfigDrivePolicy', ('optional', 'mandatory'))(),
    'img_hide_hypervisor_id': _flag(),
    'img_hv_requested_version': fields.VersionPredicateField(),
    'img_hv_type': fields.HVTypeField(),
    'img_linked_clone': _flag(),
    'img_mappings': fields.ListOfDictOfNullableStringsField(),
    'img_owner_id': _text(),
    'img_root_device_name': _text(),
    'img_signature': _text(),
    'img_signature_certificate_uuid': fields.UUIDField(),
    'img_signature_hash_method': enum('ImageSignatureHashType', ('SHA-224', 'SHA-256', 'SHA-384', 'SHA-512'))(),
    'img_signature_key_type': enum(
        'ImageSignatureKeyType',
        (
            'DSA',
            'ECC_SECP384R1',
            'ECC_SECP521R1',
            'ECC_SECT409K1',
            'ECC_SECT409R1',
            'ECC_SECT571K1',
            'ECC_SECT571R1',
            'RSA-PSS',
        ),
    )(),
    'img_use_agent': _flag(),
    'img_version': _number(),
    # The following properties describe the guest's operating system.
    'os_admin_user': _text(),
    'os_command_line': _text(),
    'os_distro': _text(),
    'os_require_quiesce': _flag(),
    'os_secure_boot': enum('SecureBoot', ('required', 'disabled', 'optional'))(),
    'os_skip_agent_inject_files_at_boot': _flag(),
    'os_skip_agent_inject_ssh': _flag(),
    'os_type': enum('OSType', ('linux', 'windows'))(),
    # The names of the traits that the image requires. An image requires trait X by its property trait:X=required.
    'traits_required': fields.ListOfStringsField(),
}

# {older name of a property, without a prefix: present name}
LEGACY_NAMES = {
    'architecture': 'hw_architecture',
    'auto_disk_config': 'hw_auto_disk_config',
    'bdm_v2': 'img_bdm_v2',
    'block_device_mapping': 'img_block_device_mapping',
    'hypervisor_type': 'img_hv_type',
    'hypervisor_version_requires': 'img_hv_requested_version',
    'mappings': 'img_mappings',
    'owner_id': 'img_owner_id',
    'root_device_name': 'img_root_device_name',
    'vm_mode': 'hw_vm_mode',
}
