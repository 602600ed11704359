"""Break the code by chance and see a test fail: ``make mutants``.

    make mutants                            # 400 breaks, spread over the packages
    make mutants SEED=1700 N=50             # 50; the seed that a run prints repeats its choice
    make mutants ONLY=pci/pools SECONDS=60  # where; how many seconds of tests a break is shown to, at most

Each break (``changes``) is made in a copy of the tree, and the tests that run through its line (``covers``) run there
until one fails. Afterwards: by package how many died, and those that survived, each with its difference. A break that
hangs its tests counts as noticed, and is printed apart. What no test runs through has survived. Breaks that change
nothing one could notice are listed, each with the reason, in ``equivalent``; they aren't chosen.
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
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.mutants import covers
from tests.mutants.changes import Change, changes, compiles
from tests.mutants.covers import PACKAGES, Map
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.trees import ROOT, copy

# Wall-clock seconds that tests may take: so many, and so many for each second that they took when lines were noted.
PATIENCE, FACTOR = 120, 10
SHARE = 90   # per cent that must die in each package


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
    seed = int(os.environ.get('SEED') or random.randrange(10 ** 6))
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
    """All of the tree but the equivalent ones, in order."""
    found = []
    for package, place in PACKAGES.items():
        for path in [root / place] if place.endswith('.py') else sorted((root / place).rglob('*.py')):
            name = str(path.relative_to(root))
            if only in name:
                text = path.read_text()
                found += [Mutant(package, name, change) for change in changes(text)
                          if not any(each.matches(name, change, text) for each in EQUIVALENT)]
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
    workers: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        count = min(os.cpu_count() or 1, len(chosen))
        for _ in range(count):
            workers.put(stack.enter_context(_worker(stack.enter_context(copy(tree)))))

        def judge(mutant: Mutant) -> Verdict:
            worker = workers.get()
            try:
                return worker.judge(mutant, known, seconds)
            finally:
                workers.put(worker)
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            for future in concurrent.futures.as_completed([pool.submit(judge, mutant) for mutant in chosen]):
                yield future.result()


class _Worker:
    def __init__(self, tree: pathlib.Path, process: subprocess.Popen[str]) -> None:
        self._tree, self._process = tree, process

    def judge(self, mutant: Mutant, known: Map, seconds: float) -> Verdict:
        """Break the tree, run the tests, mend it."""
        tests = covers.select(known.tests(mutant.path, mutant.change.lines), seconds)
        if not tests:
            return Verdict(mutant, 'NO TEST', 'no test runs through it')
        path = self._tree / mutant.path
        whole, began = path.read_text(), time.monotonic()
        try:
            path.write_text(mutant.change.apply(whole))
            answer = self._ask([test.name for test in tests], PATIENCE + FACTOR * sum(test.seconds for test in tests))
        finally:
            path.write_text(whole)
            shutil.rmtree(self._tree / 'tmp', ignore_errors=True)
        word = {'failed': 'died', 'passed': 'SURVIVED'}.get(answer['verdict'], answer['verdict'])
        return Verdict(mutant, word, f"({len(tests)} tests, {time.monotonic() - began:.0f} s) {answer['why']}")

    def _ask(self, tests: list[str], seconds: float) -> dict[str, str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({'tree': str(self._tree), 'tests': tests, 'seconds': seconds}) + '\n')
        self._process.stdin.flush()
        answer: dict[str, str] = json.loads(self._process.stdout.readline())
        return answer


@contextlib.contextmanager
def _worker(tree: pathlib.Path) -> Iterator[_Worker]:
    # A source that changes within a second must be compiled again: no compiled files.
    environment = {**os.environ, 'PYTHONDONTWRITEBYTECODE': '1', 'PYTHONWARNINGS': 'ignore'}
    with subprocess.Popen([sys.executable, str(tree / 'tests/mutants/worker.py')], stdin=subprocess.PIPE, text=True,
                          stdout=subprocess.PIPE, cwd=tree, env=environment) as process:
        try:
            yield _Worker(tree, process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


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
        yield (f'{package:10} {died} of {judged} died ({100 * died / judged:.0f} %)'
               + (f', {hung} of them by hanging' if hung else ''))
