"""Which commands for devices can be run, and what they said."""

from __future__ import annotations

import shlex
import threading

import pytest

from kilonova import errors
from kilonova.compute.device_health import Program
from kilonova.objects import PciDevice
from tests.unit.compute.cloud import new_conf

GPU = PciDevice(address='0000:81:00.0', dev_type='type-VF')


def program(command: str) -> Program | None:
    conf = new_conf('gpu1')
    conf.set_override('health_check', command, group='devices')
    return Program.of(conf, 'health_check')


@pytest.mark.parametrize('command', ['', '  '])
def test_none(command):
    assert program(command) is None


@pytest.mark.parametrize(
    ('command', 'why'),
    [
        ("sh -c 'x", 'No closing quotation'),
        ('/nonexistent --now', 'program /nonexistent does not exist'),
        ('no-such-program', 'program no-such-program does not exist or is not executable'),
    ],
)
def test_a_command_that_cannot_be_run_ends_the_service_at_its_start(command, why):
    with pytest.raises(errors.Invalid, match=f'health_check = .*: {why}'):
        program(command)


@pytest.mark.parametrize(
    ('script', 'said'),
    [
        ('test "$1 $2" = "0000:81:00.0 vf"', None),
        ('exit 7', 'health_check ended with 7'),
        (
            "printf 'Xid 79:\\n\\tfell off \\033[1mthe bus' >&2; exit 1",
            'health_check ended with 1: Xid 79: fell off [1mthe bus',
        ),
        ('yes no | head -c 9000 >&2; exit 1', 'health_check ended with 1:' + ' no' * 76 + '…'),
    ],
)
def test_what_it_said(script, said):
    """One printable line of at most 255 characters."""
    made = program(f'sh -c {shlex.quote(script)} x')
    assert made is not None and made.failed(GPU, threading.Event()) == said
