"""A hypervisor driver in memory, for tests and for clouds without libvirt.

It stores domains and disks as Python objects and passes the same tests as the libvirt driver. Tests can make any call
fail, before or after the call has had its effect:

    driver = FakeDriver(conf, machine=FakeMachine())
    driver.fail('spawn', errors.KilonovaError('boom'))            # the next guests.spawn does nothing and raises
    driver.fail('finish_migration', OSError(), after=True)        # the next finish_migration does its work, then raises
    driver.calls                                                  # [('spawn', uuid), ...]
"""

from __future__ import annotations

from oslo_config import cfg

from kilonova.virt import driver
from kilonova.virt.fakes.disks import FakeDisks, FakeSnapshots
from kilonova.virt.fakes.guests import FakeGuests
from kilonova.virt.fakes.host import FakeDevices, FakeHost
from kilonova.virt.fakes.live_migrations import FakeLiveMigrations
from kilonova.virt.fakes.moves import FakeMoves
from kilonova.virt.fakes.power import FakePower, FakeRescues
from kilonova.virt.fakes.state import FakeMachine, FakeState
from kilonova.virt.fakes.volume_snapshots import FakeVolumeSnapshots
from kilonova.virt.fakes.volumes import FakeVolumes
from kilonova.virt.parts.disks import ImageSource


class FakeDriver(FakeState):
    """A driver without a hypervisor, which keeps guests, disks and volumes in memory."""

    capabilities = driver.Capabilities(supports_migrate_to_same_host=False)

    def __init__(
        self, conf: cfg.ConfigOpts, image_client: ImageSource | None = None, *, machine: FakeMachine | None = None
    ) -> None:
        super().__init__(conf, image_client, machine)
        self.host, self.guests, self.power = FakeHost(self), FakeGuests(self), FakePower(self)
        self.rescues = FakeRescues(self)
        self.disks, self.moves, self.live_migrations = FakeDisks(self), FakeMoves(self), FakeLiveMigrations(self)
        self.snapshots, self.devices, self.volumes = FakeSnapshots(self), FakeDevices(self), FakeVolumes(self)
        self.volume_snapshots = FakeVolumeSnapshots(self)


_: type[driver.ComputeDriver] = FakeDriver  # mypy checks that FakeDriver implements the protocol
