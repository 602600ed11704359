from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.clock import ClockConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text

PIT_RTC = '<timer name="pit" tickpolicy="delay"/><timer name="rtc" tickpolicy="catchup"/>'
NO_HPET = '<timer name="hpet" present="no"/>'


@pytest.mark.parametrize(('asked', 'clock'), [
    ({}, f'<clock offset="utc">{PIT_RTC}<timer name="hpet" present="no"/></clock>'),
    ({'properties': {'hw_time_hpet': True}},
     f'<clock offset="utc">{PIT_RTC}<timer name="hpet" present="yes"/></clock>'),
    ({'settings': {'arch': 'aarch64'}}, f'<clock offset="utc">{PIT_RTC}</clock>'),
    ({'settings': {'virt_type': 'qemu'}}, '<clock offset="utc"/>'),
    ({'properties': {'os_type': 'windows'}},
     f'<clock offset="localtime">{PIT_RTC}{NO_HPET}<timer name="hypervclock" present="yes"/></clock>')])
def test_clock(configure: Configure, asked: dict[str, Any], clock: str) -> None:
    assert text(configure(ClockConfigurator(), **asked).find('clock')) == clock
