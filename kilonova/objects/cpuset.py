"""Parse and format sets of CPU numbers, as they are written in options and properties.

Example:
    parse('0-3,^2,7') == {0, 1, 3, 7}
    parse('^0', among={0, 1, 2}) == {1, 2}      # only exclusions: ``among`` without the excluded numbers
    text({0, 1, 2, 7}) == '0-2,7'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

_PART = re.compile(r'(?P<not>\^)?\s*(?P<first>\d{1,9})(\s*-\s*(?P<last>\d{1,9}))?')
# CPU numbers must be lower than this limit. The ranges of a list may cover at most twice as many numbers in total.
MOST = 1 << 16


def parse(spec: str, among: Set[int] = frozenset()) -> set[int]:
    """Return the numbers of a list such as '0-3,^2': numbers and ranges, where elements that begin with ^ are excluded.

    If all elements of the list are exclusions, the result is ``among`` without the excluded numbers. Raises ValueError
    if the text is malformed.
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
            raise ValueError(f"'{part}' is not a range of CPU numbers from 0 to {MOST - 1}")
        named += last - first + 1
        if named > 2 * MOST:
            raise ValueError(f'the list has more than {2 * MOST} CPU numbers')
        (drop if found['not'] else take).update(range(first, last + 1))
    return (take or set(among)) - drop


def text(cpus: Iterable[int]) -> str:
    """Return the numbers as a sorted list of numbers and ranges, such as '0-2,7'."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ','.join(str(first) if first == last else f'{first}-{last}' for first, last in ranges)
