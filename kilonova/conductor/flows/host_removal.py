"""Flow that removes a host from Kilonova after its compute service was deleted.

The API process removes the host itself. The flow is used if the API process did not complete the removal.

The steps are forget_host and delete_providers.
"""

from __future__ import annotations

from kilonova.clients import host_removal
from kilonova.conductor.flow import Flow
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.arguments.releases import HostRemovalArguments
from kilonova.db.queries import host_removals


def forget_host(work: Work[Outputs]) -> None:
    """Delete the host's mapping to a cell, and remove the host from all aggregates."""
    work.compare_now()
    host = work.arguments(HostRemovalArguments).host
    with engine.silence():
        host_removal.forget(work.env.api, work.db, host)


def delete_providers(work: Work[Outputs]) -> None:
    """Delete the resource providers of the host's nodes from Placement.

    Raises ProvidersHeld as long as one of the providers has allocations.
    """
    nodes = work.arguments(HostRemovalArguments).nodes
    with engine.silence():
        host_removal.delete_providers(work.env.placement, work.env.cells, nodes, work.compare_now)


class HostRemoval(Flow[Outputs]):
    """The operation that removes a host from the API database and from Placement.

    The operation row is in the database of the host's cell.
    """

    name, outputs = host_removals.KIND, Outputs
    forward_only = True
    steps = (Step('forget_host', forget_host, saved=False), Step('delete_providers', delete_providers, saved=False))
