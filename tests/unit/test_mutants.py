"""``make mutants``: what it breaks, whom it shows the breaks to, and what it says of them."""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import by_chance, changes, covers
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.rules import MUTANTS

ROOT = Path(__file__).parents[2]

SOURCE = '''"""Its text."""
LIMIT: int = 3


class Bag:
    """Another."""

    def add(self, things: list['int'], wanted: bool = False) -> int | None:
        if len(things) < LIMIT and (
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
    ('condition', 'Bag.add', 9, 'len(things) < LIMIT and (\n                not wanted)',
     '(not (len(things) < LIMIT and (\n                not wanted)))'),
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
    assert [(mutant.name, mutant.path) for mutant in MUTANTS
            if (ROOT / mutant.path).read_text(encoding='utf-8').count(mutant.old) != 1] == []


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
    change, = changes.changes("x = f('ä ö', wide)[3]\n")[-1:]
    assert change.apply("x = f('ä ö', wide)[3]\n") == "x = f('ä ö', wide)[4]\n"


def test_the_choice() -> None:
    """The same for the same seed; as many of each package as there are, the rest from the others; rare kinds, too."""
    def some(package: str, kind: str, number: int) -> list[by_chance.Mutant]:
        return [by_chance.Mutant(package, f'kilonova/{package}', changes.Change(kind, '', start, '1', '2', (1,)))
                for start in range(number)]
    all_ = [*some('pci', 'constant', 300), *some('pci', 'loop', 9), *some('compute', 'constant', 300),
            *some('states.py', 'constant', 4)]
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
    known.add({'tests': [['a.py::one', 1.0, True], ['a.py::two', 2.0, True], ['a.py::bad', 1.0, False]],
               'lines': {'kilonova/x.py': {'1': [-1], '5': [0, 1, 2], '6': [1], '7': [2]}}})
    known.add({'tests': [['b.py::three', 0.5, True]], 'lines': {'kilonova/x.py': {'1': [-1], '7': [0]}}})

    def names(*lines: int) -> set[str]:
        return {test.name for test in known.tests('kilonova/x.py', lines)}
    known.add({'tests': [['c/test_x.py::four', 0.5, True]], 'lines': {}})
    assert known.count == 4
    assert names(5, 6) == {'a.py::one', 'a.py::two'}
    assert names(9, 7) == {'b.py::three'}
    assert names(1) == {'a.py::one', 'a.py::two', 'b.py::three', 'c/test_x.py::four'}
    everyone = list(range(99))
    known.add({'tests': [[f'd.py::{number}', 0.1, True] for number in everyone], 'lines': {
        'kilonova/x.py': {'20': everyone, '21': everyone}, 'kilonova/z.py': {'3': everyone[:50]}}})
    # Those that run through nothing else come first.
    assert len(names(1)) == covers.MOST_AT_IMPORT + 1
    assert {f'd.py::{number}' for number in range(50)} & names(1) == set()
    assert names(8) == set() == {test.name for test in known.tests('kilonova/y.py', (5,))}


def test_tests_that_a_break_is_shown_to() -> None:
    """Of each file those that run through few lines; no more seconds than allowed, but at least one test."""
    wide, narrow, other, slow = (covers.Test(name, seconds, lines) for name, seconds, lines in (
        ('a.py::wide', 1.0, 900), ('a.py::narrow', 2.0, 10), ('b.py::other', 3.0, 50), ('c.py::slow', 60.0, 5)))
    assert covers.select([wide, narrow, other, slow], 5) == [narrow, other]
    assert covers.select([wide, narrow, other, slow], 100) == [wide, narrow, other, slow]
    assert covers.select([slow], 5) == [slow]
    assert covers.select([], 5) == []


@pytest.fixture(scope='module')
def worker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, '-W', 'ignore', str(ROOT / 'tests/mutants/worker.py')], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_the_tests_of_a_broken_tree(worker: subprocess.Popen[str], tmp_path: Path) -> None:
    """A failed test and a file that can't be imported are noticed; a test that hangs is, too, and is ended."""
    (tmp_path / 'pyproject.toml').write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / 'test_small.py').write_text('from small import f\n\n\ndef test_it():\n    assert f() == 3\n')

    def run(source: str, seconds: float = 120, test: str = 'test_small.py::test_it') -> tuple[str, str]:
        (tmp_path / 'small.py').write_text(source)
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps({'tree': str(tmp_path), 'tests': [test], 'seconds': seconds}) + '\n')
        worker.stdin.flush()
        answer: dict[str, Any] = json.loads(worker.stdout.readline())
        return answer['verdict'], answer['why']
    assert run('def f():\n    return 3\n')[0] == 'passed'
    verdict, why = run('def f():\n    return 4\n')
    assert verdict == 'failed' and 'test_small.py::test_it' in why
    assert run('raise ValueError\n')[0] == 'failed'
    assert run('def f():\n    while True:\n        pass\n', seconds=5)[0] == 'HANGS'
    assert run('import os\nos._exit(9)\n')[0] == 'ERROR'
    # Cases that are made of what was broken: their names change, and no test notices.
    (tmp_path / 'test_rows.py').write_text("import pytest\nfrom small import ROWS\n\n\n@pytest.mark.parametrize('row', "
                                           'ROWS)\ndef test_row(row):\n    assert row != "bad"\n')
    assert run("ROWS = ['b']\n", test='test_rows.py::test_row[a]')[0] == 'passed'
    assert run("ROWS = ['bad']\n", test='test_rows.py::test_row[a]')[0] == 'failed'


def test_the_summary() -> None:
    """Percentages by package; what hangs counts as noticed, what could not be tried doesn't count."""
    text = 'a = 1\n'
    change, = changes.changes(text)
    mutant = by_chance.Mutant('pci', 'kilonova/x.py', change)
    found = [by_chance.Verdict(mutant, word, '') for word in ('died', 'died', 'HANGS', 'SURVIVED', 'NO TEST', 'ERROR')]
    assert by_chance.counts(found) == {'pci': (3, 5)}
    lines = list(by_chance.summary(found, {'kilonova/x.py': text}))
    assert lines[-1] == 'pci        3 of 5 died (60 %), 1 of them by hanging'
    assert 'SURVIVED kilonova/x.py:1 constant in the file' in lines and '    -a = 1\n    +a = 2' in lines


def test_equivalent_breaks_are_breaks() -> None:
    """Each would still be made, and says why nobody could notice."""
    for each in EQUIVALENT:
        text = (ROOT / each.path).read_text(encoding='utf-8')
        assert any(each.matches(each.path, change, text) for change in changes.changes(text)), each
        assert len(each.reason) > 20
