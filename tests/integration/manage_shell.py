"""``kilonova-manage`` many times, imported once: a start costs a second of a processor, most commands far less.

    commands = Commands(python, directory)
    done = commands.run(['--config-file', path, 'audit'], env)      # subprocess.CompletedProcess
    commands.end()

Each command is a fork of one process that has imported everything and done nothing: its environment, its standard
streams and its exit code are a process's own. ``make up`` and the demo run the installed program.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM = 'kilonova-manage'
# Seconds for one command.
PATIENCE = 120
MODULES = (
    'kilonova.cmd.manage.main',
    'kilonova.cmd.options',
    'kilonova.cmd.daemon.parts',
    'kilonova.cmd.daemon.database_parts',
    'kilonova.conductor.audit.compare',
    'kilonova.db.migration',
    'kilonova.rpc.transport',
    'prettytable',
    'pymysql',
    'oslo_messaging._drivers.impl_rabbit',
    'sqlalchemy.dialects.sqlite',
)


class Commands:
    """The process that forks; ``directory`` takes what the commands print."""

    def __init__(self, python: str, directory: Path) -> None:
        self._directory = directory
        self._process = subprocess.Popen(
            [python, '-P', '-W', 'ignore', __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, arguments: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """One command to its end; the code is that of SIGALRM after ``PATIENCE`` seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory(dir=self._directory) as place:
            output, errors = Path(place) / 'out', Path(place) / 'err'
            self._process.stdin.write(json.dumps([list(arguments), dict(env), str(output), str(errors)]) + '\n')
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            assert line, 'the process that forks has ended'
            return subprocess.CompletedProcess([PROGRAM, *arguments], int(line), output.read_text(), errors.read_text())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _serve() -> None:
    """The other side: a command a line on standard input, its exit code on standard output."""
    import importlib

    from kilonova import concurrency

    concurrency.setup('threading')
    for name in MODULES:
        importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(arguments: list[str], env: dict[str, str], output: str, errors: str) -> None:
    from kilonova.cmd.manage import main as manage

    signal.alarm(PATIENCE)
    for stream, path in ((0, os.devnull), (1, output), (2, errors)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, stream)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [PROGRAM, *arguments]
    sys.exit(manage.main())


if __name__ == '__main__':
    _serve()
