"""A volume that is gone in Cinder stops its server wherever it goes.

The simulator should see servers that aren't unshelved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.clients.volume import VolumeInvalid, VolumeNotFound
from kilonova.conductor.flows.volume import volumes
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def _attach(
        work: Any, volume: Any, host: str, connector: Mapping[str, Any], device: str, *, is_complete: bool
    ) -> None:
        try:
            real(work, volume, host, connector, device, is_complete=is_complete)
        except VolumeNotFound as error:
            raise VolumeInvalid(detail=str(error)) from error

    real = replace(volumes, '_attach', _attach)
