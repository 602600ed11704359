"""Bash completion of the command-line programs offers every command and every option."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kilonova.cmd import cli, policy, status
from kilonova.cmd.manage import completion
from kilonova.cmd.manage import main as manage

PROGRAMS = {
    'kilonova-manage': manage.parser(),
    'kilonova-status': status.parser(),
    'kilonova-policy': cli.parser(policy.PROG, '', policy.TREE),
}


@pytest.fixture(scope='module')
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file."""
    path = tmp_path_factory.mktemp('completion') / 'kilonova'
    path.write_text(completion.bash({program.PROG: program.TREE for program in (manage, status, policy)}))
    return path


def ask(script: Path, *lines: str, where: Path | None = None) -> list[list[str]]:
    """What Tab offers behind each of these lines, as bash answers it."""
    text = f'set -u; load() {{ source {script}; }}; load; complete -p kilonova-manage kn > /dev/null\n'
    for line in lines:
        *words, last = line.split(' ')
        text += (
            f'COMP_WORDS=({" ".join(words)} "{last}"); COMP_CWORD={len(words)}; _kilonova {words[0]} "{last}" '
            f'{words[-1]}; echo "${{COMPREPLY[*]}}"\n'
        )
    done = subprocess.run(['bash', '--norc', '-c', text], capture_output=True, text=True, check=False, cwd=where)
    assert (done.returncode, done.stderr) == (0, '')
    return [line.split() for line in done.stdout.splitlines()]


def walk(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, set[str], set[str]]]:
    """(path, commands, first names of options) of a command line and of those below it, as argparse has them."""
    branches = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    options = {
        '--help' if '--help' in action.option_strings else action.option_strings[0]
        for action in parser._actions
        if action.option_strings
    }
    yield path, {name for branch in branches for name in branch.choices}, options
    for branch in branches:
        for name, child in branch.choices.items():
            yield from walk(f'{path} {name}', child)


@pytest.mark.parametrize('program', PROGRAMS)
def test_every_command_and_every_option_is_offered(script: Path, program: str) -> None:
    known = list(walk(program, PROGRAMS[program]))
    assert len(known) >= 3
    offered = ask(script, *(f'{path} ' for path, _, _ in known), *(f'{path} -' for path, _, _ in known))
    assert {path: set(words) for (path, _, _), words in zip(known, offered[: len(known)], strict=True)} == {
        path: commands or options for path, commands, options in known
    }
    assert {path: set(words) for (path, _, _), words in zip(known, offered[len(known) :], strict=True)} == {
        path: options for path, _, options in known
    }


def test_what_an_option_takes(script: Path, tmp_path: Path) -> None:
    (tmp_path / 'k.conf').touch()
    lines = {
        'kilonova-manage device l': ['list'],
        '/opt/kilonova/bin/kilonova-manage device l': ['list'],
        'bin/kn device l': ['list'],
        'kilonova-manage device list --format ': ['table', 'json'],
        'kilonova-manage device list --format = j': ['json'],
        'kilonova-manage device list --host ': [],
        # The value of an option is no command, and its other spelling takes one, too.
        'kilonova-manage cell_v2 map_instances --max_count 5 --c': ['--cell_uuid'],
        'kilonova-manage --config-file db device c': ['check'],
        'kilonova-manage --config-file ': ['k.conf'],
        'kilonova-policy sample --output-file k': ['k.conf'],
        'kilonova-manage no such': [],
    }
    assert dict(zip(lines, ask(script, *lines, where=tmp_path), strict=True)) == lines


def test_the_command_prints_it(script: Path, write_conf, capsys) -> None:
    assert manage.main(['--config-file', write_conf(), 'completion']) == 0
    assert capsys.readouterr().out == script.read_text()
