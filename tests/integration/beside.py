"""A daemon of a test's own beside those of the shared cloud: same broker, databases, Keystone and Placement.

with Beside(site, 'kilonova-api', settings='[DEFAULT]\nhost = ctl2\n', port=port) as api:
    api.await_log('Listening on', times=2)
    assert api.terminate() == 0
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.site import Site
from tools.cloud import http, process

PATIENCE = 60.0


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port: int = probe.getsockname()[1]
        return port


class Beside:
    """``command``: a program of the virtual environment and what stands before the configuration's arguments, or the
    whole command line when ``configured`` is off."""

    def __init__(
        self,
        site: Site,
        *command: str,
        directory: Path,
        settings: str = '',
        files: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        configured: bool = True,
    ) -> None:
        self.directory, self.own = directory, directory / 'own.conf'
        self.own.write_text(settings)
        self.log_path = directory / 'beside.log'
        argv = [site.layout.bin(command[0]), *command[1:]]
        if configured:
            for path in (site.layout.conf, *files, self.own):
                argv += ['--config-file', str(path)]
        self.site = site
        # The marks let the cloud's own commands find what a failed test left.
        environment = process.child_environment(site.layout, 'beside', env or {})
        with self.log_path.open('ab') as log:
            self.process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.log()[-6000:])
        self.process.kill()
        self.process.wait()
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        return self.log_path.read_text(errors='replace')

    def pids(self) -> list[int]:
        """All processes of it that live, workers included."""
        return sorted(pid for pid, name in process.marked(self.site.layout.var).items() if name == 'beside')

    def workers(self) -> list[int]:
        """All but the first one."""
        return [pid for pid in self.pids() if pid != self.process.pid]

    def until(self, question: Any, what: str) -> Any:
        """Wait until the question's answer is true; the answer."""
        deadline = time.monotonic() + PATIENCE
        while not (answer := question()):
            assert self.process.poll() is None or what == 'end', f'ended with {self.process.returncode}'
            assert time.monotonic() < deadline, f'{what}\n{self.log()[-3000:]}'
            time.sleep(0.1)
        return answer

    def await_log(self, text: str, times: int = 1) -> None:
        """Wait until it logged a text so often."""
        self.until(lambda: self.log().count(text) >= times, f'{times} x {text!r}')

    def terminate(self) -> int:
        """SIGTERM; the exit code. Nothing of it runs afterwards."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert self.pids() == []
        return code

    def get(self, port: int, path: str, headers: Mapping[str, str] | None = None) -> http.Reply:
        return http.send('GET', f'http://127.0.0.1:{port}{path}', headers=dict(headers or {}), timeout=30)
