"""How many requests the tests of this directory made, by kind; told at the end of the run."""

from __future__ import annotations

import collections

REQUESTS: collections.Counter[str] = collections.Counter()


def lines() -> list[str]:
    """What the terminal says."""
    if not REQUESTS:
        return []
    kinds = ', '.join(f'{kind} {number}' for kind, number in sorted(REQUESTS.items()))
    return [f'requests of the front door: {sum(REQUESTS.values())} ({kinds})']
