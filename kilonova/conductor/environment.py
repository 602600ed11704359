"""What flows work with: databases, the other daemons, Placement, and the runner that holds their rows."""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from oslo_config import cfg

from kilonova.accel import client as accel_client
from kilonova.accel.client import AcceleratorClient
from kilonova.clients import volume as volume_client
from kilonova.clients.image import ImageClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron import refusals as network_refusals
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.conductor.hearing import Hearing
from kilonova.conductor.leases import Leases
from kilonova.conductor.workers import Slots
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.queries.cells import Cells
from kilonova.errors import Forbidden, NoValidHost, Unanswered, Unsent
from kilonova.rpc.interface import Client
from kilonova.rpc.notify import OFF, Notifications

LOG = logging.getLogger(__name__)


class Runs(Protocol):
    """What works ask of the runner that holds them (``runner.Runner``)."""

    def finished(self, work: Any, retry_in: float | None = None) -> None:
        """The work is over here; its row is looked at again after so many seconds."""

    def wake(self, db: engine.Database, uuids: Sequence[str], urgent: bool = False) -> None:
        """Take these rows."""

    def was_cancelled(self, db: engine.Database, uuid: str) -> None:
        """Somebody cancelled this row: its hosts stop, and it is taken if nobody has it."""

    def holds(self, uuid: str) -> bool:
        """Whether a row is in this runner."""


class HostsSilent(Unanswered):
    """No host is left, but some may be back at any moment. The scheduler did answer, and claimed nothing."""


class Environment:
    """Collaborators of flows; one a conductor process. ``images``: an ImageClient that acts as the service; ``ping``
    asks this conductor itself over the queue."""

    def __init__(self, *, conf: cfg.ConfigOpts, databases: engine.Databases, cells: Cells, scheduler: Client,
                 compute: Client, placement: PlacementClient, images: ImageClient, ping: Callable[[], None],
                 max_attempts: int, host: str, accelerators: AcceleratorClient | None = None,
                 networks: NetworkClient | None = None, volumes: VolumeClient | None = None,
                 notify: Notifications = OFF) -> None:
        self._accelerators, self._networks, self._volumes = accelerators, networks, volumes
        self.host, self.images, self.ping, self.notify = host, images, ping, notify
        self.conf, self.databases, self.cells = conf, databases, cells
        self.scheduler, self.compute, self.placement = scheduler, compute, placement
        self.max_attempts = max_attempts
        self.hearing = Hearing(conf.service_down_time)
        # Set by the runner.
        self.runner: Runs
        self.leases: Leases
        self.slots: Slots[Any]

    @property
    def api(self) -> engine.Database:
        """The api database."""
        return self.databases.api()

    def all_databases(self) -> list[engine.Database]:
        """The api database and those of the cells."""
        return [self.api, *self.cells.databases()]

    def drop_image(self, image_id: str) -> None:
        """Delete an image that got no data. Unanswered: the image service is silent."""
        try:
            self.images.delete(image_id)
        except Forbidden as error:
            LOG.warning('Image %s stays: %s', image_id, error)

    @property
    def accelerators(self) -> AcceleratorClient:
        """The client of the accelerator service. Unanswered: this conductor has no account for it."""
        if self._accelerators is None:
            raise Unanswered(who=accel_client.WHO, reason='neither [cyborg] nor [keystone_authtoken] has an account')
        return self._accelerators

    @property
    def networks(self) -> NetworkClient:
        """The client of the network service. Unanswered: this conductor has no account for it."""
        if self._networks is None:
            raise Unanswered(who=network_refusals.WHO, reason='[neutron] has no account')
        return self._networks

    @property
    def volumes(self) -> VolumeClient:
        """The client of the volume service. Unanswered: this conductor has no account for it."""
        if self._volumes is None:
            raise Unanswered(who=volume_client.WHO, reason='[cinder] has no account')
        return self._volumes

    def select_destinations(self, ctxt: RequestContext, **request: Any) -> Any:
        """Ask the scheduler. HostsSilent instead of NoValidHost where hosts count as down only since nobody could
        report for a while: they may be back at any moment, and take the server."""
        asked = self.hearing.now()
        try:
            return self.scheduler.select_destinations(ctxt, **request)
        except Unsent:
            self.hearing.cut_off()
            raise
        except NoValidHost as error:
            with engine.silence():
                silent = [host for db in self.cells.databases() for host in self.hearing.unsure(db, asked)]
            if not silent:
                raise
            raise HostsSilent(who=', '.join(silent), reason=f'nobody could report for a while; {error}') from error
