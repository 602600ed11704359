"""Reference pages out of the code, so that they can't say anything else.

A page that holds the line ``<!-- generated: options -->`` gets, when Sphinx reads it, what the function of that name in
``PAGES`` returns (Markdown). Nothing is written beside the pages. To look at one without Sphinx:

    python docs/generate.py options
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oslo_config import cfg
    from sphinx.application import Sphinx

    from kilonova.conductor.flow import Flow
    from kilonova.conductor.work import Step
    from kilonova.rpc.interface import RpcInterface

# The oslo libraries import eventlet, which says at each import that it is deprecated.
warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')

# Beside the page that names them.
SAMPLES = 'notification-samples'
MARK = re.compile(r'^<!-- generated: (\w+) -->$', re.MULTILINE)
_SPECIAL = re.compile(r'([\\`*_{}\[\]<>|#$~])')


# --- Markdown --------------------------------------------------------------------------------------------------------
def plain(text: object) -> str:
    """Return text in which nothing is markup, on one line."""
    return _SPECIAL.sub(r'\\\1', re.sub(r'\s+', ' ', str(text)))


def prose(text: object) -> str:
    """Return a docstring's text as Markdown: its ``literals`` are literals, nothing else is markup."""
    parts = re.split(r'``(.+?)``', ' '.join(str(text).split()))
    return ''.join(code(part) if number % 2 else plain(part) for number, part in enumerate(parts))


def code(value: object) -> str:
    """Return a literal that is also right inside of a table, '' for an empty value."""
    text = str(value).replace('|', '\\|')
    return f'`{text}`' if text else ''


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a pipe table of cells that are Markdown already."""
    lines = [' | '.join(columns), ' | '.join('---' for _ in columns), *(' | '.join(row) for row in rows)]
    return '\n'.join(f'| {line} |' for line in lines) + '\n'


# --- options ---------------------------------------------------------------------------------------------------------
def options() -> str:
    """Return every option of ``kilonova.conf``, a section each."""
    import kilonova.conf

    parts = []
    for group, opts in kilonova.conf.list_opts():
        parts.append(f'## [{plain(group)}]\n')
        parts.extend(_option(group, opt) for opt in sorted(opts, key=lambda opt: opt.dest))
    return '\n'.join(parts)


def _option(group: str, opt: cfg.Opt) -> str:
    facts = [f'type {plain(_kind(opt))}', f'default {_default(opt)}', *_limits(opt)]
    if opt.mutable:
        facts.append('read again at SIGHUP')
    older = [f'\\[{plain(old.group or group)}\\]{code(old.name or opt.name)}' for old in opt.deprecated_opts]
    if older:
        facts.append(f'older name {", ".join(older)}')
    lines = [f'{code(opt.dest)}', f': {"; ".join(facts)}', '', f'  {plain(opt.help or "")}', '']
    return '\n'.join(lines)


def _kind(opt: cfg.Opt) -> str:
    name = type(opt).__name__.removesuffix('Opt').lower()
    return {
        'str': 'text',
        'int': 'number',
        'float': 'number',
        'bool': 'true or false',
        'list': 'comma list',
        'multistr': 'text, may be repeated',
        'hostdomain': 'host name',
        'port': 'port',
    }.get(name, name)


def _default(opt: cfg.Opt) -> str:
    value = opt.sample_default if opt.sample_default is not None else opt.default
    if value is None or value in ('', []):
        return 'none'
    return code(','.join(map(str, value)) if isinstance(value, (list, tuple)) else value)


def _limits(opt: cfg.Opt) -> list[str]:
    kind: Any = opt.type
    found = [
        f'{word} {code(value)}'
        for word, value in (('at least', getattr(kind, 'min', None)), ('at most', getattr(kind, 'max', None)))
        if value is not None
    ]
    choices = getattr(kind, 'choices', None)
    if choices:
        found.append('one of ' + ', '.join(code(choice) for choice in choices if choice is not None))
    return found


# --- policies and routes ---------------------------------------------------------------------------------------------
def policies() -> str:
    """Return every policy rule with its default."""
    from kilonova.api.policies import list_rules

    rows = []
    for rule in list_rules():
        where = '<br>'.join(code(f'{one["method"]} {one["path"]}') for one in getattr(rule, 'operations', ()))
        rows.append((code(rule.name), code(rule.check_str), plain(rule.description or ''), where))
    return table(('rule', 'default', 'what it allows', 'used by'), rows)


def routes() -> str:
    """Return every route, as ``make routes`` prints it."""
    from kilonova.api import versions
    from kilonova.api.routes import HEADER, rows

    return f'Microversions {versions.text(versions.MIN)} to {versions.text(versions.MAX)}.\n\n' + table(
        HEADER, [tuple(cell and code(cell) for cell in row) for row in rows()]
    )


def own_routes() -> str:
    """Return every route of Kilonova's own API."""
    from kilonova.api.routes import OWN_HEADER, own_rows

    return table(OWN_HEADER, [tuple(map(code, row)) for row in own_rows()])


