"""Compare the answers of Nova's API, which were recorded, with the answers of Kilonova's API to the same requests.

    mirror = verify.Mirror()
    for answer in answers.read(path):                       # an answer of Nova
        status, body = account.get(answer.path, answer.version)     # the answer of Kilonova
        mirror.add(answer, status, body)
    mirror.kinds(expected=False)                            # ['/servers/ID server.status', …], for the operator

The kind of a difference is the request path with ID for each id, and the name of the value in the JSON body.
``EXPECTED`` lists the kinds that are harmless, with their reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kilonova.adopt.answers import Answer

# Keys that identify the items of a JSON list.
# Items of Nova's list and of Kilonova's list are paired by the first key in KEYS that all items have.
KEYS = (
    'id',
    'uuid',
    'instance_id',
    'volumeId',
    'request_id',
    'zoneName',
    'port_id',
    'tenant_id',
    'host',
    'name',
    'event',
)
# Lists whose order users rely on. Other lists are compared without order.
ORDERED = re.compile(r'/servers(/detail)?(\?.*)?|/os-migrations|/servers/[^/]+/os-instance-actions')
_IDS = re.compile(r'req-[0-9a-f-]{36}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}')
_HOST = re.compile(r'^https?://[^/]+')
_NOTHING = '(nothing)'


class KnownDifference(NamedTuple):
    """A kind of difference between Nova's and Kilonova's answers that is harmless. ``reason`` says why.

    ``path`` and ``member`` are regular expressions for the request path with ID for each id, such as '/servers/ID', and
    for the name of the value in the JSON body, such as 'server.status'.
    """

    path: str
    member: str
    reason: str


EXPECTED: tuple[KnownDifference, ...] = (
    KnownDifference('/os-services', r'services.*', "controllers are Kilonova's own, and heartbeats go on"),
    KnownDifference('/os-availability-zone/detail', r'.*(updated_at|active|available)', 'heartbeats go on'),
    KnownDifference(
        '/os-availability-zone/detail', r'availabilityZoneInfo\[internal\].*', "controllers are Kilonova's own"
    ),
    KnownDifference('/os-hypervisors.*', r'.*uptime', 'it is the time of the answer'),
    KnownDifference(
        '/os-hypervisors.*',
        r'.*(servers|running_vms|current_workload|disk_available_least|state|free_\w+|\w+_used)',
        'hosts report anew, when they have been adopted',
    ),
    KnownDifference('/servers/ID/shares', 'status', 'there are no shares'),
    KnownDifference(
        '/os-simple-tenant-usage.*',
        r'.*(hours|uptime|start|stop|total_\w+_usage)',
        'the usage is that of the time of the answer',
    ),
    KnownDifference('/servers/.*', r'.*host_status', 'heartbeats go on'),
    KnownDifference(
        '/servers/ID/os-instance-actions.*', r'.*message', "a failed action's message has the reason after 'Error'"
    ),
    KnownDifference(
        r'/servers/detail\?.*deleted=1',
        r'servers\[\]\.updated',
        'for a server that never changed, Nova shows the time of the answer',
    ),
)


@dataclass(frozen=True)
class Difference:
    """A value that differs between a recorded answer of Nova and Kilonova's answer.

    ``member`` is the name of the value in the JSON body, such as 'server.status', or 'status' for the HTTP status.
    ``ours`` is Kilonova's value, ``theirs`` is Nova's.
    """

    answer: Answer
    member: str
    ours: Any
    theirs: Any

    @property
    def kind(self) -> str:
        """The request path with ID for each id, and the name of the value, for example '/servers/ID server.status'."""
        return f'{pattern(self.answer.path)} {self.member}'

    @property
    def reason(self) -> str | None:
        """Why the difference is harmless, from ``EXPECTED``, or None if ``EXPECTED`` does not list the difference."""
        path = pattern(self.answer.path)
        for known in EXPECTED:
            if re.fullmatch(known.path, path) and re.fullmatch(known.member, self.member):
                return known.reason
        return None


@dataclass
class Mirror:
    """The result of a comparison: how many answers were compared, and the differences by kind, with their numbers."""

    compared: int = 0
    first: dict[str, Difference] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, answer: Answer, status: int, body: Any) -> None:
        """Compare a recorded answer with the status and the body of Kilonova's."""
        self.compared += 1
        for one in differences(answer, status, body):
            self.first.setdefault(one.kind, one)
            self.numbers[one.kind] = self.numbers.get(one.kind, 0) + 1

    def kinds(self, *, expected: bool) -> list[str]:
        """Return the kinds of differences that are expected, or those that are not, sorted."""
        return sorted(kind for kind, one in self.first.items() if (one.reason is not None) == expected)


