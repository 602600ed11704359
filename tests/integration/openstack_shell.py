"""The ``openstack`` command many times, started once: a start costs two seconds of a processor, a command far less.

    shells = Shells(python, clouds_yaml, home)
    done = shells.run('kilonova-demo', '2.1', 'server', 'list', '-f', 'json')     # Done(code=0, output='[…]', …)
    shells.end()

Each (cloud, version) is one shell of openstackclient's own in a process of its own, told its global options once; every
command goes through the same parser and exit code as on a terminal, which is also what its interactive mode does.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple


class Done(NamedTuple):
    """A command that ended; ``errors`` is what it wrote to standard error."""

    code: int
    output: str
    errors: str
    seconds: float

    @property
    def data(self) -> Any:
        """The output of a command with ``-f json``."""
        return json.loads(self.output)


class Shells:
    """The process that runs the commands."""

    def __init__(self, python: str, clouds: Path, home: Path) -> None:
        self._process = subprocess.Popen(
            [python, '-P', '-W', 'ignore', __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=(home / 'openstack-shell.log').open('w'),
            cwd=home,
            env={'OS_CLIENT_CONFIG_FILE': str(clouds), 'HOME': str(home), 'PATH': '/usr/bin:/bin', 'LC_ALL': 'C.UTF-8'},
        )

    def run(self, cloud: str, version: str | None, *arguments: str) -> Done:
        """One command, printed with its exit code as somebody would have typed it."""
        shown = [*(['--os-compute-api-version', version] if version else []), *arguments]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([cloud, version, arguments]) + '\n')
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, 'the process with the shells has ended'
        done = Done(*json.loads(line))
        print(f'[{done.code}] openstack --os-cloud {cloud} {shlex.join(shown)}  ({done.seconds:.1f} s)')
        return done

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _serve() -> None:
    """The other side: a command a line on standard input, an answer a line on standard output."""
    import openstackclient.shell  # noqa: F401 - once, before the forks

    context, ends = multiprocessing.get_context('fork'), {}
    for line in sys.stdin:
        cloud, version, arguments = json.loads(line)
        if (cloud, version) not in ends:
            # openstackclient keeps its clients in its classes: one shell a process.
            ends[cloud, version], theirs = context.Pipe()
            context.Process(target=_shell, args=(cloud, version, theirs), daemon=True).start()
        ends[cloud, version].send(arguments)
        sys.stdout.write(json.dumps(ends[cloud, version].recv()) + '\n')
        sys.stdout.flush()


def _shell(cloud: str, version: str | None, orders: Any) -> None:
    from openstackclient.shell import OpenStackShell

    output, errors = io.StringIO(), io.StringIO()
    # Handlers of logs keep the stream that they find: these stay the same for all commands.
    sys.stdout, sys.stderr = output, errors
    shell, first = OpenStackShell(), True
    options = ['--os-cloud', cloud, *(['--os-compute-api-version', version] if version else [])]
    while True:
        arguments = orders.recv()
        began = time.monotonic()
        try:
            code = shell.run([*options, *arguments]) if first else shell.run_subcommand(arguments)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        first = False
        orders.send([int(code or 0), output.getvalue(), errors.getvalue(), time.monotonic() - began])
        for stream in (output, errors):
            stream.seek(0)
            stream.truncate()


if __name__ == '__main__':
    _serve()
