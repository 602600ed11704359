"""The [libvirt] options: the connection, the properties of guests, and the storage of their disks."""

from __future__ import annotations

from oslo_config import cfg

from kilonova.conf.renamed import was

GROUP = 'libvirt'
# The values of images_type that Kilonova supports. A compute service does not start with Nova's other values.
IMAGE_TYPES = ('default', 'qcow2', 'raw', 'flat', 'rbd')

OPTS = [
    cfg.StrOpt(
        'virt_type',
        default='kvm',
        choices=['kvm', 'qemu', 'lxc', 'parallels'],
        deprecated_opts=was('libvirt_type'),
        help='Type of guests. Only kvm and qemu are supported.',
    ),
    cfg.StrOpt(
        'connection_uri',
        default='',
        deprecated_opts=was('libvirt_uri'),
        help='Address of libvirt; empty: qemu:///system. With test:///FILE the library libvirt itself simulates '
        'a host that FILE describes, without root, KVM or a GPU.',
    ),
    cfg.IntOpt(
        'keepalive_interval',
        default=5,
        min=0,
        help='Seconds between two keepalive messages to libvirt. After three without a response the connection '
        'is closed, calls that wait for a response fail, and the host counts as disabled until libvirt '
        'answers again. This also covers a libvirt that answers keepalive messages but no calls: every '
        "five intervals the compute requests libvirt's capabilities and waits just as long for them. Raise "
        'it if libvirt hangs that long under load. 0: no checks; if libvirt hangs, calls wait without '
        'limit, and the scheduler still chooses the host.',
    ),
    cfg.StrOpt(
        'cpu_mode',
        choices=['host-model', 'host-passthrough', 'custom', 'maximum', 'none'],
        deprecated_opts=was('libvirt_cpu_mode'),
        help='CPU mode of guests. Empty: host-model (host-passthrough on aarch64).',
    ),
    cfg.ListOpt(
        'cpu_models',
        default=[],
        deprecated_opts=[cfg.DeprecatedOpt('cpu_model'), *was('libvirt_cpu_model')],
        help='Named CPU models for cpu_mode=custom, the preferred one first. A server gets the first model '
        'with the features that its flavor and image require (trait:HW_CPU_X86_AVX2=required). The '
        'compute does not start if guests of this host cannot have one of the models.',
    ),
    cfg.ListOpt(
        'cpu_model_extra_flags',
        default=[],
        help='CPU flags that guests get in addition to those of the model: name or +name to require a flag, '
        '-name to disable it.',
    ),
    cfg.ListOpt(
        'hw_machine_type',
        help='Machine type by architecture, as x86_64=q35,aarch64=virt. The image property hw_machine_type '
        'overrides it. GPUs need q35. Empty: pc on x86_64, virt on aarch64.',
    ),
    cfg.IntOpt(
        'num_pcie_ports',
        default=0,
        min=0,
        max=28,
        help='Number of PCIe root ports of q35 and virt guests, for devices that are attached while the guest '
        "runs. 0: libvirt's default.",
    ),
    cfg.IntOpt(
        'mem_stats_period_seconds',
        default=10,
        help="Seconds between two updates of the memory balloon's statistics; 0: no balloon.",
    ),
    cfg.StrOpt(
        'rng_dev_path',
        default='/dev/urandom',
        help="Source of the guests' random number device; empty: no such device.",
    ),
    cfg.IntOpt(
        'realtime_scheduler_priority',
        default=1,
        min=1,
        max=99,
        help='Priority (SCHED_FIFO) of the vCPUs of servers that request realtime (hw:cpu_realtime). Raise it '
        'only if the host has other real-time work that must have a lower priority.',
    ),
    cfg.StrOpt(
        'sysinfo_serial',
        default='unique',
        choices=['none', 'os', 'hardware', 'auto', 'unique'],
        help="Serial number in the guest's SMBIOS: none, the host's machine-id (os), the host's own (hardware), "
        "the first of these that exists (auto), or the server's uuid (unique).",
    ),
    cfg.IntOpt(
        'wait_soft_reboot_seconds',
        default=120,
        deprecated_opts=was('libvirt_wait_soft_reboot_seconds'),
        help='Maximum seconds that a soft reboot waits for the guest to shut down before it becomes a hard reboot.',
    ),
    cfg.StrOpt(
        'rescue_image_id',
        deprecated_opts=was('rescue_image_id'),
        help="Image that a rescued server boots from if the request names none. Empty: the server's own image.",
    ),
    cfg.StrOpt(
        'rescue_kernel_id',
        deprecated_opts=was('rescue_kernel_id'),
        help='Image of the kernel that a rescued server boots. Empty: the kernel_id of the rescue image, or '
        "else of the server's image; without any, the boot loader of the rescue image.",
    ),
    cfg.StrOpt(
        'rescue_ramdisk_id',
        deprecated_opts=was('rescue_ramdisk_id'),
        help='The same as rescue_kernel_id, for the ramdisk.',
    ),
    cfg.IntOpt(
        'device_detach_attempts',
        default=8,
        min=1,
        max=100,
        help='How often a running guest is requested to release a device: all passed-through devices before a '
        'suspend, or an interface or volume that is detached. The operating system of the guest must '
        'release it. If it does not, the server stays unchanged.',
    ),
    cfg.IntOpt(
        'device_detach_timeout',
        default=20,
        min=1,
        max=3600,
        help='Seconds that a guest has to release a device in each attempt.',
    ),
    cfg.StrOpt(
        'images_type',
        default='default',
        choices=['raw', 'flat', 'qcow2', 'lvm', 'rbd', 'ploop', 'default'],
        deprecated_opts=was('libvirt_images_type'),
        help='Storage of disks: qcow2 (an overlay of the cached image), raw or flat (a copy), rbd (in the Ceph '
        'pool images_rbd_pool: a clone of the image if that is raw and in the same cluster, otherwise a '
        'copy). default follows [DEFAULT]use_cow_images. Existing servers keep the storage that they were '
        'created with. lvm and ploop are not supported: a compute does not start with them.',
    ),
    cfg.StrOpt(
        'images_rbd_pool',
        default='rbd',
        deprecated_opts=was('libvirt_images_rbd_pool'),
        help='The Ceph pool for images_type rbd. Moves between hosts that share it copy no disks. Each host '
        'reports the whole pool as its own DISK_GB.',
    ),
    cfg.StrOpt(
        'images_rbd_ceph_conf',
        default='',
        deprecated_opts=was('libvirt_images_rbd_ceph_conf'),
        help="Ceph's configuration file for clients, which names the keyring of rbd_user. Empty: /etc/ceph/ceph.conf.",
    ),
    cfg.StrOpt(
        'images_rbd_glance_store_name',
        default='',
        help='Not supported: images are not copied into a Ceph store of the image service before they are used. '
        'With images_type rbd a compute does not start if this is set.',
    ),
    cfg.IntOpt(
        'rbd_connect_timeout',
        default=5,
        min=1,
        max=600,
        help='Maximum seconds until Ceph answers when a command of images_type rbd connects.',
    ),
    cfg.IntOpt(
        'rbd_destroy_volume_retries',
        default=12,
        min=0,
        max=1000,
        help='How often the removal of a disk of images_type rbd is retried while a client has the disk open.',
    ),
    cfg.IntOpt(
        'rbd_destroy_volume_retry_interval', default=5, min=0, max=600, help='Seconds between two such retries.'
    ),
    cfg.StrOpt(
        'snapshots_directory',
        default='$instances_path/snapshots',
        deprecated_opts=was('libvirt_snapshots_directory'),
        help='Directory for copies of disks that are being uploaded to the image service (createImage). Each '
        'copy takes up to the size of the disk. If the file system can share blocks, choose a directory in '
        'the file system of the disks.',
    ),
    cfg.StrOpt(
        'snapshot_image_format',
        choices=['raw', 'qcow2', 'vmdk', 'vdi'],
        help='Format of the images that are created of servers (createImage, createBackup, shelve). Empty: '
        'qcow2. With another format such an image is written twice, and takes twice the space in '
        'snapshots_directory meanwhile. Raw images are uploaded including their holes.',
    ),
    cfg.StrOpt(
        'remote_filesystem_transport',
        default='ssh',
        choices=['ssh', 'rsync'],
        help='How disks are copied to another machine in a resize or cold migration. ssh needs no further '
        'program there. rsync must be installed on both machines; after an interruption it copies only '
        'what is missing. Both log in as the user of this service, with its ssh key, at [DEFAULT]my_ip of '
        'the other host. Hosts on the same machine copy locally; hosts that share [DEFAULT]instances_path '
        'copy nothing.',
    ),
    cfg.IntOpt(
        'remote_filesystem_bandwidth',
        default=0,
        min=0,
        max=1 << 20,
        help='Maximum MiB per second that one such copy may use of the network; 0: no limit.',
    ),
    cfg.StrOpt(
        'live_migration_uri',
        help="Address of this host's libvirt for other hosts in a live migration to this host, if it is not "
        '<live_migration_scheme>://<address>/system; %s is replaced by the address. The destination sends '
        'it to the source, so each host may have its own value.',
    ),
    cfg.StrOpt(
        'live_migration_scheme',
        help='Transport of the connection between the libvirts of two hosts in a live migration: tcp, tls or '
        'ssh. Empty: tcp. It has no effect on the transfer of memory and disks: see '
        'live_migration_with_native_tls.',
    ),
    cfg.StrOpt(
        'live_migration_inbound_addr',
        help='Address of this host for live migrations to it. Empty: [DEFAULT]my_ip. Set it if there is a '
        'separate network for live migrations.',
    ),
    cfg.BoolOpt(
        'live_migration_with_native_tls',
        default=False,
        help='QEMU encrypts memory and disks in a live migration from this host, and each host verifies the '
        "other's certificate. Both hosts need the certificates of qemu.conf (migrate_tls_x509_cert_dir), "
        'issued for the address that live migrations use. Without them the migration fails; nothing is '
        'sent unencrypted.',
    ),
    cfg.IntOpt(
        'live_migration_bandwidth',
        default=0,
        min=0,
        max=1 << 20,
        help='Maximum MiB per second that a live migration may use of the network; 0: no limit.',
    ),
    cfg.IntOpt(
        'live_migration_downtime',
        default=500,
        min=100,
        help='Maximum milliseconds for which a guest may be paused at the end of a live migration. The '
        'migration of a guest that writes much memory may finish only with a larger value.',
    ),
    cfg.IntOpt(
        'live_migration_downtime_steps',
        default=10,
        min=3,
        help='Number of steps in which the allowed downtime is raised from a small part of '
        'live_migration_downtime to the whole.',
    ),
    cfg.IntOpt(
        'live_migration_downtime_delay',
        default=75,
        min=3,
        help='Seconds between two such steps, for each GiB of memory and disks (at least 2 GiB are counted).',
    ),
    cfg.BoolOpt(
        'live_migration_permit_post_copy',
        default=False,
        help='When a live migration is forced to complete, start the guest at the destination at once and copy '
        'the rest of its memory afterwards. If the network fails then and does not recover, the state of '
        "the guest is lost, and it boots again from its disks. The destination's kernel must allow this "
        'for QEMU (sysctl vm.unprivileged_userfaultfd). If it does not, guests migrate to that host '
        'without post-copy, and a WARNING is logged.',
    ),
    cfg.BoolOpt(
        'live_migration_permit_auto_converge',
        default=False,
        help='Slow down a guest that writes memory faster than it can be copied. It has no effect if '
        'live_migration_permit_post_copy is in use.',
    ),
    cfg.IntOpt(
        'live_migration_completion_timeout',
        default=800,
        min=0,
        help='Seconds for each GiB of memory and disks (at least 2 GiB are counted) until '
        'live_migration_timeout_action. 0: no limit.',
    ),
    cfg.StrOpt(
        'live_migration_timeout_action',
        default='abort',
        choices=['abort', 'force_complete'],
        help='What happens after live_migration_completion_timeout. abort: the guest stays on its host. '
        'force_complete: the guest runs at the destination at once (live_migration_permit_post_copy), or '
        'is paused until all of it is copied.',
    ),
    cfg.ListOpt(
        'disk_cachemodes',
        default=[],
        deprecated_opts=was('disk_cachemodes'),
        help="Cache mode by type of disk, as file=writeback,network=writeback: file (servers' own disks, and "
        "volumes in NFS), block or network (other volumes). Empty: none, but writeback for servers' own "
        'disks if their file system does not support direct I/O.',
    ),
    cfg.StrOpt(
        'rbd_user',
        help='Name by which guests log in to Ceph (cephx) if the connection of a volume contains none. With '
        'images_type rbd the compute uses it as well.',
    ),
    cfg.StrOpt(
        'rbd_secret_uuid',
        help='Uuid of the libvirt secret that holds the key of rbd_user, if the connection of a volume names '
        'none. Each compute needs this secret (virsh secret-define, secret-set-value).',
    ),
    cfg.StrOpt(
        'nfs_mount_point_base',
        default='$state_path/mnt',
        help='Directory in which NFS shares with volumes are mounted. Computes on the same machine may share it.',
    ),
    cfg.StrOpt('nfs_mount_options', help='Mount options (-o) for these shares, in addition to the version.'),
    cfg.BoolOpt(
        'volume_use_multipath',
        default=False,
        help='Connect volumes by all paths of their storage (multipathd must run).',
    ),
    cfg.BoolOpt(
        'volume_enforce_multipath',
        default=False,
        help='With volume_use_multipath: a host on which multipathd does not run connects no volumes. Off: '
        'such a host connects them by one path.',
    ),
    cfg.IntOpt(
        'num_volume_scan_tries',
        default=5,
        min=1,
        max=100,
        help='How often the host looks for the device of a volume that it has connected.',
    ),
    cfg.StrOpt('hw_disk_discard', choices=['ignore', 'unmap'], help='What happens to blocks that guests discard.'),
    cfg.IntOpt(
        'images_cpu_time_limit',
        default=30,
        min=1,
        help='Maximum CPU seconds that qemu-img may spend looking at an uploaded image.',
    ),
    cfg.IntOpt(
        'images_address_space_limit',
        default=2,
        min=1,
        help='Maximum GiB of address space of qemu-img while it looks at an uploaded image.',
    ),
]
