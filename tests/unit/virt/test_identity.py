"""Lasting ids of hosts and storage."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

from kilonova.virt import identity


def test_node_uuid_lasts(tmp_path: Path) -> None:
    first = identity.node_uuid(str(tmp_path / 'state'))
    assert str(uuid.UUID(first)) == first == identity.node_uuid(str(tmp_path / 'state'))
    assert (tmp_path / 'state' / 'compute_id').read_text().strip() == first
    assert first != identity.node_uuid(str(tmp_path / 'other'))


def test_node_uuid_takes_what_an_operator_wrote(tmp_path: Path) -> None:
    (tmp_path / 'compute_id').write_text('3f7d9b36-2d7c-4ec0-a0a7-6d7fd1c9c7ce\n')
    assert identity.node_uuid(str(tmp_path)) == '3f7d9b36-2d7c-4ec0-a0a7-6d7fd1c9c7ce'


def test_an_empty_file_is_filled(tmp_path: Path) -> None:
    (tmp_path / 'compute_id').write_text('')
    assert uuid.UUID(identity.node_uuid(str(tmp_path)))


def test_many_who_ask_first_get_one_answer(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(identity.storage_id(str(tmp_path), create=True)))
        for _number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ['.storage_id']


def test_storage_that_is_not_there_has_no_id(tmp_path: Path) -> None:
    assert identity.storage_id(str(tmp_path / 'nowhere')) == ''


def test_this_machine_has_a_boot() -> None:
    assert uuid.UUID(identity.boot_id())
