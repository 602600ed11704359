"""Refuse to start a controller while a Nova may act on the same servers.

    takeover.refuse_two_clouds(conf, cells)          # raises NovaActs
    takeover.log_running_nova(conf)                  # each minute, in conductors

A cloud that never was one of Nova passes with one SQL statement.
"""

from __future__ import annotations

from pathlib import Path

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.cmd import options
from kilonova.cmd.daemon import caps
from kilonova.db import engine
from kilonova.db.queries import adoption
from kilonova.db.queries.adoption import AdoptionState
from kilonova.db.queries.cells import CellDatabases

LOG = logging.getLogger(__name__)
# Seconds between two looks for a Nova that runs.
PERIOD = 60.0


class NovaActs(errors.KilonovaError):
    """A Nova acts on the same servers, or may do so."""

    msg_fmt = '%(reason)s'


def refuse_two_clouds(conf: cfg.ConfigOpts, cells: CellDatabases) -> None:
    """Raise NovaActs if the cloud was copied from a Nova that has not ended, or was given back to it.

    Log a warning, and do nothing else, if a database does not answer.
    """
    try:
        with cells.api().read() as connection:
            found = adoption.takeover(connection)
        waiting = caps.not_adopted(cells) if found is None else []
    except Exception as error:
        if not engine.is_unreachable(error):
            raise
        LOG.warning('It could not be looked up whether a Nova was taken over: %s', error)
        return
    if found is not None and found.state is AdoptionState.BACK:
        raise NovaActs(
            reason="This cloud was given back to Nova ('kilonova-manage adopt back'), which acts on its servers again: "
            'Kilonova does not start. To take it over once more, make new databases and copy again.'
        )
    if waiting:
        raise NovaActs(
            reason="These databases were copied from a Nova, and the takeover has not begun: stop Nova's controllers, "
            "then run 'kilonova-manage adopt copy --last' and 'kilonova-manage adopt begin'."
        )
    running = _running(conf)
    if running:
        raise NovaActs(reason=f'The Nova that was taken over still runs: {"; ".join(running)}. Stop it first.')


def log_running_nova(conf: cfg.ConfigOpts) -> None:
    """Log an error that names the conductors and schedulers of the Nova that was taken over, if any of them report."""
    running = _running(conf)
    if running:
        LOG.error(
            'The Nova that was taken over runs again: %s. Stop it at once: it acts on the same servers',
            '; '.join(running),
        )


def _running(conf: cfg.ConfigOpts) -> list[str]:
    """Return a text for each conductor and scheduler of Nova that reports, or an empty list if no files are named.

    Log a warning if Nova's databases can't be read.
    """
    if not conf.adoption.nova_config:
        return []
    # Only clouds that were taken over need these modules.
    from kilonova.adopt import cloud, copy

    try:
        with cloud.opened([Path(name) for name in conf.adoption.nova_config], options.new) as nova:
            return copy.running(nova)
    except (errors.Invalid, errors.Unavailable) as error:
        LOG.warning('It could not be looked up whether the Nova that was taken over runs: %s', error)
        return []
