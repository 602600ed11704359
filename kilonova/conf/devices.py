"""[devices] options, and the sections [mdev_<type>]: mediated devices (vGPUs) that a host gives out."""
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
]


def mdev_options(mdev_type: str) -> tuple[str, list[cfg.Opt]]:
    """The section of an enabled type, and its options."""
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
    """The section [mdev_<type>]; it needn't be in a file."""
    group, opts = mdev_options(mdev_type)
    conf.register_opts(opts, group=group)
    found: cfg.ConfigOpts.GroupAttr = conf[group]
    return found
