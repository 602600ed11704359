"""The [devices] options and the sections [mdev_<type>]: mediated devices (vGPUs), and the health of devices."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'devices'

OPTS = [
    cfg.ListOpt(
        'enabled_mdev_types',
        default=[],
        deprecated_opts=[cfg.DeprecatedOpt('enabled_vgpu_types', group='devices')],
        help='Types of mediated devices that this host gives to servers, such as nvidia-35. A card has one type at a '
        'time. Flavors request them with resources:VGPU=1. If there are several types, or if only some cards are '
        'to have mediated devices, list the cards of each type in device_addresses of its section [mdev_<type>]. '
        'One type may have no list: it applies to all other cards that support it. Read by kilonova-compute when '
        'it starts. Empty: none.',
    ),
    cfg.StrOpt(
        'clean_command',
        default='',
        help='Command that cleans a device after a server has released it, before another server gets it. The address '
        'of the device and its kind (pci, pf, vf, vdpa, mdev) are its last arguments. It is run without a shell, '
        'as the user of kilonova-compute. The device becomes available if the command exits with 0. Empty: '
        'devices are not cleaned.',
    ),
    cfg.IntOpt(
        'clean_command_timeout',
        default=300,
        min=1,
        max=86400,
        help='Seconds after which clean_command is killed and counts as failed.',
    ),
    cfg.StrOpt(
        'health_check',
        default='',
        help='Command that checks whether a device is healthy: it exits with 0 if so. Its arguments are those of '
        'clean_command. It is run on free devices every health_check_interval seconds, and before a device is '
        "given to a server. A device that fails it is given to no server until 'kilonova-manage device enable'. "
        'Empty: devices are not checked.',
    ),
    cfg.IntOpt(
        'health_check_timeout',
        default=30,
        min=1,
        max=3600,
        help='Seconds after which health_check is killed; the device then counts as unhealthy. The boot of a '
        'server waits for the check.',
    ),
    cfg.IntOpt(
        'health_check_interval',
        default=60,
        min=-1,
        max=86400,
        help='Seconds between two runs of health_check on the free devices. Devices that could not be cleaned '
        'are cleaned again at the same time. 0: 60; -1: never.',
    ),
    cfg.IntOpt(
        'failed_rest',
        default=300,
        min=0,
        max=86400,
        help='Seconds for which a device is given to no server after a guest could not be started with it. Each '
        'further failure doubles the time. Afterwards the device is checked (if health_check is set), and '
        'becomes available if it is healthy. 0: a device that failed is available again at once.',
    ),
    cfg.IntOpt(
        'failed_rest_max',
        default=86400,
        min=1,
        max=2592000,
        help='Maximum seconds for which a device that failed repeatedly is given to no server before it is '
        'checked again.',
    ),
    cfg.IntOpt(
        'history_days',
        default=365,
        min=0,
        max=36500,
        help='Days for which the history of a device (which server used it, from when to when) is kept after '
        "the device was released (GET /kilonova/v1/os-device-history, 'kilonova-manage device history'). "
        'Read by kilonova-conductor.',
    ),
]


def mdev_options(mdev_type: str) -> tuple[str, list[cfg.Opt]]:
    """Return the name and the options of the section [mdev_<type>] of an enabled mediated device type."""
    old = f'vgpu_{mdev_type}'
    return f'mdev_{mdev_type}', [
        cfg.ListOpt(
            'device_addresses', default=[], deprecated_group=old, help='PCI addresses of the cards that have this type.'
        ),
        cfg.StrOpt(
            'mdev_class',
            default='VGPU',
            regex=r'^(VGPU|CUSTOM_[A-Z0-9_]+)\Z',
            max_length=255,
            deprecated_group=old,
            help='Resource class of the devices in Placement: VGPU, or CUSTOM_ with capital letters, digits and _.',
        ),
        cfg.IntOpt(
            'max_instances',
            min=1,
            deprecated_group=old,
            help='Maximum number of devices of this type on the host. Unset: as many as its cards can provide.',
        ),
    ]


def mdev_section(conf: cfg.ConfigOpts, mdev_type: str) -> cfg.ConfigOpts.GroupAttr:
    """Register the section [mdev_<type>] and return it. The section may be missing in the configuration files."""
    group, opts = mdev_options(mdev_type)
    conf.register_opts(opts, group=group)
    found: cfg.ConfigOpts.GroupAttr = conf[group]
    return found
