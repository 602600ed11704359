"""Shows breaks to tests in forks of a pytest process that has imported and collected everything: a plug-in of pytest.

``by_chance`` starts one for each core. In (file descriptor ``$KILONOVA_BREAKS``, a line of JSON each): {'path', 'text',
'tests': [[name, seconds that it may take], …]}, where ``text`` is what the file at ``path`` becomes and '' leaves it as
it is. Out
(``$KILONOVA_VERDICTS``): first {'collected': number of tests}, then for each break {'verdict', 'why'}:

``passed``   all tests pass
``failed``   one doesn't; ``why`` is its name
``HANGS``    one took too long and was ended; ``why`` is its name
``GONE``     the process ended on its way
``AT START`` the break is in what runs when the file is imported: it needs a process that starts with the broken file
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import TextIO

import pytest
from _pytest.runner import runtestprotocol

OPTIMIZED = 1  # of the flags of code: that of a function, not of a class or a module
# By file, name in it and first line.
Functions = dict[tuple[str, str, int], list[FunctionType]]


class Worker:
    """``requests`` and ``answers`` are the two ends that the process was started with."""

    def __init__(self, requests: TextIO, answers: TextIO) -> None:
        self._requests, self._answers = requests, answers

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running what was collected: once for each request."""
        items: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            for name in {item.nodeid, item.nodeid.partition('[')[0]}:
                items[name].append(item)
        self._say(collected=0 if session.testsfailed else len(session.items))
        live = functions()
        # What is here already is left alone by the collector, or each fork would copy all of it.
        gc.collect()
        gc.freeze()
        for line in self._requests:
            request = json.loads(line)
            # A test for each row of a table, one of which has another name now: all of them.
            tests = [
                (item, seconds)
                for name, seconds in request['tests']
                for item in items.get(name) or items.get(name.partition('[')[0], ())
            ]
            if request['text'] and not change(request['path'], request['text'], live, really=False):
                self._say(verdict='AT START', why='')
            elif not tests:
                self._say(verdict='failed', why='the tests are not collected any more')
            else:
                self._fork(request, tests, live)
        return True

    def _say(self, **answer: str | int) -> None:
        self._answers.write(json.dumps(answer) + '\n')
        self._answers.flush()

    def _fork(self, request: dict[str, str], tests: list[tuple[pytest.Item, int]], live: Functions) -> None:
        with tempfile.TemporaryFile() as note:
            child = os.fork()
            if not child:
                _run(request, tests, live, note.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what the tests started
            name = os.pread(note.fileno(), 10_000, 0).decode()
        if status == -signal.SIGALRM:
            self._say(verdict='HANGS', why=name)
        elif status:
            self._say(verdict='GONE', why=f'exit {status} in {name}')
        else:
            self._say(verdict='failed' if name else 'passed', why=name)


def _run(request: dict[str, str], tests: Sequence[tuple[pytest.Item, int]], live: Functions, note: int) -> None:
    """In the child, which ends here: notes the name of each test before it begins, and '' once all have passed."""
    code = 1
    try:
        os.setsid()
        if request['text']:
            change(request['path'], request['text'], live)
        for (item, seconds), (following, _) in zip(tests, [*tests[1:], tests[0]], strict=True):
            os.ftruncate(note, 0)
            os.pwrite(note, item.nodeid.encode(), 0)
            signal.alarm(seconds)
            # What a session has is not taken down: the process ends.
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                break
        else:
            os.ftruncate(note, 0)
        code = 0
    finally:
        os._exit(code)


def functions() -> Functions:
    """All of this process."""
    gc.unfreeze()
    found: Functions = defaultdict(list)
    for each in gc.get_objects():
        # Not isinstance: that asks what a weak reference stands for, which may be gone.
        if type(each) is FunctionType:
            code = each.__code__
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(each)
    return found


def change(path: str, text: str, live: Functions, *, really: bool = True) -> bool:
    """Give functions of the file at ``path`` the code that they have in ``text``; False when that doesn't do it."""
    with open(path, encoding='utf-8') as file:
        before = compile(file.read(), path, 'exec', dont_inherit=True)
    after = compile(text, path, 'exec', dont_inherit=True)
    if _shell(before) != _shell(after):
        return False
    for old, new in zip(_codes(before), _codes(after), strict=True):
        if old.replace(co_firstlineno=1, co_linetable=b'') == new.replace(co_firstlineno=1, co_linetable=b''):
            continue
        found = live.get((path, old.co_qualname, old.co_firstlineno), [])
        if not found or old.co_freevars != new.co_freevars:
            return False
        for function in found if really else ():
            function.__code__ = new
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and its classes, without those inside of functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & OPTIMIZED:
                yield inner
            else:
                yield from _codes(inner)


def _shell(code: CodeType) -> tuple[object, ...]:
    """What runs at import: a module and its classes, with their functions by name."""
    inner: list[object] = []
    for each in code.co_consts:
        if not isinstance(each, CodeType):
            inner.append((type(each), repr(each)))
        elif each.co_flags & OPTIMIZED and not each.co_name.startswith('<'):
            inner.append(each.co_name)
        else:
            inner.append(_shell(each))
    return code.co_code, code.co_names, tuple(inner)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if 'KILONOVA_BREAKS' in os.environ:
        config.pluginmanager.register(
            Worker(os.fdopen(int(os.environ['KILONOVA_BREAKS'])), os.fdopen(int(os.environ['KILONOVA_VERDICTS']), 'w'))
        )
