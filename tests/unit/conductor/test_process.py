"""Whether the holder of a lease is certainly dead: never when it lives, or when nobody here can tell."""

from __future__ import annotations

import os
import pathlib
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


# --- what the system says, as files ----------------------------------------------------------------------------------
class System:
    """A /proc of files; ``kill`` raises what a signal to the process comes to."""

    def __init__(self, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.kill: Exception | None = None
        (path / 'sys/kernel/random').mkdir(parents=True)
        (path / 'sys/kernel/random/boot_id').write_text('b-1\n')
        (path / 'self/ns').mkdir(parents=True)
        (path / 'self/ns/pid').symlink_to('pid:[4026531836]')
        monkeypatch.setattr(process, '_PROC', path)
        monkeypatch.setattr(os, 'kill', self._kill)

    def _kill(self, pid: int, signal: int) -> None:
        assert (pid, signal) == (17, 0)
        if self.kill is not None:
            raise self.kill

    def stat(self, state: str, start: int, task: int | None = None) -> None:
        """Of process 17, or of a thread of it."""
        place = self.path / ('17' if task is None else f'17/task/{task}')
        place.mkdir(parents=True, exist_ok=True)
        # The name in parentheses may hold anything; the start is the twentieth behind it.
        (place / 'stat').write_bytes(b'17 (odd\xff) name) ' + f'{state} {"1 " * 18}{start} 99'.encode())


@pytest.fixture
def system(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> System:
    return System(tmp_path, monkeypatch)


TEXT = 'ctl1 boot=b-1 space=4026531836 pid=17 start=500'


def test_a_description(system: System) -> None:
    system.stat('S', 500)
    assert process.describe(HOST, 17) == TEXT
    long = 'h' * 250
    assert process.describe(long, 17) == long


@pytest.mark.parametrize('missing', ['sys/kernel/random/boot_id', 'self/ns/pid', '17/stat'])
def test_a_description_that_is_not_whole(system: System, missing: str) -> None:
    system.stat('S', 500)
    (system.path / missing).unlink()
    assert process.describe(HOST, 17) == HOST
    assert process.is_dead(TEXT, HOST) is False


@pytest.mark.parametrize(
    ('state', 'start', 'dead'),
    [('S', 500, False), ('R', 500, False), ('S', 501, True), ('Z', 500, True), ('X', 500, True)],
)
def test_who_is_dead(system: System, state: str, start: int, dead: bool) -> None:
    system.stat(state, start)
    (system.path / '17/task').mkdir()
    assert process.is_dead(TEXT, HOST) is dead


@pytest.mark.parametrize(('error', 'dead'), [(ProcessLookupError(), True), (PermissionError(), False)])
def test_a_process_that_can_not_be_signalled(system: System, error: Exception, dead: bool) -> None:
    """Gone, or of another user: then it goes by what can be read of it."""
    system.stat('S', 500)
    system.kill = error
    assert process.is_dead(TEXT, HOST) is dead
    if not dead:
        system.stat('S', 501)
        assert process.is_dead(TEXT, HOST) is True


@pytest.mark.parametrize(('threads', 'dead'), [([], True), (['Z'], True), (['Z', 'X'], True), (['Z', 'S'], False)])
def test_a_process_whose_first_thread_ended(system: System, threads: list[str], dead: bool) -> None:
    """It works on in others."""
    system.stat('Z', 500)
    (system.path / '17/task').mkdir()
    for number, state in enumerate(threads):
        system.stat(state, 500, number)
    # One that ended while it was looked at.
    (system.path / '17/task/99').mkdir()
    assert process.is_dead(TEXT, HOST) is dead


def test_threads_that_can_not_be_read(system: System) -> None:
    system.stat('Z', 500)
    assert process.is_dead(TEXT, HOST) is False
