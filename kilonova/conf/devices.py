"""The [devices] options and the sections [mdev_<type>]: mediated devices (vGPUs), and the health of devices."""
from __future__ import annotations

from oslo_config import cfg

GROUP = 'devices'

OPTS = [
    cfg.ListOpt(
        'enabled_mdev_types', default=[], deprecated_opts=[cfg.DeprecatedOpt('enabled_vgpu_types', group='devices')],
        help='Types of mediated devices that this host gives to servers, such as nvidia-35: a card has one type at a '
             'time. Flavors ask for them by resources:VGPU=1. With several types, or for some cards only, name the '
             'cards in the section [mdev_<type>]: device_addresses; one type may have none, and is then that of all '
             'other cards that support it. Read by kilonova-compute when it starts. Empty: none.'),
    cfg.StrOpt(
        'clean_command', default='',
        help='Command that cleans a device which a server gave back, before another server gets it; the address of '
             'the device and its kind (pci, pf, vf, vdpa, mdev) are its last arguments. It is run without a shell, as '
             'the user of kilonova-compute; the device is offered when it ended with 0. Empty: devices are offered as '
             'they are.'),
    cfg.IntOpt('clean_command_timeout', default=300, min=1, max=86400,
               help='Seconds after which clean_command is killed; it counts as failed then.'),
    cfg.StrOpt(
        'health_check', default='',
        help='Command that says whether a device is well, with the same arguments: it ends with 0. It is run on free '
             'devices each health_check_interval, and before a device is given to a server; one that is not well is '
             "given to no server until 'kilonova-manage device enable'. Empty: devices are not checked."),
    cfg.IntOpt('health_check_timeout', default=30, min=1, max=3600,
               help='Seconds after which health_check is killed; the device counts as not well then. A boot waits for '
                    'it.'),
    cfg.IntOpt('health_check_interval', default=60, min=-1, max=86400,
               help='Seconds between two runs of health_check on the free devices; what could not be cleaned is tried '
                    'again then, too. 0: 60; -1: never.'),
    cfg.IntOpt('failed_rest', default=300, min=0, max=86400,
               help='Seconds for which a device is given to no server after a guest could not be started with it; each '
                    'further failure doubles them. The device is looked at then (health_check, if there is one) and '
                    'offered again if it is well. 0: a device that failed is offered again at once.'),
    cfg.IntOpt('failed_rest_max', default=86400, min=1, max=2592000,
               help='Seconds for which a device that failed again and again is given to no server at most, before it '
                    'is looked at.'),
    cfg.IntOpt('history_days', default=365, min=0, max=36500,
               help='Days for which it is kept who held a device from when to when, after it was given back '
                    "(GET /kilonova/v1/os-device-history, 'kilonova-manage device history'). Read by "
                    'kilonova-conductor.'),
]


def mdev_options(mdev_type: str) -> tuple[str, list[cfg.Opt]]:
    """Return the name of the section of an enabled type, and its options."""
    old = f'vgpu_{mdev_type}'
    return f'mdev_{mdev_type}', [
        cfg.ListOpt('device_addresses', default=[], deprecated_group=old,
                    help='PCI addresses of the cards that have this type.'),
        cfg.StrOpt('mdev_class', default='VGPU', regex=r'^(VGPU|CUSTOM_[A-Z0-9_]+)\Z', max_length=255,
                   deprecated_group=old,
                   help='Resource class of the devices in Placement: VGPU, or CUSTOM_ with capital letters, digits '
                        'and _.'),
        cfg.IntOpt('max_instances', min=1, deprecated_group=old,
                   help='How many devices of this type the host has at most; unset: as many as its cards give.')]


def mdev_section(conf: cfg.ConfigOpts, mdev_type: str) -> cfg.ConfigOpts.GroupAttr:
    """Register the section [mdev_<type>] and return it. It need not be in a configuration file."""
    group, opts = mdev_options(mdev_type)
    conf.register_opts(opts, group=group)
    found: cfg.ConfigOpts.GroupAttr = conf[group]
    return found
