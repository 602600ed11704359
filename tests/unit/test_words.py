"""The words of docstrings, log lines and faults: no figures of speech, no fragments, one form of log lines."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEVELS = {'debug', 'info', 'warning', 'error', 'exception', 'critical'}
# Figures of speech and private words, with what is written in their place.
BANNED = {
    r'\bthe field(?:\'s (?!values?\b|start\b)| does| writes| knows| calls| itself)': 'Nova',
    r'\b(?:is|are|was|were|be|been) told\b': 'is notified, receives',
    r'\b(?:is|are|was|were|be|been) (?:silent|buried)\b': 'does not answer, is recorded in cell0',
    r'\bnobody\b': 'no user, no process, no host',
    r'\bstands? still\b': 'is stopped, does not respond',
    r'\b(?:lets?|letting) (?:it )?go\b': 'detaches, releases',
    r'\bcan not\b': 'cannot',
}
# A summary that begins with a noun clause says what is returned, and not that it is.
NOUN_CLAUSE = re.compile(r'(?:What|Whatever|Those|Whoever|Who|Where|When|How)\b(?!.*\?)')
# Lines that Nova's operators search for end as they do there.
NOVA = frozenset(
    (
        'Recovered from being unable to report status.',
        'Start spawning the instance on the hypervisor.',
        'Took %0.2f seconds to spawn the instance on the hypervisor.',
        'Took %0.2f seconds to build instance.',
        'Running instance usage audit for host %s from %s to %s. %d instances.',
        'Binding ARQs.',
        'There are %(hosts)d hosts available but %(num_instances)d instances requested to build.',
        "Invalid group_policy '%s'. Valid values are 'none' and 'isolate'.",
        'Created mdev: %s on pGPU: %s.',
        "Only (required, forbidden) are supported as trait values. Received '%s' for %s.",
        'Resource amounts must be integers. Received %s=%s.',
        'Instance destroyed successfully.',
        'Instance shutdown successfully after %d seconds.',
        'Instance failed to shutdown in %d seconds.',
        'Instance spawned successfully.',
        'Instance running successfully.',
        'Failed to soft reboot instance. Trying hard reboot.',
        (
            'Got no allocation candidates from the Placement API. This could be due to insufficient resources or '
            'a temporary '
            'occurrence as compute nodes start up.'
        ),
    )
)
# Faults that clients of Nova know.
KNOWN = (
    'Can not start or end with whitespace',
    'Can not add access to a public flavor',
    'Can not find requested image',
    'Block migration can not be used with shared storage',
)


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield each module of these folders with its path below the root; migrations are left out."""
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob('*.py')):
        if 'versions' not in path.parts:
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding='utf-8'))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, 'lineno', 1), text


def log_lines(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and format of each log line that has a literal one."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and ast.unparse(node.func.value).endswith('LOG')
            and node.args
        ):
            text = literal(node.args[0])
            if text:
                yield node.lineno, text


def faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each error's format, and of each literal that is given to an error when it is raised."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'msg_fmt':
            parts = [node.value]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts = [*node.exc.args, *(keyword.value for keyword in node.exc.keywords)]
        for part in parts:
            text = literal(part)
            if text and ' ' in text:
                yield node.lineno, text


def literal(node: ast.expr) -> str:
    """Return the text of a string or of an f-string, with {} for what is filled in, or '' if it is neither."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return ''.join(part.value if isinstance(part, ast.Constant) else '{}' for part in node.values)
    return ''


def banned(text: str) -> list[str]:
    """Return the banned phrases of a text."""
    for known in KNOWN:
        text = text.replace(known, '')
    return [match.group() for pattern in BANNED for match in re.finditer(pattern, text, re.IGNORECASE)]


@pytest.mark.parametrize('find', [docstrings, log_lines, faults])
def test_no_figures_of_speech(find: object) -> None:
    found = [
        f'{path}:{line}: {phrase}'
        for path, tree in trees('kilonova', *(('tools', 'docs') if find is docstrings else ()))
        for line, text in find(tree)  # type: ignore[operator]
        for phrase in banned(text)
    ]
    assert found == []


def test_each_line_of_a_comment_begins_a_sentence() -> None:
    """A reader who sees one line of a comment understands it."""
    found = []
    for path in sorted((ROOT / 'kilonova').rglob('*.py')):
        if 'versions' in path.parts:
            continue
        above = (0, 0, '')
        lines = path.read_text().splitlines()
        with path.open('rb') as file:
            for token in tokenize.tokenize(file.readline):
                (line, column), text = token.start, token.string.removeprefix('#').strip()
                if token.type != tokenize.COMMENT or not lines[line - 1].lstrip().startswith('#'):
                    continue
                continues = above[:2] == (line - 1, column)
                if continues and len(token.string) > 30 and not above[2].endswith(('.', ':', ')')):
                    found.append(f'{path.relative_to(ROOT)}:{line}: {text}')
                above = line, column, text
    assert found == []


def test_no_docstring_begins_with_a_noun_clause() -> None:
    found = [
        f'{path}:{line}: {text.splitlines()[0]}'
        for path, tree in trees('kilonova', 'tools', 'docs')
        for line, text in docstrings(tree)
        if NOUN_CLAUSE.match(text)
    ]
    assert found == []


def test_log_lines_begin_with_a_capital_letter_and_end_without_a_full_stop() -> None:
    found = [
        f'{path}:{line}: {text}'
        for path, tree in trees('kilonova')
        for line, text in log_lines(tree)
        if text not in NOVA
        and not text.startswith('libvirt ')
        and (not re.match(r'[A-Z%\[\'"{]', text) or (text.endswith('.') and not text.endswith('...')))
    ]
    assert found == []


@pytest.mark.parametrize(
    ('text', 'phrase'),
    [
        ('Return what the host is told.', 'is told'),
        ('The database is silent.', 'is silent'),
        ('It can not be had', 'can not'),
        ("The field's name", "The field's "),
        ('Lets go of the volume', 'Lets go'),
    ],
)
def test_a_banned_phrase_is_found(text: str, phrase: str) -> None:
    assert banned(text) == [phrase]
    assert [
        found
        for find in (docstrings, log_lines, faults)
        for _, found in find(
            ast.parse(f'def f():\n    """{text}"""\n    LOG.info({text!r})\n    raise Invalid({text!r})\n')
        )
    ] == [text] * 3
