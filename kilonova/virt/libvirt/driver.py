"""The libvirt driver for kvm and qemu guests. This file creates the parts of the driver and connects them.

    driver = LibvirtDriver(conf, image_client)
    driver.host.init_host()
    driver.guests.spawn(instance, image_meta, pci_devices=devices)

With [libvirt]connection_uri = test:///FILE, libvirt's test driver simulates the host: XML, domains and disks are real,
but there is no hypervisor. The interface of the parts is documented in ``kilonova.virt.parts``.
"""

from __future__ import annotations

import os

from oslo_config import cfg

from kilonova.clients.key_manager import KeyManager
from kilonova.virt import driver
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices.hostdevs import LibvirtDevices
from kilonova.virt.libvirt.devices.hotplug import Hotplug
from kilonova.virt.libvirt.devices.mdev import LibvirtMdevs
from kilonova.virt.libvirt.devices.vif.plugs import Plugs
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.guests import LibvirtGuests
from kilonova.virt.libvirt.host import LibvirtHost
from kilonova.virt.libvirt.hostinfo import settings
from kilonova.virt.libvirt.migration.live_migration import LibvirtLiveMigrations
from kilonova.virt.libvirt.moves import LibvirtMoves
from kilonova.virt.libvirt.power import LibvirtPower
from kilonova.virt.libvirt.rescues import LibvirtRescues
from kilonova.virt.libvirt.snapshots import LibvirtSnapshots
from kilonova.virt.libvirt.storage import files, ssh
from kilonova.virt.libvirt.storage.cache import ConversionLimits, ImageCache
from kilonova.virt.libvirt.storage.instance import RBD
from kilonova.virt.libvirt.storage.move import DiskMover
from kilonova.virt.libvirt.storage.rbd.pool import RbdPool
from kilonova.virt.libvirt.storage.rescue import RescueFiles
from kilonova.virt.libvirt.storage.secrets import LibvirtSecrets
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes
from kilonova.virt.libvirt.storage.volume_connector import Bricks
from kilonova.virt.libvirt.volume_snapshots import LibvirtVolumeSnapshots
from kilonova.virt.libvirt.volumes import LibvirtVolumes
from kilonova.virt.parts.disks import ImageSource


class LibvirtDriver:
    """The driver for kvm and qemu guests, which it runs by libvirt. Implements ``driver.ComputeDriver``."""

    capabilities = driver.Capabilities(supports_migrate_to_same_host=False)

    def __init__(self, conf: cfg.ConfigOpts, image_client: ImageSource | None = None) -> None:
        path, options = conf.instances_path, conf.libvirt
        cache = ImageCache(
            os.path.join(path, conf.image_cache.subdirectory_name),
            files.FileLocks(os.path.join(path, 'locks')),
            force_raw=conf.force_raw_images,
            limits=ConversionLimits(options.images_cpu_time_limit, options.images_address_space_limit),
        )
        pool = RbdPool(conf)
        mover = DiskMover(
            conf.host,
            conf.my_ip,
            path,
            cache.directory,
            ssh.FileTransport(options.remote_filesystem_transport, options.remote_filesystem_bandwidth << 20),
            pool,
            options.images_type == RBD,
        )
        connection = Connection(settings.connection_uri(conf), conf.host, options.keepalive_interval)

        self.disks = ServerDisks(conf, cache, image_client, pool)
        mediated, plugs = LibvirtMdevs(connection), Plugs(conf)
        secrets = LibvirtSecrets(connection, KeyManager(conf))
        self.host = LibvirtHost(conf, connection, self.disks, mover, mediated, secrets, plugs)
        bricks = Bricks(conf)
        volumes = HostVolumes(connection, self.host, bricks, secrets)
        domains = Domains(conf, connection, self.host, self.disks, volumes, mediated, plugs)
        hotplug = Hotplug(options.device_detach_attempts, options.device_detach_timeout)
        self.guests = LibvirtGuests(
            connection,
            self.host,
            self.disks,
            volumes,
            domains,
            hotplug,
            {
                'vnc': conf.vnc.server_proxyclient_address,
                'spice': conf.spice.server_proxyclient_address,
                'serial': conf.serial_console.proxyclient_address,
            },
        )
        self.power = LibvirtPower(connection, domains, volumes, hotplug, options.wait_soft_reboot_seconds)
        self.rescues = LibvirtRescues(
            connection, domains, self.disks, self.power, RescueFiles(conf, cache, image_client, self.disks)
        )
        self.moves = LibvirtMoves(connection, domains, self.disks, volumes, self.power, mover)
        self.live_migrations = LibvirtLiveMigrations(conf, connection, self.host, domains, self.disks, volumes, mover)
        self.snapshots = LibvirtSnapshots(
            connection, self.disks, image_client, options.snapshots_directory, options.snapshot_image_format or 'qcow2'
        )
        self.devices = LibvirtDevices(connection, mediated)
        self.volumes = LibvirtVolumes(connection, domains, self.disks, volumes, bricks, hotplug)
        self.volume_snapshots = LibvirtVolumeSnapshots(connection, domains, volumes)


_: type[driver.ComputeDriver] = LibvirtDriver  # mypy checks that LibvirtDriver implements the protocol
