"""The [DEFAULT] options of the hypervisor: the driver, servers' disks, and the capacity that a host offers."""
from __future__ import annotations

from oslo_config import cfg, types

GROUP = None

OPTS = [
    cfg.StrOpt('compute_driver',
               help='Driver of the hypervisor, by its entry point: libvirt.LibvirtDriver or fake.FakeDriver. '
                    'Required on computes.'),
    cfg.StrOpt('instances_path', default='$state_path/instances', sample_default='$state_path/instances',
               help='Directory with one directory a server, and the image cache. Computes that share a machine need '
                    'one each. Hosts of several machines may have one in common (NFS, CephFS; at the same path on '
                    'each): a move between them copies no disks then.'),
    cfg.StrOpt('instance_name_template', default='instance-%08x',
               help="Name of the hypervisor's guests: a pattern for the server's number, or for %(uuid)s. Servers "
                    'that exist keep being found by uuid when it changes.'),
    cfg.StrOpt('pointer_model', default='usbtablet', choices=['ps2mouse', 'usbtablet'],
               help="Pointer of guests that have a screen ([vnc], [spice]): with usbtablet a viewer's pointer and the "
                    "guest's are at the same place. Images override it with hw_pointer_model."),
    cfg.BoolOpt('use_cow_images', default=True,
                help='Give each server a qcow2 overlay of the cached image. Off: a raw copy; [libvirt]images_type '
                     'says it more plainly.'),
    cfg.BoolOpt('force_raw_images', default=True,
                help='Convert cached images to raw: faster guests, more room. Without it qcow2 images stay qcow2.'),
    cfg.StrOpt('preallocate_images', default='none', choices=['none', 'space'],
               help='space: disks of new servers, and of those that come from another host, get room for all that '
                    'their guests can write, so that no guest ever meets a full file system. A host without that room '
                    'refuses the server; one whose file system can not do it (fallocate) does not start. none: disks '
                    'grow as they are written.'),
    cfg.StrOpt('default_ephemeral_format',
               help='File system of ephemeral disks: ext2, ext3, ext4, xfs, vfat. Empty: ext4, for Windows vfat.'),
    cfg.BoolOpt('force_config_drive', default=False,
                help='Give every server a config drive, asked for or not.'),
    cfg.StrOpt('config_drive_format', default='iso9660', choices=['iso9660', 'vfat'],
               help='What config drives are: a CD (iso9660), or a disk of 64 MiB with a FAT file system (vfat), for '
                    'systems that read no CDs. A server keeps the one that it was built with until it is rebuilt.'),
    cfg.StrOpt('mkisofs_cmd', default='genisoimage',
               help="Program that builds config drives of the format iso9660; anything that takes genisoimage's "
                    'arguments.'),
    cfg.FloatOpt('cpu_allocation_ratio', min=0.0,
                 help="Virtual CPUs offered for each of the host's. Empty: what Placement has, at first "
                      'initial_cpu_allocation_ratio.'),
    cfg.FloatOpt('ram_allocation_ratio', min=0.0, help='The same for memory.'),
    cfg.FloatOpt('disk_allocation_ratio', min=0.0, help='The same for disk.'),
    cfg.FloatOpt('initial_cpu_allocation_ratio', default=4.0, min=0.0,
                 help='CPU ratio that a new compute starts with; operators change it in Placement then.'),
    cfg.FloatOpt('initial_ram_allocation_ratio', default=1.0, min=0.0, help='The same for memory.'),
    cfg.FloatOpt('initial_disk_allocation_ratio', default=1.0, min=0.0, help='The same for disk.'),
    cfg.IntOpt('reserved_host_cpus', default=0, min=0,
               help='CPUs kept for the host. Not together with [compute]cpu_shared_set or cpu_dedicated_set: leave '
                    'CPUs out of those.'),
    cfg.IntOpt('reserved_host_memory_mb', default=512, min=0, help='MiB of memory kept for the host.'),
    cfg.MultiOpt('reserved_huge_pages', item_type=types.Dict(),
                 help='Pages of a NUMA cell kept for the host, as node:0,size:2048,count:64: the cell, the size (KiB, '
                      'or with a unit as 1GB), how many. One line for each cell and size.'),
    cfg.IntOpt('reserved_host_disk_mb', default=0, min=0,
               help='MiB of disk kept for the host, rounded up to whole GiB.'),
]
