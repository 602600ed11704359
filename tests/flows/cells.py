"""Tables of cells: what each operation comes to, as a page of the documentation says it and a test tries it.

TABLE = read_table(PAGE, ('works', 'a step fails'), lambda name: ['port', 'volume'])
TABLE['boot', 'port']['works']      # {'ACTIVE: a host'}
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kilonova.conductor.work import Work
from kilonova.errors import KilonovaError, Unanswered
from tests.fixtures.cloud import Cloud
from tests.flows.cases import Case, disturb

# make test-cells: each cell in each way, at each place.
FULL = bool(os.environ.get('KILONOVA_FULL'))
DOCS = Path(__file__).parents[2] / 'docs' / 'admin'
# Of an aggregate, not of a server.
WITHOUT_SERVER = ('mirror',)
# What starts a server that has no guest on its host.
STARTS: dict[str, tuple[Any, ...]] = {
    'SHUTOFF': ('os-start',),
    'ERROR': ('reboot', {'type': 'HARD'}),
    'SHELVED': ('unshelve',),
    'SUSPENDED': ('resume',),
    'RESCUE': ('unrescue',),
}


def read_table(
    page: str, ways: Sequence[str], kinds_of: Callable[[str], Sequence[str]]
) -> dict[tuple[str, str], dict[str, set[str]]]:
    """{(operation, kind): {way: what it comes to}}, from a page; 'all' stands for each kind of the operation."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for line in (DOCS / page).read_text(encoding='utf-8').splitlines():
        match = re.fullmatch(r'\| `([\w-]+)` \| ([\w -]+) \|(.*)\|', line)
        if match is None or match[3].count('|') != len(ways) - 1:
            continue
        cells = [set(cell.strip().split(' or ')) for cell in match[3].split('|')]
        for kind in kinds_of(match[1]) if match[2] == 'all' else (match[2],):
            assert (match[1], kind) not in found, f'{match[1]}, {kind}: two rows'
            found[match[1], kind] = dict(zip(ways, cells, strict=True))
    return found


def short(ways: Sequence[str], place: int) -> Sequence[str]:
    """In which ways a cell is tried whose flow asks for nothing of its own kind: the first, and one of the others, by
    the place of the cell in its table; all where everything is tried."""
    first, *others = ways
    return ways if FULL or not others else (first, others[place % len(others)])


class Shared:
    """One cloud for many cases; a case that leaves it unclean gets the next one a new one."""

    def __init__(self, make: Callable[[], Cloud]) -> None:
        self._make = make
        self.made: list[Cloud] = []
        self.cloud: Any = None

    def get(self) -> Any:
        if self.cloud is None:
            self.cloud = self._make()
            self.made.append(self.cloud)
        return self.cloud

    def stop(self) -> None:
        for cloud in self.made:
            cloud.stop()


def has_guest(cloud: Cloud, server: str, status: str) -> bool:
    """Whether the server is on a host with a guest, which is started where the host lost all of them."""
    if status in ('GONE', 'HELD', 'SOFT_DELETED') or (host := cloud.host_of(server)) is None:
        return False
    if not (cloud.directory / host / 'instances' / server / 'libvirt.xml').exists():
        # One that was off gets what it has when it is started.
        assert status in STARTS, status
        cloud.action(server, *STARTS[status])
    return True


def fail(patch: pytest.MonkeyPatch, case: Case, index: int) -> None:
    """A step of an operation fails once, before it does anything."""
    failed: list[str] = []

    def do(real: Any, work: Work) -> Any:
        if failed:
            return real(work)
        failed.append(work.uuid)
        raise KilonovaError('injected failure')

    disturb(patch, case.kind, index, do)


def loses(cloud: Cloud, number: int) -> list[str]:
    """From now on the reply to the ``number``-th question to a host, or of one to the conductor about a server, counted
    from 0, is lost: what was asked is done, and whoever asked hears nothing. The questions up to then."""
    asked: list[str] = []

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        counts = (
            len(asked) <= number
            and kind != 'cast'
            and (topic == 'compute' or method in ('claim_instance', 'save_instance', 'check_key', 'bind_ports'))
        )
        if not counts:
            return deliver()
        asked.append(method)
        mine = len(asked) - 1
        answer = deliver()
        if mine == number:
            raise Unanswered(who=topic, reason='injected silence')
        return answer

    cloud.on_message = on_message
    return asked
