"""docs/admin/guests.md says of every extra spec and image property what becomes of it; here its list meets the code."""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from kilonova.api.schemas.extra_specs import SPECS
from kilonova.api.services import unsupported
from kilonova.objects.image_properties import LEGACY_NAMES, PROPERTIES

ROOT = Path(__file__).parents[2]
HEADING = '## Every name'
DONE, REFUSED, IDLE = 'done', 'refused', 'no effect'
# What the code calls by a name, and the list by what users write.
SPELLED = {'traits_required': 'trait:*'}


class Row(NamedTuple):
    """``why``: tests below tests/, or the reason."""

    names: tuple[str, ...]
    what: str
    why: str


@functools.cache
def rows() -> tuple[Row, ...]:
    page = (ROOT / 'docs' / 'admin' / 'guests.md').read_text().partition(f'{HEADING}\n')[2].partition('\n## ')[0]
    lines = [line.strip('|').split(' | ') for line in page.splitlines() if line.startswith('| `')]
    assert len(lines) > 50
    return tuple(Row(tuple(re.findall(r'`([^`]+)`', names)), what.strip(), why.strip()) for names, what, why in lines)


def names_of(*kinds: str) -> list[str]:
    return [name for row in rows() if row.what in kinds for name in row.names]


def spelled(pattern: str) -> set[str]:
    """The names that a pattern of extra specs allows; of one that allows any number its beginning with '*'."""
    if match := re.search(r'\[|\.\+|\\d', pattern):
        return {re.split(r'[(:]?[(\[\\.]', pattern[: match.start() + 1])[0] + '*'}
    choice = re.search(r'\(([^()]*)\)(\??)', pattern)
    if choice is None:
        return {pattern}
    words = choice[1].split('|') + ([''] if choice[2] else [])
    return {name for word in words for name in spelled(pattern[: choice.start()] + word + pattern[choice.end() :])}


def in_code() -> set[str]:
    """Extra specs that the code names in its strings, whether the API's rows have them or not."""
    found = set()
    for path in (ROOT / 'kilonova').rglob('*.py'):
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.update(re.findall(r'^(?:hw|hw_rng|hw_video|quota):[a-z_]*[a-z]$', part.value))
    return found


def known() -> set[str]:
    """Every name that the code knows: those that a row of the refusals covers by a pattern are that pattern."""
    refused = (
        unsupported.names(unsupported.EXTRA_SPECS)
        | unsupported.names(unsupported.IMAGE_PROPERTIES)
        | unsupported.names(unsupported.SNAPSHOTS)
    )
    names = {
        *in_code(),
        *(name for spec in SPECS for name in spelled(spec.name)),
        *LEGACY_NAMES,
        *(SPELLED.get(name, name) for name in PROPERTIES),
    }
    return refused | {name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in refused)}


def written(name: str) -> str:
    """``hw:numa_cpus.N`` and ``resources:*`` as the code has them."""
    if name.endswith('.N'):
        return name.removesuffix('.N') + ('*' if ':' in name else '')
    return name.removesuffix(':*') + '*' if name.endswith(':*') and name != SPELLED['traits_required'] else name


def test_patterns_are_spelled_out() -> None:
    assert spelled('hw:a_(max_)?(b|c)') == {'hw:a_b', 'hw:a_c', 'hw:a_max_b', 'hw:a_max_c'}
    assert spelled('q:(a|b)_sec(_max(_length)?)?') == {
        f'q:{one}_sec{end}' for one in 'ab' for end in ('', '_max', '_max_length')
    }
    assert spelled(r'hw:numa_cpus\.\d+') == {'hw:numa_cpus*'} and spelled(r'capabilities:.+') == {'capabilities*'}
    assert spelled(r'resources([a-z_-]{1,64})?:(VCPU|CUSTOM_[A-Z]+)') == {'resources*'}


def test_each_name_that_the_code_knows_has_one_row() -> None:
    names = [written(name) for name in names_of(DONE, REFUSED, IDLE)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    ours = {name if name != 'trait*' else SPELLED['traits_required'] for name in known()}
    assert sorted(ours - set(names)) == []
    # kernel_id and the like are read by name, without a type.
    others = set(names) - ours
    source = ''.join(path.read_text() for path in (ROOT / 'kilonova').rglob('*.py'))
    assert others == {'kernel_id', 'ramdisk_id', 'os_shutdown_timeout'}
    assert [name for name in others if f"'{name}'" not in source and f"'image_{name}'" not in source] == []


@functools.cache
def source(path: str, name: str) -> str:
    """A test's own text, with its marks; '' where there is none."""
    file = ROOT / 'tests' / path
    text = file.read_text() if file.exists() else ''
    for part in ast.parse(text).body:
        if isinstance(part, ast.FunctionDef) and part.name == name:
            first = min([part.lineno, *(mark.lineno for mark in part.decorator_list)])
            return '\n'.join(text.splitlines()[first - 1 : part.end_lineno])
    return ''


@pytest.mark.parametrize('row', [row for row in rows() if row.what == DONE], ids=lambda row: row.names[0])
def test_what_is_done_is_shown_by_a_test_that_names_it(row: Row) -> None:
    shown = [source(*test.split('::')) for test in re.findall(r'`([^`]+)`', row.why)]
    assert shown and all(shown), row.why
    text = '\n'.join(shown)
    for name in row.names:
        stem, end = (
            (re.sub(r'(\.N|:\*)$', lambda found: found[0][0], name), '')
            if name.endswith(('.N', ':*'))
            else (name, r'(?![\w:])')
        )
        assert re.search(rf'(?<![\w:]){re.escape(stem)}{end}', text), name


def test_what_is_refused_is_refused_with_that_reason() -> None:
    reasons = {
        name: row.reason
        for row in (*unsupported.EXTRA_SPECS, *unsupported.IMAGE_PROPERTIES, *unsupported.SNAPSHOTS)
        for name in row.names
    }
    assert {name: row.why for row in rows() if row.what == REFUSED for name in row.names} == reasons


def test_what_has_no_effect_says_why() -> None:
    assert {row.what for row in rows()} == {DONE, REFUSED, IDLE}
    assert [row.names for row in rows() if row.what == IDLE and len(row.why.split()) < 4] == []
    # Nothing in the code reads them: they stand in the tables of names alone.
    tables = {'image_properties.py', 'extra_specs.py'}
    code = ''.join(path.read_text() for path in (ROOT / 'kilonova').rglob('*.py') if path.name not in tables)
    assert [name for name in names_of(IDLE) if name.startswith(('hw', 'img_', 'os_')) and f"'{name}'" in code] == []
