"""Replace text in a file of answers that ``kilonova-manage adopt record`` wrote, to keep it as data of tests.

    python3 -m tools.plain_answers answers.json.gz --replace http://10.0.0.1:8774=http://controller:8774

Texts of this machine do not belong into the repository, and neither do lines of Nova's source in tracebacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kilonova.adopt import answers
from tools.record_nova import parse_replacement, plain_text


def plain(value: Any, replaced: Sequence[tuple[str, str]]) -> Any:
    """Return a part of a body with all its text as ``plain_text`` makes it."""
    if isinstance(value, dict):
        return {key: plain(one, replaced) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one, replaced) for one in value]
    return plain_text(value, replaced) if isinstance(value, str) else value


def main(argv: Sequence[str]) -> int:
    """Write the file anew; return the exit code."""
    parser = argparse.ArgumentParser(prog='plain_answers', description=__doc__.partition('\n')[0])
    parser.add_argument('file', type=Path, help='the file of answers')
    parser.add_argument(
        '--replace', metavar='OLD=NEW', type=parse_replacement, action='append', default=[], help='in all bodies'
    )
    given = parser.parse_args(argv)
    found = [dataclasses.replace(answer, body=plain(answer.body, given.replace)) for answer in answers.read(given.file)]
    print(f'{given.file}: {answers.write(given.file, found)} answers')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
