"""Check console tokens: read them from the databases of the cells, and ask the server's host about the address.

    access = authority.find(token)          # None if the token is unknown, expired or used
    authority.is_there(access)              # whether the server's console is still at the address of the token
    authority.take(access)                  # mark the token as used; False if another connection has used it first

All methods block, so the proxies call them in threads.
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
    """The method of the compute services' RPC client (``rpc.compute.Compute``) that ``Authority`` calls."""

    def validate_console_port(
        self, ctxt: RequestContext, *, server: str, instance: Instance, console_type: str, target: str
    ) -> bool:
        """Return whether ``target`` ('address:port') is the current address of the guest's console."""


@dataclass(frozen=True)
class Access:
    """The console to which a token gives access.

    ``host`` and ``port`` are the address at which the console listens. ``base_url`` is the proxy's URL, which users
    get. ``seconds`` is the number of seconds for which the token was still valid when it was read.
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
    """Checks console tokens and marks them as used.

    ``cells`` are the databases that store the tokens, and ``hosts`` is an RPC client of the compute services.
    """

    def __init__(
        self, cells: CellDatabases, hosts: ConsoleHosts, ctxt: Callable[[], RequestContext] = get_admin_context
    ) -> None:
        self._cells, self._hosts, self._ctxt = cells, hosts, ctxt

    def find(self, token: str) -> Access | None:
        """Return the console of a token, or None if the token is unknown, expired or used.

        Runs one SQL statement in each cell until the token is found. Raises Unanswered if the token is not found, but
        may be in a cell that does not answer.
        """
        silent: list[str] = []
        for cell in self._cells.databases():
            try:
                with cell.read() as conn:
                    row = console_tokens.find(conn, token)
            except Exception as error:
                if not is_unreachable(error):
                    raise
                LOG.warning('Cell %s does not answer, so its tokens cannot be checked: %s', cell.name, error)
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
        """Mark the token as used. Return False if the token is already used or has expired."""
        return console_tokens.take(access.cell, access.token)
