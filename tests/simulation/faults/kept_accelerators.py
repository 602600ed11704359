"""Accelerator requests of an attempt that fails stay bound: ``unbind`` does nothing.

The simulator should see requests that are no server's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kilonova.conductor.flows import accelerators, boot
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def unbind(work: Any) -> None:
        pass

    real = replace(accelerators, 'unbind', unbind)
    replace(
        boot.Boot,
        'steps',
        tuple(dataclasses.replace(step, undo=unbind) if step.undo is real else step for step in boot.Boot.steps),
    )
