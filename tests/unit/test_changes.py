"""The files in changes/, of which a release makes its notes: names, types and texts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = ROOT / 'changes'
TOWNCRIER = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['towncrier']
TYPES = [each['directory'] for each in TOWNCRIER['type']]


def wrong(directory: Path) -> list[str]:
    """Return 'file: what is wrong' for each file of a directory that no release could make a list item of."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.name in TOWNCRIER['ignore']:
            continue
        if not re.fullmatch(rf'[a-z0-9]+(-[a-z0-9]+)*\.({"|".join(TYPES)})\.md', path.name):
            found.append(f'{path.name}: not <slug>.<type>.md with a type of {", ".join(TYPES)}')
        elif not (text := path.read_text().strip()):
            found.append(f'{path.name}: empty')
        elif text[0] in '-*#':
            found.append(f'{path.name}: begins with {text[0]}, which the release writes')
    return found


def test_each_entry_has_a_known_type_and_a_text() -> None:
    assert wrong(CHANGES) == []


@pytest.mark.parametrize(
    ('name', 'text', 'told'),
    [
        ('labels.added.md', 'Devices have labels.\n', None),
        ('labels.feature.md', 'Devices have labels.\n', 'type'),
        ('labels.md', 'Devices have labels.\n', 'type'),
        ('Device labels.added.md', 'Devices have labels.\n', 'slug'),
        ('labels.added.md', ' \n', 'empty'),
        ('labels.added.md', '- Devices have labels.\n', 'begins with -'),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, name: str, text: str, told: str | None) -> None:
    (tmp_path / name).write_text(text)
    found = wrong(tmp_path)
    assert not found if told is None else (len(found) == 1 and name in found[0] and told in found[0])


def test_the_page_lists_the_types() -> None:
    assert re.findall(r'^\| `(\w+)` \|', (CHANGES / 'README.md').read_text(), re.MULTILINE) == TYPES


def test_a_release_writes_the_entries_above_the_former_notes(tmp_path: Path) -> None:
    pytest.importorskip('towncrier')
    for name in ('pyproject.toml', 'CHANGELOG.md', 'changes/template.md.jinja', 'changes/README.md'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / 'changes' / 'labels.added.md').write_text('Devices have labels,\nas `label` says.\n')
    (tmp_path / 'changes' / 'races.fixed.md').write_text('A race is gone.\n')
    subprocess.run(['git', 'init', '-q', str(tmp_path)], check=True)
    command = [sys.executable, '-m', 'towncrier', 'build', '--yes', '--version', '9.9.9', '--date', '2030-01-02']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    notes = (tmp_path / 'CHANGELOG.md').read_text()
    new, _, former = notes.partition('release notes start -->\n')[2].partition('## 0.1.0')
    assert new == (
        '\n## 9.9.9 (2030-01-02)\n\n### Added\n\n- Devices have labels,\n  as `label` says.\n\n'
        '### Fixed\n\n- A race is gone.\n\n'
    )
    assert former and not list((tmp_path / 'changes').glob('*.*.md'))
