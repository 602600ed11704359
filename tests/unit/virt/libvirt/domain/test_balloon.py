from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.balloon import BalloonConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text


@pytest.mark.parametrize(('settings', 'balloon'), [
    ({}, '<memballoon model="virtio" autodeflate="on" freePageReporting="on"><stats period="10"/></memballoon>'),
    ({'memory_stats_period': 0}, '<memballoon model="none"/>'), ({'virt_type': 'lxc'}, '')])
def test_balloon(configure: Configure, settings: dict[str, Any], balloon: str) -> None:
    assert text(configure(BalloonConfigurator(), settings=settings).find('devices/memballoon')) == balloon
