"""Accelerators of Cyborg on a host: what of a server's accelerator requests its guest is given.

    accelerators = Accelerators(client, timeout=300)
    accelerators.await_bound(flavor, uuid, check)    # requests: when all that are bound to this uuid are
    accelerators.devices(flavor, uuid)               # [PciDevice] of a server that has them

The conductor has bound the requests before a host is asked to build. A device that must be programmed is ready later,
and Cyborg says so by an event. That is only a hint to look: one that comes early, twice or never changes nothing.
"""
from __future__ import annotations

import time
from collections.abc import Callable

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


class Accelerators:
    """``client``: None where this host has no account for the accelerator service. ``timeout``: seconds for which a
    build waits for bindings."""

    def __init__(self, client: AcceleratorClient | None, timeout: float) -> None:
        self._client, self._timeout = client, timeout
        self._waiting = Waiting()
        # An event about this uuid came; whether somebody waits for one.
        self.tell = self._waiting.tell

    @property
    def available(self) -> bool:
        """Whether servers with accelerators may come here."""
        return self._client is not None

    def devices(self, flavor: objects.Flavor, holder: str, *, has_ports: bool = False) -> list[objects.PciDevice]:
        """What the guest is given of the requests that are bound to the uuid ``holder`` (``accel.holder``); [] of a
        flavor without accelerators, unless some are ports. Unanswered; AttachHandleInvalid;
        AcceleratorRequestBindingFailed: they aren't bound."""
        if device_profile.name_of(flavor.extra_specs) is None and not has_ports:
            return []
        return attached(checked(holder, self._asked().of_instance(holder)), holder)

    def await_bound(self, flavor: objects.Flavor, holder: str, check: Callable[[], None], *, has_ports: bool = False
                    ) -> list[AcceleratorRequest]:
        """These requests, as soon as it is known of all that they are bound; ``check()`` is called now and then, what
        it raises ends the waiting. AcceleratorRequestBindingFailed: one failed, or it took too long."""
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
                    return checked(holder, found)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AcceleratorRequestBindingFailed(
                        instance_uuid=holder, msg=f'not bound after {self._timeout:.0f} s{silence}')
                told.wait(min(LOOK, left))

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