# --- states ----------------------------------------------------------------------------------------------------------
# Where each vm state stands in the picture; one that a server can come to and that has no place stops the build.
PLACES = {
    'building': (80, 50),
    'active': (400, 50),
    'stopped': (760, 50),
    'resized': (610, 250),
    'error': (150, 235),
    'any state': (130, 400),
    'deleted': (540, 400),
    'soft-delete': (770, 400),
    'paused': (265, 150),
    'suspended': (400, 250),
    'shelved': (300, 500),
    'shelved_offloaded': (560, 500),
    'rescued': (570, 120),
}
WIDTH, HEIGHT, BOX = 840, 540, (126, 34)


def vm_moves() -> dict[tuple[str, str], set[str]]:
    """Return a dict from (vm state before, after) to the names of what leads there.

    An event that is allowed in any vm state but only in one task state comes from where that task state was set.
    """
    from kilonova.states import ANY, TRANSITIONS

    rules = TRANSITIONS.values()
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rule in rules:
        if rule.to_vm is None:
            continue
        befores = set(rule.vm)
        if rule.vm is ANY:
            befores = (
                {'any state'}
                if rule.task is ANY
                else {
                    state for first in rules if first.vm is not ANY and first.to_task in rule.task for state in first.vm
                }
            )
        for before in befores:
            if str(before) != str(rule.to_vm):
                found[str(before), str(rule.to_vm)].add(rule.method)
    return found


def reachable(moves: dict[tuple[str, str], set[str]]) -> list[str]:
    """Return the vm states that a server can have, from building on."""
    found = ['building', 'any state']
    for state in found:
        found += [after for before, after in moves if before == state and after not in found]
    return found


def states() -> str:
    """Return the picture of vm states, the table of transitions, and the REST status of each state."""
    from kilonova.states import ANY, TRANSITIONS

    def listed(values: frozenset, nothing: str) -> str:
        if values is ANY:
            return 'any'
        return ', '.join(sorted(code(value) if value is not None else nothing for value in values))

    rows = [
        (
            code(event),
            listed(rule.vm, ''),
            listed(rule.task, 'none'),
            code(rule.to_vm or ''),
            code(rule.to_task) if rule.to_task else 'none',
            code(rule.method),
        )
        for event, rule in TRANSITIONS.items()
    ]
    return '\n'.join(
        [
            '```{raw} html',
            picture(),
            '```',
            '',
            '## Transitions',
            '',
            (
                'An event is allowed in these vm and task states and leads to those; an empty cell keeps the vm '
                'state. The '
                'last column is the name that a 409 gives the request.'
            ),
            '',
            table(
                ('event', 'vm states before', 'task states before', 'vm state after', 'task state after', 'in a 409'),
                rows,
            ),
            '',
            '## Status',
            '',
            'What REST shows for a vm state and a task state; where no task state stands, for all others.',
            '',
            table(('vm state', 'task state', 'status'), _statuses()),
        ]
    )


def _statuses() -> list[tuple[str, str, str]]:
    from kilonova.states import TaskState, VmState, status

    rows = []
    for vm_state in VmState:
        usual = status(vm_state, None)
        rows.append((code(vm_state), '', code(usual)))
        rows += [
            (code(vm_state), code(task), code(status(vm_state, task)))
            for task in TaskState
            if status(vm_state, task) != usual
        ]
    return rows


