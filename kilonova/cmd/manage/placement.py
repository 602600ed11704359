"""kilonova-manage placement: update the aggregates in Placement, which are copies of Kilonova's host aggregates."""

from __future__ import annotations

import argparse

from kilonova.cmd.cli import Cloud, Command, argument

# Exit codes of sync_aggregates.
SILENT, REFUSED, NO_PROVIDER = 2, 3, 6


def sync_aggregates(cloud: Cloud, args: argparse.Namespace) -> int:
    """Update the aggregates of compute nodes in Placement from the host aggregates.

    Exit code 0: Placement is up to date. 2: Placement does not answer. 3: Placement refuses the change. 6: a compute
    node has no resource provider.
    """
    from kilonova import errors
    from kilonova.clients import aggregates
    from kilonova.clients.placement import ProviderNotFound
    from kilonova.cmd.daemon import parts

    try:
        mended = aggregates.bring_all_up_to_date(parts.placement(cloud.conf), cloud.databases.api(), cloud.cells)
    except ProviderNotFound as error:
        print(error)
        return NO_PROVIDER
    except errors.Unanswered as error:
        print(error)
        return SILENT
    except errors.KilonovaError as error:
        print(error)
        return REFUSED
    for line in mended if args.verbose else ():
        print(f'Successfully synchronized {line}')
    return 0


PLACEMENT = {'sync_aggregates': Command(sync_aggregates, (argument('--verbose', action='store_true'),))}
