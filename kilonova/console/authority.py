"""Validate console tokens with the cells' databases and the server's host.

    access = authority.find(token)          # None if the token is unknown, expired or used
    authority.is_there(access)              # whether the console still listens at that address
    authority.take(access)                  # uses the token up; False if another connection was faster

All methods block, so proxies call them in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from oslo_log import log as logging

from kilonova.context import RequestContext, get_admin_context
from kilonova.db.engine import Database, is_unreachable
from kilonova.db.queries import console_tokens, instances
from kilonova.db.queries.cells import CellDatabases
from kilonova.errors import Unanswered
from kilonova.objects import Instance

LOG = logging.getLogger(__name__)


class ConsoleHosts(Protocol):
    """The method of ``rpc.compute.Compute`` that is used here."""

    def validate_console_port(
        self, ctxt: RequestContext, *, server: str, instance: Instance, console_type: str, target: str
    ) -> bool:
        """Return whether ``target`` ('address:port') is the current address of the guest's console."""


@dataclass(frozen=True)
class Access:
    """The console that a token gives access to.

    ``host`` and ``port`` are the address where it listens. ``base_url`` is the address that users get. ``seconds`` is
    how long the token was still valid.
    """

    token: str = field(repr=False)
    cell: Database
    console_type: str
    instance_uuid: str
    compute_host: str
    host: str
    port: int
    base_url: str
    seconds: float


class Authority:
    """A validator of console tokens.

    ``cells`` are the databases with tokens, and ``hosts`` is a client of the computes.
    """

    def __init__(
        self, cells: CellDatabases, hosts: ConsoleHosts, ctxt: Callable[[], RequestContext] = get_admin_context
    ) -> None:
        self._cells, self._hosts, self._ctxt = cells, hosts, ctxt

    def find(self, token: str) -> Access | None:
        """Return the console of a token, or None if there is no such valid token. Runs one SQL statement for each cell.

        Raises Unanswered if no cell that answers has the token and other cells do not answer.
        """
        silent: list[str] = []
        for cell in self._cells.databases():
            try:
                with cell.read() as conn:
                    row = console_tokens.find(conn, token)
            except Exception as error:
                if not is_unreachable(error):
                    raise
                LOG.warning('Cell %s does not answer: %s', cell.name, error)
                silent.append(cell.name)
                continue
            if row is not None:
                return Access(
                    token,
                    cell,
                    row['console_type'],
                    row['instance_uuid'],
                    row['compute_host'],
                    row['host'],
                    row['port'],
                    row['access_url_base'] or '',
                    float(row['seconds']),
                )
        if silent:
            raise Unanswered(who=f'Cell {", ".join(silent)}', reason='its database does not respond')
        return None

    def is_there(self, access: Access) -> bool:
        """Return whether the server's console is at the address that the token names.

        Raises Unanswered if the host does not answer.
        """
        ctxt = self._ctxt()
        with access.cell.read() as conn:
            row = instances.get(conn, access.instance_uuid)
        if row is None or row['host'] != access.compute_host:
            return False
        return bool(
            self._hosts.validate_console_port(
                ctxt,
                server=access.compute_host,
                instance=Instance.from_row(ctxt, *instances.split(row)),
                console_type=access.console_type,
                target=f'{access.host}:{access.port}',
            )
        )

    def take(self, access: Access) -> bool:
        """Use the token up. Return False if it is already used or has expired."""
        return console_tokens.take(access.cell, access.token)
