"""What a story is made of: requests of users and things that go wrong.

Act(time=3.1, server=0, kind='create', argument='one', api='api1')
Trouble(time=9.2, kind='kill', target='conductor1', lasts=30.0, argument=4)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Act:
    """One request of a user about server number ``server``."""

    time: float
    server: int
    kind: str
    argument: str
    api: str
    # Whether the user waits until the server rests before it asks.
    patient: bool = False

    def __str__(self) -> str:
        when = ', when it rests' if self.patient else ''
        return f'{self.time:8.2f}  user: {self.kind} s{self.server} {self.argument} ({self.api}{when})'


@dataclass(frozen=True)
class Trouble:
    """One thing that goes wrong. ``argument`` depends on the kind: see ``trouble.Troubles``."""

    time: float
    kind: str
    target: str
    lasts: float
    argument: Any = None
    # It waits for this line of the trace, and then so many seconds.
    at: str | None = None
    wait: float = 0.0

    def __str__(self) -> str:
        when = f' {self.wait:.2f} s after "{self.at}"' if self.at else ''
        what = f'{self.kind} {self.target} for {self.lasts:.1f} s {self.argument or ""}'
        return f'{self.time:8.2f}  trouble: {what}{when}'
