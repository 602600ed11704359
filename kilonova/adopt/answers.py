"""Answers of a compute API to GET requests, in a file with one JSON object a line (gzip).

answers.write(path, lines)
for answer in answers.read(path): ...       # Answer(role='admin', version='2.96', path='/servers', status=200, …)
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kilonova import errors

# The roles of the two accounts whose answers are recorded.
ROLES = ('admin', 'member')
# The most bytes of a line.
MOST_BYTES = 64 << 20


class BadAnswers(errors.Invalid):
    """A file of recorded answers can't be read, or a line of it is no recorded answer. ``reason`` names the line."""

    msg_fmt = '%(path)s: %(reason)s'


@dataclass(frozen=True)
class Answer:
    """An answer to a GET request.

    Attributes:
        role: The account that asked: 'admin' or 'member'.
        version: The microversion.
        path: The path below the API's endpoint, with its query.
        status: The status of the answer.
        body: The body of the answer, None without one.
    """

    role: str
    version: str
    path: str
    status: int
    body: Any


def read(path: Path) -> Iterator[Answer]:
    """Yield the answers of a file. Raises BadAnswers, which names the line."""
    try:
        with gzip.open(path, 'rt', encoding='utf-8') as lines:
            number = 0
            while line := lines.readline(MOST_BYTES):
                number += 1
                try:
                    answer = Answer(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise BadAnswers(path=path, reason=f'line {number} is no answer: {error}') from None
                if answer.role not in ROLES or not str(answer.path).startswith('/'):
                    raise BadAnswers(
                        path=path,
                        reason=f"line {number} has the role {answer.role!r}: a line needs the role 'admin' or 'member' "
                        "and a path that begins with '/'",
                    )
                yield answer
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise BadAnswers(path=path, reason=str(error)) from None


def write(path: Path, answers: Iterable[Answer]) -> int:
    """Write answers to a file with mode 0600 and return their number.

    The file is written under a temporary name and then renamed, so that ``path`` never has an incomplete file.
    """
    part, count = path.with_name(f'.{path.name}.part'), 0
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    try:
        with part.open('wb') as file, gzip.GzipFile('', 'wb', 9, file, mtime=0) as packed:
            for answer in answers:
                packed.write((json.dumps(asdict(answer), ensure_ascii=False, separators=(',', ':')) + '\n').encode())
                count += 1
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return count
