"""Accelerator requests, which a server holds in Cyborg, and the devices that the server's host attaches for them.

    found = client.of_instance(uuid)
    handles = request.handles(found)         # [Handle('PCI', address='0000:21:00.0')]

Cyborg chooses a device when a request is bound to a server and a host. The *attach handle* of the request identifies
the device.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from kilonova import errors
from kilonova.objects import PciDevice
from kilonova.objects.vif import REQUEST
from kilonova.pci import device
from kilonova.pci.device import STANDARD

# Final states of a request's binding. In all other states the result isn't known yet.
BOUND, FAILED = 'Bound', ('BindFailed', 'Deleting')
# The state of a request that was created and not bound.
INITIAL = 'Initial'
# Kinds of attach handles: the guest gets a PCI function (PCI) or a mediated device (MDEV).
PCI, MDEV = 'PCI', 'MDEV'
# Kind of the attach handles of Cyborg's fake driver. Their device is not attached to the guest.
TEST_PCI = 'TEST_PCI'
# Kinds of attach handles whose device can move with a running guest. PCI functions of the host can't move.
MOVES_LIVE = (MDEV, TEST_PCI)
_HEX = {'domain': 4, 'bus': 2, 'device': 2, 'function': 1}


class AttachHandleInvalid(errors.Invalid):
    """The device of an accelerator request can't be attached, because its attach handle is wrong or not supported."""

    msg_fmt = (
        'The device of accelerator request %(uuid)s cannot be attached, because its attach handle is wrong or not '
        'supported: %(reason)s'
    )


@dataclass(frozen=True)
class Handle:
    """The attach handle of an accelerator request.

    If ``kind`` is PCI, ``address`` is the address of a PCI function of the host. If it is MDEV, ``mdev`` is the uuid of
    a mediated device, ``mdev_type`` its type, and ``address`` the address of its PCI function.
    """

    request: str
    kind: str
    address: str
    mdev: str | None = None
    mdev_type: str | None = None

    @property
    def device(self) -> PciDevice:
        """The handle's device as a new PciDevice, which drivers accept. It has no row in pci_devices."""
        if self.mdev is None:
            return PciDevice(address=self.address, dev_type=STANDARD, parent_addr=None, extra_info={})
        return PciDevice(
            address=self.mdev, dev_type=device.MDEV, parent_addr=self.address, extra_info={'mdev_type': self.mdev_type}
        )


@dataclass(frozen=True)
class AcceleratorRequest:
    """One requested accelerator.

    ``group`` is the index of the request's group in the device profile. ``project_id`` is the project of the account
    that created the request; once the request is bound to a server, it is the server's project. ``created_at`` is in
    UTC.
    """

    uuid: str
    state: str
    profile: str
    group: int
    instance_uuid: str | None
    hostname: str | None
    provider: str | None
    handle_kind: str
    handle_uuid: str | None
    handle_info: Mapping[str, str]
    project_id: str | None = None
    created_at: datetime.datetime | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Return the accelerator request that an object ``arq`` of Cyborg's response describes."""
        return cls(
            uuid=str(body['uuid']),
            state=str(body['state']),
            profile=str(body['device_profile_name']),
            group=int(body['device_profile_group_id']),
            instance_uuid=body.get('instance_uuid'),
            hostname=body.get('hostname'),
            provider=body.get('device_rp_uuid'),
            handle_kind=str(body.get('attach_handle_type') or ''),
            handle_uuid=body.get('attach_handle_uuid'),
            handle_info={str(key): str(value) for key, value in (body.get('attach_handle_info') or {}).items()},
            project_id=body.get('project_id'),
            created_at=_moment(body.get('created_at')),
        )

    @property
    def handle(self) -> Handle | None:
        """The attach handle, or None if it is a handle of Cyborg's fake driver, whose device is not attached.

        Raises AttachHandleInvalid if the handle has an unknown kind, or if a part of it is malformed.
        """
        if self.handle_kind == TEST_PCI:
            return None
        if self.handle_kind not in (PCI, MDEV):
            raise AttachHandleInvalid(uuid=self.uuid, reason=f'its type is {self.handle_kind!r}, not {PCI} or {MDEV}')
        if self.handle_kind == PCI:
            return Handle(self.uuid, PCI, self._address())
        return Handle(self.uuid, MDEV, self._address(), self._mdev(), self._mdev_type())

    def _address(self) -> str:
        parts = {}
        for name, width in _HEX.items():
            text = self.handle_info.get(name, '').removeprefix('0x')
            if len(text) > width or not re.fullmatch('[0-9A-Fa-f]+', text):
                raise AttachHandleInvalid(uuid=self.uuid, reason=f'{name} {text!r} is not a part of a PCI address')
            parts[name] = text.lower().zfill(width)
        return f'{parts["domain"]}:{parts["bus"]}:{parts["device"]}.{parts["function"]}'

    def _mdev(self) -> str:
        text = self.handle_uuid or ''
        if not re.fullmatch('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', text):
            raise AttachHandleInvalid(uuid=self.uuid, reason=f'{text!r} is not a UUID of a mediated device')
        return text

    def _mdev_type(self) -> str:
        text = self.handle_info.get('asked_type', '')
        if not re.fullmatch('[A-Za-z0-9_.-]{1,64}', text):
            raise AttachHandleInvalid(uuid=self.uuid, reason=f'asked_type {text!r} is not a type of mediated devices')
        return text


def profiles(requests: Iterable[AcceleratorRequest], ports: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    """Return the values for the binding:profile of each port that has a device profile, as {port id: values}.

    The values are the uuid of the accelerator request, the PCI address and the physical network. ``ports`` is a dict
    from request uuid to port id. Requests without a port in ``ports`` are ignored. Raises AttachHandleInvalid if an
    accelerator is not a PCI function.
    """
    found = {}
    for one in requests:
        if one.uuid in ports:
            if (handle := one.handle) is None or handle.kind != PCI:
                raise AttachHandleInvalid(
                    uuid=one.uuid, reason=f'its type is {one.handle_kind!r}, but a port must be a {PCI} function'
                )
            found[ports[one.uuid]] = {
                REQUEST: one.uuid,
                'pci_slot': handle.address,
                'physical_network': one.handle_info.get('physical_network'),
            }
    return found


def _moment(text: str | None) -> datetime.datetime | None:
    """Return the time that an ISO 8601 text names, or None if there is no text. Without a time zone, UTC is assumed."""
    if not text:
        return None
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def handles(requests: Iterable[AcceleratorRequest]) -> list[Handle]:
    """Return the attach handles of the devices that the host attaches to the guest, always in the same order.

    Raises AttachHandleInvalid if a handle can't be attached.
    """
    return [
        handle
        for request in sorted(requests, key=lambda one: (one.group, one.uuid))
        if (handle := request.handle) is not None
    ]
