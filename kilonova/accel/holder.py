"""The uuid to which Cyborg has bound a server's accelerator requests, stored in the server's system metadata.

    holder.of(instance.uuid, instance.system_metadata)           # for the requests that the guest uses now
    holder.before(instance.uuid, instance.system_metadata)       # for the requests at the source of an unconfirmed move

Cyborg can bind a request only once. A server that moves has two sets of requests until the move is confirmed. The set
at the source stays bound to its uuid, and the set at the destination is bound to the uuid of the migration for ever.
If the metadata has no entry, the requests are bound to the server's own uuid.
"""

from __future__ import annotations

from collections.abc import Mapping

BOUND_TO, BEFORE = 'accelerators_bound_to', 'accelerators_bound_before'


def for_ports(uuid: str) -> dict[str, str]:
    """Return system metadata for a new server that gets accelerators as network ports. ``uuid`` is the server's uuid.

    This metadata shows that the server has accelerator requests. It remains when the ports are removed later.
    """
    return {BOUND_TO: uuid}


def has_ports(uuid: str, metadata: Mapping[str, str]) -> bool:
    """Return whether the server was created with accelerators as network ports. Such a server can't be moved."""
    return metadata.get(BOUND_TO) == uuid


def of(uuid: str, metadata: Mapping[str, str]) -> str:
    """Return the uuid to which Cyborg has bound the accelerator requests that the server's guest uses now.

    It is the uuid of the server, or of the migration that brought the server to its host.
    """
    return metadata.get(BOUND_TO) or uuid


def before(uuid: str, metadata: Mapping[str, str]) -> str:
    """Return the uuid to which Cyborg has bound a server's accelerator requests on the source host of its move.

    It is the uuid of the server, or of an earlier migration. Call this only while the move is not confirmed.
    """
    return metadata.get(BEFORE) or uuid


def moved(metadata: Mapping[str, str], migration_uuid: str) -> dict[str, str | None]:
    """Return the system metadata to write when a resize or cold migration has reached its destination.

    The guest now uses the requests that are bound to the migration's uuid. The uuid that was used before the move is
    kept, because the move may be reverted. In the result, the value None means that the key is deleted.
    """
    return {BOUND_TO: migration_uuid, BEFORE: metadata.get(BOUND_TO)}


def came(migration_uuid: str) -> dict[str, str | None]:
    """Return the system metadata to write when a live migration or an evacuation is complete.

    The guest now uses the requests that are bound to the migration's uuid. The uuid that was used before the move is
    deleted (value None), because such a move is never reverted.
    """
    return {BOUND_TO: migration_uuid, BEFORE: None}


def its_own(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """Return the system metadata to write when a server is unshelved.

    The new accelerator requests are bound to the server's own uuid. If the metadata has the uuid of an earlier
    migration, this uuid is deleted (value None).
    """
    return {BOUND_TO: None} if BOUND_TO in metadata else {}


def confirmed() -> dict[str, str | None]:
    """Return the system metadata to write when a move is confirmed.

    The uuid that was used before the move is deleted (value None), because it was kept only for a revert.
    """
    return {BEFORE: None}


def reverted(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """Return the system metadata to write when a move is reverted: the uuid that was used before the move.

    The value None means that the key is deleted. If the metadata has no earlier uuid, the server's own uuid is used.
    """
    return {BOUND_TO: metadata.get(BEFORE), BEFORE: None}
