"""kilonova-manage completion: bash completion for the commands and options of the command-line tools.

    kilonova-manage completion > /etc/bash_completion.d/kilonova

The output contains all words, so that no program is started when Tab is pressed. The words come from the tables from
which the command-line parsers are built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kilonova.cmd.cli import COMMON, Command, Tree

# Markers in the completion tables: the option takes a path, or any text. Options with fixed choices list the choices.
_PATH, _ANYTHING = '<path>', '<anything>'
_HEAD = '# Completion in bash for {programs}; made by: kilonova-manage completion\n'
# Tables of the subcommands, options and option values of each command path, such as "kilonova-manage device list".
# The tables are declared with -g, because bash may read the completion file inside a function.
_TABLES = """declare -gA _kilonova_commands=(
{commands})
declare -gA _kilonova_options=(
{options})
declare -gA _kilonova_values=(
{values})
"""
_FUNCTION = r"""_kilonova() {
    local path=${1##*/} current=${COMP_WORDS[COMP_CWORD]} takes='' at word words
    [[ $path == kn ]] && path=kilonova-manage
    for ((at = 1; at < COMP_CWORD; at++)); do
        word=${COMP_WORDS[at]}
        if [[ $word == '=' ]]; then
            continue
        elif [[ -n $takes ]]; then
            takes=''
        elif [[ -n ${_kilonova_options[$path $word]+there} ]]; then
            path="$path $word"
        else
            takes=${_kilonova_values[$path $word]-}
        fi
    done
    [[ $current == '=' ]] && current=''
    case $takes in
        '')
            words=${_kilonova_commands[$path]-}
            [[ $current == -* || -z $words ]] && words=${_kilonova_options[$path]-}
            mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current");;
        '<path>')
            compopt -o filenames 2> /dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$current");;
        '<anything>')
            COMPREPLY=();;
        *)
            mapfile -t COMPREPLY < <(compgen -W "$takes" -- "$current");;
    esac
}
"""


def bash(programs: Mapping[str, Any]) -> str:
    """Return the text of a bash completion file for several programs.

    ``programs`` is a dict from the name of a program to the tree of its commands (see ``cli.parser``).
    """
    commands: dict[str, list[str]] = {}
    options: dict[str, list[str]] = {}
    values: dict[str, str] = {}
    for program, tree in programs.items():
        for path, below, arguments in _walk(program, tree, COMMON):
            commands[path] = below
            flags = [(names, settings) for names, settings in arguments if names[0].startswith('-')]
            # If an option has two spellings (--max-count, --max_count), only the first spelling is offered.
            options[path] = [names[0] for names, _ in flags] + ['--help']
            values |= {
                f'{path} {name}': _taken(settings)
                for names, settings in flags
                for name in names
                if settings.get('action') != 'store_true'
            }
    tables = {
        'commands': {path: ' '.join(words) for path, words in commands.items() if words},
        'options': {path: ' '.join(words) for path, words in options.items()},
        'values': values,
    }
    return ''.join(
        [
            _HEAD.format(programs=', '.join(programs)),
            _TABLES.format(
                **{
                    name: ''.join(f"    ['{key}']='{words}'\n" for key, words in table.items())
                    for name, table in tables.items()
                }
            ),
            _FUNCTION,
            # Complete the command kn as well, which is the short name of kilonova-manage in the one-machine cloud.
            f'complete -F _kilonova {" ".join(programs)} kn\n',
        ]
    )


def _walk(path: str, node: Command | Tree, arguments: Any = ()) -> Iterator[tuple[str, list[str], Any]]:
    """Yield a tuple (path, subcommands, arguments) for a node of the command tree and for all nodes below it."""
    if isinstance(node, Command):
        yield path, [], node.arguments
        return
    yield path, list(node), arguments
    for name, child in node.items():
        yield from _walk(f'{path} {name}', child)


def _taken(settings: Mapping[str, Any]) -> str:
    if settings.get('choices'):
        return ' '.join(settings['choices'])
    return _PATH if settings.get('metavar') in ('PATH', 'DIR') else _ANYTHING
