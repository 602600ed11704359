"""Volumes of the volume service: this driver has none yet, and says so."""
from __future__ import annotations

from typing import Any, NoReturn

from kilonova import objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt import driver


class Volumes:
    """``driver.Volumes``. ``host``: this one's name."""

    def __init__(self, host: str) -> None:
        self._host = host

    def connector(self) -> dict[str, Any]:
        self._refuse('any')

    def names(self, instance: objects.Instance, image_meta: driver.ImageMeta) -> list[str]:
        self._refuse('any')

    def attach(self, instance: objects.Instance, image_meta: driver.ImageMeta, volume: AttachedVolume) -> None:
        self._refuse(volume.volume_id)

    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: driver.Check) -> None:
        """There is none."""

    def disconnect(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """There is none."""

    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """There is none."""

    def _refuse(self, volume: str) -> NoReturn:
        raise driver.VolumeUnsupported(volume=volume, host=self._host, reason='its driver does not have volumes')
