"""Keystone's key repositories, made without Keystone."""

from __future__ import annotations

from pathlib import Path

from cryptography.fernet import Fernet

from tools.cloud import databases


def test_a_repository_holds_a_staged_and_a_primary_key_and_keeps_them(tmp_path: Path) -> None:
    repository = tmp_path / 'fernet-keys'
    databases.make_keys(repository)
    keys = {path.name: path.read_text() for path in repository.iterdir()}
    assert sorted(keys) == ['0', '1'] and keys['0'] != keys['1']
    for key in keys.values():
        assert Fernet(key).decrypt(Fernet(key.encode()).encrypt(b'token')) == b'token'
    assert repository.stat().st_mode & 0o777 == 0o700
    assert {(repository / name).stat().st_mode & 0o777 for name in keys} == {0o600}
    databases.make_keys(repository)
    assert {path.name: path.read_text() for path in repository.iterdir()} == keys
