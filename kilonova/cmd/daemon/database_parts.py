"""Create the databases, cells, message routing and checks of daemons that have databases.

    databases, cells = database_parts.opened(conf)
    database_parts.await_all(databases, stopping)
    checks = database_parts.checks(databases)

The module ``parts`` creates the objects that all daemons need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from kilonova.cmd.daemon.health import Ask
from kilonova.db import engine, explain
from kilonova.db.engine import Databases
from kilonova.db.queries.cells import CellDatabases
from kilonova.objects.base import Serializer
from kilonova.rpc.routing import RoutedTransport
from kilonova.rpc.transport import OsloTransport

LOG = logging.getLogger(__name__)

# Seconds between two checks whether a database answers.
PAUSE = 2.0


def opened(conf: cfg.ConfigOpts) -> tuple[Databases, CellDatabases]:
    """Return the API and main databases, and the databases of the cells.

    ``parts.transport`` must have been called before, because it registers the option transport_url.
    """
    explain.check_urls(conf)
    made = engine.configure(conf)
    return made, CellDatabases(made, conf.transport_url)


def await_all(databases: Databases, stopping: threading.Event) -> None:
    """Wait until the API and main databases answer, or until ``stopping`` is set. The wait is logged once."""
    told = False
    for database in (databases.api(), databases.main()):
        while not stopping.is_set():
            try:
                with database.read() as connection:
                    engine.now(connection)
                break
            except Exception as error:
                if not engine.is_unreachable(error):
                    raise
                if not told:
                    LOG.warning(
                        'Not started yet: %s does not answer (%s); retrying',
                        explain.name(database, databases),
                        explain.reason(error),
                    )
                    told = True
                stopping.wait(PAUSE)


def routed(conf: cfg.ConfigOpts, local: OsloTransport, cells: CellDatabases) -> RoutedTransport:
    """Return a transport for messages to all cells.

    A message for a host of a cell that has its own message queue is sent to that queue. All other messages use
    ``local``.
    """
    return RoutedTransport(
        local, conf.transport_url, cells.transport_url_of, lambda url: OsloTransport(conf, url, entities=Serializer())
    )


def checks(databases: Databases) -> dict[str, Ask]:
    """Return {name: check}, where a check raises an error if the API database or the main database does not answer.

    Each check reads the database's clock.
    """

    def ask(database: Callable[[], engine.Database]) -> None:
        with database().read() as connection:
            engine.now(connection)

    return {'api_database': lambda: ask(databases.api), 'database': lambda: ask(databases.main)}
