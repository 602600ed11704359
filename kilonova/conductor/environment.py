"""What flows work with: databases, the other daemons, Placement, and the runner that holds their rows."""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from kilonova.conductor.hearing import Hearing
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.errors import Forbidden, KilonovaError, NoValidHost, Unanswered, Unsent
from kilonova.rpc.notify import OFF, Notifications

LOG = logging.getLogger(__name__)


class Runs(Protocol):
    """What works ask of the runner that holds them (``runner.Runner``): their lease, slots of hosts, who goes on."""

    def owner_in(self, db: Any) -> str:
        """As whom this process takes rows of a database."""

    def check_lease(self, db: Any, owner: str) -> None:
        """LeaseLost when this process may start nothing more as this owner."""

    def take_host(self, host: str, work: Any) -> bool:
        """A slot of a host; False: the work is called again when it has one."""

    def release_host(self, host: str, work: Any) -> None:
        """The slot is free."""

    def host_is_silent(self, host: str) -> None:
        """A host didn't answer."""

    def host_answers(self, host: str) -> None:
        """A host answered."""

    def finished(self, work: Any, retry_in: float | None = None) -> None:
        """The work is over here; its row is looked at again after so many seconds."""

    def wake(self, db: Any, uuids: Sequence[str], *, urgent: bool = False) -> None:
        """Take these rows."""


class HostsSilent(Unanswered):
    """No host is left, but some may be back at any moment. The scheduler did answer, and claimed nothing."""


class Environment:
    """Collaborators of flows; one a conductor process. ``images``: an ImageClient that acts as the service; ``ping``
    asks this conductor itself over the queue."""

    def __init__(self, *, conf: Any, databases: Any, cells: Any, scheduler: Any, compute: Any, placement: Any,
                 images: Any, ping: Callable[[], None], max_attempts: int, host: str,
                 notify: Notifications = OFF) -> None:
        self.host, self.images, self.ping, self.notify = host, images, ping, notify
        self.conf, self.databases, self.cells = conf, databases, cells
        self.scheduler, self.compute, self.placement = scheduler, compute, placement
        self.max_attempts = max_attempts
        self.hearing = Hearing(conf.service_down_time)
        self.runner: Runs

    @property
    def api(self) -> Any:
        """The api database."""
        return self.databases.api()

    def drop_image(self, image_id: str) -> None:
        """Delete an image that got no data. Unanswered: the image service is silent."""
        try:
            self.images.delete(image_id)
        except Forbidden as error:
            LOG.warning('Image %s stays: %s', image_id, error)

    def given_up(self, db: Any, host: str) -> bool:
        """Whether a silent host is down for all that is known, so that asking it ends."""
        return self.hearing.is_down(db, host)

    def known_down(self, db: Any, host: str) -> bool:
        """Whether a host is down, asked before it is sent anything. Costs a statement only where the last look found it
        down."""
        return self.hearing.was_down(db, host) and self.hearing.is_down(db, host)

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
            with silence():
                silent = [host for db in self.cells.databases() for host in self.hearing.unsure(db, asked)]
            if not silent:
                raise
            raise HostsSilent(who=', '.join(silent), reason=f'nobody could report for a while; {error}') from error


@contextmanager
def silence() -> Iterator[None]:
    """A database that can't be reached is silence, not a failure."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, KilonovaError) and engine.is_unreachable(error):
            raise Unanswered(who='the database', reason=str(error)) from error
        raise