def picture() -> str:
    """Return the vm states as SVG. The labels of arrows are the operations of the 409 column."""
    moves = vm_moves()
    shown = [state for state in reachable(moves) if state in PLACES or _no_place(state)]
    parts = [
        (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="vm states" '
            'font-family="sans-serif" font-size="13">'
        ),
        (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>'
        ),
    ]
    parts += [
        _arrow(before, after, sorted(names), (after, before) in moves)
        for (before, after), names in sorted(moves.items())
        if before in shown and after in shown
    ]
    parts += [_box(state) for state in shown]
    return '\n'.join([*parts, '</svg>'])


def _no_place(state: str) -> bool:
    raise LookupError(f'docs/generate.py: PLACES has no place for the vm state {state!r}')


def _box(state: str) -> str:
    (x, y), (width, height) = PLACES[state], BOX
    dashed = ' stroke-dasharray="5 3"' if state == 'any state' else ''
    return (
        f'<rect x="{x - width / 2}" y="{y - height / 2}" width="{width}" height="{height}" rx="8" fill="#fff" '
        f'stroke="#333"{dashed}/><text x="{x}" y="{y + 5}" text-anchor="middle">{escape(state)}</text>'
    )


def _arrow(before: str, after: str, names: Sequence[str], both: bool) -> str:
    """Draw a straight arrow between two boxes, with its names beside the middle.

    Two boxes with arrows in both directions (``both``) have them side by side.
    """
    (x1, y1), (x2, y2) = PLACES[before], PLACES[after]
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    aside = 9 if both else 0
    # From and to the edges of the boxes, whichever edge the line meets first.
    reach = min(BOX[0] / 2 / abs(dx) if dx else length, BOX[1] / 2 / abs(dy) if dy else length)
    start = (x1 + dx * reach - dy * aside, y1 + dy * reach + dx * aside)
    end = (x2 - dx * (reach + 2) - dy * aside, y2 - dy * (reach + 2) + dx * aside)
    middle = ((start[0] + end[0]) / 2 - dy * 8, (start[1] + end[1]) / 2 + dx * 8)
    anchor = 'middle' if abs(dx) > 0.9 else 'start' if dy < 0 else 'end'
    dashes = ' stroke-dasharray="5 3"' if before == 'any state' else ''
    lines = ''.join(
        f'<tspan x="{middle[0]:.0f}" dy="{13 if number else 0}">{escape(name)}</tspan>'
        for number, name in enumerate(names)
    )
    top = middle[1] + (12 if dx > 0.9 else 0 if dx < -0.9 else 4 - 6.5 * (len(names) - 1))
    return (
        f'<line x1="{start[0]:.0f}" y1="{start[1]:.0f}" x2="{end[0]:.0f}" y2="{end[1]:.0f}" stroke="#555"{dashes} '
        f'marker-end="url(#tip)"/><text y="{top:.0f}" text-anchor="{anchor}" fill="#333" font-size="11.5" '
        f'stroke="#fff" stroke-width="4" paint-order="stroke">{lines}</text>'
    )


# --- flows -----------------------------------------------------------------------------------------------------------
def flows() -> str:
    """Return the steps of each kind of operation."""
    from kilonova.conductor.flows import FLOWS

    parts = []
    for kind, flow in FLOWS.items():
        about = [prose(_first_line(type(flow)))]
        about += ['It only goes forward: a step that fails is tried again.'] if flow.forward_only else []
        rows = [
            (
                str(number),
                code(step.name),
                prose(_first_line(step.do)),
                _undo(step),
                _saved(step, flow),
                code(step.again_from or ''),
            )
            for number, step in enumerate(flow.steps)
        ]
        parts.append(
            f'## {kind}\n\n{" ".join(filter(None, about))}\n\n'
            + table(('position', 'step', 'what it does', 'undo', 'saved', 'next host from'), rows)
        )
    return '\n'.join(parts)


def _first_line(thing: object) -> str:
    # Not inspect.getdoc: it would take the docstring of a base class.
    text = inspect.cleandoc(getattr(thing, '__doc__', None) or '')
    return ' '.join(text.partition('\n\n')[0].split())


def _undo(step: Step) -> str:
    return prose(_first_line(step.undo)) if step.undo is not None else ''


def _saved(step: Step, flow: Flow[Any]) -> str:
    # The last one ends the row.
    saved = step is not flow.steps[-1] and step.saved
    return 'sometimes' if callable(saved) else 'yes' if saved else ''


