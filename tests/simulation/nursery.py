"""The process that builds a cloud once and forks a child for each seed, which so costs no setting up.

    python -m tests.simulation --seeds 1-100 --jobs 2

Green threads survive a fork; databases are files, which each child copies. The parent only collects results.
"""
from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pathlib
import random
import resource
import shutil
import sys
import tempfile
import time as real
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Seconds of CPU after which a child is ended.
CPU_LIMIT = 120
# Seeds between two looks whether the hours are over.
ROUND = 100
# Those of the standard library: eventlet's would let the parent's own green threads run.
_clock, _wait, _waitpid = real.perf_counter, os.wait, os.waitpid


def main(arguments: Sequence[str]) -> int:
    """0: all seeds are well."""
    parser = argparse.ArgumentParser(prog='python -m tests.simulation', description='The cloud under virtual time.')
    parser.add_argument('--seeds', default='1-20', help='17, or 1-200')
    parser.add_argument('--shape', help='one of the clouds in cloud.SHAPES; else the seed chooses')
    parser.add_argument('--length', type=int, default=20, help='acts of users in a story')
    parser.add_argument('--jobs', type=int, default=os.cpu_count() or 1, help='seeds at once')
    parser.add_argument('--fault', action='append', default=[], help='put a fault of tests/simulation/faults back')
    parser.add_argument('--plot', action='append', default=[], help='a plot of plots.py in each story')
    parser.add_argument('--twice', action='store_true', help='run each seed twice and compare')
    parser.add_argument('--shrink', action='store_true', help='make the first failing story small and tell it')
    parser.add_argument('--show', action='store_true', help='print the whole trace of each failing seed')
    parser.add_argument('--keep-going', action='store_true', help='do not stop at the first failing seed')
    parser.add_argument('--story', type=pathlib.Path, help='run the story in this file')
    parser.add_argument('--log', action='store_true', help="the daemons' logs on standard error")
    parser.add_argument('--hours', type=float, help='go on from the first seed for so long')
    parser.add_argument('--json', type=pathlib.Path, help='write the results there')
    options = parser.parse_args(arguments)
    if options.json:
        options.json = options.json.resolve()
        options.json.write_text('')
    first, _, last = options.seeds.partition('-')
    nursery, number = _Nursery(options), int(first)
    if options.hours is None:
        return nursery.run([str(one) for one in range(number, int(last or first) + 1)])
    end = _clock() + options.hours * 3600
    while _clock() < end:
        if nursery.run([str(one) for one in range(number, number + ROUND)]):
            return 1
        number += ROUND
    return 0


