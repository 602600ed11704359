"""Accelerators of Cyborg on a host: what of a server's accelerator requests its guest is given.

    accelerators = Accelerators(client, timeout=300)
    accelerators.await_bound(flavor, uuid, check)    # requests: when all that are bound to this uuid are
    accelerators.devices(flavor, uuid)               # [PciDevice] of a server that has them

Both raise AcceleratorRequestBindingFailed unless the server has as many as its device profile and its ports ask for.

The conductor has bound the requests before a host is asked to build. A device that must be programmed is ready later,
and Cyborg says so by an event. That is only a hint to look: one that comes early, twice or never changes nothing.
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

# Seconds between two looks while no event comes.
LOOK = 5.0
# Seconds for which it is known how many accelerators a device profile asks for: a burst of boots asks once.
KNOWN = 60.0


class Accelerators:
    """``client``: None where this host has no account for the accelerator service. ``timeout``: seconds for which a
    build waits for bindings."""

    def __init__(self, client: AcceleratorClient | None, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        # {name of a device profile: (until when it is known, how many accelerators it asks for; None: no such profile)}
        self._profiles: dict[str, tuple[float, int | None]] = {}
        self._waiting = Waiting()
        # An event about this uuid came; whether somebody waits for one.
        self.tell = self._waiting.tell

    @property
    def available(self) -> bool:
        """Whether servers with accelerators may come here."""
        return self._client is not None

    def devices(self, flavor: objects.Flavor, holder: str, *, has_ports: bool = False,
                ports: Collection[str] = ()) -> list[objects.PciDevice]:
        """Return what the guest is given of the requests that are bound to the uuid ``holder`` (``accel.holder``).

        The list is empty for a flavor without accelerators, unless the server ``has_ports`` that are accelerators;
        ``ports``: the requests of these. Raises Unanswered, AttachHandleInvalid, and AcceleratorRequestBindingFailed if
        a request isn't bound or the server has other than as many as its profile and its ports ask for.
        """
        if device_profile.name_of(flavor.extra_specs) is None and not has_ports:
            return []
        return attached(self._checked(flavor, holder, self._asked().of_instance(holder), ports), holder)

    def await_bound(self, flavor: objects.Flavor, holder: str, check: Callable[[], None], *, has_ports: bool = False,
                    ports: Collection[str] = ()) -> list[AcceleratorRequest]:
        """Return these requests as soon as it is known of all that they are bound.

        ``check()`` is called now and then, what it raises ends the waiting. Raises AcceleratorRequestBindingFailed if
        one failed, if it took too long, or if they are other than as many as ``devices`` says.
        """
        if device_profile.name_of(flavor.extra_specs) is None and not has_ports:
            return []
        deadline = time.monotonic() + self._timeout
        # Heard from before the first look on: an event between the two isn't missed.
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
                        instance_uuid=holder, msg=f'not bound after {self._timeout:.0f} s{silence}')
                told.wait(min(LOOK, left))

    def _checked(self, flavor: objects.Flavor, holder: str, found: list[AcceleratorRequest], ports: Collection[str]
                 ) -> list[AcceleratorRequest]:
        """Return ``found`` if all are bound and there are as many as the server asks for.

        Raises AcceleratorRequestBindingFailed if not. A profile that Cyborg no longer has can't be compared.
        """
        checked(holder, found)
        name = device_profile.name_of(flavor.extra_specs)
        wanted = self._wanted(name) if name is not None else 0
        if wanted is None:
            LOG.warning('%s has %d accelerator requests, and there is no device profile %s any more to say how many it '
                        'asks for', holder, len(found), name)
            return found
        wanted += len(ports)
        if len(found) != wanted:
            asks = [*([f'its device profile {name}'] if name is not None else []),
                    *([f'its {len(ports)} ports'] if ports else [])]
            raise AcceleratorRequestBindingFailed(
                instance_uuid=holder, msg=f'{" and ".join(asks)} {"ask" if ports else "asks"} for {wanted} '
                                          f'accelerators and it has {len(found)}')
        return found

    def _wanted(self, name: str) -> int | None:
        """Return how many accelerators a device profile asks for, None if Cyborg has no such profile.

        Raises Unanswered. The answer is kept for a minute.
        """
        until, wanted = self._profiles.get(name, (0.0, None))
        if time.monotonic() < until:
            return wanted
        try:
            groups = self._asked().profile(name).request_groups()
            wanted = sum(sum(group.resources.values()) for group in groups)
        except device_profile.DeviceProfileError as error:
            LOG.warning('How many accelerators does device profile %s ask for? %s', name, error)
            wanted = None
        self._profiles[name] = (time.monotonic() + KNOWN, wanted)
        return wanted

    def _resolved(self, holder: str) -> tuple[list[AcceleratorRequest] | None, str]:
        """The requests, None while they aren't resolved; and what to say of a service that is silent."""
        try:
            return self._asked().resolved(holder), ''
        except errors.Unanswered as error:
            LOG.warning('Accelerator requests of %s: %s', holder, error)
            return None, f': {error}'

    def _asked(self) -> AcceleratorClient:
        if self._client is None:
            raise errors.Unanswered(who=WHO, reason='neither [cyborg] nor [keystone_authtoken] has an account here')
        return self._client


def checked(holder: str, found: list[AcceleratorRequest]) -> list[AcceleratorRequest]:
    """AcceleratorRequestBindingFailed: not all are bound."""
    wrong = [one for one in found if one.state != accel_request.BOUND]
    if not found or wrong:
        said = ', '.join(f'{one.uuid} is {one.state}' for one in wrong) or 'it has none'
        raise AcceleratorRequestBindingFailed(instance_uuid=holder, msg=said)
    return found


def attached(found: list[AcceleratorRequest], holder: str) -> list[objects.PciDevice]:
    """What a guest is given of them. AttachHandleInvalid."""
    ignored = sum(one.handle_kind == accel_request.TEST_PCI for one in found)
    if ignored:
        LOG.info('Ignoring %d accelerator requests of %s: their attach handles are of type %s, which is for tests',
                 ignored, holder, accel_request.TEST_PCI)
    return [handle.device for handle in accel_request.handles(found)]
