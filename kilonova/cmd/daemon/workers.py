"""Run a daemon as several processes: a parent that starts workers, restarts them, and forwards signals.

    if workers.count(conf, 'api') > 1 and not workers.is_worker():
        return WorkerProcesses(conf, 'api', workers.count(conf, 'api'), {'api': ('0.0.0.0', 8774)}).run()

A worker is a new process with the command line of this program, and KILONOVA_WORKER in its environment. It shares only
the listening sockets with the parent. A forked process would also inherit eventlet's hub and the connections to
databases and the broker, and SQLite even forbids to close inherited connections.

The parent and each worker are connected by a pair of sockets. By these sockets the worker reports that it serves, and
the parent tells the worker to end. A worker whose parent has died ends as well. Signals can't be used for this, because
a terminal and some service managers send them to all processes, and a second signal means "at once".
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import concurrency
from kilonova.cmd import options
from kilonova.cmd.daemon import notify, sockets
from kilonova.cmd.daemon.signals import ENDING, SignalListener

LOG = logging.getLogger(__name__)

# Environment variable of each worker. Its value is '<number of the worker>:<file descriptor of its socket>'.
VARIABLE = 'KILONOVA_WORKER'
SERVING, END, END_NOW = b'+', b'-', b'!'
# The number that a thread sends to the main thread when a worker has reported that it serves.
# The main thread receives signal numbers in the same way (see ``SignalListener``), so no signal may have this number.
TOLD = 0xFD
# Seconds until a worker that died is restarted: first PAUSE, then twice as long after each death, up to LONGEST_PAUSE.
# If a worker has lived longer than LONGEST_PAUSE before it died, the pause is PAUSE again.
PAUSE, LONGEST_PAUSE = 1.0, 60.0
# Workers end by themselves after manager_shutdown_timeout, and are killed this number of seconds later.
GRACE = 5.0


def count(conf: cfg.ConfigOpts, name: str) -> int:
    """Return the number of processes of ``kilonova-<name>``.

    If the daemon's option for workers is not set, it is the number of usable CPUs. A daemon that has no option for
    workers is one process.
    """
    wanted = {
        'api': lambda: conf.osapi_compute_workers,
        'conductor': lambda: conf.conductor.workers,
        'scheduler': lambda: conf.scheduler.workers,
    }
    if name not in wanted:
        return 1
    return wanted[name]() or len(os.sched_getaffinity(0))


def is_worker() -> bool:
    """Return whether ``WorkerProcesses`` started this process."""
    return VARIABLE in os.environ


def title(name: str) -> str:
    """Return the name of this process: kilonova-api, or kilonova-api-2 for its second worker."""
    number = os.environ.get(VARIABLE, '').partition(':')[0]
    return f'kilonova-{name}-{number}' if number else f'kilonova-{name}'


class ParentChannel:
    """The worker's end of the connection to its parent.

    ``ending(at_once)`` is called when the parent tells this process to end, or when the parent has died. A process that
    is not a worker has no parent, so ``ending`` is never called.
    """

    def __init__(self, ending: Callable[[bool], None]) -> None:
        self._ending = ending
        self._socket: socket.socket | None = None
        if is_worker():
            descriptor = int(os.environ[VARIABLE].partition(':')[2])
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=descriptor)
            concurrency.spawn(self._watch, self._socket, name='parent')

    def _watch(self, channel: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while byte := channel.recv(1):
                self._ending(byte == END_NOW)
        self._ending(False)

    def serving(self) -> None:
        """Report to the parent, or to the service manager, that this process serves now."""
        if self._socket is None:
            notify.tell('READY=1')
            return
        with contextlib.suppress(OSError):
            self._socket.send(SERVING)


class Worker:
    """One worker process and its state."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.serves = False
        self.cut = False
        self.began = 0.0
        self.deaths = 0
        self.due: float | None = None

    def died(self, now: float) -> float:
        """Set the time at which this worker, which died, is started again. Return the seconds until that time.

        ``now`` is the present time by the monotonic clock.
        """
        self.deaths = 1 if now - self.began > LONGEST_PAUSE else self.deaths + 1
        pause = min(PAUSE * 2 ** (self.deaths - 1), LONGEST_PAUSE)
        self.process, self.serves, self.due = None, False, now + pause
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        found: float = pause
        return found

    def ended_well(self) -> bool:
        """Return whether the worker ended gracefully, or was terminated by the parent before it began to serve."""
        code = self.process.returncode if self.process is not None else None
        return code == 0 or (self.cut and code == -signal.SIGTERM)


