"""What of the databases nobody else may read: files, credentials of cells, values in the text of errors."""

from __future__ import annotations

import os
import pathlib

import pytest
import sqlalchemy as sa

from kilonova.db import engine, migration
from kilonova.db.models.cell import Service
from kilonova.db.queries.cells import CellRecord, mask_password

URL = 'rabbit://user:secret@host/'


@pytest.fixture
def fresh(tmp_path: pathlib.Path):
    """A database whose file isn't there yet."""
    made = engine.Database(f'sqlite:///{tmp_path}/fresh.sqlite', 'main')
    yield made
    made.dispose()


def test_sqlite_files_are_their_owners_alone(fresh, tmp_path):
    """SQLite's database files, with its -wal and -shm files, have mode 0600."""
    with fresh.read() as connection:
        connection.execute(sa.text('SELECT 1'))
    assert (tmp_path / 'fresh.sqlite').stat().st_mode & 0o777 == 0o600
    migration.sync(fresh, 'cell')
    with fresh.write() as connection:
        connection.execute(sa.insert(Service.__table__).values(host='h', binary='b', topic='t'))
        assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
            'fresh.sqlite': 0o600,
            'fresh.sqlite-wal': 0o600,
            'fresh.sqlite-shm': 0o600,
        }


def test_a_file_that_is_there_keeps_its_mode(fresh, tmp_path):
    """Who shares it with a group made it so."""
    path = tmp_path / 'fresh.sqlite'
    path.touch()
    path.chmod(0o660)
    with fresh.read() as connection:
        connection.execute(sa.text('SELECT 1'))
    assert path.stat().st_mode & 0o777 == 0o660


def test_a_directory_that_is_not_there_is_told_by_sqlite(tmp_path):
    database = engine.Database(f'sqlite:///{tmp_path}/none/fresh.sqlite', 'main')
    with pytest.raises(sa.exc.OperationalError, match='unable to open database file'), database.read():
        pass
    assert os.listdir(tmp_path) == []


def test_texts_of_errors_hold_no_values(fresh):
    """They end in logs and faults."""
    migration.sync(fresh, 'cell')
    with pytest.raises(sa.exc.DBAPIError) as caught, fresh.write() as connection:
        connection.execute(sa.insert(Service.__table__).values(host=URL, binary=object(), topic='t'))
    assert 'INSERT INTO services' in str(caught.value) and 'secret' not in str(caught.value)


def test_a_cells_text_holds_no_urls():
    assert 'secret' not in repr(CellRecord(1, 'u', 'cell1', URL, 'mysql://u:secret@h/db', False))


@pytest.mark.parametrize(
    ('url', 'shown'),
    [
        ('mysql+pymysql://u:secret@h:3306/db?charset=utf8', 'mysql+pymysql://u:****@h:3306/db?charset=utf8'),
        ('rabbit://u:secret@h1:5672,u2:secret2@h2/v', 'rabbit://u:****@h1:5672,u2:****@h2/v'),
        ('rabbit://h1:5672,u2:secret@h2/', 'rabbit://h1:5672,u2:****@h2/'),
        ('rabbit://u:secret@h1:5672,h2:5672/', 'rabbit://u:****@h1:5672,h2:5672/'),
        ('rabbit://:secret@h/', 'rabbit://:****@h/'),
        # Not quoted as they should be, and taken all the same.
        ('mysql://u:sec/ret:x@h/db', 'mysql://u:****@h/db'),
        ('mysql://u:sec@ret@h/db', 'mysql://u:****@h/db'),
        ('mysql://u:sec,ret@h/db', 'mysql://u:****@h/db'),
        ('mysql://u:sec?ret@h/db', 'mysql://u:****@h/db'),
        (
            'postgresql://h/db?user=u&password=secret&sslmode=require',
            'postgresql://h/db?user=u&password=****&sslmode=require',
        ),
        (
            '{scheme}://{username}:{password}@{hostname}/{path}?{query}',
            '{scheme}://{username}:****@{hostname}/{path}?{query}',
        ),
        ('mysql://u@h/db', 'mysql://u@h/db'),
        ('sqlite:////x.db', 'sqlite:////x.db'),
        ('none:///', 'none:///'),
        ('rabbit://h1:5672,h2:5672/', 'rabbit://h1:5672,h2:5672/'),
        (None, ''),
    ],
)
def test_passwords_of_urls_are_masked(url, shown):
    """``cell_v2 list_cells``."""
    assert mask_password(url) == shown
