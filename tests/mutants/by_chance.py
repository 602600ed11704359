"""Break the code by chance and see a test fail: ``make mutants``.

    make mutants                            # 400 breaks, spread over the packages
    make mutants SEED=1700 N=50             # 50; the seed that a run prints repeats its choice
    make mutants ONLY=pci/pools SECONDS=60  # where; how many seconds of tests a break is shown to, at most

Each break (``changes``) is made in a fork of a process that has the tests (``worker``), and the tests that run through
its line (``covers``) run there until one fails: those named after the file first. A break of what runs when a file is
imported is written into a copy of the tree, where a process of its own starts. Afterwards: by package how many died,
and those that survived, each with its difference. A break that hangs its tests counts as noticed, and is printed apart.
What no test runs through has survived.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import difflib
import json
import os
import pathlib
import queue
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.mutants import covers
from tests.mutants.changes import Change, changes, compiles
from tests.mutants.covers import PACKAGES, Map, Test
from tests.mutants.trees import ROOT, copy

# Wall-clock seconds that a test may take: so many, and so many for each second that it took when lines were noted.
PATIENCE, FACTOR = 30, 10
SHARE = 90  # per cent that must die in each package
Answer = dict[str, str]  # {'verdict', 'why'}: see ``worker``


@dataclass(frozen=True)
class Mutant:
    """A change of the file at ``path``, which belongs to ``package``."""

    package: str
    path: str
    change: Change

    def __str__(self) -> str:
        return f'{self.path}:{self.change.lines[0]} {self.change.kind}'

    def difference(self, text: str) -> str:
        """The lines that change, in ``text`` of the file."""
        lines = difflib.unified_diff(text.splitlines(), self.change.apply(text).splitlines(), n=1, lineterm='')
        return '\n'.join(f'    {line}' for line in list(lines)[3:])


@dataclass(frozen=True)
class Verdict:
    """``word``: 'died', 'SURVIVED', 'HANGS', 'NO TEST' or 'ERROR'."""

    mutant: Mutant
    word: str
    why: str


def main() -> int:
    """0 when enough die in each package."""
    seed = int(os.environ.get('SEED') or random.randrange(10**6))
    number, seconds = int(os.environ.get('N') or 400), float(os.environ.get('SECONDS') or 30)
    all_ = mutants(ROOT, os.environ.get('ONLY', ''))
    chosen = choose(all_, number, seed, lambda each: compiles(each.change.apply((ROOT / each.path).read_text())))
    print(f'SEED={seed} N={number}: {len(chosen)} of {len(all_)} breaks', flush=True)
    found: list[Verdict] = []
    with copy(ROOT) as tree:
        # The map is made of the copy: others may go on with the tree.
        texts = {mutant.path: (tree / mutant.path).read_text() for mutant in chosen}
        known = Map.of(tree, ROOT / covers.KEPT)
        print(f'{known.count} tests', flush=True)
        for verdict in judge_all(chosen, known, tree, seconds):
            found.append(verdict)
            print(f'{len(found):4} {verdict.word:9} {verdict.mutant}: {verdict.why}', flush=True)
    print('\n'.join(summary(found, texts)), flush=True)
    return 0 if found and all(died >= SHARE * of / 100 for died, of in counts(found).values()) else 1


def mutants(root: pathlib.Path, only: str = '') -> list[Mutant]:
    """All of the tree, in order."""
    found = []
    for package, place in PACKAGES.items():
        for path in [root / place] if place.endswith('.py') else sorted((root / place).rglob('*.py')):
            name = str(path.relative_to(root))
            if only in name:
                found += [Mutant(package, name, change) for change in changes(path.read_text())]
    return found


def choose(all_: Sequence[Mutant], number: int, seed: int, good: Callable[[Mutant], bool]) -> list[Mutant]:
    """So many good ones, as equally many of each package and, in it, of each kind as there are; the same for the same
    seed and tree."""
    dice = random.Random(seed)
    by_package: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in all_:
        by_package[mutant.package].append(mutant)
    chosen: list[Mutant] = []
    # The smallest first: what it lacks the others give.
    for done, group in enumerate(sorted(by_package.values(), key=len)):
        share = (number - len(chosen)) // (len(by_package) - done)
        chosen += _draw(group, share, dice, good)
    dice.shuffle(chosen)
    return chosen


def _draw(group: Sequence[Mutant], number: int, dice: random.Random, good: Callable[[Mutant], bool]) -> list[Mutant]:
    """So many; each time a kind is chosen first: there are many constants, and few loops."""
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in dice.sample(group, len(group)):
        by_kind[mutant.change.kind].append(mutant)
    drawn: list[Mutant] = []
    while len(drawn) < number and any(by_kind.values()):
        mutant = by_kind[dice.choice([kind for kind, left in by_kind.items() if left])].pop()
        if good(mutant):
            drawn.append(mutant)
    return drawn


def judge_all(chosen: Sequence[Mutant], known: Map, tree: pathlib.Path, seconds: float) -> Iterator[Verdict]:
    """As many at once as there are cores, each in a tree of its own."""
    judges: queue.SimpleQueue[Judge] = queue.SimpleQueue()
    sound: dict[str, bool] = {}
    with contextlib.ExitStack() as stack:
        count = min(os.cpu_count() or 1, len(chosen))
        for _ in range(count):
            judges.put(stack.enter_context(Judge(stack.enter_context(copy(tree)), known, seconds, sound)))

        def judge(mutant: Mutant) -> Verdict:
            one = judges.get()
            try:
                return one.judge(mutant)
            finally:
                judges.put(one)

        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            for future in concurrent.futures.as_completed([pool.submit(judge, mutant) for mutant in chosen]):
                yield future.result()


class Judge(contextlib.AbstractContextManager['Judge']):
    """Shows breaks to the tests that ``known`` names. It keeps a process that has collected all tests (``worker``), and
    starts another when that one has ended. ``sound``: {a test: whether it passes in the tree as it is}."""

    def __init__(self, tree: pathlib.Path, known: Map, seconds: float, sound: dict[str, bool]) -> None:
        self._tree, self._known, self._seconds, self._sound = tree, known, seconds, sound
        self._files = sorted({test.file for test in known.every()})
        self._tests: Tests | None = None

    def __exit__(self, *_: object) -> None:
        if self._tests is not None:
            self._tests.close()

    def judge(self, mutant: Mutant) -> Verdict:
        tests = covers.select(self._known.tests(mutant.path, mutant.change.lines), self._seconds, mutant.path)
        if not tests:
            return Verdict(mutant, 'NO TEST', 'no test runs through it')
        began, answer = time.monotonic(), {'verdict': '', 'why': ''}
        while not answer['verdict']:
            try:
                answer = self._show(mutant, tests)
                if answer['verdict'] in {'failed', 'HANGS'} and not self._is_sound(answer['why'], tests):
                    tests = [test for test in tests if test.name != answer['why']]
                    answer = {'verdict': '' if tests else 'passed', 'why': ''}
            except Ended as ended:
                self._tests = None
                answer = {'verdict': 'ERROR', 'why': str(ended)}
        word = {'failed': 'died', 'passed': 'SURVIVED', 'GONE': 'ERROR'}.get(answer['verdict'], answer['verdict'])
        return Verdict(mutant, word, f'({len(tests)} tests, {time.monotonic() - began:.0f} s) {answer["why"]}')

    def _show(self, mutant: Mutant, tests: Sequence[Test]) -> Answer:
        path = self._tree / mutant.path
        whole = path.read_text()
        broken = mutant.change.apply(whole)
        # A function that ran before the tests, as one that makes a table, comes too late in a fork.
        if not any((mutant.path, line) in self._known.at_start for line in mutant.change.lines):
            answer = self._warm().run(tests, path, broken)
            if answer['verdict'] != 'AT START':
                return answer
        try:
            path.write_text(broken)
            with Tests(self._tree, sorted({test.file for test in tests})) as started:
                return started.run(tests)
        except Ended as ended:
            return {'verdict': 'failed', 'why': str(ended)}
        finally:
            path.write_text(whole)

    def _warm(self) -> Tests:
        if self._tests is None:
            self._tests = Tests(self._tree, self._files)
        return self._tests

    def _is_sound(self, name: str, tests: Sequence[Test]) -> bool:
        """A test is believed that passes in the tree as it is. (Other words than a test's name: nothing was run.)"""
        found = [test for test in tests if test.name == name]
        if found and name not in self._sound:
            self._sound[name] = self._warm().run(found)['verdict'] == 'passed'
        return self._sound.get(name, True)


class Ended(Exception):
    """The process of the tests, with the last line that it wrote."""


class Tests(contextlib.AbstractContextManager['Tests']):
    """A process that has collected the tests of some files of a tree; ``Ended`` if it can't."""

    def __init__(self, tree: pathlib.Path, files: Sequence[str]) -> None:
        self._log = tree / 'tests.log'
        (requests, write), (read, answers) = os.pipe(), os.pipe()
        # A source that changes within a second must be compiled again: no compiled files are written.
        environment = {
            **os.environ,
            'PYTHONDONTWRITEBYTECODE': '1',
            'PYTHONPATH': str(tree),
            'COLUMNS': '200',
            'KILONOVA_CONCURRENCY': 'threading',
            'KILONOVA_BREAKS': str(requests),
            'KILONOVA_VERDICTS': str(answers),
        }
        command = [
            sys.executable,
            '-m',
            'pytest',
            '-p',
            'tests.mutants.worker',
            '-p',
            'no:cacheprovider',
            '-p',
            'no:randomly',
            f'--basetemp={tree}/tmp',
            *files,
        ]
        with self._log.open('w') as log:
            self._process = subprocess.Popen(
                command,
                cwd=tree,
                env=environment,
                pass_fds=(requests, answers),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(requests)
        os.close(answers)
        self._requests, self._answers = os.fdopen(write, 'w'), os.fdopen(read)
        try:
            if not self._answer()['collected']:
                raise Ended("the tests can't be collected")
        except Ended:
            self.close()
            raise

    def run(self, tests: Sequence[Test], path: pathlib.Path | str = '', text: str = '') -> Answer:
        """``text``: what the file at ``path`` becomes."""
        try:
            self._requests.write(
                json.dumps(
                    {
                        'path': str(path),
                        'text': text,
                        'tests': [[test.name, round(PATIENCE + FACTOR * test.seconds)] for test in tests],
                    }
                )
                + '\n'
            )
            self._requests.flush()
        except BrokenPipeError:
            raise Ended(self._last_line()) from None
        return self._answer()

    def _answer(self) -> Answer:
        if not (line := self._answers.readline()):
            raise Ended(self._last_line())
        answer: Answer = json.loads(line)
        return answer

    def _last_line(self) -> str:
        lines = [line for line in self._log.read_text(errors='replace').splitlines() if line.strip()]
        return lines[-1] if lines else 'it ended'

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()


def counts(found: Sequence[Verdict]) -> dict[str, tuple[int, int]]:
    """{package: (died, judged)}; what hangs its tests died."""
    totals: dict[str, tuple[int, int]] = {}
    for verdict in found:
        if verdict.word != 'ERROR':
            died, judged = totals.get(verdict.mutant.package, (0, 0))
            totals[verdict.mutant.package] = died + (verdict.word in {'died', 'HANGS'}), judged + 1
    return totals


def summary(found: Sequence[Verdict], texts: dict[str, str]) -> Iterator[str]:
    """The lines that end a run. ``texts``: {path: what the file was}."""
    for word in ('HANGS', 'ERROR', 'NO TEST', 'SURVIVED'):
        for verdict in sorted((each for each in found if each.word == word), key=lambda each: str(each.mutant)):
            yield f'{word} {verdict.mutant} in {verdict.mutant.change.function or "the file"}'
            yield verdict.mutant.difference(texts[verdict.mutant.path])
    for package, (died, judged) in sorted(counts(found).items()):
        hung = sum(each.word == 'HANGS' and each.mutant.package == package for each in found)
        yield (
            f'{package:10} {died} of {judged} died ({100 * died / judged:.0f} %)'
            + (f', {hung} of them by hanging' if hung else '')
        )
