"""Versions of the objects: what peers of another release rely on.

A fingerprint covers the fields (type, nullable, default, words of an enum, kind of a nested object) and the signatures
of the remotable methods. When this test fails, either take the change back, or raise the object's VERSION, let
``obj_make_compatible`` give older peers what they know, and put the new fingerprint here.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import pytest

from kilonova import objects
from kilonova.objects import base

FINGERPRINTS = {
    'Aggregate': '1.3-b4414233445315c4',
    'AggregateList': '1.3-7eb2328b1666cd53',
    'BlockDeviceMapping': '1.21-cb23a1513a8f91b9',
    'BlockDeviceMappingList': '1.18-55eb1a5f4a557a65',
    'BuildOrder': '1.0-74274774f516bc87',
    'CellMapping': '1.1-b0e7fcd6a3d53a61',
    'CellMappingList': '1.1-caf4a073c4f0491a',
    'Claim': '1.0-7eb8da2305f52973',
    'ComputeNode': '1.19-a34338f25e3f7baa',
    'ComputeNodeList': '1.17-ccd6941abde00451',
    'ConsoleOffer': '1.0-26f337b439c7b0b2',
    'CpuDiagnostics': '1.0-c3b355d82145f220',
    'Destination': '1.4-069b7f4396c5ab40',
    'DeviceBus': '1.0-e3b0c44298fc1c14',
    'DeviceMetadata': '1.0-2a0379822f2f505c',
    'Diagnostics': '1.0-d226054bfadaadcd',
    'DiskDiagnostics': '1.0-eb15a3342f54c163',
    'DiskMetadata': '1.0-ddc68ad543e81b56',
    'EC2Ids': '1.0-ee5747e5f0336275',
    'EvacuateOrder': '1.0-920ae3390250306e',
    'FinishResizeOrder': '1.0-9b5fef56bc73ba6d',
    'Flavor': '1.2-d982efece5f84e37',
    'FlavorList': '1.1-4eae64c83373d8d2',
    'HVSpec': '1.2-de79c0d4cb011c0f',
    'HostMapping': '1.0-7ced0bb2217d98de',
    'HostMappingList': '1.1-946efea7b764b836',
    'IDEDeviceBus': '1.0-fcb495be4fe93e6d',
    'ImageMeta': '1.8-18d0114067ceb71a',
    'ImageMetaProps': '1.43-296bd7f84f39544a',
    'Instance': '2.9-cde8e56d120907af',
    'InstanceAction': '1.2-99a2584c9f2aa6cf',
    'InstanceActionEvent': '1.4-d732165421bc9408',
    'InstanceActionEventList': '1.1-8e63fe80bbcec31a',
    'InstanceActionList': '1.1-e9d589da553b1b4d',
    'InstanceDeviceMetadata': '1.0-10e0fe6413ec6fcf',
    'InstanceExternalEvent': '1.5-10053c05ed4d4653',
    'InstanceFault': '1.2-7d6b6607563d55f4',
    'InstanceFaultList': '1.2-427a691d18399a0b',
    'InstanceGroup': '1.11-0ebab1075f9d8c50',
    'InstanceGroupList': '1.8-656273b241f5a7de',
    'InstanceInfoCache': '1.5-706810a058c7b898',
    'InstanceList': '2.7-2b74525389abe307',
    'InstanceMapping': '1.2-dbbad9ee6af79407',
    'InstanceMappingList': '1.3-050b8821638d8bf3',
    'InstanceNUMACell': '1.6-d29ca021fc59a2b2',
    'InstanceNUMATopology': '1.3-b843bab7be271628',
    'InstancePCIRequest': '1.4-6541a8cf29cbd164',
    'InstancePCIRequests': '1.1-76dd03525541cf8a',
    'KeyPair': '1.4-afefd535f26edd86',
    'KeyPairList': '1.3-1b6932fcb446423b',
    'LibvirtVPMEMDevice': '1.0-1546aab15d681ac2',
    'LiveMigrationCheckOrder': '1.0-f475d8551597553d',
    'LiveMigrationOrder': '1.0-6d5c3acd6acba904',
    'LiveMigrationUndo': '1.0-d0c58142209bd4bd',
    'MemoryDiagnostics': '1.0-e00ffa92ddf27c70',
    'Migration': '1.8-4732339603f247b1',
    'MigrationContext': '1.2-b2d24d10929724dd',
    'MigrationList': '1.6-0cd963b537d1c9df',
    'MonitorMetric': '1.1-992e52bf14a7b26f',
    'MonitorMetricList': '1.1-5e83f0d3fbf136aa',
    'NUMACell': '1.5-55ae50d1729c84f3',
    'NUMAPagesTopology': '1.1-a582d038a27ffa6a',
    'NUMATopology': '1.2-cf045ab2a09fe674',
    'NUMATopologyLimits': '1.1-a891fcade0fbd1f3',
    'NetworkInterfaceMetadata': '1.2-741962a43c6f7f60',
    'NetworkMetadata': '1.0-4beda3fbd5e8cbb2',
    'NetworkRequest': '1.3-1f9494301ca2e820',
    'NetworkRequestList': '1.1-fab336677494e9d2',
    'NicDiagnostics': '1.0-ecf86967e70c892a',
    'PCIDeviceBus': '1.0-7a2fd32b9e9d955d',
    'PciDevice': '1.8-a40275adb5c796d4',
    'PciDeviceList': '1.3-303c9768c239ae5f',
    'PciDevicePool': '1.1-e929bfe3d56ec38a',
    'PciDevicePoolList': '1.1-5731f440ec4c70b1',
    'PrepResizeOrder': '1.0-1b5fc4edc66f594d',
    'RebuildOrder': '1.0-4e87b38b6208ae42',
    'RequestGroup': '1.3-3169becf28c61de1',
    'RequestLevelParams': '1.1-695b029710f050f4',
    'RequestSpec': '1.15-27999b4422656836',
    'RescueOrder': '1.0-97593e9b5fdae77d',
    'ResizeOrder': '1.0-73e45d957c20d595',
    'Resource': '1.0-c2c59a8a21fdbcaf',
    'ResourceList': '1.0-1449bbb3b74c161c',
    'ResourceMetadata': '1.0-e3b0c44298fc1c14',
    'SCSIDeviceBus': '1.0-fcb495be4fe93e6d',
    'Save': '1.0-de9633349f3cb3d4',
    'SchedulerLimits': '1.0-753b983bc1c9c409',
    'SchedulerRetries': '1.1-0803a242001a8fd0',
    'SecurityGroup': '1.2-b50ef83c7f4a4f74',
    'SecurityGroupList': '1.1-84aa3e9029e9126a',
    'Selection': '1.1-590009ed18c6664f',
    'Service': '1.22-91f71674c9117ece',
    'ServiceList': '1.19-97a3de3798c6e7a2',
    'Tag': '1.1-fd13db734d2669c5',
    'TagList': '1.1-a5e4deacdd233ddc',
    'TaskLog': '1.0-0a6133face007e43',
    'TrustedCerts': '1.0-c153cf2c957fcd01',
    'USBDeviceBus': '1.0-fcb495be4fe93e6d',
    'UnshelveOrder': '1.0-262f1b36ec3beedf',
    'VirtCPUFeature': '1.0-0ea1908e39c82dbb',
    'VirtCPUModel': '1.0-ab04a767075c404c',
    'VirtCPUTopology': '1.0-3e5dcf03fda976c6',
    'VolumeUsage': '1.0-5ded879e906d91ce',
}


def describe(field: Any) -> str:
    kind = field._type
    words = getattr(kind, 'valid_values', '')
    element = getattr(kind, '_element_type', None)
    inner = '' if element is None else describe(element)
    default = sorted(field.default) if isinstance(field.default, set) else field.default
    default = 'unset' if isinstance(default, type) else repr(default)
    return (
        f'{type(kind).__name__}({getattr(kind, "_obj_name", "")}{",".join(sorted(words))}{inner})'
        f' nullable={field.nullable} read_only={field.read_only} default={default}'
    )


def signatures(cls: type[base.KilonovaObject]) -> list[str]:
    found = []
    for name in sorted(dir(cls)):
        method = getattr(cls, name)
        if getattr(method, 'remotable', False):
            parameters = inspect.signature(method.original_fn).parameters.values()
            found.append(f'{name}({", ".join(str(p.replace(annotation=p.empty)) for p in parameters)})')
    return found


def fingerprint(cls: type[base.KilonovaObject]) -> str:
    lines = [f'{name}: {describe(field)}' for name, field in sorted(cls.fields.items())]
    text = '\n'.join([*lines, *signatures(cls)])
    return f'{cls.VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:16]}'


@pytest.mark.parametrize('name', objects.__all__)
def test_no_object_changes_under_its_version(name: str) -> None:
    assert fingerprint(getattr(objects, name)) == FINGERPRINTS[name]


def test_every_object_has_a_fingerprint() -> None:
    assert sorted(FINGERPRINTS) == sorted(set(objects.__all__))


@pytest.mark.parametrize('name', objects.__all__)
def test_whatever_an_object_holds_is_registered(name: str) -> None:
    manifest = base.object_versions(name)
    assert manifest[name] == getattr(objects, name).VERSION


def test_a_changed_field_changes_the_fingerprint() -> None:
    class Tag(objects.Tag):
        fields = {**objects.Tag.fields, 'tag': base.fields.StringField(nullable=True)}

    assert fingerprint(Tag) != fingerprint(objects.Tag)
    assert fingerprint(Tag).split('-')[0] == fingerprint(objects.Tag).split('-')[0]


# -- fields of each version, as the field has them -------------------------------------------------
FIELDS = {
    'SchedulerRetries': ('1.1', 'num_attempts hosts'),
    'SchedulerLimits': ('1.0', 'numa_topology vcpu disk_gb memory_mb'),
    'ImageMeta': (
        '1.8',
        (
            'id name status visibility protected checksum owner size virtual_size container_format disk_format '
            'created_at '
            'updated_at tags direct_url min_ram min_disk properties'
        ),
    ),
    'Flavor': (
        '1.2',
        (
            'id name memory_mb vcpus root_gb ephemeral_gb flavorid swap rxtx_factor vcpu_weight disabled is_public '
            'extra_specs projects description created_at updated_at deleted_at deleted'
        ),
    ),
    'Instance': (
        '2.9',
        (
            'id user_id project_id image_ref kernel_id ramdisk_id hostname launch_index key_name key_data '
            'power_state vm_state task_state services memory_mb vcpus root_gb ephemeral_gb '
            'ephemeral_key_uuid host node compute_id instance_type_id user_data reservation_id '
            'launched_at terminated_at availability_zone display_name display_description launched_on '
            'locked locked_by os_type architecture vm_mode uuid root_device_name '
            'default_ephemeral_device default_swap_device config_drive access_ip_v4 access_ip_v6 '
            'auto_disk_config progress shutdown_terminate disable_terminate cell_name metadata '
            'system_metadata info_cache security_groups fault cleaned pci_devices numa_topology '
            'pci_requests device_metadata tags flavor old_flavor new_flavor vcpu_model ec2_ids '
            'migration_context keypairs trusted_certs hidden resources block_devices created_at updated_at deleted_at '
            'deleted'
        ),
    ),
}


@pytest.mark.parametrize('name', FIELDS)
def test_fields_of_the_field(name: str) -> None:
    """Each object that filters read has the fields of Nova's object."""
    version, names = FIELDS[name]
    cls = getattr(objects, name)
    assert version == cls.VERSION
    assert set(cls.fields) == set(names.split())
