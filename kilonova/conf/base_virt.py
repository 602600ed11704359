"""The [DEFAULT] options of the hypervisor: the driver, servers' disks, and the capacity that a host offers."""

from __future__ import annotations

from oslo_config import cfg, types

GROUP = None

OPTS = [
    cfg.StrOpt(
        'compute_driver',
        help='Driver of the hypervisor, by the name of its entry point: libvirt.LibvirtDriver or '
        'fake.FakeDriver. Required on computes.',
    ),
    cfg.StrOpt(
        'instances_path',
        default='$state_path/instances',
        sample_default='$state_path/instances',
        help='Directory that holds one directory per server, and the image cache. If several computes run on '
        'one machine, each needs its own directory. Computes on different machines may share one (NFS, '
        'CephFS; mounted at the same path on each): a move between them then copies no disks.',
    ),
    cfg.StrOpt(
        'instance_name_template',
        default='instance-%08x',
        help="Name of the guests in the hypervisor: a pattern for the server's number, or for %(uuid)s. The "
        'value may be changed: existing guests are found by uuid.',
    ),
    cfg.StrOpt(
        'pointer_model',
        default='usbtablet',
        choices=['ps2mouse', 'usbtablet'],
        help='Pointer device of guests that have a screen ([vnc], [spice]). With usbtablet the pointers of the '
        'viewer and the guest are at the same position. The image property hw_pointer_model overrides it.',
    ),
    cfg.BoolOpt(
        'use_cow_images',
        default=True,
        help='Give each server a qcow2 overlay of the cached image. Off: a raw copy. [libvirt]images_type '
        'overrides it unless that is default.',
    ),
    cfg.BoolOpt(
        'force_raw_images',
        default=True,
        help='Convert cached images to raw, which makes guests faster but takes more disk space. Off: qcow2 '
        'images stay qcow2.',
    ),
    cfg.StrOpt(
        'preallocate_images',
        default='none',
        choices=['none', 'space'],
        help='space: reserve the full size of the disks of new servers, and of servers that come from another '
        "host, so that a guest's write never fails because the file system is full. A host without enough "
        'free space refuses the server; a compute whose file system does not support fallocate does not '
        'start. none: disks grow as they are written.',
    ),
    cfg.StrOpt(
        'default_ephemeral_format',
        help='File system of ephemeral disks: ext2, ext3, ext4, xfs, vfat. Empty: ext4, or vfat for Windows.',
    ),
    cfg.BoolOpt(
        'force_config_drive',
        default=False,
        help='Give every server a config drive, even if the request does not ask for one.',
    ),
    cfg.StrOpt(
        'config_drive_format',
        default='iso9660',
        choices=['iso9660', 'vfat'],
        help='Format of config drives: a CD (iso9660), or a disk of 64 MiB with a FAT file system (vfat) for '
        'guests that cannot read CDs. A server keeps the format that it was built with until it is '
        'rebuilt.',
    ),
    cfg.StrOpt(
        'mkisofs_cmd',
        default='genisoimage',
        help='Program that creates config drives of the format iso9660. It must accept the arguments of genisoimage.',
    ),
    cfg.FloatOpt(
        'cpu_allocation_ratio',
        min=0.0,
        help='Number of virtual CPUs that the host offers per CPU. Empty: the value in Placement, which is '
        'initial_cpu_allocation_ratio at first.',
    ),
    cfg.FloatOpt('ram_allocation_ratio', min=0.0, help='The same as cpu_allocation_ratio, for memory.'),
    cfg.FloatOpt('disk_allocation_ratio', min=0.0, help='The same as cpu_allocation_ratio, for disk.'),
    cfg.FloatOpt(
        'initial_cpu_allocation_ratio',
        default=4.0,
        min=0.0,
        help='CPU allocation ratio of a new compute; operators may change it in Placement afterwards.',
    ),
    cfg.FloatOpt(
        'initial_ram_allocation_ratio',
        default=1.0,
        min=0.0,
        help='The same as initial_cpu_allocation_ratio, for memory.',
    ),
    cfg.FloatOpt(
        'initial_disk_allocation_ratio',
        default=1.0,
        min=0.0,
        help='The same as initial_cpu_allocation_ratio, for disk.',
    ),
    cfg.IntOpt(
        'reserved_host_cpus',
        default=0,
        min=0,
        help='Number of CPUs that are reserved for the host. It cannot be combined with [compute]cpu_shared_set '
        'or cpu_dedicated_set: leave CPUs out of those sets instead.',
    ),
    cfg.IntOpt('reserved_host_memory_mb', default=512, min=0, help='MiB of memory that are reserved for the host.'),
    cfg.MultiOpt(
        'reserved_huge_pages',
        item_type=types.Dict(),
        help='Memory pages of a NUMA cell that are reserved for the host, as node:0,size:2048,count:64: the '
        'cell, the page size (KiB, or with a unit as 1GB), and the number of pages. One line for each '
        'cell and size.',
    ),
    cfg.IntOpt(
        'reserved_host_disk_mb',
        default=0,
        min=0,
        help='MiB of disk that are reserved for the host, rounded up to whole GiB.',
    ),
]
