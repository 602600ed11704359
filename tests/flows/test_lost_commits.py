"""The transaction is committed, and its caller sees a lost connection: what is repeated finds that it was done."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import exc

from kilonova.db import engine
from tests.flows.cases import CASES, CAST, Subjects, check, in_flow


class LostCommits:
    """The answer of the COMMIT ``number`` is lost; those of requests and flows count, and of hosts that tell a flow."""

    def __init__(self, number: int, requests: bool) -> None:
        self._number, self.seen = number, 0
        self._requests = threading.get_ident() if requests else None
        self._write = engine.Database.write
        self.on = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From now on, while ``on``."""
        write, committed = self._write, self._committed

        @contextlib.contextmanager
        def writes(database: engine.Database) -> Iterator[Any]:
            with write(database) as conn:
                yield conn
            committed()

        patch.setattr(engine.Database, 'write', writes)

    def _committed(self) -> None:
        if self.on and (in_flow() or threading.get_ident() == self._requests):
            self.seen += 1
            if self.seen - 1 == self._number:
                raise exc.OperationalError(
                    'COMMIT',
                    None,
                    sqlite3.OperationalError('injected: the answer is lost'),
                    connection_invalidated=True,
                )


@pytest.mark.parametrize('name', CASES)
def test_the_answer_of_each_commit_is_lost_in_turn(ground, monkeypatch, name):
    case, number, happened = CASES[name], 0, True
    subjects = Subjects(ground, case)
    while happened:
        server, lost = subjects.next(), LostCommits(number, requests=name in CAST)
        with monkeypatch.context() as patch:
            lost.install(patch)
            lost.on = True
            server = case.act(ground, server)
            ground.settle()
            lost.on = False
        happened = lost.seen > number
        check(ground, case, server, case.good)
        subjects.end()
        number += case.stride
    assert number > 1, f'{name} has only {number} commits'
