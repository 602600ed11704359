"""Wait for the Neutron ports of a guest: a guest runs only when its interfaces are plugged.

    ports = HostPorts(client, timeout=300, is_fatal=True)
    ports.plugged(instance, check)     # a function that waits until all ports are ACTIVE, or None if all are
    ports.tell(uuid)                   # an event about this server's ports has arrived

The conductor binds the ports before it calls a host. The guest is first started paused, and the network agent then sees
its interfaces. When an interface is ready, the port becomes ACTIVE and Neutron sends an event. The event only triggers
a query, so the result is the same if the event arrives early, twice or never.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.refusals import WHO
from kilonova.compute.waiting import Waiting

LOG = logging.getLogger(__name__)

# LOOK: seconds until the first query to Neutron if no event arrives, and between two checks for a cancellation.
# LONGEST_LOOK: maximum seconds between two queries to Neutron. The pause between queries doubles up to this maximum.
LOOK, LONGEST_LOOK = 5.0, 40.0


class HostPorts:
    """The ports of this host's servers.

    ``client`` is None if this host has no account for the network service. ``timeout`` is the number of seconds that a
    guest waits for its ports; 0 means that it does not wait. If the ports are not plugged within this time, the guest's
    start fails if ``is_fatal`` is True, otherwise the guest runs without its ports.
    """

    def __init__(self, client: NetworkClient | None = None, timeout: float = 0, is_fatal: bool = True) -> None:
        self._client, self._timeout, self._is_fatal = client, timeout, is_fatal
        self._waiting = Waiting()
        # ``tell(uuid)`` reports an event about a server's ports, and returns whether a thread waits for such an event.
        self.tell = self._waiting.tell

    def plugged(
        self, instance: objects.Instance, check: Callable[[], None], *, goes_on: bool = False
    ) -> Callable[[], None] | None:
        """Return a function that waits until Neutron has plugged the server's ports.

        Return None if all ports are ACTIVE already, or if no wait is configured. The driver calls the function when the
        guest is started but still paused. If ``goes_on`` is True, ports that do not become ACTIVE in time are ignored,
        and the guest runs.
        """
        waited = [vif.id for vif in instance.vifs if not vif.active]
        if not waited or not self._timeout:
            return None
        return functools.partial(self._await, instance.uuid, waited, check, self._is_fatal and not goes_on)

    def _await(self, uuid: str, waited: list[str], check: Callable[[], None], is_fatal: bool) -> None:
        """Wait until these ports are ACTIVE or administratively down, or until the time is up.

        ``check()`` is called repeatedly, and an error that it raises ends the waiting. Raises
        VirtualInterfaceCreateException if the time is up and ``is_fatal`` is True.
        """
        deadline, pause = time.monotonic() + self._timeout, LOOK
        # Register for events before the first query, so that an event between the query and the wait is not missed.
        with self._waiting.heard(uuid) as told:
            while True:
                due = min(time.monotonic() + pause, deadline)
                while not told.wait(max(min(LOOK, due - time.monotonic()), 0)) and time.monotonic() < due:
                    check()
                check()
                told.clear()
                missing, silence = self._missing(uuid, waited)
                if not missing:
                    return
                if time.monotonic() >= deadline:
                    break
                pause = min(2 * pause, LONGEST_LOOK)
        reason = f'{", ".join(missing)} not ACTIVE after {self._timeout:.0f} s{silence}'
        if is_fatal:
            raise errors.VirtualInterfaceCreateException(reason=reason)
        LOG.warning('The guest runs without some of its ports: %s', reason, instance_uuid=uuid)

    def _missing(self, uuid: str, waited: list[str]) -> tuple[list[str], str]:
        """Query Neutron once. Return (a list with a text for each port that is not ACTIVE, an error text).

        If Neutron does not answer, the list names all ports in ``waited``, and the error text is the reason. Otherwise
        the error text is ''.
        """
        try:
            if self._client is None:
                raise errors.Unanswered(who=WHO, reason='no account is set in [neutron] on this host')
            found = {port.id: port for port in self._client.ports(device_id=uuid)}
        except errors.Unanswered as error:
            LOG.warning('Could not read the ports of the server: %s', error, instance_uuid=uuid)
            return [f'port {port_id}' for port_id in waited], f': {error}'
        return [
            f'port {port_id}' + (f' is {found[port_id].status},' if port_id in found else ' is gone,')
            for port_id in waited
            if port_id not in found or not found[port_id].active
        ], ''
