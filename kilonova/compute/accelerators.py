"""Get the devices for guests of this host from the servers' accelerator requests in Cyborg.

    accelerators = HostAccelerators(client, timeout=300)
    accelerators.await_bound(flavor, uuid, check)    # wait until the requests of this uuid are bound, and return them
    accelerators.devices(flavor, uuid)               # the [PciDevice] of a server whose requests are bound

``await_bound`` and ``devices`` raise AcceleratorRequestBindingFailed if the server has more or fewer requests than its
device profile and its ports ask for.

The conductor binds the requests before it asks a host to build. If Cyborg must program a device first, the binding is
complete only later, and Cyborg then sends an event. The event only triggers a query, so the result is the same if the
event arrives early, twice or never.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.accel import profile as device_profile
from kilonova.accel import request as accel_request
from kilonova.accel.client import WHO, AcceleratorClient, AcceleratorRequestBindingFailed
from kilonova.accel.request import AcceleratorRequest
from kilonova.compute.waiting import Waiting

LOG = logging.getLogger(__name__)

# Seconds between two queries to Cyborg while a build waits and no event arrives.
LOOK = 5.0
# Seconds for which the number of accelerators of a device profile is cached, so that many boots make one query.
KNOWN = 60.0


class HostAccelerators:
    """Access to the Cyborg accelerators of this host's servers.

    ``client`` is the Cyborg client, or None if this host has no account for Cyborg. ``timeout`` is the number of
    seconds that a build waits for bindings.
    """

    def __init__(self, client: AcceleratorClient | None, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        # {device profile: (expiry time, its number of accelerators, or None if Cyborg has no such profile)}
        self._profiles: dict[str, tuple[float, int | None]] = {}
        self._waiting = Waiting()
        # ``tell(uuid)`` reports an event about this uuid, and returns whether a thread waits for such an event.
        self.tell = self._waiting.tell

    @property
    def available(self) -> bool:
        """True if servers with accelerators can run on this host."""
        return self._client is not None

    def devices(
        self, flavor: objects.Flavor, holder: str, *, has_ports: bool = False, ports: Collection[str] = ()
    ) -> list[objects.PciDevice]:
        """Return the devices of the accelerator requests that Cyborg has bound to the uuid ``holder``.

        ``holder`` is the server's uuid, or the uuid of the migration that brought the server to this host: each move
        gets new requests, bound to the migration (``accel.holder.of``). ``has_ports`` is True if the server has ports
        that are accelerators. ``ports`` holds the uuids of the requests of those ports. The result is empty if the
        flavor has no device profile and ``has_ports`` is False.

        Raises:
            Unanswered: Cyborg does not answer.
            AttachHandleInvalid: A request's attach handle can't be used.
            AcceleratorRequestBindingFailed: A request is not bound, or the number of requests differs from what the
                device profile and the ports ask for.
        """
        if device_profile.name_of(flavor.extra_specs) is None and not has_ports:
            return []
        return attached(self._checked(flavor, holder, self._asked().of_instance(holder), ports), holder)

    def await_bound(
        self,
        flavor: objects.Flavor,
        holder: str,
        check: Callable[[], None],
        *,
        has_ports: bool = False,
        ports: Collection[str] = (),
    ) -> list[AcceleratorRequest]:
        """Wait until all accelerator requests of the uuid ``holder`` are bound, and return the requests.

        ``check()`` is called repeatedly, and an error that it raises ends the waiting. AcceleratorRequestBindingFailed
        is raised in three cases: a binding failed, the time is up, or the device profile and the ports ask for another
        number of requests.
        """
        if device_profile.name_of(flavor.extra_specs) is None and not has_ports:
            return []
        deadline = time.monotonic() + self._timeout
        # Register for events before the first query, so that an event between the query and the wait is not missed.
        with self._waiting.heard(holder) as told:
            while True:
                check()
                told.clear()
                found, silence = self._resolved(holder)
                if found is not None:
                    return self._checked(flavor, holder, found, ports)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AcceleratorRequestBindingFailed(
                        instance_uuid=holder, msg=f'the requests are not bound after {self._timeout:.0f} s{silence}'
                    )
                told.wait(min(LOOK, left))

    def _checked(
        self, flavor: objects.Flavor, holder: str, found: list[AcceleratorRequest], ports: Collection[str]
    ) -> list[AcceleratorRequest]:
        """Return ``found`` if all requests are bound and their number is what the server asks for.

        Raises AcceleratorRequestBindingFailed if not. If Cyborg no longer has the device profile, the number can't be
        checked, and only a warning is logged.
        """
        checked(holder, found)
        name = device_profile.name_of(flavor.extra_specs)
        wanted = self._wanted(name) if name is not None else 0
        if wanted is None:
            LOG.warning(
                'Device profile %s no longer exists; cannot check whether %s should have %d accelerator requests',
                name,
                holder,
                len(found),
            )
            return found
        wanted += len(ports)
        if len(found) != wanted:
            asks = [
                *([f'its device profile {name}'] if name is not None else []),
                *([f'its {len(ports)} ports'] if ports else []),
            ]
            raise AcceleratorRequestBindingFailed(
                instance_uuid=holder,
                msg=f'{" and ".join(asks)} {"ask" if ports else "asks"} for {wanted} '
                f'accelerators, but the number of its accelerator requests in Cyborg is {len(found)}',
            )
        return found

    def _wanted(self, name: str) -> int | None:
        """Return the number of accelerators that a device profile asks for, or None if Cyborg has no such profile.

        The answer is cached for a minute. Raises Unanswered if Cyborg does not answer.
        """
        until, wanted = self._profiles.get(name, (0.0, None))
        if time.monotonic() < until:
            return wanted
        try:
            groups = self._asked().profile(name).request_groups()
            wanted = sum(sum(group.resources.values()) for group in groups)
        except device_profile.DeviceProfileError as error:
            LOG.warning('Could not find out how many accelerators device profile %s requests: %s', name, error)
            wanted = None
        self._profiles[name] = (time.monotonic() + KNOWN, wanted)
        return wanted

    def _resolved(self, holder: str) -> tuple[list[AcceleratorRequest] | None, str]:
        """Query Cyborg once, and return the accelerator requests and an error text.

        The requests are None if a binding is still pending, or if Cyborg does not answer. The text is the reason why
        Cyborg did not answer, or '' if it answered.
        """
        try:
            return self._asked().resolved(holder), ''
        except errors.Unanswered as error:
            LOG.warning('Could not read the accelerator requests of %s: %s', holder, error)
            return None, f': {error}'

    def _asked(self) -> AcceleratorClient:
        if self._client is None:
            raise errors.Unanswered(
                who=WHO, reason='no account is set in [cyborg] or [keystone_authtoken] on this host'
            )
        return self._client


def checked(holder: str, found: list[AcceleratorRequest]) -> list[AcceleratorRequest]:
    """Return the requests, after checking that there is at least one and that all are bound.

    Raises AcceleratorRequestBindingFailed if there is none, or if one is not bound.
    """
    wrong = [one for one in found if one.state != accel_request.BOUND]
    if not found or wrong:
        said = ', '.join(f'{one.uuid} is {one.state}' for one in wrong) or 'it has no accelerator requests'
        raise AcceleratorRequestBindingFailed(instance_uuid=holder, msg=said)
    return found


def attached(found: list[AcceleratorRequest], holder: str) -> list[objects.PciDevice]:
    """Return the devices that a guest gets for these accelerator requests.

    The attach handle of each request names the device that was assigned to it. Raises AttachHandleInvalid if a handle
    can't be used.

    Requests with a handle of Cyborg's test type are ignored.
    """
    ignored = sum(one.handle_kind == accel_request.TEST_PCI for one in found)
    if ignored:
        LOG.info(
            'Ignoring %d accelerator requests of %s: their attach handles are of type %s, which is for tests',
            ignored,
            holder,
            accel_request.TEST_PCI,
        )
    return [handle.device for handle in accel_request.handles(found)]
