"""Disks of fake guests, and images made from them."""

from __future__ import annotations

import io

from kilonova import objects
from kilonova.virt.fakes.state import FakePart, scripted
from kilonova.virt.parts.disks import Check, ImageMeta


class FakeDisks(FakePart):
    """Fake of ``parts.disks.Disks``."""

    def list_directories(self) -> list[str]:
        """Return the names of the servers' directories."""
        return sorted(self.fake.directories)

    @scripted
    def clean_image_cache(self, min_age: float | None) -> list[str]:
        """Return an empty list, because the fake driver caches no images."""
        return []

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Do nothing, because disks of the fake driver have no base image."""


class FakeSnapshots(FakePart):
    """Fake of ``parts.disks.Snapshots``."""

    @scripted
    def snapshot(self, instance: objects.Instance, image_id: str, check: Check, copied: Check) -> None:
        """Copy the root disk's content and upload the copy, unless the image has its data already."""
        if self.fake.image_client is None or self.fake.image_client.get(image_id)['status'] == 'active':
            return
        check()
        content = self.fake.copies.setdefault(image_id, self.fake.disk(instance).content)
        copied()
        self.fake.image_client.upload(image_id, io.BytesIO(content.encode()), check)
        del self.fake.copies[image_id]

    @scripted
    def forget_snapshot(self, instance: objects.Instance, image_id: str) -> None:
        """Delete the copy of the root disk that was made for the image."""
        self.fake.copies.pop(image_id, None)
