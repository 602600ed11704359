"""What a token opens, asked of the cells' databases and of the server's host.

    access = authority.find(token)          # None: nothing (any more)
    authority.is_there(access)              # whether the console still listens there
    authority.take(access)                  # the token opens nothing else; False: somebody was faster

All of it blocks: proxies ask in threads.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from oslo_log import log as logging

from kilonova.context import RequestContext, get_admin_context
from kilonova.db.engine import Database, is_unreachable
from kilonova.db.queries import console_tokens, instances
from kilonova.db.queries.cells import Cells
from kilonova.errors import Unanswered
from kilonova.objects import Instance

LOG = logging.getLogger(__name__)


class Hosts(Protocol):
    """Of ``rpc.compute.Compute``."""

    def validate_console_port(self, ctxt: RequestContext, *, server: str, instance: Instance, console_type: str,
                              target: str) -> bool:
        """See ``compute.ops.consoles``."""


@dataclass(frozen=True)
class Access:
    """A console behind a token: it listens at ``host``, ``port``; ``base_url``: the address that users get;
    ``seconds``: how long the token was still good."""

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
    """``cells``: where tokens are looked for; ``hosts``: a client of the computes."""

    def __init__(self, cells: Cells, hosts: Hosts, ctxt: Callable[[], RequestContext] = get_admin_context) -> None:
        self._cells, self._hosts, self._ctxt = cells, hosts, ctxt

    def find(self, token: str) -> Access | None:
        """One statement a cell. Unanswered: it is in none of the cells that answer, and there are others."""
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
                return Access(token, cell, row['console_type'], row['instance_uuid'], row['compute_host'], row['host'],
                              row['port'], row['access_url_base'] or '', float(row['seconds']))
        if silent:
            raise Unanswered(who=f'Cell {", ".join(silent)}', reason='its database is silent')
        return None

    def is_there(self, access: Access) -> bool:
        """Whether the server's console is where the token says. Unanswered: its host says nothing."""
        ctxt = self._ctxt()
        with access.cell.read() as conn:
            row = instances.get(conn, access.instance_uuid)
        if row is None or row['host'] != access.compute_host:
            return False
        return bool(self._hosts.validate_console_port(
            ctxt, server=access.compute_host, instance=Instance.from_row(ctxt, *instances.split(row)),
            console_type=access.console_type, target=f'{access.host}:{access.port}'))

    def take(self, access: Access) -> bool:
        """Use the token up; False when it is already, or its time is over."""
        return console_tokens.take(access.cell, access.token)
