"""``make mutants``: what it breaks, whom it shows the breaks to, and what it says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mutants import by_chance, changes, covers, worker
from tests.mutants.rules import MUTANTS

ROOT = Path(__file__).parents[2]

SOURCE = '''"""Its text."""
limit: int = 3


class Bag:
    """Another."""

    def add(self, things: list['int'], wanted: bool = False) -> int | None:
        if len(things) < limit and (
                not wanted):
            raise ValueError(f'{things} is too much', 1)
        LOG.info('added %s', len(things), 1)
        self.count += max(things, key=abs)
        self.put(things, wanted)
        return None
'''
BREAKS = [
    ('constant', '', 2, '3', '4'),
    ('constant', 'Bag.add', 8, 'False', 'True'),
    (
        'condition',
        'Bag.add',
        9,
        'len(things) < limit and (\n                not wanted)',
        '(not (len(things) < limit and (\n                not wanted)))',
    ),
    ('boolean', 'Bag.add', 10, 'and', 'or'),
    ('comparison', 'Bag.add', 9, '<', '<='),
    ('not', 'Bag.add', 10, 'not wanted', '(wanted)'),
    ('removed raise', 'Bag.add', 11, "raise ValueError(f'{things} is too much', 1)", 'pass'),
    ('removed statement', 'Bag.add', 13, 'self.count += max(things, key=abs)', 'pass'),
    ('name', 'Bag.add', 13, 'max', 'min'),
    ('argument', 'Bag.add', 13, 'abs', 'None'),
    ('removed call', 'Bag.add', 14, 'self.put(things, wanted)', 'pass'),
    ('swapped arguments', 'Bag.add', 14, 'things, wanted', 'wanted, things'),
]


def test_what_a_rule_mutant_replaces_stands_once() -> None:
    assert len(MUTANTS) > 40
    assert [
        (mutant.name, mutant.path)
        for mutant in MUTANTS
        if (ROOT / mutant.path).read_text(encoding='utf-8').count(mutant.old) != 1
    ] == []


def test_breaks_of_a_file() -> None:
    """No docstring, annotation, log line or message is changed; each break stands on the line that is named."""
    found = changes.changes(SOURCE)
    assert [(each.kind, each.function, each.lines[0], each.old, each.new) for each in found] == BREAKS
    for each in found:
        broken = each.apply(SOURCE)
        assert changes.compiles(broken)
        assert broken != SOURCE and len(broken) - len(SOURCE) == len(each.new) - len(each.old)
    # A test that runs through any line of a statement's head or of a small statement may notice.
    assert {each.kind: each.lines for each in found}['boolean'] == (10, 9)
    assert 'and (\n                (wanted))' in next(each for each in found if each.kind == 'not').apply(SOURCE)


def test_places_are_found_behind_letters_of_two_bytes() -> None:
    assert changes.changes('x = (a) < (b)\n')[0].apply('x = (a) < (b)\n') == 'x = (a) <= (b)\n'
    assert not changes.compiles('x = = 1\n')
    (change,) = changes.changes("x = f('ä ö', wide)[3]\n")[-1:]
    assert change.apply("x = f('ä ö', wide)[3]\n") == "x = f('ä ö', wide)[4]\n"


def test_the_choice() -> None:
    """The same for the same seed; as many of each package as there are, the rest from the others; rare kinds, too."""

    def some(package: str, kind: str, number: int) -> list[by_chance.Mutant]:
        return [
            by_chance.Mutant(package, f'kilonova/{package}', changes.Change(kind, '', start, '1', '2', (1,)))
            for start in range(number)
        ]

    all_ = [
        *some('pci', 'constant', 300),
        *some('pci', 'loop', 9),
        *some('compute', 'constant', 300),
        *some('states.py', 'constant', 4),
    ]

    def good(mutant: by_chance.Mutant) -> bool:
        return mutant.change.start != 5

    chosen = by_chance.choose(all_, 60, 7, good)
    assert chosen == by_chance.choose(all_, 60, 7, good) != by_chance.choose(all_, 60, 8, good)
    assert len(set(chosen)) == 60
    assert [sum(each.package == name for each in chosen) for name in ('pci', 'compute', 'states.py')] == [28, 28, 4]
    assert sum(each.change.kind == 'loop' for each in chosen) >= 5
    # One of each package and kind is not good; that of states.py doesn't reach so far.
    assert len(by_chance.choose(all_, 5000, 7, good)) == len(all_) - 3


def test_tests_of_a_line() -> None:
    """The first line that tests run through decides; what runs at import is shown to the tests of that name, even if
    they run through none of its lines, and to those that run through most of the file."""
    known = covers.Map()
    known.add(
        {
            'tests': [['a.py::one', 1.0, True], ['a.py::two', 2.0, True], ['a.py::bad', 1.0, False]],
            'lines': {'kilonova/x.py': {'1': [-1], '5': [0, 1, 2], '6': [1], '7': [2]}},
        }
    )
    known.add({'tests': [['b.py::three', 0.5, True]], 'lines': {'kilonova/x.py': {'1': [-1], '7': [0]}}})

    def names(*lines: int) -> set[str]:
        return {test.name for test in known.tests('kilonova/x.py', lines)}

    known.add({'tests': [['c/test_x.py::four', 0.5, True]], 'lines': {}})
    assert known.count == 4
    assert names(5, 6) == {'a.py::one', 'a.py::two'}
    assert names(9, 7) == {'b.py::three'}
    assert names(1) == {'a.py::one', 'a.py::two', 'b.py::three', 'c/test_x.py::four'}
    everyone = list(range(99))
    known.add(
        {
            'tests': [[f'd.py::{number}', 0.1, True] for number in everyone],
            'lines': {'kilonova/x.py': {'20': everyone, '21': everyone}, 'kilonova/z.py': {'3': everyone[:50]}},
        }
    )
    # Those that run through nothing else come first.
    assert len(names(1)) == covers.MOST_AT_IMPORT + 1
    assert {f'd.py::{number}' for number in range(50)} & names(1) == set()
    assert names(8) == set() == {test.name for test in known.tests('kilonova/y.py', (5,))}


def test_tests_that_a_break_is_shown_to() -> None:
    """The fastest, and of each file those that run through few lines; no more seconds than allowed, but one test."""
    wide, narrow, other, slow = (
        covers.Test(name, seconds, lines)
        for name, seconds, lines in (
            ('a.py::wide', 1.0, 900),
            ('a.py::narrow', 2.0, 10),
            ('b.py::other', 3.0, 50),
            ('c.py::slow', 60.0, 5),
        )
    )
    assert covers.select([wide, narrow, other, slow], 5, 'x.py') == [wide, narrow]
    assert covers.select([wide, narrow, other, slow], 100, 'x.py') == [wide, narrow, other, slow]
    assert covers.select([slow], 5, 'x.py') == [slow]
    assert covers.select([], 5, 'x.py') == []
    # Half of the time is for the fastest; the file that is named after the path comes first.
    fast = [covers.Test(f'd/test_x.py::{number}', 0.5, 800) for number in range(5)]
    assert covers.select([wide, narrow, other, slow, *fast], 5, 'x.py') == [*fast, narrow]
    own = covers.Test('d/test_x.py::own', 2.4, 800)
    assert covers.select([own, *(covers.Test(f'e.py::{number}', 0.5, 800) for number in range(9))], 5, 'x.py')[0] == own


SMALL = """LIMIT = [3]


