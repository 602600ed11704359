"""What the daemons are put together from: databases, messages, clients, each made from the configuration.

    databases, transport = parts.databases(conf), parts.transport(conf)
    compute = parts.client(Compute, transport, options.cap(conf, 'compute'))
"""
from __future__ import annotations

import threading

from oslo_config import cfg
from oslo_log import log as logging

from kilonova.clients import session
from kilonova.clients.image import ImageClient
from kilonova.clients.placement import PlacementClient
from kilonova.db import engine
from kilonova.db.engine import Databases
from kilonova.db.queries.cells import Cells
from kilonova.objects.base import Serializer
from kilonova.rpc.transport import OsloTransport

LOG = logging.getLogger(__name__)

# Seconds between two looks whether a database answers.
PAUSE = 2.0


def transport(conf: cfg.ConfigOpts) -> OsloTransport:
    """The message queue of [DEFAULT]transport_url, with objects on it."""
    return OsloTransport(conf, entities=Serializer())


def databases(conf: cfg.ConfigOpts) -> tuple[Databases, Cells]:
    """The API and main databases, and those of the cells. Needs ``transport`` to have been made."""
    made = engine.configure(conf)
    return made, Cells(made, conf.transport_url)


def await_databases(databases: Databases, stopping: threading.Event) -> None:
    """Wait until both databases answer, or until ``stopping``; it is told once that they don't."""
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
                    LOG.warning('Not started yet: %s does not answer (%s); asking again', database.name, error)
                    told = True
                stopping.wait(PAUSE)


def placement(conf: cfg.ConfigOpts) -> PlacementClient:
    """The client of [placement]."""
    return PlacementClient(session.adapter(conf, 'placement'))


def images(conf: cfg.ConfigOpts) -> ImageClient:
    """The client of [glance], with the service's own credentials where the section has none."""
    return ImageClient(session.adapter(conf, 'glance', fallback='keystone_authtoken'), conf.glance.num_retries)
