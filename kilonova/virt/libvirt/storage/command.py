"""Programs that work on files: qemu-img, cp, mkfs, genisoimage.

    run('qemu-img', 'create', '-f', 'qcow2', path, '1G')
"""
from __future__ import annotations

import os
import subprocess

from kilonova import errors

_ENVIRONMENT = {**os.environ, 'LC_ALL': 'C'}


class CommandFailed(errors.KilonovaError):
    """A program isn't there, or ended with an error."""

    msg_fmt = '%(command)s failed: %(reason)s'


def run(*argv: str) -> str:
    """What the program prints; raises CommandFailed with what it said on stderr."""
    try:
        done = subprocess.run(argv, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
    except FileNotFoundError as error:
        raise CommandFailed(command=argv[0], reason='the program is not installed on this host') from error
    if done.returncode:
        raise CommandFailed(command=' '.join(argv[:3]),
                            reason=done.stderr.strip() or f'exit code {done.returncode}')
    return done.stdout


def limited(*argv: str, cpu_seconds: int, address_space_gib: int) -> str:
    """``run`` with limits, for programs that look at what users uploaded."""
    return run('prlimit', f'--cpu={cpu_seconds}', f'--as={address_space_gib << 30}', '--', *argv)
