"""Breaks that change nothing that a test could notice, each with the reason: they aren't chosen.

``tests/unit/test_mutants.py`` holds that each is still a break that would be made.
"""
from __future__ import annotations

from typing import NamedTuple

from tests.mutants.changes import Change


class Equivalent(NamedTuple):
    """``line`` is the first line of what is changed, without the white space around it; ``new`` what ``old`` there
    becomes."""

    path: str
    line: str
    old: str
    new: str
    reason: str

    def matches(self, path: str, change: Change, text: str) -> bool:
        return (path, change.old, change.new) == (self.path, self.old, self.new) and \
            text.splitlines()[change.lines[0] - 1].strip() == self.line


EQUIVALENT: tuple[Equivalent, ...] = ()
