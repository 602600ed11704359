from __future__ import annotations

from kilonova.virt.libvirt.domain.serial import SerialConfigurator
from tests.unit.virt.libvirt.domain.conftest import Configure, text


def test_console_log(configure: Configure) -> None:
    assert text(configure(SerialConfigurator(), console_log='/i/console.log').find('devices')) == (
        '<devices><serial type="pty"><log file="/i/console.log" append="off"/><target port="0"/></serial></devices>')


def test_none(configure: Configure) -> None:
    assert text(configure(SerialConfigurator()).find('devices')) == '<devices/>'
