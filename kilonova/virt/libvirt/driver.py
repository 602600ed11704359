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
from kilonova.virt.libvirt import settings
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices.hostdevs import HostDevices
from kilonova.virt.libvirt.devices.hotplug import Hotplug
from kilonova.virt.libvirt.devices.mdev import MediatedDevices
from kilonova.virt.libvirt.devices.plugs import Plugs
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.guests import Guests
from kilonova.virt.libvirt.host import Host
from kilonova.virt.libvirt.live_migration import LiveMigrations
from kilonova.virt.libvirt.moves import Moves
from kilonova.virt.libvirt.power import Power
from kilonova.virt.libvirt.rescues import Rescues
from kilonova.virt.libvirt.snapshots import Snapshots
from kilonova.virt.libvirt.storage import files, ssh
from kilonova.virt.libvirt.storage.bricks import Bricks
from kilonova.virt.libvirt.storage.cache import ConversionLimits, ImageCache
from kilonova.virt.libvirt.storage.instance import RBD
from kilonova.virt.libvirt.storage.move import DiskMover
from kilonova.virt.libvirt.storage.pool import Pool
from kilonova.virt.libvirt.storage.rescue import RescueFiles
from kilonova.virt.libvirt.storage.secrets import Secrets
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volumes import HostVolumes
from kilonova.virt.libvirt.volume_snapshots import VolumeSnapshots
from kilonova.virt.libvirt.volumes import Volumes
from kilonova.virt.parts.disks import ImageClient


class LibvirtDriver:
    """The driver for kvm and qemu guests, which it runs by libvirt. Implements ``driver.ComputeDriver``."""

    capabilities = driver.Capabilities(supports_migrate_to_same_host=False)

    def __init__(self, conf: cfg.ConfigOpts, image_client: ImageClient | None = None) -> None:
        path, options = conf.instances_path, conf.libvirt
        cache = ImageCache(os.path.join(path, conf.image_cache.subdirectory_name),
                           files.Locks(os.path.join(path, 'locks')), force_raw=conf.force_raw_images,
                           limits=ConversionLimits(options.images_cpu_time_limit, options.images_address_space_limit))
        pool = Pool(conf)
        mover = DiskMover(conf.host, conf.my_ip, path, cache.directory, ssh.Transport(
            options.remote_filesystem_transport, options.remote_filesystem_bandwidth << 20), pool,
            options.images_type == RBD)
        connection = Connection(settings.connection_uri(conf), conf.host, options.keepalive_interval)

        self.disks = ServerDisks(conf, cache, image_client, pool)
        mediated, plugs = MediatedDevices(connection), Plugs(conf)
        secrets = Secrets(connection, KeyManager(conf))
        self.host = Host(conf, connection, self.disks, mover, mediated, secrets, plugs)
        bricks = Bricks(conf)
        volumes = HostVolumes(connection, self.host, bricks, secrets)
        domains = Domains(conf, connection, self.host, self.disks, volumes, mediated, plugs)
        hotplug = Hotplug(options.device_detach_attempts, options.device_detach_timeout)
        self.guests = Guests(connection, self.host, self.disks, volumes, domains, hotplug, {
            'vnc': conf.vnc.server_proxyclient_address, 'spice': conf.spice.server_proxyclient_address,
            'serial': conf.serial_console.proxyclient_address})
        self.power = Power(connection, domains, volumes, hotplug, options.wait_soft_reboot_seconds)
        self.rescues = Rescues(connection, domains, self.disks, self.power,
                               RescueFiles(conf, cache, image_client, self.disks))
        self.moves = Moves(connection, domains, self.disks, volumes, self.power, mover)
        self.live_migrations = LiveMigrations(conf, connection, self.host, domains, self.disks, volumes, mover)
        self.snapshots = Snapshots(connection, self.disks, image_client, options.snapshots_directory,
                                   options.snapshot_image_format or 'qcow2')
        self.devices = HostDevices(connection, mediated)
        self.volumes = Volumes(connection, domains, self.disks, volumes, bricks, hotplug)
        self.volume_snapshots = VolumeSnapshots(connection, domains, volumes)


_: type[driver.ComputeDriver] = LibvirtDriver       # mypy compares it with the protocol