class Small:
    def f(self):
        return LIMIT[0] + ZERO


def zero():
    return 0


ZERO = zero()
"""
TEST = """from kilonova_small import LIMIT, Small


import pytest


def test_it(tmp_path):
    assert Small().f() == 3 and not list(tmp_path.iterdir())
    (tmp_path / 'once').touch()


@pytest.mark.parametrize('row', LIMIT)
def test_row(row):
    assert row != 8


def test_that_fails_always():
    assert Small().f() == 2
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree of one file and its tests."""
    (tmp_path / 'tests').symlink_to(ROOT / 'tests')
    (tmp_path / 'pyproject.toml').write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / 'kilonova_small.py').write_text(SMALL)
    (tmp_path / 'test_small.py').write_text(TEST)
    return tmp_path


def judgement(judge: by_chance.Judge, old: str, new: str) -> tuple[str, str]:
    """The word for the break, and why."""
    line = SMALL[: SMALL.index(old)].count('\n') + 1
    broken = changes.Change('some', '', SMALL.index(old), old, new, (line,))
    verdict = judge.judge(by_chance.Mutant('pci', 'kilonova_small.py', broken))
    return verdict.word, verdict.why


def test_breaks_are_shown_to_tests(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a function, and in what runs at import; with a test that hangs, and after the process of the tests died."""
    monkeypatch.setattr(by_chance, 'PATIENCE', 3)
    known = covers.Map()
    names = [f'test_small.py::{name}' for name in ('test_it', 'test_row[3]', 'test_that_fails_always')]
    known.add(
        {
            'tests': [[name, 0.0, True] for name in names],
            'lines': {'kilonova_small.py': {'1': [0, 1], '6': [0, 2], '10': [-1, 0]}},
        }
    )
    text = 'return LIMIT[0] + ZERO'
    with by_chance.Judge(small, known, 10, {}) as judge:
        word, why = judgement(judge, text, 'return 4')
        assert word == 'died' and why.endswith('test_small.py::test_it')
        # A test that fails in the tree as it is says nothing.
        assert judgement(judge, text, 'return LIMIT[-1]')[0] == 'SURVIVED'
        assert judgement(judge, text, 'while True: pass')[0] == 'HANGS'
        assert judgement(judge, text, 'import os; os._exit(9)')[0] == 'ERROR'
        # Nothing is left of a break.
        assert judgement(judge, text, 'return sum(LIMIT)')[0] == 'SURVIVED'
        word, why = judgement(judge, text, 'import os, signal; os.kill(os.getppid(), signal.SIGKILL); os._exit(1)')
        assert word == 'ERROR'
        assert judgement(judge, text, 'return 5')[0] == 'died'
        # At import: cases that are made of what was broken have other names; a file that can't be imported.
        assert judgement(judge, '[3]', '[3, 3]')[0] == 'SURVIVED'
        word, why = judgement(judge, '[3]', '[3, 3, 8]')
        assert word == 'died' and 'test_small.py::test_row[8]' in why
        assert judgement(judge, '[3]', 'None[3]')[0] == 'died'
        # A function that makes a table when its file is imported, and is called by tests beside that.
        assert judgement(judge, 'return 0', 'return 1')[0] == 'died'
        assert (small / 'kilonova_small.py').read_text() == SMALL


