"""Tests of the documentation pages: links lead to files, and in-house words are not used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kilonova.conf

ROOT = Path(__file__).parents[2]
FIRST = ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'SECURITY.md', 'changes/README.md')
PAGES = [path for path in sorted((ROOT / 'docs').rglob('*.md')) if path.name not in ('regressions.md', 'seed-map.md')]
# Nova was "the field" and the code base "the house" among those who wrote it.
JARGON = re.compile(
    r"\bthe field's (?!value)|\b[Tt]he field (?:has|have|does|wants|checks|itself|took|writes|stores)\b"
    r'|\bfrom the field\b|\b(?:the|own) house\b|Is it well'
)


@pytest.mark.parametrize('name', FIRST)
def test_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    links = [link for link in re.findall(r'\]\(([^)#]+)', page.read_text()) if '://' not in link]
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_is_one_screen_that_says_what_is_not_there_and_where_to_go_on() -> None:
    lines = (ROOT / 'README.md').read_text().splitlines()
    assert len(lines) <= 45
    for word in (
        'Not there',
        'make demo',
        'make test',
        'Neutron',
        'Cinder',
        'Cyborg',
        'docs/admin/limitations.md',
        'docs/user/',
        'docs/admin/install.md',
        'docs/index.md',
        'LICENSE',
    ):
        assert word in '\n'.join(lines)


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = set()
    for path in PAGES:
        for tree in re.findall(r'```\{toctree\}\n(.*?)```', path.read_text(), re.DOTALL):
            for line in tree.splitlines():
                listed |= set(path.parent.glob(f'{line}.md')) if line and not line.startswith(':') else set()
    assert [str(path) for path in PAGES if path not in listed and path != ROOT / 'docs' / 'index.md'] == []


def test_no_jargon_in_pages_and_options() -> None:
    found = [
        f'{path.name}: {match.group()}'
        for path in [*PAGES, *(ROOT / name for name in FIRST)]
        for match in JARGON.finditer(path.read_text())
    ]
    found += [
        f'[{group}]{opt.name}: {match.group()}'
        for group, opts in kilonova.conf.list_opts()
        for opt in opts
        for match in JARGON.finditer(opt.help or '')
    ]
    assert found == []


def test_the_licence_is_the_one_that_the_package_names() -> None:
    assert 'license = Apache-2.0' in (ROOT / 'setup.cfg').read_text()
    text = (ROOT / 'LICENSE').read_text()
    assert 'Apache License' in text and 'Version 2.0, January 2004' in text
