"""What conductor and hosts send one another where that takes more than three arguments: orders and what is written."""
from __future__ import annotations

from typing import ClassVar

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register
from kilonova.objects.flavor import Flavor
from kilonova.objects.instance_extra import InstanceNUMATopology, InstancePCIRequests


# --- what a host is to do (rpc.compute) ------------------------------------------------------------------------------
# ``image`` is the image service's plain dict. All fields are set by who sends one.
@register
class BuildOrder(KilonovaObject):
    """Build a server. ``attempt`` counts its hosts from 1; ``sealed``: admin password and files (``sealing``);
    ``limits``: how far the claim may go, where a filter said so; ``block_devices``: the disks that were asked for
    besides what flavor and image say."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'request_spec': fields.ObjectField('RequestSpec', nullable=True),
        'sealed': fields.StringField(nullable=True),
        'attempt': fields.IntegerField(),
        'block_devices': fields.ListOfObjectsField('BlockDeviceMapping'),
        'limits': fields.ObjectField('SchedulerLimits', nullable=True),
    }

    @property
    def pci_requests(self) -> InstancePCIRequests | None:
        """The instance's, else the request spec's; their specs name Placement's providers."""
        for holder in (self.instance, self.request_spec):
            if holder is not None and 'pci_requests' in holder and holder.pci_requests is not None:
                found: InstancePCIRequests | None = holder.pci_requests
                return found
        return None

    @property
    def numa_topology(self) -> InstanceNUMATopology | None:
        """What the server asks of the host's NUMA cells."""
        for holder in (self.request_spec, self.instance):
            if holder is not None and 'numa_topology' in holder and holder.numa_topology is not None:
                found: InstanceNUMATopology | None = holder.numa_topology
                return found
        return None


@register
class RebuildOrder(KilonovaObject):
    """Make a server's disks anew, from ``image``, where it is. ``sealed``: admin password and files;
    ``preserve_ephemeral``: its ephemeral disks stay."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'sealed': fields.StringField(nullable=True),
        'preserve_ephemeral': fields.BooleanField(),
    }


@register
class RescueOrder(KilonovaObject):
    """Rescue a server. ``image``: the image to start from, {} for the host's default; ``sealed``: the administrator's
    password there (``sealing``)."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'sealed': fields.StringField(nullable=True),
    }

    @property
    def image_ref(self) -> str | None:
        """The id of the image; None: the host's default."""
        found: str | None = self.image.get('id')
        return found

    @property
    def image_name(self) -> str:
        return str(self.image.get('name') or '')


@register
class EvacuateOrder(KilonovaObject):
    """Build a server of a dead host here. ``shared``: what the user says of its disks, whether they are on storage that
    both hosts use (None: nothing); ``power_on``: it is to run; the rest as in ``BuildOrder``."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'migration': fields.ObjectField('Migration'),
        'request_spec': fields.ObjectField('RequestSpec'),
        'sealed': fields.StringField(nullable=True),
        'block_devices': fields.ListOfObjectsField('BlockDeviceMapping'),
        'limits': fields.ObjectField('SchedulerLimits', nullable=True),
        'power_on': fields.BooleanField(),
        'shared': fields.BooleanField(nullable=True),
    }

    @property
    def flavor(self) -> Flavor:
        """What it claims: an evacuation changes nothing of the server."""
        found: Flavor = self.instance.flavor
        return found


@register
class PrepResizeOrder(KilonovaObject):
    """A move's destination claims; ``flavor``: the new one, ``limits`` as in ``BuildOrder``."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'migration': fields.ObjectField('Migration'),
        'flavor': fields.ObjectField('Flavor'),
        'request_spec': fields.ObjectField('RequestSpec'),
        'limits': fields.ObjectField('SchedulerLimits', nullable=True),
    }


@register
class ResizeOrder(KilonovaObject):
    """A move's source carries the disks; ``flavor``: the new one, ``disk``: where they go, as ``prep_resize`` said."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'migration': fields.ObjectField('Migration'),
        'flavor': fields.ObjectField('Flavor'),
        'clean_shutdown': fields.BooleanField(),
        'disk': fields.JsonField(nullable=True),
    }


@register
class FinishResizeOrder(KilonovaObject):
    """A move's destination builds the guest; ``disk_info``: what ``resize_instance`` answered."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'migration': fields.ObjectField('Migration'),
        'request_spec': fields.ObjectField('RequestSpec'),
        'disk_info': fields.JsonField(nullable=True),
    }


