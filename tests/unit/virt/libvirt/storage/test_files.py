"""Whole files, removed trees, locks."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from pathlib import Path

from kilonova.virt.libvirt.storage import files


def test_files_are_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / 'x'
    for text in ('first', 'second'):
        files.write_whole(str(path), text)
        assert path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_removing_what_is_not_there(tmp_path: Path) -> None:
    files.remove(str(tmp_path / 'x'))
    assert files.remove_tree(str(tmp_path / 'y')) is False


def test_removing_a_tree_takes_what_a_crash_left_too(tmp_path: Path) -> None:
    for name in ('server', 'server_del'):
        (tmp_path / name / 'sub').mkdir(parents=True)
    assert files.remove_tree(str(tmp_path / 'server')) is True
    assert list(tmp_path.iterdir()) == []


def test_one_thread_at_a_time_has_a_name(tmp_path: Path) -> None:
    locks, inside, most = files.FileLocks(str(tmp_path)), [], []

    def work() -> None:
        with locks.hold('name'):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_another_process_keeps_out(tmp_path: Path) -> None:
    probe = (
        'import fcntl, sys\n'
        'try: fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)\n'
        'except BlockingIOError: sys.exit(3)\n'
    )

    def try_from_outside() -> int:
        return subprocess.run([sys.executable, '-c', probe, str(tmp_path / 'kilonova-name')], check=False).returncode

    with files.FileLocks(str(tmp_path)).hold('name'):
        assert try_from_outside() == 3
    assert try_from_outside() == 0


def test_a_directory_that_is_not_there_has_no_direct_io(tmp_path: Path) -> None:
    assert files.supports_direct_io(str(tmp_path / 'nowhere')) is False
    files.supports_direct_io(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
