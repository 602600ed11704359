"""Run seeds: see docs/contributor/simulation.md.

python -m tests.simulation --seeds 1-200 --jobs 2
python -m tests.simulation --seeds 17 --twice --show
"""

from __future__ import annotations

import os
import sys


def _start_again() -> None:
    """Hashes of strings and addresses of objects shall be the same each time."""
    if os.environ.get('PYTHONHASHSEED') == '0':
        return
    import ctypes

    # personality(ADDR_NO_RANDOMIZE); where it isn't allowed, runs still are the same nearly always.
    ctypes.CDLL(None).personality(0x0040000)
    os.environ['PYTHONHASHSEED'] = '0'
    os.execv(sys.executable, [sys.executable, '-W', 'ignore', '-m', 'tests.simulation', *sys.argv[1:]])


if __name__ == '__main__':
    _start_again()
    from tests.simulation import nursery

    sys.exit(nursery.main(sys.argv[1:]))
