"""Ports of Neutron on a host: a guest runs when what it has for interfaces is plugged.

    ports = Ports(client, timeout=300, is_fatal=True)
    ports.plugged(instance, check)     # waits until all are ACTIVE; None, where there is nothing to wait for
    ports.tell(uuid)                   # an event about this server's ports came

The conductor has bound the ports before a host is asked. The agent of the network service sees the interface when the
guest is started, paused, and the port becomes ACTIVE: Neutron says so by an event. That is only a hint to look: one
that comes early, twice or never changes nothing.
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

# Seconds until the first look where no event comes, and between two questions whether to wait on. Neutron tells within
# two seconds of a port's plugging, so each further look comes after twice as long: where events are late, the service
# has much to do.
LOOK, LONGEST_LOOK = 5.0, 40.0


class Ports:
    """``client``: None where this host has no account for the network service. ``timeout``: seconds for which a guest
    waits for its ports, 0: it doesn't; ``is_fatal``: whether it is given up then, or runs without."""

    def __init__(self, client: NetworkClient | None = None, timeout: float = 0, is_fatal: bool = True) -> None:
        self._client, self._timeout, self._is_fatal = client, timeout, is_fatal
        self._waiting = Waiting()
        # An event about a server's ports came; whether somebody waits for one.
        self.tell = self._waiting.tell

    def plugged(self, instance: objects.Instance, check: Callable[[], None], *,
                goes_on: bool = False) -> Callable[[], None] | None:
        """What the driver calls when the guest is started and doesn't run yet; see ``_await``. ``goes_on``: the guest
        runs in any case, after the waiting."""
        waited = [vif.id for vif in instance.vifs if not vif.active]
        if not waited or not self._timeout:
            return None
        return functools.partial(self._await, instance.uuid, waited, check, self._is_fatal and not goes_on)

    def _await(self, uuid: str, waited: list[str], check: Callable[[], None], is_fatal: bool) -> None:
        """Until these ports of the server are ACTIVE, or their owner switched them off, or time is up.

        VirtualInterfaceCreateException: it is, and that is fatal. ``check()`` is called now and then, what it raises
        ends the waiting.
        """
        deadline, pause = time.monotonic() + self._timeout, LOOK
        # Heard from before the first look on: an event between the two isn't missed.
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
        LOG.warning('%s; the guest runs without', reason, instance_uuid=uuid)

    def _missing(self, uuid: str, waited: list[str]) -> tuple[list[str], str]:
        """Which of the ports aren't ACTIVE, and what to say of a service that is silent."""
        try:
            if self._client is None:
                raise errors.Unanswered(who=WHO, reason='[neutron] has no account here')
            found = {port.id: port for port in self._client.ports(device_id=uuid)}
        except errors.Unanswered as error:
            LOG.warning('Ports of %s: %s', uuid, error)
            return [f'port {port_id}' for port_id in waited], f': {error}'
        return [f'port {port_id}' + (f' is {found[port_id].status},' if port_id in found else ' is gone,')
                for port_id in waited if port_id not in found or not found[port_id].active], ''
