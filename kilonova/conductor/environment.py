"""``Environment``, through which flows use the databases, other daemons, external services and the runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from oslo_config import cfg
from oslo_log import log as logging

from kilonova.accel import client as accel_client
from kilonova.accel.client import AcceleratorClient
from kilonova.clients import volume as volume_client
from kilonova.clients.image import ImageClient
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron import refusals as network_refusals
from kilonova.clients.placement import PlacementClient
from kilonova.clients.volume import VolumeClient
from kilonova.conductor.host_liveness import HostLiveness
from kilonova.conductor.leases import Leases
from kilonova.conductor.workers import OperationSlots
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.queries.cells import CellDatabases
from kilonova.errors import Forbidden, NoValidHost, Unanswered, Unsent
from kilonova.rpc.interface import Client
from kilonova.rpc.notify import OFF, Notifications

LOG = logging.getLogger(__name__)


class RunnerInterface(Protocol):
    """Type of the conductor's runner (``runner.Runner``), with the methods that other modules call."""

    def finished(self, work: Any, retry_in: float | None = None) -> None:
        """Forget an operation that this process no longer runs.

        If ``retry_in`` is given, the runner tries to take the operation's row again after that many seconds.
        """

    def wake(self, db: engine.Database, uuids: Sequence[str], urgent: bool = False) -> None:
        """Take the operation rows with these uuids from a database and run their operations.

        If ``urgent`` is True, these operations are run before others.
        """

    def was_cancelled(self, db: engine.Database, uuid: str) -> None:
        """Tell the hosts that work for an operation that it was cancelled.

        If no conductor owns the operation row, this process takes the row and undoes the operation.
        """

    def holds(self, uuid: str) -> bool:
        """Return whether this process already has the operation with this uuid: queued, waiting or running."""


class HostsNotReporting(Unanswered):
    """The scheduler found no host that fits, but the reports of some hosts may be missing only because of an outage.

    After an outage of messaging, a conductor or a database, hosts that are up report again one by one, and one of them
    may fit. So the operation is retried. The scheduler has claimed nothing.
    """

    msg_fmt = (
        'No host is chosen yet: after an interruption of messaging, no heartbeat of %(who)s has arrived (%(reason)s)'
    )


class Environment:
    """The databases, other daemons and external services that the flows of a conductor process use.

    ``images`` is a client that acts with Kilonova's own account. ``ping`` sends a message to this conductor process
    through the message queue, and raises an error if the message does not arrive. The runner sets the attributes
    ``runner``, ``leases`` and ``slots``.
    """

    def __init__(
        self,
        *,
        conf: cfg.ConfigOpts,
        databases: engine.Databases,
        cells: CellDatabases,
        scheduler: Client,
        compute: Client,
        placement: PlacementClient,
        images: ImageClient,
        ping: Callable[[], None],
        max_attempts: int,
        host: str,
        accelerators: AcceleratorClient | None = None,
        networks: NetworkClient | None = None,
        volumes: VolumeClient | None = None,
        notify: Notifications = OFF,
    ) -> None:
        self._accelerators, self._networks, self._volumes = accelerators, networks, volumes
        self.host, self.images, self.ping, self.notify = host, images, ping, notify
        self.conf, self.databases, self.cells = conf, databases, cells
        self.scheduler, self.compute, self.placement = scheduler, compute, placement
        self.max_attempts = max_attempts
        self.liveness = HostLiveness(conf.service_down_time)
        # The constructor of ``runner.Runner`` sets the attributes ``runner``, ``leases`` and ``slots``.
        self.runner: RunnerInterface
        self.leases: Leases
        self.slots: OperationSlots[Any]

    @property
    def api(self) -> engine.Database:
        """The API database."""
        return self.databases.api()

    def all_databases(self) -> list[engine.Database]:
        """Return the API database and the databases of the cells."""
        return [self.api, *self.cells.databases()]

    def drop_image(self, image_id: str) -> None:
        """Delete an image.

        If Kilonova's account may not delete the image, it is kept, and a warning is logged. Raises Unanswered if the
        image service does not answer.
        """
        try:
            self.images.delete(image_id)
        except Forbidden as error:
            LOG.warning('Image %s could not be deleted and is kept: %s', image_id, error)

    @property
    def accelerators(self) -> AcceleratorClient:
        """The client of the accelerator service (Cyborg).

        Raises Unanswered if no account for Cyborg is configured.
        """
        if self._accelerators is None:
            raise Unanswered(who=accel_client.WHO, reason='no account is set in [cyborg] or [keystone_authtoken]')
        return self._accelerators

    @property
    def networks(self) -> NetworkClient:
        """The client of the network service (Neutron).

        Raises Unanswered if no account for Neutron is configured.
        """
        if self._networks is None:
            raise Unanswered(who=network_refusals.WHO, reason='no account is set in [neutron]')
        return self._networks

    @property
    def volumes(self) -> VolumeClient:
        """The client of the volume service (Cinder).

        Raises Unanswered if no account for Cinder is configured.
        """
        if self._volumes is None:
            raise Unanswered(who=volume_client.WHO, reason='no account is set in [cinder]')
        return self._volumes

    def select_destinations(self, ctxt: RequestContext, *, return_alternates: bool = True, **request: Any) -> Any:
        """Call the scheduler's ``select_destinations``, and return its reply, which contains Selection objects.

        ``request`` has the other arguments of the RPC method (``rpc.scheduler.Scheduler``).

        Raises:
            NoValidHost: No host fits.
            HostsNotReporting: No host fits, but some hosts count as down only because messaging was interrupted and no
                host could report. These hosts may report again at any moment, and one of them may fit.
            Unanswered: The scheduler did not reply.
        """
        asked = self.liveness.now()
        try:
            return self.scheduler.select_destinations(
                ctxt, return_objects=True, return_alternates=return_alternates, **request
            )
        except Unsent:
            self.liveness.cut_off()
            raise
        except NoValidHost as error:
            with engine.silence():
                silent = [host for db in self.cells.databases() for host in self.liveness.unsure(db, asked)]
            if not silent:
                raise
            raise HostsNotReporting(who=', '.join(silent), reason=str(error)) from error
