"""What all payloads of versioned notifications share.

A payload is an object in namespace ``nova`` that is made once, sent and never read back here: it has no change marks
and no remote methods. Each has ``of(about, …)``, which takes the facts of one event.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject
from kilonova.states import POWER_WORDS, PowerState

# All words of the field, also of what isn't built here, so that versions mean the same.
VM_STATES = ('active', 'building', 'paused', 'suspended', 'stopped', 'rescued', 'resized', 'soft-delete', 'deleted',
             'error', 'shelved', 'shelved_offloaded')
TASK_STATES = (
    'scheduling', 'block_device_mapping', 'networking', 'spawning', 'image_snapshot', 'image_snapshot_pending',
    'image_pending_upload', 'image_uploading', 'image_backup', 'updating_password', 'resize_prep', 'resize_migrating',
    'resize_migrated', 'resize_finish', 'resize_reverting', 'resize_confirming', 'rebooting', 'reboot_pending',
    'reboot_started', 'rebooting_hard', 'reboot_pending_hard', 'reboot_started_hard', 'pausing', 'unpausing',
    'suspending', 'resuming', 'powering-off', 'powering-on', 'rescuing', 'unrescuing', 'rebuilding',
    'rebuild_block_device_mapping', 'rebuild_spawning', 'migrating', 'deleting', 'soft-deleting', 'restoring',
    'shelving', 'shelving_image_pending_upload', 'shelving_image_uploading', 'shelving_offloading', 'unshelving')
InstanceStateField = fields.enum('InstanceState', VM_STATES)
InstanceTaskStateField = fields.enum('InstanceTaskState', TASK_STATES)
DiskConfigTypeField = fields.enum('DiskConfigType', ('AUTO', 'MANUAL'))


@dataclass(frozen=True)
class About:
    """Who asked (``ctxt``), and the options that payloads obey: whether disks are told, how an instance is named on its
    hypervisor, the period of usage audits."""

    ctxt: RequestContext
    bdms: bool = False
    name_template: str = 'instance-%08x'
    audit_period: str = 'month'


class Payload(KilonovaObject):
    """Base of the payloads."""

    @classmethod
    def like(cls, source: KilonovaObject | dict[str, Any], **values: Any) -> Self:
        """From the fields of the same name that an object has set (or a row holds); ``values`` win over them."""
        found = source if isinstance(source, dict) else {
            name: getattr(source, name) for name in cls.fields if name in source.fields and name in source}
        return cls.made({**found, **values})

    @classmethod
    def made(cls, values: dict[str, Any]) -> Self:
        """From values by field; nullable fields that are missing are null, others stay away."""
        return cls.loaded(None, ((name, values.get(name)) for name in cls.fields
                                 if values.get(name) is not None or name in cls._nullable))


def value(source: KilonovaObject, name: str, missing: Any = None) -> Any:
    """A field of an object, or what stands for one that isn't set."""
    return getattr(source, name) if name in source else missing


def power_word(state: int | None) -> str | None:
    """'running' for 1; None for what has no word."""
    return POWER_WORDS[PowerState(state)] if state in list(PowerState) else None
