"""The [libvirt] options: the connection, the properties of guests, and the storage of their disks."""
from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'libvirt'

OPTS = [
    cfg.StrOpt('virt_type', default='kvm', choices=['kvm', 'qemu', 'lxc', 'parallels'],
               deprecated_opts=was('libvirt_type'),
               help='Kind of guests. Only kvm and qemu can be given PCI devices, and only they are served here.'),
    cfg.StrOpt('connection_uri', default='',
               deprecated_opts=was('libvirt_uri'),
               help='Address of libvirt; empty: qemu:///system. With test:///FILE the library itself plays a host '
                    'that FILE describes: no root, no KVM, no GPU needed.'),
    cfg.IntOpt('keepalive_interval', default=5, min=0,
               help='Seconds between two looks whether libvirt still answers. After three without an answer the '
                    'connection is given up, calls that wait for it fail, and the host counts as disabled until '
                    'libvirt answers again. The same holds for a libvirt that answers these looks and no calls: each '
                    'five intervals it is asked for its capabilities, and has as long to answer. Raise it where '
                    'libvirt stands still that long under load. 0: a libvirt that hangs holds up whoever asks it, and '
                    'the host gets servers all the same.'),
    cfg.StrOpt('cpu_mode', choices=['host-model', 'host-passthrough', 'custom', 'maximum', 'none'],
               deprecated_opts=was('libvirt_cpu_mode'),
               help='CPU that guests see. Empty: host-model (host-passthrough on aarch64).'),
    cfg.ListOpt('cpu_models', default=[],
                deprecated_opts=[cfg.DeprecatedOpt('cpu_model'), *was('libvirt_cpu_model')],
                help='Named models for cpu_mode=custom, the preferred first. A server gets the first that has the '
                     'features which its flavor and image require (trait:HW_CPU_X86_AVX2=required); the compute does '
                     'not start with one that guests of this host can not have.'),
    cfg.ListOpt('cpu_model_extra_flags', default=[],
                help='CPU flags that guests get besides: name or +name to require, -name to disable.'),
    cfg.ListOpt('hw_machine_type',
                help='Machine type by architecture, as x86_64=q35,aarch64=virt. Images override it with '
                     'hw_machine_type. GPUs want q35. Empty: pc on x86_64, virt on aarch64.'),
    cfg.IntOpt('num_pcie_ports', default=0, min=0, max=28,
               help="PCIe root ports of q35 and virt guests, for devices plugged in while they run. 0: libvirt's "
                    'choice.'),
    cfg.IntOpt('mem_stats_period_seconds', default=10,
               help="Seconds between the memory balloon's statistics; 0: no balloon."),
    cfg.StrOpt('rng_dev_path', default='/dev/urandom',
               help="Source of the guests' random number device; empty: no such device."),
    cfg.IntOpt('realtime_scheduler_priority', default=1, min=1, max=99,
               help='Priority (SCHED_FIFO) of vCPUs of servers that ask for realtime (hw:cpu_realtime). Raise it only '
                    'where the host has other such work that must come after theirs.'),
    cfg.StrOpt('sysinfo_serial', default='unique', choices=['none', 'os', 'hardware', 'auto', 'unique'],
               help="Serial number in the guest's SMBIOS: none, the host's machine-id (os), the host's own "
                    "(hardware), the first of these that there is (auto), or the server's uuid (unique)."),
    cfg.IntOpt('wait_soft_reboot_seconds', default=120,
               deprecated_opts=was('libvirt_wait_soft_reboot_seconds'),
               help='Seconds that a soft reboot waits for the guest to go down before it becomes a hard one.'),
    cfg.StrOpt('rescue_image_id', deprecated_opts=was('rescue_image_id'),
               help="Image that a rescued server starts from where the request names none. Empty: the server's own."),
    cfg.StrOpt('rescue_kernel_id', deprecated_opts=was('rescue_kernel_id'),
               help="Image of the kernel that a rescued server starts. Empty: the rescue image's own kernel_id, else "
                    "the server's; without any the rescue image's boot loader."),
    cfg.StrOpt('rescue_ramdisk_id', deprecated_opts=was('rescue_ramdisk_id'),
               help='The same for its ramdisk.'),
    cfg.IntOpt('device_detach_attempts', default=8, min=1, max=100,
               help='How often a running guest is asked to give up its devices before it is suspended, or an interface '
                    'or volume that is detached; its system has to let them go. After the last time the server stays '
                    'as it was.'),
    cfg.IntOpt('device_detach_timeout', default=20, min=1, max=3600,
               help='Seconds that it has for that each time.'),
    cfg.StrOpt('images_type', default='default', choices=['raw', 'flat', 'qcow2', 'lvm', 'rbd', 'ploop', 'default'],
               deprecated_opts=was('libvirt_images_type'),
               help='How disks are kept: qcow2 (overlay of the cached image), raw or flat (a copy), rbd (in the pool '
                    'of Ceph images_rbd_pool: a clone of the image where that is raw and in the same cluster, else a '
                    'copy). default follows [DEFAULT]use_cow_images. A server keeps its disks as they were made. The '
                    'others are known by name, the compute refuses them.'),
    cfg.StrOpt('images_rbd_pool', default='rbd', deprecated_opts=was('libvirt_images_rbd_pool'),
               help='The pool of images_type rbd. Hosts that have it in common move servers without a copy; each '
                    'reports all of it as its own DISK_GB.'),
    cfg.StrOpt('images_rbd_ceph_conf', default='', deprecated_opts=was('libvirt_images_rbd_ceph_conf'),
               help="Ceph's file for clients, which names the keyring of rbd_user. Empty: /etc/ceph/ceph.conf."),
    cfg.StrOpt('images_rbd_glance_store_name', default='',
               help='Not served here: images are not copied into a Ceph store of the image service before they are '
                    'used. With images_type rbd a compute does not start with it.'),
    cfg.IntOpt('rbd_connect_timeout', default=5, min=1, max=600,
               help='Seconds that Ceph may take to answer when a command of images_type rbd connects.'),
    cfg.IntOpt('rbd_destroy_volume_retries', default=12, min=0, max=1000,
               help='How often the removal of such an image is tried again while somebody has it open.'),
    cfg.IntOpt('rbd_destroy_volume_retry_interval', default=5, min=0, max=600,
               help='Seconds between two such tries.'),
    cfg.StrOpt('snapshots_directory', default='$instances_path/snapshots',
               deprecated_opts=was('libvirt_snapshots_directory'),
               help='Directory for copies of disks on their way to the image service (createImage). Each takes up to '
                    'the size of the disk; where the file system can share blocks, keep it beside the disks.'),
    cfg.StrOpt('snapshot_image_format', choices=['raw', 'qcow2', 'vmdk', 'vdi'],
               help='Format of the images that are made of servers (createImage, createBackup, shelve). Empty: qcow2. '
                    'With another one such an image is written twice, and takes twice the room in '
                    'snapshots_directory meanwhile; raw ones are sent with their holes.'),
    cfg.StrOpt('remote_filesystem_transport', default='ssh', choices=['ssh', 'rsync'],
               help="How disks get to another machine in a resize or cold migration. ssh needs nothing else there; "
                    'rsync, installed on both, compares what is there after a cut. Both log in as the user of this '
                    "service, with its key, at the other host's [DEFAULT]my_ip. Hosts of one machine "
                    'copy, hosts that share their [DEFAULT]instances_path need not even that.'),
    cfg.IntOpt('remote_filesystem_bandwidth', default=0, min=0, max=1 << 20,
               help='MiB a second that one such move may take of the network; 0: no limit.'),
    cfg.StrOpt('live_migration_uri',
               help='How other hosts reach the libvirt of this host for a live migration to it, where that is not '
                    '<live_migration_scheme>://<address>/system; %s stands for the address. The destination says it, '
                    'so it may differ from host to host.'),
    cfg.StrOpt('live_migration_scheme',
               help='How libvirts of two hosts speak with each other in a live migration: tcp, tls or ssh. Empty: tcp. '
                    'It says nothing of how memory and disks go: see live_migration_with_native_tls.'),
    cfg.StrOpt('live_migration_inbound_addr',
               help='Address of this host for live migrations to it. Empty: [DEFAULT]my_ip. Set it where there is a '
                    'network for them.'),
    cfg.BoolOpt('live_migration_with_native_tls', default=False,
                help='QEMU encrypts memory and disks of a live migration from this host, and each side looks at the '
                     "other's certificate. Both hosts need those of qemu.conf (migrate_tls_x509_cert_dir), with the "
                     'address to which guests go. Without them the migration fails; nothing goes unencrypted.'),
    cfg.IntOpt('live_migration_bandwidth', default=0, min=0, max=1 << 20,
               help='MiB a second that a live migration may take of the network; 0: no limit.'),
    cfg.IntOpt('live_migration_downtime', default=500, min=100,
               help='Milliseconds for which a guest may stand still at the end of a live migration, at most. A guest '
                    'that writes much needs more of them to be carried at all.'),
    cfg.IntOpt('live_migration_downtime_steps', default=10, min=3,
               help='It is allowed that in so many steps, from a small part of it on.'),
    cfg.IntOpt('live_migration_downtime_delay', default=75, min=3,
               help='Seconds for each GiB of memory and disks (for 2 GiB at least) between two such steps.'),
    cfg.BoolOpt('live_migration_permit_post_copy', default=False,
                help='A live migration that is forced to its end lets the guest run at the destination at once, and '
                     'carries the rest of its memory after it. If the network breaks then and stays broken, the guest '
                     "is lost, and starts anew from its disks. The destination's kernel must let QEMU do so (sysctl "
                     'vm.unprivileged_userfaultfd); where it does not, guests go there without, with a WARNING.'),
    cfg.BoolOpt('live_migration_permit_auto_converge', default=False,
                help='Slow a guest down that writes its memory faster than it is carried away. Not in use where '
                     'live_migration_permit_post_copy is.'),
    cfg.IntOpt('live_migration_completion_timeout', default=800, min=0,
               help='Seconds for each GiB of memory and disks (for 2 GiB at least) until '
                    'live_migration_timeout_action. 0: it may take for ever.'),
    cfg.StrOpt('live_migration_timeout_action', default='abort', choices=['abort', 'force_complete'],
               help='What happens after live_migration_completion_timeout: abort, and the guest stays where it is, or '
                    'force_complete: the guest runs at the destination at once (live_migration_permit_post_copy), or '
                    'stands still until it is there.'),
    cfg.ListOpt('disk_cachemodes', default=[],
                deprecated_opts=was('disk_cachemodes'),
                help="Cache mode by kind of disk, as file=writeback,network=writeback: file (servers' own disks, and "
                     "volumes in NFS), block or network (other volumes). Empty: none, and writeback for servers' own "
                     'disks where their file system has no direct I/O.'),
    cfg.StrOpt('rbd_user',
               help='Who guests are to Ceph (cephx) where the connection of a volume does not say it; with images_type '
                    'rbd the compute itself, too.'),
    cfg.StrOpt('rbd_secret_uuid',
               help='Uuid of the secret of libvirt that holds the key of rbd_user, where the connection of a volume '
                    'names none. Each compute needs that secret (virsh secret-define, secret-set-value).'),
    cfg.StrOpt('nfs_mount_point_base', default='$state_path/mnt',
               help='Directory below which shares of NFS with volumes are mounted. Computes that share a machine may '
                    'have it in common.'),
    cfg.StrOpt('nfs_mount_options', help='Options of mount for them (-o), besides the version.'),
    cfg.BoolOpt('volume_use_multipath', default=False,
                help='Connect volumes by all paths that their storage has (multipathd must run).'),
    cfg.BoolOpt('volume_enforce_multipath', default=False,
                help='With volume_use_multipath: a host whose multipathd does not run gets no volumes. Else they are '
                     'connected by one path there.'),
    cfg.IntOpt('num_volume_scan_tries', default=5, min=1, max=100,
               help='How often the host looks for the device of a volume that it is connected to.'),
    cfg.StrOpt('hw_disk_discard', choices=['ignore', 'unmap'],
               help='What happens to blocks that guests discard.'),
    cfg.IntOpt('images_cpu_time_limit', default=30, min=1,
               help='CPU seconds that qemu-img may spend looking at an uploaded image.'),
    cfg.IntOpt('images_address_space_limit', default=2, min=1,
               help='GiB of address space that it may use for that.'),
]
