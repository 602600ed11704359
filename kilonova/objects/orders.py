"""Objects that conductor and compute services send each other as arguments of RPC calls.

An ``…Order`` contains the arguments of a call to a compute service (``rpc.compute``) that needs more than three
arguments. ``Claim`` and ``Save`` are sent by a compute service to the conductor, which writes them to the database
(``rpc.conductor``).
"""

from __future__ import annotations

from typing import ClassVar

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register
from kilonova.objects.flavor import Flavor
from kilonova.objects.instance_extra import InstanceNUMATopology, InstancePCIRequests

# --- arguments of calls to a compute service (rpc.compute) -----------------------------------------------------------


# In the classes below, the field ``image`` is a dict of the image's fields, as the API read it from the image service.
@register
class BuildOrder(KilonovaObject):
    """The arguments of ``build_and_run_instance``: build a server on this host.

    ``attempt`` is the number of the attempt, from 1; each attempt is on another host. ``sealed`` is the administrator's
    password and the files, encrypted by ``sealing``. ``limits`` are the limits that the host must check when it claims
    resources. ``block_devices`` are the disks that the user requested, without the disks of the flavor and the image.
    """

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
        """The PCI requests of the instance, else the PCI requests of the request spec, else None.

        The specs in the requests name the resource providers that Placement allocated.
        """
        for holder in (self.instance, self.request_spec):
            if holder is not None and 'pci_requests' in holder and holder.pci_requests is not None:
                found: InstancePCIRequests | None = holder.pci_requests
                return found
        return None

    @property
    def numa_topology(self) -> InstanceNUMATopology | None:
        """The NUMA topology of the request spec, else the NUMA topology of the instance, else None."""
        for holder in (self.request_spec, self.instance):
            if holder is not None and 'numa_topology' in holder and holder.numa_topology is not None:
                found: InstanceNUMATopology | None = holder.numa_topology
                return found
        return None


@register
class RebuildOrder(KilonovaObject):
    """The arguments of ``rebuild_instance`` and ``stop_to_reimage``: create a server's disks again from ``image``.

    ``sealed`` is the administrator's password and the files, encrypted. If ``preserve_ephemeral`` is True, the
    ephemeral disks are kept.
    """

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'sealed': fields.StringField(nullable=True),
        'preserve_ephemeral': fields.BooleanField(),
    }


@register
class RescueOrder(KilonovaObject):
    """The arguments of ``rescue_instance``: boot a server from a rescue image.

    ``image`` is the rescue image, or {} for the host's default image. ``sealed`` is the administrator's password of the
    rescue system, encrypted by ``sealing``.
    """

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'image': fields.JsonField(),
        'sealed': fields.StringField(nullable=True),
    }

    @property
    def image_ref(self) -> str | None:
        """The id of the rescue image, or None for the host's default image."""
        found: str | None = self.image.get('id')
        return found

    @property
    def image_name(self) -> str:
        """The name of the rescue image, or '' for the host's default image."""
        return str(self.image.get('name') or '')


@register
class EvacuateOrder(KilonovaObject):
    """The arguments of ``evacuate_instance``: rebuild a server of a failed host on this host.

    ``shared`` says whether the old and the new host share the storage of the disks; it is None if the user did not say
    so. If ``power_on`` is True, the guest is started. ``sealed`` is the administrator's password, encrypted.
    ``block_devices`` are the requested disks, and ``limits`` the limits for the claim of resources.
    """

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
        """The flavor for which resources are claimed: the server's own, which an evacuation does not change."""
        found: Flavor = self.instance.flavor
        return found


@register
class PrepResizeOrder(KilonovaObject):
    """The arguments of ``prep_resize``: claim resources at the destination of a resize or cold migration.

    ``flavor`` is the new flavor. ``limits`` are the limits that the host must check for the claim.
    """

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
    """The arguments of ``resize_instance``: send the disks from the source of a resize or cold migration.

    ``flavor`` is the new flavor. ``disk`` is the target of the disks, which the destination returned from
    ``prep_resize``.
    """

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
    """The arguments of ``finish_resize``: create the guest at the destination of a resize or cold migration.

    ``disk_info`` is the reply of ``resize_instance``.
    """

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
    """The arguments of ``unshelve_instance``: build a server that was shelved and offloaded.

    The root disk is made from ``image``. The PCI requests of ``request_spec`` name the resource providers that
    Placement allocated. ``block_devices`` are the requested disks, and ``limits`` the limits for the claim of
    resources.
    """

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
    """The arguments of ``check_can_live_migrate_destination``: check a live migration and claim at the destination.

    ``guest`` is the description of the guest by the source host. ``block`` says whether the disks are copied; if it is
    None, they are copied unless the two hosts share the disks. If ``over_commit`` is True, the destination need not
    have free space for the unused parts of sparse disks. ``limits`` are the limits for the claim of resources.
    """

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
        """The flavor for which the destination claims resources: a live migration keeps the server's flavor."""
        found: Flavor = self.instance.flavor
        return found


@register
class LiveMigrationOrder(KilonovaObject):
    """The arguments of all calls of a live migration that follow the check at the destination.

    ``guest`` is the description of the guest by the source host. ``offer`` is the reply of the destination to the
    check.
    """

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'migration': fields.ObjectField('Migration'),
        'guest': fields.JsonField(),
        'offer': fields.JsonField(),
    }


@register
class LiveMigrationUndo(KilonovaObject):
    """The arguments of the calls that undo a live migration at its source and at its destination.

    Two fields are for the source. If ``resume`` is True, no other host has the guest, so the source resumes a paused
    guest. If ``aborted`` is True, a user aborted the migration, so the source sends notifications about the abort.

    ``gone`` is for the destination. If it is True, the guest has left the source, so the destination keeps the guest.
    If it is False, the destination deletes its part. If it is None, the destination keeps the guest if it has arrived.
    """

    VERSION = '1.0'
    fields = {
        'instance': fields.ObjectField('Instance'),
        'migration': fields.ObjectField('Migration'),
        'resume': fields.BooleanField(default=False),
        'aborted': fields.BooleanField(default=False),
        'gone': fields.BooleanField(nullable=True),
    }


# --- what a host asks a conductor to write: a Claim takes resources for a server, a Save stores the result of a step --

# Fields that Claim and Save have in common (see ``db.queries.claims.Written``). None leaves the column unchanged.
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
class Claim(KilonovaObject):
    """A host's request to claim resources for a server, which a conductor writes to the database.

    Its fields are the attributes of ``db.queries.claims.ClaimWrite``: new column values of the server, of the server's
    PCI devices, of the host's usage and of the migration. ``group`` names the server group whose policy the conductor
    checks in the same transaction.
    """

    VERSION = '1.0'
    fields = {
        **_BOTH,
        'host': fields.StringField(nullable=True),
        'group': fields.JsonField(nullable=True),
    }
    _empty: ClassVar = dict.fromkeys(fields, _none)


@register
class Save(KilonovaObject):
    """The result of a step of an operation on a host, which a conductor writes to the database.

    Its fields are the attributes of ``db.queries.claims.SaveWrite``: new column values of the server, its PCI devices,
    the host's usage and the migration, and the event, fault and message of the server's action.
    """

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