# --- RPC -------------------------------------------------------------------------------------------------------------
def rpc() -> str:
    """Return the methods of the declared RPC interfaces."""
    from kilonova.rpc.baseapi import BaseApi
    from kilonova.rpc.compute import Compute
    from kilonova.rpc.conductor import ComputeTask, Conductor
    from kilonova.rpc.scheduler import Scheduler

    return '\n'.join(_interface(one) for one in (ComputeTask, Conductor, Scheduler, Compute, BaseApi))


def _interface(interface: type[RpcInterface]) -> str:
    from kilonova.rpc.interface import signature_of

    rows = []
    for name, func in interface.methods().items():
        declared: Any = func.rpc  # type: ignore[attr-defined]
        arguments = []
        for argument in list(signature_of(func).parameters.values())[2:]:
            text = argument.name if argument.default is argument.empty else f'{argument.name}={argument.default!r}'
            marks = [f'since {declared.args_since[argument.name]}'] if argument.name in declared.args_since else []
            arguments.append(code(text) + (f' ({", ".join(marks)})' if marks else ''))
        rows.append((code(name), declared.kind, declared.since, ', '.join(arguments)))
    where = f'Topic {code(interface.topic)}'
    where += f', namespace {code(interface.namespace)}' if interface.namespace else ', no namespace'
    return (
        f'## {interface.__name__}\n\n{prose(_first_line(interface))}\n\n{where}, version {interface.version}.\n\n'
        + table(('method', 'kind', 'since', 'arguments after the context'), rows)
    )


# --- plug-ins --------------------------------------------------------------------------------------------------------
def plugins() -> str:
    """Return the installed filters, weighers, prefilters and drivers by their entry points."""
    parts = []
    for group, title in (
        ('kilonova.scheduler.filters', 'Filters'),
        ('kilonova.scheduler.weighers', 'Weighers'),
        ('kilonova.scheduler.prefilters', 'Prefilters'),
        ('kilonova.virt.drivers', 'Drivers'),
    ):
        points = sorted(metadata.entry_points(group=group), key=lambda point: point.name)
        rows = [(code(point.name), code(point.value), prose(_first_line(point.load()))) for point in points]
        parts.append(
            f'## {title}\n\nEntry points of group {code(group)}.\n\n' + table(('name', 'where', 'what it does'), rows)
        )
    return '\n'.join(parts)


# --- notifications ---------------------------------------------------------------------------------------------------
def notifications() -> str:
    """Return every event with both of its names, its publisher and its payload."""
    from kilonova.rpc.notify import NOTIFICATIONS

    rows = []
    for event, row in NOTIFICATIONS.items():
        payload = f'{code(row.payload.__name__)} {row.payload.VERSION}'
        sample = f'[sample]({SAMPLES}/{event}.json)'
        publisher = code(row.binary) if row.binary else 'the service itself'
        rows.append((code(event), code(row.old or ''), publisher, payload, 'ERROR' if row.error else '', sample))
    return table(('versioned event', 'unversioned event', 'publisher', 'payload', 'priority', ''), rows)


PAGES: dict[str, Callable[[], str]] = {
    'options': options,
    'policies': policies,
    'routes': routes,
    'own_routes': own_routes,
    'states': states,
    'flows': flows,
    'rpc': rpc,
    'plugins': plugins,
    'notifications': notifications,
}


# --- Sphinx ----------------------------------------------------------------------------------------------------------
def fill(text: str) -> str:
    """Return a page with its generated part in place of the mark."""
    return MARK.sub(lambda found: PAGES[found[1]](), text)


def _read(app: Sphinx, docname: str, content: list[str]) -> None:
    content[0] = fill(content[0])


def _outdated(app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Return the pages that Sphinx makes again whatever their files say: those generated from code."""
    return [name for name in env.found_docs if MARK.search(Path(env.doc2path(name)).read_text(encoding='utf-8'))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension: Sphinx calls this function."""
    app.connect('source-read', _read)
    app.connect('env-get-outdated', _outdated)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}


if __name__ == '__main__':
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    for wanted in sys.argv[1:]:
        sys.stdout.write(PAGES[wanted]() + '\n')
