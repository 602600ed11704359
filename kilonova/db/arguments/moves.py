"""The arguments of operations that move a server to another host, or end such a move.

The uuid of the migration is chosen when the request is accepted, so that a repeated step creates no second migration.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kilonova.db.arguments.base import (
    LEFT_OUT,
    Envelope,
    ImageArguments,
    MigrationArguments,
    SpecArguments,
)


@dataclass(frozen=True, kw_only=True)
class MoveArguments(MigrationArguments, SpecArguments):
    """Base class of the arguments of moves that have a migration.

    Attributes:
        migration_type: Type of the migration, such as 'resize' or 'evacuation'.
        flavor: Flavor of the server after the move.
    """

    migration_type: str
    flavor: Envelope


@dataclass(frozen=True, kw_only=True)
class ResizeArguments(MoveArguments, ImageArguments):
    """Arguments of a resize or cold migration.

    Attributes:
        host: Host that the user requested, or None. The request spec names it for the scheduler.
        old_request_spec: The request spec that was stored before the move, or None.
        clean_shutdown: False if the guest gets no time to shut down.
    """

    host: str | None = None
    old_request_spec: Envelope | None = None
    clean_shutdown: bool = field(default=True, metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class LiveMigrateArguments(MoveArguments):
    """Arguments of a live migration.

    Attributes:
        block: Whether local disks are copied; None if the hosts decide it.
        over_commit: The user's disk_over_commit. If True, the destination needs free space only for the used size of
            the copied disks, otherwise for their virtual size.
    """

    block: bool | None
    over_commit: bool


@dataclass(frozen=True, kw_only=True)
class EvacuateArguments(MoveArguments, ImageArguments):
    """Arguments of an evacuation.

    Attributes:
        sealed: Password of the guest, encrypted with the keys of the deployment, or None.
        shared: Whether the disks are on shared storage; None if the host decides it.
        stays_off: True if the guest is not started after the evacuation.
        power_state: Power state of the server before the evacuation.
    """

    sealed: str | None = None
    shared: bool | None = None
    stays_off: bool
    power_state: int | None


@dataclass(frozen=True, kw_only=True)
class UnshelveArguments(SpecArguments):
    """Arguments of the unshelve of an offloaded server.

    ``new_request_spec`` is the request spec with the availability zone that the user requested.
    ``old_request_spec`` is the request spec from before the request, which an undo restores. They are None if the user
    requested no availability zone.
    """

    new_request_spec: Envelope | None = field(default=None, metadata=LEFT_OUT)
    old_request_spec: Envelope | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True, kw_only=True)
class ConfirmArguments(MigrationArguments):
    """Arguments of the confirm of a resize or cold migration."""


@dataclass(frozen=True, kw_only=True)
class RevertArguments(MigrationArguments):
    """Arguments of the revert of a resize or cold migration.

    ``request_spec`` is the request spec with the old flavor, or None if the server has no request spec.
    """

    request_spec: Envelope | None = None


@dataclass(frozen=True, kw_only=True)
class SoftDeleteArguments(MigrationArguments):
    """Arguments of a soft delete.

    If the server has an unconfirmed move, ``migration_uuid`` is the uuid of its migration, and the operation confirms
    the move first. Otherwise ``migration_uuid`` is ''.
    """

    migration_uuid: str = field(default='', metadata=LEFT_OUT)