class WorkerProcesses:
    """The parent process of several workers. ``addresses`` is {name: address} of the sockets that the workers share."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        name: str,
        wanted: int,
        addresses: Mapping[str, sockets.Address],
        command: Sequence[str] | None = None,
    ) -> None:
        self._conf, self._name = conf, name
        self._listeners = {label: sockets.listen(label, address) for label, address in addresses.items()}
        self._command = command or [sys.executable, *sys.orig_argv[1:]]
        self._workers = [Worker(number) for number in range(1, wanted + 1)]
        self._ears: SignalListener
        self._served = False
        self._ready = False

    def run(self) -> int:
        """Run the workers until a signal ends them.

        Return 0 if all workers ended gracefully, or 1 if no worker ever served or one did not end gracefully.
        """
        with SignalListener((*ENDING, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)) as self._ears:
            LOG.info(
                'Starting %d workers of kilonova-%s (version %s)', len(self._workers), self._name, options.version()
            )
            for worker in self._workers:
                self._start(worker)
            while True:
                for byte in self._ears.hear(self._until_due()):
                    if byte in ENDING:
                        LOG.info('Caught %s, ending %d workers', signal.Signals(byte).name, len(self._workers))
                        return self._end()
                    if byte == signal.SIGHUP:
                        options.reload(self._conf)
                    if byte in (signal.SIGHUP, signal.SIGUSR2):
                        self._send(signal.Signals(byte))
                    if byte == TOLD:
                        self._tell_ready()
                if not self._look():
                    LOG.error('%s does not start: its workers exited before they were ready', f'kilonova-{self._name}')
                    self._end()
                    return 1

    # -- start and restart of single workers ---------------------------------------------------------------------------
    def _start(self, worker: Worker) -> None:
        ours, theirs = socket.socketpair()
        shared = [listener.fileno() for listener in self._listeners.values()]
        environment = {key: value for key, value in os.environ.items() if key != notify.VARIABLE}
        environment |= {
            VARIABLE: f'{worker.number}:{theirs.fileno()}',
            sockets.INHERITED: sockets.told(self._listeners),
        }
        worker.process = subprocess.Popen(
            self._command, env=environment, pass_fds=[theirs.fileno(), *shared], process_group=0
        )
        theirs.close()
        worker.channel, worker.began, worker.due = ours, time.monotonic(), None
        LOG.info('Started worker %d, pid %d', worker.number, worker.process.pid)
        concurrency.spawn(self._listen, worker, ours, name=f'worker-{worker.number}')

    def _listen(self, worker: Worker, channel: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if channel.recv(1) == SERVING:
                worker.serves = self._served = True
                self._ears.ring(TOLD)

    def _tell_ready(self) -> None:
        if not self._ready and all(worker.serves for worker in self._workers):
            self._ready = True
            notify.tell('READY=1')

    def _look(self) -> bool:
        """Detect workers that died, and start each of them again when its pause (see PAUSE) has passed.

        Return False if a worker died before any worker ever served. Then the caller ends the daemon with an error.
        """
        now = time.monotonic()
        for worker in self._workers:
            if worker.process is not None and (code := worker.process.poll()) is not None:
                if not self._served:
                    return False
                pid, pause = worker.process.pid, worker.died(now)
                LOG.warning(
                    'Worker %d (pid %d) ended with %d; starting it again in %d s', worker.number, pid, code, pause
                )
            elif worker.due is not None and worker.due <= now:
                self._start(worker)
        return True

    def _until_due(self) -> float | None:
        due = [worker.due for worker in self._workers if worker.due is not None]
        return min(due) - time.monotonic() if due else None

    # -- messages and signals to all workers ---------------------------------------------------------------------------
    def _alive(self) -> list[subprocess.Popen[bytes]]:
        return [
            worker.process for worker in self._workers if worker.process is not None and worker.process.poll() is None
        ]

    def _send(self, number: signal.Signals) -> None:
        for process in self._alive():
            process.send_signal(number)

    def _tell_end(self, word: bytes) -> None:
        for worker in self._workers:
            if worker.process is None or worker.process.poll() is not None or worker.channel is None:
                continue
            with contextlib.suppress(OSError):
                worker.channel.send(word)
            if not worker.serves:
                # Terminate a worker that does not serve yet, because it may not read the socket until it serves.
                worker.cut = True
                worker.process.terminate()

    def _end(self) -> int:
        notify.tell('STOPPING=1')
        for listener in self._listeners.values():
            listener.close()
        ended = [worker for worker in self._workers if worker.process is not None]
        self._tell_end(END)
        deadline = time.monotonic() + self._conf.manager_shutdown_timeout + GRACE
        while self._alive():
            if time.monotonic() >= deadline:
                LOG.warning('%d workers did not end in time; they are killed', len(self._alive()))
                self._send(signal.SIGKILL)
                deadline += GRACE
            if any(byte in ENDING for byte in self._ears.hear(deadline - time.monotonic())):
                LOG.warning('Second request to shut down: passing it on to the workers')
                self._tell_end(END_NOW)
        LOG.info('Ended')
        return 0 if all(worker.ended_well() for worker in ended) else 1
