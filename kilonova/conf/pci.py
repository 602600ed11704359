"""The [pci] options: the devices that a host gives to servers, and the aliases by which flavors request devices."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'pci'

OPTS = [
    cfg.MultiStrOpt(
        'device_spec',
        default=[],
        deprecated_opts=[
            cfg.DeprecatedOpt('passthrough_whitelist', group='pci'),
            cfg.DeprecatedOpt('pci_passthrough_whitelist', group='DEFAULT'),
        ],
        help='Devices that this host gives to servers: one JSON object, or a list of them, with vendor_id and '
        'product_id (hex), address (a glob such as 0000:81:*.* or an object of regular expressions domain, bus, '
        'slot, function) or devname, and tags: physical_network, trusted, remote_managed, managed, '
        'live_migratable, one_time_use, resource_class, traits, or any other word that requests may match. '
        'group, with group_by (slot and group_size, iommu_group and group_size, or lists of addresses), makes '
        'groups of devices that servers get whole: {"vendor_id": "10de", "product_id": "26b9", "group": '
        '"l40s-pair", "group_by": [["0000:81:00.0", "0000:82:00.0"]]}. '
        'The first spec that names a device counts. Read by kilonova-compute when it starts.',
    ),
    cfg.MultiStrOpt(
        'alias',
        default=[],
        deprecated_opts=[cfg.DeprecatedOpt('pci_alias', group='DEFAULT')],
        help='A name for devices that flavors request with pci_passthrough:alias=<name>:<count>. One JSON object: '
        'name, vendor_id, product_id, device_type (type-PCI, type-PF or type-VF), numa_policy (required, '
        'preferred, legacy or socket), live_migratable, resource_class and traits (with pci_in_placement). For a '
        'group of devices: name, group, numa_policy, resource_class and traits. If a name is given more than '
        'once, each is an alternative. Set it for kilonova-api and kilonova-compute.',
    ),
    cfg.BoolOpt(
        'report_in_placement',
        default=False,
        help='Report the devices of device_spec in Placement, as one resource provider for each device or physical '
        'function. Turning it off again is not supported. Set [filter_scheduler]pci_in_placement once all '
        'computes report.',
    ),
]
