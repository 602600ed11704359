"""What holds for all unit tests: none leaves the logging of the process otherwise than it was, none fails for want of
time on a busy machine."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Iterator

import hypothesis
import pytest

from kilonova.db import engine, migration
from tests.fixtures import shares

SCHEMAS: tuple[migration.Schema, ...] = ('api', 'cell')
# 200 ms an example otherwise.
hypothesis.settings.register_profile('kilonova', deadline=None)
hypothesis.settings.load_profile('kilonova')


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shares.keep_share(config, items)


@pytest.fixture(scope='session')
def migrated(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where api.sqlite and cell.sqlite are: databases with all tables and no rows, to be copied. Each migration takes a
    quarter of a second."""
    directory = tmp_path_factory.mktemp('migrated')
    for schema in SCHEMAS:
        database = engine.Database(f'sqlite:///{directory}/{schema}.sqlite', schema)
        migration.sync(database, schema)
        database.dispose()
    return directory


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Daemons and commands set up logging when they start; later tests read the log."""
    root = logging.getLogger()
    before, level, off = list(root.handlers), root.level, logging.root.manager.disable
    yield
    # Setting a level, even the same one, makes all loggers forget what they know.
    if logging.root.manager.disable != off:
        logging.disable(off)
    if root.level != level:
        root.setLevel(level)
    for handler in [one for one in root.handlers if one not in before]:
        root.removeHandler(handler)
    for handler in [one for one in before if one not in root.handlers]:
        root.addHandler(handler)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition('.')[0] == 'kilonova' and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            if logger.level != logging.NOTSET:
                logger.setLevel(logging.NOTSET)
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
