"""Whether the holder of a lease is certainly dead: never when it lives, or when nobody here can tell."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kilonova.conductor import process

HOST = 'ctl1'


@pytest.fixture
def other() -> Iterator[subprocess.Popen]:
    """A process that lives until it is killed."""
    child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.communicate()


def test_this_process_lives() -> None:
    text = process.describe(HOST)
    assert text.startswith(f'{HOST} boot=') and f' pid={os.getpid()} ' in text
    assert process.is_dead(text, HOST) is False


def test_a_process_is_dead_when_it_was_killed_whether_or_not_its_parent_looked(other: subprocess.Popen) -> None:
    text = process.describe(HOST, other.pid)
    assert process.is_dead(text, HOST) is False
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert process.is_dead(text, HOST) is True
    other.wait()
    assert process.is_dead(text, HOST) is True


def test_another_process_may_have_got_its_number(other: subprocess.Popen) -> None:
    text = process.describe(HOST, other.pid)
    start = int(re.search(r'start=(\d+)', text)[1])
    assert process.is_dead(text.replace(f'start={start}', f'start={start - 1}'), HOST) is True


def test_what_cannot_be_told_is_not_dead(other: subprocess.Popen) -> None:
    text = process.describe(HOST, other.pid)
    other.kill()
    other.wait()
    assert process.is_dead(text, HOST) is True
    assert process.is_dead(text, 'ctl2') is False
    assert process.is_dead(re.sub(r'boot=\S+', 'boot=11111111-2222', text), HOST) is False
    assert process.is_dead(re.sub(r'space=\d+', 'space=1', text), HOST) is False
    for odd in (None, '', HOST, 'gone', f'{text} and more'):
        assert process.is_dead(odd, HOST) is False


def test_where_the_system_tells_nothing_only_the_host_is_kept(monkeypatch, tmp_path) -> None:
    text = process.describe(HOST)
    monkeypatch.setattr(process, '_PROC', tmp_path)
    assert process.describe(HOST) == HOST
    assert process.is_dead(text, HOST) is False


def test_it_fits_its_column() -> None:
    assert len(process.describe('h' * 250)) <= 255
