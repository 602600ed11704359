"""The uuid to which Cyborg has bound a server's accelerator requests, stored in the server's system metadata.

    holder.of(instance.uuid, instance.system_metadata)           # for the requests that the guest uses now
    holder.before(instance.uuid, instance.system_metadata)       # for the requests at the source of an unconfirmed move

Cyborg can bind a request only once. A server that moves has two sets of requests until the move is confirmed. The set
at the source keeps the uuid to which it is bound. The set at the destination is bound to the uuid of the migration,
also after the move. The key ``accelerators_bound_to`` has the uuid for the current host, and
``accelerators_bound_before`` the uuid for the source of a move. A missing key stands for the server's own uuid.
"""

from __future__ import annotations

from collections.abc import Mapping

BOUND_TO, BEFORE = 'accelerators_bound_to', 'accelerators_bound_before'


def for_ports(uuid: str) -> dict[str, str]:
    """Return system metadata for a new server that has ports with a device profile. ``uuid`` is the server's uuid.

    The metadata, ``accelerators_bound_to`` = ``uuid``, shows that Cyborg has accelerator requests of the server. It
    remains when the ports are removed later.
    """
    return {BOUND_TO: uuid}


def has_ports(uuid: str, metadata: Mapping[str, str]) -> bool:
    """Return whether the server ``uuid`` was created with ports that have a device profile.

    The system metadata shows this by ``accelerators_bound_to`` = ``uuid``. Such a server can't be moved.
    """
    return metadata.get(BOUND_TO) == uuid


def of(uuid: str, metadata: Mapping[str, str]) -> str:
    """Return the uuid to which Cyborg has bound the accelerator requests of the server on its current host.

    This is the uuid in the system metadata (``accelerators_bound_to``): the uuid of the last migration. If the metadata
    has none, it is ``uuid``, the server's own uuid.
    """
    return metadata.get(BOUND_TO) or uuid


def before(uuid: str, metadata: Mapping[str, str]) -> str:
    """Return the uuid to which Cyborg has bound a server's accelerator requests on the source host of its move.

    This is the uuid in the system metadata (``accelerators_bound_before``): the uuid of an earlier migration. If the
    metadata has none, it is ``uuid``, the server's own uuid. Call this only while the move is not confirmed.
    """
    return metadata.get(BEFORE) or uuid


def moved(metadata: Mapping[str, str], migration_uuid: str) -> dict[str, str | None]:
    """Return the system metadata to write when a resize or cold migration has reached its destination.

    The guest now uses the accelerator requests that Cyborg has bound to the migration's uuid. The uuid of the requests
    at the source is kept under ``accelerators_bound_before``, because the move may be reverted. A key with the value
    None is deleted; then the requests at the source are bound to the server's own uuid.
    """
    return {BOUND_TO: migration_uuid, BEFORE: metadata.get(BOUND_TO)}


def came(migration_uuid: str) -> dict[str, str | None]:
    """Return the system metadata to write when a live migration or an evacuation is complete.

    The guest now uses the accelerator requests that Cyborg has bound to the migration's uuid. The key
    ``accelerators_bound_before`` is deleted (value None), because a live migration or evacuation is never reverted.
    """
    return {BOUND_TO: migration_uuid, BEFORE: None}


def its_own(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """Return the system metadata to write when a server is unshelved.

    Cyborg binds the new accelerator requests to the server's own uuid. If an earlier migration has left its uuid under
    the key ``accelerators_bound_to``, this key is deleted (value None); otherwise the result is empty.
    """
    return {BOUND_TO: None} if BOUND_TO in metadata else {}


def confirmed() -> dict[str, str | None]:
    """Return the system metadata to write when a move is confirmed.

    The key ``accelerators_bound_before`` is deleted (value None). It had the uuid to which Cyborg bound the accelerator
    requests at the source, and was needed only for a revert.
    """
    return {BEFORE: None}


def reverted(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """Return the system metadata to write when a move is reverted.

    The guest uses the accelerator requests at the source again, so the uuid in ``accelerators_bound_before`` becomes
    ``accelerators_bound_to``. A key with the value None is deleted; a missing key stands for the server's own uuid.
    """
    return {BOUND_TO: metadata.get(BEFORE), BEFORE: None}
