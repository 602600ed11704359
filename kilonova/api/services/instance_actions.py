"""Why an action failed, in one line for its owner, who may not see its events' details.

    explain(backend, server.cell, rows, hidden=True)     # row['message']: 'Error: No valid host was found. …'

Details are written for administrators and may name hosts. What others read has none of their names and addresses.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from kilonova.api.services.backend import Backend
from kilonova.db.queries import actions, cells

FAILED = 'Error'
# Characters, as many as the column has.
LONGEST = 255
_ADDRESS = re.compile(r'(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]+)(?![\w:])')


def explain(backend: Backend, cell: Any, rows: Sequence[dict[str, Any]], hidden: bool) -> None:
    """Give the messages of failed actions their reasons; ``hidden``: without hosts. One statement where one failed,
    two more for those who may not see hosts."""
    failed = [row for row in rows if row['message'] == FAILED]
    if not failed:
        return
    with cell.read() as conn:
        found = actions.reasons(conn, [row['id'] for row in failed])
        names = actions.host_names(conn) if found and hidden else []
    if found and hidden:
        with backend.api_db.read() as conn:
            names += [row['host'] for row in cells.get_hosts(conn)]
    for row in failed:
        if row['id'] in found:
            reason = ' '.join(found[row['id']].split())
            row['message'] = _cut(f'{FAILED}: {without_hosts(reason, names) if hidden else reason}')


def without_hosts(text: str, names: Iterable[str]) -> str:
    """``text`` with placeholders for the names of hosts, and for what looks like an address.

    >>> without_hosts('gpu1 (192.0.2.10) does not answer, gpu10 does', ['gpu1'])
    '<host> (<host>) does not answer, gpu10 does'
    """
    # The longest first: one name may begin another.
    known = '|'.join(map(re.escape, sorted(set(names), key=len, reverse=True)))
    text = _ADDRESS.sub('<host>', text)
    return re.sub(rf'(?<![\w-])(?:{known})(?![\w-])', '<host>', text) if known else text


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f'{text[:LONGEST - 1]}…'
