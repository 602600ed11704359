"""Faults put back: each module replaces functions of Kilonova by ones that are wrong, for the simulator to find.

    python -m tests.simulation --fault forgotten_key --seeds 1-200

A module has ``install()``, which patches, and says in its docstring what is wrong and what the simulator should see.
"""

from __future__ import annotations

import inspect
from typing import Any


class Gone(Exception):
    """What a fault replaces isn't there any more, or takes other arguments: the fault would prove nothing."""


def replace(owner: Any, name: str, new: Any) -> Any:
    """Put ``new`` in the place of a function (or a constant) of a module or class; returns what was there."""
    try:
        old = inspect.getattr_static(owner, name)
    except AttributeError:
        raise Gone(f'{owner.__name__} has no {name} any more') from None
    old = getattr(old, '__func__', old)
    given = getattr(new, '__func__', new)
    if callable(old) != callable(given):
        raise Gone(f'{owner.__name__}.{name} is {old!r} by now')
    if callable(old) and _parameters(old) != _parameters(given):
        raise Gone(
            f'{owner.__name__}.{name} takes {", ".join(_parameters(old))} by now, not {", ".join(_parameters(given))}'
        )
    setattr(owner, name, new)
    return old


def _parameters(function: Any) -> list[str]:
    found = inspect.signature(function).parameters.values()
    return [f'{one.name} ({one.kind.description}{"" if one.default is one.empty else ", optional"})' for one in found]
