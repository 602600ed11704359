"""Sets of CPU numbers as people write them.

    parse('0-3,^2,7') == {0, 1, 3, 7}
    parse('^0', among={0, 1, 2}) == {1, 2}      # only exceptions: all but those
    text({0, 1, 2, 7}) == '0-2,7'
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Set

_PART = re.compile(r'(?P<not>\^)?\s*(?P<first>\d{1,9})(\s*-\s*(?P<last>\d{1,9}))?')
# No machine and no guest has more CPUs: numbers are less than it, and all ranges of a list together hold no more than
# twice of it. A list beyond that is a slip or an attack, and must not fill the memory.
MOST = 1 << 16


def parse(spec: str, among: Set[int] = frozenset()) -> set[int]:
    """The numbers of a list of numbers and ranges, of which ^ takes some away. ValueError: it is no such list.

    ``among``: of which those are taken away that a list of exceptions alone names.
    """
    take: set[int] = set()
    drop: set[int] = set()
    named = 0
    for part in filter(None, (one.strip() for one in spec.split(','))):
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(f"'{part}' is neither a number nor a range of numbers")
        first, last = int(found['first']), int(found['last'] or found['first'])
        if last < first or last >= MOST:
            raise ValueError(f"'{part}' is no range of CPUs")
        named += last - first + 1
        if named > 2 * MOST:
            raise ValueError('too many CPUs are named')
        (drop if found['not'] else take).update(range(first, last + 1))
    return (take or set(among)) - drop


def text(cpus: Iterable[int]) -> str:
    """Numbers and ranges, in order."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ','.join(str(first) if first == last else f'{first}-{last}' for first, last in ranges)
