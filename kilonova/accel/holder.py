"""Under which uuid Cyborg has a server's accelerator requests.

    holder.of(instance.uuid, instance.system_metadata)           # those that the guest has now
    holder.before(instance.uuid, instance.system_metadata)       # of a move that isn't confirmed: those at the source

Cyborg binds requests to a uuid once. A server that moves has two sets of them, those at the source until the move is
confirmed; so those at the destination are bound to the uuid of the migration, and stay so. Which uuid counts stands in
the server's system metadata; without an entry it is the server's own.
"""
from __future__ import annotations

from collections.abc import Mapping

BOUND_TO, BEFORE = 'accelerators_bound_to', 'accelerators_bound_before'


def for_ports(uuid: str) -> dict[str, str]:
    """The metadata of a server whose ports are accelerators: whatever becomes of its ports, it has requests."""
    return {BOUND_TO: uuid}


def has_ports(uuid: str, metadata: Mapping[str, str]) -> bool:
    """Whether it is such a server: these never move."""
    return metadata.get(BOUND_TO) == uuid


def of(uuid: str, metadata: Mapping[str, str]) -> str:
    """Of the requests that the guest has now."""
    return metadata.get(BOUND_TO) or uuid


def before(uuid: str, metadata: Mapping[str, str]) -> str:
    """Of those that it had before the move that waits for an answer."""
    return metadata.get(BEFORE) or uuid


def moved(metadata: Mapping[str, str], migration_uuid: str) -> dict[str, str | None]:
    """Changes of the metadata when a move waits for an answer."""
    return {BOUND_TO: migration_uuid, BEFORE: metadata.get(BOUND_TO)}


def came(migration_uuid: str) -> dict[str, str | None]:
    """… when a move is over at once, as those of a live migration and of an evacuation are."""
    return {BOUND_TO: migration_uuid, BEFORE: None}


def its_own(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """… when a server that had none got some without a move."""
    return {BOUND_TO: None} if BOUND_TO in metadata else {}


def confirmed() -> dict[str, str | None]:
    """… when it is confirmed."""
    return {BEFORE: None}


def reverted(metadata: Mapping[str, str]) -> dict[str, str | None]:
    """… when it is reverted."""
    return {BOUND_TO: metadata.get(BEFORE), BEFORE: None}
