"""Interface between the compute service and a hypervisor: one driver object per host, with a part for each subject.

    driver = load(conf, image_client)     # [DEFAULT]compute_driver = libvirt.LibvirtDriver
    driver.host.init_host()
    driver.guests.spawn(instance, image_meta, pci_devices=devices)
    driver.power.power_off(instance, timeout=60)

``ComputeDriver`` is the complete interface between ``kilonova.compute`` and a hypervisor. Its parts are ``host``,
``guests``, ``power``, ``rescues``, ``disks``, ``moves``, ``live_migrations``, ``snapshots``, ``devices``, ``volumes``
and ``volume_snapshots``; each is a small protocol in ``virt.parts``. ``FakeDriver`` and ``LibvirtDriver`` pass the same
contract tests. ``load`` takes the class from the entry points of ``kilonova.virt.drivers``. A driver announces the
features that it supports: operations read its ``capabilities``, and the scheduler reads the traits of its host.

Rules for every driver:

- A call may be repeated, even after a crash in the middle of the first call. A domain with the same uuid is replaced.
  Files are written under another name and then renamed. It is no error if an object is deleted already.
- A guest without a domain counts as powered off.
- The caller serialises the calls for one instance. Calls for different instances run in parallel.
- ``instance`` needs the attributes uuid, id, flavor, image_ref, project_id, user_id. Attributes display_name, os_type
  and config_drive are used if they are set, and for a config drive also hostname, metadata, user_data, key_name,
  key_data, launch_index, availability_zone.
- ``instance.flavor`` is always the flavor that the domain must get: the new flavor in ``finish_migration``, the old
  flavor in ``finish_revert_migration``.
- ``instance.vifs`` are the domain's interfaces, in this order, whenever the domain is built.
- ``instance.volumes`` are the domain's volume disks, with their device names, whenever the domain is built. Volumes
  without a ``connection`` are left out. The driver connects volumes to this host first. If the host cannot use a
  volume, the driver raises VolumeUnsupported before it creates or stops a guest. ``Guests.destroy``,
  ``Moves.migrate_disk_and_power_off`` and ``Moves.cleanup_move_dest`` disconnect the volumes attached to this host.
- The hypervisor decrypts an encrypted volume. The driver reads the volume's key by the id in ``volume.encryption``
  whenever it connects the volume, and forgets the key when it disconnects the volume. The driver raises
  VolumeUnsupported for a volume that cannot be decrypted.
- Only a guest's own disks are copied to other hosts, grown, copied to images or created again. If
  ``instance.is_from_volume`` is True (the instance has no image_ref), no root disk is created, and the guest boots from
  the volume with ``is_root``, which is its first disk.
- ``instance.numa_topology`` has the host CPUs, memory and pages of the host's NUMA cells that the domain must use. It
  is None if the guest may use any.
- ``pci_devices`` are exactly the devices that become host devices of the domain. ``instance.pci_devices`` is not used
  for this. The driver reads their attributes address, dev_type, parent_addr and extra_info. A device of dev_type MDEV
  is a mediated device: its address is its uuid, parent_addr is the address of its PCI function, and
  extra_info['mdev_type'] is its type. The driver creates it before its guest is defined or started, or raises
  MdevUnavailable. It keeps the device when the guest is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import stevedore
from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.virt.parts.disks import Disks, ImageSource, Snapshots
from kilonova.virt.parts.guests import Guests
from kilonova.virt.parts.host import Devices, Host
from kilonova.virt.parts.live_migrations import LiveMigrations
from kilonova.virt.parts.moves import Moves
from kilonova.virt.parts.power import Power, Rescues
from kilonova.virt.parts.volume_snapshots import VolumeSnapshots
from kilonova.virt.parts.volumes import Volumes

LOG = logging.getLogger(__name__)
NAMESPACE = 'kilonova.virt.drivers'


class DriverNotLoaded(errors.Invalid):
    """The driver that [DEFAULT]compute_driver names cannot be loaded."""

    msg_fmt = "Unable to load the virtualization driver '%(name)s': %(reason)s"


@dataclass(frozen=True)
class Capabilities:
    """Features of a driver. Callers check a feature before they call a method that needs it."""

    supports_migrate_to_same_host: bool = False


class ComputeDriver(Protocol):
    """The driver of the hypervisor on one host, with a part for each subject, such as ``power``."""

    capabilities: Capabilities

    def __init__(self, conf: cfg.ConfigOpts, image_client: ImageSource | None = None) -> None:
        """Create a driver. It connects to the hypervisor only in later calls."""

    @property
    def host(self) -> Host:
        """The part of the driver for the host itself: its settings, resources, inventory and traits."""

    @property
    def guests(self) -> Guests:
        """The part of the driver that creates, deletes and reads guests, and attaches and detaches their interfaces."""

    @property
    def power(self) -> Power:
        """The part of the driver that changes the power state of guests."""

    @property
    def rescues(self) -> Rescues:
        """The part of the driver that starts guests from a rescue system."""

    @property
    def disks(self) -> Disks:
        """The part of the driver for guests' own disks and for cached images."""

    @property
    def moves(self) -> Moves:
        """The part of the driver that resizes guests and migrates stopped guests to other hosts (cold migration)."""

    @property
    def live_migrations(self) -> LiveMigrations:
        """The part of the driver that migrates running guests to other hosts (live migration)."""

    @property
    def snapshots(self) -> Snapshots:
        """The part of the driver that makes images from guests' root disks."""

    @property
    def devices(self) -> Devices:
        """The part of the driver for the host's PCI devices and mediated devices."""

    @property
    def volumes(self) -> Volumes:
        """The part of the driver that connects volumes of the volume service to this host and its guests."""

    @property
    def volume_snapshots(self) -> VolumeSnapshots:
        """The part of the driver that makes snapshots of volumes that are files on a network share."""


def guest_name(conf: cfg.ConfigOpts, instance: objects.Instance) -> str:
    """Return the name of the guest's domain, made from [DEFAULT]instance_name_template.

    The template contains either one placeholder for the instance's id, such as %08x, or the placeholders %(id)s,
    %(uuid)s and %(project_id)s.
    """
    template: str = conf.instance_name_template
    try:
        return str(template % instance.id)
    except TypeError:
        return template % {'id': instance.id, 'uuid': instance.uuid, 'project_id': instance.project_id}


def load(conf: cfg.ConfigOpts, image_client: ImageSource | None = None) -> ComputeDriver:
    """Return the driver that [DEFAULT]compute_driver names. Raises DriverNotLoaded if it cannot be loaded."""
    name = conf.compute_driver
    if not name:
        raise DriverNotLoaded(name='', reason='[DEFAULT]compute_driver is not set')
    LOG.info("Loading compute driver '%s'", name)
    try:
        manager: stevedore.DriverManager[Any] = stevedore.DriverManager(NAMESPACE, name, invoke_on_load=False)
    except (stevedore.exception.NoMatches, ImportError, RuntimeError) as error:
        raise DriverNotLoaded(name=name, reason=str(error)) from error
    made: ComputeDriver = manager.driver(conf, image_client)
    return made