def test_functions_get_broken_code(tmp_path: Path) -> None:
    """Those of the module and its classes, wherever they are; what runs at import is left to a new process."""
    path = tmp_path / 'some.py'
    text = 'class Some:\n    n = 3\n    def f(self, a=1):\n        return [x for x in (a, self.n)]\n'
    path.write_text(text)
    found: dict[str, Any] = {}
    exec(compile(text, str(path), 'exec', dont_inherit=True), found)
    taken = found['Some']().f
    live = worker.functions()
    for old, new in (('n = 3', 'n = 4'), ('a=1', 'a=2'), ('def f', 'def g')):
        assert not worker.change(str(path), text.replace(old, new), live)
    assert taken() == [1, 3]
    assert worker.change(str(path), text.replace('(a, self.n)', '(\na, -self.n)'), live, really=False)
    assert taken() == [1, 3]
    assert worker.change(str(path), text.replace('(a, self.n)', '(\na, -self.n)'), live)
    assert taken() == [1, -3]


def test_what_is_known_of_a_text_is_carried_over() -> None:
    """Lines that stand keep their tests; new ones take those of the lines they replace and of the line before."""
    lines = {'1': [0], '2': [1], '3': [2, 3]}
    assert covers.carried('a\nb\nc\n', 'a\nb\nc\n', lines) == lines
    assert covers.carried('a\nb\nc\n', 'z\na\nc\n', lines) == {'1': [], '2': [0], '3': [2, 3]}
    assert covers.carried('a\nb\nc\n', 'a\nb\nx\ny\n', lines) == {'1': [0], '2': [1], '3': [1, 2, 3], '4': [1, 2, 3]}


def test_what_nobody_notices_is_not_changed() -> None:
    """By the kind of node."""

    def kinds(text: str) -> set[tuple[str, str]]:
        return {(each.kind, each.old) for each in changes.changes(text)}

    assert kinds('PAUSE: float = 30\nONE, OTHER = 5, 4 * 60\n') == set()
    assert kinds('class A:\n    def __repr__(self):\n        return self.name[3]\n') == set()
    assert kinds("x = Thread(name='a', daemon=True)\nz = spawn(f, name='b')\ny = zip(a, strict=True)\n") == set()
    assert kinds('limit = 30\n') == kinds("LIMITS = {30: 'a b'}\n") == {('constant', '30')}
    assert kinds("x = f(name='a', daemon=True)\n") == {('argument', "'a'"), ('constant', "'a'"), ('constant', 'True')}


def test_the_summary() -> None:
    """Percentages by package; what hangs counts as noticed, what could not be tried doesn't count."""
    text = 'a = 1\n'
    (change,) = changes.changes(text)
    mutant = by_chance.Mutant('pci', 'kilonova/x.py', change)
    found = [by_chance.Verdict(mutant, word, '') for word in ('died', 'died', 'HANGS', 'SURVIVED', 'NO TEST', 'ERROR')]
    assert by_chance.counts(found) == {'pci': (3, 5)}
    lines = list(by_chance.summary(found, {'kilonova/x.py': text}))
    assert lines[-1] == 'pci        3 of 5 died (60 %), 1 of them by hanging'
    assert 'SURVIVED kilonova/x.py:1 constant in the file' in lines and '    -a = 1\n    +a = 2' in lines
