"""The periodic clean-up of a host: which images it removes from the cache, and of whom it deletes guests and files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.compute.leftovers import Leftovers


@pytest.mark.parametrize(('removes', 'age'), [(True, 86400), (False, None)])
def test_images_that_nobody_uses_are_removed_at_the_age_of_the_option_unless_that_is_off(
    removes: bool, age: int | None
) -> None:
    asked: list[float | None] = []
    options = SimpleNamespace(remove_unused_base_images=removes, remove_unused_original_minimum_age_seconds=86400)
    host: Any = SimpleNamespace(
        conf=SimpleNamespace(image_cache=options),
        driver=SimpleNamespace(disks=SimpleNamespace(clean_image_cache=asked.append)),
    )
    Leftovers(host, lambda: 1 / 0).clean_image_cache()
    assert asked == [age]
