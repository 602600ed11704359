"""Programs that work on files: qemu-img, cp, mkfs, genisoimage.

    run('qemu-img', 'create', '-f', 'qcow2', path, '1G')

What they make is its owner's alone: disks, images and config drives belong to tenants. libvirt gives files to QEMU's
user while a guest runs (dynamic_ownership).
"""
from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable

from kilonova import errors

# mkfs and mkswap are where ordinary users don't look.
ENVIRONMENT = {**os.environ, 'LC_ALL': 'C',
                'PATH': f'{os.environ.get("PATH", os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin'}
# Seconds between two looks whether a program shall go on.
_LOOK = 0.2
_PRIVATE = 0o077


class CommandFailed(errors.KilonovaError):
    """A program isn't there, or ended with an error; ``exit_code`` is what it ended with, ``said`` its words."""

    msg_fmt = '%(command)s failed: %(reason)s'
    exit_code, said = 127, ''


def run(*argv: str) -> str:
    """What the program prints; raises CommandFailed with what it said on stderr."""
    try:
        done = subprocess.run(argv, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, umask=_PRIVATE)
    except FileNotFoundError as error:
        raise CommandFailed(command=argv[0], reason='the program is not installed on this host') from error
    if done.returncode:
        said = done.stderr.strip()
        failed = CommandFailed(command=' '.join(argv[:3]), reason=said or f'exit code {done.returncode}')
        failed.exit_code, failed.said = done.returncode, said
        raise failed
    return done.stdout


def watched(check: Callable[[], None], *argv: str) -> None:
    """``run`` for what takes long: ``check()`` is called all the time, what it raises ends the program."""
    check()
    # What it says goes to a file: nobody reads a pipe meanwhile.
    with tempfile.TemporaryFile('w+', errors='replace') as stderr:
        try:
            process = subprocess.Popen(argv, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=stderr, text=True, umask=_PRIVATE)
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
    """Whether a program still works after a moment. Not ``communicate``: under eventlet its TimeoutExpired is of a
    class that nobody can name."""
    try:
        process.wait(_LOOK)
    except subprocess.TimeoutExpired:
        return True
    return False


def limited(*argv: str, cpu_seconds: int, address_space_gib: int) -> str:
    """``run`` with limits, for programs that look at what users uploaded."""
    return run('prlimit', f'--cpu={cpu_seconds}', f'--as={address_space_gib << 30}', '--', *argv)
