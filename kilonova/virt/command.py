"""Run programs that work on files: qemu-img, cp, mkfs, genisoimage.

    run('qemu-img', 'create', '-f', 'qcow2', path, '1G')

Files that these programs create can be read only by their owner, because disks, images and config drives belong to
tenants. While a guest runs, libvirt makes QEMU's user the owner of the guest's files (dynamic_ownership).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable

from kilonova import errors

# Programs run with the directories of mkfs and mkswap in PATH, because the PATH of ordinary users may lack them.
ENVIRONMENT = {
    **os.environ,
    'LC_ALL': 'C',
    'PATH': f'{os.environ.get("PATH", os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin',
}
# Seconds between two calls of ``check`` while a program runs.
_LOOK = 0.2
_PRIVATE = 0o077


class CommandFailed(errors.KilonovaError):
    """A program is not installed, or ended with an error.

    ``exit_code`` is the program's exit code (127 if it is not installed), and ``said`` its output on stderr.
    """

    msg_fmt = '%(command)s failed: %(reason)s'
    exit_code, said = 127, ''


def run(*argv: str) -> str:
    """Run a program, and return what it prints on stdout.

    Raises CommandFailed, with the program's output on stderr, if the program fails or is not installed.
    """
    try:
        done = subprocess.run(
            argv, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, umask=_PRIVATE
        )
    except FileNotFoundError as error:
        raise CommandFailed(command=argv[0], reason='the program is not installed on this host') from error
    if done.returncode:
        said = done.stderr.strip()
        failed = CommandFailed(command=' '.join(argv[:3]), reason=said or f'exit code {done.returncode}')
        failed.exit_code, failed.said = done.returncode, said
        raise failed
    return done.stdout


def watched(check: Callable[[], None], *argv: str) -> None:
    """Run a program that takes long, and call ``check()`` every 0.2 seconds while it runs.

    If ``check`` raises an error, the program is killed and the error is raised. Raises CommandFailed if the program
    fails or is not installed.
    """
    check()
    # stderr is a file instead of a pipe. No thread would read the pipe, and a full pipe would block the program.
    with tempfile.TemporaryFile('w+', errors='replace') as stderr:
        try:
            process = subprocess.Popen(
                argv,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                text=True,
                umask=_PRIVATE,
            )
        except FileNotFoundError as error:
            raise CommandFailed(command=argv[0], reason='the program is not installed on this host') from error
        with process:
            try:
                while _works(process):
                    check()
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            stderr.seek(0)
            said = stderr.read().strip()
            failed = CommandFailed(command=' '.join(argv[:3]), reason=said or f'exit code {process.returncode}')
            failed.exit_code, failed.said = process.returncode, said
            raise failed


def _works(process: subprocess.Popen[str]) -> bool:
    """Wait at most 0.2 seconds for the program to end. Return True if the program is still running after this time.

    The method ``wait`` of the process is called and not ``communicate``, because under eventlet ``communicate`` raises
    another exception than subprocess.TimeoutExpired after the time limit.
    """
    try:
        process.wait(_LOOK)
    except subprocess.TimeoutExpired:
        return True
    return False


def limited(*argv: str, cpu_seconds: int, address_space_gib: int) -> str:
    """Run a program with limits of CPU time and memory, because the program reads a file that a user uploaded."""
    return run('prlimit', f'--cpu={cpu_seconds}', f'--as={address_space_gib << 30}', '--', *argv)
