"""Secrets of new servers: sealed, opened, keys that change, files that may not be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kilonova import sealing
from kilonova.sealing import NoKeys, NotOpened, SealingKeys, ServerSecrets

UUID, OTHER = '11111111-2222-3333-4444-555555555555', '66666666-2222-3333-4444-555555555555'
SECRETS = ServerSecrets('correct horse', [('/etc/motd', 'aGVsbG8=')])


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file of keys."""
    made = str(tmp_path / 'secrets.keys')
    assert sealing.create_file(made)
    return made


def keys_of(path: str) -> list[str]:
    return sealing.read_file(path)


def test_what_is_sealed_comes_back(path: str) -> None:
    """A password and a file that were sealed can be opened, and appear neither in the sealed text nor in a repr."""
    sealed = SealingKeys.read(path).seal(SECRETS, UUID)
    for clear in ('correct', 'horse', 'motd', 'aGVsbG8', UUID):
        assert clear not in sealed
    opened = SealingKeys.read(path).open(sealed, UUID)
    assert opened == SECRETS
    assert SealingKeys.read(path).open(SealingKeys.read(path).seal(ServerSecrets(), UUID), UUID) == ServerSecrets(
        None, []
    )
    assert 'horse' not in repr(opened) and 'aGVsbG8' not in repr(opened)


def test_only_for_its_server(path: str) -> None:
    """A row's text put into another server's row opens nothing."""
    sealed = SealingKeys.read(path).seal(SECRETS, UUID)
    with pytest.raises(NotOpened, match=OTHER):
        SealingKeys.read(path).open(sealed, OTHER)


@pytest.mark.parametrize(
    'damage', [lambda text: text[:-8], lambda text: text.swapcase(), lambda text: 'clear text', lambda text: '']
)
def test_damaged_text_is_refused(path: str, damage) -> None:
    with pytest.raises(NotOpened):
        SealingKeys.read(path).open(damage(SealingKeys.read(path).seal(SECRETS, UUID)), UUID)


def test_another_deployments_key_opens_nothing(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / 'other.keys')
    sealing.create_file(other)
    with pytest.raises(NotOpened, match=r'\[secrets\]key_file of this host has no key .* ' + UUID):
        SealingKeys.read(other).open(SealingKeys.read(path).seal(SECRETS, UUID), UUID)


def test_rotation(path: str) -> None:
    """Copies of a rotated file may arrive in any order: old ones open what new ones seal, and the other way round."""
    before = keys_of(path)
    old, sealed_before = SealingKeys.read(path), SealingKeys.read(path).seal(SECRETS, UUID)
    assert sealing.rotate_file(path) == 3
    after, new = keys_of(path), SealingKeys.read(path)
    assert after[:2] == [before[1], before[0]] and after[2] not in before
    assert new.open(sealed_before, UUID) == SECRETS
    sealed_after = new.seal(SECRETS, UUID)
    assert old.open(sealed_after, UUID) == SECRETS
    # It is the second key that sealed.
    assert SealingKeys([before[1]]).open(sealed_after, UUID) == SECRETS
    with pytest.raises(NotOpened):
        SealingKeys([before[0]]).open(sealed_after, UUID)
    # The next rotation drops the key that hasn't sealed for a whole one.
    assert sealing.rotate_file(path) == 3
    third = keys_of(path)
    assert third[:2] == [after[2], before[1]] and before[0] not in third
    with pytest.raises(NotOpened):
        SealingKeys.read(path).open(sealed_before, UUID)
    assert SealingKeys.read(path).open(sealed_after, UUID) == SECRETS


def test_a_file_of_one_key_gets_its_next_one(path: str) -> None:
    key = keys_of(path)[0]
    Path(path).write_text(f'{key}\n')
    assert sealing.rotate_file(path) == 2
    assert keys_of(path)[0] == key


def test_the_file_is_its_owners_alone(path: str) -> None:
    assert os.stat(path).st_mode & 0o777 == 0o600
    text = Path(path).read_text()
    assert not sealing.create_file(path) and Path(path).read_text() == text
    os.chmod(path, 0o640)
    sealing.rotate_file(path)
    assert os.stat(path).st_mode & 0o777 == 0o640
    assert sorted(os.listdir(os.path.dirname(path))) == ['secrets.keys']


@pytest.mark.skipif(os.getuid() != 0, reason='only root may give files away')
def test_a_rotated_file_keeps_its_owner(path: str) -> None:
    os.chown(path, 12345, 54321)
    sealing.rotate_file(path)
    found = os.stat(path)
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12345, 54321, 0o600)


def test_a_link_stays_a_link(path: str, tmp_path: Path) -> None:
    link = tmp_path / 'link'
    link.symlink_to(path)
    before = keys_of(path)
    sealing.rotate_file(str(link))
    assert link.is_symlink() and keys_of(path)[0] == before[1]


@pytest.mark.parametrize(
    ('text', 'mode', 'words'),
    [
        ('# nothing\n\n', 0o600, 'contains no key'),
        ('short\n', 0o600, 'has a line that is not a key'),
        ('schlüssel\n', 0o600, 'cannot be read'),
        (None, 0o604, r'is accessible to all users \(mode 0604\)'),
    ],
)
def test_files_that_may_not_be_used(path: str, text: str | None, mode: int, words: str) -> None:
    if text is not None:
        Path(path).write_text(text)
    os.chmod(path, mode)
    for use in (SealingKeys.read, sealing.rotate_file):
        with pytest.raises(NoKeys, match=r'\[secrets\]key_file: .*secrets\.keys ' + words) as caught:
            use(path)
        assert not caught.value.missing and 'short' not in str(caught.value)
    assert text is None or Path(path).read_text() == text


def test_no_file_is_told_from_a_bad_one(tmp_path: Path) -> None:
    for path, words in ((str(tmp_path / 'none'), 'does not exist'), ('', r'\[secrets\]key_file is empty')):
        with pytest.raises(NoKeys, match=words) as caught:
            SealingKeys.read(path)
        assert caught.value.missing
