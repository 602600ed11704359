"""The disks of fake guests, and images of them."""
from __future__ import annotations

import io

from kilonova import objects
from kilonova.virt.fakes.state import Part, scripted
from kilonova.virt.parts.disks import Check, ImageMeta


class FakeDisks(Part):
    """``parts.disks.Disks``."""

    def list_directories(self) -> list[str]:
        return sorted(self.fake.directories)

    @scripted
    def clean_image_cache(self, min_age: float | None) -> list[str]:
        """Nothing is cached."""
        return []

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Nothing is read from it."""


class FakeSnapshots(Part):
    """``parts.disks.Snapshots``."""

    @scripted
    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        if self.fake.image_client is None or self.fake.image_client.get(image_id)['status'] == 'active':
            return
        check()
        content = self.fake.copies.setdefault(image_id, self.fake.disk(instance).content)
        copied()
        self.fake.image_client.upload(image_id, io.BytesIO(content.encode()), check)
        del self.fake.copies[image_id]

    @scripted
    def forget_snapshot(self, instance: objects.Instance, image_id: str) -> None:
        self.fake.copies.pop(image_id, None)
