"""Make a failing story small: fewer troubles, fewer acts, as long as the same kind of thing goes wrong.

small = shrink(story, lambda story: run_in_a_child(story).wrong, limit=120)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.story import Story

_DETAIL = re.compile(r's\d+|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d|[0-9a-f]{8}-[0-9a-f-]+|gpu\d+|\d+')


def kind_of(wrong: str) -> str:
    """What went wrong without names and numbers."""
    return _DETAIL.sub('#', wrong)[:60]


def shrink(story: Story, try_out: Callable[[Story], str | None], limit: int = 150) -> Story:
    """``try_out`` runs a story; at most ``limit`` times."""
    wanted = try_out(story)
    if wanted is None:
        return story
    kind, left = kind_of(wanted), [limit]

    def fails(candidate: Story) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        found = try_out(candidate)
        return found is not None and kind_of(found) == kind

    before = None
    while before != story and left[0] > 0:
        before = story
        parts = [('t', one) for one in story.troubles] + [('a', one) for one in story.acts]
        parts = _fewer(parts, lambda some: fails(_of(story, some)))  # noqa: B023 - called at once
        story = _of(story, parts)
    return story


def _of(story: Story, parts: Sequence[tuple[str, Any]]) -> Story:
    return story.with_only([one for kind, one in parts if kind == 'a'], [one for kind, one in parts if kind == 't'])


def _fewer(parts: list[tuple[str, Any]], fails: Callable[[list[tuple[str, Any]]], bool]) -> list[tuple[str, Any]]:
    """Leave out runs of parts, shorter and shorter."""
    size = max(1, len(parts) // 2)
    while parts:
        position = 0
        while position < len(parts):
            fewer = parts[:position] + parts[position + size :]
            if fails(fewer):
                parts = fewer
            else:
                position += size
        if size == 1:
            break
        size //= 2
    return parts
