from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.rng import RngConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text

BACKEND = '<backend model="random">/dev/urandom</backend>'


@pytest.mark.parametrize(('asked', 'rng'), [
    ({}, f'<rng model="virtio">{BACKEND}</rng>'),
    ({'extra_specs': {'hw_rng:rate_bytes': '10', 'hw_rng:rate_period': '1000'}},
     f'<rng model="virtio"><rate period="1000" bytes="10"/>{BACKEND}</rng>'),
    ({'extra_specs': {'hw_rng:allowed': 'False'}}, ''),
    ({'settings': {'rng_source': None}}, ''), ({'settings': {'virt_type': 'lxc'}}, '')])
def test_rng(configure: Configure, asked: dict[str, Any], rng: str) -> None:
    assert text(configure(RngConfigurator(), **asked).find('devices/rng')) == rng
