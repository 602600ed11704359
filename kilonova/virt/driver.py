"""What a compute asks of a hypervisor: one object a host, with a part for each subject.

    driver = load(conf, image_client)     # [DEFAULT]compute_driver = libvirt.LibvirtDriver
    driver.host.init_host()
    driver.guests.spawn(instance, image_meta, pci_devices=devices)
    driver.power.power_off(instance, timeout=60)

``ComputeDriver`` is the whole seam between ``kilonova.compute`` and a hypervisor: ``host``, ``guests``, ``power``,
``rescues``, ``disks``, ``moves``, ``live_migrations``, ``snapshots``, ``devices``, ``volumes``, ``volume_snapshots``,
each a small protocol in ``virt.parts``.
``FakeDriver`` and ``LibvirtDriver`` obey the same contract tests. ``load`` takes the class from the entry points of
``kilonova.virt.drivers``. What a driver can't do it says before anybody asks for it: by its ``capabilities``, which
operations look at, and by the traits of its host, by which the scheduler chooses.

Rules that hold for every driver:

- A call may be repeated after a crash at any line: a domain of the same uuid is replaced, files are
  written aside and renamed, and what is gone already is fine.
- A domain that isn't there is a guest that is off.
- The caller serialises the calls of one instance; calls of different instances run in parallel.
- ``instance`` needs the attributes uuid, id, flavor, image_ref, project_id, user_id; display_name, os_type
  and config_drive are used where they are set, and for a config drive hostname, metadata, user_data,
  key_name, key_data, launch_index, availability_zone too.
- ``instance.flavor`` is always the flavor that the domain shall have: the new one in ``finish_migration``,
  the old one in ``finish_revert_migration``.
- ``instance.vifs`` are the domain's interfaces, in that order, whenever it is built.
- ``instance.volumes`` are the domain's volume disks, by the names that they have, whenever it is built; those that
  have no ``connection`` yet are left out. The driver connects them to this host before, and refuses one that it can't
  have (VolumeUnsupported) before a guest is made or stopped. ``Guests.destroy``,
  ``Moves.migrate_disk_and_power_off`` and ``Moves.cleanup_move_dest`` disconnect those that are attached to this host.
  An encrypted one is decrypted by the hypervisor, with a key that the driver gets by its id (``volume.encryption``)
  whenever it connects the volume, and forgets when it disconnects it; what can't be decrypted is refused the same way.
  Only a guest's own disks are carried, grown, copied to images or made anew. Where ``instance.is_from_volume`` (it has
  no image_ref) no root disk is made: the guest boots from the volume that ``is_root``, its first disk.
- ``instance.numa_topology`` (placed, or None) is where on the host's NUMA cells the domain shall be: host CPUs, memory,
  pages.
- ``pci_devices`` (address, dev_type, parent_addr, extra_info are read): exactly those become hostdevs, whatever
  ``instance.pci_devices`` says. One of dev_type MDEV is a mediated device: its address is its uuid, parent_addr the PCI
  function that it is on, extra_info['mdev_type'] its type. The driver makes it before its guest is defined or started
  (MdevUnavailable), and leaves it there when the guest goes.
"""
from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import stevedore
from oslo_config import cfg

from kilonova import errors, objects
from kilonova.virt.parts.disks import Disks, ImageClient, Snapshots
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
    """[DEFAULT]compute_driver names nothing that can be loaded."""

    msg_fmt = "Unable to load the virtualization driver '%(name)s': %(reason)s"


@dataclass(frozen=True)
class Capabilities:
    """What the compute may ask of this driver at all."""

    supports_migrate_to_same_host: bool = False


class ComputeDriver(Protocol):
    """One hypervisor of one host, by subject."""

    capabilities: Capabilities

    def __init__(self, conf: cfg.ConfigOpts, image_client: ImageClient | None = None) -> None:
        """Keep the settings; no connection yet."""

    @property
    def host(self) -> Host: ...

    @property
    def guests(self) -> Guests: ...

    @property
    def power(self) -> Power: ...

    @property
    def rescues(self) -> Rescues: ...

    @property
    def disks(self) -> Disks: ...

    @property
    def moves(self) -> Moves: ...

    @property
    def live_migrations(self) -> LiveMigrations: ...

    @property
    def snapshots(self) -> Snapshots: ...

    @property
    def devices(self) -> Devices: ...

    @property
    def volumes(self) -> Volumes: ...

    @property
    def volume_snapshots(self) -> VolumeSnapshots: ...


def guest_name(conf: cfg.ConfigOpts, instance: objects.Instance) -> str:
    """The domain's name: [DEFAULT]instance_name_template filled with the id, or with %(uuid)s and the like."""
    template: str = conf.instance_name_template
    try:
        return str(template % instance.id)
    except TypeError:
        return template % {'id': instance.id, 'uuid': instance.uuid, 'project_id': instance.project_id}


def load(conf: cfg.ConfigOpts, image_client: ImageClient | None = None) -> ComputeDriver:
    """The driver that [DEFAULT]compute_driver names; raises DriverNotLoaded."""
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
