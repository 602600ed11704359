"""Each break of ``make mutants`` can still be made: its text stands once in its file."""
from __future__ import annotations

from pathlib import Path

from tests.mutants.rules import MUTANTS

ROOT = Path(__file__).parents[2]


def test_what_a_mutant_replaces_stands_once() -> None:
    assert len(MUTANTS) > 40
    assert [(mutant.name, mutant.path) for mutant in MUTANTS
            if (ROOT / mutant.path).read_text(encoding='utf-8').count(mutant.old) != 1] == []
