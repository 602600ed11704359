"""Every path, module, option, target and command that the documents mention exists in the tree."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kilonova.conf
from kilonova.cmd import policy, status
from kilonova.cmd.cli import Command, Tree
from kilonova.cmd.manage import main as manage

ROOT = Path(__file__).parents[2]
# Changes of long ago name what is no longer there.
HISTORY = ROOT / 'docs' / 'reference' / 'changes-before-0-1-0.md'
PAGES = [ROOT / name for name in ('README.md', 'CONTRIBUTING.md')] + sorted((ROOT / 'docs').rglob('*.md'))
PAGES.remove(HISTORY)
CODE = re.compile(r'`([^`\n]+)`')
FENCED = re.compile(r'^```[^\n]*\n(.*?)^```', re.DOTALL | re.MULTILINE)
FOLDERS = ('kilonova', 'tests', 'tools', 'docs', 'etc', 'bin')
# Sections of other programs' files, of libraries, and one that stands for many.
FOREIGN = ('agent', 'mdev_TYPE', 'oslo_messaging_rabbit', 'oslo_reports', 'ovn')
# Options of [DEFAULT] that libraries register, and those of Nova that are named as not taken.
LIBRARIES = (
    'executor_thread_pool_size',
    'log_config_append',
    'quota_cores',
    'rpc_response_timeout',
    'scheduler_default_filters',
    'transport_url',
)


def mentions(find: Callable[[str], set[str]]) -> list[str]:
    """Return 'page: text' for each text that ``find`` returns for a page."""
    return [f'{path.relative_to(ROOT)}: {text}' for path in PAGES for text in sorted(find(path.read_text('utf-8')))]


def missing_paths(page: str) -> set[str]:
    """Return the paths below the tree's folders that a page names and that don't exist."""
    named = {
        match.rstrip('.,:;')
        for code in CODE.findall(page)
        for match in re.findall(rf'(?<![\w/.<-])(?:{"|".join(FOLDERS)})/[\w./*-]+', code)
    }
    # In pictures and examples only whole paths of modules: other paths there may be made up.
    named |= {
        match
        for block in FENCED.findall(page)
        for match in re.findall(r'(?<![\w/.<-])(?:kilonova|tests|tools)/[\w/]+\.py\b', block)
    }
    # NAME and HOST stand for names of the reader's own.
    named = {re.sub(r'\b[A-Z]{3,}\b', '*', path) for path in named}
    return {path for path in named if not any(ROOT.glob(path.rstrip('/'))) and not (ROOT / path).exists()}


def missing_modules(page: str) -> set[str]:
    """Return the file names of Python modules that a page names and that are nowhere in the tree."""
    named = {code for code in CODE.findall(page) if re.fullmatch(r'(?:\w+/)*\w+\.py', code)}
    known = [str(path) for folder in ('kilonova', 'tests', 'tools', 'docs') for path in (ROOT / folder).rglob('*.py')]
    return {name for name in named if not any(path.endswith(f'/{name}') for path in known)}


def missing_options(page: str) -> set[str]:
    """Return the ``[section]option`` that a page names and that no section of the configuration has."""
    options = {
        group: {
            name.replace('-', '_')
            for opt in opts
            for name in (opt.name, *(old.name for old in opt.deprecated_opts if old.name))
        }
        for group, opts in kilonova.conf.list_opts()
    }
    named = {match for code in CODE.findall(page) for match in re.findall(r'^\[(\w+)\](\w+)', code)}
    return {
        f'[{group}]{name}'
        for group, name in named
        if name not in options.get(group, set())
        and group not in FOREIGN
        and not (group == 'DEFAULT' and name in LIBRARIES)
    }


def missing_targets(page: str) -> set[str]:
    """Return the targets of make that a page names and that the Makefile does not have."""
    targets = set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.MULTILINE))
    texts = [*CODE.findall(page), *(line for block in FENCED.findall(page) for line in block.splitlines())]
    named = {match for text in texts for match in re.findall(r'^make ([a-z-]+)\b', text)}
    return named - targets


def missing_commands(page: str) -> set[str]:
    """Return the commands of Kilonova's own programs that a page names and that they don't have."""
    trees: dict[str, Tree] = {
        'kilonova-manage': manage.TREE,
        'bin/kn': manage.TREE,
        'kilonova-status': status.TREE,
        'kilonova-policy': policy.TREE,
    }
    texts = [*CODE.findall(page), *(line for block in FENCED.findall(page) for line in block.splitlines())]
    found = set()
    for text in texts:
        words = text.removeprefix('sudo -u kilonova ').split()
        if not words or words[0].rpartition('/')[2] not in {name.rpartition('/')[2] for name in trees}:
            continue
        tree: Tree | Command = next(
            tree for name, tree in trees.items() if name.rpartition('/')[2] == words[0].rpartition('/')[2]
        )
        for word in words[1:]:
            if isinstance(tree, Command) or not re.fullmatch(r'[a-z][a-z0-9_-]*', word):
                break
            if word not in tree:
                found.add(text)
                break
            tree = tree[word]
    return found


@pytest.mark.parametrize('find', [missing_paths, missing_modules, missing_options, missing_targets, missing_commands])
def test_what_the_documents_name_exists(find: Callable[[str], set[str]]) -> None:
    assert mentions(find) == []


@pytest.mark.parametrize(
    ('find', 'page', 'found'),
    [
        (missing_paths, 'in `kilonova/nowhere/` and `kilonova/conf/pci.py`', {'kilonova/nowhere/'}),
        (
            missing_paths,
            'a picture:\n\n```\nkilonova/nowhere/a.py   first\n   kilonova/conf/pci.py then\n```\n',
            {'kilonova/nowhere/a.py'},
        ),
        (missing_modules, '`nowhere.py` beside `create.py`', {'nowhere.py'}),
        (missing_options, '`[pci]nothing` and `[pci]alias`', {'[pci]nothing'}),
        (missing_targets, '`make nothing` and `make demo`', {'nothing'}),
        (
            missing_commands,
            '`kilonova-manage device explode` and `kilonova-manage device list`',
            {'kilonova-manage device explode'},
        ),
    ],
)
def test_a_name_that_does_not_exist_is_found(find: Callable[[str], set[str]], page: str, found: set[str]) -> None:
    assert find(page) == found
