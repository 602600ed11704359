"""Flow that removes a host whose compute service was deleted, if the API process did not complete that."""

from __future__ import annotations

from kilonova.clients import host_removal
from kilonova.conductor.flow import Flow
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.queries import host_removals


def forget_host(work: Work[Outputs]) -> None:
    """Delete the host's mapping and its memberships of aggregates."""
    work.compare_now()
    with engine.silence():
        host_removal.forget(work.env.api, work.db, work.args['host'])


def delete_providers(work: Work[Outputs]) -> None:
    """Delete the provider trees of the host's nodes.

    Raises ProvidersHeld as long as one of them has allocations.
    """
    with engine.silence():
        host_removal.delete_providers(work.env.placement, work.env.cells, work.args['nodes'], work.compare_now)


class HostRemoval(Flow[Outputs]):
    """The operation that removes a host from the API database and from Placement.

    Its row is in the database of the host's cell.
    """

    name, outputs = host_removals.KIND, Outputs
    forward_only = True
    steps = (Step('forget_host', forget_host, saved=False), Step('delete_providers', delete_providers, saved=False))
