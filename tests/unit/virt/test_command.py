"""Programs that are watched while they work, under both ways of doing several things at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, time
from kilonova import concurrency
concurrency.setup(sys.argv[1])
from kilonova.virt import command
looks = []
command.watched(lambda: looks.append(1), 'sleep', '0.7')
print('looks', len(looks) >= 3)
try:
    command.watched(lambda: None, 'sh', '-c', 'sleep 0.5; yes x | head -c 300000 >&2; echo no space left >&2; exit 3')
except command.CommandFailed as error:
    print('failed', error.message.startswith('sh -c sleep'), error.message.endswith('no space left'))
class Cancelled(Exception):
    pass
began = time.monotonic()
def check():
    if time.monotonic() - began > 0.5:
        raise Cancelled
try:
    command.watched(check, 'sleep', '60')
except Cancelled:
    print('cancelled', time.monotonic() - began < 30)
"""


def test_programs_for_the_superuser_are_found_by_others_too() -> None:
    """An ordinary user's PATH has no sbin."""
    look = "from kilonova.virt import command; print(command.run('mkswap', '--version'))"
    done = subprocess.run(
        [sys.executable, '-c', look],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, 'PATH': '/usr/local/bin:/usr/bin:/bin'},
    )
    assert done.stdout.startswith('mkswap'), done.stderr


@pytest.mark.parametrize('backend', ['eventlet', 'threading'])
def test_a_program_that_takes_long_is_watched(backend: str) -> None:
    """It ends well; it fails with what it said last; its end is asked for."""
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM, backend],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ,
    )
    assert done.stdout.splitlines() == ['looks True', 'failed True True', 'cancelled True'], done.stderr