class _Nursery:
    """One a command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._imported()
        self._results: list[dict[str, Any]] = []

    def _imported(self) -> None:
        from tests.simulation import clock
        clock.install()
        from kilonova import concurrency
        concurrency.setup('eventlet')
        concurrency.native = lambda func, *args, **kwargs: func(*args, **kwargs)  # type: ignore[assignment]
        import threading

        from eventlet import hubs

        from tests.simulation import timeline
        hubs.use_hub(timeline.Timeline)
        self.timeline: timeline.Timeline = hubs.get_hub()
        clock.source = self.timeline
        default = threading.excepthook
        threading.excepthook = lambda args: (
            None if issubclass(args.exc_type, timeline.Crash) else default(args))
        from tests.simulation import cloud, run, shrink, story
        self.cloud, self.story, self.runner, self.shrinker = cloud, story, run, shrink

    def run(self, seeds: list[str]) -> int:
        """Every seed in the cloud that it is about; one process a cloud."""
        begun = _clock()
        if self._options.story:
            given = self.story.Story.load(self._options.story.read_text())
            seeds, shapes = [given.seed], {given.seed: given.shape}
        else:
            given = None
            shapes = {seed: self._options.shape or self._shape_of(seed) for seed in seeds}
        bad = 0
        for shape in dict.fromkeys(shapes.values()):
            mine = [seed for seed in seeds if shapes[seed] == shape]
            bad += self._fork(lambda shape=shape, mine=mine: self._shape(shape, mine, given))
        print(f'{len(seeds)} seeds, {bad} bad, {_clock() - begun:.1f} s', flush=True)
        return 1 if bad else 0

    def _shape_of(self, seed: str) -> str:
        return random.Random(f'{seed}/shape').choice(['gpus', 'tight', 'tight', 'soft', 'narrow'])

    def _fork(self, act: Callable[[], int]) -> int:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 99
            try:
                status = min(98, act())
            except BaseException:  # noqa: BLE001 - the process ends here
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        return os.waitstatus_to_exitcode(_waitpid(child, 0)[1])

    # -- one cloud ----------------------------------------------------------------------------------------------------
    def _shape(self, name: str, seeds: list[str], given: Any) -> int:
        directory = pathlib.Path(tempfile.mkdtemp(prefix='simulation-', dir='/dev/shm'))
        try:
            return self._with(directory, name, seeds, given)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _with(self, directory: pathlib.Path, name: str, seeds: list[str], given: Any) -> int:
        home = directory / 'home'
        home.mkdir()
        os.chdir(home)
        self.shape = self.cloud.SHAPES[name]
        self.made = self.cloud.Cloud(self.shape, self.timeline)
        self.timeline.reseed('build')
        self._log()
        self.timeline.complete(self.made.prepare)
        self.timeline.complete(self.made.start_all)
        self.timeline.complete(self.made.warm_up)
        self.timeline.complete(self._quiet)
        if self.timeline.failures:
            print('\n'.join(self.timeline.failures))
            return 1
        self.home = home
        for fault in self._options.fault:
            importlib.import_module(f'tests.simulation.faults.{fault}').install()
        gc.collect()
        gc.freeze()
        bad = 0
        stories = [given] if given else [
            self.story.make(seed, self.shape, self._options.length, self._options.plot) for seed in seeds]
        rounds = [story for story in stories for _ in range(2 if self._options.twice else 1)]
        digests: dict[str, str] = {}
        for story, result in self._all(rounds):
            if trace := os.environ.get('SIMULATION_TRACE'):
                number = 1 + (result['seed'] in digests)
                pathlib.Path(f'{trace}-{result["seed"]}-{number}').write_text('\n'.join(result['lines']))
            other = digests.setdefault(result['seed'], result['digest'])
            if other != result['digest']:
                result['wrong'] = f'two runs differ: {other} and {result["digest"]}'
            bad += self._tell(story, result)
            if bad and not self._options.keep_going:
                break
        return bad

    def _quiet(self) -> None:
        """Until no connection is in use; then all are closed."""
        from kilonova.db import engine
        while any(database._engine.pool.checkedout() for database in engine._databases_of_process):
            self.timeline.sleep(0.001)
        for database in engine._databases_of_process:
            database.dispose()

    def _all(self, stories: list[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Results as they come, ``jobs`` at once."""
        waiting, working = list(reversed(stories)), {}
        try:
            while waiting or working:
                while waiting and len(working) < self._options.jobs:
                    story = waiting.pop()
                    pid, path = self._begin(story)
                    working[pid] = story, path
                pid, status = _wait()
                if pid in working:
                    story, path = working.pop(pid)
                    yield story, self._result(story, path, status)
        finally:
            for pid in working:
                os.kill(pid, 9)
                _waitpid(pid, 0)

    def _begin(self, story: Any) -> tuple[int, pathlib.Path]:
        path = pathlib.Path(tempfile.mkdtemp(prefix='seed-', dir=self.home.parent))
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid, path
        try:
            self._child(story, path)
        except BaseException:  # noqa: BLE001 - the process ends here
            (path / 'error').write_text(traceback.format_exc())
        finally:
            sys.stderr.flush()
            os._exit(0)

    def _child(self, story: Any, path: pathlib.Path) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT * max(1, len(story.acts) // 100), resource.RLIM_INFINITY))
        for database in self.home.glob('*.db'):
            shutil.copyfile(database, path / database.name)
        os.chdir(path)
        if len(story.acts) < 200:
            gc.disable()
        result = self.runner.run(self.made, story)
        result.cpu = sum(os.times()[:2])
        (path / 'result').write_text(json.dumps(result.dump()))

    def _result(self, story: Any, path: pathlib.Path, status: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((path / 'result').read_text())
        except OSError:
            error = path / 'error'
            text = error.read_text() if error.exists() else f'the child ended with status {status}'
            found = {**self.runner.Result(story.seed).dump(), 'wrong': f'the simulator broke: {text}'}
        shutil.rmtree(path, ignore_errors=True)
        return found

    def _tell(self, story: Any, result: dict[str, Any]) -> int:
        if self._options.json:
            with self._options.json.open('a') as file:
                file.write(json.dumps({**result, 'lines': None, 'story': story.dump()}) + '\n')
        print(f'seed {result["seed"]:>6} {self.shape.name:6} {result["digest"]} {len(story.acts):4} acts '
              f'{result["accepted"]:4} accepted {len(story.troubles):2} troubles {result["virtual"]:7.0f} s '
              f'{result["steps"]:7} steps '
              f'{result["statements"]:6} statements {result["messages"]:5} messages {result["cpu"]:6.2f} CPU-s '
              f'{"" if result["wrong"] is None else "WRONG: " + result["wrong"]}', flush=True)
        if result['wrong'] is None:
            return 0
        if self._options.shrink:
            story, result = self._smaller(story, result)
        if self._options.show or self._options.shrink:
            print(f'\nThe story (python -m tests.simulation --story FILE runs it again):\n{story.dump()}\n\n{story}\n')
            print('\n'.join(result['lines']))
            print(f'\nWRONG: {result["wrong"]}')
        return 1

    def _smaller(self, story: Any, result: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        last = {'result': result}

        def try_out(candidate: Any) -> str | None:
            _, found = next(iter(self._all([candidate])))
            if found['wrong'] is not None and self.shrinker.kind_of(found['wrong']) == self.shrinker.kind_of(
                    result['wrong']):
                last['result'] = found
            return found['wrong']  # type: ignore[no-any-return]
        small = self.shrinker.shrink(story, try_out)
        return small, last['result']

    def _log(self) -> None:
        import logging
        if not self._options.log:
            logging.disable(logging.CRITICAL)
            return
        timeline = self.timeline

        class Lines(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                print(f'{timeline.now:9.3f} {timeline.current().process.name:11} {record.levelname} '
                      f'{record.getMessage()}', file=sys.stderr)
                if record.exc_info and record.exc_info[0]:
                    traceback.print_exception(*record.exc_info)
        logging.getLogger().addHandler(Lines())
        logging.getLogger('kilonova').setLevel(logging.INFO)
