"""Which functions of ours an operation runs through, and how deep their stack is.

tracer = Tracer(ROOT / 'kilonova')
with tracer:                        # before the threads are made that will work
    with tracer.record() as found:
        operation()
found.files, found.functions, found.deepest
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# Where a message goes from one daemon to another, in production another process, and where its answer is read, which
# oslo.messaging does there.
_BORDERS = frozenset(('DirectTransport._deliver', 'DirectTransport._read_reply'))
# What a conductor does from time to time, and what the test asks while it waits for an operation's end.
_BESIDE = frozenset(('Runner._renew_forever', 'Runner._sweep_forever', 'Runner._look_after_databases', 'Runner.idle'))


@dataclass
class Found:
    """``functions``: (file, name with its class); ``deepest``: frames of ours in one stack, and which."""

    functions: set[tuple[str, str]] = field(default_factory=set)
    deepest: list[str] = field(default_factory=list)

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}


class Tracer:
    """Threads that begin inside the ``with`` are seen, and the one that enters it."""

    def __init__(self, directory: Path) -> None:
        self._prefix = f'{directory}/'
        self._found: Found | None = None

    def __enter__(self) -> Tracer:
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def record(self) -> Iterator[Found]:
        """What runs meanwhile, in all these threads."""
        self._found = found = Found()
        try:
            yield found
        finally:
            self._found = None

    def _look(self, frame: FrameType, event: str, _argument: Any) -> None:
        found = self._found
        if found is None or event != 'call' or not self._is_ours(frame.f_code):
            return
        stack: list[str] = []
        here: FrameType | None = frame
        while here is not None and here.f_code.co_qualname not in _BORDERS:
            # A function that calls itself is one frame.
            if self._is_ours(here.f_code) and (not stack or stack[-1] != here.f_code.co_qualname):
                stack.append(here.f_code.co_qualname)
            here = here.f_back
        if not _BESIDE.isdisjoint(stack):
            return
        found.functions.add((frame.f_code.co_filename.removeprefix(self._prefix), frame.f_code.co_qualname))
        if len(stack) > len(found.deepest):
            found.deepest = stack[::-1]

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._prefix) and code.co_name not in (
            '<module>',
            '<listcomp>',
            '<genexpr>',
            '<dictcomp>',
            '<setcomp>',
            '<lambda>',
        )
