"""Common parts of the payloads of versioned notifications.

A payload is an object in the namespace ``nova``. Kilonova creates and sends it, and never reads it. So a payload has no
list of changed fields and no remote methods. Each class has a method ``of(about, …)``, whose arguments are the values
of one event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject
from kilonova.states import POWER_WORDS, PowerState

# The vm states that Nova's payloads allow. Kilonova does not use all of them.
VM_STATES = (
    'active',
    'building',
    'paused',
    'suspended',
    'stopped',
    'rescued',
    'resized',
    'soft-delete',
    'deleted',
    'error',
    'shelved',
    'shelved_offloaded',
)
TASK_STATES = (
    'scheduling',
    'block_device_mapping',
    'networking',
    'spawning',
    'image_snapshot',
    'image_snapshot_pending',
    'image_pending_upload',
    'image_uploading',
    'image_backup',
    'updating_password',
    'resize_prep',
    'resize_migrating',
    'resize_migrated',
    'resize_finish',
    'resize_reverting',
    'resize_confirming',
    'rebooting',
    'reboot_pending',
    'reboot_started',
    'rebooting_hard',
    'reboot_pending_hard',
    'reboot_started_hard',
    'pausing',
    'unpausing',
    'suspending',
    'resuming',
    'powering-off',
    'powering-on',
    'rescuing',
    'unrescuing',
    'rebuilding',
    'rebuild_block_device_mapping',
    'rebuild_spawning',
    'migrating',
    'deleting',
    'soft-deleting',
    'restoring',
    'shelving',
    'shelving_image_pending_upload',
    'shelving_image_uploading',
    'shelving_offloading',
    'unshelving',
)
InstanceStateField = fields.enum('InstanceState', VM_STATES)
InstanceTaskStateField = fields.enum('InstanceTaskState', TASK_STATES)
DiskConfigTypeField = fields.enum('DiskConfigType', ('AUTO', 'MANUAL'))


@dataclass(frozen=True)
class EventContext:
    """The context of an event, and the options for payloads.

    ``ctxt`` is the request context. If ``bdms`` is True, payloads include the server's volumes. ``name_template`` is
    the template of a server's name at the hypervisor. ``audit_period`` is the period of usage audits.
    """

    ctxt: RequestContext
    bdms: bool = False
    name_template: str = 'instance-%08x'
    audit_period: str = 'month'


class Payload(KilonovaObject):
    """Base class of the payloads of versioned notifications."""

    @classmethod
    def like(cls, source: KilonovaObject | dict[str, Any], **values: Any) -> Self:
        """Return a payload whose fields are copied from the fields of the same name of an object or row.

        ``values`` are further fields. A field in ``values`` replaces a copied field of the same name.
        """
        found = (
            source
            if isinstance(source, dict)
            else {name: getattr(source, name) for name in cls.fields if name in source.fields and name in source}
        )
        return cls.made({**found, **values})

    @classmethod
    def made(cls, values: dict[str, Any]) -> Self:
        """Return a payload with these values, given by field name.

        A field that is missing in ``values`` or None there becomes null if it is nullable, and otherwise stays unset.
        """
        return cls.loaded(
            None,
            ((name, values.get(name)) for name in cls.fields if values.get(name) is not None or name in cls._nullable),
        )


def value(source: KilonovaObject, name: str, missing: Any = None) -> Any:
    """Return a field of an object, or ``missing`` if the field is not set."""
    return getattr(source, name) if name in source else missing


def power_word(state: int | None) -> str | None:
    """Return the word for the number of a power state ('running' for 1), or None for an unknown number."""
    return POWER_WORDS[PowerState(state)] if state in list(PowerState) else None