@register
class UnshelveOrder(KilonovaObject):
    """Build a server that was shelved and offloaded. ``image``: of which its root disk is made; ``request_spec``: its
    devices are of the providers that Placement allocated; ``limits``, ``block_devices`` as in ``BuildOrder``."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'request_spec': fields.ObjectField('RequestSpec'),
        'block_devices': fields.ListOfObjectsField('BlockDeviceMapping'),
        'limits': fields.ObjectField('SchedulerLimits', nullable=True),
    }


@register
class LiveMigrationCheckOrder(KilonovaObject):
    """A live migration's destination looks whether it can take the guest, and claims. ``guest``: what the source said
    of it, ``block``: whether its disks go along (None: unless both hosts use them), ``over_commit``: their holes need
    no room, ``limits`` as in ``BuildOrder``."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'migration': fields.ObjectField('Migration'),
        'request_spec': fields.ObjectField('RequestSpec'),
        'limits': fields.ObjectField('SchedulerLimits', nullable=True),
        'guest': fields.JsonField(),
        'block': fields.BooleanField(nullable=True),
        'over_commit': fields.BooleanField(),
    }

    @property
    def flavor(self) -> Flavor:
        """What it claims: a live migration changes nothing of the server."""
        found: Flavor = self.instance.flavor
        return found


@register
class LiveMigrationOrder(KilonovaObject):
    """A step of a live migration. ``guest``: what the source said of it, ``offer``: what the destination."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'migration': fields.ObjectField('Migration'),
        'guest': fields.JsonField(),
        'offer': fields.JsonField(),
    }


@register
class LiveMigrationUndo(KilonovaObject):
    """A live migration was ended. To the source: ``resume``: no other host has the guest any more, so one that is held
    goes on; ``aborted``: a user ended it, and it is to be said here. To the destination: ``gone``: whether the source
    has it no longer (None: look whether it came)."""

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'migration': fields.ObjectField('Migration'),
        'resume': fields.BooleanField(default=False),
        'aborted': fields.BooleanField(default=False),
        'gone': fields.BooleanField(nullable=True),
    }


# --- what a host writes while it works on an operation: a claim takes a place, a save says what a step came to --------
# ``db.queries.claims`` says what each field does. Fields that aren't set change nothing. Times in columns travel as ISO
# text, columns of ``instance_extra`` as JSON text.
class _Written(KilonovaObject):
    """Of both: ``transition``: the event by which the server's state moves, ``expect`` {column: value(s)} what it must
    be like before, ``values`` {column of instances: value}, ``extra`` {column of instance_extra: JSON text},
    ``devices`` [{id, address, from, to, instance_uuid, request_id}], ``usage`` {compute_node_id, columns of
    compute_nodes}, ``migration`` {uuid, columns of migrations}."""


_BOTH = {
    'instance_uuid': fields.UUIDField(nullable=True),
    'key': fields.StringField(nullable=True),
    'request_id': fields.StringField(nullable=True),
    'transition': fields.StringField(nullable=True),
    'expect': fields.JsonField(nullable=True),
    'values': fields.JsonField(nullable=True),
    'extra': fields.JsonField(nullable=True),
    'devices': fields.JsonField(nullable=True),
    'usage': fields.JsonField(nullable=True),
    'migration': fields.JsonField(nullable=True),
}


def _none() -> None:
    return None


@register
class Claim(_Written):
    """``host`` claims; ``group`` {uuid, host}: the policy of this server group is looked at once more."""

    VERSION = '1.0'
    fields = {
        **_BOTH,
        'host': fields.StringField(nullable=True),
        'group': fields.JsonField(nullable=True),
    }
    _empty: ClassVar = dict.fromkeys(fields, _none)


@register
class Save(_Written):
    """``event`` of the instance action, ``fault`` columns, ``message`` the action's, ``end``: with this the operation
    ends, ``undo``: it gives back, ``undone``: why the host took back what it did under the key, ``mark``: tells
    several saves under one key apart, ``system_metadata`` {key: value|None}."""

    VERSION = '1.0'
    fields = {
        **_BOTH,
        'system_metadata': fields.JsonField(nullable=True),
        'event': fields.JsonField(nullable=True),
        'fault': fields.JsonField(nullable=True),
        'message': fields.StringField(nullable=True),
        'end': fields.BooleanField(),
        'undo': fields.BooleanField(),
        'undone': fields.StringField(nullable=True),
        'mark': fields.IntegerField(nullable=True),
    }
    _empty: ClassVar = {**dict.fromkeys(fields, _none), 'end': bool, 'undo': bool}