def pattern(path: str) -> str:
    """Return a path with ID in the place of each id.

    >>> pattern('/servers/6f70a1b2-c3d4-4e5f-8a9b-0c1d2e3f4a5b/tags') '/servers/ID/tags'
    """
    return _IDS.sub('ID', path)


def differences(answer: Answer, status: int, body: Any) -> Iterator[Difference]:
    """Yield the differences of Kilonova's answer from a recorded one.

    Texts of errors are not compared, because clients do not read them.
    """
    if status != answer.status:
        yield Difference(answer, 'status', status, answer.status)
    elif status < 400:
        for member, ours, theirs in _compare(body, answer.body, '', ORDERED.fullmatch(answer.path) is not None):
            yield Difference(answer, member, ours, theirs)


def _compare(ours: Any, theirs: Any, where: str, ordered: bool) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted({*ours, *theirs}):
            below = f'{where}.{key}' if where else key
            yield from _compare(ours.get(key, _NOTHING), theirs.get(key, _NOTHING), below, ordered)
    elif isinstance(ours, list) and isinstance(theirs, list):
        yield from _compare_lists(ours, theirs, where, ordered)
    elif _plain(ours) != _plain(theirs):
        yield where, ours, theirs


def _plain(value: Any) -> Any:
    """Return a JSON value; if it is a URL, without scheme and host.

    Links in answers name the host of the API that answered, which always differs between Nova and Kilonova.
    """
    return _HOST.sub('', value) if isinstance(value, str) else value


def _compare_lists(
    ours: Sequence[Any], theirs: Sequence[Any], where: str, ordered: bool
) -> Iterator[tuple[str, Any, Any]]:
    key = next((key for key in KEYS if _is_key(key, ours) and _is_key(key, theirs)), None)
    if key is None:
        mine, yours = sorted(map(_plain, ours), key=repr), sorted(map(_plain, theirs), key=repr)
        if len(mine) != len(yours):
            yield f'{where}[]', mine, yours
            return
        for one, other in zip(mine, yours, strict=True):
            yield from _compare(one, other, f'{where}[]', ordered)
        return
    mine_by, theirs_by = ({item[key]: item for item in items} for items in (ours, theirs))
    if ordered and list(mine_by) != list(theirs_by) and mine_by.keys() == theirs_by.keys():
        yield f'{where} order', list(mine_by), list(theirs_by)
    for name in sorted({*mine_by, *theirs_by}, key=str):
        below = f'{where}[{name}]' if key == 'zoneName' else f'{where}[]'
        if name not in mine_by or name not in theirs_by:
            yield below, mine_by.get(name, _NOTHING), theirs_by.get(name, _NOTHING)
        else:
            yield from _compare(mine_by[name], theirs_by[name], below, ordered)


def _is_key(key: str, items: Sequence[Any]) -> bool:
    """Return whether each item is a dict with a value for ``key``, and no two of these values are equal."""
    values = [item.get(key) for item in items if isinstance(item, Mapping)]
    return len(values) == len(items) == len({*map(str, values)}) and None not in values
